/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that fails, leaves or hangs in the middle of a schedule frees the others, soon, with its
 * name and cell, wherever in its row it was. */
#include <dtensor/op_rows.h>
#include <dtensor/ops.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "tests/support/stage_net.h"

enum { MICROBATCHES = 4, MOST_RANKS = 4, SOON_MS = 10000, HANG_MS = 500 };

/* What a stage does wrong. */
typedef enum wrong {
    FAILS,          /* an error on its tape */
    FAILS_BACKWARD, /* the same in a row's backward */
    FAILS_WEIGHTS,  /* the same, when the gradient of a weight is wanted */
    IS_NULL,        /* NULL, and no error */
    IS_OTHER,       /* another shape than the next stage expects */
    IS_CONSTANT,    /* what no input reaches */
    IS_NO_LOSS,     /* a loss that is bf16 */
    LEAVES,         /* its rank returns from its function */
    HANGS           /* for longer than others wait */
} wrong;

typedef struct scene {
    const char *mesh, *schedule;
    wrong wrong;
    dt_action at;
    dt_status code;
    const char *culprit;            /* what the run's message has */
    const char *others[MOST_RANKS]; /* what those of the other ranks have; NULL: anything */
    char messages[MOST_RANKS][DT_ERROR_MESSAGE_BYTES];
    int64_t ended_ns[MOST_RANKS];
} scene;

/* A rank's part of it. */
typedef struct player {
    scene *s;
    dt_stage_net net;
} player;

/* --- a row whose backward fails --------------------------------------------------------------- */

static dt_status copy(const dt_kargs *args)
{
    memcpy(args->out[0].data, args->in[0].data, DT_NET_ROWS * DT_NET_WIDTH * sizeof(float));
    return DT_OK;
}

static void fail_backward(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx)
{
    (void)node, (void)dy, (void)dx;
    (void)dt_tape_fail(t, DT_ERR_SHAPE, "this gradient is none");
}

static void fail_weights(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx)
{
    dx[0] = dy[0];
    if (dt_node_wants(node, 1)) (void)dt_tape_fail(t, DT_ERR_SHAPE, "this gradient is none");
}

/* Of a weight that counts for nothing. */
static const dt_op no_weight = { .name = "no_weight",
                                 .axes = "bd, fd -> bd",
                                 .types = "ff>f",
                                 .cpu = copy,
                                 .backward = fail_weights };

static const dt_op no_gradient = { .name = "no_gradient",
                                   .axes = "bd -> bd",
                                   .types = "f>f",
                                   .cpu = copy,
                                   .backward = fail_backward };

/* --- a rank ----------------------------------------------------------------------------------- */

static void sleep_ms(int64_t ms)
{
    (void)nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

static dt_tensor *do_wrong(const player *p, dt_tape *t, dt_tensor *x)
{
    const dt_action *a = &p->s->at;

    switch (p->s->wrong) {
    case FAILS:
        return dt_tape_fail(t, DT_ERR_LAYOUT, "this stage does not work");
    case FAILS_BACKWARD:
        return dt_apply(t, &no_gradient, NULL, 1,
                        (dt_tensor *[]){ dt_stage_net_forward(&p->net, t, a->stage, 0, x) });
    case FAILS_WEIGHTS:
        return dt_apply(
            t, &no_weight, NULL, 2,
            (dt_tensor *[]){ dt_stage_net_forward(&p->net, t, a->stage, 0, x),
                             dt_layer_param(dt_layers_at(p->net.layers, 2 * a->stage), 0) });
    case IS_OTHER:
        return dt_layer_forward(t, dt_layers_at(p->net.layers, 2 * a->stage), x);
    case IS_CONSTANT:
        return dt_add(t, p->net.x[0], p->net.x[1]);
    case IS_NO_LOSS:
        return dt_cast(t, dt_stage_net_forward(&p->net, t, a->stage, 0, x), DT_BF16);
    case HANGS:
        sleep_ms(4 * HANG_MS);
        return dt_stage_net_forward(&p->net, t, a->stage, 0, x);
    case IS_NULL:
    case LEAVES:
        break;
    }
    return NULL;
}

static dt_tensor *forward(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    const player *p = arg;
    const dt_action *a = &p->s->at;

    if (stage == a->stage && microbatch == a->microbatch && a->kind == DT_ACTION_F)
        return do_wrong(p, t, x != NULL ? x : p->net.x[microbatch]);
    return dt_stage_net_forward(&p->net, t, stage, microbatch, x);
}

static dt_status play(player *p)
{
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    const int stage = p->s->at.stage, here = dt_mesh_coord(p->net.mesh, 0);

    how.forward = forward;
    how.arg = p;
    DT_TRY(dt_stage_net_pipeline(&p->net, &how));
    if (p->s->wrong == LEAVES && dt_pipeline_schedule_rank_of(p->net.schedule, stage) == here)
        return DT_OK;
    DT_TRY(dt_pipeline_run(p->net.pipeline, NULL));
    return dt_pipeline_run(p->net.pipeline, NULL);
}

static dt_status take_part(dt_mesh *mesh, const void *arg)
{
    player p = { .s = (scene *)(uintptr_t)arg };
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh)), pp = dt_mesh_dim_size(mesh, 0);
    DT_HELD(pipeline_schedule) *schedule = NULL;
    dt_status st;

    DT_TRY(dt_pipeline_schedule_create(p.s->schedule, pp, 0, MICROBATCHES, &schedule));
    if (p.s->wrong == HANGS) DT_TRY(dt_mesh_set_timeout(mesh, HANG_MS));
    DT_TRY(dt_stage_net_open(mesh, schedule, NULL, &p.net));
    st = play(&p);
    if (st != DT_OK)
        (void)snprintf(p.s->messages[rank], DT_ERROR_MESSAGE_BYTES, "%s", dt_last_error()->message);
    p.s->ended_ns[rank] = dti_now_ns();
    dt_stage_net_close(&p.net);
    return st;
}

static void run_scene(scene *s)
{
    const int64_t begin = dti_now_ns();
    const int n = s->mesh[3] - '0';

    dt_test_on_ranks_fail(s->mesh, take_part, s, s->code, s->culprit);
    for (int r = 0; r < n; r++) {
        if (!dt_test_is_here(r, n)) continue;
        if (s->others[r] != NULL && strstr(s->messages[r], s->others[r]) == NULL)
            dt_test_fail(__FILE__, __LINE__, "%s, rank %d: \"%s\" is not in \"%s\"", s->schedule, r,
                         s->others[r], s->messages[r]);
        DT_ASSERT(s->ended_ns[r] - begin < (int64_t)SOON_MS * 1000000);
    }
}

DT_TEST(pipeline_faults, who_fails_is_named_with_the_cell)
{
    static scene scenes[] = {
        { "pp=3",
          "1f1b",
          FAILS,
          { 1, DT_ACTION_F, 2, false },
          DT_ERR_LAYOUT,
          "rank 1 of the pipeline, cell 3, 1F2: stage: this stage does not work",
          { "rank 0 of the pipeline, cell", NULL,
            "rank 1 of the pipeline, cell 3, 1F2: stage: this stage" },
          { "" },
          { 0 } },
        { "pp=2",
          "zb-h1",
          FAILS_BACKWARD,
          { 0, DT_ACTION_F, 1, false },
          DT_ERR_SHAPE,
          "rank 0 of the pipeline, cell",
          { "this gradient is none" },
          { "" },
          { 0 } },
        { "pp=2",
          "zb-h1",
          FAILS_WEIGHTS,
          { 0, DT_ACTION_F, 1, false },
          DT_ERR_SHAPE,
          ", 0W1: ",
          { "this gradient is none" },
          { "" },
          { 0 } },
        { "pp=2",
          "1f1b",
          IS_NULL,
          { 1, DT_ACTION_F, 3, false },
          DT_ERR_ARG,
          "rank 1 of the pipeline, cell 6, 1F3: the stage returned NULL and no error",
          { "was cut short by rank 1" },
          { "" },
          { 0 } },
        { "pp=2",
          "gpipe",
          IS_OTHER,
          { 0, DT_ACTION_F, 1, false },
          DT_ERR_SHAPE,
          "rank 1 of the pipeline, cell 1, 1F1: ",
          { NULL },
          { "" },
          { 0 } },
        { "pp=2",
          "1f1b",
          IS_CONSTANT,
          { 1, DT_ACTION_F, 0, false },
          DT_ERR_ARG,
          "rank 1 of the pipeline, cell",
          { NULL },
          { "" },
          { 0 } },
        { "pp=2",
          "1f1b",
          IS_NO_LOSS,
          { 1, DT_ACTION_F, 3, false },
          DT_ERR_ARG,
          "the loss is bf16, not f32",
          { NULL },
          { "" },
          { 0 } },
    };

    for (size_t i = 0; i < DT_COUNT(scenes); i++) run_scene(&scenes[i]);
}

/* In every cell of every rank, forward. */
DT_TEST(pipeline_faults, in_any_cell)
{
    static const char *const schedules[] = { "1f1b", "interleaved", "zb-h2", "zbv" };
    char culprit[64];

    for (size_t k = 0; k < DT_COUNT(schedules); k++)
        for (int stage = 0; stage < (k % 2 != 0 ? 6 : 3); stage++)
            for (int m = 0; m < MICROBATCHES; m++) {
                static scene s;
                s = (scene){ .mesh = "pp=3",
                             .schedule = schedules[k],
                             .wrong = FAILS,
                             .at = { stage, DT_ACTION_F, m, false },
                             .code = DT_ERR_LAYOUT,
                             .culprit = culprit };
                (void)snprintf(culprit, sizeof culprit, "%dF%d: stage: this stage does not work",
                               stage, m);
                run_scene(&s);
            }
}

DT_TEST(pipeline_faults, who_leaves_or_hangs_is_named)
{
    static scene leaves = { "pp=3",
                            "1f1b",
                            LEAVES,
                            { 1, DT_ACTION_F, 0, false },
                            DT_ERR_COMM,
                            "rank 1 has left",
                            { "rank 1", NULL, "rank 2 of the pipeline, " },
                            { "" },
                            { 0 } };
    static scene hangs = { "pp=3",
                           "zb-h1",
                           HANGS,
                           { 1, DT_ACTION_F, 1, false },
                           DT_ERR_COMM,
                           "rank 1",
                           { "rank 1", NULL, "waits for 1F" },
                           { "" },
                           { 0 } };

    run_scene(&leaves);
    run_scene(&hangs);
}
