/* SPDX-License-Identifier: Apache-2.0
 *
 * dtensor save and chat beside files that are none: refused at once, before weights are read. */
#include <sys/stat.h>

#include "tests/cli/command.h"

/* Whatever the ranks do first fails: what is refused before them has another exit code. */
static const char broken_ranks[] = "DTENSOR_FAULT=rank=1,op=any";

/* The example's checkpoint, less `name`. */
static void make_model(char folder[DT_TEST_PATH_BYTES], const char *without)
{
    static const char *const names[] = { "config.json", "generation_config.json",
                                         "model.safetensors", "tokenizer.json",
                                         "tokenizer_config.json" };
    char from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 64], *text;

    (void)dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        if (strcmp(names[i], without) == 0) continue;
        (void)snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        (void)dt_test_source_path(from, "examples/checkpoint/%s", names[i]);
        if (strcmp(names[i], "model.safetensors") == 0) { /* weights may be anywhere */
            DT_ASSERT(symlink(from, to) == 0);
            continue;
        }
        text = command_read(from);
        dt_test_write_file(folder, names[i], text, strlen(text));
    }
}

static void expect_refusal(const char *folder, const char *output, const char *message)
{
    COMMAND_ENDS(
        2,
        COMMAND_ENV(broken_ranks, "save", "-q", "-m", folder, "--mesh", "tp=2", "--output", output),
        message);
}

DT_TEST(cli_save, what_cannot_be_copied_is_found_before_weights_are_read)
{
    char folder[DT_TEST_PATH_BYTES], output[DT_TEST_PATH_BYTES + 16];
    char path[DT_TEST_PATH_BYTES + 64];
    struct stat info;
    command_result r;

    make_model(folder, "");
    (void)snprintf(output, sizeof output, "%s/out", folder);
    r = COMMAND_ENV(broken_ranks, "save", "-q", "-m", folder, "--mesh", "tp=2", "--output", output);
    DT_ASSERT(r.code != 0 && r.code != 2); /* it comes to the ranks */

    (void)snprintf(path, sizeof path, "%s/special_tokens_map.json", folder);
    DT_ASSERT(mkfifo(path, 0600) == 0);
    expect_refusal(folder, output, "special_tokens_map.json: is a device or pipe, not a file");
    DT_ASSERT(unlink(path) == 0);

    (void)snprintf(path, sizeof path, "%s/merges.txt", folder);
    dt_test_write_file(folder, "merges.txt", "x", 1);
    DT_ASSERT(truncate(path, (off_t)20 << 30) == 0);
    expect_refusal(folder, output, "merges.txt: is 21474836480 bytes");
    DT_ASSERT(unlink(path) == 0);

    DT_ASSERT(symlink("/etc/hostname", path) == 0);
    expect_refusal(folder, output, "outside the folder");
    DT_ASSERT(unlink(path) == 0);

    DT_ASSERT(mkdir(output, 0700) == 0);
    dt_test_write_file(output, "tokenizer.json", "{}", 2);
    expect_refusal(folder, output, "out/tokenizer.json: is there already");
    dt_test_write_file(output, "pytorch_model.bin", "x", 1);
    expect_refusal(folder, output, "--output: ");
    (void)snprintf(path, sizeof path, "%s/model.safetensors", output);
    DT_ASSERT(stat(path, &info) != 0);
}

DT_TEST(cli_save, pipes_in_the_place_of_files_do_not_hang_a_chat)
{
    static const char *const names[] = { "chat_template.jinja", "special_tokens_map.json",
                                         "tokenizer_config.json" };

    for (size_t i = 0; i < DT_COUNT(names); i++) {
        char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 64];
        command_result r;

        make_model(folder, names[i]);
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        DT_ASSERT(mkfifo(path, 0600) == 0);
        COMMAND_ENDS(2, COMMAND("chat", "-q", "-m", folder), "not a file");
        COMMAND_ENDS(2, COMMAND("inspect", folder), names[i]);
        r = COMMAND_ENDS(2, COMMAND("verify", folder));
        COMMAND_ASSERT_HAS(r.out, names[i]);
        COMMAND_ASSERT_HAS(r.out, ": 1 error");
    }
}

/* Experts of 24 inputs stay as they are, and what is saved says so to who reads it; others are
 * saved one by one. */
DT_TEST(cli_save, packed_weights_beside_experts_are_read_again)
{
    static const char *const models[] = { "tests/golden/mixtral/base",
                                          "tests/golden/qwen3_moe/base" };
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], saved[DT_TEST_PATH_BYTES + 8];

    (void)dt_test_temp_dir(folder);
    for (int i = 0; i < 2; i++) {
        command_result one, other;
        (void)dt_test_source_path(model, models[i]);
        (void)snprintf(saved, sizeof saved, "%s/saved%d", folder, i);
        COMMAND_ENDS(0,
                     COMMAND("save", "-q", "-m", model, "--weights", "int8,group=16", "-o", saved));
        one = COMMAND_ENDS(0, COMMAND("logits", "-q", "-m", saved, "-t", "1,2,3"));
        other = COMMAND_ENDS(
            0, COMMAND("logits", "-q", "-m", model, "-t", "1,2,3", "--weights", "int8,group=16"));
        DT_ASSERT(one.out[0] != '\0');
        DT_ASSERT_EQ_STR(one.out, other.out);
    }
}
