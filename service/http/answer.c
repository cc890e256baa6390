/* SPDX-License-Identifier: Apache-2.0
 *
 * Answers as OpenAI's clients read them: one object, or events. */
#include <string.h>

#include "service/http/answering.h"

static bool is_chat(const dti_generation *g)
{
    return g->wish.api == DTI_API_CHAT;
}

static void put_head(dti_generation *g, bool event)
{
    dti_buffer *b = &g->x->out;

    if (event) dti_buffer_text(b, "data: ");
    dti_buffer_print(b, "{\"id\":\"%s\",\"object\":\"%s%s\",\"created\":%lld,\"model\":", g->id,
                     is_chat(g) ? "chat.completion" : "text_completion",
                     event && is_chat(g) ? ".chunk" : "", (long long)g->created);
    dti_buffer_quote(b, g->model->name);
    dti_buffer_print(b, ",\"system_fingerprint\":\"dtensor-%s\",\"choices\":[", dt_version());
}

static void put_usage(dti_generation *g)
{
    int64_t n = 0, found = 0;

    for (int64_t i = 0; i < g->n_choices; i++) n += g->choices[i].n_tokens;
    for (int64_t i = 0; i < g->wish.n_prompts; i++)
        found += dt_generated_found(g->made, i * g->width);
    dti_buffer_print(&g->x->out,
                     ",\"usage\":{\"prompt_tokens\":%lld,\"completion_tokens\":%lld,"
                     "\"total_tokens\":%lld,\"prompt_tokens_details\":{\"cached_tokens\":%lld}}",
                     (long long)g->x->prompt_tokens, (long long)n,
                     (long long)(g->x->prompt_tokens + n), (long long)found);
}

/* What of the logprobs has not been told, as a member of a choice. */
static void put_logprobs(dti_generation *g, dti_http_choice *c)
{
    static const char *const names[] = { "tokens", "token_logprobs", "top_logprobs",
                                         "text_offset" };
    dti_buffer *b = &g->x->out;

    dti_buffer_text(b, ",\"logprobs\":");
    if (!g->wish.logprobs) {
        dti_buffer_text(b, "null");
        return;
    }
    dti_buffer_text(b, is_chat(g) ? "{\"content\":[" : "{");
    for (int i = 0; i < (is_chat(g) ? 1 : DTI_N_LOGPROB_LISTS); i++) {
        dti_buffer *list = &c->logprobs[i];
        if (!is_chat(g)) dti_buffer_print(b, "%s\"%s\":[", i > 0 ? "," : "", names[i]);
        dti_buffer_add(b, list->bytes, list->n);
        if (list->st != DT_OK) b->st = list->st;
        if (!is_chat(g)) dti_buffer_text(b, "]");
        dti_buffer_cut(list, 0);
    }
    dti_buffer_text(b, is_chat(g) ? "],\"refusal\":null}" : "}");
}

/* --- all at once ------------------------------------------------------------------------------ */

static void put_message(dti_generation *g, const dti_http_choice *c)
{
    dti_buffer *b = &g->x->out;

    dti_buffer_text(b, ",\"message\":{\"role\":\"assistant\",\"content\":");
    if (c->n_calls > 0 && c->text.n == 0)
        dti_buffer_text(b, "null");
    else
        dti_buffer_json(b, c->text.bytes, c->text.n);
    dti_buffer_text(b, ",\"refusal\":null");
    if (c->n_calls > 0) {
        dti_buffer_text(b, ",\"tool_calls\":[");
        dti_buffer_add(b, c->calls.bytes, c->calls.n);
        dti_buffer_text(b, "]");
    }
    dti_buffer_text(b, "}");
}

void dti_answer_whole(dti_generation *g)
{
    dti_buffer *b = &g->x->out;

    put_head(g, false);
    for (int64_t i = 0; i < g->n_choices; i++) {
        dti_http_choice *c = &g->choices[i];
        dti_buffer_print(b, "%s{\"index\":%lld", i > 0 ? "," : "", (long long)i);
        if (is_chat(g)) {
            put_message(g, c);
        } else {
            dti_buffer_text(b, ",\"text\":");
            dti_buffer_json(b, c->text.bytes, c->text.n);
        }
        put_logprobs(g, c);
        dti_buffer_print(b, ",\"finish_reason\":\"%s\"}", c->finish);
    }
    dti_buffer_text(b, "]");
    put_usage(g);
    dti_buffer_text(b, "}");
}

/* --- events ----------------------------------------------------------------------------------- */

/* What stands in a chunk beside its text. */
typedef enum chunk_kind { CHUNK_ROLE, CHUNK_TEXT, CHUNK_CALLS, CHUNK_END } chunk_kind;

static void put_delta(dti_generation *g, dti_http_choice *c, chunk_kind kind, size_t n)
{
    dti_buffer *b = &g->x->out;
    const char *text = n > 0 ? c->text.bytes + c->shown : "";

    if (!is_chat(g)) {
        dti_buffer_text(b, ",\"text\":");
        dti_buffer_json(b, text, n);
        return;
    }
    dti_buffer_text(b, ",\"delta\":{");
    if (kind == CHUNK_ROLE) dti_buffer_text(b, "\"role\":\"assistant\",\"content\":\"\"");
    if (kind == CHUNK_TEXT) {
        dti_buffer_text(b, "\"content\":");
        dti_buffer_json(b, text, n);
    }
    if (kind == CHUNK_CALLS) {
        dti_buffer_text(b, "\"tool_calls\":[");
        dti_buffer_add(b, c->calls.bytes, c->calls.n);
        dti_buffer_text(b, "]");
    }
    dti_buffer_text(b, "}");
}

static void put_chunk(dti_generation *g, dti_http_choice *c, chunk_kind kind, size_t n)
{
    dti_buffer *b = &g->x->out;

    put_head(g, true);
    dti_buffer_print(b, "{\"index\":%lld", (long long)c->index);
    put_delta(g, c, kind, n);
    if (kind == CHUNK_ROLE)
        dti_buffer_text(b, ",\"logprobs\":null");
    else
        put_logprobs(g, c);
    if (kind == CHUNK_END)
        dti_buffer_print(b, ",\"finish_reason\":\"%s\"}]", c->finish);
    else
        dti_buffer_text(b, ",\"finish_reason\":null}]");
    dti_buffer_text(b, g->wish.include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
    c->shown += n;
    g->told = true;
}

void dti_answer_events(dti_generation *g, dti_http_choice *c)
{
    const size_t certain = dti_choice_certain(c);

    if (!c->begun && is_chat(g)) put_chunk(g, c, CHUNK_ROLE, 0);
    c->begun = true;
    if (certain > c->shown) put_chunk(g, c, CHUNK_TEXT, certain - c->shown);
    if (!c->ended) return;
    if (c->n_calls > 0) put_chunk(g, c, CHUNK_CALLS, 0);
    put_chunk(g, c, CHUNK_END, 0);
}

void dti_answer_last_events(dti_generation *g)
{
    dti_buffer *b = &g->x->out;

    if (g->wish.include_usage) {
        put_head(g, true);
        dti_buffer_text(b, "]");
        put_usage(g);
        dti_buffer_text(b, "}\n\n");
    }
    dti_buffer_text(b, "data: [DONE]\n\n");
    g->told = true;
}

/* What has begun ends without [DONE], so that nobody takes it for whole. */
void dti_answer_error_event(dti_generation *g, dt_status st)
{
    char text[512];
    const char *message = dti_client_message(g->x, st, text, sizeof text);

    g->x->out.st = DT_OK;
    dti_buffer_text(&g->x->out, "data: ");
    dti_error_json(&g->x->out, dti_http_status_of(st), NULL, message);
    dti_buffer_text(&g->x->out, "\n\n");
}
