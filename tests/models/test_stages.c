/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in stages: training under any schedule has the bits of a run in one piece, whatever lies
 * beside the pipeline; a rank holds and reads its stages alone. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/train_steps.h"

enum { MOST_VALUES = 1 << 18, STEPS = 3, LENGTH = 5, MOST_ROWS = 18, WORDS = 50, MOST_RANKS = 8 };

/* A run, and what it comes to on its first rank. */
typedef struct run {
    const char *mesh, *schedule, *stages;
    int stages_per_rank, microbatches, zero;
    bool sequence_parallel;
    dt_recomputed recompute;
    dt_test_steps steps;
    dt_test_losses losses;
    dt_pipeline_result last[MOST_RANKS]; /* of each rank */
    int64_t n;
    float *values; /* of all parameters, whole, one after the other */
} run;

/* Every parameter, whole on every rank, wherever it lies. */
static dt_status keep(dt_mesh *mesh, dt_model *model, run *r)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const bool first = dt_runtime_rank(dt_mesh_runtime(mesh)) == 0;
    dt_layers *layers = dt_model_layers(model);

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            int64_t n = 1;
            dt_status st = DT_OK;
            dt_tensor *full;
            if (!dt_layer_owns_param(layer, p)) continue;
            DT_TRY(dt_copy_to(dt_layer_param(layer, p), mesh, whole, &full));
            for (int a = 0; a < dt_tensor_n_axes(full); a++) n *= dt_tensor_extent(full, a);
            if (first) {
                DT_EXPECT(r->n + n <= MOST_VALUES, "too many values");
                st = dt_tensor_read(full, r->values + r->n, (size_t)n * sizeof *r->values);
                r->n += n;
            }
            dt_tensor_release(&full);
            DT_TRY(st);
        }
    }
    return DT_OK;
}

/* A weight that two stages have copies of is the same on both, bit by bit. */
static dt_status compare_copies(dt_mesh *mesh, dt_model *model)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_layers *layers = dt_model_layers(model);

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        dt_tensor *x[2] = { NULL, NULL };
        dt_status st;
        if (!dt_layer_holds_param(layer, 0) || dt_layer_owns_param(layer, 0)) continue;
        st = dt_copy_to(dt_layer_param(layer, 0), mesh, whole, &x[0]);
        if (st == DT_OK)
            st = dt_copy_to(dt_layer_param(dt_layer_tied_to(layer), 0), mesh, whole, &x[1]);
        if (st == DT_OK) {
            const dt_local *a = dt_tensor_local(x[0]), *b = dt_tensor_local(x[1]);
            const size_t n = (size_t)(a->shape[0] * a->shape[1]) * sizeof(float);
            if (memcmp(a->data, b->data, n) != 0) st = DT_ERR_INTERNAL;
        }
        dt_tensor_release(&x[0]);
        dt_tensor_release(&x[1]);
        DT_EXPECT(st == DT_OK, "%s is another than its copy", dt_layer_name(layer));
    }
    return DT_OK;
}

static dt_status train_on(dt_mesh *mesh, const void *arg)
{
    run *r = (run *)(uintptr_t)arg;
    dt_test_losses losses;
    dt_model *model = NULL;
    dt_status st;

    DT_TRY(dt_test_train_model(mesh, &r->steps, &losses, &model));
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) r->losses = losses;
    r->last[dt_runtime_rank(dt_mesh_runtime(mesh))] = losses.last;
    st = compare_copies(mesh, model);
    if (st == DT_OK) st = keep(mesh, model, r);
    dt_model_release(&model);
    return st;
}

/* A model of many small blocks, so that there is something to cut. */
static void write_config(const char *folder, bool tied)
{
    char path[DT_TEST_PATH_BYTES + 16];
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    f = fopen(path, "w");
    DT_ASSERT(f != NULL);
    (void)fprintf(f,
                  "{\"model_type\": \"llama\", \"hidden_size\": 24, \"intermediate_size\": 36, "
                  "\"num_hidden_layers\": 8, \"num_attention_heads\": 4, "
                  "\"num_key_value_heads\": 2, \"vocab_size\": 53, \"rms_norm_eps\": 1e-5, "
                  "\"max_position_embeddings\": 32, \"tie_word_embeddings\": %s}",
                  tied ? "true" : "false");
    DT_ASSERT_EQ_INT(fclose(f), 0);
}

/* `fixture`: "deep", "deep tied", or a checkpoint. */
static void train(const char *fixture, run *r)
{
    const bool deep = strncmp(fixture, "deep", 4) == 0;
    char folder[DT_TEST_PATH_BYTES];
    int32_t tokens[STEPS * MOST_ROWS * LENGTH + 1];
    uint32_t draw = 7;

    for (size_t i = 0; i < DT_COUNT(tokens); i++) {
        draw = draw * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(draw >> 16) % WORDS;
    }
    if (deep)
        write_config(dt_test_temp_dir(folder), strstr(fixture, "tied") != NULL);
    else
        (void)dt_test_source_path(folder, "tests/golden/%s", fixture);
    r->steps = (dt_test_steps){ .folder = folder,
                                .random = deep,
                                .tokens = tokens,
                                .rows = (int64_t)r->microbatches * 2,
                                .length = LENGTH,
                                .steps = STEPS,
                                .microbatches = r->microbatches,
                                .masked = true,
                                .schedule = r->schedule,
                                .stages_per_rank = r->stages_per_rank,
                                .stages = r->stages,
                                .lr = 1e-2,
                                .optimizer = dt_test_optimizer("adamw"),
                                .recompute = r->recompute,
                                .sequence_parallel = r->sequence_parallel };
    r->steps.optimizer.zero = r->zero < 3 ? r->zero : 0;
    if (r->zero == 3)
        r->steps.fully_shard = strstr(r->mesh, "dp_shard") != NULL ? "dp_shard" : "dp";
    r->values = calloc(MOST_VALUES, sizeof *r->values);
    DT_ASSERT(r->values != NULL);
    dt_test_on_ranks(r->mesh, train_on, r);
}

static void expect_same(const run *a, const run *b, const char *fixture)
{
    bool losses = true;

    DT_ASSERT_EQ_INT(a->n, b->n);
    for (int i = 0; i < a->steps.steps; i++)
        losses = losses && a->losses.loss[i] == b->losses.loss[i] &&
                 a->losses.norm[i] == b->losses.norm[i];
    if (!losses || memcmp(a->values, b->values, (size_t)a->n * sizeof *a->values) != 0)
        dt_test_fail(__FILE__, __LINE__,
                     "%s: %s %s, %d microbatches, zero %d, recompute %d: not the bits of %s",
                     fixture, a->mesh, a->schedule, a->microbatches, a->zero, (int)a->recompute,
                     b->mesh);
}

static void expect_near(const run *a, const run *b, const char *fixture)
{
    double off = 0;

    DT_ASSERT_EQ_INT(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++)
        off = fmax(off, fabs((double)a->values[i] - (double)b->values[i]));
    for (int i = 0; i < STEPS; i++)
        off = fmax(off, fabs(a->losses.loss[i] / b->losses.loss[i] - 1));
    if (!(off <= 3e-4)) /* AdamW makes a whole step of a gradient that is all rounding */
        dt_test_fail(__FILE__, __LINE__, "%s: %s %s is off by %.3g", fixture, a->mesh, a->schedule,
                     off);
}

/* Runs each of `runs` and holds it against a run in one piece on `mesh`. */
static void sweep(const char *fixture, const char *mesh, int microbatches, run *runs, size_t n)
{
    run whole = { .mesh = mesh,
                  .microbatches = microbatches,
                  .zero = runs[0].zero >= 2 ? runs[0].zero : 0, /* reduced after each microbatch */
                  .sequence_parallel = runs[0].sequence_parallel };

    train(fixture, &whole);
    for (size_t i = 0; i < n; i++) {
        runs[i].microbatches = microbatches;
        train(fixture, &runs[i]);
        expect_same(&runs[i], &whole, fixture);
        free(runs[i].values);
    }
    free(whole.values);
}

DT_TEST(stages, several_on_one_rank_have_the_bits_of_a_model_in_one_piece)
{
    run runs[] = { { .mesh = "pp=1", .schedule = "1f1b" },
                   { .mesh = "pp=1", .schedule = "interleaved" },
                   { .mesh = "pp=1", .schedule = "gpipe", .recompute = DT_RECOMPUTED_BLOCKS },
                   { .mesh = "pp=1", .schedule = "naive", .zero = 1 } };

    sweep("llama/uneven", "tp=1", 4, runs, DT_COUNT(runs));
}

DT_TEST(stages, every_schedule_has_the_bits_of_a_model_in_one_piece)
{
    run two[] = { { .mesh = "pp=2", .schedule = "naive" },
                  { .mesh = "pp=2", .schedule = "gpipe" },
                  { .mesh = "pp=2", .schedule = "1f1b" },
                  { .mesh = "pp=2", .schedule = "interleaved", .stages_per_rank = 4 },
                  { .mesh = "pp=2", .schedule = "zb-h1", .recompute = DT_RECOMPUTED_BLOCKS },
                  { .mesh = "pp=2", .schedule = "zb-h2" },
                  { .mesh = "pp=2", .schedule = "zbv" },
                  { .mesh = "pp=2", .schedule = "dualpipev" },
                  { .mesh = "pp=2", .schedule = "1f1b", .stages = "0,8" } };
    run three[] = { { .mesh = "pp=3", .schedule = "1f1b", .recompute = DT_RECOMPUTED_CHEAP },
                    { .mesh = "pp=3", .schedule = "zbv", .recompute = DT_RECOMPUTED_BLOCKS },
                    { .mesh = "pp=3", .schedule = "dualpipev" } };
    run four[] = { { .mesh = "pp=4", .schedule = "1f1b", .stages = "1,2,5,0" },
                   { .mesh = "pp=4", .schedule = "interleaved" },
                   { .mesh = "pp=4", .schedule = "zb-h1" },
                   { .mesh = "pp=4", .schedule = "dualpipev" } };
    run one[] = { { .mesh = "pp=2", .schedule = "1f1b" }, { .mesh = "pp=3", .schedule = "gpipe" } };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    sweep("deep", "tp=1", 4, two, DT_COUNT(two));
    sweep("deep", "tp=1", 9, three, DT_COUNT(three));
    sweep("deep", "tp=1", 8, four, DT_COUNT(four));
    sweep("deep", "tp=1", 1, one, DT_COUNT(one));
}

DT_TEST(stages, beside_other_parallelism_they_have_its_bits)
{
    run tp[] = { { .mesh = "pp=2,tp=2", .schedule = "1f1b" },
                 { .mesh = "tp=2,pp=2", .schedule = "zb-h1" } };
    run sp[] = { { .mesh = "pp=2,tp=2", .schedule = "1f1b", .sequence_parallel = true } };
    run dp[] = { { .mesh = "pp=2,dp=2", .schedule = "1f1b" },
                 { .mesh = "dp=2,pp=2", .schedule = "zbv", .zero = 1 } };
    run cut[] = { { .mesh = "pp=2,dp=2", .schedule = "zb-h1", .zero = 2 },
                  { .mesh = "pp=2,dp=2", .schedule = "zb-h1", .zero = 3 } };
    run hybrid[] = { { .mesh = "pp=2,dp_replicate=2,dp_shard=2", .schedule = "1f1b", .zero = 3 },
                     { .mesh = "dp_replicate=2,pp=2,dp_shard=2", .schedule = "zbv", .zero = 3 } };
    run all[] = { { .mesh = "pp=2,dp=2,tp=2", .schedule = "1f1b", .zero = 1 } };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    sweep("deep", "tp=2", 4, tp, DT_COUNT(tp));
    sweep("deep", "tp=2", 4, sp, DT_COUNT(sp));
    sweep("deep", "dp=2", 4, dp, DT_COUNT(dp));
    sweep("deep", "dp=2", 4, cut, DT_COUNT(cut));
    sweep("deep", "dp_replicate=2,dp_shard=2", 4, hybrid, DT_COUNT(hybrid));
    sweep("deep", "dp=2,tp=2", 4, all, DT_COUNT(all));
}

/* A weight that the first and the last stage share gets the sum of both gradients: whatever the
 * schedule and wherever the stages lie the same one, which is near that of a model in one piece. */
DT_TEST(stages, a_shared_embedding_is_stepped_alike_on_both)
{
    static const char *const fixtures[] = { "deep tied", "qwen2/base" };
    run runs[] = { { .mesh = "pp=2", .schedule = "1f1b" },
                   { .mesh = "pp=2", .schedule = "gpipe", .zero = 1 },
                   { .mesh = "pp=2", .schedule = "zb-h1" },
                   { .mesh = "pp=1", .schedule = "interleaved" },
                   { .mesh = "pp=2", .schedule = "zbv" } };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        run whole = { .mesh = "tp=1", .microbatches = 4 };
        train(fixtures[f], &whole);
        for (size_t i = 0; i < DT_COUNT(runs); i++) {
            runs[i].microbatches = 4;
            runs[i].n = 0;
            train(fixtures[f], &runs[i]);
            if (i > 0) expect_same(&runs[i], &runs[0], fixtures[f]);
        }
        expect_near(&runs[0], &whole, fixtures[f]);
        for (size_t i = 0; i < DT_COUNT(runs); i++) free(runs[i].values);
        free(whole.values);
    }
}

DT_TEST(stages, every_architecture_is_cut)
{
    static const char *const untied[] = { "llama/uneven", "qwen3/uneven", "gemma3/uneven",
                                          "qwen3_moe/uneven" };
    static const char *const tied[] = { "gpt_neo/uneven", "phi3/uneven" };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(untied); i++) {
        run runs[] = { { .mesh = "pp=2", .schedule = "1f1b" } };
        sweep(untied[i], "tp=1", 2, runs, 1);
    }
    for (size_t i = 0; i < DT_COUNT(tied); i++) {
        run whole = { .mesh = "tp=1", .microbatches = 2 };
        run cut = { .mesh = "pp=3", .schedule = "1f1b", .microbatches = 2 };
        train(tied[i], &whole);
        train(tied[i], &cut);
        expect_near(&cut, &whole, tied[i]);
        free(whole.values);
        free(cut.values);
    }
}

/* Bytes that ranks from..to have received of other stages, one way. */
static int64_t received(const run *r, bool forward, int from, int to)
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
    const int64_t one = 2 * LENGTH * 24 * (int64_t)sizeof(float); /* of a microbatch */

    if (dt_test_processes() > 1) dt_test_skip("one process sees all ranks");
    for (size_t i = 0; i < DT_COUNT(schedules); i++) {
        run r = { .mesh = "pp=4", .schedule = schedules[i], .microbatches = 4 + (int)i };
        train("deep", &r);
        for (int k = 0; k < 4; k++) {
            DT_ASSERT_EQ_INT(received(&r, true, k, k), k > 0 ? one * r.microbatches : 0);
            DT_ASSERT_EQ_INT(received(&r, false, k, k), k < 3 ? one * r.microbatches : 0);
        }
        free(r.values);
    }
    for (int cut = 0; cut < 2; cut++) {
        run r = { .mesh = "pp=2,tp=2",
                  .schedule = "1f1b",
                  .microbatches = 4,
                  .sequence_parallel = cut != 0 };
        const int64_t both = one * r.microbatches * (cut ? 1 : 2);
        train("deep", &r);
        DT_ASSERT_EQ_INT(received(&r, true, 0, 1), 0);
        DT_ASSERT_EQ_INT(received(&r, true, 2, 3), both);
        DT_ASSERT_EQ_INT(received(&r, false, 0, 1), both);
        DT_ASSERT_EQ_INT(received(&r, false, 2, 3), 0);
        free(r.values);
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

/* All schedules with any number of microbatches on 1 to 4 ranks, whatever is made again. */
DT_TEST(stages, every_schedule_of_any_size_has_the_bits_of_a_model_in_one_piece)
{
    static const char *const meshes[] = { "pp=1", "pp=2", "pp=3", "pp=4" };
    static const int numbers[] = { 1, 4, 8, 9 };
    const dt_pipeline_kind *kind;

    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    for (size_t i = 0; i < DT_COUNT(numbers); i++) {
        run whole = { .mesh = "tp=1", .microbatches = numbers[i] };
        train("deep", &whole);
        for (int p = 1; p <= 4; p++)
            for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++)
                for (int again = 0; again < 3 && numbers[i] >= kind->least * p; again++) {
                    run r = { .mesh = meshes[p - 1],
                              .schedule = kind->name,
                              .microbatches = numbers[i],
                              .recompute = (dt_recomputed)again };
                    train("deep", &r);
                    expect_same(&r, &whole, "deep");
                    free(r.values);
                }
        free(whole.values);
    }
}
