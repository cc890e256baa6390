/* SPDX-License-Identifier: Apache-2.0
 *
 * Processors that look at tokens: each rank does its own columns, nobody has to be asked. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/numbers.h"
#include "models/generation/json_text.h"

/* One row. */
typedef struct row {
    float *scores; /* this rank's columns */
    int64_t n, first;
    const int32_t *ids;
    int64_t length;
} row;

static float *column(const row *r, int64_t token)
{
    return token >= r->first && token < r->first + r->n ? &r->scores[token - r->first] : NULL;
}

static void ban(const row *r, int64_t token)
{
    float *score = column(r, token);

    if (score != NULL) *score = -INFINITY;
}

static void ban_all(const row *r, dt_ids tokens)
{
    for (int64_t i = 0; i < tokens.n; i++) ban(r, tokens.ids[i]);
}

/* Each token that occurred is pushed down once, however often it did. `seen` has a byte for each
 * column, all zero before and after. */
static void penalise(const row *r, float penalty, unsigned char *seen)
{
    for (int64_t i = 0; i < r->length; i++) {
        float *score = column(r, r->ids[i]);
        if (score == NULL || seen[score - r->scores]) continue;
        seen[score - r->scores] = 1;
        *score = *score < 0 ? *score * penalty : *score / penalty;
    }
    for (int64_t i = 0; i < r->length; i++) {
        const float *score = column(r, r->ids[i]);
        if (score != NULL) seen[score - r->scores] = 0;
    }
}

/* The last token of a sequence that is there but for that. */
static bool is_due(const row *r, dt_ids ids)
{
    const int64_t before = ids.n - 1;

    return before <= r->length &&
           memcmp(r->ids + r->length - before, ids.ids, (size_t)before * sizeof *ids.ids) == 0;
}

static void add_bias(const row *r, const dt_bias *bias)
{
    float *score = column(r, bias->ids.ids[bias->ids.n - 1]);

    if (score != NULL && is_due(r, bias->ids)) *score = (float)((double)*score + bias->bias);
}

/* The new tokens of a row, n of them: a token that comes again has been counted already where it
 * stands first. */
static void penalise_new(const row *r, int64_t n, const dt_generate_options *o, unsigned char *seen)
{
    const int32_t *ids = r->ids + r->length - n;

    for (int64_t i = 0; i < n; i++) {
        float *score = column(r, ids[i]);
        if (score == NULL) continue;
        if (!seen[score - r->scores]) *score = (float)((double)*score - o->presence_penalty);
        seen[score - r->scores] = 1;
        *score = (float)((double)*score - o->frequency_penalty);
    }
    for (int64_t i = 0; i < n; i++) {
        const float *score = column(r, ids[i]);
        if (score != NULL) seen[score - r->scores] = 0;
    }
}

/* Bans what would end an n-gram that is there already. */
static void ban_repeated(const row *r, int64_t n)
{
    const int32_t *end = r->ids + r->length - (n - 1);

    for (int64_t i = 0; i + n <= r->length; i++)
        if (memcmp(r->ids + i, end, (size_t)(n - 1) * sizeof *end) == 0) ban(r, r->ids[i + n - 1]);
}

static void ban_words(const row *r, const dti_text_rules *rules)
{
    for (int64_t w = 0; w < rules->o.n_bad_words; w++) {
        const dt_ids word = rules->o.bad_words[w];
        if (word.n == 1 && dti_is_eos(rules, word.ids[0])) continue; /* as upstream */
        if (is_due(r, word)) ban(r, word.ids[word.n - 1]);
    }
}

static void force(const row *r, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < r->n; i++) r->scores[i] = -INFINITY;
    for (int64_t i = 0; i < n; i++) {
        float *score = column(r, ids[i]);
        if (score != NULL) *score = 0;
    }
}

static void make_valid(const row *r)
{
    for (int64_t i = 0; i < r->n; i++) {
        float *score = &r->scores[i];
        if (isnan(*score)) *score = 0;
        if (isinf(*score)) *score = *score > 0 ? FLT_MAX : -FLT_MAX;
    }
}

/* A row that is over has written something else since, which nobody looks at. */
static dt_status write_json(dti_text_rules *rules, const row *r)
{
    dti_json_state s;

    DT_TRY(dti_json_read_tokens(rules, r->ids + r->length - rules->n_new, rules->n_new, &s));
    if (s.n > 0 && !dti_json_is_whole(&s))
        dti_json_mask(rules->schema, rules->texts, &s, r->scores, r->first, r->n);
    return DT_OK;
}

static dt_status process(dti_text_rules *rules, const row *r)
{
    const dt_generate_options *o = &rules->o;
    const int64_t length = rules->n_prompt + rules->n_new;
    /* where the prompt is one token and the second is forced, the text begins behind it */
    const bool later = rules->n_prompt <= 1 && o->forced_bos >= 0;

    for (int64_t i = 0; i < o->n_sequence_bias; i++) add_bias(r, &o->sequence_bias[i]);
    if (o->repetition_penalty != 1) penalise(r, (float)o->repetition_penalty, rules->seen);
    if (o->presence_penalty != 0 || o->frequency_penalty != 0)
        penalise_new(r, rules->n_new, o, rules->seen);
    if (o->no_repeat_ngram_size > 0 && r->length + 1 >= o->no_repeat_ngram_size)
        ban_repeated(r, o->no_repeat_ngram_size);
    ban_words(r, rules);
    if (length < rules->min_length) ban_all(r, rules->eos);
    if (o->forced_bos >= 0 && length == 1) force(r, &o->forced_bos, 1);
    if (o->forced_eos.n > 0 && length == rules->max_length - 1)
        force(r, o->forced_eos.ids, o->forced_eos.n);
    if (o->remove_invalid_values) make_valid(r);
    ban_all(r, o->suppress_tokens);
    if (rules->n_new == (later ? 1 : 0)) ban_all(r, o->begin_suppress_tokens);
    if (rules->schema != NULL) DT_TRY(write_json(rules, r));
    return DT_OK;
}

dt_status dti_process_tokens(dti_text_rules *rules, const dti_history *h, dti_scores *s)
{
    DT_TRY(dti_rules_make_texts(rules));
    rules->n_texts = dti_max(rules->n_texts, s->all_rows);
    DT_TRY(dti_grow((void **)&rules->seen, &rules->seen_room, (size_t)s->n + 1, 1));
    for (int64_t i = 0; i < s->n_rows; i++) {
        const int64_t of_all = s->first_row + i;
        const row r = { .scores = s->data + i * s->n,
                        .n = s->n,
                        .first = s->first,
                        .ids = h->ids + of_all * h->room,
                        .length = h->length[of_all] };
        DT_TRY(process(rules, &r));
        if (rules->o.remove_invalid_values) s->invalid[i] = false;
    }
    return DT_OK;
}

dt_status dti_process(dti_text_rules *rules, const dti_history *h, dti_scores *s)
{
    if (!s->few) DT_TRY(dti_process_tokens(rules, h, s));
    if (rules->o.do_sample) DT_TRY(dti_process_sampling(rules, s));
    if (rules->o.renormalize_logits) DT_TRY(dti_scores_normalise(s));
    return DT_OK;
}
