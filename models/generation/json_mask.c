/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens that may come next: those whose bytes lead somewhere. Most fail with their first byte. */
#include "models/generation/json_text.h"

#include <math.h>
#include <string.h>

/* Special tokens are no text, and a token without bytes would never end. */
dt_status dti_token_texts_make(dti_token_texts *t, const dt_tokenizer *tok, int64_t vocab)
{
    size_t used = 0, room = 0;

    DT_TRY(dti_alloc_array((size_t)vocab + 1, sizeof *t->begin, (void **)&t->begin));
    t->n = vocab;
    for (int64_t i = 0; i < vocab; i++) {
        char *bytes = NULL;
        size_t n = 0;
        dt_status st = DT_OK;
        t->begin[i] = used;
        if (dt_tokenizer_is_special(tok, (int32_t)i)) continue;
        DT_TRY(dt_tokenizer_bytes(tok, (int32_t)i, &bytes, &n));
        st = dti_grow((void **)&t->text, &room, used + n + 1, 1);
        if (st == DT_OK) memcpy(t->text + used, bytes, n);
        dt_tokenizer_free(bytes);
        DT_TRY(st);
        used += n;
    }
    t->begin[vocab] = used;
    return DT_OK;
}

void dti_token_texts_free(dti_token_texts *t)
{
    dti_free(t->text);
    dti_free(t->begin);
    *t = (dti_token_texts){ 0 };
}

static bool read_token(const dti_token_texts *t, int64_t id, dti_json_state *s)
{
    const size_t end = t->begin[id + 1];

    if (t->begin[id] == end) return false;
    for (size_t at = t->begin[id]; at < end; at++)
        if (!dti_json_step(s, (unsigned char)t->text[at])) return false;
    return true;
}

bool dti_json_read_tokens(const dti_token_texts *t, const int32_t *ids, int64_t n,
                          dti_json_state *out)
{
    *out = (dti_json_state){ 0 };
    for (int64_t i = 0; i < n; i++)
        if (!read_token(t, ids[i], out)) return false;
    return true;
}

void dti_json_mask(const dti_token_texts *t, const dti_json_state *s, float *scores, int64_t first,
                   int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        dti_json_state next = *s;
        if (first + i >= t->n || !read_token(t, first + i, &next)) scores[i] = -INFINITY;
    }
}

dt_status dti_rules_make_texts(dti_text_rules *u)
{
    dti_token_texts *t;
    dt_status st;

    DT_TRY(dti_new(sizeof *t, &t));
    st = dti_token_texts_make(t, u->o.tokenizer, u->vocab);
    u->texts = t;
    DT_TRY(st);
    return DT_OK;
}

bool dti_json_ends(const dti_text_rules *u, const int32_t *ids, int64_t n, int32_t next)
{
    dti_json_state s;

    return u->o.json_object && u->texts != NULL &&
           dti_json_read_tokens(u->texts, ids + n - u->n_new, u->n_new, &s) &&
           read_token(u->texts, next, &s) && dti_json_is_whole(&s);
}
