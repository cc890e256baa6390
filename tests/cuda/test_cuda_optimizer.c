/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of optimizers on GPUs: as on the CPU, and as good on two ranks as in two passes. */
#include "tests/support/cuda.h"
#include "tests/support/small_net.h"

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
    const dt_run_options gpus = dt_test_cuda_options();
    static dt_test_trained cpu, one, two;

    for (size_t c = 0; c < DT_COUNT(cases); c++) {
        dt_test_training how = { .dtype = cases[c].dtype,
                                 .options = DT_OPTIMIZER_OPTIONS_INIT,
                                 .steps = 4,
                                 .passes = 2,
                                 .lr = cases[c].rule == DT_SGD ? 0.1 : 0.01 };
        how.options.rule = cases[c].rule;
        how.options.masters = cases[c].masters;
        how.options.stochastic = !cases[c].masters;
        dt_test_train(NULL, "dp=1", &how, &cpu);
        dt_test_train(&gpus, "dp=1", &how, &one);
        DT_ASSERT(dt_test_trained_apart(&cpu, &one) < cases[c].bound);
        how.passes = 1;
        how.options.zero = (int)(c % 3);
        dt_test_train(&gpus, "dp=2", &how, &two);
        DT_ASSERT(dt_test_trained_same(&one, &two));
    }
}
