/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversations to prompts, by the template that a chat checkpoint brings along.
 *
 * Templates are programs in Jinja. The part of the language that the templates of Llama 3, Qwen,
 * Gemma 3 and Phi-3 are written in is rendered byte for byte as Transformers'
 * apply_chat_template() does; anything else is refused with line and construct, never rendered
 * approximately. Nesting, steps and memory of a template are bounded. docs/chat.md lists what there
 * is.
 *
 * Nothing here is collective, and nothing needs a runtime. A template never changes, so rank
 * threads may share one. */
#ifndef DT_CHAT_H
#define DT_CHAT_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A chat template and the special tokens it may name. Counted handle, immutable. */
typedef struct dt_chat dt_chat;

/* One turn of a conversation; UTF-8. */
typedef struct dt_chat_message {
    const char *role;    /* "system", "user", "assistant", or what else the template knows */
    const char *content; /* NULL: the message has none */
    size_t n_bytes;      /* of the content, which may hold zero bytes; 0: up to the first one */
} dt_chat_message;

typedef struct dt_chat_options {
    size_t size;                /* sizeof(dt_chat_options) */
    bool add_generation_prompt; /* end with what begins the assistant's answer */
    const char *variables;      /* a JSON object: more names for the template, such as
                                 * {"enable_thinking": false}; NULL: none */
    int64_t now;                /* for templates that print the date: seconds since 1970, shown in
                                 * local time; 0: the clock's */
} dt_chat_options;

#define DT_CHAT_OPTIONS_INIT                   \
    {                                          \
        sizeof(dt_chat_options), true, NULL, 0 \
    }

/**
 * Opens the template of a checkpoint folder: chat_template.jinja, or else "chat_template" of
 * tokenizer_config.json (a text, or a list of named ones, of which "default" is taken), or else of
 * chat_template.json. bos_token, eos_token and their like are those of tokenizer_config.json, or
 * else of special_tokens_map.json.
 *
 * Collective  no.
 * Ownership   *out is a new reference, released with dt_chat_release().
 * Errors      DT_ERR_ARG          folder or out is NULL
 *             DT_ERR_IO           the folder has no chat template, or a file cannot be read
 *             DT_ERR_FORMAT       malformed JSON, a mistake in the template
 *             DT_ERR_UNSUPPORTED  a construct of Jinja that is not known here
 *             DT_ERR_MEMORY
 */
DT_API DT_MUST_USE dt_status dt_chat_open(const char *folder, dt_chat **out);

/**
 * Makes a template of n_bytes of Jinja; it knows no special tokens but those that variables give.
 *
 *   name  what messages call it
 *
 * Not collective. Errors as dt_chat_open().
 */
DT_API DT_MUST_USE dt_status dt_chat_create(const char *name, const char *source, size_t n_bytes,
                                            dt_chat **out);

DT_API dt_chat *dt_chat_retain(dt_chat *chat); /* one more reference; returns chat */
DT_API void dt_chat_release(dt_chat **chat);   /* drops one; accepts NULL */

/**
 * The prompt of a conversation. Its special tokens are spelled out, so it is encoded with
 * DT_ENCODE_PARSE_SPECIAL and without DT_ENCODE_ADD_SPECIAL. A user who writes "<|im_end|>" is
 * taken at his word, as in Transformers.
 *
 *   messages  n_messages turns, in order
 *   options   NULL: the defaults
 *   *text     freed with dt_chat_free(); a zero byte that *n_bytes does not count ends it
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL, text that is not UTF-8, or the template refuses the
 *                                 conversation: the message is the template's own
 *             DT_ERR_FORMAT       variables are no JSON object; an operation of the template that
 *                                 is a mistake in Jinja too
 *             DT_ERR_UNSUPPORTED  a filter, test, method or bound that the template needs
 *             DT_ERR_MEMORY
 *             On error *text is NULL.
 */
DT_API DT_MUST_USE dt_status dt_chat_render(const dt_chat *chat, const dt_chat_message *messages,
                                            size_t n_messages, const dt_chat_options *options,
                                            char **text, size_t *n_bytes);

/**
 * As dt_chat_render() for conversations with more than roles and texts: options.variables brings
 * everything, "messages" included, as one would give it to apply_chat_template().
 *
 * Not collective. Errors as dt_chat_render().
 */
DT_API DT_MUST_USE dt_status dt_chat_render_json(const dt_chat *chat,
                                                 const dt_chat_options *options, char **text,
                                                 size_t *n_bytes);

/** Frees what rendering returned; accepts NULL. Not collective. Errors: none. */
DT_API void dt_chat_free(char *text);

#ifdef __cplusplus
}
#endif
#endif
