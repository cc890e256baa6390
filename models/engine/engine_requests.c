/* SPDX-License-Identifier: Apache-2.0
 *
 * What an engine is asked for: checked, and handed to its schedule prompt by prompt. */
#include "base/numbers.h"
#include "base/options.h"
#include "models/engine/engine_parts.h"
#include "models/generation/generated.h"

dti_request *dti_engine_find(const dt_engine *e, int64_t number)
{
    dti_request *r = e->requests;

    while (r != NULL && r->number != number) r = r->next;
    return r;
}

void dti_engine_forget(dt_engine *e, dti_request *r)
{
    dti_request **at = &e->requests;

    while (*at != r) at = &(*at)->next;
    *at = r->next;
    dti_rules_free(&r->rules);
    dti_free(r);
}

static dt_status check_ids(const dt_engine *e, const dt_ids *prompt)
{
    const int64_t vocab = e->model->info.vocab_size;

    for (int64_t i = 0; i < prompt->n; i++)
        DT_CHECK(prompt->ids[i] >= 0 && prompt->ids[i] < vocab, DT_ERR_ARG,
                 "token id %d at place %lld is outside the vocabulary: ids are 0 to %lld",
                 prompt->ids[i], (long long)i, (long long)vocab - 1);
    return DT_OK;
}

/* What the schedule is asked for prompt i. */
static dti_ask ask_of(const dt_engine_request *q, const dti_text_rules *u, int64_t number,
                      int64_t i)
{
    const dt_ids *prompt = &q->prompts[i];
    const int64_t n_texts = u->o.num_return_sequences;

    return (dti_ask){ .request = number,
                      .text = i * n_texts,
                      .n_texts = n_texts,
                      .most = prompt->n + (u->max_length - u->n_prompt) - 1,
                      .priority = q->priority,
                      .salt = q->salt,
                      .ids = prompt->ids,
                      .n = prompt->n };
}

static dt_status check_texts(const dt_engine *e, const dt_engine_request *q,
                             const dti_text_rules *u)
{
    const dt_generate_options *o = &u->o;

    DT_CHECK(
        o->num_beams == 1, DT_ERR_UNSUPPORTED,
        "num_beams is %lld: an engine makes every text by itself, dt_generate_batch() searches",
        (long long)o->num_beams);
    DT_CHECK(o->on_scores == NULL || (q->n_prompts == 1 && o->num_return_sequences == 1),
             DT_ERR_UNSUPPORTED,
             "on_scores of %lld texts: an engine shows those of one, dt_generate_batch() of many",
             (long long)(q->n_prompts * o->num_return_sequences));
    for (int64_t i = 0; i < q->n_prompts; i++) {
        const dti_ask ask = ask_of(q, u, 0, i);
        DT_TRY(check_ids(e, &q->prompts[i]));
        if (u->max_length > u->n_prompt && e->schedule != NULL)
            DT_TRY(dti_schedule_judge(e->schedule, &ask));
    }
    return DT_OK;
}

/* *u is freed by the caller, whatever comes of it. */
static dt_status read_request(const dt_engine *e, const dt_engine_request *request,
                              dt_engine_request *q, dti_text_rules *u)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    int64_t longest;

    *q = (dt_engine_request)DT_ENGINE_REQUEST_INIT;
    DT_CHECK(e != NULL && request != NULL, DT_ERR_ARG, "engine or request is NULL");
    DT_TRY(dti_options_read("dt_engine_request", "start from DT_ENGINE_REQUEST_INIT", request, q,
                            sizeof *q));
    DT_TRY(dti_options_read("dt_generate_options", "start from DT_GENERATE_OPTIONS_INIT",
                            q->options, &o, sizeof o));
    DT_TRY(dti_prompts_check(q->prompts, q->n_prompts, &longest));
    DT_TRY(dti_texts_rules(u, &e->model->info, &o, longest));
    DT_TRY(check_texts(e, q, u));
    return DT_OK;
}

dt_status dt_engine_check(const dt_engine *engine, const dt_engine_request *request)
{
    dti_text_rules u = { 0 };
    dt_engine_request q;
    const dt_status st = read_request(engine, request, &q, &u);

    dti_rules_free(&u);
    DT_TRY(st);
    return DT_OK;
}

/* All of its prompts, or none. */
static dt_status queue(dt_engine *e, const dt_engine_request *q, const dti_request *r)
{
    dti_schedule_counts c;
    dt_status st = DT_OK;
    dt_error why;

    if (e->schedule == NULL || r->rules.max_length == r->rules.n_prompt) return DT_OK;
    c = dti_schedule_count(e->schedule);
    DT_CHECK(c.waiting <= e->o.max_queued - q->n_prompts, DT_ERR_MEMORY,
             "the queue is full: %lld prompts wait, %lld may", (long long)c.waiting,
             (long long)e->o.max_queued);
    for (int64_t i = 0; i < q->n_prompts && st == DT_OK; i++) {
        const dti_ask ask = ask_of(q, &r->rules, r->number, i);
        st = dti_schedule_submit(e->schedule, &ask);
    }
    if (st == DT_OK) return DT_OK;
    why = *dt_last_error();
    if (dti_schedule_cancel(e->schedule, r->number) == DT_OK) dti_error_restore(&why);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

static dt_status add_request(dt_engine *e, const dt_engine_request *q, dti_request *r)
{
    dti_request **last = &e->requests;

    r->number = e->n_requests + 1;
    r->n_return = r->rules.o.num_return_sequences;
    r->n_left = q->n_prompts * r->n_return;
    r->rules.n_texts = r->n_left;
    DT_TRY(queue(e, q, r));
    while (*last != NULL) last = &(*last)->next;
    *last = r;
    e->n_requests++;
    return DT_OK;
}

dt_status dt_engine_submit(dt_engine *engine, const dt_engine_request *request, int64_t *number)
{
    dt_engine_request q;
    dt_status st = DT_OK;
    dti_request *r;

    DT_CHECK(engine != NULL && number != NULL, DT_ERR_ARG, "engine or number is NULL");
    DT_TRY(dti_new(sizeof *r, &r));
    DT_TRY_TO(fail, st, read_request(engine, request, &q, &r->rules));
    DT_TRY_TO(fail, st, add_request(engine, &q, r));
    *number = r->number;
    return DT_OK;

fail:
    dti_rules_free(&r->rules);
    dti_free(r);
    return st;
}

dt_status dt_engine_cancel(dt_engine *engine, int64_t number)
{
    dti_request *r;

    DT_CHECK(engine != NULL, DT_ERR_ARG, "engine is NULL");
    r = dti_engine_find(engine, number);
    if (r == NULL) return DT_OK;
    dti_engine_forget(engine, r);
    if (engine->schedule != NULL) DT_TRY(dti_schedule_cancel(engine->schedule, number));
    return DT_OK;
}
