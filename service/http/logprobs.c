/* SPDX-License-Identifier: Apache-2.0
 *
 * Log-probabilities as OpenAI's clients read them. A token that is no whole character is written
 * out in its bytes. */
#include <math.h>

#include "service/http/answering.h"
#include "text/tokenizer/utf8.h"

/* -inf is no number of JSON. */
static double number_of(float logprob)
{
    return isfinite(logprob) ? (double)logprob : -9999.0;
}

static void put_token(dti_buffer *b, const char *bytes, size_t n)
{
    if (dti_utf8_valid(bytes, n) == n) {
        dti_buffer_json(b, bytes, n);
        return;
    }
    dti_buffer_text(b, "\"bytes:");
    for (size_t i = 0; i < n; i++) dti_buffer_print(b, "\\\\x%02x", (unsigned char)bytes[i]);
    dti_buffer_text(b, "\"");
}

/* {token, logprob, bytes, without the brace that ends it. */
static void put_entry(dti_buffer *b, const char *bytes, size_t n, float logprob)
{
    dti_buffer_text(b, "{\"token\":");
    put_token(b, bytes, n);
    dti_buffer_text(b, ",\"logprob\":");
    dti_buffer_number(b, number_of(logprob));
    dti_buffer_text(b, ",\"bytes\":[");
    for (size_t i = 0; i < n; i++)
        dti_buffer_print(b, "%s%d", i > 0 ? "," : "", (unsigned char)bytes[i]);
    dti_buffer_text(b, "]");
}

typedef struct token_text {
    char *bytes;
    size_t n;
} token_text;

static bool open_token(const dti_generation *g, int32_t id, dti_buffer *b, token_text *out)
{
    dt_status st = dt_tokenizer_bytes(g->model->tokenizer, id, &out->bytes, &out->n);

    if (st != DT_OK) b->st = st;
    return st == DT_OK;
}

static void put_chat(dti_generation *g, dti_http_choice *c, const dt_logprob *list, int64_t n)
{
    dti_buffer *b = &c->logprobs[0];

    if (b->n > 0) dti_buffer_text(b, ",");
    for (int64_t i = 0; i < n; i++) {
        token_text t;
        if (list[i].id < 0 || !open_token(g, list[i].id, b, &t)) continue;
        if (i > 1) dti_buffer_text(b, ",");
        put_entry(b, t.bytes, t.n, list[i].logprob);
        dti_buffer_text(b, i == 0 ? ",\"top_logprobs\":[" : "}");
        dt_tokenizer_free(t.bytes);
    }
    dti_buffer_text(b, "]}");
}

/* tokens, token_logprobs, top_logprobs, text_offset; the token itself is among the best. */
static void put_text(dti_generation *g, dti_http_choice *c, const dt_logprob *list, int64_t n)
{
    bool among = false;
    token_text t;

    for (int i = 0; i < DTI_N_LOGPROB_LISTS; i++)
        if (c->logprobs[i].n > 0) dti_buffer_text(&c->logprobs[i], ",");
    if (n == 1) dti_buffer_text(&c->logprobs[2], "null");
    for (int64_t i = 1; i < n; i++) {
        if (list[i].id < 0 || !open_token(g, list[i].id, &c->logprobs[2], &t)) continue;
        among = among || list[i].id == list[0].id;
        dti_buffer_text(&c->logprobs[2], i == 1 ? "{" : ",");
        put_token(&c->logprobs[2], t.bytes, t.n);
        dti_buffer_text(&c->logprobs[2], ":");
        dti_buffer_number(&c->logprobs[2], number_of(list[i].logprob));
        dt_tokenizer_free(t.bytes);
    }
    if (!open_token(g, list[0].id, &c->logprobs[0], &t)) return;
    put_token(&c->logprobs[0], t.bytes, t.n);
    if (n > 1 && !among) {
        dti_buffer_text(&c->logprobs[2], ",");
        put_token(&c->logprobs[2], t.bytes, t.n);
        dti_buffer_text(&c->logprobs[2], ":");
        dti_buffer_number(&c->logprobs[2], number_of(list[0].logprob));
    }
    if (n > 1) dti_buffer_text(&c->logprobs[2], "}");
    dti_buffer_number(&c->logprobs[1], number_of(list[0].logprob));
    dti_buffer_print(&c->logprobs[3], "%zu", c->text.n);
    dt_tokenizer_free(t.bytes);
}

void dti_answer_logprobs(dti_generation *g, dti_http_choice *c, const dt_logprob *list, int64_t n)
{
    if (g->wish.api == DTI_API_CHAT)
        put_chat(g, c, list, n);
    else
        put_text(g, c, list, n);
}
