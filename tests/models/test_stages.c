/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in stages: training under any schedule has the bits of a run in one piece, whatever lies
 * beside the pipeline. What shared embeddings come to is in test_stage_copies.c, what a rank reads
 * and holds in test_stage_texts.c. */
#include <math.h>
#include <string.h>

#include "tests/support/stage_runs.h"

enum { LONG_STEPS = 10 };

/* A run in stages, and the mesh of the run in one piece that has its bits. */
typedef struct row {
    bool quick; /* else for the long test alone */
    const char *whole;
    dt_staged run;
} row;

/* Of a model of eight small blocks. Rows of one reference stand together. */
/* clang-format off */
static const row rows[] = {
    { true,  "tp=1", { .mesh = "pp=1", .schedule = "interleaved", .microbatches = 4 } },
    { false, "tp=1", { .mesh = "pp=1", .schedule = "naive", .microbatches = 4, .zero = 1 } },
    { false, "tp=1", { .mesh = "pp=2", .schedule = "1f1b", .microbatches = 4, .stages = "0,8" } },
    { true,  "tp=1", { .mesh = "pp=2", .schedule = "interleaved", .microbatches = 4, .stages_per_rank = 4 } },
    { true,  "tp=1", { .mesh = "pp=2", .schedule = "zb-h2", .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS } },
    { true,  "tp=1", { .mesh = "pp=3", .schedule = "zbv", .microbatches = 9, .recompute = DT_RECOMPUTED_CHEAP } },
    { true,  "tp=1", { .mesh = "pp=4", .schedule = "1f1b", .microbatches = 9, .stages = "1,2,5,0" } },
    { false, "tp=1", { .mesh = "pp=4", .schedule = "dualpipev", .microbatches = 9 } },
    { false, "tp=1", { .mesh = "pp=2", .schedule = "1f1b", .microbatches = 1 } },
    { false, "tp=2", { .mesh = "pp=2,tp=2", .schedule = "1f1b", .microbatches = 4 } },
    { true,  "tp=2", { .mesh = "tp=2,pp=2", .schedule = "zb-h1", .microbatches = 4 } },
    { false, "tp=2", { .mesh = "pp=3,tp=2", .schedule = "zbv", .microbatches = 4, .zero = 1 } },
    { true,  "tp=2", { .mesh = "pp=2,tp=2", .schedule = "1f1b", .microbatches = 4, .sequence_parallel = true } },
    { false, "tp=2", { .mesh = "pp=4,tp=2", .schedule = "interleaved", .microbatches = 4, .sequence_parallel = true } },
    { false, "dp=2", { .mesh = "pp=2,dp=2", .schedule = "1f1b", .microbatches = 4 } },
    { true,  "dp=2", { .mesh = "dp=2,pp=2", .schedule = "zbv", .microbatches = 4, .zero = 1 } },
    { false, "dp=2", { .mesh = "pp=4,dp=2", .schedule = "dualpipev", .microbatches = 8, .zero = 1 } },
    { false, "dp=2", { .mesh = "pp=2,dp=2", .schedule = "zb-h1", .microbatches = 4, .zero = 2 } },
    { true,  "dp=2", { .mesh = "pp=2,dp=2", .schedule = "zb-h1", .microbatches = 4, .zero = 3 } },
    { false, "dp_replicate=2,dp_shard=2", { .mesh = "pp=2,dp_replicate=2,dp_shard=2", .schedule = "1f1b", .microbatches = 4, .zero = 3 } },
    { false, "dp_replicate=2,dp_shard=2", { .mesh = "dp_replicate=2,pp=2,dp_shard=2", .schedule = "zbv", .microbatches = 4, .zero = 3 } },
    { true,  "dp=2,tp=2", { .mesh = "pp=2,dp=2,tp=2", .schedule = "1f1b", .microbatches = 4, .zero = 1 } },
    { false, "dp=2,tp=2", { .mesh = "dp=2,tp=2,pp=2", .schedule = "zb-h2", .microbatches = 4, .zero = 1, .recompute = DT_RECOMPUTED_BLOCKS } },
};
/* clang-format on */

static void expect_same(const dt_staged *run, const dt_staged *whole)
{
    const dt_staged_gap gap = dt_staged_apart(run, whole);

    if (!gap.same) dt_staged_fail(__FILE__, __LINE__, run, whole, &gap);
}

/* What a run in one piece adds in the order of `run` is reduced after each microbatch, or once. */
static dt_staged in_one_piece(const char *mesh, const dt_staged *run)
{
    return (dt_staged){ .fixture = run->fixture,
                        .mesh = mesh,
                        .optimizer = run->optimizer,
                        .microbatches = run->microbatches,
                        .zero = run->zero >= 2 ? run->zero : 0,
                        .steps = run->steps,
                        .sequence_parallel = run->sequence_parallel };
}

static bool is_reference_of(const dt_staged *whole, const dt_staged *of)
{
    return whole->mesh != NULL && strcmp(whole->mesh, of->mesh) == 0 &&
           whole->microbatches == of->microbatches && whole->zero == of->zero &&
           whole->sequence_parallel == of->sequence_parallel;
}

static void sweep(bool quick, int steps)
{
    dt_staged whole = { .mesh = NULL };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dt_staged run = rows[i].run, of;
        if (quick && !rows[i].quick) continue;
        run.fixture = "deep";
        run.steps = steps;
        of = in_one_piece(rows[i].whole, &run);
        if (!is_reference_of(&whole, &of)) {
            dt_staged_free(&whole);
            whole = of;
            dt_staged_train(&whole);
        }
        dt_staged_train(&run);
        expect_same(&run, &whole);
        dt_staged_free(&run);
    }
    dt_staged_free(&whole);
}

DT_TEST(stages, under_any_schedule_have_the_bits_of_a_model_in_one_piece)
{
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    sweep(true, 2);
}

DT_TEST(stages, beside_any_other_parallelism_have_its_bits)
{
    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    sweep(false, LONG_STEPS);
}

/* All schedules with any number of microbatches on 1 to 4 ranks, whatever is made again. */
DT_TEST(stages, every_schedule_of_any_size_has_the_bits_of_a_model_in_one_piece)
{
    static const char *const meshes[] = { "pp=1", "pp=2", "pp=3", "pp=4" };
    static const int numbers[] = { 1, 4, 8, 9 };
    const dt_pipeline_kind *kind;

    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(numbers); i++) {
        dt_staged whole = {
            .fixture = "deep", .mesh = "tp=1", .microbatches = numbers[i], .steps = LONG_STEPS
        };
        dt_staged_train(&whole);
        for (int p = 1; p <= 4; p++)
            for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++)
                for (int again = 0; again < 3 && numbers[i] >= kind->least * p; again++) {
                    dt_staged run = whole;
                    run.mesh = meshes[p - 1];
                    run.schedule = kind->name;
                    run.recompute = (dt_recomputed)again;
                    run.values = NULL;
                    dt_staged_train(&run);
                    expect_same(&run, &whole);
                    dt_staged_free(&run);
                }
        dt_staged_free(&whole);
    }
}

/* One whose head is its embedding adds two gradients in another order in stages. */
DT_TEST(stages, every_architecture_is_cut)
{
    static const struct {
        const char *fixture;
        bool tied;
    } of[] = { { "llama/uneven", false },  { "qwen3/uneven", false },
               { "gemma3/uneven", false }, { "qwen3_moe/uneven", false },
               { "gpt_neo/uneven", true }, { "phi3/uneven", true } };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(of); i++) {
        dt_staged run = { .fixture = of[i].fixture,
                          .mesh = of[i].tied ? "pp=3" : "pp=2",
                          .schedule = "1f1b",
                          .optimizer = "sgd",
                          .microbatches = 2 };
        dt_staged whole = in_one_piece("tp=1", &run);
        dt_staged_gap gap;
        dt_staged_train(&whole);
        dt_staged_train(&run);
        gap = dt_staged_apart(&run, &whole);
        if (!(of[i].tied ? fmax(fmax(gap.loss, gap.norm), fmax(gap.parameter, gap.state)) <= 1e-5
                         : gap.same))
            dt_staged_fail(__FILE__, __LINE__, &run, &whole, &gap);
        dt_staged_free(&whole);
        dt_staged_free(&run);
    }
}

/* What is wrong on one rank has other norms and other parameters, though AdamW knows no scale: a
 * gradient of one stage that is doubled, or that one rank of two alone has; microbatches that
 * change places. */
DT_TEST(stages, that_are_wrong_are_seen)
{
    static const dt_test_fault faults[] = { DT_FAULT_SCALED, DT_FAULT_LOST_SUM, DT_FAULT_SWAPPED };
    dt_staged right = {
        .fixture = "deep", .mesh = "pp=2", .schedule = "zb-h1", .microbatches = 4, .steps = 6
    };

    if (dt_test_processes() > 1) dt_test_skip("outcomes are compared in one process");
    dt_staged_train(&right);
    for (size_t i = 0; i < DT_COUNT(faults); i++) {
        dt_staged wrong = right;
        dt_staged_gap gap;
        wrong.fault = faults[i];
        wrong.spoiled = "lm_head";
        wrong.values = NULL;
        dt_staged_train(&wrong);
        gap = dt_staged_apart(&wrong, &right);
        if (gap.same || gap.norm < 1e-4 || gap.parameter < 1e-4 || gap.state < 1e-4)
            dt_staged_fail(__FILE__, __LINE__, &wrong, &right, &gap);
        dt_staged_free(&wrong);
    }
    dt_staged_free(&right);
}

/* --- what boundaries cost --------------------------------------------------------------------- */

/* Bytes that ranks from..to have received of other stages, one way. */
static int64_t received(const dt_staged *r, bool forward, int from, int to)
{
    int64_t bytes = 0;

    for (int k = from; k <= to; k++)
        bytes += (forward ? r->last[k].forward : r->last[k].backward).comm[DT_COMM_SEND].bytes;
    return bytes;
}

/* A boundary costs each way what the stage before it makes of each microbatch, on each rank of tp,
 * or a part on each where tokens are cut. */
DT_TEST(stages, boundaries_cost_the_bytes_of_an_activation_for_each_microbatch)
{
    static const char *const schedules[] = { "gpipe", "1f1b", "zb-h1" };
    const int64_t one = 2 * DT_STAGED_LENGTH * 24 * (int64_t)sizeof(float); /* of a microbatch */

    if (dt_test_processes() > 1) dt_test_skip("one process sees all ranks");
    for (size_t i = 0; i < DT_COUNT(schedules); i++) {
        dt_staged r = { .fixture = "deep",
                        .mesh = "pp=4",
                        .schedule = schedules[i],
                        .microbatches = 4 + (int)i,
                        .steps = 1 };
        dt_staged_train(&r);
        for (int k = 0; k < 4; k++) {
            DT_ASSERT_EQ_INT(received(&r, true, k, k), k > 0 ? one * r.microbatches : 0);
            DT_ASSERT_EQ_INT(received(&r, false, k, k), k < 3 ? one * r.microbatches : 0);
        }
        dt_staged_free(&r);
    }
    for (int cut = 0; cut < 2; cut++) {
        dt_staged r = { .fixture = "deep",
                        .mesh = "pp=2,tp=2",
                        .schedule = "1f1b",
                        .microbatches = 4,
                        .steps = 1,
                        .sequence_parallel = cut != 0 };
        const int64_t both = one * r.microbatches * (cut ? 1 : 2);
        dt_staged_train(&r);
        DT_ASSERT_EQ_INT(received(&r, true, 0, 1), 0);
        DT_ASSERT_EQ_INT(received(&r, true, 2, 3), both);
        DT_ASSERT_EQ_INT(received(&r, false, 0, 1), both);
        DT_ASSERT_EQ_INT(received(&r, false, 2, 3), 0);
        dt_staged_free(&r);
    }
}

static dt_status ask_of_others(dt_mesh *mesh, const void *arg)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    const int32_t tokens[4] = { 1, 2, 3, 4 };
    const bool second = dt_mesh_coord(mesh, 0) == 1;
    DT_HELD(model) *model = NULL;
    DT_HELD(tape) *t = NULL;
    dt_tensor *ids, *x;

    DT_TRY(dt_model_load(mesh, arg, &load, &model));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &t));
    ids = dt_model_ids(t, model, tokens, 1, 4);
    x = second ? NULL : ids;
    DT_EXPECT(dt_model_stage(t, model, second ? 0 : 1, x, ids, ids, &how) == NULL, "it runs");
    DT_EXPECT_STATUS(dt_tape_status(t), DT_ERR_ARG,
                     second ? "stage 0 is of other ranks" : "stage 1 is of other ranks");
    dt_tape_reset(t);
    return DT_OK;
}

DT_TEST(stages, a_rank_runs_its_own_alone)
{
    char folder[DT_TEST_PATH_BYTES];

    dt_test_on_ranks("pp=2", ask_of_others,
                     dt_test_source_path(folder, "tests/golden/llama/uneven"));
}
