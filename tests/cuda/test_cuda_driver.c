/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs on machines without a driver: what they say, and that they do not open the module, whose
 * libraries take longer to load than a small run. */
#include <dlfcn.h>
#include <dtensor.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cuda_load.h"
#include "tests/support/cuda.h"

/* The module of this build, which has not been opened yet. Skips where a GPU may be used. */
static void find_module(char path[DT_TEST_PATH_BYTES])
{
    (void)dt_test_binary_path(path, "lib/dtensor/dtensor_cuda.so");
    if (access(path, R_OK) != 0) dt_test_skip("skipped: this build has no module for CUDA");
    if (dti_cuda_has_driver()) dt_test_skip("skipped: there is a driver");
    if (dlopen(path, RTLD_LAZY | RTLD_NOLOAD) != NULL) dt_test_skip("skipped: the module is open");
    DT_ASSERT_EQ_INT(unsetenv("DTENSOR_CUDA_MODULE"), 0);
    (void)dt_test_binary_path(path, "lib/dtensor");
    DT_ASSERT_EQ_INT(setenv("DTENSOR_MODULES", path, 1), 0);
    (void)dt_test_binary_path(path, "lib/dtensor/dtensor_cuda.so");
}

static void keep_line(void *arg, dt_log_level level, int rank, const char *line)
{
    (void)rank;
    (void)snprintf(arg, DT_ERROR_MESSAGE_BYTES, "%s: %s",
                   level == DT_LOG_DETAIL ? "detail" : "other", line);
}

static dt_status is_on_cpu(dt_runtime *rt, void *arg)
{
    (void)arg;
    DT_EXPECT(!dt_runtime_is_dry(rt) && strcmp(dt_device_of(rt), "cpu") == 0, "device %s",
              dt_device_of(rt));
    return DT_OK;
}

DT_TEST(cuda_driver, auto_says_that_there_is_none_and_opens_nothing)
{
    char path[DT_TEST_PATH_BYTES], line[DT_ERROR_MESSAGE_BYTES] = "";
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    find_module(path);
    options.device = "auto";
    options.log = keep_line;
    options.log_arg = line;
    DT_ASSERT_OK(dt_run(&options, is_on_cpu, NULL));
    DT_ASSERT(strstr(line, "detail: running on the CPU: no GPU can be used: no NVIDIA driver") !=
              NULL);
    DT_ASSERT(dlopen(path, RTLD_LAZY | RTLD_NOLOAD) == NULL);
}

DT_TEST(cuda_driver, a_demand_for_a_gpu_names_the_driver)
{
    char path[DT_TEST_PATH_BYTES];
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    find_module(path);
    options.device = "cuda";
    DT_ASSERT_STATUS(dt_run(&options, is_on_cpu, NULL), DT_ERR_UNSUPPORTED, "libcuda.so.1");
    DT_ASSERT_STATUS(dt_device_check("cuda:0"), DT_ERR_UNSUPPORTED, "no NVIDIA driver");
    DT_ASSERT(dlopen(path, RTLD_LAZY | RTLD_NOLOAD) == NULL);
}

/* A module that is named is opened whatever the machine has: the simulated device needs nothing. */
static dt_status is_on_gpu(dt_runtime *rt, void *arg)
{
    (void)arg;
    DT_EXPECT(strcmp(dt_device_of(rt), "cuda") == 0, "device %s", dt_device_of(rt));
    return DT_OK;
}

DT_TEST(cuda_driver, a_module_that_is_named_is_opened)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    (void)dt_test_cuda_runs();
    options.device = "auto";
    DT_ASSERT_OK(dt_run(&options, is_on_gpu, NULL));
}
