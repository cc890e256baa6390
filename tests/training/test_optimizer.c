/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps on meshes: the same bits wherever sums associate alike. */
#include <dtensor/parallel_styles.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"

enum { STEPS = 20, MAX_VALUES = 2000 };

/* What rank 0 of a run has told. */
typedef struct outcome {
    dt_test_training how;
    int64_t n;
    float values[MAX_VALUES];
    double norms[STEPS];
} outcome;

static dt_status run_one(dt_mesh *mesh, const void *arg)
{
    outcome *const *to = arg, *told = *to;
    double norms[STEPS];
    float *values = NULL;
    int64_t n = 0;
    dt_status st;

    DT_TRY_TO(done, st, dt_test_train(mesh, &told->how, &values, &n, norms));
    DT_EXPECT_TO(done, st, n <= MAX_VALUES, "%lld values", (long long)n);
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        told->n = n;
        memcpy(told->values, values, (size_t)n * sizeof *values);
        memcpy(told->norms, norms, (size_t)told->how.steps * sizeof *norms);
    }
done:
    dti_free(values);
    return st;
}

static void train(const char *mesh, const dt_test_training *how, outcome *out)
{
    outcome *to = out;

    *out = (outcome){ .how = *how };
    dt_test_on_ranks(mesh, run_one, &to);
}

static bool same(const outcome *a, const outcome *b)
{
    return a->n == b->n && memcmp(a->values, b->values, (size_t)a->n * sizeof(float)) == 0 &&
           memcmp(a->norms, b->norms, (size_t)a->how.steps * sizeof(double)) == 0;
}

/* The largest difference, as a share of the largest value. */
static double apart(const outcome *a, const outcome *b)
{
    double worst = 0.0, largest = 0.0;

    for (int64_t i = 0; i < a->n; i++) {
        worst = fmax(worst, fabs((double)a->values[i] - (double)b->values[i]));
        largest = fmax(largest, fabs((double)a->values[i]));
    }
    return a->n == b->n ? worst / largest : 1.0;
}

static dt_test_training training(dt_optimizer_rule rule, int passes)
{
    dt_test_training how = { .dtype = DT_F32,
                             .options = DT_OPTIMIZER_OPTIONS_INIT,
                             .steps = STEPS,
                             .passes = passes,
                             .lr = rule == DT_SGD ? 0.1 : 0.01 };

    how.options.rule = rule;
    how.options.momentum = rule == DT_SGD ? 0.9 : 0.0;
    return how;
}

/* Ranks add up as passes of one rank do, where the state lies does not matter. */
DT_TEST(optimizer, ranks_are_as_good_as_passes)
{
    static const char *const meshes[] = { "dp=2", "dp=4" };
    static outcome alone, other;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            dt_test_training how = training((dt_optimizer_rule)rule, m == 0 ? 2 : 4);
            train("dp=1", &how, &alone);
            how.passes = 1;
            for (how.options.zero = 0; how.options.zero <= 2; how.options.zero++) {
                train(meshes[m], &how, &other);
                DT_ASSERT(same(&alone, &other));
            }
        }
}

/* Beside cuts of the layers' own, on two dims, over dims of other names. Ranks add up in one order
 * on one mesh, whatever lies where. */
DT_TEST(optimizer, stages_agree_on_any_mesh)
{
    static const struct {
        const char *mesh, *over;
        bool exact; /* terms of two dims are added in one order by all stages */
    } cases[] = { { "dp=2,tp=2", NULL, true },
                  { "tp=2,dp=2", "dp", true },
                  { "dp_replicate=2,dp_shard=2", NULL, false },
                  { "dp_replicate=2,dp_shard=2", "dp_replicate,dp_shard", false },
                  { "tp=3", "tp", true },
                  { "dp=1", NULL, true } };
    static outcome whole, other, plain;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++) {
        dt_test_training how = training((dt_optimizer_rule)rule, 1);
        train("dp=1", &how, &plain);
        for (size_t c = 0; c < DT_COUNT(cases); c++) {
            how.options.over = cases[c].over;
            how.options.zero = 0;
            train(cases[c].mesh, &how, &whole);
            DT_ASSERT(apart(&plain, &whole) < (rule == DT_SGD ? 1e-5 : 1e-3));
            for (how.options.zero = 1; how.options.zero <= 2; how.options.zero++) {
                train(cases[c].mesh, &how, &other);
                DT_ASSERT(cases[c].exact ? same(&whole, &other)
                                         : apart(&whole, &other) < (rule == DT_SGD ? 1e-5 : 1e-3));
            }
        }
    }
}

/* Gradients that are reduced after each pass are added up in another order, and no further apart
 * than that. */
DT_TEST(optimizer, several_passes_on_several_ranks)
{
    static outcome one, two, three, plain;
    dt_test_training how = training(DT_SGD, 4);

    train("dp=1", &how, &plain);
    how.passes = 2;
    train("dp=2", &how, &one);
    how.options.zero = 1;
    train("dp=2", &how, &two);
    how.options.zero = 2;
    train("dp=2", &how, &three);
    DT_ASSERT(same(&one, &two));
    DT_ASSERT(apart(&one, &three) < 1e-5 && apart(&one, &plain) < 1e-5);
}

/* Parameters that are cut themselves: stage 3, alone, beside cuts of the layers' own, and with
 * copies. The tied table is one parameter. */
DT_TEST(optimizer, stage_three_is_where_parameters_lie)
{
    static const dt_plan over[] = { { .dim = "dp", .others = "fully_shard" },
                                    { .dim = "dp_shard", .others = "fully_shard" } };
    static const struct {
        const char *mesh;
        int plan;
        bool exact;
    } cases[] = { { "dp=2", 0, true },
                  { "dp=4", 0, true },
                  { "dp=2,tp=2", 0, true },
                  { "dp_replicate=2,dp_shard=2", 1, false } };
    static outcome whole, cut;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++)
        for (size_t c = 0; c < DT_COUNT(cases); c++) {
            dt_test_training how = training((dt_optimizer_rule)rule, 1);
            train(cases[c].mesh, &how, &whole);
            how.plan = &over[cases[c].plan];
            for (how.options.zero = 0; how.options.zero <= 2; how.options.zero += 2) {
                train(cases[c].mesh, &how, &cut);
                DT_ASSERT(cases[c].exact ? same(&whole, &cut)
                                         : apart(&whole, &cut) < (rule == DT_SGD ? 1e-5 : 1e-3));
            }
        }
}

/* Gradients that are twice what they should be must be seen: plain steps have no scale of their own
 * to hide it. */
DT_TEST(optimizer, a_wrong_scale_is_seen)
{
    static outcome right, wrong;
    dt_test_training how = training(DT_SGD, 1);

    how.options.clip = 0.0;
    train("dp=2", &how, &right);
    how.scale = 2.0;
    train("dp=2", &how, &wrong);
    DT_ASSERT(apart(&right, &wrong) > 0.05 && wrong.norms[0] == 2.0 * right.norms[0]);
}

/* Half floats: masters lie where the state does, what they are rounded to is gathered. */
DT_TEST(optimizer, half_floats_agree_on_any_mesh)
{
    static const struct {
        dt_dtype dtype;
        bool masters, stochastic;
    } cases[] = { { DT_BF16, true, false },
                  { DT_BF16, false, false },
                  { DT_BF16, false, true },
                  { DT_F16, true, false },
                  { DT_F16, false, false } };
    static outcome alone, other, before;

    for (size_t c = 0; c < DT_COUNT(cases); c++) {
        dt_test_training how = training(DT_ADAMW, 2);
        how.dtype = cases[c].dtype;
        how.options.masters = cases[c].masters;
        how.options.stochastic = cases[c].stochastic;
        how.options.loss_scale = how.dtype == DT_F16 ? 1024.0 : -1.0;
        train("dp=1", &how, &alone);
        DT_ASSERT(c == 0 || alone.n != before.n || apart(&alone, &before) > 0.0);
        before = alone;
        how.passes = 1;
        for (how.options.zero = 0; how.options.zero <= 2; how.options.zero++) {
            train("dp=2", &how, &other);
            DT_ASSERT(same(&alone, &other));
        }
    }
}
