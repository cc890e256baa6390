/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations as documents of which the answers are learned.
 *
 * An answer is what the template writes between the prompt that asks for it and the end of its
 * turn, so it is found by rendering the conversation up to it: with the prompt as generation would
 * write it, and with the answer. Tokens are those of the whole; one that a border cuts counts as
 * the answer's. */
#include <jansson.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "training/data/tokenize.h"

/* A conversation as the template writes it. */
typedef struct written {
    char *text;
    size_t bytes;
    int32_t *ids;
    size_t n;
} written;

static void release(written *w)
{
    dt_chat_free(w->text);
    dt_tokenizer_free(w->ids);
    *w = (written){ NULL, 0, NULL, 0 };
}

/* The first n messages of a conversation, and with `asks` what begins an answer. */
static dt_status write_turns(const dti_tokenizing *z, json_t *chat, size_t n, bool asks,
                             written *out)
{
    dt_chat_options options = DT_CHAT_OPTIONS_INIT;
    json_t *all = json_object_get(chat, "messages"), *some = json_copy(chat), *turns = json_array();
    char *text = NULL;
    dt_status st = DT_OK;

    *out = (written){ NULL, 0, NULL, 0 };
    for (size_t i = 0; i < n; i++) (void)json_array_append(turns, json_array_get(all, i));
    if (some != NULL && json_object_set_new(some, "messages", turns) == 0)
        text = json_dumps(some, JSON_COMPACT);
    DT_CHECK_TO(done, st, text != NULL, DT_ERR_MEMORY, "a conversation of %zu messages", n);
    options.add_generation_prompt = asks;
    options.variables = text;
    DT_TRY_TO(done, st, dt_chat_render_json(z->o->chat, &options, &out->text, &out->bytes));
    DT_TRY_TO(done, st,
              dt_tokenizer_encode(z->tokenizer, out->text, out->bytes, DT_ENCODE_PARSE_SPECIAL,
                                  &out->ids, &out->n));
done:
    free(text); /* jansson's */
    json_decref(some);
    if (st != DT_OK) release(out);
    return st;
}

static bool begins_with(const written *whole, const written *part)
{
    return part->bytes <= whole->bytes && memcmp(whole->text, part->text, part->bytes) == 0;
}

static size_t common_tokens(const written *a, const written *b)
{
    size_t n = 0;

    while (n < a->n && n < b->n && a->ids[n] == b->ids[n]) n++;
    return n;
}

/* Marks the tokens of message i of the conversation as learned; *found: it stands in the whole as
 * it was given. */
static dt_status find_answer(const dti_tokenizing *z, json_t *chat, size_t i, const written *whole,
                             unsigned char *learned, bool *found)
{
    written prompt = { NULL, 0, NULL, 0 }, turn = { NULL, 0, NULL, 0 };
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, write_turns(z, chat, i, true, &prompt));
    DT_TRY_TO(done, st, write_turns(z, chat, i + 1, false, &turn));
    *found = begins_with(whole, &prompt) && begins_with(whole, &turn);
    if (*found)
        for (size_t k = common_tokens(whole, &prompt); k < common_tokens(whole, &turn); k++)
            learned[k] = 1;
done:
    release(&prompt);
    release(&turn);
    return st;
}

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role != NULL && strcmp(role, "assistant") == 0;
}

static dt_status find_answers(dti_tokenizing *z, json_t *chat, const written *whole,
                              unsigned char *learned)
{
    const json_t *messages = json_object_get(chat, "messages");
    const size_t n = json_array_size(messages);
    size_t last = n;
    bool found = true, all = true;

    for (size_t i = 0; i < n; i++)
        if (is_answer(json_array_get(messages, i))) last = i;
    DT_CHECK(last < n, DT_ERR_FORMAT,
             "no message of %zu has the role \"assistant\": there is no answer to learn", n);
    for (size_t i = 0; i <= last; i++) {
        if (!is_answer(json_array_get(messages, i))) continue;
        DT_TRY(find_answer(z, chat, i, whole, learned, &found));
        all = all && (found || i == last);
    }
    DT_CHECK(found, DT_ERR_UNSUPPORTED,
             "the template writes message %zu otherwise when it is the last one: what is an answer "
             "cannot be told",
             last);
    z->done.last_only += !all;
    return DT_OK;
}

static dt_status write_document(dti_tokenizing *z, const written *whole,
                                const unsigned char *learned)
{
    for (size_t i = 0, end; i < whole->n; i = end) {
        for (end = i; end < whole->n && learned[end] == learned[i];) end++;
        DT_TRY(dt_token_writer_add(z->writer, whole->ids + i, (int64_t)(end - i), learned[i]));
        if (!learned[i]) z->done.masked += (int64_t)(end - i);
    }
    z->done.tokens += (int64_t)whole->n;
    if (z->o->end_token >= 0 && (whole->n == 0 || whole->ids[whole->n - 1] != z->o->end_token)) {
        DT_TRY(dt_token_writer_add(z->writer, &z->o->end_token, 1, true));
        z->done.tokens++;
    }
    z->done.documents++;
    return dt_token_writer_end_document(z->writer);
}

dt_status dti_tokenize_chat(dti_tokenizing *z, const dti_json_doc *doc, const char *line)
{
    written whole = { NULL, 0, NULL, 0 };
    unsigned char *learned = NULL;
    json_t *chat = NULL;
    dti_json messages;
    dt_status st = DT_OK;

    DT_TRY(dti_json_array(&doc->root, "messages", &messages));
    DT_CHECK(z->o->chat != NULL, DT_ERR_ARG,
             "a conversation, and the model's folder has no chat template");
    chat = json_loads(line, 0, NULL);
    DT_CHECK(chat != NULL, DT_ERR_MEMORY, "a line of %zu bytes", strlen(line));
    DT_TRY_TO(done, st, write_turns(z, chat, dti_json_count(&messages), false, &whole));
    DT_TRY_TO(done, st, dti_alloc(whole.n + 1, (void **)&learned));
    DT_TRY_TO(done, st, find_answers(z, chat, &whole, learned));
    st = write_document(z, &whole, learned);
done:
    json_decref(chat);
    release(&whole);
    dti_free(learned);
    return st;
}
