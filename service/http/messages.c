/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations, from what clients send to what templates are written for: contents that are lists
 * of texts become one text, arguments of calls become objects. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "service/http/wish.h"

enum { MOST_MESSAGES = 16384, MOST_TOOLS = 128 };

static const char *const roles[] = { "system", "developer", "user", "assistant", "tool" };

/* What a template calls whoever a client calls so. */
static const char *role_of(const char *word)
{
    for (size_t i = 0; word != NULL && i < DT_COUNT(roles); i++)
        if (strcmp(word, roles[i]) == 0) return i == 1 ? roles[0] : roles[i];
    return NULL;
}

static bool has_only(const json_t *object, const char *const *names, size_t n)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)object, key, v)
    {
        bool known = false;
        for (size_t i = 0; i < n && !known; i++) known = strcmp(key, names[i]) == 0;
        if (!known) return false;
    }
    return true;
}

/* A text, or parts that are texts, with a newline between them. NULL: something else. */
static json_t *content_of(const json_t *v)
{
    char *text;
    size_t n = 0;
    json_t *out;

    if (json_is_string(v)) return json_deep_copy(v);
    if (!json_is_array(v) || json_array_size(v) == 0) return NULL;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *part = json_array_get(v, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (type == NULL || strcmp(type, "text") != 0 || json_object_size(part) != 2 ||
            !json_is_string(json_object_get(part, "text")))
            return NULL;
        n += json_string_length(json_object_get(part, "text")) + 1;
    }
    if (dti_alloc(n + 1, (void **)&text) != DT_OK) return NULL;
    n = 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *part = json_object_get(json_array_get(v, i), "text");
        if (i > 0) text[n++] = '\n';
        memcpy(text + n, json_string_value(part), json_string_length(part));
        n += json_string_length(part);
    }
    out = json_stringn(text, n);
    dti_free(text);
    return out;
}

/* A call that the model made before: its arguments are a text of JSON. */
static bool add_call(dti_wish *w, const json_t *call, json_t *calls)
{
    static const char *const names[] = { "id", "type", "function", "index" };
    static const char *const parts[] = { "name", "arguments" };
    const json_t *function = json_object_get(call, "function");
    const json_t *arguments = json_object_get(function, "arguments");
    json_t *copy, *object = NULL;

    if (!json_is_object(call) || !has_only(call, names, DT_COUNT(names)) ||
        !json_is_object(function) || !has_only(function, parts, DT_COUNT(parts)) ||
        !json_is_string(json_object_get(function, "name")))
        return dti_wish_refuse(w, "messages",
                               "a tool call is {id, type, function: {name, "
                               "arguments}}");
    if (json_is_string(arguments) && json_string_length(arguments) > 0)
        object = json_loadb(json_string_value(arguments), json_string_length(arguments),
                            JSON_REJECT_DUPLICATES, NULL);
    else if (json_is_object(arguments))
        object = json_deep_copy(arguments);
    else if (arguments == NULL || json_is_string(arguments))
        object = json_object();
    if (!json_is_object(object)) {
        json_decref(object);
        return dti_wish_refuse(w, "messages", "arguments of a tool call are no JSON object");
    }
    copy = json_deep_copy(call);
    (void)json_object_set_new(json_object_get(copy, "function"), "arguments", object);
    return json_array_append_new(calls, copy) == 0 || dti_wish_no_memory(w);
}

static bool add_calls(dti_wish *w, const json_t *said, json_t *message)
{
    json_t *calls = json_array();
    bool well = json_is_array(said);

    if (!well) (void)dti_wish_refuse(w, "messages", "tool_calls are no list");
    for (size_t i = 0; well && i < json_array_size(said); i++)
        well = add_call(w, json_array_get(said, i), calls);
    if (well && json_array_size(calls) > 0) (void)json_object_set(message, "tool_calls", calls);
    json_decref(calls);
    return well;
}

static bool add_message(dti_wish *w, const json_t *said, json_t *list, size_t i)
{
    static const char *const names[] = { "role",       "content",      "name",
                                         "tool_calls", "tool_call_id", "refusal" };
    const json_t *content = json_object_get(said, "content");
    const json_t *calls = json_object_get(said, "tool_calls");
    const char *role = role_of(json_string_value(json_object_get(said, "role")));
    const bool calls_given = calls != NULL && !json_is_null(calls);
    json_t *message, *text;

    if (!json_is_object(said) || role == NULL)
        return dti_wish_refuse(w, "messages",
                               "message %zu has no role that is system, developer, user, assistant "
                               "or tool",
                               i);
    if (!has_only(said, names, DT_COUNT(names)))
        return dti_wish_refuse(w, "messages", "message %zu has a field that is not known here", i);
    if (calls_given && strcmp(role, "assistant") != 0)
        return dti_wish_refuse(w, "messages", "message %zu: only the assistant calls tools", i);
    text = content == NULL || json_is_null(content) ? NULL : content_of(content);
    if (text == NULL && ((content != NULL && !json_is_null(content)) ||
                         (!calls_given && strcmp(role, "assistant") != 0)))
        return dti_wish_refuse(w, "messages",
                               "message %zu: content is a text, or a list of {\"type\":\"text\", "
                               "\"text\": ...}",
                               i);
    message = json_pack("{s:s}", "role", role);
    (void)json_object_set_new(message, "content", text != NULL ? text : json_string(""));
    for (size_t k = 2; k < 5; k += 2) {
        const json_t *v = json_object_get(said, names[k]);
        if (json_is_string(v)) (void)json_object_set_new(message, names[k], json_deep_copy(v));
    }
    if (json_array_append_new(list, message) != 0) return dti_wish_no_memory(w);
    return !calls_given || add_calls(w, calls, message);
}

static bool check_tools(dti_wish *w, const json_t *tools)
{
    if (!json_is_array(tools) || json_array_size(tools) == 0 || json_array_size(tools) > MOST_TOOLS)
        return dti_wish_refuse(w, "tools", "tools are a list of 1 to %d", MOST_TOOLS);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *f = json_object_get(tool, "function");
        const char *type = json_string_value(json_object_get(tool, "type"));
        const json_t *parameters = json_object_get(f, "parameters");
        if (type == NULL || strcmp(type, "function") != 0 || !json_is_object(f) ||
            !json_is_string(json_object_get(f, "name")) ||
            (parameters != NULL && !json_is_object(parameters)))
            return dti_wish_refuse(w, "tools",
                                   "tool %zu is not {\"type\":\"function\", \"function\": {name, "
                                   "description, parameters}}",
                                   i);
        if (!dti_wish_check_strict(w, "tools", f)) return false;
    }
    return true;
}

static bool force_tool(dti_wish *w, const json_t *tools)
{
    if (tools == NULL) return dti_wish_refuse(w, "tool_choice", "tool_choice: there are no tools");
    if (w->o.json_object || w->o.json_schema != NULL)
        return dti_wish_refuse(w, "response_format",
                               "response_format: the answer has to be a call of a tool");
    if (!w->add_generation_prompt)
        return dti_wish_refuse(w, "add_generation_prompt",
                               "add_generation_prompt is false: no turn begins in which a tool is "
                               "called");
    return dti_wish_force_tool(w, tools);
}

/* Nothing of a request takes the place of what the server says. */
static bool add_more(dti_wish *w, const json_t *more, json_t *variables)
{
    static const char *const taken[] = { "messages",  "tools",     "add_generation_prompt",
                                         "bos_token", "eos_token", "documents",
                                         "pad_token", "unk_token" };
    const char *key;
    json_t *v;

    if (!json_is_object(more))
        return dti_wish_refuse(w, "chat_template_kwargs", "chat_template_kwargs are no object");
    json_object_foreach((json_t *)(uintptr_t)more, key, v)
    {
        for (size_t i = 0; i < DT_COUNT(taken); i++)
            if (strcmp(key, taken[i]) == 0)
                return dti_wish_refuse(w, "chat_template_kwargs",
                                       "chat_template_kwargs may not say %s", key);
        (void)json_object_set(variables, key, v);
    }
    return true;
}

static bool keep_variables(dti_wish *w, const json_t *variables)
{
    char *text = json_dumps(variables, JSON_COMPACT), *copy = NULL;
    dt_status st = DT_ERR_MEMORY;

    if (text != NULL) st = dti_arena_strndup(&w->arena, text, strlen(text), &copy);
    free(text);
    w->variables = copy;
    return st == DT_OK || dti_wish_no_memory(w);
}

bool dti_wish_read_messages(dti_wish *w, const json_t *messages, const json_t *tools,
                            const json_t *more)
{
    json_t *variables = json_object(), *list = json_array();
    bool well = json_is_array(messages) && json_array_size(messages) > 0 &&
                json_array_size(messages) <= MOST_MESSAGES;

    if (!well)
        (void)dti_wish_refuse(w, "messages", "messages are a list of 1 to %d", MOST_MESSAGES);
    for (size_t i = 0; well && i < json_array_size(messages); i++)
        well = add_message(w, json_array_get(messages, i), list, i);
    if (well && tools != NULL) well = check_tools(w, tools);
    if (well && w->tool_choice == DTI_TOOLS_FORCED) well = force_tool(w, tools);
    w->has_tools = well && tools != NULL && w->tool_choice != DTI_TOOLS_NONE;
    if (well && w->has_tools) (void)json_object_set(variables, "tools", (json_t *)(uintptr_t)tools);
    if (well && more != NULL) well = add_more(w, more, variables);
    (void)json_object_set(variables, "messages", list);
    if (well) well = keep_variables(w, variables);
    json_decref(list);
    json_decref(variables);
    return well;
}
