/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens of many texts, each by its own options, from the logits of one pass. What looks at tokens
 * is done text by text, and asks nobody; what looks at probabilities asks the ranks that have other
 * columns, once for all texts whose options say the same of it. Each rank does what it has logits
 * of, and choices are told to all in one message. */
#include <stdlib.h>
#include <string.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "mesh/runtime.h"
#include "models/engine/engine_parts.h"
#include "models/run/forward.h"

void dti_choosing_free(dti_choosing *c)
{
    dti_scores_free(&c->taken);
    dti_scores_free(&c->scores);
    dti_free(c->tops);
    dti_free(c->keys);
    dti_free(c->whole);
    dti_free(c->picks);
    dti_free(c->raw);
    dti_free(c->ranked);
    dti_free(c->logprobs);
    *c = (dti_choosing){ 0 };
}

/* --- picks ------------------------------------------------------------------------------------ */

static bool same_probabilities(const dt_generate_options *a, const dt_generate_options *b)
{
    if (a->do_sample != b->do_sample || a->renormalize_logits != b->renormalize_logits)
        return false;
    return !a->do_sample ||
           (a->temperature == b->temperature && a->top_k == b->top_k && a->top_p == b->top_p &&
            a->min_p == b->min_p && a->typical_p == b->typical_p &&
            a->epsilon_cutoff == b->epsilon_cutoff && a->eta_cutoff == b->eta_cutoff);
}

/* The group of the last pick: that of one before it, or a new one. */
static void find_group(dti_choosing *c)
{
    dti_pick *last = &c->picks[c->n_picks - 1];

    for (int64_t i = 0; i < c->n_picks - 1; i++) {
        const dti_pick *p = &c->picks[i];
        last->group = (int)dti_max(last->group, p->group + 1);
        if (!same_probabilities(&p->request->rules.o, &last->request->rules.o)) continue;
        last->group = p->group;
        return;
    }
}

/* Rows of a replica side by side, and those of a group. */
static int by_group(const void *a, const void *b)
{
    const dti_pick *x = a, *y = b;

    if (x->replica != y->replica) return x->replica < y->replica ? -1 : 1;
    if (x->group != y->group) return x->group < y->group ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static int by_place(const void *a, const void *b)
{
    const dti_pick *x = a, *y = b;

    return x->at < y->at ? -1 : 1;
}

static dt_status collect_picks(dt_engine *e, int64_t n_out)
{
    dti_choosing *c = &e->choosing;

    c->n_picks = 0;
    for (int64_t k = 0; k < e->replicas; k++) {
        const dti_plan *p = &e->schedule->replicas[k].plan;
        int64_t row = k * n_out;
        DT_TRY(dti_grow((void **)&c->picks, &c->picks_room, (size_t)(c->n_picks + p->n_choices),
                        sizeof *c->picks));
        for (int64_t i = 0; i < p->n_parts; i++) {
            const dti_sequence *q = p->parts[i].of;
            for (int64_t j = 0; j < q->n_texts && p->parts[i].chooses; j++) {
                c->picks[c->n_picks] = (dti_pick){ .request = dti_engine_find(e, q->request),
                                                   .of = q,
                                                   .text = q->text + j,
                                                   .row = row,
                                                   .at = c->n_picks,
                                                   .replica = (int)k };
                c->n_picks++;
                find_group(c);
            }
            row += p->parts[i].chooses;
        }
    }
    /* no text may be due: of the first pass there are no picks at all */
    if (c->n_picks > 1) qsort(c->picks, (size_t)c->n_picks, sizeof *c->picks, by_group);
    return DT_OK;
}

/* --- scores of them --------------------------------------------------------------------------- */

static int64_t n_new(const dti_pick *p)
{
    return p->of->n_known - p->of->n_prompt;
}

/* Nothing is done to scores: keys of all rows, as the logits lie. */
static dt_status take_best(dt_engine *e, dt_tensor *logits)
{
    dti_choosing *c = &e->choosing;
    const int64_t n = dt_tensor_extent(logits, 0);
    dt_tensor *key;

    (void)dti_choose_greedy(e->tape, logits, &key);
    DT_TRY(dt_tape_status(e->tape));
    DT_TRY(dti_grow((void **)&c->keys, &c->keys_room, (size_t)n, sizeof *c->keys));
    DT_TRY(dt_tensor_read(key, c->keys, (size_t)n * sizeof *c->keys));
    for (int64_t i = 0; i < c->n_picks; i++) c->picks[i].key = c->keys[c->picks[i].row];
    return DT_OK;
}

/* The best columns of each row, where they are all that is needed; else all of them. */
static dt_status take_scores(dt_engine *e, dt_tensor *logits)
{
    dti_choosing *c = &e->choosing;
    const int64_t n = dt_tensor_extent(logits, 0);
    bool few = true;

    c->taken.batch_dims = e->model->batch_dims;
    DT_TRY(dti_grow((void **)&c->tops, &c->tops_room, (size_t)n, sizeof *c->tops));
    memset(c->tops, 0, (size_t)n * sizeof *c->tops);
    for (int64_t i = 0; i < c->n_picks; i++) {
        const dti_text_rules *u = &c->picks[i].request->rules;
        few = few && (u->top.n > 0 || !u->processes);
        c->tops[c->picks[i].row] = u->top.n > 0 ? u->top : (dti_top){ 1, 1, 1.0f };
    }
    if (few) DT_TRY(dti_scores_take_best(&c->taken, e->tape, logits, c->tops, n, &few));
    if (!few) DT_TRY(dti_scores_take(&c->taken, e->tape, logits));
    return DT_OK;
}

/* A copy of its row for each pick of this rank: several texts of a prompt begin with the same. */
static dt_status copy_scores(dti_choosing *c)
{
    const dti_scores *from = &c->taken;
    dti_scores *s = &c->scores;
    const size_t n = (size_t)from->n;
    size_t cells;

    s->mesh = from->mesh;
    s->dims = from->dims;
    s->copies = from->copies;
    s->row_dims = from->row_dims;
    s->n = from->n;
    s->first = from->first;
    s->vocab = from->vocab;
    s->few = from->few;
    s->all_rows = c->n_picks;
    s->first_row = s->n_rows = 0;
    for (int64_t i = 0; i < c->n_picks; i++) {
        s->first_row += c->picks[i].row < from->first_row;
        s->n_rows +=
            c->picks[i].row >= from->first_row && c->picks[i].row < from->first_row + from->n_rows;
    }
    cells = (size_t)s->n_rows * n + 1;
    DT_TRY(dti_grow((void **)&s->data, &s->room, cells, sizeof *s->data));
    DT_TRY(dti_grow((void **)&s->invalid, &s->invalid_room, (size_t)s->n_rows + 1, sizeof(bool)));
    if (s->few) DT_TRY(dti_grow((void **)&s->tokens, &s->tokens_room, cells, sizeof *s->tokens));
    for (int64_t i = 0; i < s->n_rows; i++) {
        const size_t row = (size_t)(c->picks[s->first_row + i].row - from->first_row);
        memcpy(s->data + (size_t)i * n, from->data + row * n, n * sizeof *s->data);
        s->invalid[i] = from->invalid[row];
        if (s->few)
            memcpy(s->tokens + (size_t)i * n, from->tokens + row * n, n * sizeof *s->tokens);
    }
    return DT_OK;
}

dti_scores dti_scores_view(const dti_scores *s, int64_t first, int64_t n)
{
    dti_scores v = *s;

    v.data += first * s->n;
    v.invalid += first;
    if (s->few) v.tokens += first * s->n;
    v.n_rows = v.all_rows = n;
    v.first_row = 0;
    v.row_dims = 0;
    return v;
}

static dt_status process_tokens(dti_choosing *c)
{
    const dti_scores *s = &c->scores;

    for (int64_t i = 0; i < s->n_rows && !s->few; i++) {
        const dti_pick *p = &c->picks[s->first_row + i];
        const dti_history h = { p->of->ids, p->of->n_known, &p->of->n_known };
        dti_scores v = dti_scores_view(s, i, 1);
        p->request->rules.n_new = n_new(p);
        DT_TRY(dti_process_tokens(&p->request->rules, &h, &v));
    }
    return DT_OK;
}

static dt_status process_groups(dti_choosing *c)
{
    dti_scores *s = &c->scores;

    for (int64_t i = 0, n; i < s->n_rows; i += n) {
        const dti_pick *p = &c->picks[s->first_row + i];
        dti_text_rules *u = &p->request->rules;
        dti_scores v;
        for (n = 1; i + n < s->n_rows && p[n].group == p->group;) n++;
        v = dti_scores_view(s, i, n);
        if (u->o.do_sample) DT_TRY(dti_process_sampling(u, &v));
        if (u->o.renormalize_logits) DT_TRY(dti_scores_normalise(&v));
        s->columns = v.columns; /* may have grown */
        s->columns_room = v.columns_room;
    }
    return DT_OK;
}

/* --- who looks at scores ---------------------------------------------------------------------- */

/* Those of one text, on every rank: others than its own replica add zeros. */
static dt_status show(dti_choosing *c, const dti_pick *p)
{
    const dti_scores *s = &c->scores;
    const dt_generate_options *o = &p->request->rules.o;
    const int64_t at = p - c->picks - s->first_row, words = (s->vocab + 1) / 2;
    dti_comm *comm = NULL;

    DT_TRY(dti_grow((void **)&c->whole, &c->whole_room, (size_t)words * 2, sizeof *c->whole));
    memset(c->whole, 0, (size_t)words * 2 * sizeof *c->whole);
    if (at >= 0 && at < s->n_rows) {
        const dti_scores v = dti_scores_view(s, at, 1);
        DT_TRY(dti_scores_whole(&v, c->whole));
    }
    if (s->row_dims != 0) DT_TRY(dti_mesh_comm(s->mesh, s->row_dims, &comm));
    if (comm != NULL) DT_TRY(dti_all_reduce(comm, c->whole, c->whole, words, DT_I64, DT_SUM));
    o->on_scores(o->scores_arg, n_new(p), c->whole, 1, s->vocab);
    return DT_OK;
}

static dt_status show_all(dti_choosing *c)
{
    for (int64_t i = 0; i < c->n_picks; i++)
        if (c->picks[i].request->rules.o.on_scores != NULL) DT_TRY(show(c, &c->picks[i]));
    return DT_OK;
}

/* --- choices ---------------------------------------------------------------------------------- */

static dt_status choose(dti_choosing *c)
{
    const dti_scores *s = &c->scores;

    DT_TRY(dti_grow((void **)&c->keys, &c->keys_room, (size_t)c->n_picks, sizeof *c->keys));
    for (int64_t i = 0; i < s->n_rows; i++) {
        const dti_pick *p = &c->picks[s->first_row + i];
        const dt_generate_options *o = &p->request->rules.o;
        int64_t *key = &c->keys[s->first_row + i];
        const dti_scores v = dti_scores_view(s, i, 1);
        if (o->do_sample)
            *key = dti_scores_draw_row(s, i, o->seed, p->text, n_new(p));
        else
            dti_scores_find_best(&v, key);
    }
    DT_TRY(dti_scores_share(s, c->keys));
    for (int64_t i = 0; i < c->n_picks; i++) c->picks[i].key = c->keys[i];
    return DT_OK;
}

dt_status dti_engine_choose(dt_engine *e, dt_tensor *logits)
{
    dti_choosing *c = &e->choosing;
    bool processes = false;

    DT_TRY(collect_picks(e, logits != NULL ? dt_tensor_extent(logits, 0) / e->replicas : 0));
    if (logits == NULL) return DT_OK;
    for (int64_t i = 0; i < c->n_picks; i++) processes |= c->picks[i].request->rules.processes;
    if (!processes) {
        DT_TRY(take_best(e, logits));
    } else {
        DT_TRY(take_scores(e, logits));
        DT_TRY(copy_scores(c));
        DT_TRY(dti_choosing_keep_logprobs(c));
        DT_TRY(process_tokens(c));
        DT_TRY(process_groups(c));
        DT_TRY(show_all(c));
        DT_TRY(choose(c));
        DT_TRY(dti_choosing_logprobs(c));
    }
    qsort(c->picks, (size_t)c->n_picks, sizeof *c->picks, by_place);
    return DT_OK;
}
