/* SPDX-License-Identifier: Apache-2.0
 *
 * An embedding that is the head too lies in the first stage and in the last: its gradient is the
 * sum of both, whatever lies beside the pipeline, and both copies stay the same. That they are so
 * at the end, and their state, dt_staged_train() looks in every run. */
#include <dtensor/factories.h>
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "tests/support/stage_runs.h"

enum { WORDS = 53, WIDTH = 24, LONG_STEPS = 50 };

/* What may lie beside a pipeline: meshes of 1 to 4 stages. */
static const struct beside {
    const char *pp[4];
    int zero;
} beside[] = { { { "tp=1", "pp=2", "pp=3", "pp=4" }, 0 },
               { { "tp=2", "pp=2,tp=2", "pp=3,tp=2", "pp=4,tp=2" }, 0 },
               { { "dp=2", "pp=2,dp=2", "dp=2,pp=3", "pp=4,dp=2" }, 1 },
               { { "dp=2,tp=2", "pp=2,dp=2,tp=2", "dp=2,pp=3,tp=2", "pp=4,dp=2,tp=2" }, 1 } };

/* --- the gradient ----------------------------------------------------------------------------- */

static const char *const names[] = { "momentum.model.embed_tokens.weight",
                                     "momentum.lm_head.weight" };

/* Gradients of the embedding and of the head: descent's first momentum. Of one that is shared there
 * is the first alone. */
typedef struct parts {
    float g[2][WORDS * WIDTH];
} parts;

static dt_status fetch(parts *out, dt_mesh *mesh, dt_optimizer *opt)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_optimizer_state s;

    for (int64_t i = 0; dt_optimizer_state_at(opt, i, &s); i++)
        for (int k = 0; k < 2; k++) {
            DT_HELD(tensor) *full = NULL;
            if (strcmp(s.name, names[k]) != 0) continue;
            DT_TRY(dt_copy_to(s.value, mesh, whole, &full));
            if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0)
                DT_TRY(dt_tensor_read(full, out->g[k], sizeof out->g[k]));
        }
    return DT_OK;
}

/* By names, so that a head of its own begins as the embedding does. */
static dt_status begin_alike(dt_layers *layers)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        const dt_param_info info = dt_layer_param_info(layer, 0);
        const bool embeds = strcmp(info.layer, "lm_head") == 0;
        const char *name = embeds ? "model.embed_tokens" : info.layer;
        if (dt_layer_holds_param(layer, 0) && info.n_axes == 2)
            DT_TRY(dt_fill_randn(dt_layer_param(layer, 0),
                                 (dt_random){ .seed = 3, .stream = dti_hash_text(7, name) }, 0.0,
                                 0.02));
    }
    return DT_OK;
}

static dt_status hear(void *arg, dt_test_moment moment, int step, dt_model *model,
                      dt_optimizer *opt)
{
    (void)step;
    if (moment == DT_TEST_LOADED) return begin_alike(dt_model_layers(model));
    return moment == DT_TEST_STEPPED ? fetch(arg, dt_model_mesh(model), opt) : DT_OK;
}

/* The gradients of one step. */
static void take(const char *fixture, const char *mesh, const char *schedule, int zero,
                 dt_test_fault fault, parts *out)
{
    dt_staged run = { .fixture = fixture,
                      .mesh = mesh,
                      .schedule = schedule,
                      .optimizer = "sgd",
                      .microbatches = 4,
                      .zero = zero,
                      .steps = 1,
                      .fault = fault,
                      .spoiled = "lm_head",
                      .told = hear,
                      .told_arg = out };

    dt_staged_train(&run);
    dt_staged_free(&run);
}

/* The largest difference from the sum of both parts, of the largest element. */
static double off_sum(const parts *shared, const parts *apart)
{
    double largest = 0, off = 0;

    for (int i = 0; i < WORDS * WIDTH; i++) {
        const float sum = apart->g[0][i] + apart->g[1][i];
        largest = fmax(largest, fabs((double)sum));
        off = fmax(off, fabs((double)shared->g[0][i] - (double)sum));
    }
    return off / largest;
}

/* Both parts are added once, when each is whole: the sum has no other rounding. In one piece they
 * are added microbatch by microbatch. */
static void try_sums(const struct beside *b, int most)
{
    static parts apart, shared;
    double off;

    take("deep", b->pp[0], NULL, b->zero, DT_FAULT_NONE, &apart);
    take("deep tied", b->pp[0], NULL, b->zero, DT_FAULT_NONE, &shared);
    off = off_sum(&shared, &apart);
    if (!(off <= 1e-6))
        dt_test_fail(__FILE__, __LINE__, "%s: %.3g off the sum of both", b->pp[0], off);
    for (int p = 2; p <= most; p++) {
        take("deep tied", b->pp[p - 1], p == 3 ? "zb-h1" : "1f1b", b->zero, DT_FAULT_NONE, &shared);
        off = off_sum(&shared, &apart);
        if (off != 0)
            dt_test_fail(__FILE__, __LINE__, "%s: %.3g off the sum of both", b->pp[p - 1], off);
    }
    take("deep tied", b->pp[1], "1f1b", b->zero, DT_FAULT_SCALED, &shared);
    off = off_sum(&shared, &apart);
    if (!(off > 1e-2))
        dt_test_fail(__FILE__, __LINE__, "%s: one that is wrong is %.3g off", b->pp[1], off);
}

DT_TEST(stage_copies, have_the_sum_of_both_gradients)
{
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    try_sums(&beside[0], 2);
    try_sums(&beside[3], 2);
}

DT_TEST(stage_copies, have_the_sum_beside_any_other_parallelism)
{
    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(beside); i++) try_sums(&beside[i], 4);
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Whatever the schedule and wherever the stages lie bits are those of the first run. */
static void step_alike(dt_staged *runs, int n)
{
    for (int i = 0; i < n; i++) {
        dt_staged_gap gap;
        dt_staged_train(&runs[i]);
        gap = dt_staged_apart(&runs[i], &runs[0]);
        if (!gap.same) dt_staged_fail(__FILE__, __LINE__, &runs[i], &runs[0], &gap);
        if (i > 0) dt_staged_free(&runs[i]);
    }
}

DT_TEST(stage_copies, are_stepped_alike_under_every_schedule)
{
    static const char *const fixtures[] = { "deep tied", "qwen2/base" };
    const dt_staged rows[] = { { .mesh = "pp=2", .schedule = "1f1b" },
                               { .mesh = "pp=2", .schedule = "gpipe", .zero = 1 },
                               { .mesh = "pp=1", .schedule = "interleaved" },
                               { .mesh = "pp=2", .schedule = "zbv" } };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        dt_staged whole = {
            .fixture = fixtures[f], .mesh = "tp=1", .optimizer = "sgd", .microbatches = 4
        };
        dt_staged runs[DT_COUNT(rows)];
        dt_staged_gap gap;
        for (size_t i = 0; i < DT_COUNT(rows); i++) {
            runs[i] = rows[i];
            runs[i].fixture = fixtures[f];
            runs[i].optimizer = "sgd";
            runs[i].microbatches = 4;
        }
        step_alike(runs, DT_COUNT(rows));
        dt_staged_train(&whole);
        gap = dt_staged_apart(&runs[0], &whole);
        if (!(fmax(fmax(gap.loss, gap.norm), fmax(gap.parameter, gap.state)) <= 1e-5))
            dt_staged_fail(__FILE__, __LINE__, &runs[0], &whole, &gap);
        dt_staged_free(&whole);
        dt_staged_free(&runs[0]);
    }
}

/* In f32, and in bf16 that is rounded at random: alike on both. */
DT_TEST(stage_copies, are_the_same_after_many_steps)
{
    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t b = 0; b < DT_COUNT(beside); b++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            dt_staged runs[3];
            for (int i = 0; i < 3; i++)
                runs[i] = (dt_staged){ .fixture = "deep tied",
                                       .mesh = beside[b].pp[i + 1],
                                       .schedule = i == 1 ? "zbv" : "1f1b",
                                       .microbatches = 4,
                                       .zero = beside[b].zero,
                                       .steps = LONG_STEPS,
                                       .bf16 = bf16 != 0 };
            step_alike(runs, 3);
            dt_staged_free(&runs[0]);
        }
}
