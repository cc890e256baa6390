/* SPDX-License-Identifier: Apache-2.0
 *
 * Beam search, with the bookkeeping of Transformers (_beam_search of version 5): for each prompt
 * `width` beams run on, and the `width` best finished ones are kept. In each step the k best
 * continuations of all running beams are looked at, enough to go on if ends are among them. Sums
 * and comparisons are in f32, as there. */
#include <math.h>
#include <string.h>

#include "models/generation/generated.h"

/* What is out of the race. */
static const float lost = -1e9f;

/* One prompt's. */
typedef struct item {
    float *running;         /* [width] sums of log-probabilities, best first */
    dti_new_text *finished; /* [width] best first; end DT_END_NONE: nothing yet */
    bool open;              /* a running beam may still beat a finished one */
} item;

typedef struct dti_search {
    dti_batch *b;
    int64_t width, k;
    item *items;            /* [n_prompts] */
    float *running;         /* [n_prompts, width] */
    dti_new_text *finished; /* [n_prompts, width] */
    dti_candidate *found;   /* [n_prompts, k] best first */
    dt_end *ends;           /* [n_prompts, k] */
    int64_t *from;          /* [n_prompts * width] */
    float *scores;          /* [width + k] of a merge */
    dti_new_text *merged;   /* [width] */
    int64_t *picked;        /* [width] */
} dti_search;

static dt_status make_search(dti_search *s, dti_batch *b)
{
    const dti_text_rules *u = &b->rules;
    const int64_t ends = u->eos.n, n = b->n_prompts;
    size_t rows;

    *s = (dti_search){ .b = b, .width = u->o.num_beams };
    s->k = (ends > 1 ? 1 + ends : 2) * s->width;
    rows = (size_t)(n * s->width);
    DT_TRY(dti_alloc_array((size_t)n, sizeof *s->items, (void **)&s->items));
    DT_TRY(dti_alloc_array(rows, sizeof *s->running, (void **)&s->running));
    DT_TRY(dti_texts_make((int64_t)rows, b->max_new, 0, &s->finished));
    DT_TRY(dti_alloc_array((size_t)(n * s->k), sizeof *s->found, (void **)&s->found));
    DT_TRY(dti_alloc_array((size_t)(n * s->k), sizeof *s->ends, (void **)&s->ends));
    DT_TRY(dti_alloc_array(rows, sizeof *s->from, (void **)&s->from));
    DT_TRY(dti_alloc_array((size_t)(s->width + s->k), sizeof(float), (void **)&s->scores));
    DT_TRY(dti_alloc_array((size_t)s->width, sizeof *s->merged, (void **)&s->merged));
    DT_TRY(dti_alloc_array((size_t)s->width, sizeof *s->picked, (void **)&s->picked));
    for (int64_t i = 0; i < n; i++)
        s->items[i] = (item){ s->running + i * s->width, s->finished + i * s->width, true };
    for (size_t r = 0; r < rows; r++) {
        /* beams of a prompt begin alike: only the first one counts */
        s->running[r] = r % (size_t)s->width == 0 ? 0.0f : lost;
        s->finished[r].score = lost;
    }
    return DT_OK;
}

void dti_beams_free(dti_batch *b)
{
    dti_search *s = b->search;

    if (s == NULL) return;
    b->search = NULL;
    if (s->finished != NULL) dti_texts_free(s->finished, s->b->n_prompts * s->width);
    dti_free(s->items);
    dti_free(s->running);
    dti_free(s->found);
    dti_free(s->ends);
    dti_free(s->from);
    dti_free(s->scores);
    dti_free(s->merged);
    dti_free(s->picked);
    dti_free(s);
}

/* The places of the n best of m scores, the earlier of equal ones first. */
static void pick(const float *scores, int64_t m, int64_t *best, int64_t n)
{
    int64_t found = 0;

    for (int64_t i = 0; i < m; i++) {
        int64_t at = found < n ? found : n;
        while (at > 0 && scores[i] > scores[best[at - 1]]) at--;
        if (at == n) continue;
        if (found < n) found++;
        memmove(best + at + 1, best + at, (size_t)(found - 1 - at) * sizeof *best);
        best[at] = i;
    }
}

/* --- one step - */

static dt_status find_candidates(dti_search *s)
{
    dti_batch *b = s->b;
    dti_text_rules *u = &b->rules;
    dti_scores *scores = &b->step.scores;
    const dti_ranking by = { .rows_per_group = s->width,
                             .k = s->k,
                             .add = s->running,
                             .noise = u->o.do_sample,
                             .seed = u->o.seed,
                             .step = u->n_new };
    dti_history h;

    DT_TRY(dti_step_scores(&b->step));
    h = dti_history_of(b->state);
    DT_TRY(dti_scores_normalise(scores));
    DT_TRY(dti_process(u, &h, scores));
    DT_TRY(dti_step_show(&b->step));
    DT_TRY(dti_scores_rank(scores, &by, s->found));
    for (int64_t i = 0; i < b->n_prompts; i++)
        if (isnan(s->found[i * s->k].score)) return dti_step_not_numbers(&b->step);
    return DT_OK;
}

static dt_status find_ends(dti_search *s, bool *all)
{
    const dt_state *state = s->b->state;

    *all = true;
    for (int64_t c = 0; c < s->b->n_prompts * s->k; c++) {
        const dti_candidate *x = &s->found[c];
        DT_TRY(dti_ends(&s->b->rules, state->ids + x->row * state->capacity, state->lengths[x->row],
                        (int32_t)x->token, &s->ends[c]));
        *all &= s->ends[c] != DT_END_NONE;
    }
    return DT_OK;
}

/* The beams that go on: the best candidates that are no ends, as long as there are any. */
static void choose_running(dti_search *s, int64_t i)
{
    const dti_candidate *found = s->found + i * s->k;
    const dt_end *ends = s->ends + i * s->k;

    for (int64_t c = 0; c < s->k; c++)
        s->scores[c] = found[c].score + (ends[c] != DT_END_NONE ? lost : 0.0f);
    pick(s->scores, s->k, s->picked, s->width);
    for (int64_t w = 0; w < s->width; w++) {
        const int64_t c = s->picked[w];
        s->items[i].running[w] = s->scores[c];
        s->from[i * s->width + w] = found[c].row;
        s->b->input[i * s->width + w] = (int32_t)found[c].token;
    }
}

/* The text of a candidate that ends. */
static void write_text(const dti_search *s, int64_t i, int64_t c, dti_new_text *text)
{
    const dt_state *state = s->b->state;
    const dti_candidate *x = &s->found[i * s->k + c];
    const int64_t n_new = s->b->rules.n_new, n_prompt = s->b->prompts[i].n;

    memcpy(text->ids, state->ids + x->row * state->capacity + n_prompt,
           (size_t)n_new * sizeof *text->ids);
    text->ids[n_new] = (int32_t)x->token;
    text->n = n_new + 1;
    text->end = s->ends[i * s->k + c];
}

static bool all_finished(const dti_search *s, const item *it)
{
    for (int64_t w = 0; w < s->width; w++)
        if (it->finished[w].end == DT_END_NONE) return false;
    return true;
}

/* Merges the candidates that ended into the finished ones. Only the first `width` candidates count,
 * nothing is added to a full list with early stopping, nor to one that cannot be beaten. */
static void merge_finished(dti_search *s, int64_t i)
{
    const dti_text_rules *u = &s->b->rules;
    item *it = &s->items[i];
    const bool full = all_finished(s, it) && u->o.early_stopping == DT_EARLY_STOPPING_TRUE;
    const float per = (float)pow((double)(u->n_new + 1), u->o.length_penalty);
    int64_t spare = 0;

    for (int64_t w = 0; w < s->width; w++) s->scores[w] = it->finished[w].score;
    for (int64_t c = 0; c < s->k; c++) {
        const bool ended = s->ends[i * s->k + c] != DT_END_NONE && c < s->width;
        float score = s->found[i * s->k + c].score / per;
        if (full) score += lost;
        if (!it->open) score += lost;
        if (!ended) score += lost;
        s->scores[s->width + c] = score;
    }
    pick(s->scores, s->width + s->k, s->picked, s->width);
    for (int64_t w = 0; w < s->width; w++) {
        const int64_t at = s->picked[w];
        if (at < s->width) {
            s->merged[w] = it->finished[at];
            it->finished[at].ids = NULL; /* taken */
        }
    }
    for (int64_t w = 0; w < s->width; w++) {
        const int64_t at = s->picked[w];
        if (at < s->width) continue;
        while (it->finished[spare].ids == NULL) spare++;
        s->merged[w].ids = it->finished[spare].ids;
        it->finished[spare].ids = NULL;
        write_text(s, i, at - s->width, &s->merged[w]);
        if (at - s->width >= s->width) s->merged[w].end = DT_END_NONE;
        s->merged[w].score = s->scores[at];
    }
    memcpy(it->finished, s->merged, (size_t)s->width * sizeof *s->merged);
}

/* Whether the best running beam could come out above a finished one. Once denied, it stays so. */
static void look_ahead(dti_search *s, int64_t i)
{
    const dti_text_rules *u = &s->b->rules;
    item *it = &s->items[i];
    const bool far = u->o.early_stopping == DT_EARLY_STOPPING_NEVER && u->o.length_penalty > 0;
    const int64_t length = far ? s->b->max_new : u->n_new;
    const float best = it->running[0] / (float)pow((double)length, u->o.length_penalty);
    float least = it->finished[0].score;
    bool possible = false;

    for (int64_t w = 1; w < s->width; w++) least = fminf(least, it->finished[w].score);
    for (int64_t w = 0; w < s->width; w++)
        possible |= best > (it->finished[w].end != DT_END_NONE ? least : lost);
    it->open = it->open && possible;
}

static bool goes_on(const dti_search *s, bool all_ended)
{
    bool open = false, all_full = true;

    for (int64_t i = 0; i < s->b->n_prompts; i++) {
        open |= s->items[i].open;
        all_full &= all_finished(s, &s->items[i]);
    }
    if (s->b->rules.o.early_stopping == DT_EARLY_STOPPING_TRUE && all_full) return false;
    return open && !all_ended;
}

dt_status dti_beams_step(dti_batch *b)
{
    dti_search *s = b->search;
    bool all_ended;

    DT_TRY(find_candidates(s));
    DT_TRY(find_ends(s, &all_ended));
    for (int64_t i = 0; i < b->n_prompts; i++) {
        choose_running(s, i);
        merge_finished(s, i);
    }
    b->rules.n_new++;
    for (int64_t i = 0; i < b->n_prompts; i++) look_ahead(s, i);
    b->over = !goes_on(s, all_ended);
    if (!b->over) DT_TRY(dti_state_reorder(b->state, s->from));
    return DT_OK;
}

/* Where all continuations of a step are banned, or a penalty makes every score infinite, beams end
 * with nothing: that is no text, and an empty one would say otherwise. */
static dt_status check_finished(const dti_search *s)
{
    const dt_generate_options *o = &s->b->rules.o;

    for (int64_t i = 0; i < s->b->n_prompts * o->num_return_sequences; i++)
        DT_CHECK(s->items[i / o->num_return_sequences].finished[i % o->num_return_sequences].end !=
                     DT_END_NONE,
                 DT_ERR_ARG,
                 "beam search ended after %lld tokens without text %lld of prompt %lld: "
                 "bad_words, suppress_tokens, no_repeat_ngram_size, forced_eos and their like "
                 "ban all other continuations, or length_penalty %g makes no score a number",
                 (long long)s->b->rules.n_new, (long long)(i % o->num_return_sequences + 1),
                 (long long)(s->b->first + i / o->num_return_sequences + 1), o->length_penalty);
    return DT_OK;
}

dt_status dti_beams_end(dti_batch *b)
{
    const int64_t wanted = b->rules.o.num_return_sequences;

    DT_TRY(check_finished(b->search));
    for (int64_t i = 0; i < b->n_texts; i++) {
        dti_new_text *from = &b->search->items[i / wanted].finished[i % wanted];
        const dti_new_text empty = b->texts[i];
        b->texts[i] = *from;
        *from = empty;
    }
    return DT_OK;
}

dt_status dti_beams_begin(dti_batch *b)
{
    b->rules.keep = (b->rules.eos.n > 0 ? b->rules.eos.n : 1) + 1;
    DT_TRY(dti_new(sizeof *b->search, &b->search));
    DT_TRY(make_search(b->search, b));
    return DT_OK;
}
