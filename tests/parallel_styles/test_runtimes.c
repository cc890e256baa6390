/* SPDX-License-Identifier: Apache-2.0
 *
 * Two runs in one process, at the same time: a style belongs to the runtime that it was registered
 * with, also where both runs give it the same name. */
#include <dtensor/parallel_styles.h>
#include <pthread.h>
#include <stdio.h>

#include "tests/support/dt_test.h"

enum { N_RUNS = 2, N_RANKS = 2, ROUNDS = 20 };

static dt_status cut_axis(const dt_style *style, const dt_param_info *param, int n_parts,
                          dt_cut_room *room, dt_placement *out)
{
    const int axis = *(const int *)style->user;

    (void)n_parts, (void)room;
    *out = param->n_axes == 2 ? DT_SHARD(axis) : DT_REPLICATE;
    return DT_OK;
}

/* One of the runs: how its style "mine" cuts, and the name that only this run knows. */
typedef struct run {
    int axis;
    const char *own;
    const char *foreign;
    pthread_barrier_t *meet; /* of all ranks of both runs: their runtimes are alive together */
    dt_status status;
    char message[DT_ERROR_MESSAGE_BYTES];
} run;

static dt_status register_styles(dt_runtime *rt, const run *r)
{
    const dt_style mine = { .size = sizeof mine, .partition_param = cut_axis, .user = &r->axis };

    DT_TRY(dt_style_register(rt, "mine", &mine));
    DT_TRY(dt_style_register(rt, r->own, &mine));
    return DT_OK;
}

static dt_status sees_its_own_styles(dt_runtime *rt, const run *r)
{
    const dt_layer_spec spec = {
        .name = "up", .kind = &dt_linear_kind, .axis = { { 5, 0 }, { 7, 0 } }, .style = "mine"
    };
    const dt_style *found;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(layers) *layers = NULL;
    dt_placement place;

    DT_TRY(dt_style_find(rt, r->own, NULL, &found));
    DT_EXPECT_STATUS(dt_style_find(rt, r->foreign, NULL, &found), DT_ERR_ARG, "unknown style");
    DT_TRY(dt_mesh_create(rt, "tp=2", &mesh));
    DT_TRY(dt_layers_create(mesh, "tp", &spec, 1, NULL, &layers));
    place = dt_layout_placement(dt_layer_param_layout(dt_layers_at(layers, 0), 0), 0);
    DT_EXPECT(place.kind == DT_PLACE_SHARD && place.axis == r->axis, "axis %d", place.axis);
    return DT_OK;
}

/* Both barriers are passed also after a failure, or the other run would wait for ever. */
static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const run *r = arg;
    dt_status st = register_styles(rt, r);

    (void)pthread_barrier_wait(r->meet);
    if (st == DT_OK) st = sees_its_own_styles(rt, r);
    (void)pthread_barrier_wait(r->meet);
    return st;
}

static void *start(void *arg)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    run *r = arg;

    options.n_ranks = N_RANKS;
    r->status = dt_run(&options, rank_main, r);
    (void)snprintf(r->message, sizeof r->message, "%s", dt_last_error()->message);
    return NULL;
}

DT_TEST(runtimes, two_runs_at_once_do_not_see_each_others_styles)
{
    if (dt_test_processes() > 1) dt_test_skip("a process of several has one run at a time");
    for (int round = 0; round < ROUNDS; round++) {
        pthread_barrier_t meet;
        run runs[N_RUNS] = { { .axis = 0, .own = "only_first", .foreign = "only_second" },
                             { .axis = 1, .own = "only_second", .foreign = "only_first" } };
        pthread_t threads[N_RUNS];
        (void)pthread_barrier_init(&meet, NULL, N_RUNS * N_RANKS);
        for (int i = 0; i < N_RUNS; i++) {
            runs[i].meet = &meet;
            DT_ASSERT(pthread_create(&threads[i], NULL, start, &runs[i]) == 0);
        }
        for (int i = 0; i < N_RUNS; i++) (void)pthread_join(threads[i], NULL);
        (void)pthread_barrier_destroy(&meet);
        for (int i = 0; i < N_RUNS; i++)
            if (runs[i].status != DT_OK)
                dt_test_fail(__FILE__, __LINE__, "run %d: %s", i, runs[i].message);
    }
}
