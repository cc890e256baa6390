/* SPDX-License-Identifier: Apache-2.0
 *
 * An optimizer's state in memory of the host, or in a file, while parameters lie on a GPU; fully
 * sharded parameters in memory of the host: the device loses exactly their bytes, and the bits are
 * the same. */
#include <dtensor/parallel_styles.h>

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

DT_TEST(cuda_offload, the_device_loses_the_bytes_of_the_parameters_and_no_bit)
{
    static const struct {
        const char *mesh, *dim;
        dt_dtype dtype;
        bool state; /* elsewhere, too */
    } cases[] = { { "dp=1", "dp", DT_F32, false },
                  { "dp=2", "dp", DT_BF16, false },
                  { "dp=3", "dp", DT_F32, true },
                  { "dp=2,tp=2", "dp", DT_BF16, true },
                  { "dp_replicate=2,dp_shard=2", "dp_shard", DT_F32, false } };
    const dt_run_options gpus = dt_test_cuda_options();
    static dt_test_trained without, with;
    char folder[DT_TEST_PATH_BYTES];

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const dt_plan sharded = { .dim = cases[i].dim, .others = "fully_shard" };
        dt_test_training how = { .dtype = cases[i].dtype,
                                 .options = DT_OPTIMIZER_OPTIONS_INIT,
                                 .steps = 4,
                                 .passes = 1,
                                 .lr = 0.01,
                                 .plan = &sharded };
        dt_test_train(&gpus, cases[i].mesh, &how, &without);
        how.offload = "host";
        how.options.offload = cases[i].state ? "host" : NULL;
        how.folder = dt_test_temp_dir(folder);
        dt_test_train(&gpus, cases[i].mesh, &how, &with);
        DT_ASSERT(dt_test_trained_same(&with, &without));
        DT_ASSERT_EQ_INT(with.param_bytes, without.param_bytes);
        DT_ASSERT(with.param_bytes > 0);
        DT_ASSERT_EQ_INT((int64_t)(without.used - with.used),
                         with.param_bytes + (cases[i].state ? with.state_bytes : 0));
    }
}

DT_TEST(cuda_offload, parameters_beside_a_gpu_lie_in_no_file)
{
    const dt_run_options gpus = dt_test_cuda_options();
    const dt_plan sharded = { .dim = "dp", .others = "fully_shard" };
    char dir[DT_TEST_PATH_BYTES];
    dt_test_training how = { .options = DT_OPTIMIZER_OPTIONS_INIT,
                             .plan = &sharded,
                             .offload = dt_test_temp_dir(dir) };

    dt_test_train_fails(&gpus, "dp=2", &how, DT_ERR_UNSUPPORTED, "say \"host\"");
}
