/* SPDX-License-Identifier: Apache-2.0 */
#include "service/http/tools.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static const char opens[] = "<tool_call>", closes[] = "</tool_call>";

static size_t blanks(const char *text, size_t n)
{
    size_t i = 0;

    while (i < n && strchr(" \t\r\n", text[i]) != NULL) i++;
    return i;
}

static const char *find(const char *text, size_t n, const char *word)
{
    const size_t k = strlen(word);

    for (size_t i = 0; i + k <= n; i++)
        if (memcmp(text + i, word, k) == 0) return text + i;
    return NULL;
}

size_t dti_tools_begin(const char *text, size_t n)
{
    const size_t first = blanks(text, n), k = strlen(opens);
    const char *at = find(text, n, opens);

    if (first == n || text[first] == '{') return 0; /* an object of Llama's */
    if (at != NULL) return (size_t)(at - text);
    for (size_t i = n >= k ? n - k + 1 : 0; i < n; i++)
        if (memcmp(text + i, opens, n - i) == 0) return i;
    return n;
}

static bool is_call(const json_t *v, const json_t **arguments)
{
    *arguments = json_object_get(v, "arguments");
    if (*arguments == NULL) *arguments = json_object_get(v, "parameters");
    return json_is_string(json_object_get(v, "name")) &&
           (json_is_object(*arguments) || json_is_string(*arguments));
}

/* One call as a client reads it; its id has to be its own within the answer. */
static void put_call(dti_http_choice *c, const json_t *v, const json_t *arguments)
{
    dti_buffer *b = &c->calls;
    char *text = json_is_string(arguments) ? NULL : json_dumps(arguments, 0);

    dti_buffer_print(b, "%s{\"index\":%d,\"id\":\"call_%lld_%d\",\"type\":\"function\",",
                     c->n_calls > 0 ? "," : "", c->n_calls, (long long)c->index, c->n_calls);
    dti_buffer_text(b, "\"function\":{\"name\":");
    dti_buffer_quote(b, json_string_value(json_object_get(v, "name")));
    dti_buffer_text(b, ",\"arguments\":");
    dti_buffer_quote(b, text != NULL                ? text
                        : json_is_string(arguments) ? json_string_value(arguments)
                                                    : "{}");
    dti_buffer_text(b, "}}");
    free(text);
    c->n_calls++;
}

/* Calls one behind the other, from `at` on, with blanks or semicolons between; false: not all of it
 * is such. */
static bool take_objects(dti_http_choice *c, const char *text, size_t n)
{
    size_t at = blanks(text, n);

    while (at < n) {
        const json_t *arguments;
        json_error_t error;
        json_t *v =
            json_loadb(text + at, n - at, JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &error);
        const bool call = v != NULL && is_call(v, &arguments);
        if (call) put_call(c, v, arguments);
        json_decref(v);
        if (!call || error.position <= 0) return false;
        at += (size_t)error.position;
        at += blanks(text + at, n - at);
        if (at < n && text[at] == ';') at++;
        at += blanks(text + at, n - at);
    }
    return c->n_calls > 0;
}

/* Each <tool_call> has a call; the end of the last one may be missing. */
static bool take_marked(dti_http_choice *c, const char *text, size_t n)
{
    const char *at = find(text, n, opens);

    while (at != NULL) {
        const char *begin = at + strlen(opens);
        const size_t left = n - (size_t)(begin - text);
        const char *end = find(begin, left, closes);
        if (!take_objects(c, begin, end != NULL ? (size_t)(end - begin) : left)) return false;
        if (end == NULL) break;
        at = find(end, n - (size_t)(end - text), opens);
    }
    return c->n_calls > 0;
}

dt_status dti_tools_take(dti_http_choice *c)
{
    const char *text = c->text.n > 0 ? c->text.bytes : "", *mark = find(text, c->text.n, opens);
    const size_t first = blanks(text, c->text.n);
    bool found = false;

    if (mark != NULL)
        found = take_marked(c, text, c->text.n);
    else if (first < c->text.n && text[first] == '{')
        found = take_objects(c, text, c->text.n);
    DT_TRY(c->calls.st);
    if (!found) {
        dti_buffer_free(&c->calls);
        c->n_calls = 0;
        return DT_OK;
    }
    if (strcmp(c->finish, "stop") == 0) c->finish = "tool_calls";
    first == c->text.n || mark == NULL ? dti_buffer_cut(&c->text, 0)
                                       : dti_buffer_cut(&c->text, (size_t)(mark - text));
    while (c->text.n > c->shown && strchr(" \t\r\n", c->text.bytes[c->text.n - 1]) != NULL)
        dti_buffer_cut(&c->text, c->text.n - 1);
    return DT_OK;
}
