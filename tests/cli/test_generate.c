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
    COMMAND_ENDS(0, a);
    COMMAND_ENDS(0, greedy);
    DT_ASSERT_EQ_STR(b.out, a.out);
    DT_ASSERT(strcmp(c.out, a.out) != 0 && strcmp(greedy.out, a.out) != 0);
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
    r = COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", model, "--prompts-file", file, "-n", "8",
                                "--num-beams", "3", "--num-return-sequences", "2", "--json",
                                "--mesh", "tp=2"));
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
    COMMAND_ENDS(0, COMMAND("generate", "-q", "-m", model, "--prompts-file", file, "-n", "8"),
                 "\n---\nJULIET: What");
}

DT_TEST(cli_generate, a_string_ends_the_text)
{
    char model[DT_TEST_PATH_BYTES];
    command_result whole, r;
    const char *found;

    (void)model_path(model);
    whole = GENERATE(model, "--greedy");
    r = COMMAND_ENDS(0, GENERATE(model, "--greedy", "--stop", "never said", "--stop", "e"));
    found = strchr(whole.out + strlen("ROMEO:"), 'e');
    DT_ASSERT(found != NULL);
    DT_ASSERT(strlen(r.out) >= (size_t)(found - whole.out) + 1);
    DT_ASSERT(strlen(r.out) < strlen(whole.out));
    DT_ASSERT(strncmp(r.out, whole.out, strlen(r.out) - 1) == 0);
    r = GENERATE(model, "--greedy", "--stop", "e", "--json");
    COMMAND_ASSERT_HAS(r.out, "\"stop\":\"string\"");
}

DT_TEST(cli_generate, tokens_and_text_are_turned_into_each_other)
{
    char model[DT_TEST_PATH_BYTES], ids[256];
    command_result r;

    (void)model_path(model);
    r = COMMAND_ENDS(0, COMMAND("tokenize", "-m", model, "-p", "ROMEO: O, speak again"));
    (void)snprintf(ids, sizeof ids, "%.*s", (int)strcspn(r.out, "\n"), r.out);
    r = COMMAND_ENDS(0, COMMAND("detokenize", "-m", model, "-t", ids));
    DT_ASSERT_EQ_STR(r.out, "ROMEO: O, speak again\n");
    r = COMMAND("detokenize", "-m", model, "-t", ids, "--keep-special", "--json");
    COMMAND_ASSERT_HAS(r.out, "{\"text\":\"<|begin_of_text|>ROMEO: O, speak again\"}");
    r = COMMAND("tokenize", "-m", model, "-p", "<|begin_of_text|>", "--no-special", "--json");
    DT_ASSERT(strstr(r.out, "[0]") == NULL && strstr(r.out, "{\"tokens\":[") == r.out);
}

/* Of a file "\r\n" is the end of a line; a "\r" elsewhere is a character as any other. */
DT_TEST(cli_generate, carriage_returns_within_lines_stay)
{
    static const char text[] = "RO\rMEO:\r\n\r\nO\r\n", plain[] = "RO\rMEO:\n\nO", end[] = "O\r";
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 8];
    command_result a, b;

    (void)model_path(model);
    (void)snprintf(file, sizeof file, "%s/p", dt_test_temp_dir(folder));
    for (int i = 0; i < 2; i++) {
        dt_test_write_file(folder, "p", i ? end : text, i ? sizeof end - 1 : sizeof text - 1);
        a = COMMAND("tokenize", "-m", model, "-f", file);
        b = COMMAND("tokenize", "-m", model, "-p", i ? end : plain);
        COMMAND_ENDS(0, a);
        DT_ASSERT_EQ_STR(a.out, b.out);
    }
}

#define RUN(...)  COMMAND("generate", "-q", "--json", "-m", model, __VA_ARGS__)
#define IDS(r, n) tokens_of((r), (n), __FILE__, __LINE__)

/* The generated tokens of a run with --json, [*n]; freed by the caller. */
static int64_t *tokens_of(command_result *r, size_t *n, const char *file, int line)
{
    json_t *result = json_loads(r->out, 0, NULL);
    const json_t *tokens = json_object_get(result, "tokens");
    int64_t *ids = calloc(json_array_size(tokens) + 1, sizeof *ids);

    if (r->code != 0 || result == NULL || ids == NULL) dt_test_fail(file, line, "%s", r->err);
    *n = json_array_size(tokens);
    for (size_t i = 0; ids != NULL && i < *n; i++)
        ids[i] = json_integer_value(json_array_get(tokens, i));
    json_decref(result);

    return ids;
}

DT_TEST(cli_generate, lengths_may_count_the_prompt)
{
    char model[DT_TEST_PATH_BYTES], first[16];
    command_result r;
    int64_t *ids;
    size_t n;

    (void)model_path(model);
    r = RUN("-t", "0,5,6", "--max-length", "11", "--greedy", "--ignore-eos");
    free(IDS(&r, &n));
    DT_ASSERT_EQ_INT(n, 8);
    r = RUN("-t", "0,5,6", "--max-length", "11", "--greedy");
    ids = IDS(&r, &n);
    (void)snprintf(first, sizeof first, "%lld", (long long)ids[0]);
    free(ids);
    r = RUN("-t", "0,5,6", "-n", "8", "--greedy", "--eos-ids", first);
    free(IDS(&r, &n));
    DT_ASSERT_EQ_INT(n, 1); /* the best token ends the text, unless it may not yet: */
    r = RUN("-t", "0,5,6", "-n", "8", "--greedy", "--eos-ids", first, "--min-length", "7");
    free(IDS(&r, &n));
    DT_ASSERT(n >= 5); /* tokens 4 to 7 are no end */
    COMMAND_ENDS(2, RUN("-t", "0,5,6", "--max-length", "3"),
                 "--max-length 3: it counts the prompt, which has 3 tokens");
    COMMAND_ENDS(2, RUN("-t", "0,5,6", "--min-length", "5", "--min-new-tokens", "2"),
                 "--min-length 5 and --min-new-tokens 2 both say");
}

DT_TEST(cli_generate, tokens_are_forced_and_suppressed)
{
    char model[DT_TEST_PATH_BYTES], best[16];
    command_result r;
    int64_t *ids, *cut, was;
    size_t n;

    (void)model_path(model);
    r = RUN("-t", "0", "-n", "4", "--greedy", "--forced-bos-id", "42", "--forced-eos-ids", "7",
            "--mesh", "tp=2");
    ids = IDS(&r, &n);
    DT_ASSERT_EQ_INT(n, 4);
    DT_ASSERT_EQ_INT(ids[0], 42);
    DT_ASSERT_EQ_INT(ids[3], 7);
    free(ids);
    r = RUN("-t", "0,5,6", "-n", "1", "--greedy");
    ids = IDS(&r, &n);
    was = ids[0];
    free(ids);
    (void)snprintf(best, sizeof best, "%lld", (long long)was);
    r = RUN("-t", "0,5,6", "-n", "1", "--greedy", "--begin-suppress-ids", best);
    ids = IDS(&r, &n);
    DT_ASSERT(ids[0] != was);
    free(ids);
    /* No token is likelier than 0.999, so the best one alone is left: that is greedy. */
    r = RUN("-t", "0,5,6", "-n", "1", "--seed", "3", "--temperature", "5", "--epsilon-cutoff",
            "0.999", "--renormalize-logits", "--remove-invalid-values");
    ids = IDS(&r, &n);
    DT_ASSERT_EQ_INT(ids[0], was);
    free(ids);
    r = RUN("-t", "0,5,6", "-n", "24", "--seed", "3", "--temperature", "2");
    ids = IDS(&r, &n);
    r = RUN("-t", "0,5,6", "-n", "24", "--seed", "3", "--temperature", "2", "--eta-cutoff", "0.3");
    cut = IDS(&r, &n);
    DT_ASSERT(memcmp(ids, cut, n * sizeof *ids) != 0); /* rare tokens were among the first ones */
    free(cut);
    free(ids);
}

DT_TEST(cli_generate, wishes_that_make_no_sense_are_named)
{
    static const char *const wrong[][4] = {
        { "--greedy", "--top-k", "3", "--greedy takes the best token always" },
        { "--top-p", "1.5", NULL, "--top-p is 1.5" },
        { "--max-length", "50", NULL, "--max-length 50 and --max-new-tokens 24 both say" },
        { "--forced-bos-id", "99999", NULL, "--forced-bos-id: token 99999" },
        { "--forced-eos-ids", "99999", NULL, "--forced-eos-ids: token 99999" },
        { "--begin-suppress-ids", "1,x", NULL, "--begin-suppress-ids" },
        { "--eta-cutoff", "1", NULL, "--eta-cutoff is 1" },
        { "--greedy", "--epsilon-cutoff", "0.1", "--greedy takes the best token always" },
        { "--temperature", "0", NULL, "--temperature 0: must be above 0; --greedy" },
        { "--temperature", "1e-300", NULL,
          "less than 1e-30 overflow; --greedy always takes the best token" },
        { "--temperature", "hot", NULL, "is not a number" },
        { "--temperature", "0x1", NULL, "--temperature: \"0x1\" is not a number" },
        { "--length-penalty", "inf", NULL, "--length-penalty: \"inf\" is not a number" },
        { "--repetition-penalty", "1e999", NULL,
          "--repetition-penalty: \"1e999\" is not a number" },
        { "--eos-ids", "1,99999", NULL, "--eos-ids: token 99999 is outside the vocabulary" },
        { "--seed", "-1", NULL, "--seed" },
        { "--bad-words-ids", "1,,2", NULL, "write 5,6;7" },
        { "--suppress-ids", "1;2", NULL, "one list of ids is possible" },
        { "--suppress-ids", "99999", NULL, "--suppress-ids: token 99999" },
        { "--early-stopping", "soon", NULL, "choose false, true or never" },
        { "--num-return-sequences", "2", "--greedy", "add --sample or --num-beams" },
        { "--num-beams", "2", "--num-return-sequences=3",
          "--num-return-sequences is 3, more than num_beams, 2" },
        { "--prompts-file", "x", NULL, "more than one prompt" },
        { "--top-kk", "1", NULL, "did you mean --top-k?" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)model_path(model);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        command_result r =
            COMMAND_ENDS(2, GENERATE(model, wrong[i][0], wrong[i][1], wrong[i][2]), wrong[i][3]);
        DT_ASSERT_EQ_STR(r.out, "");
    }
}

/* Weights may take minutes to read. */
DT_TEST(cli_generate, wishes_are_judged_before_weights_are_read)
{
    static const char *const wrong[][2] = {
        { "--top-p", "1.5" },          { "--num-beams", "0" },
        { "--suppress-ids", "99999" }, { "--num-return-sequences", "3" },
        { "--plan", "bult-in" },
    };
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "examples/checkpoint");
    for (size_t i = 0; i < DT_COUNT(wrong); i++) {
        command_result r = COMMAND_ENDS(
            2, COMMAND("generate", "-m", model, "-t", "1", "-n", "2", wrong[i][0], wrong[i][1]));
        DT_ASSERT(strncmp(r.err, "dtensor: ", 9) == 0);
        DT_ASSERT(strstr(r.err, "parameters") == NULL);
    }
}

/* By the first rank, for all. */
DT_TEST(cli_generate, a_rule_that_matches_nothing_is_warned_of_once)
{
    char model[DT_TEST_PATH_BYTES], folder[DT_TEST_PATH_BYTES], plan[DT_TEST_PATH_BYTES + 16];
    const char *said;
    command_result r;
    FILE *f;

    (void)dt_test_source_path(model, "examples/checkpoint");
    (void)dt_test_temp_dir(folder);
    (void)snprintf(plan, sizeof plan, "%s/plan.json", folder);
    f = fopen(plan, "w");
    DT_ASSERT(f != NULL && fputs("{\"strict\": false, \"x.y\": \"colwise\"}", f) >= 0);
    DT_ASSERT(fclose(f) == 0);
    r = COMMAND_ENDS(0, COMMAND("generate", "-m", model, "-t", "1", "-n", "1", "--mesh", "tp=3",
                                "--plan", plan));
    said = strstr(r.err, "matches no layer");
    DT_ASSERT(said != NULL && strstr(said + 1, "matches no layer") == NULL);
}

DT_TEST(cli_generate, a_prompt_of_a_file_is_named_by_its_line)
{
    char folder[DT_TEST_PATH_BYTES], model[DT_TEST_PATH_BYTES], file[DT_TEST_PATH_BYTES + 16];
    char text[4096] = "One\n\nTwo\n";

    (void)dt_test_temp_dir(folder);
    (void)dt_test_source_path(model, "examples/checkpoint"); /* 512 positions */
    for (size_t at = strlen(text); at + 3 < sizeof text; at += 2) memcpy(text + at, "q ", 3);
    dt_test_write_file(folder, "prompts", text, strlen(text));
    (void)snprintf(file, sizeof file, "%s/prompts", folder);
    COMMAND_ENDS(2, COMMAND("generate", "-q", "-m", model, "--prompts-file", file, "-n", "2"),
                 "prompts line 4: ", "the model's context is 512");
}

DT_TEST(cli_generate, more_processes_than_there_can_be_are_counted)
{
    char model[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(model, "examples/checkpoint");
    COMMAND_ENDS(
        2,
        COMMAND_ENV("WORLD_SIZE=2147483647", "generate", "-m", model, "--mesh", "tp=2", "-p", "x"),
        "has 2 ranks, but 2147483647 processes were started");
}
