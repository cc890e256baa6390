/* SPDX-License-Identifier: Apache-2.0
 *
 * Fields of requests: one table for all paths. A field that no row has is refused by its name; one
 * that is null was not given. */
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "service/http/wish.h"

typedef enum dti_field_kind {
    FLAG,   /* bool */
    COUNT,  /* int64_t, a whole number from min to max */
    NUMBER, /* double */
    TEXT,   /* const char * */
    READ,   /* as `read` says */
    IGNORED /* has no effect here, and none that a client could miss */
} dti_field_kind;

typedef struct field {
    const char *name;
    unsigned apis;
    dti_field_kind kind;
    size_t at; /* in dti_wish */
    double min, max;
    bool (*read)(dti_wish *w, const char *name, const json_t *v);
} field;

bool dti_wish_refuse(dti_wish *w, const char *param, const char *fmt, ...)
{
    va_list args;

    w->status = 400;
    (void)dti_printable(param != NULL ? param : "", w->param, sizeof w->param);
    va_start(args, fmt);
    (void)vsnprintf(w->message, sizeof w->message, fmt, args);
    va_end(args);
    return false;
}

bool dti_wish_no_memory(dti_wish *w)
{
    (void)dti_wish_refuse(w, NULL, "no memory for the request");
    w->status = 503;
    return false;
}

static bool keep_text(dti_wish *w, const json_t *v, const char **out)
{
    char *copy;

    if (dti_arena_strndup(&w->arena, json_string_value(v), json_string_length(v), &copy) != DT_OK)
        return dti_wish_no_memory(w);
    *out = copy;
    return true;
}

/* --- lists ------------------------------------------------------------------------------------ */

static bool is_id(const dti_wish *w, const json_t *v)
{
    return json_is_integer(v) && json_integer_value(v) >= 0 && json_integer_value(v) < w->vocab;
}

static bool read_ids(dti_wish *w, const char *name, const json_t *list, dt_ids *out)
{
    int32_t *ids;

    if (dti_arena_alloc(&w->arena, (json_array_size(list) + 1) * sizeof *ids, (void **)&ids) !=
        DT_OK)
        return dti_wish_no_memory(w);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *v = json_array_get(list, i);
        if (!is_id(w, v))
            return dti_wish_refuse(w, name, "%s: token %zu is no id from 0 to %lld", name, i,
                                   (long long)w->vocab - 1);
        ids[i] = (int32_t)json_integer_value(v);
    }
    *out = (dt_ids){ ids, (int64_t)json_array_size(list) };
    return true;
}

static bool read_prompt(dti_wish *w, const char *name, const json_t *v, dti_prompt *out)
{
    *out = (dti_prompt){ 0 };
    if (json_is_string(v)) {
        out->n_bytes = json_string_length(v);
        return keep_text(w, v, &out->text);
    }
    if (!json_is_array(v))
        return dti_wish_refuse(w, name, "%s is a text, token ids, or a list of either", name);
    return read_ids(w, name, v, &out->ids);
}

/* A text, ids, or a list of such. */
static bool read_prompts(dti_wish *w, const char *name, const json_t *v)
{
    const bool many =
        json_is_array(v) && json_array_size(v) > 0 && !json_is_integer(json_array_get(v, 0));
    const size_t n = many ? json_array_size(v) : 1;

    if (json_is_array(v) && json_array_size(v) == 0)
        return dti_wish_refuse(w, name, "%s is empty", name);
    if (n > DTI_MOST_PROMPTS)
        return dti_wish_refuse(w, name, "%s: %zu prompts, at most %d", name, n, DTI_MOST_PROMPTS);
    if (dti_arena_alloc(&w->arena, n * sizeof *w->prompts, (void **)&w->prompts) != DT_OK)
        return dti_wish_no_memory(w);
    for (size_t i = 0; i < n; i++)
        if (!read_prompt(w, name, many ? json_array_get(v, i) : v, &w->prompts[i])) return false;
    w->n_prompts = (int64_t)n;
    return true;
}

static bool read_one_text(dti_wish *w, const char *name, const json_t *v)
{
    if (!json_is_string(v)) return dti_wish_refuse(w, name, "%s is no text", name);
    return read_prompts(w, name, v);
}

static bool read_token_list(dti_wish *w, const char *name, const json_t *v)
{
    if (!json_is_array(v)) return dti_wish_refuse(w, name, "%s is no list of token ids", name);
    if (dti_arena_alloc(&w->arena, sizeof *w->prompts, (void **)&w->prompts) != DT_OK)
        return dti_wish_no_memory(w);
    w->n_prompts = 1;
    w->prompts[0] = (dti_prompt){ 0 };
    return read_ids(w, name, v, &w->prompts[0].ids);
}

static bool read_stop(dti_wish *w, const char *name, const json_t *v)
{
    const size_t n = json_is_array(v) ? json_array_size(v) : 1;
    const char **stops;

    if (n > DTI_MOST_STOPS)
        return dti_wish_refuse(w, name, "%s: %zu texts, at most %d", name, n, DTI_MOST_STOPS);
    if (dti_arena_alloc(&w->arena, (n + 1) * sizeof *stops, (void **)&stops) != DT_OK)
        return dti_wish_no_memory(w);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s) || json_string_length(s) == 0 ||
            json_string_length(s) > DTI_MOST_STOP_BYTES)
            return dti_wish_refuse(w, name, "%s is a text of 1 to %d bytes, or a list of such",
                                   name, DTI_MOST_STOP_BYTES);
        if (!keep_text(w, s, &stops[i])) return false;
    }
    w->o.stop_strings = stops;
    w->o.n_stop_strings = (int64_t)n;
    return true;
}

static bool read_stop_ids(dti_wish *w, const char *name, const json_t *v)
{
    if (!json_is_array(v) || json_array_size(v) > DTI_MOST_STOP_IDS)
        return dti_wish_refuse(w, name, "%s is a list of at most %d token ids", name,
                               DTI_MOST_STOP_IDS);
    return read_ids(w, name, v, &w->stop_ids);
}

/* {"id": number}: ids are texts of digits. */
static bool read_biases(dti_wish *w, const char *name, const json_t *v)
{
    dt_bias *biases;
    int32_t *ids;
    int64_t n = 0;
    const char *key;
    json_t *bias;

    if (!json_is_object(v) || json_object_size(v) > DTI_MOST_BIASES)
        return dti_wish_refuse(w, name, "%s is an object of at most %d token ids", name,
                               DTI_MOST_BIASES);
    if (dti_arena_alloc(&w->arena, (json_object_size(v) + 1) * sizeof *biases, (void **)&biases) !=
            DT_OK ||
        dti_arena_alloc(&w->arena, (json_object_size(v) + 1) * sizeof *ids, (void **)&ids) != DT_OK)
        return dti_wish_no_memory(w);
    json_object_foreach((json_t *)(uintptr_t)v, key, bias)
    {
        const size_t digits = strspn(key, "0123456789");
        const double x = json_number_value(bias);
        long long id = digits > 0 && digits < 10 && key[digits] == '\0' ? atoll(key) : -1;
        if (id < 0 || id >= w->vocab)
            return dti_wish_refuse(w, name, "%s: a key is no id from 0 to %lld", name,
                                   (long long)w->vocab - 1);
        if (!json_is_number(bias) || !(x >= -100 && x <= 100))
            return dti_wish_refuse(w, name, "%s of token %lld must be from -100 to 100", name, id);
        ids[n] = (int32_t)id;
        biases[n] = (dt_bias){ { &ids[n], 1 }, x };
        n++;
    }
    w->o.sequence_bias = biases;
    w->o.n_sequence_bias = n;
    return true;
}

/* --- others ----------------------------------------------------------------------------------- */

static bool read_stream_options(dti_wish *w, const char *name, const json_t *v)
{
    const json_t *usage = json_object_get(v, "include_usage");

    if (!json_is_object(v) || json_object_size(v) != (usage != NULL ? 1u : 0u) ||
        (usage != NULL && !json_is_boolean(usage)))
        return dti_wish_refuse(w, name, "%s is an object of include_usage, true or false", name);
    w->include_usage = json_is_true(usage);
    return true;
}

static bool read_best_of(dti_wish *w, const char *name, const json_t *v)
{
    (void)w;
    if (json_is_integer(v) && json_integer_value(v) == 1) return true;
    return dti_wish_refuse(w, name, "%s is not supported; n gives as many texts", name);
}

static bool read_empty(dti_wish *w, const char *name, const json_t *v)
{
    if (json_is_string(v) && json_string_length(v) == 0) return true;
    return dti_wish_refuse(w, name, "%s is not supported", name);
}

static bool read_text_logprobs(dti_wish *w, const char *name, const json_t *v)
{
    if (json_is_false(v)) return true;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > DTI_MOST_TOP)
        return dti_wish_refuse(w, name, "%s is a number from 0 to %d", name, DTI_MOST_TOP);
    w->logprobs = true;
    w->n_top = json_integer_value(v);
    return true;
}

bool dti_wish_check_strict(dti_wish *w, const char *name, const json_t *within)
{
    const json_t *strict = json_object_get(within, "strict");

    if (strict == NULL || json_is_null(strict) || json_is_boolean(strict)) return true;
    return dti_wish_refuse(w, name, "%s: strict must be true or false", name);
}

/* {"name", "schema"}, and what has no effect: a schema is always kept to. */
static bool read_schema(dti_wish *w, const char *name, const json_t *v)
{
    static const char *const names[] = { "name", "schema", "strict", "description" };
    const char *key;
    json_t *member;

    if (!json_is_object(json_object_get(v, "schema")))
        return dti_wish_refuse(w, name, "%s: json_schema is an object with a \"schema\"", name);
    json_object_foreach((json_t *)(uintptr_t)v, key, member)
    {
        bool known = false;
        for (size_t i = 0; i < DT_COUNT(names); i++) known |= strcmp(key, names[i]) == 0;
        if (!known)
            return dti_wish_refuse(w, name, "%s: json_schema has a field that is not known here",
                                   name);
    }
    return dti_wish_check_strict(w, name, v) &&
           dti_wish_take_schema(w, name, json_object_get(v, "schema"));
}

bool dti_wish_take_schema(dti_wish *w, const char *name, const json_t *schema)
{
    char *text = json_dumps(schema, JSON_COMPACT), *copy = NULL;
    dt_status st = DT_ERR_MEMORY;

    if (text != NULL) st = dti_arena_strndup(&w->arena, text, strlen(text), &copy);
    free(text);
    if (st == DT_OK) st = dt_json_schema_check(copy);
    w->o.json_schema = copy;
    if (st == DT_ERR_MEMORY) return dti_wish_no_memory(w);
    return st == DT_OK || dti_wish_refuse(w, name, "%s: %s", name, dt_last_error()->message);
}

static bool read_format(dti_wish *w, const char *name, const json_t *v)
{
    const json_t *schema = json_object_get(v, "json_schema");
    const char *type = json_string_value(json_object_get(v, "type"));

    if (type != NULL && strcmp(type, "json_schema") == 0 && schema != NULL &&
        json_object_size(v) == 2)
        return read_schema(w, name, schema);
    if (type != NULL && json_object_size(v) == 1) {
        w->o.json_object = strcmp(type, "json_object") == 0;
        if (w->o.json_object || strcmp(type, "text") == 0) return true;
    }
    return dti_wish_refuse(
        w, name,
        "%s: {\"type\":\"text\"}, {\"type\":\"json_object\"} and "
        "{\"type\":\"json_schema\",\"json_schema\":{name, schema}} are supported",
        name);
}

static bool read_tool_choice(dti_wish *w, const char *name, const json_t *v)
{
    static const char *const words[] = { "auto", "none", "required" }; /* as dti_tool_choice */
    const json_t *tool = json_object_get(json_object_get(v, "function"), "name");
    const char *type = json_string_value(json_object_get(v, "type"));

    for (size_t i = 0; json_is_string(v) && i < DT_COUNT(words); i++)
        if (strcmp(json_string_value(v), words[i]) == 0) {
            w->tool_choice = (dti_tool_choice)i;
            return true;
        }
    w->tool_choice = DTI_TOOLS_FORCED;
    if (type != NULL && strcmp(type, "function") == 0 && json_object_size(v) == 2 &&
        json_is_string(tool))
        return keep_text(w, tool, &w->tool_name);
    return dti_wish_refuse(w, name,
                           "%s is \"none\", \"auto\", \"required\" or {\"type\":\"function\", "
                           "\"function\": {name}}",
                           name);
}

/* Read with the messages. */
static bool read_later(dti_wish *w, const char *name, const json_t *v)
{
    (void)w, (void)name, (void)v;
    return true;
}

#define AT(member) offsetof(dti_wish, member)
#define TEXTS      (DTI_API_TEXT | DTI_API_CHAT)
#define ALL        (TEXTS | DTI_API_TOKENIZE | DTI_API_DETOKENIZE)

/* clang-format off */
static const field fields[] = {
/*    name                     of                 kind     where                      from   to      read           */
    { "model",                 ALL,               TEXT,    AT(model),                 0,     0,      NULL },
    { "prompt",                DTI_API_TEXT,      READ,    0,                         0,     0,      read_prompts },
    { "messages",              DTI_API_CHAT,      READ,    0,                         0,     0,      read_later },
    { "max_tokens",            TEXTS,             COUNT,   AT(max_tokens),            1,     1e12,   NULL },
    { "max_completion_tokens", DTI_API_CHAT,      COUNT,   AT(max_tokens),            1,     1e12,   NULL }, /* wins */
    { "min_tokens",            TEXTS,             COUNT,   AT(o.min_new_tokens),      0,     1e12,   NULL },
    { "n",                     TEXTS,             COUNT,   AT(n),                     1,     DTI_MOST_CHOICES, NULL },
    { "best_of",               DTI_API_TEXT,      READ,    0,                         0,     0,      read_best_of },
    { "suffix",                DTI_API_TEXT,      READ,    0,                         0,     0,      read_empty },
    { "echo",                  DTI_API_TEXT,      FLAG,    AT(echo),                  0,     1,      NULL },
    { "temperature",           TEXTS,             NUMBER,  AT(o.temperature),         0,     2,      NULL },
    { "top_p",                 TEXTS,             NUMBER,  AT(o.top_p),               1e-9,  1,      NULL },
    { "top_k",                 TEXTS,             COUNT,   AT(o.top_k),               -1,    1e9,    NULL },
    { "min_p",                 TEXTS,             NUMBER,  AT(o.min_p),               0,     1,      NULL },
    { "typical_p",             TEXTS,             NUMBER,  AT(o.typical_p),           1e-9,  1,      NULL },
    { "repetition_penalty",    TEXTS,             NUMBER,  AT(o.repetition_penalty),  1e-2,  1e2,    NULL },
    { "presence_penalty",      TEXTS,             NUMBER,  AT(o.presence_penalty),    -2,    2,      NULL },
    { "frequency_penalty",     TEXTS,             NUMBER,  AT(o.frequency_penalty),   -2,    2,      NULL },
    { "logit_bias",            TEXTS,             READ,    0,                         0,     0,      read_biases },
    { "seed",                  TEXTS,             COUNT,   AT(seed),                  -9.3e18, 9.3e18, NULL },
    { "stop",                  TEXTS,             READ,    0,                         0,     0,      read_stop },
    { "stop_token_ids",        TEXTS,             READ,    0,                         0,     0,      read_stop_ids },
    { "ignore_eos",            TEXTS,             FLAG,    AT(o.ignore_eos),          0,     1,      NULL },
    { "logprobs",              DTI_API_TEXT,      READ,    0,                         0,     0,      read_text_logprobs },
    { "logprobs",              DTI_API_CHAT,      FLAG,    AT(logprobs),              0,     1,      NULL },
    { "top_logprobs",          DTI_API_CHAT,      COUNT,   AT(n_top),                 0,     DTI_MOST_TOP, NULL },
    { "stream",                TEXTS,             FLAG,    AT(stream),                0,     1,      NULL },
    { "stream_options",        TEXTS,             READ,    0,                         0,     0,      read_stream_options },
    { "response_format",       TEXTS,             READ,    0,                         0,     0,      read_format },
    { "tools",                 DTI_API_CHAT,      READ,    0,                         0,     0,      read_later },
    { "tool_choice",           DTI_API_CHAT,      READ,    0,                         0,     0,      read_tool_choice },
    { "parallel_tool_calls",   DTI_API_CHAT,      IGNORED, 0,                         0,     0,      NULL },
    { "chat_template_kwargs",  DTI_API_CHAT,      READ,    0,                         0,     0,      read_later },
    { "add_generation_prompt", DTI_API_CHAT,      FLAG,    AT(add_generation_prompt), 0,     1,      NULL },
    { "user",                  TEXTS,             IGNORED, 0,                         0,     0,      NULL },
    { "store",                 TEXTS,             IGNORED, 0,                         0,     0,      NULL },
    { "metadata",              TEXTS,             IGNORED, 0,                         0,     0,      NULL },
    { "service_tier",          TEXTS,             IGNORED, 0,                         0,     0,      NULL },
    { "safety_identifier",     TEXTS,             IGNORED, 0,                         0,     0,      NULL },
    { "prompt_cache_key",      TEXTS,             IGNORED, 0,                         0,     0,      NULL },
    { "content",               DTI_API_TOKENIZE,  READ,    0,                         0,     0,      read_one_text },
    { "prompt",                DTI_API_TOKENIZE,  READ,    0,                         0,     0,      read_one_text },
    { "messages",              DTI_API_TOKENIZE,  READ,    0,                         0,     0,      read_later },
    { "tools",                 DTI_API_TOKENIZE,  READ,    0,                         0,     0,      read_later },
    { "add_generation_prompt", DTI_API_TOKENIZE,  FLAG,    AT(add_generation_prompt), 0,     1,      NULL },
    { "add_special",           DTI_API_TOKENIZE,  FLAG,    AT(add_special),           0,     1,      NULL },
    { "add_special_tokens",    DTI_API_TOKENIZE,  FLAG,    AT(add_special),           0,     1,      NULL },
    { "parse_special",         DTI_API_TOKENIZE,  FLAG,    AT(parse_special),         0,     1,      NULL },
    { "with_pieces",           DTI_API_TOKENIZE,  FLAG,    AT(with_pieces),           0,     1,      NULL },
    { "return_token_strs",     DTI_API_TOKENIZE,  FLAG,    AT(with_pieces),           0,     1,      NULL },
    { "tokens",                DTI_API_DETOKENIZE, READ,   0,                         0,     0,      read_token_list },
};
/* clang-format on */

static bool read_count(dti_wish *w, const field *f, const json_t *v)
{
    const json_int_t i = json_integer_value(v);

    if (!json_is_integer(v) || (double)i < f->min || (double)i > f->max)
        return dti_wish_refuse(w, f->name, "%s must be a whole number from %.0f to %.0f", f->name,
                               f->min, f->max);
    *(int64_t *)(void *)((char *)w + f->at) = i;
    return true;
}

static bool read_number(dti_wish *w, const field *f, const json_t *v)
{
    const double x = json_number_value(v);

    if (!json_is_number(v) || !(x >= f->min && x <= f->max))
        return dti_wish_refuse(w, f->name, "%s must be a number from %g to %g", f->name, f->min,
                               f->max);
    *(double *)(void *)((char *)w + f->at) = x;
    return true;
}

static bool read_field(dti_wish *w, const field *f, const json_t *v)
{
    switch (f->kind) {
    case FLAG:
        if (!json_is_boolean(v))
            return dti_wish_refuse(w, f->name, "%s must be true or false", f->name);
        *((bool *)w + f->at) = json_is_true(v);
        return true;
    case COUNT:
        return read_count(w, f, v);
    case NUMBER:
        return read_number(w, f, v);
    case TEXT:
        if (!json_is_string(v)) return dti_wish_refuse(w, f->name, "%s must be a text", f->name);
        return keep_text(w, v, (const char **)(void *)((char *)w + f->at));
    case READ:
        return f->read(w, f->name, v);
    case IGNORED:
        break;
    }
    return true;
}

static bool is_known(const dti_wish *w, const char *name)
{
    for (size_t i = 0; i < DT_COUNT(fields); i++)
        if ((fields[i].apis & w->api) != 0 && strcmp(fields[i].name, name) == 0) return true;
    return false;
}

static bool given(const json_t *tree, const char *name)
{
    const json_t *v = json_object_get(tree, name);

    return v != NULL && !json_is_null(v);
}

static bool check_together(dti_wish *w, const json_t *tree)
{
    if (given(tree, "stream_options") && !w->stream)
        return dti_wish_refuse(w, "stream_options", "stream_options need \"stream\": true");
    if (w->api == DTI_API_CHAT && w->n_top >= 0 && !w->logprobs)
        return dti_wish_refuse(w, "top_logprobs", "top_logprobs need \"logprobs\": true");
    if (w->echo && w->logprobs)
        return dti_wish_refuse(w, "echo",
                               "logprobs of a prompt are not supported: echo or logprobs");
    if ((w->api & TEXTS) != 0 && w->n * w->n_prompts > DTI_MOST_CHOICES)
        return dti_wish_refuse(w, "n", "n times the prompts is %lld, at most %d",
                               (long long)(w->n * w->n_prompts), DTI_MOST_CHOICES);
    w->has_temperature = given(tree, "temperature");
    w->has_seed = given(tree, "seed");
    w->has_top_k = given(tree, "top_k");
    if (w->o.top_k < 0) w->o.top_k = 0;
    return true;
}

static bool read_conversation(dti_wish *w, const json_t *tree)
{
    const bool chat = (w->api & DTI_API_CHAT) != 0;

    if (!chat && !given(tree, "messages")) return true;
    if (w->n_prompts > 0) return dti_wish_refuse(w, "messages", "a prompt, or messages");
    if (!given(tree, "messages")) return dti_wish_refuse(w, "messages", "messages are missing");
    w->n_prompts = 1;
    return dti_wish_read_messages(
        w, json_object_get(tree, "messages"),
        given(tree, "tools") ? json_object_get(tree, "tools") : NULL,
        given(tree, "chat_template_kwargs") ? json_object_get(tree, "chat_template_kwargs") : NULL);
}

bool dti_wish_read_tree(dti_wish *w, const json_t *tree)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)tree, key, v)
    {
        char shown[48];
        if (!is_known(w, key))
            return dti_wish_refuse(w, key, "the field \"%s\" is not known here",
                                   dti_printable(key, shown, sizeof shown));
    }
    w->n = 1;
    w->max_tokens = w->n_top = -1;
    for (size_t i = 0; i < DT_COUNT(fields); i++)
        if ((fields[i].apis & w->api) != 0 && given(tree, fields[i].name) &&
            !read_field(w, &fields[i], json_object_get(tree, fields[i].name)))
            return false;
    if (!read_conversation(w, tree)) return false;
    if (w->n_prompts == 0) {
        const char *name = w->api == DTI_API_DETOKENIZE ? "tokens" : "prompt";
        return dti_wish_refuse(w, name, "%s is missing", name);
    }
    return check_together(w, tree);
}

/* --- bodies ----------------------------------------------------------------------------------- */

/* Brackets within each other, those in texts aside. */
static int nesting(const char *body, size_t n)
{
    int depth = 0, most = 0;
    bool text = false;

    for (size_t i = 0; i < n; i++) {
        const char c = body[i];
        if (text && c == '\\')
            i++;
        else if (c == '"')
            text = !text;
        else if (!text && (c == '[' || c == '{'))
            most = ++depth > most ? depth : most;
        else if (!text && (c == ']' || c == '}'))
            depth--;
    }
    return most;
}

json_t *dti_wish_parse(dti_wish *w, const char *body, size_t n)
{
    json_error_t error;
    json_t *tree;

    if (nesting(body, n) > DTI_MOST_NESTING) {
        (void)dti_wish_refuse(w, NULL, "the body is nested deeper than %d", DTI_MOST_NESTING);
        return NULL;
    }
    tree = n > 0 ? json_loadb(body, n, JSON_REJECT_DUPLICATES, &error) : NULL;
    if (tree == NULL && n > 0 && json_error_code(&error) == json_error_null_character)
        (void)dti_wish_refuse(w, NULL,
                              "line %d, column %d: \\u0000, a zero byte, is in no text here",
                              error.line, error.column);
    else if (tree == NULL && n > 0)
        (void)dti_wish_refuse(w, NULL, "the body is no JSON: see line %d, column %d", error.line,
                              error.column);
    if (n == 0) (void)dti_wish_refuse(w, NULL, "the body is empty; it is a JSON object");
    if (tree != NULL && !json_is_object(tree)) {
        (void)dti_wish_refuse(w, NULL, "the body is no JSON object");
        json_decref(tree);
        tree = NULL;
    }
    return tree;
}

void dti_wish_free(dti_wish *w)
{
    dti_arena_free(&w->arena);
    *w = (dti_wish){ 0 };
}
