/* SPDX-License-Identifier: Apache-2.0
 *
 * A checkpoint that runs but is not what its owner thinks: inspect and the run say so. */
#include <sys/stat.h>
#include <unistd.h>

#include "tests/cli/command.h"

enum { PATH = DT_TEST_PATH_BYTES + 64, FILE_BYTES = 4096 };

/* Bytes of GPT-2's alphabet that a text needs; the rest of it is missing. */
#define TOKENIZER(vocab)                                                                         \
    "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": " \
    "true}, \"decoder\": {\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": "  \
    "{" vocab "}, \"merges\": []}}"

/* The fixture has vocabulary 128. */
typedef struct oddity {
    const char *name, *from, *to; /* config.json with a text replaced; NULL: as it is */
    const char *file, *text;      /* one more file */
    const char *prompt;           /* NULL: ids */
    const char *warning;          /* what inspect says */
    const char *run;              /* what generate says; NULL: the same, "": nothing of it */
} oddity;

/* clang-format off */
static const oddity oddities[] = {
    { "end outside",       NULL, NULL, "generation_config.json", "{\"eos_token_id\": [1, 5000]}", NULL,
      "generation_config.json: eos_token_id 5000 is outside the model's vocabulary, 0..127", NULL },
    { "end in config",     "\"eos_token_id\": null", "\"eos_token_id\": 99999", NULL, NULL, NULL,
      "/config.json: eos_token_id 99999 is outside", NULL },
    { "negative end",      NULL, NULL, "generation_config.json", "{\"eos_token_id\": -1}", NULL,
      "generation_config.json: eos_token_id names no token", NULL },
    { "negative among ends", NULL, NULL, "generation_config.json", "{\"eos_token_id\": [1, -1]}", NULL,
      "generation_config.json: eos_token_id -1 is outside the model's vocabulary, 0..127", NULL },
    { "end overruled",     "\"eos_token_id\": null", "\"eos_token_id\": 99999", "generation_config.json",
      "{\"eos_token_id\": 1}", NULL, "/config.json: eos_token_id 99999 is outside", NULL },
    { "unknown wish",      NULL, NULL, "generation_config.json", "{\"eos_token_id\": 1, \"top_h\": 0.4}", NULL,
      "sets top_h, which is not supported", NULL },
    { "no end",            NULL, NULL, "generation_config.json", "{\"eos_token_id\": []}", NULL,
      "generation_config.json: eos_token_id names no token", NULL },
    { "architectures",     "LlamaForCausalLM", "Qwen3ForCausalLM", NULL, NULL, NULL,
      "architectures names \"Qwen3ForCausalLM\", but model_type is \"llama\"", NULL },
    { "fewer layers",      "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1", NULL, NULL, NULL,
      "9 tensors of the checkpoint are not used by the llama model", NULL },
    { "large tokenizer",   NULL, NULL, "tokenizer.json", TOKENIZER("\"a\": 0, \"b\": 128"), "a",
      "the tokenizer does not fit the model: its ids go up to 128, the model's vocabulary is 0..127", "" },
    { "lost bytes",        NULL, NULL, "tokenizer.json", TOKENIZER("\"a\": 0, \"b\": 1"), "aQb",
      "the tokenizer has no token for 241 of the bytes that text is made of, the first is 0x00",
      "no token for characters of the prompt, the first is \"Q\"" },
    { "lost byte",         NULL, NULL, "tokenizer.json", TOKENIZER("\"a\": 0"), "a\303\251",
      "has no token for", "the first is byte 0xC3" },
};
/* clang-format on */

static void link_weights(const char *folder)
{
    char from[DT_TEST_PATH_BYTES], to[PATH];

    (void)dt_test_source_path(from, "tests/golden/llama/tied/model.safetensors");
    (void)snprintf(to, sizeof to, "%s/model.safetensors", folder);
    DT_ASSERT(symlink(from, to) == 0);
}

static void write_config(const char *folder, const char *from, const char *to)
{
    char path[DT_TEST_PATH_BYTES], edited[FILE_BYTES];
    char *text, *at;
    int n;

    text = command_read(dt_test_source_path(path, "tests/golden/llama/tied/config.json"));
    at = from != NULL ? strstr(text, from) : text;
    DT_ASSERT(at != NULL);
    if (from == NULL) from = to = "";
    n = snprintf(edited, sizeof edited, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    DT_ASSERT(n > 0 && n < FILE_BYTES);
    dt_test_write_file(folder, "config.json", edited, (size_t)n);
}

static void check(const oddity *o)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result inspect, json, run;

    (void)dt_test_temp_dir(folder);
    link_weights(folder);
    write_config(folder, o->from, o->to);
    if (o->file != NULL) dt_test_write_file(folder, o->file, o->text, strlen(o->text));
    inspect = COMMAND("inspect", folder);
    json = COMMAND("inspect", folder, "--json");
    run = COMMAND("generate", "-m", folder, o->prompt ? "-p" : "-t", o->prompt ? o->prompt : "1,2",
                  "-n", "1", "--mesh", "tp=2");
    if (inspect.code != 0 || run.code != 0 || strstr(inspect.out, o->warning) == NULL ||
        strstr(inspect.out, "supported   yes, with warnings") == NULL)
        dt_test_fail(__FILE__, __LINE__, "%s: exit codes %d and %d: %.1500s %.500s", o->name,
                     inspect.code, run.code, inspect.out, run.err);
    COMMAND_ASSERT_HAS(json.out, "\"warnings\": [\n");
    COMMAND_ASSERT_HAS(run.err, "dtensor: warning: ");
    COMMAND_ASSERT_HAS(run.err, o->run != NULL ? o->run : o->warning);
}

DT_TEST(cli_warnings, what_is_odd_is_said_and_the_run_goes_on)
{
    for (size_t i = 0; i < DT_COUNT(oddities); i++) check(&oddities[i]);
}

DT_TEST(cli_warnings, a_sound_checkpoint_has_none)
{
    COMMAND_ENDS(0, COMMAND("inspect", "examples/checkpoint", "--json"), "\"warnings\": []");
}

/* With --ignore-eos nobody asks what ends a text. */
DT_TEST(cli_warnings, ends_do_not_matter_where_they_are_ignored)
{
    command_result r = COMMAND_ENDS(0, COMMAND("generate", "-m", "tests/golden/llama/tied", "-t",
                                               "1", "-n", "1", "--ignore-eos"));

    DT_ASSERT(strstr(r.err, "eos_token_id") == NULL);
}

DT_TEST(cli_warnings, plan_names_tensors_that_are_not_used)
{
    char folder[DT_TEST_PATH_BYTES];
    command_result r;

    (void)dt_test_temp_dir(folder);
    link_weights(folder);
    write_config(folder, "\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1");
    r = COMMAND("plan", "-m", folder, "--mesh", "tp=2");
    COMMAND_ENDS(0, r);
    COMMAND_ASSERT_HAS(r.err, "9 tensors of the checkpoint are not used");
    DT_ASSERT(strstr(strstr(r.err, "9 tensors") + 1, "9 tensors") == NULL); /* said once */
}

/* A folder in its place costs the text, not the ids. */
DT_TEST(cli_warnings, a_folder_named_tokenizer_json_does_not_stop_ids)
{
    char folder[DT_TEST_PATH_BYTES], inner[PATH];
    command_result r;

    (void)dt_test_temp_dir(folder);
    link_weights(folder);
    write_config(folder, NULL, NULL);
    (void)snprintf(inner, sizeof inner, "%s/tokenizer.json", folder);
    DT_ASSERT(mkdir(inner, 0700) == 0);
    r = COMMAND("generate", "-m", folder, "-t", "1,2", "-n", "1");
    (void)rmdir(inner);
    COMMAND_ENDS(0, r);
    COMMAND_ASSERT_HAS(r.err, "tokenizer.json: is a folder");
    COMMAND_ASSERT_HAS(r.err, "output is token ids");
    DT_ASSERT(strncmp(r.out, "1 2 ", 4) == 0);
}

/* A tokenizer whose steps are fine one by one, and never end together. */
DT_TEST(cli_warnings, a_hostile_tokenizer_is_named_by_inspect)
{
    static const char *const names[] = { "config.json", "generation_config.json",
                                         "model.safetensors" };
    static const char file[] =
        "{\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a|a)+$\"}, "
        "\"behavior\": \"Isolated\"}, \"model\": {\"vocab\": {\"a\": 0}, \"merges\": []}}";
    char folder[DT_TEST_PATH_BYTES], from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 64];
    command_result r;

    (void)dt_test_temp_dir(folder);
    for (size_t i = 0; i < DT_COUNT(names); i++) {
        (void)snprintf(to, sizeof to, "%s/%s", folder, names[i]);
        DT_ASSERT(symlink(dt_test_source_path(from, "examples/checkpoint/%s", names[i]), to) == 0);
    }
    dt_test_write_file(folder, "tokenizer.json", file, sizeof file - 1);
    r = COMMAND_ENDS(2, COMMAND("inspect", folder),
                     "/tokenizer.json: regular expression \"(a|a)+$\" gave up");
    COMMAND_ASSERT_HAS(r.out, "only with --tokens");
}
