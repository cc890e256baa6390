/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages about the value of an option name the option. */
#include "tests/cli/command.h"
#include <dtensor/generation.h>

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
