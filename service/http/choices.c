/* SPDX-License-Identifier: Apache-2.0 */
#include "service/http/choices.h"

#include <string.h>

#include "service/http/tools.h"

dt_status dti_choice_open(dti_http_choice *c, dt_tokenizer *tokenizer)
{
    return dt_tokenizer_stream_create(tokenizer, true, &c->stream);
}

void dti_choice_free(dti_http_choice *c)
{
    dt_tokenizer_stream_release(&c->stream);
    dti_buffer_free(&c->text);
    dti_buffer_free(&c->calls);
    for (int i = 0; i < DTI_N_LOGPROB_LISTS; i++) dti_buffer_free(&c->logprobs[i]);
}

/* The first stop string that ends behind the first `old` bytes cuts the text. */
static void cut_at_stop(dti_http_choice *c, size_t old)
{
    size_t first = c->text.n;

    for (int64_t i = 0; i < c->n_stops; i++) {
        const size_t n = strlen(c->stops[i]);
        size_t at = old + 1 > n ? old + 1 - n : 0;
        for (at = at > c->from ? at : c->from; at + n <= c->text.n && at < first; at++)
            if (memcmp(c->text.bytes + at, c->stops[i], n) == 0) {
                first = at;
                c->stopped = true;
            }
    }
    if (c->stopped) dti_buffer_cut(&c->text, first);
}

static dt_status add(dti_http_choice *c, const char *text, size_t n)
{
    const size_t old = c->text.n;

    if (c->stopped) return DT_OK;
    dti_buffer_add(&c->text, text, n);
    DT_TRY(c->text.st);
    if (n > 0) cut_at_stop(c, old);
    return DT_OK;
}

dt_status dti_choice_take(dti_http_choice *c, int32_t id, bool *goes_on)
{
    const char *text;
    size_t n;

    c->n_tokens++;
    DT_TRY(dt_tokenizer_stream_push(c->stream, id, &text, &n));
    DT_TRY(add(c, text, n));
    *goes_on = !c->stopped;
    return DT_OK;
}

dt_status dti_choice_end(dti_http_choice *c, dt_end how)
{
    const char *text;
    size_t n;

    if (c->ended) return DT_OK;
    c->ended = true;
    DT_TRY(dt_tokenizer_stream_flush(c->stream, &text, &n));
    DT_TRY(add(c, text, n));
    c->finish = how == DT_END_LENGTH && !c->stopped ? "length" : "stop";
    if (c->tools) DT_TRY(dti_tools_take(c));
    return DT_OK;
}

/* Bytes at the end that begin a stop string. */
static size_t begun_stop(const dti_http_choice *c)
{
    size_t most = 0;

    for (int64_t i = 0; i < c->n_stops; i++) {
        const size_t n = strlen(c->stops[i]);
        for (size_t k = n - 1 < c->text.n ? n - 1 : c->text.n; k > most; k--)
            if (memcmp(c->text.bytes + c->text.n - k, c->stops[i], k) == 0) most = k;
    }
    return most;
}

size_t dti_choice_certain(const dti_http_choice *c)
{
    const size_t text = c->ended || c->stopped ? c->text.n : c->text.n - begun_stop(c);
    size_t calls;

    if (!c->tools || c->ended) return text;
    calls = dti_tools_begin(c->text.bytes, c->text.n);
    return calls < text ? calls : text;
}
