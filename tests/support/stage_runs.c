/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/stage_runs.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"

enum { MOST_ROWS = 18, WORDS = 50 };

/* --- what a run comes to ---------------------------------------------------------------------- */

/* The next tensor, whole; a rank that is not the first one takes part alone. */
static dt_status keep(dt_staged *r, dt_mesh *mesh, dt_tensor *x)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    const int64_t begin = r->n > 0 ? r->ends[r->n - 1] : 0;
    DT_HELD(tensor) *there = NULL, *full = NULL;
    int64_t n = 1;
    float *more;

    DT_TRY(dt_copy_to(x, mesh, whole, &there));
    DT_TRY(dt_redistribute_cast(there, whole, DT_F32, &full));
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) != 0) return DT_OK;
    for (int a = 0; a < dt_tensor_n_axes(full); a++) n *= dt_tensor_extent(full, a);
    more = realloc(r->values, (size_t)(begin + n) * sizeof *more);
    DT_EXPECT(more != NULL && r->n < DT_STAGED_TENSORS, "no room for tensor %d", r->n);
    r->values = more;
    r->ends[r->n++] = begin + n;
    return dt_tensor_read(full, r->values + begin, (size_t)n * sizeof *r->values);
}

/* Of two copies of a value, bit by bit. */
static dt_status compare(dt_mesh *mesh, dt_tensor *a, dt_tensor *b, const char *name)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    DT_HELD(tensor) *x = NULL, *y = NULL;
    size_t n = dt_dtype_size(dt_tensor_dtype(a));

    DT_TRY(dt_copy_to(a, mesh, whole, &x));
    DT_TRY(dt_copy_to(b, mesh, whole, &y));
    for (int i = 0; i < dt_tensor_n_axes(x); i++) n *= (size_t)dt_tensor_extent(x, i);
    DT_EXPECT(memcmp(dt_tensor_local(x)->data, dt_tensor_local(y)->data, n) == 0,
              "%s is another than its copy", name);
    return DT_OK;
}

static dt_status keep_parameters(dt_staged *r, dt_mesh *mesh, dt_layers *layers)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            dt_tensor *x = dt_layer_param(layer, p);
            if (dt_layer_owns_param(layer, p))
                DT_TRY(keep(r, mesh, x));
            else if (dt_layer_holds_param(layer, p))
                DT_TRY(compare(mesh, x, dt_layer_param(dt_layer_tied_to(layer), p),
                               dt_layer_name(layer)));
        }
    }
    return DT_OK;
}

/* A name that is there already is that of a copy. */
static dt_status keep_state(dt_staged *r, dt_mesh *mesh, dt_optimizer *opt)
{
    dt_optimizer_state s, other;

    for (int64_t i = 0; dt_optimizer_state_at(opt, i, &s); i++) {
        int64_t k = 0;
        while (dt_optimizer_state_at(opt, k, &other) && strcmp(other.name, s.name) != 0) k++;
        if (k < i)
            DT_TRY(compare(mesh, s.value, other.value, s.name));
        else
            DT_TRY(keep(r, mesh, s.value));
    }
    return DT_OK;
}

static dt_status hear(void *arg, dt_test_moment moment, int step, dt_model *model,
                      dt_optimizer *opt)
{
    dt_staged *r = arg;
    dt_mesh *mesh = dt_model_mesh(model);

    if (r->told != NULL) DT_TRY(r->told(r->told_arg, moment, step, model, opt));
    if (moment == DT_TEST_PASSED || step + (moment == DT_TEST_STEPPED) < r->steps) return DT_OK;
    DT_TRY(keep_parameters(r, mesh, dt_model_layers(model)));
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) r->n_parameters = r->n;
    return keep_state(r, mesh, opt);
}

/* --- a run ------------------------------------------------------------------------------------ */

typedef struct job {
    dt_staged *run;
    dt_test_steps steps;
} job;

static dt_status train_on(dt_mesh *mesh, const void *arg)
{
    const job *j = arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    dt_test_losses losses;
    DT_HELD(model) *model = NULL;

    DT_TRY(dt_test_train_model(mesh, &j->steps, &losses, &model));
    if (rank == 0) j->run->losses = losses;
    j->run->last[rank] = losses.last;
    return DT_OK;
}

/* A model of many small blocks, so that there is something to cut. */
static void write_config(const char *folder, bool tied)
{
    char text[512];
    const int n = snprintf(text, sizeof text,
                           "{\"model_type\": \"llama\", \"hidden_size\": 24, "
                           "\"intermediate_size\": 36, \"num_hidden_layers\": 8, "
                           "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                           "\"vocab_size\": 53, \"rms_norm_eps\": 1e-5, "
                           "\"max_position_embeddings\": 32, \"tie_word_embeddings\": %s}",
                           tied ? "true" : "false");

    dt_test_write_file(folder, "config.json", text, (size_t)n);
}

static void find_folder(const char *fixture, char folder[DT_TEST_PATH_BYTES])
{
    const char *name = strchr(fixture, ' ');

    if (strncmp(fixture, "deep", 4) == 0)
        write_config(dt_test_temp_dir(folder), name != NULL);
    else
        (void)dt_test_source_path(folder, "tests/golden/%s", name != NULL ? name + 1 : fixture);
}

dt_test_steps dt_staged_steps(const dt_staged *r, char folder[DT_TEST_PATH_BYTES])
{
    static int32_t tokens[DT_TEST_MAX_STEPS * MOST_ROWS * DT_STAGED_LENGTH + 1];
    const bool sgd = r->optimizer != NULL && strcmp(r->optimizer, "sgd") == 0;
    dt_test_steps steps;
    uint32_t draw = 7;

    DT_ASSERT(2 * r->microbatches <= MOST_ROWS);
    for (size_t i = 0; i < DT_COUNT(tokens); i++) {
        draw = draw * 1664525u + 1013904223u;
        tokens[i] = (int32_t)(draw >> 16) % WORDS;
    }
    find_folder(r->fixture, folder);
    steps = (dt_test_steps){ .folder = folder,
                             .random = strncmp(r->fixture, "deep", 4) == 0 ||
                                       strncmp(r->fixture, "random ", 7) == 0,
                             .tokens = tokens,
                             .rows = (int64_t)r->microbatches * 2,
                             .length = DT_STAGED_LENGTH,
                             .steps = r->steps,
                             .first = r->first,
                             .microbatches = r->microbatches,
                             .masked = true,
                             .schedule = r->schedule,
                             .stages_per_rank = r->stages_per_rank,
                             .stages = r->stages,
                             .lr = sgd ? 0.1 : 1e-2,
                             .optimizer = dt_test_optimizer(sgd ? "sgd" : "adamw"),
                             .recompute = r->recompute,
                             .sequence_parallel = r->sequence_parallel,
                             .fault = r->fault,
                             .spoiled = r->spoiled,
                             .bf16 = r->bf16 };
    steps.optimizer.bucket_bytes = r->bucket_bytes;
    steps.optimizer.stochastic = r->bf16;
    steps.optimizer.masters = !r->bf16;
    steps.optimizer.zero = r->zero < 3 ? r->zero : 0;
    if (r->zero == 3) steps.fully_shard = strstr(r->mesh, "dp_shard") != NULL ? "dp_shard" : "dp";
    return steps;
}

void dt_staged_train(dt_staged *r)
{
    char folder[DT_TEST_PATH_BYTES];
    job j = { .run = r };

    if (r->steps == 0) r->steps = 3;
    j.steps = dt_staged_steps(r, folder);
    j.steps.told = hear;
    j.steps.told_arg = r;
    r->n = r->n_parameters = 0;
    dt_test_on_ranks(r->mesh, train_on, &j);
}

void dt_staged_free(dt_staged *r)
{
    free(r->values);
    r->values = NULL;
    r->n = r->n_parameters = 0;
}

/* --- two of them ------------------------------------------------------------------------------ */

static double relative(double a, double b)
{
    return a == b ? 0.0 : fabs(a / b - 1.0);
}

dt_staged_gap dt_staged_apart(const dt_staged *a, const dt_staged *b)
{
    const int from = (int)dti_max(a->first, b->first);
    dt_staged_gap g = { .same = true };
    int64_t begin = 0;

    DT_ASSERT(a->n > 0 && a->n == b->n && a->n_parameters == b->n_parameters);
    DT_ASSERT_EQ_INT(a->steps, b->steps);
    DT_ASSERT_EQ_INT(a->ends[a->n - 1], b->ends[b->n - 1]);
    for (int i = from; i < a->steps; i++) {
        DT_ASSERT(isfinite(a->losses.loss[i]) && a->losses.norm[i] > 0);
        g.loss = fmax(g.loss, relative(a->losses.loss[i], b->losses.loss[i]));
        g.norm = fmax(g.norm, relative(a->losses.norm[i], b->losses.norm[i]));
    }
    for (int t = 0; t < a->n; begin = a->ends[t++]) {
        double largest = 0, off = 0, *sum = t < a->n_parameters ? &g.parameter : &g.state;
        DT_ASSERT_EQ_INT(a->ends[t], b->ends[t]);
        for (int64_t i = begin; i < a->ends[t]; i++) {
            largest = fmax(largest, fabs((double)b->values[i]));
            off = fmax(off, fabs((double)a->values[i] - (double)b->values[i]));
        }
        if (off > 0) *sum = fmax(*sum, off / largest);
    }
    g.same = g.loss == 0 && g.norm == 0 &&
             memcmp(a->values, b->values, (size_t)begin * sizeof *a->values) == 0;
    return g;
}

void dt_staged_fail(const char *file, int line, const dt_staged *r, const dt_staged *other,
                    const dt_staged_gap *gap)
{
    dt_test_fail(file, line,
                 "%s: %s %s, %d microbatches, zero %d, recompute %d, %d steps, held against %s %s: "
                 "loss %.3g, norm %.3g, parameters %.3g, state %.3g off, %s bits",
                 r->fixture, r->mesh, r->schedule != NULL ? r->schedule : "in one piece",
                 r->microbatches, r->zero, (int)r->recompute, r->steps, other->mesh,
                 other->schedule != NULL ? other->schedule : "in one piece", gap->loss, gap->norm,
                 gap->parameter, gap->state, gap->same ? "the same" : "other");
}
