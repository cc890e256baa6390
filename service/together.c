/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts of many requests in passes that they share; others have steps of their own. */
#include <string.h>

#include "base/numbers.h"
#include "service/ranks.h"

static void on_progress(void *arg, int64_t done, int64_t all)
{
    (void)done;
    (void)all;
    dti_rank_beat(arg);
}

/* A model that cannot, or a pool that cannot be: said by all ranks alike, and all texts take turns,
 * unless the engine was asked for. */
dt_status dti_together_open(dti_rank *r)
{
    const bool asked = r->crew->engine.size > 0;
    dt_engine_options o = DT_ENGINE_OPTIONS_INIT;
    dt_status st;

    if (r->engine != NULL || r->takes_turns) return DT_OK;
    o.max_texts = r->crew->max_running;
    if (asked) o = r->crew->engine;
    o.max_queued = INT32_MAX; /* who waits is bounded by the crew */
    o.progress = on_progress;
    o.progress_arg = r;
    st = dt_engine_create(r->model, &o, &r->engine);
    r->takes_turns = st == DT_ERR_UNSUPPORTED || (st == DT_ERR_ARG && !asked);
    return r->takes_turns ? DT_OK : st;
}

static dt_status make_room(dti_job *j, int64_t n_texts, int64_t n_logprobs)
{
    DT_TRY(dti_new(sizeof *j->made, &j->made));
    DT_TRY(dti_texts_make(n_texts, 0, n_logprobs, &j->made->texts));
    j->made->n = j->n_left = n_texts;
    DT_TRY(dti_alloc_array((size_t)n_texts, 2 * sizeof *j->rooms, (void **)&j->rooms));
    for (int64_t i = 0; i < 2 * n_texts; i++) j->rooms[i] = 1;
    return DT_OK;
}

dt_status dti_together_begin(dti_job *j, const dt_ids *prompts, int64_t n_prompts,
                             const dt_generate_options *o, bool *taken)
{
    const dt_engine_request request = {
        .size = sizeof request,
        .prompts = prompts,
        .n_prompts = n_prompts,
        .options = o,
        .salt = j->salt,
    };
    dt_status st = DT_OK;

    *taken = false;
    if (o->num_beams > 1) return DT_OK;
    st = dti_together_open(j->rank);
    if (st == DT_OK &&
        (j->rank->engine == NULL || dt_engine_check(j->rank->engine, &request) != DT_OK))
        return DT_OK;
    if (st == DT_OK) st = make_room(j, n_prompts * o->num_return_sequences, o->n_logprobs + 1);
    if (st == DT_OK) st = dt_engine_submit(j->rank->engine, &request, &j->request);
    *taken = st == DT_OK;
    if (st == DT_OK) return DT_OK;
    DT_TRY(dti_job_survives(j, st)); /* this rank's alone: others have the request by now */
    return st;
}

dt_status dti_together_drop(dti_job *j)
{
    return j->request > 0 ? dt_engine_cancel(j->rank->engine, j->request) : DT_OK;
}

/* --- a pass ----------------------------------------------------------------------------------- */

static int slot_of(const dti_rank *r, int64_t request)
{
    int slot = 0;

    while (slot < DTI_MAX_RUNNING - 1 &&
           (r->jobs[slot] == NULL || r->jobs[slot]->request != request))
        slot++;
    return slot;
}

/* The id and what stands beside it, as dti_texts_step() tells them. */
static dt_status tell_token(dti_job *j, const dt_engine_event *e)
{
    const size_t list = (size_t)e->n_logprobs * sizeof *e->logprobs;
    dti_event head = { .kind = DTI_EVENT_TOKEN, .a = e->text, .b = e->n };
    int32_t *said;
    dt_status st;

    if (j->ticket == NULL || !j->ticket->tells_tokens) return DT_OK;
    head.n_bytes = sizeof *said + list;
    DT_TRY(dti_alloc(head.n_bytes, (void **)&said));
    said[0] = e->id;
    if (list > 0) memcpy(said + 1, e->logprobs, list);
    st = dti_ticket_tell(j->ticket, &head, said);
    dti_free(said);
    return st;
}

static dt_status add_token(dti_job *j, const dt_engine_event *e)
{
    dti_new_text *text = &j->made->texts[e->text];
    size_t *room = &j->rooms[2 * e->text];
    const size_t list = (size_t)e->n_logprobs * sizeof *e->logprobs;

    DT_TRY(dti_grow((void **)&text->ids, &room[0], (size_t)text->n + 1, sizeof *text->ids));
    text->ids[text->n] = e->id;
    if (list > 0) {
        DT_TRY(dti_grow((void **)&text->logprobs, &room[1], (size_t)text->n + 1, list));
        memcpy(text->logprobs + text->n * e->n_logprobs, e->logprobs, list);
    }
    text->n++;
    text->found = e->found;
    return tell_token(j, e);
}

static dt_status take_event(dti_rank *r, const dt_engine_event *e)
{
    const int slot = slot_of(r, e->request);
    dti_job *j = r->jobs[slot];
    dt_status st = j->said.code;

    switch (e->kind) {
    case DT_ENGINE_TOKEN:
        if (st == DT_OK) st = add_token(j, e);
        break;
    case DT_ENGINE_END:
        j->made->texts[e->text].end = e->end;
        if (st == DT_OK && --j->n_left == 0) return dti_job_end(r, slot, DT_OK);
        break;
    case DT_ENGINE_FAILED:
        dti_error_restore(e->error);
        return dti_job_settle(r, slot, e->error->code);
    }
    return st == DT_OK ? DT_OK : dti_job_settle(r, slot, st);
}

/* The engine is of no use any more, and what it had has failed; a new one is made for the next. */
static dt_status fail_all(dti_rank *r, dt_status st)
{
    const dt_error why = *dt_last_error();

    dt_engine_release(&r->engine);
    for (int i = 0; i < DTI_MAX_RUNNING; i++) {
        if (r->jobs[i] == NULL || r->jobs[i]->request == 0) continue;
        dti_error_restore(&why);
        r->jobs[i]->request = 0;
        DT_TRY(dti_job_settle(r, i, st));
    }
    return DT_OK;
}

static void show_step(dti_rank *r, int64_t number)
{
    for (int i = 0; i < DTI_MAX_RUNNING; i++) {
        if (r->jobs[i] == NULL || r->jobs[i]->request == 0) continue;
        r->jobs[i]->n_steps++;
        if (r->jobs[i]->number == number) atomic_store(&r->view->step, r->jobs[i]->n_steps);
    }
}

static void show_counts(dti_rank *r)
{
    dti_crew *c = r->crew;
    dt_engine_counts counts;

    dti_rank_beat(r);
    if (r->number > 0 || dt_engine_count(r->engine, &counts) != DT_OK) return;
    (void)pthread_mutex_lock(&c->lock);
    c->counts.engine = counts;
    (void)pthread_mutex_unlock(&c->lock);
}

dt_status dti_together_pass(dti_rank *r, int64_t number)
{
    const dt_engine_event *events;
    dt_status st;
    int64_t n;

    show_step(r, number);
    st = dt_engine_step(r->engine, &events, &n);
    show_counts(r);
    if (st == DT_ERR_COMM) return st;
    if (st != DT_OK) return fail_all(r, st);
    for (int64_t i = 0; i < n; i++) DT_TRY(take_event(r, &events[i]));
    return DT_OK;
}
