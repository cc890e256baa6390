/* SPDX-License-Identifier: Apache-2.0
 *
 * A machine that never had a GPU is not told so by every command. */
#include "base/cuda_load.h"
#include "tests/cli/command.h"

enum { ENVIRONMENT_BYTES = DT_TEST_PATH_BYTES + 32 };

static int times(const char *text, const char *part)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) n++;
    return n;
}

/* A module lies there, which is opened only where there is a driver. */
DT_TEST(gpu_note, comes_with_verbose_alone)
{
    static const char note[] = "running on the CPU: no GPU can be used: no NVIDIA driver";
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES], env[ENVIRONMENT_BYTES];
    command_result r;

    if (dti_cuda_has_driver()) dt_test_skip("skipped: there is a driver");
    (void)dt_test_source_path(model, "tests/golden/llama/tied");
    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "dtensor_cuda.so", "", 0);
    (void)snprintf(env, sizeof env, "DTENSOR_MODULES=%s", folder);

    r = COMMAND_ENDS(0,
                     COMMAND_ENV(env, "generate", "--model", model, "--tokens", "1,2", "-n", "1"));
    DT_ASSERT_EQ_INT(times(r.err, "CPU"), 0);

    r = COMMAND_ENDS(
        0, COMMAND_ENV(env, "generate", "--model", model, "--tokens", "1,2", "-n", "1", "-v"));
    DT_ASSERT_EQ_INT(times(r.err, note), 1);

    r = COMMAND_ENDS(0, COMMAND("env"), "\ngpus\n");
    DT_ASSERT_EQ_INT(times(r.out, "\n  none "), 1); /* behind versions, where CUDA is built in */
}
