/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens that may come next: those whose bytes lead somewhere. Most fail with their first byte. */
#include "models/generation/json_text.h"

#include <math.h>
#include <string.h>

/* A token without bytes would never end. */
static bool read_token(const dti_json_schema *schema, const dti_token_texts *t, int64_t id,
                       dti_json_state *s)
{
    const size_t end = id < t->n ? t->begin[id + 1] : 0;

    if (end == 0 || t->begin[id] == end) return false;
    for (size_t at = t->begin[id]; at < end; at++)
        if (!dti_json_step(schema, s, (unsigned char)t->text[at])) return false;
    return true;
}

/* --- what is known ---------------------------------------------------------------------------- */

void dti_json_memory_free(dti_json_memory *m)
{
    for (int64_t i = 0; i < m->n; i++) {
        dti_free(m->list[i].ids);
        dti_free(m->list[i].ways);
    }
    dti_free(m->list);
    *m = (dti_json_memory){ 0 };
}

/* The longest beginning of these tokens that is known; NULL: none. */
static dti_json_known *find_known(dti_json_memory *m, const int32_t *ids, int64_t n)
{
    dti_json_known *best = NULL;

    for (int64_t i = 0; i < m->n; i++) {
        dti_json_known *k = &m->list[i];
        if (k->n == 0 || k->n > n || (best != NULL && k->n <= best->n)) continue;
        if (memcmp(k->ids, ids, (size_t)k->n * sizeof *ids) == 0) best = k;
    }
    return best;
}

/* A place for what is not known yet: that of what was not asked for longest, if all are taken. */
static dt_status find_place(dti_json_memory *m, int64_t n_texts, dti_json_known **out)
{
    *out = NULL;
    for (int64_t i = 0; i < m->n && m->n >= n_texts; i++)
        if (*out == NULL || m->list[i].used < (*out)->used) *out = &m->list[i];
    if (*out != NULL) {
        (*out)->n = 0;
        return DT_OK;
    }
    DT_TRY(dti_grow((void **)&m->list, &m->room, (size_t)m->n + 1, sizeof *m->list));
    *out = &m->list[m->n++];
    **out = (dti_json_known){ 0 };
    return DT_OK;
}

/* These tokens in the place of the beginning that was known: the text goes on from them. */
static dt_status keep(dti_json_known *k, const int32_t *ids, int64_t n, const dti_json_state *s)
{
    const int64_t known = k->n;

    k->n = k->n_ways = 0; /* until all is there */
    DT_TRY(dti_grow((void **)&k->ids, &k->ids_room, (size_t)n + 1, sizeof *ids));
    DT_TRY(dti_grow((void **)&k->ways, &k->ways_room, (size_t)s->n + 1, sizeof *s->ways));
    memcpy(k->ids + known, ids + known, (size_t)(n - known) * sizeof *ids);
    memcpy(k->ways, s->ways, (size_t)s->n * sizeof *s->ways);
    k->n = n;
    k->n_ways = s->n;
    return DT_OK;
}

dt_status dti_json_read_tokens(dti_text_rules *u, const int32_t *ids, int64_t n,
                               dti_json_state *out)
{
    dti_json_memory *m = u->json;
    dti_json_known *k = find_known(m, ids, n);
    int64_t at = 0;

    dti_json_begin(u->schema, out);
    if (n == 0) return DT_OK;
    if (k == NULL) DT_TRY(find_place(m, u->n_texts, &k));
    k->used = ++m->now;
    if (k->n > 0) {
        at = k->n;
        out->n = k->n_ways;
        memcpy(out->ways, k->ways, (size_t)k->n_ways * sizeof *k->ways);
    }
    if (at == n) return DT_OK;
    for (; at < n && out->n > 0; at++, m->n_read++)
        if (!read_token(u->schema, u->texts, ids[at], out)) out->n = 0;
    DT_TRY(keep(k, ids, n, out));
    return DT_OK;
}

/* --- the mask --------------------------------------------------------------------------------- */

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
    if (u->schema == NULL || u->texts != NULL) return DT_OK;
    if (u->json == NULL) DT_TRY(dti_new(sizeof *u->json, &u->json));
    DT_TRY(dti_tokenizer_texts(u->o.tokenizer, &u->texts));
    return DT_OK;
}

dt_status dti_json_ends(dti_text_rules *u, const int32_t *ids, int64_t n, int32_t next, bool *out)
{
    dti_json_state s;

    *out = false;
    if (u->schema == NULL || u->texts == NULL) return DT_OK;
    DT_TRY(dti_json_read_tokens(u, ids + n - u->n_new, u->n_new, &s));
    *out = s.n > 0 && read_token(u->schema, u->texts, next, &s) && dti_json_is_whole(&s);
    return DT_OK;
}
