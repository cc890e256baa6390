/* SPDX-License-Identifier: Apache-2.0
 *
 * A run that is saved under one mesh goes on under another: from any pair of stages, data and
 * tensor parallelism and ZeRO to any other. What is loaded has the bits of what was saved; the next
 * steps have those of the run that was not interrupted where both add in the same order, else they
 * are as near as docs/same_loss.md says. */
#include <dtensor/training_checkpoints.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/stage_runs.h"

enum { SAVED = 2, ALL = 5 }; /* steps */

/* clang-format off */
static const dt_staged ways[] = {
    { .mesh = "tp=1" },
    { .mesh = "pp=2", .schedule = "1f1b" },
    { .mesh = "dp=2,pp=2,tp=2", .schedule = "zb-h1", .zero = 1 },
    { .mesh = "dp=4", .zero = 3 },
    { .mesh = "pp=4", .schedule = "zbv" },
    { .mesh = "tp=2" },
    { .mesh = "pp=2,dp=2", .schedule = "1f1b", .zero = 3 },
    { .mesh = "dp=2", .zero = 1 },
    { .mesh = "pp=3", .schedule = "interleaved" },
    { .mesh = "pp=2,tp=2", .schedule = "zb-h2" },
    { .mesh = "pp=4,dp=2", .schedule = "gpipe", .zero = 2 },
    { .mesh = "dp=2,pp=2", .schedule = "dualpipev", .zero = 1 },
    { .mesh = "pp=1", .schedule = "interleaved" },
};
/* clang-format on */
enum { N_WAYS = DT_COUNT(ways) };

/* --- saving and loading ----------------------------------------------------------------------- */

typedef struct folder {
    const char *dir;
    bool fresh; /* the optimizer's state is left */
} folder;

static dt_status save(void *arg, dt_test_moment moment, int step, dt_model *model,
                      dt_optimizer *opt)
{
    const folder *f = arg;
    const dt_run_progress progress = { .step = SAVED };
    DT_HELD(run_folder) *run = NULL;

    if (moment != DT_TEST_STEPPED || step + 1 != SAVED) return DT_OK;
    DT_TRY(dt_run_folder_open(dt_model_mesh(model), f->dir, NULL, &run));
    DT_TRY(dt_run_folder_save(run, dt_model_layers(model), opt, &progress, NULL));
    DT_TRY(dt_run_folder_wait(run));
    return DT_OK;
}

static dt_status load(void *arg, dt_test_moment moment, int step, dt_model *model,
                      dt_optimizer *opt)
{
    const folder *f = arg;
    dt_run_folder_options o = DT_RUN_FOLDER_OPTIONS_INIT;
    dt_run_load_options how = DT_RUN_LOAD_OPTIONS_INIT;
    DT_HELD(run_folder) *run = NULL;
    dt_run_progress progress;

    if (moment != DT_TEST_LOADED) return DT_OK;
    o.mode = DT_RUN_FOLDER_READ;
    how.fresh_optimizer = f->fresh;
    DT_TRY(dt_run_folder_open(dt_model_mesh(model), f->dir, &o, &run));
    DT_TRY(dt_run_folder_load(run, &how, dt_model_layers(model), opt, &progress, NULL));
    DT_EXPECT(progress.step == step, "step %lld, not %d", (long long)progress.step, step);
    return DT_OK;
}

static dt_staged of_way(int i, const char *fixture, int first, int steps, dt_test_told told,
                        folder *f)
{
    dt_staged run = ways[i];

    run.fixture = fixture;
    run.microbatches = 4;
    run.first = first;
    run.steps = steps;
    run.told = told;
    run.told_arg = f;
    return run;
}

/* --- pairs ------------------------------------------------------------------------------------ */

static int size_of(const char *mesh, const char *dim)
{
    const char *at = strstr(mesh, dim);

    return at != NULL ? at[strlen(dim)] - '0' : 1;
}

/* Both add alike: over as many ranks, before or after all microbatches, and what two stages share
 * when both parts are whole. */
static bool add_alike(const dt_staged *a, const dt_staged *b)
{
    return size_of(a->mesh, "dp=") == size_of(b->mesh, "dp=") &&
           size_of(a->mesh, "tp=") == size_of(b->mesh, "tp=") && (a->zero >= 2) == (b->zero >= 2) &&
           (strstr(a->fixture, "tied") == NULL || (a->schedule != NULL) == (b->schedule != NULL));
}

typedef struct counts {
    int pairs, same;
} counts;

/* `saved` is of the step that is in the folder, `on` went on from there. */
static void resume(const dt_staged *saved, const dt_staged *on, int i, folder *f, counts *n)
{
    dt_staged loaded = of_way(i, on->fixture, SAVED, SAVED, load, f);
    dt_staged next = of_way(i, on->fixture, SAVED, ALL, load, f);
    dt_staged_gap gap;

    dt_staged_train(&loaded);
    gap = dt_staged_apart(&loaded, saved);
    if (!gap.same) dt_staged_fail(__FILE__, __LINE__, &loaded, saved, &gap);
    dt_staged_free(&loaded);
    dt_staged_train(&next);
    gap = dt_staged_apart(&next, on);
    if (add_alike(&next, on) ? !gap.same
                             : !(gap.loss <= 1e-5 && gap.norm <= 1e-5 && gap.parameter <= 3e-4))
        dt_staged_fail(__FILE__, __LINE__, &next, on, &gap);
    dt_staged_free(&next);
    n->pairs++;
    n->same += gap.same;
}

/* From way i to each of `to`; NULL: to all others, or those alone that add alike. */
static void try_from(const char *fixture, int i, const int *to, bool alike, counts *n)
{
    char dir[DT_TEST_PATH_BYTES];
    folder f = { .dir = dt_test_temp_dir(dir) };
    dt_staged saved = of_way(i, fixture, 0, SAVED, NULL, NULL);
    dt_staged on = of_way(i, fixture, 0, ALL, save, &f);

    dt_staged_train(&saved);
    dt_staged_train(&on);
    for (int k = 0; k < N_WAYS; k++) {
        const dt_staged other = of_way(k, fixture, SAVED, ALL, NULL, NULL);
        if (to != NULL ? k == *to : k != i && (!alike || add_alike(&other, &on)))
            resume(&saved, &on, k, &f, n);
    }
    dt_staged_free(&saved);
    dt_staged_free(&on);
}

DT_TEST(resume, a_run_goes_on_under_another_mesh)
{
    static const int pairs[][2] = { { 4, 1 }, { 6, 2 } };
    counts n = { 0, 0 };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(pairs); i++)
        try_from("deep tied", pairs[i][0], &pairs[i][1], false, &n);
    DT_ASSERT(n.pairs == 2 && n.same == 1);
}

DT_TEST(resume, a_run_goes_on_from_any_mesh_to_any_other)
{
    counts all = { 0, 0 }, alike = { 0, 0 };

    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (int i = 0; i < N_WAYS; i++) {
        try_from("deep tied", i, NULL, false, &all);
        try_from("deep", i, NULL, true, &alike);
    }
    DT_ASSERT(all.pairs == N_WAYS * (N_WAYS - 1) && all.same >= 14);
    DT_ASSERT(alike.pairs >= 26 && alike.same == alike.pairs);
}

/* One that begins its state anew is far beyond what is near. */
DT_TEST(resume, a_run_that_lost_its_state_is_seen)
{
    char dir[DT_TEST_PATH_BYTES];
    folder f = { .dir = dt_test_temp_dir(dir) };
    dt_staged on = of_way(1, "deep tied", 0, ALL, save, &f);
    dt_staged lost = of_way(2, "deep tied", SAVED, ALL, load, &f);
    dt_staged_gap gap;

    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("outcomes are compared in one process");
    dt_staged_train(&on);
    f.fresh = true;
    dt_staged_train(&lost);
    gap = dt_staged_apart(&lost, &on);
    if (gap.same || gap.norm < 1e-4 || gap.parameter < 3e-3)
        dt_staged_fail(__FILE__, __LINE__, &lost, &on, &gap);
    dt_staged_free(&on);
    dt_staged_free(&lost);
}
