/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of optimizers on GPUs: as on the CPU, and as good on two ranks as in two passes. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/cuda.h"
#include "tests/support/small_net.h"

enum { STEPS = 4, MAX_VALUES = 2000 };

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
        memcpy(told->norms, norms, sizeof norms);
    }
done:
    dti_free(values);
    return st;
}

static void train(const char *device, const char *mesh, const dt_test_training *how, outcome *out)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    outcome *to = out;

    *out = (outcome){ .how = *how };
    options.device = device;
    options.timeout_ms = 120000;
    dt_test_ok(__FILE__, __LINE__, device, dt_test_run(&options, mesh, run_one, &to));
}

static double apart(const outcome *a, const outcome *b)
{
    double worst = 0.0;

    for (int64_t i = 0; i < a->n; i++)
        worst = fmax(worst, fabs((double)a->values[i] - (double)b->values[i]));
    return a->n == b->n ? worst : 1.0;
}

DT_TEST(cuda_optimizer, steps_as_the_cpu_does)
{
    static const struct {
        dt_dtype dtype;
        dt_optimizer_rule rule;
        bool masters;
        double bound; /* to the CPU: sums of products are others */
    } cases[] = { { DT_F32, DT_SGD, true, 1e-5 },
                  { DT_F32, DT_ADAMW, true, 1e-3 },
                  { DT_BF16, DT_ADAMW, true, 0.05 },
                  { DT_BF16, DT_ADAMW, false, 0.05 } };
    static outcome cpu, one, two;

    (void)dt_test_cuda_runs();
    for (size_t c = 0; c < DT_COUNT(cases); c++) {
        dt_test_training how = { .dtype = cases[c].dtype,
                                 .options = DT_OPTIMIZER_OPTIONS_INIT,
                                 .steps = STEPS,
                                 .passes = 2,
                                 .lr = cases[c].rule == DT_SGD ? 0.1 : 0.01 };
        how.options.rule = cases[c].rule;
        how.options.masters = cases[c].masters;
        how.options.stochastic = !cases[c].masters;
        train("cpu", "dp=1", &how, &cpu);
        train("cuda", "dp=1", &how, &one);
        DT_ASSERT(apart(&cpu, &one) < cases[c].bound);
        how.passes = 1;
        how.options.zero = (int)(c % 3);
        train("cuda", "dp=2", &how, &two);
        DT_ASSERT(apart(&one, &two) == 0.0 && memcmp(one.norms, two.norms, sizeof one.norms) == 0);
    }
}
