/* SPDX-License-Identifier: Apache-2.0
 *
 * Wishes that contradict each other, do nothing, or ask for more than there is: the message names
 * the option. */
#include "tests/cli/command.h"

/* Llama, vocabulary 128, context 64, no tokenizer. */
static const char *model_path(char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "tests/golden/llama/tied");
}

typedef struct wish {
    const char *words[5];
    const char *says;
} wish;

static command_result generate(const char *folder, const char *const words[5])
{
    return COMMAND("generate", "-q", "-m", folder, "-t", "1,2,3", words[0], words[1], words[2],
                   words[3], words[4]);
}

DT_TEST(cli_wish_checks, contradictions_are_refused)
{
    static const wish wishes[] = {
        { { "--greedy", "--seed", "1" }, "--greedy takes the best token always" },
        { { "--max-length", "9", "-n", "2" }, "--max-length 9 and --max-new-tokens 2" },
        { { "--min-length", "9", "--min-new-tokens", "2" },
          "--min-length 9 and --min-new-tokens 2" },
        { { "--eos-ids", "+5" }, "\"+5\" is not a list of token ids" },
        { { "--ignore-eos", "--eos-ids", "4,5" }, "every token that --eos-ids 4,5 names" },
        { { "--ignore-eos", "--min-new-tokens", "2" }, "so --min-new-tokens 2 changes nothing" },
        { { "--ignore-eos", "--min-length", "2" }, "so --min-length 2 changes nothing" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)model_path(model);
    for (size_t i = 0; i < DT_COUNT(wishes); i++) {
        command_result r = COMMAND_ENDS(2, generate(model, wishes[i].words), wishes[i].says);
        DT_ASSERT_EQ_STR(r.out, "");
    }
}

DT_TEST(cli_wish_checks, what_changes_nothing_is_warned_of)
{
    static const wish wishes[] = {
        { { "-n", "2", "--length-penalty", "2" }, "warning: --length-penalty 2 changes nothing" },
        { { "-n", "2", "--early-stopping", "never" }, "warning: --early-stopping never changes" },
        { { "-n", "2", "--min-length", "6" }, "warning: --min-length 6 is more than the 5 tokens" },
        { { "-n", "2", "--min-new-tokens", "3" },
          "warning: --min-new-tokens 3 is more than the 2" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)model_path(model);
    for (size_t i = 0; i < DT_COUNT(wishes); i++) {
        command_result r = COMMAND_ENDS(0, generate(model, wishes[i].words));
        COMMAND_ASSERT_HAS(r.err, wishes[i].says);
        DT_ASSERT_EQ_STR(r.out, "1 2 3 122 61\n");
    }
}

/* What is refused here took all memory of the machine. */
DT_TEST(cli_wish_checks, more_texts_than_fit_are_refused)
{
    static const wish wishes[] = {
        { { "-n", "4", "--sample", "--num-return-sequences", "2147483647" },
          "--num-return-sequences 2147483647 of 1 prompt: 2147483647 sequences at once, at most "
          "65536" },
        { { "-n", "4", "--num-beams", "70000" }, "--num-beams 70000 of 1 prompt: 70000 sequences" },
        { { "-n", "4", "--num-beams", "200" }, "--num-beams is 200, more than the 128 tokens" },
        { { "-n", "62" },
          "--max-new-tokens 62 after a prompt of 3 tokens exceeds the model's "
          "context of 64" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)model_path(model);
    for (size_t i = 0; i < DT_COUNT(wishes); i++) {
        COMMAND_ENDS(2, generate(model, wishes[i].words), wishes[i].says);
    }
}

/* A context of 2^30 tokens: the caches of a thousand texts are beyond any machine. */
DT_TEST(cli_wish_checks, more_memory_than_there_is_is_refused)
{
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 64];
    char *config, edited[4096], *at;

    (void)model_path(model);
    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/config.json", model);
    config = command_read(path);
    at = strstr(config, "\"max_position_embeddings\": 64");
    DT_ASSERT(at != NULL && strlen(config) + 16 < sizeof edited);
    (void)snprintf(edited, sizeof edited, "%.*s\"max_position_embeddings\": 1073741824%s",
                   (int)(at - config), config, at + strlen("\"max_position_embeddings\": 64"));
    dt_test_write_file(folder, "config.json", edited, strlen(edited));
    (void)snprintf(edited, sizeof edited, "%s/model.safetensors", model);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    DT_ASSERT(symlink(edited, path) == 0);
    COMMAND_ENDS(2,
                 COMMAND("generate", "-q", "-m", folder, "-t", "1", "-n", "1000000000",
                         "--num-beams", "100", "--device", "cpu"),
                 "--num-beams 100 of 1 prompt: 100 sequences of up to 1000000001 "
                 "tokens need 46.6 TiB at least for caches and logits, there are ",
                 "ask for at most ");
}
