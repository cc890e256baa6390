/* SPDX-License-Identifier: Apache-2.0
 *
 * 20 steps of training are the same on every mesh: bit by bit where sums associate alike, else
 * within 1e-5. A run on d ranks that have a part of each batch adds their terms in the order of
 * ranks; one rank that takes those parts one after the other, as d microbatches, adds them in that
 * order too. The long test prints the table of docs/same_loss.md; launched/same_loss.sh compares
 * what its rows come to on processes with what they come to on threads. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/gradient_golden.h"
#include "tests/support/train_steps.h"

/* Where batches are cut twice, or reduced after each part, sums are of pairs, (a + b) + (c + d):
 * those of two ranks that reduce two parts one by one. */

/* A run: what it is like, and which it is held against. */
typedef struct how {
    const char *mesh;
    int zero; /* 3: fully_shard */
    int microbatches;
    bool sequence_parallel;
    int like; /* number of its reference in `references`; -1: it is one */
    enum {
        NEAR,
        SAME,
        SAME_UNLESS
    } same; /* bit by bit; always, or unless there are parameters,
                                            * norms of q and k, whose gradients are terms over both
                                            * dp and tp: these are added in one go */
} how;

static const how references[] = { { "tp=1", 0, 1, false, -1, SAME },
                                  { "tp=1", 0, 2, false, -1, SAME },
                                  { "tp=1", 0, 4, false, -1, SAME },
                                  { "tp=2", 0, 2, false, -1, SAME },
                                  { "dp=2", 2, 2, false, -1, SAME } };
enum { WHOLE, HALVES, QUARTERS, TP2_HALVES, ZERO2_TWICE };

static const how rows[] = {
    { "dp=2", 0, 1, false, HALVES, SAME },
    { "dp=2", 1, 1, false, HALVES, SAME },
    { "dp=2", 2, 1, false, HALVES, SAME },
    { "dp=2", 3, 1, false, HALVES, SAME },
    { "dp=4", 0, 1, false, QUARTERS, SAME },
    { "dp=4", 1, 1, false, QUARTERS, SAME },
    { "dp=4", 2, 1, false, QUARTERS, SAME },
    { "dp=4", 3, 1, false, QUARTERS, SAME },
    { "dp_replicate=2,dp_shard=2", 3, 1, false, ZERO2_TWICE, SAME },
    { "dp=2,tp=2", 0, 1, false, TP2_HALVES, SAME_UNLESS },
    { "dp=2,tp=2", 1, 1, false, TP2_HALVES, SAME_UNLESS },
    { "dp=2,tp=2", 2, 1, false, TP2_HALVES, SAME_UNLESS },
    { "dp=2,tp=2", 3, 1, false, TP2_HALVES, SAME },
    { "dp=2", 3, 2, false, ZERO2_TWICE, SAME },
    { "dp=2", 0, 2, false, QUARTERS, NEAR },
    { "dp=2", 2, 2, false, QUARTERS, NEAR },
    { "dp=4", 0, 1, false, WHOLE, NEAR },
    { "tp=2", 0, 1, false, WHOLE, NEAR },
    { "tp=3", 0, 1, false, WHOLE, NEAR },
    { "tp=4", 0, 1, false, WHOLE, NEAR },
    { "tp=2", 0, 1, true, WHOLE, NEAR },
    { "tp=3", 0, 1, true, WHOLE, NEAR },
    { "tp=4", 0, 1, true, WHOLE, NEAR },
    { "dp=2,tp=2", 0, 1, true, WHOLE, NEAR },
    { "dp=2,tp=2", 3, 1, true, WHOLE, NEAR },
};

/* What a run comes to, on its first rank. */
typedef struct outcome {
    dt_test_losses losses;
    float *values; /* all parameters, whole, one after the other */
    int64_t *ends; /* of each parameter, in `values` */
    int n;
} outcome;

typedef struct scene {
    dt_test_steps steps;
    outcome *out;
} scene;

static void forget(outcome *o)
{
    dti_free(o->values);
    dti_free(o->ends);
    *o = (outcome){ 0 };
}

static dt_status keep(outcome *o, dt_tensor *full)
{
    const int64_t begin = o->n > 0 ? o->ends[o->n - 1] : 0;
    int64_t n = 1;
    void *more;

    for (int a = 0; a < dt_tensor_n_axes(full); a++) n *= dt_tensor_extent(full, a);
    more = realloc(o->values, (size_t)(begin + n) * sizeof *o->values);
    DT_EXPECT(more != NULL, "memory");
    o->values = more;
    more = realloc(o->ends, (size_t)(o->n + 1) * sizeof *o->ends);
    DT_EXPECT(more != NULL, "memory");
    o->ends = more;
    o->ends[o->n++] = begin + n;
    return dt_tensor_read(full, o->values + begin, (size_t)n * sizeof *o->values);
}

static dt_status run(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    const bool first = dt_runtime_rank(dt_mesh_runtime(mesh)) == 0;
    dt_test_losses losses;
    dt_model *model = NULL;
    dt_layers *layers;
    dt_status st;

    DT_TRY(dt_test_train_model(mesh, &s->steps, &losses, &model));
    if (first) s->out->losses = losses;
    layers = dt_model_layers(model);
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            dt_tensor *full = NULL;
            if (!dt_layer_owns_param(layer, p)) continue;
            DT_TRY_TO(done, st, dt_full_tensor(dt_layer_param(layer, p), &full));
            st = first ? keep(s->out, full) : DT_OK;
            dt_tensor_release(&full);
            if (st != DT_OK) goto done;
        }
    }
    st = DT_OK;
done:
    dt_model_release(&model);
    return st;
}

static void train(const dt_training_golden *golden, const char *optimizer, const how *h,
                  dt_recomputed recompute, dt_test_fault fault, outcome *out)
{
    scene s = { .out = out };

    s.steps = (dt_test_steps){
        .folder = golden->parameters.folder,
        .tokens = golden->tokens,
        .rows = golden->rows,
        .length = golden->length,
        .steps = DT_TRAINING_STEPS,
        .microbatches = h->microbatches,
        .lr = golden->lr,
        .optimizer = dt_test_optimizer(optimizer),
        .recompute = recompute,
        .sequence_parallel = h->sequence_parallel,
        .fully_shard = h->zero < 3                           ? NULL
                       : strstr(h->mesh, "dp_shard") != NULL ? "dp_shard"
                                                             : "dp",
    };
    s.steps.fault = fault;
    s.steps.optimizer.zero = h->zero < 3 ? h->zero : 0;
    dt_test_on_ranks(h->mesh, run, &s);
}

/* How far two runs are apart: of losses and norms, relative; of parameters, of the largest element
 * of each. `same`: no bit of a parameter or a norm differs. */
typedef struct spread {
    double first_loss, loss, norm, parameter;
    bool same;
} spread;

static spread apart(const outcome *a, const outcome *b)
{
    spread s = { .same = a->n == b->n };
    int64_t begin = 0;

    DT_ASSERT(a->n == b->n && a->n > 0);
    for (int i = 0; i < DT_TRAINING_STEPS; i++) {
        const double off = fabs(a->losses.loss[i] / b->losses.loss[i] - 1.0);
        if (i == 0) s.first_loss = off;
        s.loss = fmax(s.loss, off);
        s.norm = fmax(s.norm, fabs(a->losses.norm[i] / b->losses.norm[i] - 1.0));
    }
    for (int p = 0; p < a->n; begin = a->ends[p++]) {
        double largest = 0.0, off = 0.0;
        for (int64_t i = begin; i < a->ends[p]; i++) {
            largest = fmax(largest, fabs((double)b->values[i]));
            off = fmax(off, fabs((double)a->values[i] - (double)b->values[i]));
        }
        s.parameter = fmax(s.parameter, off / largest);
    }
    s.same = memcmp(a->values, b->values, (size_t)begin * sizeof *a->values) == 0 &&
             memcmp(a->losses.norm, b->losses.norm, sizeof a->losses.norm) == 0;
    return s;
}

/* AdamW makes a whole step of a gradient that is all rounding. */
static void judge(const how *h, bool q_norms, const char *optimizer, dt_recomputed recompute,
                  const spread *s)
{
    const bool sgd = strcmp(optimizer, "sgd") == 0;

    if (h->same != NEAR && !(h->same == SAME_UNLESS && q_norms) && !s->same)
        dt_test_fail(__FILE__, __LINE__, "%s zero %d %s recompute %d: parameters are off by %.3g",
                     h->mesh, h->zero, optimizer, (int)recompute, s->parameter);
    if (!(s->loss <= 1e-5) || !(s->norm <= 1e-5) || !(s->parameter <= (sgd ? 1e-5 : 3e-4)))
        dt_test_fail(__FILE__, __LINE__, "%s zero %d %s recompute %d: off by %.3g, %.3g, %.3g",
                     h->mesh, h->zero, optimizer, (int)recompute, s->loss, s->norm, s->parameter);
}

static void print_row(const how *h, const spread *s)
{
    static const char *const stages[] = { "", " ZeRO-1", " ZeRO-2", " fully_shard" };
    const how *r = &references[h->like];

    (void)printf("| %s%s%s%s | %s%s, %d part%s |", h->mesh, stages[h->zero],
                 h->sequence_parallel ? " + sp" : "", h->microbatches > 1 ? ", 2 parts" : "",
                 r->mesh, stages[r->zero], r->microbatches, r->microbatches > 1 ? "s" : "");
    for (int k = 0; k < 4; k++)
        if (s[k].same)
            (void)printf(" same bits |");
        else
            (void)printf(" %.1e, %.1e, %.1e |", s[k].first_loss, s[k].loss, s[k].parameter);
    (void)printf("\n");
}

static void sweep(const char *fixture, const how *some, size_t n, bool all)
{
    const bool q_norms = strstr(fixture, "qwen3") != NULL;
    static const char *const optimizers[] = { "sgd", "adamw" };
    spread found[DT_COUNT(rows)][4] = { 0 };

    for (int o = 0; o < (all ? 2 : 1); o++) {
        dt_training_golden golden;
        outcome like[DT_COUNT(references)] = { 0 };
        DT_ASSERT_OK(dt_training_golden_open(fixture, optimizers[o], &golden));
        for (size_t i = 0; i < DT_COUNT(references); i++)
            train(&golden, optimizers[o], &references[i], DT_RECOMPUTED_NOTHING, DT_FAULT_NONE,
                  &like[i]);
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < (all ? 2 : 1); k++) {
                const dt_recomputed again = k == 0 ? DT_RECOMPUTED_NOTHING : DT_RECOMPUTED_BLOCKS;
                outcome got = { 0 };
                train(&golden, optimizers[o], &some[i], again, DT_FAULT_NONE, &got);
                found[i][2 * o + k] = apart(&got, &like[some[i].like]);
                forget(&got);
            }
        for (size_t i = 0; i < DT_COUNT(references); i++) forget(&like[i]);
        dt_training_golden_close(&golden);
    }
    if (all)
        (void)printf("%s\n| run | held against | SGD | SGD, blocks again | AdamW | AdamW, blocks "
                     "again |\n|---|---|---|---|---|---|\n",
                     fixture);
    for (size_t i = 0; all && i < n; i++) print_row(&some[i], found[i]);
    (void)fflush(stdout);
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < (all ? 4 : 1); k++)
            judge(&some[i], q_norms, optimizers[k / 2],
                  k % 2 == 0 ? DT_RECOMPUTED_NOTHING : DT_RECOMPUTED_BLOCKS, &found[i][k]);
}

DT_TEST(same_loss, on_a_few_meshes)
{
    static const how few[] = { { "dp=2", 0, 1, false, HALVES, SAME },
                               { "dp=2", 3, 1, false, HALVES, SAME },
                               { "dp=2,tp=2", 1, 1, false, TP2_HALVES, SAME },
                               { "tp=2", 0, 1, true, WHOLE, NEAR } };

    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    sweep("llama/uneven", few, DT_COUNT(few), false);
}

DT_TEST(same_loss, on_every_mesh)
{
    dt_test_long();
    if (dt_test_processes() > 1) dt_test_skip("references run on one rank");
    sweep("llama/uneven", rows, DT_COUNT(rows), true);
    sweep("qwen3_moe/base", rows, DT_COUNT(rows), true);
}

/* Losses, norms and parameters of a run, into a file of the folder that is named after it. */
static void write_down(const char *folder, const char *fixture, const char *optimizer, const how *h,
                       int again, const outcome *got)
{
    const int64_t n = got->n > 0 ? got->ends[got->n - 1] : 0; /* none: ranks of other processes */
    char path[2 * DT_TEST_PATH_BYTES];
    FILE *f;

    if (n == 0) return;
    (void)snprintf(path, sizeof path, "%s/%.5s %s %s zero %d, %d parts%s%s", folder, fixture,
                   optimizer, h->mesh, h->zero, h->microbatches, h->sequence_parallel ? " sp" : "",
                   again ? " again" : "");
    f = fopen(path, "w");
    DT_ASSERT(f != NULL && fwrite(&got->losses, sizeof got->losses, 1, f) == 1 &&
              fwrite(got->values, sizeof *got->values, (size_t)n, f) == (size_t)n);
    DT_ASSERT_EQ_INT(fclose(f), 0);
}

DT_TEST(same_loss, is_written_down_for_those_who_compare)
{
    static const char *const fixtures[] = { "llama/uneven", "qwen3_moe/base" };
    static const char *const optimizers[] = { "sgd", "adamw" };
    const char *folder = getenv("DTENSOR_SAME_LOSS");

    if (folder == NULL) dt_test_skip("DTENSOR_SAME_LOSS names no folder");
    for (size_t i = 0; i < 4 * DT_COUNT(rows); i++) {
        const char *fixture = fixtures[i & 1], *optimizer = optimizers[i >> 1 & 1];
        const how *h = &rows[i / 4];
        dt_training_golden golden;
        DT_ASSERT_OK(dt_training_golden_open(fixture, optimizer, &golden));
        for (int again = 0; again < 2; again++) {
            outcome got = { 0 };
            train(&golden, optimizer, h, again ? DT_RECOMPUTED_BLOCKS : DT_RECOMPUTED_NOTHING,
                  DT_FAULT_NONE, &got);
            write_down(folder, fixture, optimizer, h, again, &got);
            forget(&got);
        }
        dt_training_golden_close(&golden);
    }
}

/* What is wrong is no rounding. */
DT_TEST(same_loss, is_not_that_of_a_run_that_is_wrong)
{
    static const dt_test_fault faults[] = { DT_FAULT_SCALED, DT_FAULT_LOST_SUM, DT_FAULT_SWAPPED };
    static const how two = { "dp=2", 0, 2, false, HALVES, NEAR };
    dt_training_golden golden;
    outcome right = { 0 };

    if (dt_test_processes() > 1) dt_test_skip("outcomes are compared in one process");
    DT_ASSERT_OK(dt_training_golden_open("llama/uneven", "sgd", &golden));
    train(&golden, "sgd", &two, DT_RECOMPUTED_NOTHING, DT_FAULT_NONE, &right);
    for (size_t i = 0; i < DT_COUNT(faults); i++) {
        outcome wrong = { 0 };
        spread s;
        train(&golden, "sgd", &two, DT_RECOMPUTED_NOTHING, faults[i], &wrong);
        s = apart(&wrong, &right);
        if (s.same || s.parameter < 1e-4 || s.loss < 1e-5)
            dt_test_fail(__FILE__, __LINE__, "fault %d is not seen: %.3g, %.3g", (int)faults[i],
                         s.loss, s.parameter);
        forget(&wrong);
    }
    forget(&right);
    dt_training_golden_close(&golden);
}
