/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor bench: its figures hang together on every mesh; none is compared with a time. */
#include <jansson.h>
#include <math.h>

#include "tests/cli/command.h"
#include "tests/support/cuda.h"

static double number(const json_t *of, const char *key)
{
    const json_t *v = json_object_get(of, key);

    if (!json_is_number(v)) dt_test_fail(__FILE__, __LINE__, "%s is no number", key);
    return json_number_value(v);
}

/* Printed with six digits. */
static void expect_product(double a, double b, double c)
{
    DT_ASSERT(a > 0 && b > 0 && fabs(a * b - c) <= 1e-4 * fabs(c));
}

static void check_figures(const json_t *f, int64_t tokens, double work)
{
    DT_ASSERT_EQ_INT((int64_t)number(f, "tokens"), tokens);
    if (work > 0) DT_ASSERT(fabs(number(f, "work") - work) <= 1e-5 * work);
    expect_product(number(f, "s"), number(f, "tokens_per_s"), (double)tokens);
    expect_product(number(f, "s"), number(f, "work_per_s"), number(f, "work"));
    DT_ASSERT(number(f, "limit_per_s") > 0);
    DT_ASSERT(number(f, "ratio") >= number(f, "ratio_least"));
    DT_ASSERT(number(f, "ratio") <= number(f, "ratio_most"));
}

/* 2 operations for each element of a product's matrix and each token, the head's of one; 4 for each
 * pair of positions and column of all heads. */
static double llama_flops(double tokens)
{
    const double hidden = 96, ff = 250, kv = 32, vocab = 257, layers = 2;
    const double block = 2 * hidden * hidden + 2 * kv * hidden + 3 * ff * hidden;

    return 2 * tokens * layers * block + 2 * vocab * hidden +
           4 * hidden * layers * tokens * (tokens + 1) / 2;
}

/* In f32, all but the embedding; whole words of each parameter's piece. */
static double llama_bytes(double new_tokens)
{
    const double hidden = 96, ff = 250, kv = 32, vocab = 257, layers = 2;
    const double block = 2 * hidden * hidden + 2 * kv * hidden + 3 * ff * hidden + 2 * hidden;

    return 4 * (layers * block + hidden + vocab * hidden) * new_tokens;
}

static json_t *run(const char *folder, const char *mesh)
{
    char path[DT_TEST_PATH_BYTES];
    command_result r =
        COMMAND("bench", "-q", "--model", dt_test_source_path(path, "%s", folder), "--mesh", mesh,
                "--dtype", "f32", "--sequence", "12", "-n", "5", "--rounds", "2", "--json");
    json_t *object;

    COMMAND_ENDS(0, r);
    object = json_loads(r.out, 0, NULL);
    DT_ASSERT(object != NULL && r.err[0] == '\0');
    return object;
}

DT_TEST(cli_bench, figures_hang_together)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };
    json_t *object;

    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        object = run("tests/golden/llama/uneven", meshes[m]);
        check_figures(json_object_get(object, "prompt"), 12, llama_flops(12));
        /* Norms are whole on each rank, and so are kv heads that are fewer than ranks. */
        check_figures(json_object_get(object, "decode"), 5, m == 0 ? llama_bytes(5) : 0);
        DT_ASSERT_EQ_INT((int64_t)number(object, "rounds"), 2);
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(object, "mesh")), meshes[m]);
        json_decref(object);
    }
}

/* A token reads the experts that its router chooses: 2 of 6. */
DT_TEST(cli_bench, experts_count_as_far_as_they_are_chosen)
{
    const double hidden = 48, ff = 32, width = 64, kv = 32, vocab = 128, layers = 2;
    const double others = hidden * (2 * width + 2 * kv) + 6 * hidden;
    json_t *object = run("tests/golden/qwen3_moe/base", "tp=1");

    check_figures(json_object_get(object, "prompt"), 12,
                  2 * 12 * layers * (others + 2 * 3 * ff * hidden) + 2 * vocab * hidden +
                      4 * width * layers * 12 * 13 / 2);
    check_figures(json_object_get(object, "decode"), 5,
                  5 * 4 *
                      (layers * (others + 2 * hidden + 2 * 16 + 2 * 3 * ff * hidden) + hidden +
                       vocab * hidden));
    json_decref(object);
}

static void check_batch(const json_t *f, int64_t n, int64_t passes)
{
    const char *bound = json_string_value(json_object_get(f, "bound"));

    DT_ASSERT_EQ_INT((int64_t)number(f, "batch"), n);
    check_figures(f, n * passes, (double)passes);
    expect_product(number(f, "bound_s"), number(f, "limit_per_s"), 1);
    expect_product(number(f, "ratio"), number(f, "limit_per_s"), number(f, "work_per_s"));
    DT_ASSERT(strcmp(bound, "reading") == 0 || strcmp(bound, "multiplying") == 0);
}

/* Of one round the medians are its numbers. */
DT_TEST(cli_bench, sequences_at_once_stand_beside_their_bound)
{
    static const char *const meshes[] = { "tp=2", "dp=2" };
    char path[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(path, "tests/golden/llama/uneven");
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        command_result r =
            COMMAND_ENDS(0, COMMAND("bench", "-q", "--model", path, "--mesh", meshes[m], "--batch",
                                    "5,2", "-n", "3", "--rounds", "1", "--json"));
        json_t *object = json_loads(r.out, 0, NULL), *all = json_object_get(object, "batches");
        DT_ASSERT_EQ_INT(json_array_size(all), 2);
        check_batch(json_array_get(all, 0), 5, 3);
        check_batch(json_array_get(all, 1), 2, 3);
        json_decref(object);
    }
    COMMAND_ENDS(0, COMMAND("bench", "-q", "--model", path, "--batch", "33", "-n", "3"),
                 "batch    33 ", " ms, at the least ");
}

DT_TEST(cli_bench, a_batch_that_is_no_number_is_refused)
{
    static const char *const wrong[] = { "0", "1,,2", "2,", "65537", "many", "-1" };
    char path[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(path, "tests/golden/llama/uneven");
    for (size_t i = 0; i < DT_COUNT(wrong); i++)
        COMMAND_ENDS(2, COMMAND("bench", "--model", path, "--batch", wrong[i]), "--batch: \"",
                     "\" is not a number from 1 to 65536");
}

/* Of a folder without weights. */
static json_t *run_random(const char *mesh, const char *device)
{
    char folder[DT_TEST_PATH_BYTES], source[DT_TEST_PATH_BYTES], command[3 * DT_TEST_PATH_BYTES];
    command_result r;
    json_t *object;

    (void)dt_test_temp_dir(folder);
    (void)snprintf(command, sizeof command, "cp '%s' '%s'",
                   dt_test_source_path(source, "tests/golden/llama/uneven/config.json"), folder);
    DT_ASSERT_EQ_INT(system(command), 0);
    r = COMMAND_ENDS(0, COMMAND("bench", "-q", "--random", "--model", folder, "--mesh", mesh,
                                "--device", device, "--dtype", "f32", "--sequence", "4", "-n", "4",
                                "--rounds", "1", "--json"));
    object = json_loads(r.out, 0, NULL);
    DT_ASSERT(object != NULL);
    DT_ASSERT_EQ_STR(json_string_value(json_object_get(object, "device")), device);
    check_figures(json_object_get(object, "prompt"), 4, llama_flops(4));
    for (size_t i = 0; i < 2; i++) { /* of one round the medians are its numbers */
        const json_t *f = json_object_get(object, i == 0 ? "prompt" : "decode");
        expect_product(number(f, "ratio"), number(f, "limit_per_s"), number(f, "work_per_s"));
    }
    return object;
}

/* Linux would give the memory, and end the program when it is used. */
DT_TEST(cli_bench, a_shape_that_no_machine_holds_is_refused)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
        "\"hidden_size\": 1048576, \"intermediate_size\": 4194304, \"num_hidden_layers\": 100, "
        "\"num_attention_heads\": 8192, \"vocab_size\": 100000, "
        "\"max_position_embeddings\": 64, \"rms_norm_eps\": 1e-5, \"torch_dtype\": \"float32\"}";
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "config.json", config, sizeof config - 1);
    COMMAND_ENDS(4,
                 COMMAND("bench", "-q", "--random", "--model", folder, "--mesh", "tp=2",
                         "--sequence", "4", "-n", "4"),
                 "this machine has ", " for 2 ranks");
}

DT_TEST(cli_bench, random_weights_need_a_configuration_alone)
{
    json_t *object = run_random("tp=1", "cpu");

    check_figures(json_object_get(object, "decode"), 4, llama_bytes(4));
    DT_ASSERT(json_is_false(json_object_get(object, "decode_recorded")));
    DT_ASSERT(json_is_null(json_object_get(object, "decode_unrecorded")));
    json_decref(object);
}

/* A rank that is alone plays recorded passes; ranks that share a device cannot. */
/* So few bytes that reading them is no measure: there is no ratio. */
DT_TEST(cli_bench, of_hardly_any_weights_has_no_ratio)
{
    static const char config[] =
        "{\"model_type\": \"llama\", \"vocab_size\": 2, \"hidden_size\": 1, "
        "\"intermediate_size\": 1, \"num_hidden_layers\": 1, \"num_attention_heads\": 1, "
        "\"num_key_value_heads\": 1, \"head_dim\": 2, \"max_position_embeddings\": 64}";
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "config.json", config, sizeof config - 1);
    (void)COMMAND_ENDS(0,
                       COMMAND("bench", "-q", "--random", "-m", folder, "--rounds", "1",
                               "--sequence", "4", "--dtype", "bf16", "--json"),
                       "\"ratio_most\":");
}

DT_TEST(cli_bench, a_gpu_is_measured_beside_its_own_limits)
{
    json_t *object;

    (void)dt_test_cuda_runs();
    object = run_random("tp=1", "cuda");
    check_figures(json_object_get(object, "decode"), 4, llama_bytes(4));
    DT_ASSERT(json_is_true(json_object_get(object, "decode_recorded")));
    check_figures(json_object_get(object, "decode_unrecorded"), 4, llama_bytes(4));
    json_decref(object);
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_COMM", "cuda_local", 1), 0);
    object = run_random("tp=2", "cuda");
    check_figures(json_object_get(object, "decode"), 4, 0);
    DT_ASSERT(json_is_false(json_object_get(object, "decode_recorded")));
    json_decref(object);
}

DT_TEST(cli_bench, without_a_gpu_none_is_measured)
{
    char path[DT_TEST_PATH_BYTES];
    COMMAND_ENDS(2,
                 COMMAND_ENV("DTENSOR_CUDA_MODULE=/nowhere.so", "bench", "--model",
                             dt_test_source_path(path, "tests/golden/llama/uneven"), "--device",
                             "cuda"),
                 "--device: ", "/nowhere.so");
}

DT_TEST(cli_bench, what_the_context_has_no_room_for_is_refused)
{
    char path[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(path, "tests/golden/llama/uneven"); /* 128 positions */
    COMMAND_ENDS(2, COMMAND("bench", "--model", path, "--sequence", "129"),
                 "--sequence 129: the model's context has 128 tokens");
    COMMAND_ENDS(2, COMMAND("bench", "--model", path, "-n", "121"),
                 "has room for 120 behind a prompt of 8");
    COMMAND_ENDS(2, COMMAND("bench", "--model", path, "--sequence", "1", "-n", "128"),
                 "has room for 127 behind a prompt of 1");
    COMMAND_ENDS(0, COMMAND("bench", "-q", "--model", path, "--sequence", "1", "-n", "127",
                            "--rounds", "1"));
    COMMAND_ENDS(2, COMMAND("bench", "--model", path, "--behind", "128"),
                 "--behind 128: the model's context of 128 tokens has room for none behind them");
    COMMAND_ENDS(0,
                 COMMAND("bench", "-q", "--model", path, "--sequence", "4", "--behind", "100", "-n",
                         "28", "--rounds", "2"),
                 "decode     28 tokens, ");
    COMMAND_ENDS(0, COMMAND("bench", "-q", "--model", path, "-n", "2", "--rounds", "1"),
                 "prompt    128 tokens, ", "that reading the weights alone reaches");
}
