/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps on meshes: the same bits wherever sums associate alike. */
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
    dt_status st = dt_test_train(mesh, &told->how, &values, &n, norms);

    DT_TRY_TO(done, st, st);
    DT_EXPECT_TO(done, st, n <= MAX_VALUES, "%lld values", (long long)n);
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        told->n = n;
        memcpy(told->values, values, (size_t)n * sizeof *values);
        memcpy(told->norms, norms, sizeof norms);
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

static dt_test_training training(dt_optimizer_rule rule, int zero, int passes)
{
    dt_test_training how = { .dtype = DT_F32,
                             .options = DT_OPTIMIZER_OPTIONS_INIT,
                             .steps = STEPS,
                             .passes = passes,
                             .lr = rule == DT_SGD ? 0.1 : 0.01 };

    how.options.rule = rule;
    how.options.zero = zero;
    how.options.momentum = rule == DT_SGD ? 0.9 : 0.0;
    return how;
}

/* Ranks add up as passes of one rank do. */
DT_TEST(optimizer, ranks_are_as_good_as_passes)
{
    static const char *const meshes[] = { "dp=2", "dp=4" };
    static outcome alone, other;

    for (int rule = DT_ADAMW; rule <= DT_SGD; rule++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            dt_test_training how = training((dt_optimizer_rule)rule, 0, m == 0 ? 2 : 4);
            train("dp=1", &how, &alone);
            how.passes = 1;
            for (how.options.zero = 0; how.options.zero <= 2; how.options.zero++) {
                train(meshes[m], &how, &other);
                DT_ASSERT(same(&alone, &other));
            }
        }
}
