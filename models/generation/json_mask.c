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

static bool read_token(const dti_json_schema *schema, const dti_token_texts *t, int64_t id,
                       dti_json_state *s)
{
    const size_t end = t->begin[id + 1];

    if (t->begin[id] == end) return false;
    for (size_t at = t->begin[id]; at < end; at++)
        if (!dti_json_step(schema, s, (unsigned char)t->text[at])) return false;
    return true;
}

bool dti_json_read_tokens(const dti_json_schema *schema, const dti_token_texts *t,
                          const int32_t *ids, int64_t n, dti_json_state *out)
{
    dti_json_begin(schema, out);
    for (int64_t i = 0; i < n; i++)
        if (!read_token(schema, t, ids[i], out)) return false;
    return true;
}

/* Most tokens fail with their first byte, which is tried once for all of them. */
void dti_json_mask(const dti_json_schema *schema, const dti_token_texts *t, const dti_json_state *s,
                   float *scores, int64_t first, int64_t n)
{
    dti_json_state next;
    bool may[256];

    for (int c = 0; c < 256; c++) {
        dti_json_copy(&next, s);
        may[c] = dti_json_step(schema, &next, (unsigned char)c);
    }
    for (int64_t i = 0; i < n; i++) {
        const size_t at = first + i < t->n ? t->begin[first + i] : 0;
        const size_t bytes = first + i < t->n ? t->begin[first + i + 1] - at : 0;
        bool well = bytes > 0 && may[(unsigned char)t->text[at]];
        if (well && bytes > 1) {
            dti_json_copy(&next, s);
            well = read_token(schema, t, first + i, &next);
        }
        if (!well) scores[i] = -INFINITY;
    }
}

dt_status dti_rules_make_texts(dti_text_rules *u)
{
    dti_token_texts *t;
    dt_status st;

    if (u->schema == NULL || u->texts != NULL) return DT_OK;
    DT_TRY(dti_new(sizeof *t, &t));
    st = dti_token_texts_make(t, u->o.tokenizer, u->vocab);
    u->texts = t;
    DT_TRY(st);
    return DT_OK;
}

bool dti_json_ends(const dti_text_rules *u, const int32_t *ids, int64_t n, int32_t next)
{
    dti_json_state s;

    return u->schema != NULL && u->texts != NULL &&
           dti_json_read_tokens(u->schema, u->texts, ids + n - u->n_new, u->n_new, &s) &&
           read_token(u->schema, u->texts, next, &s) && dti_json_is_whole(&s);
}
