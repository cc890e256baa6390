/* SPDX-License-Identifier: Apache-2.0 */
#include "service/http/call_form.h"

#include <jansson.h>
#include <string.h>

#include "base/error.h"

#define NAME "get_weather"
#define ASKS "\"messages\":[{\"role\":\"user\",\"content\":\"And?\"}"
#define TOOLS                                                                                \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"" NAME                       \
    "\",\"description\":\"?\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":" \
    "{\"type\":\"string\",\"description\":\"?\"}},\"required\":[\"city\"]}}}]"

/* A conversation before its next turn, and with a call as that turn. */
static const char asked[] = "{" ASKS "]," TOOLS "}";
static const char answered[] =
    "{" ASKS ",{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"call_0_00000\","
    "\"type\":\"function\",\"function\":{\"name\":\"" NAME
    "\",\"arguments\":{\"city\":\"K\"}}}]}]," TOOLS "}";

/* NULL: the template cannot. */
static char *render(const dt_chat *chat, const char *variables, bool prompt, size_t *n)
{
    dt_chat_options o = DT_CHAT_OPTIONS_INIT;
    char *text;

    o.variables = variables;
    o.add_generation_prompt = prompt;
    return dt_chat_render_json(chat, &o, &text, n) == DT_OK ? text : NULL;
}

/* Nothing, blanks, an empty thought, the mark that calls are found by. */
static bool is_known(const char *before)
{
    static const char *const marks[] = { "<think>", "</think>", "<tool_call>" };
    const char *at = before + strspn(before, " \t\r\n");

    for (size_t i = 0; i < DT_COUNT(marks); i++) {
        if (strncmp(at, marks[i], strlen(marks[i])) == 0) at += strlen(marks[i]);
        at += strspn(at, " \t\r\n");
    }
    return *at == '\0';
}

/* The turn of a call: what comes before its object, and how that calls the arguments. */
static bool read_turn(const char *turn, dti_call_form *out)
{
    const char *object = strchr(turn, '{');
    const size_t n = object != NULL ? (size_t)(object - turn) : sizeof out->before;
    json_t *call = NULL;

    if (n >= sizeof out->before) return false;
    memcpy(out->before, turn, n);
    out->before[n] = '\0';
    call = json_loads(object, JSON_DISABLE_EOF_CHECK, NULL);
    if (json_object_get(call, "arguments") != NULL) out->arguments = "arguments";
    if (json_object_get(call, "parameters") != NULL) out->arguments = "parameters";
    if (!json_is_string(json_object_get(call, "name"))) out->arguments = NULL;
    json_decref(call);
    return out->arguments != NULL && is_known(out->before);
}

bool dti_call_form_find(const dt_chat *chat, dti_call_form *out)
{
    size_t n_before = 0, n_whole = 0;
    char *before, *whole;
    bool found;

    *out = (dti_call_form){ .arguments = NULL };
    if (chat == NULL) return false;
    before = render(chat, asked, true, &n_before);
    whole = render(chat, answered, false, &n_whole);
    found = before != NULL && whole != NULL && n_whole > n_before &&
            memcmp(before, whole, n_before) == 0 && read_turn(whole + n_before, out);
    if (!found) out->arguments = NULL;
    dt_chat_free(before);
    dt_chat_free(whole);
    return found;
}
