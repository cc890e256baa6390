/* SPDX-License-Identifier: Apache-2.0 */
#include "service/waiter.h"

#include <string.h>

#include "base/options.h"

dt_status dti_waiter_create(const dt_request_options *how, int64_t n_texts, dti_waiter **out)
{
    dt_status st = DT_OK;
    dti_waiter *w;

    DT_TRY(dti_new(sizeof *w, &w));
    w->how = *how;
    w->n_texts = n_texts;
    DT_TRY_TO(fail, st, dti_new(sizeof *w->reply, &w->reply));
    DT_TRY_TO(fail, st, dti_new(sizeof *w->texts, &w->texts));
    DT_TRY_TO(fail, st, dti_texts_make(n_texts, 0, 0, &w->texts->texts));
    w->texts->n = n_texts;
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n_texts, sizeof *w->told, (void **)&w->told));
    DT_TRY_TO(
        fail, st,
        dti_alloc_array((size_t)n_texts, sizeof(dt_tokenizer_stream *), (void **)&w->streams));
    *out = w;
    return DT_OK;

fail:
    dti_waiter_free(w);
    return st;
}

void dti_waiter_free(dti_waiter *w)
{
    if (w == NULL) return;
    for (int64_t i = 0; w->streams != NULL && i < w->n_texts; i++)
        dt_tokenizer_stream_release(&w->streams[i]);
    dti_free(w->streams);
    dti_free(w->told);
    dt_generated_release(&w->texts);
    dt_reply_release(&w->reply);
    dt_tokenizer_release(&w->tokenizer);
    dti_free(w);
}

/* --- texts ------------------------------------------------------------------------------------ */

static dt_status say_text(dti_waiter *w, int64_t text, const int32_t *id)
{
    const char *bytes;
    size_t n;

    if (w->how.on_text == NULL) return DT_OK;
    if (w->streams[text] == NULL)
        DT_TRY(dt_tokenizer_stream_create(w->tokenizer, true, &w->streams[text]));
    if (id != NULL)
        DT_TRY(dt_tokenizer_stream_push(w->streams[text], *id, &bytes, &n));
    else
        DT_TRY(dt_tokenizer_stream_flush(w->streams[text], &bytes, &n));
    if (n > 0 && !w->how.on_text(w->how.arg, text, bytes, n)) w->enough = true;
    return DT_OK;
}

static dt_status say_token(dti_waiter *w, int64_t text, int32_t id, const dt_logprob *logprobs)
{
    const int64_t n = w->told[text]++;

    if (w->how.on_logprobs != NULL && w->n_logprobs > 0)
        w->how.on_logprobs(w->how.arg, text, n, logprobs, w->n_logprobs);

    if (w->how.on_token != NULL && !w->how.on_token(w->how.arg, text, n, id)) w->enough = true;
    if (w->on_token != NULL && !w->on_token(w->token_arg, n, id)) w->enough = true;
    return say_text(w, text, &id);
}

/* A text as a whole; callbacks hear what they have not heard, and one that has enough gets no more
 * than it has heard. */
static dt_status take_text(dti_waiter *w, const dti_event *e)
{
    dti_new_text *text = &w->texts->texts[e->a];
    const int32_t *ids = (const int32_t *)(const void *)(e->data + sizeof(dti_text_head));
    const size_t list = (size_t)w->n_logprobs * sizeof(dt_logprob);
    dti_text_head head;

    memcpy(&head, e->data, sizeof head);
    dti_free(text->ids);
    dti_free(text->logprobs);
    text->ids = NULL;
    text->logprobs = NULL;
    text->n_logprobs = w->n_logprobs;
    DT_TRY(dti_alloc_array((size_t)head.n + 1, sizeof *ids, (void **)&text->ids));
    memcpy(text->ids, ids, (size_t)head.n * sizeof *ids);
    if (list > 0) { /* of the last bytes */
        DT_TRY(dti_alloc_array((size_t)head.n + 1, list, (void **)&text->logprobs));
        memcpy(text->logprobs, e->data + e->n_bytes - (size_t)head.n * list, (size_t)head.n * list);
    }
    text->n = head.n;
    text->end = head.end;
    text->score = head.score;
    text->found = head.found;
    while (!w->enough && w->told[e->a] < text->n) {
        const int64_t n = w->told[e->a];
        DT_TRY(say_token(w, e->a, text->ids[n], text->logprobs + n * w->n_logprobs));
    }
    if (w->told[e->a] == text->n) return w->enough ? DT_OK : say_text(w, e->a, NULL);
    text->n = w->told[e->a];
    text->end = DT_END_CANCELLED;
    return DT_OK;
}

void dti_waiter_cancelled(dti_waiter *w)
{
    for (int64_t i = 0; i < w->texts->n; i++)
        if (w->texts->texts[i].end == DT_END_NONE) w->texts->texts[i].end = DT_END_CANCELLED;
}

/* --- replies ---------------------------------------------------------------------------------- */

static dt_status take_piece(dti_waiter *w, const dti_event *e)
{
    dt_reply *r = w->reply;
    dt_piece piece;
    void *data;

    memcpy(&piece, e->data, sizeof piece);
    DT_TRY(dti_grow((void **)&r->pieces, &r->room, (size_t)r->n + 1, sizeof *r->pieces));
    DT_TRY(dti_alloc(piece.n_bytes, &data));
    memcpy(data, e->data + sizeof piece, piece.n_bytes);
    piece.data = data;
    r->pieces[r->n++] = piece;
    if (!w->enough && w->how.on_piece != NULL && !w->how.on_piece(w->how.arg, &piece))
        w->enough = true;
    return DT_OK;
}

void dt_reply_release(dt_reply **reply)
{
    dt_reply *r = reply != NULL ? *reply : NULL;

    if (r == NULL) return;
    *reply = NULL;
    for (int64_t i = 0; i < r->n; i++) dti_free((void *)(uintptr_t)r->pieces[i].data);
    dti_free(r->pieces);
    dti_free(r);
}

int64_t dt_reply_count(const dt_reply *r)
{
    return r != NULL ? r->n : 0;
}

const dt_piece *dt_reply_piece(const dt_reply *r, int64_t i)
{
    return i >= 0 && i < dt_reply_count(r) ? &r->pieces[i] : NULL;
}

dt_status dti_waiter_take(dti_waiter *w, const dti_event *e)
{
    int32_t id;

    switch (e->kind) {
    case DTI_EVENT_TOKEN:
        memcpy(&id, e->data, sizeof id);
        if (w->enough) return DT_OK;
        return say_token(w, e->a, id, (const dt_logprob *)(const void *)(e->data + sizeof id));
    case DTI_EVENT_TEXT:
        return take_text(w, e);
    case DTI_EVENT_PIECE:
        return take_piece(w, e);
    case DTI_EVENT_SCORES:
        if (w->enough) return DT_OK;
        w->on_scores(w->scores_arg, e->b, (const float *)(const void *)e->data, e->a,
                     (int64_t)(e->n_bytes / sizeof(float)) / e->a);
        return DT_OK;
    }
    return DT_OK;
}
