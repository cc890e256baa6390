/* SPDX-License-Identifier: Apache-2.0
 *
 * How generate chooses, several texts, and a tokenizer alone. */
#include <jansson.h>

#include "tests/cli/command.h"

static const char *model_path(char path[DT_TEST_PATH_BYTES])
{
    return dt_test_source_path(path, "examples/checkpoint");
}

#define GENERATE(model, ...) \
    COMMAND("generate", "-q", "-m", model, "-p", "ROMEO:", "-n", "24", __VA_ARGS__)

DT_TEST(cli_generate, a_seed_gives_one_text_and_another_seed_another)
{
    char model[DT_TEST_PATH_BYTES];
    command_result a, b, c, greedy;

    (void)model_path(model);
    a = GENERATE(model, "--dtype", "f32", "--seed", "5", "--top-p", "0.9", "--temperature", "1.2");
    b = GENERATE(model, "--dtype", "f32", "--seed", "5", "--top-p", "0.9", "--temperature", "1.2",
                 "--mesh", "tp=3");
    c = GENERATE(model, "--dtype", "f32", "--seed", "6", "--top-p", "0.9", "--temperature", "1.2");
    greedy = GENERATE(model, "--dtype", "f32", "--greedy");
    COMMAND_ASSERT_CODE(a, 0);
    COMMAND_ASSERT_CODE(greedy, 0);
    DT_ASSERT_EQ_STR(b.out, a.out);
    DT_ASSERT(strcmp(c.out, a.out) != 0 && strcmp(greedy.out, a.out) != 0);
    command_free(&a);
    command_free(&b);
    command_free(&c);
    command_free(&greedy);
}

/* Beams of two prompts: each one's best first. */
DT_TEST(cli_generate, several_texts_come_together)
{
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    json_t *result, *texts;
    command_result r;

    (void)model_path(model);
    (void)dt_test_temp_dir(folder);
    (void)snprintf(file, sizeof file, "%s/p", folder);
    dt_test_write_file(folder, "p", "ROMEO:\n\nJULIET: What\n", 21);
    r = COMMAND("generate", "-q", "-m", model, "--prompts-file", file, "-n", "8", "--num-beams",
                "3", "--num-return-sequences", "2", "--json", "--mesh", "tp=2");
    COMMAND_ASSERT_CODE(r, 0);
    result = json_loads(r.out, 0, NULL);
    texts = json_object_get(result, "texts");
    DT_ASSERT_EQ_INT(json_array_size(texts), 4);
    for (size_t i = 0; i < 4; i += 2) {
        const json_t *best = json_array_get(texts, i), *next = json_array_get(texts, i + 1);
        DT_ASSERT_EQ_INT(json_integer_value(json_object_get(best, "prompt")), i / 2);
        DT_ASSERT(json_number_value(json_object_get(best, "score")) >=
                  json_number_value(json_object_get(next, "score")));
        DT_ASSERT_EQ_STR(json_string_value(json_object_get(best, "stop")), "length");
        DT_ASSERT_EQ_INT(json_array_size(json_object_get(best, "tokens")), 8);
    }
    json_decref(result);
    command_free(&r);
    r = COMMAND("generate", "-q", "-m", model, "--prompts-file", file, "-n", "8");
    COMMAND_ASSERT_CODE(r, 0);
    COMMAND_ASSERT_HAS(r.out, "\n---\nJULIET: What");
    command_free(&r);
    dt_test_remove_dir(folder);
}

DT_TEST(cli_generate, a_string_ends_the_text)
{
    char model[DT_TEST_PATH_BYTES];
    command_result whole, r;
    const char *found;

    (void)model_path(model);
    whole = GENERATE(model, "--greedy");
    r = GENERATE(model, "--greedy", "--stop", "never said", "--stop", "e");
    COMMAND_ASSERT_CODE(r, 0);
    found = strchr(whole.out + strlen("ROMEO:"), 'e');
    DT_ASSERT(found != NULL);
    DT_ASSERT(strlen(r.out) >= (size_t)(found - whole.out) + 1);
    DT_ASSERT(strlen(r.out) < strlen(whole.out));
    DT_ASSERT(strncmp(r.out, whole.out, strlen(r.out) - 1) == 0);
    command_free(&r);
    r = GENERATE(model, "--greedy", "--stop", "e", "--json");
    COMMAND_ASSERT_HAS(r.out, "\"stop\":\"string\"");
    command_free(&r);
    command_free(&whole);
}

DT_TEST(cli_generate, tokens_and_text_are_turned_into_each_other)
{
    char model[DT_TEST_PATH_BYTES], ids[256];
    command_result r;

    (void)model_path(model);
    r = COMMAND("tokenize", "-m", model, "-p", "ROMEO: O, speak again");
    COMMAND_ASSERT_CODE(r, 0);
    (void)snprintf(ids, sizeof ids, "%.*s", (int)strcspn(r.out, "\n"), r.out);
    command_free(&r);
    r = COMMAND("detokenize", "-m", model, "-t", ids);
    COMMAND_ASSERT_CODE(r, 0);
    DT_ASSERT_EQ_STR(r.out, "ROMEO: O, speak again\n");
    command_free(&r);
    r = COMMAND("detokenize", "-m", model, "-t", ids, "--keep-special", "--json");
    COMMAND_ASSERT_HAS(r.out, "{\"text\":\"<|begin_of_text|>ROMEO: O, speak again\"}");
    command_free(&r);
    r = COMMAND("tokenize", "-m", model, "-p", "<|begin_of_text|>", "--no-special", "--json");
    DT_ASSERT(strstr(r.out, "[0]") == NULL && strstr(r.out, "{\"tokens\":[") == r.out);
    command_free(&r);
}

DT_TEST(cli_generate, wishes_that_make_no_sense_are_named)
{
    static const char *const wrong[][4] = {
        { "--greedy", "--top-k", "3", "--greedy takes the best token always" },
        { "--top-p", "1.5", NULL, "top_p is 1.5" },
        { "--temperature", "0", NULL, "temperature is 0" },
        { "--temperature", "hot", NULL, "is not a number" },
        { "--seed", "-1", NULL, "--seed" },
        { "--bad-words-ids", "1,,2", NULL, "--bad-words-ids" },
        { "--suppress-ids", "1;2", NULL, "one list of ids is possible" },
        { "--suppress-ids", "99999", NULL, "suppress_tokens: token 99999" },
        { "--early-stopping", "soon", NULL, "choose false, true or never" },
        { "--num-return-sequences", "2", "--greedy", "set do_sample or num_beams" },
        { "--prompts-file", "x", NULL, "more than one prompt" },
        { "--top-kk", "1", NULL, "did you mean --top-k?" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)model_path(model);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        command_result r = GENERATE(model, wrong[i][0], wrong[i][1], wrong[i][2]);
        COMMAND_ASSERT_CODE(r, 2);
        COMMAND_ASSERT_HAS(r.err, wrong[i][3]);
        DT_ASSERT_EQ_STR(r.out, "");
        command_free(&r);
    }
}
