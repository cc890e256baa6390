/* SPDX-License-Identifier: Apache-2.0
 *
 * Every bench runs in its quick form and prints rows of figures as JSON; none is asserted. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/cuda.h"

/* The output of "bench_x arguments" as JSON; NULL if it is none. */
static json_t *run(const char *name, const char *arguments, int *exit_code)
{
    char relative[64], path[DT_TEST_PATH_BYTES], command[DT_TEST_PATH_BYTES + 128];
    json_t *out;
    FILE *f;
    int state;

    (void)snprintf(relative, sizeof relative, "bench/bench_%s", name);
    (void)snprintf(command, sizeof command, "'%s' %s", dt_test_binary_path(path, relative),
                   arguments);
    f = popen(command, "r");
    DT_ASSERT(f != NULL);
    out = json_loadf(f, 0, NULL);
    while (fgetc(f) != EOF) { /* what is no JSON: the program shall not die of a closed pipe */
    }
    state = pclose(f);
    *exit_code = WIFEXITED(state) ? WEXITSTATUS(state) : -1;
    return out;
}

/* At least n rows with a name and numbers. */
static void check_rows_of(const char *name, const char *arguments, size_t n)
{
    int exit_code;
    json_t *out = run(name, arguments, &exit_code), *rows = json_object_get(out, "rows"), *row;
    size_t i;

    DT_ASSERT_EQ_INT(exit_code, 0);
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(out, "bench")), name);
    DT_ASSERT(json_array_size(rows) >= n);
    json_array_foreach(rows, i, row)
    {
        size_t numbers = 0, texts = 0;
        const char *key;
        json_t *value;
        json_object_foreach(row, key, value)
        {
            numbers += json_is_real(value);
            texts += json_is_string(value);
        }
        DT_ASSERT(texts >= 1 && numbers >= 4);
    }
    json_decref(out);
}

static void check_rows(const char *name, size_t n)
{
    check_rows_of(name, "--quick --json", n);
}

DT_TEST(bench, decode_runs)
{
    check_rows("decode", 2);
}

DT_TEST(bench, comm_runs)
{
    dt_test_long();
    check_rows("comm", 22);
}

DT_TEST(bench, prefill_runs)
{
    check_rows("prefill", 6);
}

DT_TEST(bench, load_runs)
{
    check_rows("load", 4);
}

DT_TEST(bench, redistribute_runs)
{
    check_rows("redistribute", 16);
}

DT_TEST(bench, overlap_runs)
{
    check_rows("overlap", 4);
}

DT_TEST(bench, pipeline_runs)
{
    check_rows("pipeline", 8);
}

DT_TEST(bench, ddp_runs)
{
    check_rows("ddp", 8);
}

DT_TEST(bench, dispatch_runs)
{
    check_rows("dispatch", 10);
}

DT_TEST(bench, sampling_runs)
{
    check_rows("sampling", 6);
}

DT_TEST(bench, linear_runs)
{
    dt_test_long();
    check_rows("linear", 3);
}

DT_TEST(bench, attention_runs)
{
    dt_test_long();
    check_rows("attention", 12);
}

DT_TEST(bench, paged_runs)
{
    dt_test_long();
    check_rows("paged", 8);
}

DT_TEST(bench, train_runs)
{
    check_rows("train", 4);
    check_rows_of("train", "--quick --json --recompute blocks --chunk 16 --profile", 4);
    check_rows_of("train", "--quick --json --recompute cheap --sequence-parallel --mesh tp=2", 2);
    check_rows_of("train", "--quick --json --adamw --zero 1 --mesh dp=2", 2);
    check_rows_of("train", "--quick --json --adamw --zero 3 --mesh dp=2", 2);
}

DT_TEST(bench, train_memory_runs)
{
    check_rows("train_memory", 9);
}

DT_TEST(bench, optimizer_runs)
{
    check_rows("optimizer", 7);
}

DT_TEST(bench, linear_backward_runs)
{
    check_rows("linear_backward", 2);
}

/* On the simulated device, or skipped in so many words where there is none. */
DT_TEST(bench, cuda_runs)
{
    char path[DT_TEST_PATH_BYTES], arguments[DT_TEST_PATH_BYTES + 64];
    json_t *out;
    int exit_code;

    (void)dt_test_binary_path(path, "tests/dtensor_cuda_sim.so");
    if (access(path, R_OK) == 0) {
        (void)snprintf(arguments, sizeof arguments, "--quick --json --module '%s'", path);
        check_rows_of("cuda", arguments, 27);
    }
    out = run("cuda", "--quick --json --module /nowhere.so", &exit_code);
    DT_ASSERT_EQ_INT(exit_code, 0);
    DT_ASSERT(strstr(json_string_value(json_object_get(out, "skipped")), "/nowhere.so") != NULL);
    json_decref(out);
}

/* Limits, prefill, decoding by recorded passes and without. */
DT_TEST(bench, gpu_models_runs)
{
    (void)dt_test_cuda_runs();
    check_rows("gpu_models", 5);
}

DT_TEST(bench, a_wrong_option_ends_with_2)
{
    static const char *const wrong[] = { "--quick --nonsense 2>&1", "--tokens x 2>&1",
                                         "--tokens 2>&1", "--quick --mesh tp= 2>&1" };
    int exit_code;

    for (size_t i = 0; i < DT_COUNT(wrong); i++) {
        json_decref(run("decode", wrong[i], &exit_code));
        DT_ASSERT_EQ_INT(exit_code, 2);
    }
    json_decref(run("decode", "--help", &exit_code));
    DT_ASSERT_EQ_INT(exit_code, 0);
}
