/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages about the value of an option name the option. */
#include "tests/cli/command.h"
#include <dtensor/generation.h>
#include <sys/stat.h>

DT_TEST(cli_options, messages_name_the_option)
{
    static const char *const wrong[][8] = {
        { "generate", "-m", "/nowhere", "-t", "1", NULL, NULL, "--model: /nowhere: No such file" },
        { "plan", "-m", "/nowhere", NULL, NULL, NULL, NULL, "--model: /nowhere: No such file" },
        { "tokenize", "-m", "/nowhere", "-p", "x", NULL, NULL, "--model: /nowhere: No such file" },
        { "generate", "-m", "@", "-t", "1", "--plan", "x.json",
          "--plan: x.json: cannot be opened" },
        { "generate", "-m", "@", "-t", "1", "--plan", "x", "--plan: x: No such file or directory" },
        { "generate", "-m", "@", "-t", "1", "--threads", "0", "--threads: \"0\" is not a number" },
        { "logits", "-m", "@", "-t", "128", NULL, NULL, "--tokens: token id 128 (item 1)" },
        { "plan", "-m", "@", "--sequence", "65", NULL, NULL, "--sequence 65 exceeds the model's" },
        { "topo", "--mesh", "tp", NULL, NULL, NULL, NULL, "--mesh: " },
        { "topo", "--machine", "x", NULL, NULL, NULL, NULL, "--machine: hwloc does not" },
        { "generate", "-m", "@", "-t", "1", "--weights", "int5",
          "dtensor: --weights: unknown word" },
        { "generate", "-m", "@", "-t", "1", "--link", "x,y", "dtensor: --link \"x,y\": micro" },
        { "plan", "-m", "@", "--offload-parameters", "host", NULL, NULL,
          "dtensor: --offload-parameters to host: no layer has the style" },
        { "train", "--forget", "lrr", NULL, NULL, NULL, NULL, "--forget: train: unknown option" },
        { "generate", "-m", "@", "-t", "1", "--device=cuda", "--isa=avx2",
          "--isa avx2 names kernels of the CPU, --device cuda computes on GPUs" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "tests/golden/llama/tied");
    for (size_t i = 0; i < DT_COUNT(wrong); i++) {
        const char *words[8] = { NULL };

        for (size_t w = 0; w < 7 && wrong[i][w] != NULL; w++)
            words[w] = strcmp(wrong[i][w], "@") == 0 ? model : wrong[i][w];
        COMMAND_ENDS(2, command_run(NULL, words), wrong[i][7]);
    }
}

/* Warnings repeat names of files; whoever reads them may sit at a terminal. */
DT_TEST(cli_options, warnings_show_control_characters)
{
    char from[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES + 32], root[DT_TEST_PATH_BYTES];
    static const char *const names[] = { "config.json", "model.safetensors" };
    command_result r;

    (void)snprintf(folder, sizeof folder, "%s/a\033[31m\xe2\x80\xae", dt_test_temp_dir(root));
    DT_ASSERT(mkdir(folder, 0700) == 0);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        char path[sizeof folder + 32], source[64];
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        (void)snprintf(source, sizeof source, "tests/golden/llama/tied/%s", names[i]);
        DT_ASSERT(symlink(dt_test_source_path(from, source), path) == 0);
    }
    dt_test_write_file(folder, "generation_config.json", "{\"eos_token_id\": -1}", 20);
    r = COMMAND_ENDS(0, COMMAND("generate", "-m", folder, "-t", "1", "-n", "1", "-q"));
    COMMAND_ASSERT_HAS(r.err, "/a\\x1b[31m\\xe2\\x80\\xae/generation_config.json");
    DT_ASSERT(strchr(r.err, '\033') == NULL);
}

/* A variable of another encoding was left out of the result, or the whole of it. */
DT_TEST(cli_options, env_prints_variables_that_are_not_utf_8)
{
    COMMAND_ENDS(0, COMMAND_ENV("DTENSOR_FLIGHT=a\377\033b", "env", "--json"),
                 "\"DTENSOR_FLIGHT\":\"a\\\\xff\\\\x1bb\"");
}

/* The table of settings is the library's, the options of the command are found by its names. */
DT_TEST(cli_options, every_setting_with_an_option_has_one)
{
    const char *words[] = { "generate", "--help", NULL };
    command_result r = command_run(NULL, words);
    int n;
    const dt_knob *knobs = dt_generate_knobs(&n);

    DT_ASSERT(n <= 40); /* CLI_MAX_KNOBS */
    for (int i = 0; i < n; i++) {
        char option[64];
        if (knobs[i].option == NULL) continue;
        (void)snprintf(option, sizeof option, "--%s ", knobs[i].option);
        if (strstr(r.out, option) == NULL) dt_test_fail(__FILE__, __LINE__, "no %s", option);
        DT_ASSERT(dt_generate_knob(knobs[i].field) == &knobs[i]);
    }
}
