/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates against tests/golden/chat, which Jinja made as Transformers sets it up; what is
 * refused, and how; hostile templates. */
#include <dtensor/chat.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/support/dt_test.h"

static json_t *read_cases(void)
{
    char path[DT_TEST_PATH_BYTES];
    json_error_t e;
    json_t *cases =
        json_load_file(dt_test_source_path(path, "tests/golden/chat/cases.json"), 0, &e);

    DT_ASSERT(cases != NULL);
    DT_ASSERT(setenv("TZ", "UTC", 1) == 0);
    tzset();
    return cases;
}

/* Renders with these variables; an error is DT_OK where `want` is null. */
static void check(const char *name, const json_t *source, const json_t *variables, int64_t now,
                  const json_t *want)
{
    dt_chat_options options = DT_CHAT_OPTIONS_INIT;
    char *json = json_dumps(variables, 0), *text = NULL;
    DT_HELD(chat) *chat = NULL;
    dt_status st;
    size_t n = 0;

    options.variables = json;
    options.now = now;
    st = dt_chat_create(name, json_string_value(source), json_string_length(source), &chat);
    if (st == DT_OK) st = dt_chat_render_json(chat, &options, &text, &n);
    if (json_is_null(want)) {
        if (st == DT_OK)
            dt_test_fail(__FILE__, __LINE__, "%s: not refused: %s", name,
                         json_string_value(source));
        DT_ASSERT(strstr(dt_last_error()->message, "line ") != NULL);
        DT_ASSERT(text == NULL);
    } else {
        if (st != DT_OK)
            dt_test_fail(__FILE__, __LINE__, "%s: %s: %.200s", name, dt_last_error()->message,
                         json_string_value(source));
        DT_ASSERT_EQ_STR(text, json_string_value(want));
        DT_ASSERT_EQ_INT(n, json_string_length(want));
    }
    dt_chat_free(text);
    free(json);
}

DT_TEST(chat, families_render_as_jinja_does)
{
    json_t *all = read_cases(), *row;
    const int64_t now = json_integer_value(json_object_get(all, "now"));
    size_t i, refused = 0;

    json_array_foreach(json_object_get(all, "cases"), i, row)
    {
        const char *name = json_string_value(json_array_get(row, 0));
        const size_t s = (size_t)json_integer_value(json_array_get(row, 1));
        const size_t c = (size_t)json_integer_value(json_array_get(row, 2));
        json_t *variables = json_copy(json_object_get(all, "tokens"));
        char label[64];

        (void)json_object_update(variables, json_array_get(json_object_get(all, "settings"), s));
        (void)json_object_set(variables, "messages",
                              json_array_get(json_object_get(all, "conversations"), c));
        (void)snprintf(label, sizeof label, "%s, settings %zu, conversation %zu", name, s, c);
        check(label, json_object_get(json_object_get(all, "templates"), name), variables, now,
              json_array_get(row, 3));
        refused += json_is_null(json_array_get(row, 3));
        json_decref(variables);
    }
    DT_ASSERT(i >= 300 && refused > 30 && refused < i / 2);
    json_decref(all);
}

DT_TEST(chat, constructs_render_as_jinja_does)
{
    json_t *all = read_cases(), *row;
    size_t i;

    json_array_foreach(json_object_get(all, "snippets"), i, row)
    {
        json_t *variables = json_copy(json_object_get(all, "variables"));

        (void)json_object_set_new(variables, "messages", json_array());
        check("snippet", json_array_get(row, 0), variables,
              json_integer_value(json_object_get(all, "now")), json_array_get(row, 1));
        json_decref(variables);
    }
    DT_ASSERT(i >= 60);
    json_decref(all);
}

static dt_status render(const char *source, const dt_chat_message *messages, size_t n_messages,
                        const char *variables, char **text)
{
    dt_chat_options options = DT_CHAT_OPTIONS_INIT;
    dt_chat *chat;
    dt_status st = dt_chat_create("t", source, strlen(source), &chat);
    size_t n;

    *text = NULL;
    options.variables = variables;
    if (st == DT_OK) st = dt_chat_render(chat, messages, n_messages, &options, text, &n);
    dt_chat_release(&chat);
    return st;
}

DT_TEST(chat, messages_and_variables)
{
    const dt_chat_message two[] = { { .role = "user", .content = "q" }, { .role = "assistant" } };
    const char *source = "{% for m in messages %}{{ m.role }}:{{ m.content }}:"
                         "{{ 'content' in m }};{% endfor %}{{ x }}{{ add_generation_prompt }}";
    char *text;

    DT_ASSERT_OK(render(source, two, 2, "{\"x\": 3}", &text));
    DT_ASSERT_EQ_STR(text, "user:q:True;assistant::False;3True");
    dt_chat_free(text);
    DT_ASSERT_OK(render(source, NULL, 0, NULL, &text));
    DT_ASSERT_EQ_STR(text, "True");
    dt_chat_free(text);
    DT_ASSERT_STATUS(render(source, two, 2, "[1]", &text), DT_ERR_FORMAT, "variables");
    DT_ASSERT_STATUS(render(source, two, 2, "{", &text), DT_ERR_FORMAT, "variables");
    DT_ASSERT_STATUS(render(source, &(dt_chat_message){ .content = "x" }, 1, NULL, &text),
                     DT_ERR_ARG, "message 0 has no role");
    DT_ASSERT_STATUS(
        render(source, &(dt_chat_message){ .role = "user", .content = "\xff" }, 1, NULL, &text),
        DT_ERR_ARG, "not UTF-8");
}

/* Text of a model may hold any byte. */
DT_TEST(chat, a_content_may_hold_zero_bytes)
{
    static const char content[] = "a\0b", want[] = "<a\0b>3";
    const dt_chat_message one = { "assistant", content, sizeof content - 1 };
    dt_chat_options options = DT_CHAT_OPTIONS_INIT;
    const char *source = "<{{ messages[0].content }}>{{ messages[0].content | length }}";
    DT_HELD(chat) *chat = NULL;
    char *text;
    size_t n;

    DT_ASSERT_OK(dt_chat_create("t", source, strlen(source), &chat));
    DT_ASSERT_OK(dt_chat_render(chat, &one, 1, &options, &text, &n));
    DT_ASSERT_EQ_INT(n, sizeof want - 1);
    DT_ASSERT(memcmp(text, want, n) == 0);
    dt_chat_free(text);
}

DT_TEST(chat, range_says_what_is_wrong_with_an_argument)
{
    char *text;

    DT_ASSERT_STATUS(render("{{ range('a') }}", NULL, 0, NULL, &text), DT_ERR_FORMAT,
                     "argument 1 is a string, must be an integer");
    DT_ASSERT_STATUS(render("{{ range(1, 99999999999) }}", NULL, 0, NULL, &text), DT_ERR_FORMAT,
                     "argument 2 is 99999999999, must be between");
    DT_ASSERT_STATUS(render("{{ range(n=1) }}", NULL, 0, NULL, &text), DT_ERR_FORMAT,
                     "no argument of the name \"n\"");
}

DT_TEST(chat, refusals_name_line_and_construct)
{
    static const struct {
        const char *source;
        dt_status code;
        const char *message;
    } rows[] = {
        { "a\n\n{% include 'x' %}", DT_ERR_UNSUPPORTED, "line 3: the statement {% include" },
        { "{% macro f() %}{{ varargs }}{% endmacro %}", DT_ERR_UNSUPPORTED, "varargs" },
        { "{% macro f() %}{{ messages }}{% endmacro %}{{ f() }}\n{% set messages = 1 %}",
          DT_ERR_UNSUPPORTED,
          "line 1: a loop, block or macro reads the variable \"messages\" before" },
        { "{% set n = namespace() %}{% for x in [1] %}{% macro f() %}{{ x }}{% endmacro %}"
          "{% set n.f = f %}{% endfor %}{% set f = n['f'] %}\n{{ f() }}",
          DT_ERR_UNSUPPORTED, "line 2: f() is called outside of the loop" },
        { "{% for x in [1] %}\n{{ messages }}{% endfor %}{% set messages = 1 %}",
          DT_ERR_UNSUPPORTED, "line 2: a loop, block or macro reads the variable \"messages\"" },
        { "{% filter length %}{% endfilter %}", DT_ERR_FORMAT, "give an integer instead" },
        { "{{ 'a' + 'b' | safe }}", DT_ERR_UNSUPPORTED, "the operator + of what is |safe" },
        { "{{ ('b' | safe).strip() }}", DT_ERR_UNSUPPORTED, "strip of what is |safe" },
        { "{% macro f(x) %}{% endmacro %}{{ f(y=1) }}", DT_ERR_FORMAT,
          "f() does not take argument 1, y" },
        { "{% raw %}{{ x }}", DT_ERR_FORMAT, "{% endraw %} is missing" },
        { "\n{{ 'x' | urlize }}", DT_ERR_UNSUPPORTED, "line 2: the filter |urlize" },
        { "{{ 1 is prime }}", DT_ERR_UNSUPPORTED, "the test \"is prime\"" },
        { "{{ 'x'.zfill(3) }}", DT_ERR_UNSUPPORTED, ".zfill()" },
        { "{{ '\xc3\xa9' | upper }}", DT_ERR_UNSUPPORTED, "outside ASCII" },
        { "{{ 2 ** 3 }}", DT_ERR_UNSUPPORTED, "**" },
        { "{{ (1, 2) }}", DT_ERR_UNSUPPORTED, "printing what is no list" },
        { "{{ cycler(1) }}", DT_ERR_UNSUPPORTED, "no function cycler()" },
        { "{{ raise_exception('Roles must alternate') }}", DT_ERR_ARG, "Roles must alternate" },
        { "{{ x.y }}", DT_ERR_FORMAT, "'x' is undefined" },
        { "\n\n{{ 'open }}", DT_ERR_FORMAT, "line 3: a string does not end" },
        { "{% if 1 %}x", DT_ERR_FORMAT, "{% endif %} must stand here" },
        { "{{ 9223372036854775807 + 1 }}", DT_ERR_UNSUPPORTED, "64 bits" },
    };
    char *text;

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_STATUS(render(rows[i].source, NULL, 0, NULL, &text), rows[i].code,
                         rows[i].message);
}

/* Programs that would take for ever, or all of memory, or the stack. */
DT_TEST(chat, hostile_templates_end)
{
    static const char *const rows[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set n = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}"
        "{% endfor %}",
        "{% set n = namespace(s=[1]) %}{% for i in range(9999) %}{% set n.s = [n.s, n.s] %}"
        "{% endfor %}{{ n.s | tojson }}",
        "{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = [n.s, n.s] %}"
        "{% endfor %}{{ n.s == n.s + [] or n.s == [n.s[0], n.s[1]] }}",
        "{% for i in range(100000) %}{% for i in range(1000) %}{{ 'xxxxxxxxxxxxxxxxxxxxxxxx' }}"
        "{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% macro f(n) %}{% if n > 0 %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
        "{{ f(60) }}",
        "{% macro f() %}{{ caller() }}{% endmacro %}{% macro g() %}{% call f() %}{{ g() }}"
        "{% endcall %}{% endmacro %}{{ g() }}",
    };
    char *text, *deep = malloc(300000);

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        DT_ASSERT_STATUS(render(rows[i], NULL, 0, NULL, &text), DT_ERR_UNSUPPORTED, "line 1");
    for (const char *c = "([-+"; *c != '\0'; c++) {
        memcpy(deep, "{{ ", 3);
        memset(deep + 3, *c, 100000);
        memset(deep + 100003, *c == '(' ? ')' : *c == '[' ? ']' : '1', 100000);
        memcpy(deep + 200003, " }}", 4);
        DT_ASSERT_STATUS(render(deep, NULL, 0, NULL, &text), DT_ERR_UNSUPPORTED,
                         *c == '(' || *c == '[' ? "deeper" : NULL);
    }
    memcpy(deep, "{{ 1", 4);
    for (size_t i = 0; i < 60000; i++) memcpy(deep + 4 + 4 * i, " + 1", 4);
    memcpy(deep + 4 + 4 * (size_t)60000, " }}", 4);
    DT_ASSERT_STATUS(render(deep, NULL, 0, NULL, &text), DT_ERR_UNSUPPORTED, "deeper");
    deep[0] = '\0';
    for (size_t i = 0; i < 20000; i++) memcpy(deep + 10 * i, "{% if 1 %}", 11);
    DT_ASSERT_STATUS(render(deep, NULL, 0, NULL, &text), DT_ERR_UNSUPPORTED, "deeper");
    free(deep);
}

static void expect_folder(const char *folder, const char *want)
{
    const dt_chat_message one = { .role = "user", .content = "u" };
    DT_HELD(chat) *chat = NULL;
    char *text;
    size_t n;

    DT_ASSERT_OK(dt_chat_open(folder, &chat));
    DT_ASSERT_OK(dt_chat_render(chat, &one, 1, NULL, &text, &n));
    DT_ASSERT_EQ_STR(text, want);
    dt_chat_free(text);
}

static void write_text(const char *folder, const char *name, const char *text)
{
    dt_test_write_file(folder, name, text, strlen(text));
}

DT_TEST(chat, a_folder_says_its_template_and_tokens)
{
    char folder[DT_TEST_PATH_BYTES];
    dt_chat *chat;

    (void)dt_test_temp_dir(folder);
    DT_ASSERT_STATUS(dt_chat_open(folder, &chat), DT_ERR_IO, "has no chat template");
    DT_ASSERT(chat == NULL);
    write_text(folder, "tokenizer_config.json",
               "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": \"<e>\", \"chat_template\":"
               "[{\"name\": \"tool_use\", \"template\": \"no\"},"
               " {\"name\": \"default\", \"template\": \"{{bos_token}}1{{eos_token}}\"}]}");
    expect_folder(folder, "<b>1<e>");
    write_text(folder, "chat_template.jinja", "{{ bos_token }}{{ messages[0].content }}\n");
    expect_folder(folder, "<b>u");
    write_text(folder, "chat_template.jinja", "{% if %}");
    DT_ASSERT_STATUS(dt_chat_open(folder, &chat), DT_ERR_FORMAT, "chat_template.jinja: line 1");
}
