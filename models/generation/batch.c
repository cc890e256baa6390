/* SPDX-License-Identifier: Apache-2.0
 *
 * Several prompts, several texts of each. Prompts are padded on the left and read once; where a
 * prompt has several texts its caches are copied afterwards. Of a model in stages the prompts are
 * cut into groups: while the last stage has one, the first has another. */
#include <string.h>

#include "base/numbers.h"
#include "base/options.h"
#include "mesh/runtime.h"
#include "models/generation/generated.h"
#include "models/run/forward.h"

/* --- texts ------------------------------------------------------------------------------------ */

dt_status dti_texts_make(int64_t n, int64_t max_new, int64_t n_logprobs, dti_new_text **out)
{
    const size_t room = (size_t)max_new + 1;
    dt_status st = DT_OK;

    DT_TRY(dti_alloc_array((size_t)n, sizeof **out, (void **)out));
    for (int64_t i = 0; i < n; i++) {
        dti_new_text *text = &(*out)[i];
        DT_TRY_TO(fail, st, dti_alloc_array(room, sizeof(int32_t), (void **)&text->ids));
        if (n_logprobs == 0) continue;
        text->n_logprobs = n_logprobs;
        DT_TRY_TO(fail, st,
                  dti_alloc_array(room, (size_t)n_logprobs * sizeof(dt_logprob),
                                  (void **)&text->logprobs));
    }
    return DT_OK;

fail:
    dti_texts_free(*out, n);
    *out = NULL;
    return st;
}

void dti_texts_free(dti_new_text *texts, int64_t n)
{
    for (int64_t i = 0; i < n && texts != NULL; i++) {
        dti_free(texts[i].ids);
        dti_free(texts[i].logprobs);
    }
    dti_free(texts);
}

void dt_generated_release(dt_generated **generated)
{
    dt_generated *g = generated ? *generated : NULL;

    if (g == NULL) return;
    *generated = NULL;
    dti_texts_free(g->texts, g->n);
    dti_free(g);
}

int64_t dt_generated_count(const dt_generated *g)
{
    return g != NULL ? g->n : 0;
}

static const dti_new_text *text_of(const dt_generated *g, int64_t i)
{
    static const dti_new_text none = { 0 };

    return i >= 0 && i < dt_generated_count(g) ? &g->texts[i] : &none;
}

dt_ids dt_generated_ids(const dt_generated *g, int64_t i)
{
    return (dt_ids){ text_of(g, i)->ids, text_of(g, i)->n };
}

dt_end dt_generated_end(const dt_generated *g, int64_t i)
{
    return text_of(g, i)->end;
}

double dt_generated_score(const dt_generated *g, int64_t i)
{
    return (double)text_of(g, i)->score;
}

int64_t dt_generated_found(const dt_generated *g, int64_t i)
{
    return text_of(g, i)->found;
}

const dt_logprob *dt_generated_logprobs(const dt_generated *g, int64_t i, int64_t n,
                                        int64_t *n_list)
{
    const dti_new_text *text = text_of(g, i);

    *n_list = 0;
    if (text->logprobs == NULL || n < 0 || n >= text->n) return NULL;
    *n_list = text->n_logprobs;
    return text->logprobs + n * text->n_logprobs;
}

/* --- checks ----------------------------------------------------------------------------------- */

dt_status dti_prompts_check(const dt_ids *prompts, int64_t n_prompts, int64_t *longest)
{
    *longest = 0;
    DT_CHECK(prompts != NULL && n_prompts >= 1, DT_ERR_ARG, "%lld prompts", (long long)n_prompts);
    for (int64_t i = 0; i < n_prompts; i++) {
        DT_CHECK(prompts[i].ids != NULL && prompts[i].n >= 1, DT_ERR_ARG,
                 "prompt %lld is empty: generation needs at least one token to start from",
                 (long long)i);
        *longest = dti_max(*longest, prompts[i].n);
    }
    return DT_OK;
}

dt_status dti_texts_rules(dti_text_rules *u, const dt_model_info *info,
                          const dt_generate_options *o, int64_t longest)
{
    int64_t max_new;

    DT_TRY(dti_rules_make(u, info, o, longest));
    DT_TRY(dti_texts_check(o, info, NULL));
    max_new = u->max_length - longest;
    DT_CHECK((max_new > 0 ? u->max_length - 1 : longest) <= info->max_positions, DT_ERR_ARG,
             "prompts of up to %lld tokens and %lld new ones exceed the model's context of %lld",
             (long long)longest, (long long)max_new, (long long)info->max_positions);
    return DT_OK;
}

/* --- every row by itself ---------------------------------------------------------------------- */

/* Prompts end together. */
static dt_status read_prompts(dti_batch *b)
{
    dt_status st = DT_OK;
    int64_t *pads;

    DT_TRY(dti_alloc_array((size_t)b->n_prompts, sizeof *pads, (void **)&pads));
    for (int64_t i = 0; i < b->n_prompts; i++) {
        const dt_ids *p = &b->prompts[i];
        int32_t *row = b->input + i * b->longest;
        pads[i] = b->longest - p->n;
        for (int64_t j = 0; j < pads[i]; j++) row[j] = b->pad;
        memcpy(row + pads[i], p->ids, (size_t)p->n * sizeof *row);
    }
    st = dt_state_pad(b->state, pads);
    dti_free(pads);
    return st;
}

/* A row's next token; what has ended gets padding. */
static dt_status put(dti_batch *b, int64_t r, int32_t id, dti_new_text *text, bool *done)
{
    const dt_state *s = b->state;

    b->input[r] = b->pad;
    if (*done) return DT_OK;
    b->input[r] = text->ids[text->n] = id;
    if (text->logprobs != NULL)
        memcpy(text->logprobs + text->n * text->n_logprobs, b->step.logprobs + r * text->n_logprobs,
               (size_t)text->n_logprobs * sizeof *text->logprobs);
    DT_TRY(dti_ends(&b->rules, s->ids + r * s->capacity, s->lengths[r], id, &text->end));
    text->n++;
    *done = text->end != DT_END_NONE;
    return DT_OK;
}

static dt_status rows_step(dti_batch *b)
{
    bool all = true;

    DT_TRY(dti_step_next(&b->step, b->next));
    for (int64_t r = 0; r < b->n_texts; r++) {
        DT_TRY(put(b, r, b->next[r], &b->texts[r], &b->done[r]));
        all &= b->done[r];
    }
    b->rules.n_new++;
    b->over = all || b->rules.n_new == b->max_new;
    return DT_OK;
}

static dt_status rows_begin(dti_batch *b)
{
    const size_t n = (size_t)b->n_texts;

    DT_TRY(dti_alloc_array(n, sizeof *b->next, (void **)&b->next));
    DT_TRY(dti_alloc_array(n, sizeof *b->done, (void **)&b->done));
    b->step.done = b->done;
    return DT_OK;
}

/* A token that a text may end with; any other is as good where there is none. */
static int32_t first_end(const dti_text_rules *u)
{
    for (int64_t i = 0; i < u->eos.n; i++)
        if (u->eos.ids[i] >= 0 && u->eos.ids[i] < u->vocab) return u->eos.ids[i];
    return 0;
}

/* --- groups ----------------------------------------------------------------------------------- */

static dt_status begin_group(dti_batch *b, const dti_making *m)
{
    const dt_generate_options *o = &m->o;
    const int64_t width = o->num_beams > 1 ? o->num_beams : o->num_return_sequences;
    const int64_t cells = b->n_prompts * (b->longest > width ? b->longest : width);

    DT_TRY(dti_rules_make(&b->rules, &b->model->info, o, b->longest));
    b->pad = o->pad >= 0 ? o->pad : first_end(&b->rules);
    DT_TRY(dt_state_create(b->model, b->n_prompts, b->rules.max_length - 1, &b->state));
    dt_state_set_go_on(b->state, m->go_on, m->go_on_arg);
    DT_TRY(dti_alloc_array((size_t)cells, sizeof *b->input, (void **)&b->input));
    b->n_input = b->longest;
    DT_TRY(dti_step_begin(&b->step, b->state, &b->rules));
    b->step.times = width;
    b->step.scores.above = b->first * width;
    DT_TRY(read_prompts(b));
    if (o->num_beams > 1)
        DT_TRY(dti_beams_begin(b));
    else
        DT_TRY(rows_begin(b));
    return DT_OK;
}

static dt_status enter(dti_batch *b)
{
    DT_TRY(dti_step_enter(&b->step, b->input, b->n_input));
    b->n_input = 1;
    return DT_OK;
}

static dt_status choose(dti_batch *b)
{
    if (b->search == NULL) return rows_step(b);
    DT_TRY(dti_beams_step(b));
    if (b->over) DT_TRY(dti_beams_end(b));
    return DT_OK;
}

static void free_group(dti_batch *b)
{
    dti_beams_free(b);
    dti_step_end(&b->step);
    dti_rules_free(&b->rules);
    dt_state_release(&b->state);
    dti_free(b->input);
    dti_free(b->next);
    dti_free(b->done);
}

/* Each group's next token enters the first stage as soon as it is chosen. */
static dt_status step_groups(dti_making *m)
{
    bool over = true;

    for (int i = 0; i < m->n_groups && !m->entered; i++) DT_TRY(enter(&m->groups[i]));
    m->entered = true;
    for (int i = 0; i < m->n_groups; i++) {
        dti_batch *b = &m->groups[i];
        if (b->over) continue;
        DT_TRY(choose(b));
        if (!b->over) DT_TRY(enter(b));
        over &= b->over;
    }
    m->over = over;
    return DT_OK;
}

/* A group that is alone keeps nobody waiting: its tokens are there before the next pass. */
dt_status dti_making_step(dti_making *m)
{
    if (m->over) return DT_OK;
    if (m->n_groups > 1) {
        DT_TRY(step_groups(m));
    } else {
        DT_TRY(enter(m->groups));
        DT_TRY(choose(m->groups));
        m->over = m->groups->over;
    }
    if (m->over) DT_TRY(dti_settle_stages(m->all.model));
    return DT_OK;
}

/* --- the call --------------------------------------------------------------------------------- */

/* Of the call as a whole. */
static dt_status check_call(dti_batch *all, const dt_generate_options *o)
{
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(all->model->mesh)), DT_ERR_ARG,
             "a model on a dry mesh has no logits to choose from; dt_model_forward() works");
    DT_TRY(dti_prompts_check(all->prompts, all->n_prompts, &all->longest));
    DT_TRY(dti_texts_rules(&all->rules, &all->model->info, o, all->longest));
    all->max_new = all->rules.max_length - all->longest;
    all->n_texts = all->n_prompts * o->num_return_sequences;
    return DT_OK;
}

/* Whoever looks at scores wants those of all prompts in one piece. */
static dt_status begin(dti_making *m)
{
    const dti_batch *all = &m->all;
    int n;

    DT_TRY(check_call(&m->all, &m->o));
    n = m->o.on_scores != NULL ? 1 : dt_model_groups(all->model, all->n_prompts);
    DT_TRY(dti_new(sizeof *m->made, &m->made));
    DT_TRY(dti_texts_make(all->n_texts, all->max_new, m->o.n_logprobs + 1, &m->made->texts));
    m->made->n = all->n_texts;
    m->over = !dt_mesh_is_member(all->model->mesh) || all->max_new == 0;
    if (m->over) return DT_OK;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *m->groups, (void **)&m->groups));
    m->n_groups = n;
    for (int i = 0; i < n; i++) {
        dti_batch *b = &m->groups[i];
        *b = (dti_batch){ .model = all->model, .longest = all->longest, .max_new = all->max_new };
        b->first = all->n_prompts * i / n;
        b->n_prompts = all->n_prompts * (i + 1) / n - b->first;
        b->prompts = all->prompts + b->first;
        b->n_texts = b->n_prompts * m->o.num_return_sequences;
        b->texts = m->made->texts + b->first * m->o.num_return_sequences;
        DT_TRY(begin_group(b, m));
    }
    return DT_OK;
}

dt_status dti_making_begin(dti_making *m, dt_model *model, const dt_ids *prompts, int64_t n_prompts,
                           const dt_generate_options *options)
{
    dt_status st;

    m->all = (dti_batch){ .model = model, .prompts = prompts, .n_prompts = n_prompts };
    m->o = (dt_generate_options)DT_GENERATE_OPTIONS_INIT;
    DT_CHECK(model != NULL, DT_ERR_ARG, "model is NULL");
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT", options,
                            &m->o, sizeof m->o));
    st = begin(m);
    if (st != DT_OK) dti_making_end(m);
    DT_TRY(st);
    return DT_OK;
}

dt_generated *dti_making_take(dti_making *m)
{
    dt_generated *made = m->made;

    m->made = NULL;
    return made;
}

void dti_making_end(dti_making *m)
{
    for (int i = 0; i < m->n_groups; i++) free_group(&m->groups[i]);
    dti_free(m->groups);
    dti_rules_free(&m->all.rules);
    dt_generated_release(&m->made);
    *m = (dti_making){ 0 };
}

dt_status dt_generate_batch(dt_model *model, const dt_ids *prompts, int64_t n_prompts,
                            const dt_generate_options *options, dt_generated **out)
{
    dti_making m = { 0 };
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_TRY(dti_making_begin(&m, model, prompts, n_prompts, options));
    while (st == DT_OK && !m.over) st = dti_making_step(&m);
    if (st == DT_OK) *out = dti_making_take(&m);
    dti_making_end(&m);
    if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    return DT_OK;
}
