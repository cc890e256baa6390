/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens on their way to a client: what is shown is never taken back, stop strings cut the text
 * before them, and calls of tools are found in the forms that models write. */
#include <stdio.h>
#include <string.h>

#include "files/json.h"
#include "service/http/call_form.h"
#include "service/http/tools.h"
#include "tests/support/dt_test.h"

static dt_tokenizer *open_tokenizer(void)
{
    char path[DT_TEST_PATH_BYTES];
    dt_tokenizer *tok;

    DT_ASSERT_OK(dt_tokenizer_open(dt_test_source_path(path, "examples/checkpoint"), &tok));
    return tok;
}

/* Shows what is certain after each token; the text has to begin with all of it in the end. */
static void run(dt_tokenizer *tok, const char *text, const char *const *stops, int64_t n_stops,
                const char *want, const char *finish)
{
    dti_http_choice c = { .stops = stops, .n_stops = n_stops };
    char shown[256] = "";
    int32_t *ids;
    size_t n;

    DT_ASSERT_OK(dt_tokenizer_encode(tok, text, strlen(text), 0, &ids, &n));
    DT_ASSERT_OK(dti_choice_open(&c, tok));
    for (size_t i = 0; i <= n; i++) {
        bool goes_on = true;
        size_t certain;
        if (i < n && !c.stopped) DT_ASSERT_OK(dti_choice_take(&c, ids[i], &goes_on));
        if (i == n) DT_ASSERT_OK(dti_choice_end(&c, DT_END_LENGTH));
        certain = dti_choice_certain(&c);
        DT_ASSERT(certain >= c.shown && certain <= c.text.n);
        (void)strncat(shown, (c.text.bytes != NULL ? c.text.bytes : "") + c.shown,
                      certain - c.shown);
        c.shown = certain;
    }
    DT_ASSERT_EQ_STR(shown, want);
    DT_ASSERT_EQ_STR(c.finish, finish);
    dti_choice_free(&c);
    dt_tokenizer_free(ids);
}

DT_TEST(http_texts, stop_strings_cut_a_text_and_nothing_shown_is_taken_back)
{
    static const char *const none[] = { "zzz" }, *const word[] = { "lord" },
                             *const two[] = { "my lord and", "my lor" },
                             *const repeated[] = { "ababac", "x" },
                             *const umlaut[] = { "\xc3\xa4" };
    DT_HELD(tokenizer) *tok = open_tokenizer();

    run(tok, "Good my lord, stay.", none, 1, "Good my lord, stay.", "length");
    run(tok, "Good my lord, stay.", NULL, 0, "Good my lord, stay.", "length");
    run(tok, "Good my lord, stay.", word, 1, "Good my ", "stop");
    run(tok, "Good my lord, stay.", two, 2, "Good ", "stop");
    run(tok, "Good my lor", word, 1, "Good my lor", "length");
    run(tok, "abababac y", repeated, 2, "ab", "stop");
    run(tok, "abababa", repeated, 2, "abababa", "length");
    run(tok, "Good \xc3\xb6\xc3\xa4 x", umlaut, 1, "Good \xc3\xb6", "stop");
}

DT_TEST(http_texts, calls_of_tools_are_found_in_the_forms_that_models_write)
{
#define CALL(i, name, arguments)                                                              \
    "{\"index\":" #i ",\"id\":\"call_0_" #i                                                   \
    "\",\"type\":\"function\",\"function\":{\"name\":\"" name "\",\"arguments\":\"" arguments \
    "\"}}"
    static const struct {
        const char *text, *content, *calls;
        size_t begin; /* of what may be a call */
    } cases[] = {
        { "No call.", "No call.", "", 8 },
        { "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>", "",
          CALL(0, "f", "{\\\"a\\\": 1}"), 0 },
        { "Well. <tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":"
          "\"g\",\"arguments\":{\"b\":\"c\"}}</tool_call>",
          "Well.", CALL(0, "f", "{}") "," CALL(1, "g", "{\\\"b\\\": \\\"c\\\"}"), 6 },
        { "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "", CALL(0, "f", "{}"), 0 },
        { "{\"name\": \"f\", \"parameters\": {\"x\": [1, 2]}}", "",
          CALL(0, "f", "{\\\"x\\\": [1, 2]}"), 0 },
        { " {\"name\":\"f\",\"parameters\":{}}; {\"name\":\"g\",\"parameters\":{}}", "",
          CALL(0, "f", "{}") "," CALL(1, "g", "{}"), 0 },
        { "{\"name\": \"f\"}", "{\"name\": \"f\"}", "", 0 },
        { "{\"name\": \"f\", \"parameters\": {}} and more",
          "{\"name\": \"f\", \"parameters\": {}} and more", "", 0 },
        { "<tool_call>nothing</tool_call>", "<tool_call>nothing</tool_call>", "", 0 },
        { "<tool_call>{\"name\":\"f\",\"arguments\":{}}{</tool_call>",
          "<tool_call>{\"name\":\"f\",\"arguments\":{}}{</tool_call>", "", 0 },
        { "a < b <tool", "a < b <tool", "", 6 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        dti_http_choice c = { .tools = true, .ended = true, .finish = "stop" };
        const size_t n = strlen(cases[i].text), begin = dti_tools_begin(cases[i].text, n);
        if (begin != cases[i].begin)
            dt_test_fail(__FILE__, __LINE__, "\"%s\" may have calls from %zu on, not from %zu",
                         cases[i].text, begin, cases[i].begin);
        dti_buffer_add(&c.text, cases[i].text, n);
        DT_ASSERT_OK(dti_tools_take(&c));
        DT_ASSERT_EQ_STR(c.text.bytes, cases[i].content);
        DT_ASSERT_EQ_STR(c.calls.n > 0 ? c.calls.bytes : "", cases[i].calls);
        DT_ASSERT_EQ_STR(c.finish, cases[i].calls[0] != '\0' ? "tool_calls" : "stop");
        dti_choice_free(&c);
    }
}

/* The forms of templates as models have them. */
DT_TEST(http_texts, how_a_template_writes_calls_is_found_by_having_it_write_one)
{
    static const struct {
        const char *name, *before, *arguments;
    } rows[] = {
        { "qwen", "<think>\n\n</think>\n\n<tool_call>\n", "arguments" },
        { "qwen_functions", NULL, NULL }, /* of XML */
        { "llama_functions", "", "parameters" },
        { "gemma_functions", NULL, NULL },
        { "llama", NULL, NULL },
    };
    DT_ENDS(dti_json_free) dti_json_doc doc = { 0 };
    char path[DT_TEST_PATH_BYTES];
    dti_json all;

    DT_ASSERT_OK(
        dti_json_read(dt_test_source_path(path, "tests/golden/chat/cases.json"), 1 << 24, &doc));
    DT_ASSERT_OK(dti_json_object(&doc.root, "templates", &all));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        DT_HELD(chat) *chat = NULL;
        dti_call_form form;
        const char *source;
        DT_ASSERT_OK(dti_json_string(&all, rows[i].name, &source));
        DT_ASSERT_OK(dt_chat_create(rows[i].name, source, strlen(source), &chat));
        DT_ASSERT_EQ_INT(dti_call_form_find(chat, &form), rows[i].arguments != NULL);
        if (rows[i].arguments == NULL) continue;
        DT_ASSERT_EQ_STR(form.before, rows[i].before);
        DT_ASSERT_EQ_STR(form.arguments, rows[i].arguments);
    }
}
