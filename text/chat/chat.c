/* SPDX-License-Identifier: Apache-2.0
 *
 * Rendering a conversation: its turns become the variable "messages" of the template. */
#include <dtensor/chat.h>

#include <jansson.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "base/options.h"
#include "files/json.h"
#include "text/chat/chat_template.h"
#include "text/chat/jinja.h"

struct dt_chat {
    atomic_int refs;
    dti_jinja template;
    json_t *tokens; /* bos_token, ... by name */
};

dt_status dti_chat_create(const char *name, const char *source, size_t n, json_t *tokens,
                          dt_chat **out)
{
    dt_chat *chat;
    dt_status st;

    *out = NULL;
    DT_TRY(dti_new(sizeof *chat, &chat));
    atomic_init(&chat->refs, 1);
    st = dti_jinja_parse(name, source, n, &chat->template);
    if (st == DT_OK) {
        chat->tokens = json_incref(tokens);
        *out = chat;
    } else {
        dt_chat_release(&chat);
    }
    return st;
}

dt_status dt_chat_create(const char *name, const char *source, size_t n_bytes, dt_chat **out)
{
    json_t *tokens;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(name != NULL && source != NULL, DT_ERR_ARG, "name or source is NULL");
    tokens = json_object();
    DT_CHECK(tokens != NULL, DT_ERR_MEMORY, "no memory for a chat template");
    st = dti_chat_create(name, source, n_bytes, tokens, out);
    json_decref(tokens);
    return st;
}

dt_chat *dt_chat_retain(dt_chat *chat)
{
    if (chat != NULL) (void)atomic_fetch_add_explicit(&chat->refs, 1, memory_order_relaxed);
    return chat;
}

void dt_chat_release(dt_chat **chat)
{
    dt_chat *c = chat ? *chat : NULL;

    if (c == NULL) return;
    *chat = NULL;
    if (atomic_fetch_sub_explicit(&c->refs, 1, memory_order_acq_rel) != 1) return;
    dti_jinja_free(&c->template);
    json_decref(c->tokens);
    dti_free(c);
}

void dt_chat_free(char *text)
{
    dti_free(text);
}

/* --- variables -------------------------------------------------------------------------------- */

static dt_status check_utf8(const char *what, size_t i, const char *text, size_t n)
{
    const size_t valid = dti_utf8_valid(text, n);

    DT_CHECK(valid == n, DT_ERR_ARG, "%s of message %zu: byte %zu is not UTF-8", what, i, valid);
    return DT_OK;
}

static dt_status add_messages(const dt_chat_message *messages, size_t n, json_t *variables)
{
    json_t *list = json_array();

    DT_CHECK(list != NULL && json_object_set_new(variables, "messages", list) == 0, DT_ERR_MEMORY,
             "no memory for a conversation");
    for (size_t i = 0; i < n; i++) {
        const dt_chat_message *m = &messages[i];
        const size_t bytes = m->n_bytes > 0 || m->content == NULL ? m->n_bytes : strlen(m->content);
        json_t *one = json_object();

        DT_CHECK(json_array_append_new(list, one) == 0, DT_ERR_MEMORY,
                 "no memory for a conversation");
        DT_CHECK(m->role != NULL, DT_ERR_ARG, "message %zu has no role", i);
        DT_TRY(check_utf8("the role", i, m->role, strlen(m->role)));
        if (m->content != NULL) DT_TRY(check_utf8("the content", i, m->content, bytes));
        DT_CHECK(json_object_set_new(one, "role", json_string(m->role)) == 0 &&
                     (m->content == NULL ||
                      json_object_set_new(one, "content", json_stringn(m->content, bytes)) == 0),
                 DT_ERR_MEMORY, "no memory for a conversation");
    }
    return DT_OK;
}

/* What Transformers gives every template, the special tokens, and the caller's own. */
static dt_status add_variables(const dt_chat *chat, const dt_chat_options *o, json_t *variables)
{
    dti_json_doc own = { 0 };
    int failed = 0;

    failed |= json_object_update(variables, chat->tokens);
    failed |= json_object_set_new(variables, "tools", json_null());
    failed |= json_object_set_new(variables, "documents", json_null());
    failed |= json_object_set_new(variables, "add_generation_prompt",
                                  json_boolean(o->add_generation_prompt));
    if (o->variables != NULL) {
        DT_TRY(dti_json_parse("variables", o->variables, strlen(o->variables), &own));
        if (json_is_object(own.root.value))
            failed |= json_object_update(variables, own.root.value);
        else
            failed = -2;
        dti_json_free(&own);
    }
    DT_CHECK(failed != -2, DT_ERR_FORMAT, "variables must be a JSON object");
    DT_CHECK(failed == 0, DT_ERR_MEMORY, "no memory for the variables of a chat template");
    return DT_OK;
}

static dt_status render(const dt_chat *chat, const dt_chat_options *o, const json_t *variables,
                        char **text, size_t *n_bytes)
{
    const int64_t now = o->now != 0 ? o->now : (int64_t)time(NULL);
    dti_text out = { 0 };
    dt_status st = dti_jinja_render(&chat->template, variables, now, &out);

    if (st == DT_OK) st = dti_text_append(&out, "", 1);
    if (st != DT_OK) {
        dti_text_free(&out);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *text = out.data;
    *n_bytes = out.bytes - 1;
    return DT_OK;
}

static dt_status render_any(const dt_chat *chat, const dt_chat_message *messages, size_t n,
                            const dt_chat_options *options, char **text, size_t *n_bytes)
{
    json_t *variables = json_object();
    dt_status st = DT_OK;

    DT_CHECK_TO(done, st, variables != NULL, DT_ERR_MEMORY, "no memory for a conversation");
    if (messages != NULL) DT_TRY_TO(done, st, add_messages(messages, n, variables));
    DT_TRY_TO(done, st, add_variables(chat, options, variables));
    DT_CHECK_TO(done, st, json_is_array(json_object_get(variables, "messages")), DT_ERR_ARG,
                "variables have no list \"messages\"");
    DT_TRY_TO(done, st, render(chat, options, variables, text, n_bytes));
done:
    json_decref(variables);
    return st;
}

dt_status dt_chat_render(const dt_chat *chat, const dt_chat_message *messages, size_t n_messages,
                         const dt_chat_options *options, char **text, size_t *n_bytes)
{
    static const dt_chat_message none = { .role = NULL };
    dt_chat_options o = DT_CHAT_OPTIONS_INIT;

    DT_CHECK(text != NULL && n_bytes != NULL, DT_ERR_ARG, "text or n_bytes is NULL");
    *text = NULL;
    *n_bytes = 0;
    DT_CHECK(chat != NULL, DT_ERR_ARG, "chat is NULL");
    DT_CHECK(messages != NULL || n_messages == 0, DT_ERR_ARG, "messages is NULL");
    DT_TRY(dti_options_read("dt_chat_options", "start from DT_CHAT_OPTIONS_INIT", options, &o,
                            sizeof o));
    return render_any(chat, messages != NULL ? messages : &none, n_messages, &o, text, n_bytes);
}

dt_status dt_chat_render_json(const dt_chat *chat, const dt_chat_options *options, char **text,
                              size_t *n_bytes)
{
    dt_chat_options o = DT_CHAT_OPTIONS_INIT;

    DT_CHECK(text != NULL && n_bytes != NULL, DT_ERR_ARG, "text or n_bytes is NULL");
    *text = NULL;
    *n_bytes = 0;
    DT_CHECK(chat != NULL && options != NULL && options->variables != NULL, DT_ERR_ARG,
             "chat, options or variables is NULL");
    DT_TRY(dti_options_read("dt_chat_options", "start from DT_CHAT_OPTIONS_INIT", options, &o,
                            sizeof o));
    return render_any(chat, NULL, 0, &o, text, n_bytes);
}
