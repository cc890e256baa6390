/* SPDX-License-Identifier: Apache-2.0
 *
 * What `generate` refuses of generation_config.json and of the checkpoint's own plan, `inspect` and
 * `verify` report in the same words. */
#include <unistd.h>

#include "tests/cli/command.h"

enum { PATH = DT_TEST_PATH_BYTES + 64, FILE_BYTES = 4096 };

/* Llama, vocabulary 128, without a tokenizer; config.json begins with `more`. */
static void make_folder(const char *folder, const char *more, const char *generation)
{
    char from[DT_TEST_PATH_BYTES], to[PATH], text[FILE_BYTES], *config;

    (void)dt_test_source_path(from, "tests/golden/llama/tied/model.safetensors");
    (void)snprintf(to, sizeof to, "%s/model.safetensors", folder);
    (void)unlink(to);
    DT_ASSERT(symlink(from, to) == 0);
    config = command_read(dt_test_source_path(from, "tests/golden/llama/tied/config.json"));
    DT_ASSERT(config[0] == '{' && strlen(config) + strlen(more) < sizeof text);
    (void)snprintf(text, sizeof text, "{%s%s", more, config + 1);
    dt_test_write_file(folder, "config.json", text, strlen(text));
    dt_test_write_file(folder, "generation_config.json", generation, strlen(generation));
}

#define PLAN(rule, style) "\"base_model_tp_plan\": {\"" rule "\": \"" style "\"},"

typedef struct refusal {
    const char *more, *generation, *says, *where;
} refusal;

/* clang-format off */
static const refusal refusals[] = {
    { "", "{\"eos_token_id\": \"x\"}", "generation_config.json: eos_token_id is the string", "only with --ignore-eos" },
    { "", "{\"top_p\": 2}", "generation_config.json: top_p is 2", "only with --ignore-eos" },
    { "", "{\"do_sample\": true, \"temperature\": 0}", "generation_config.json: temperature is 0, must be above 0", "refused" },
    { "", "{\"suppress_tokens\": [1, 555]}", "generation_config.json: suppress_tokens: token 555", "refused" },
    { "", "{\"forced_bos_token_id\": 128}", "generation_config.json: forced_bos_token_id: token 128", "refused" },
    { "", "{\"forced_eos_token_id\": 128}", "generation_config.json: forced_eos_token_id: token 128", "refused" },
    { "", "{\"bad_words_ids\": [[3], [500]]}", "generation_config.json: bad_words_ids: token 500", "refused" },
    { "", "{\"stop_strings\": [\"x\"]}", "generation_config.json: stop_strings", "refused" },
    { "", "{\"max_length\": 1}", "generation_config.json: max_length 1 counts the prompt", "refused" },
    { "", "{\"num_beams\": 200}", "generation_config.json: num_beams is 200, more than the 128 tokens", "refused" },
    { "", "{\"max_new_tokens\": 0}", "generation_config.json: max_new_tokens is 0, must be an integer from 1", "only with --ignore-eos" },
    { "", "{\"do_sample\": true, \"num_return_sequences\": 70000}", "json: num_return_sequences 70000 of 1 prompt", "refused" },
    { "", "{\"num_return_sequences\": 2}", "generation_config.json: num_return_sequences is 2, but", "refused" },
    { "", "{\"num_beams\": 2, \"pad_token_id\": 128}", "generation_config.json: pad_token_id: token 128", "refused" },
    { PLAN("layers.*.mlp.up_proj", "colwize"), "{}", "config.json, rule \"model.layers.*.mlp.up_proj\": \"colwize\"", "plan" },
    { PLAN("norm", "rowwise"), "{}", "config.json, rule \"model.norm\": \"rowwise\"", "plan" },
};
/* clang-format on */

DT_TEST(cli_refusals, inspect_and_verify_report_what_generate_refuses)
{
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(refusals); i++) {
        const refusal *x = &refusals[i];
        command_result run, inspect, json, verify;

        make_folder(folder, x->more, x->generation);
        run = COMMAND("generate", "-q", "-m", folder, "-t", "1");
        inspect = COMMAND("inspect", folder);
        json = COMMAND("inspect", folder, "--json");
        verify = COMMAND("verify", folder);
        COMMAND_ENDS(2, run);
        COMMAND_ENDS(2, inspect);
        COMMAND_ENDS(2, json);
        COMMAND_ENDS(2, verify);
        COMMAND_ASSERT_HAS(run.err, x->says);
        COMMAND_ASSERT_HAS(inspect.err, x->says);
        COMMAND_ASSERT_HAS(inspect.out, x->says);
        COMMAND_ASSERT_HAS(inspect.out, x->where);
        COMMAND_ASSERT_HAS(verify.out, x->says);
        COMMAND_ASSERT_HAS(verify.out, "1 error");
        COMMAND_ASSERT_HAS(json.out,
                           x->more[0] ? "\"plan_error\": \"" : "\"generation_error\": \"");
    }
}

/* One text needs no padding, and many checkpoints name a token that they do not have. */
DT_TEST(cli_refusals, a_padding_token_that_nobody_uses_is_left_alone)
{
    char folder[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(folder);
    make_folder(folder, "", "{\"pad_token_id\": 128, \"eos_token_id\": 1}");
    COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", folder, "-t", "1", "-n", "2"));
    COMMAND_ENDS(0, COMMAND("inspect", folder));
    COMMAND_ENDS(0, COMMAND("verify", folder));
    COMMAND_ENDS(2,
                 COMMAND("generate", "-q", "-m", folder, "-t", "1", "-n", "2", "--num-beams", "2"),
                 "generation_config.json: pad_token_id: token 128 is outside");
}

/* As in Transformers: it was ignored, and a hundred tokens came. */
DT_TEST(cli_refusals, a_length_that_the_prompt_fills_is_refused)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r;

    (void)dt_test_temp_dir(folder);
    make_folder(folder, "", "{\"max_length\": 4, \"eos_token_id\": 1}");
    COMMAND_ENDS(2, COMMAND("generate", "-q", "-m", folder, "-t", "5,6,7,8"),
                 "generation_config.json: max_length 4 counts the prompt, which has 4 "
                 "tokens: nothing is left for new ones; give --max-new-tokens, which "
                 "counts before it, 1 to 60");
    COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", folder, "-t", "5,6,7,8", "-n", "1"));
    r = COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", folder, "-t", "5,6,7"));
    DT_ASSERT(strncmp(r.out, "5 6 7 ", 6) == 0 && strchr(r.out + 6, ' ') == NULL);
}
