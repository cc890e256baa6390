/* SPDX-License-Identifier: Apache-2.0
 *
 * An optimizer's state in memory of the host, or in a file, while parameters lie on a GPU: the
 * device loses exactly the state's bytes, and the bits are the same. */
#include "tests/support/cuda.h"
#include "tests/support/small_net.h"

DT_TEST(cuda_offload, the_device_loses_the_bytes_of_the_state_and_no_bit)
{
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };
    const dt_run_options gpus = dt_test_cuda_options();
    static dt_test_trained without, with;
    char dir[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(dir);
    for (size_t i = 0; i < DT_COUNT(dtypes); i++)
        for (int place = 0; place <= 1; place++) {
            dt_test_training how = { .dtype = dtypes[i],
                                     .options = DT_OPTIMIZER_OPTIONS_INIT,
                                     .steps = 3,
                                     .passes = 1,
                                     .lr = 0.01 };
            how.options.zero = place;
            dt_test_train(&gpus, "dp=2", &how, &without);
            how.options.offload = place == 0 ? "host" : dir;
            dt_test_train(&gpus, "dp=2", &how, &with);
            DT_ASSERT(dt_test_trained_same(&with, &without));
            DT_ASSERT_EQ_INT(with.state_bytes, without.state_bytes);
            DT_ASSERT_EQ_INT(without.states, without.state_bytes);
            DT_ASSERT_EQ_INT(with.states, 0);
            DT_ASSERT_EQ_INT(without.used - with.used, without.state_bytes);
        }
}
