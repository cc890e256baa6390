/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a request: queued by its caller, run by the ranks, waited for. Whoever waits also
 * watches: that a deadline holds and that rank 0 moves does not depend on the ranks. */
#include <stdio.h>
#include <string.h>

#include "base/numbers.h"
#include "service/waiter.h"
#include "service/worker.h"
#include "service/workers.h"

/* Milliseconds that ranks get to notice by themselves what ends a request or the crew. */
enum { NOTICE = 1000 };

/* --- life ------------------------------------------------------------------------------------- */

dt_status dti_ticket_create(dti_crew *c, dti_ticket_kind kind, const dt_request_options *request,
                            dt_ticket **out)
{
    dt_ticket *t;

    DT_TRY(dti_new(sizeof *t, &t));
    t->refs = 1;
    t->crew = dti_crew_retain(c);
    t->kind = kind;
    t->priority = request->priority;
    t->deadline_ns =
        request->deadline_ms > 0 ? dti_after(dti_now_ns(), request->deadline_ms) : INT64_MAX;
    t->last = &t->first;
    dti_cond_init(&t->changed);
    *out = t;
    return DT_OK;
}

dt_ticket *dti_ticket_retain(dt_ticket *t)
{
    (void)atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    return t;
}

void dti_ticket_release(dt_ticket **ticket)
{
    dt_ticket *t = *ticket;

    *ticket = NULL;
    if (t == NULL || atomic_fetch_sub(&t->refs, 1) != 1) return;
    for (dti_event *e = t->first, *next; e != NULL; e = next) {
        next = e->next;
        dti_free(e);
    }
    (void)pthread_cond_destroy(&t->changed);
    dti_free(t->packet.bytes);
    dti_waiter_free(t->waiter);
    dti_crew_release(t->crew);
    dti_free(t);
}

void dt_ticket_release(dt_ticket **ticket)
{
    if (ticket == NULL || *ticket == NULL) return;
    dt_ticket_cancel(*ticket);
    dti_ticket_release(ticket);
}

dt_status dti_ticket_queue(dt_ticket *t)
{
    dti_crew *c = t->crew;
    dt_ticket **at = &c->queue;
    dt_status st;

    (void)pthread_mutex_lock(&c->lock);
    DT_TRY_TO(done, st, dti_crew_check(c));
    DT_CHECK_TO(done, st, c->counts.queued < c->max_queued, DT_ERR_MEMORY,
                "the queue is full: %lld requests wait", (long long)c->counts.queued);
    while (*at != NULL && (*at)->priority >= t->priority) at = &(*at)->next;
    t->number = t->kind == DTI_TICKET_LOAD ? 0 : ++c->n_tickets;
    if (c->workers != NULL) DT_TRY_TO(done, st, dti_workers_ask(c->workers, t));
    t->next = *at;
    *at = dti_ticket_retain(t);
    t->since_ns = dti_now_ns();
    c->counts.queued++;
    c->counts.prompt_tokens += t->n_prompt;
    (void)pthread_cond_broadcast(&c->changed);
done:
    (void)pthread_mutex_unlock(&c->lock);
    return st;
}

/* Out of the queue, if it is there. Under the lock. */
static void leave_queue(dt_ticket *t)
{
    dti_crew *c = t->crew;

    for (dt_ticket **at = &c->queue; *at != NULL; at = &(*at)->next)
        if (*at == t) {
            dt_ticket *held = t;
            *at = t->next;
            c->counts.queued--;
            (void)atomic_fetch_sub(&held->refs, 1); /* never the last: the caller's is there */
            return;
        }
}

static int64_t *counter_of(dti_crew *c, const dt_ticket *t)
{
    if (t->error.code == DT_OK) return t->cancelled ? &c->counts.cancelled : &c->counts.done;
    return t->error.code == DT_ERR_ARG || t->error.code == DT_ERR_SHAPE ||
                   t->error.code == DT_ERR_UNSUPPORTED
               ? &c->counts.refused
               : &c->counts.failures;
}

void dti_ticket_finish_locked(dt_ticket *t, const dt_error *how)
{
    if (t->state == DT_TICKET_DONE) return;
    leave_queue(t);
    t->state = DT_TICKET_DONE;
    t->error = *how;
    if (t->kind != DTI_TICKET_LOAD) ++*counter_of(t->crew, t);
    if (t->crew->host != NULL) dti_host_done(t->crew->host, t);
    (void)pthread_cond_broadcast(&t->changed);
}

void dti_ticket_finish(dt_ticket *t, dt_status st)
{
    const dt_error well = { .code = DT_OK, .rank = -1 };

    (void)pthread_mutex_lock(&t->crew->lock);
    dti_ticket_finish_locked(t, st == DT_OK ? &well : dt_last_error());
    (void)pthread_mutex_unlock(&t->crew->lock);
}

void dt_ticket_cancel(dt_ticket *t)
{
    const dt_error well = { .code = DT_OK, .rank = -1 };

    if (t == NULL || t->kind == DTI_TICKET_LOAD) return;
    (void)pthread_mutex_lock(&t->crew->lock);
    if (t->state != DT_TICKET_DONE) {
        t->cancelled = true;
        if (t->crew->workers != NULL) dti_workers_cancel(t->crew->workers, t);
    }
    if (t->state == DT_TICKET_QUEUED) dti_ticket_finish_locked(t, &well);
    dti_crew_wake(t->crew);
    (void)pthread_mutex_unlock(&t->crew->lock);
}

int64_t dti_ticket_steps(const dt_ticket *t)
{
    const dti_workers *w = t->crew->workers;

    for (int i = 0; w != NULL && i < DTI_MAX_RUNNING; i++)
        if (atomic_load(&w->board->running[i].number) == t->number)
            return atomic_load(&w->board->running[i].n_steps);
    return t->n_steps;
}

dt_ticket_state dt_ticket_progress(const dt_ticket *t, int64_t *n)
{
    dt_ticket_state state;
    int64_t before = 0;

    if (n != NULL) *n = 0;
    if (t == NULL) return DT_TICKET_DONE;
    (void)pthread_mutex_lock(&t->crew->lock);
    state = t->state;
    for (const dt_ticket *q = t->crew->queue; q != NULL && q != t; q = q->next) before++;
    if (n != NULL) *n = state == DT_TICKET_QUEUED ? before : dti_ticket_steps(t);
    (void)pthread_mutex_unlock(&t->crew->lock);
    return state;
}

/* --- from rank 0 ------------------------------------------------------------------------------ */

dt_status dti_ticket_tell(dt_ticket *t, const dti_event *head, const void *data)
{
    dti_event *e;

    if (t->crew->host != NULL) return dti_host_tell(t->crew->host, t, head, data);
    DT_TRY(dti_new(sizeof *e + head->n_bytes, &e));
    *e = *head;
    e->next = NULL;
    if (data != NULL) memcpy(e->data, data, head->n_bytes);
    (void)pthread_mutex_lock(&t->crew->lock);
    *t->last = e;
    t->last = &e->next;
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->crew->lock);
    return DT_OK;
}

/* --- waiting ---------------------------------------------------------------------------------- */

static void end_late(dt_ticket *t)
{
    dt_error how = { .code = DT_ERR_COMM, .rank = -1 };
    char busy[DTI_BUSY_BYTES];

    (void)snprintf(how.message, sizeof how.message,
                   "request %lld was not done by its deadline, after %lld steps (%s; rank 0: %s)",
                   (long long)t->number, (long long)dti_ticket_steps(t),
                   t->state == DT_TICKET_QUEUED ? "it had to wait" : "it was running",
                   dti_crew_busy_text(t->crew, 0, busy));
    if (t->crew->workers != NULL) dti_workers_cancel(t->crew->workers, t);
    dti_ticket_finish_locked(t, &how);
}

static void end_silent(dti_crew *c, int64_t silent_ns)
{
    dt_error why = { .code = DT_ERR_COMM, .rank = 0 };
    const int stopped = c->workers != NULL ? dti_workers_find_stopped(c->workers, &why) : -1;

    if (stopped >= 0) {
        dti_crew_fail(c, stopped, &why);
        return;
    }
    (void)snprintf(why.message, sizeof why.message,
                   "it has shown no sign of life for %lld ms; if it is only slow, allow more "
                   "(dt_run_options.timeout_ms)",
                   (long long)(silent_ns / 1000000));
    dti_crew_fail(c, 0, &why);
}

/* Ends what has to end now; else until when nothing has. Under the lock. */
static int64_t watch(dt_ticket *t)
{
    dti_crew *c = t->crew;
    const int64_t now = dti_now_ns(), beat = atomic_load(&c->views[0].beat_ns);
    const int64_t failed = dti_after(c->failing_ns, NOTICE);
    int64_t silent = dti_after(beat, c->run.timeout_ms), until = t->deadline_ns;

    if (t->state == DT_TICKET_RUNNING && until != INT64_MAX) until = dti_after(until, NOTICE);
    if (now >= until) {
        end_late(t);
        return now;
    }
    if (c->failing_ns != 0) {
        if (now >= failed) dti_crew_give_up(c);
        return dti_min(until, failed);
    }
    if (atomic_load(&c->views[0].doing) == DTI_DOING_NOTHING)
        silent = dti_after(c->workers != NULL ? dti_max(beat, t->since_ns) : now,
                           c->run.timeout_ms); /* a process may be stopped before it hears of it */
    if (silent != INT64_MAX) silent = dti_after(silent, NOTICE);
    if (now >= silent) end_silent(c, now - beat);
    return dti_min(until, dti_max(silent, dti_after(now, 1)));
}

/* What there is to hand on, in one piece. Under the lock. */
static dti_event *take_events(dt_ticket *t)
{
    dti_event *first = t->first;

    t->first = NULL;
    t->last = &t->first;
    return first;
}

/* After an error, which stays the first one, what still comes is let go. */
static dt_status hand_on(dt_ticket *t, dti_event *first, dt_status st)
{
    for (dti_event *e = first, *next; e != NULL; e = next) {
        next = e->next;
        if (st == DT_OK) st = dti_waiter_take(t->waiter, e);
        dti_free(e);
    }
    if (st != DT_OK || t->waiter->enough) dt_ticket_cancel(t);
    return st;
}

/* Callbacks run without the lock. With `once` until something was told, or the time has come. */
static dt_status wait_and_tell(dt_ticket *t, bool once, int64_t until, bool *over)
{
    dti_waiter *w = t->waiter;
    int64_t shown = -1;
    bool told = false;
    dt_status st = DT_OK;

    (void)pthread_mutex_lock(&t->crew->lock);
    for (;;) {
        const int64_t done = t->progress[0], all = t->progress[1];
        dti_event *first = take_events(t);
        const bool tell = w->progress != NULL && all > 0 && done != shown;

        if (first == NULL && !tell) {
            *over = t->state == DT_TICKET_DONE;
            if (*over || st != DT_OK || (once && (told || dti_now_ns() >= until))) break;
            dti_cond_wait(&t->changed, &t->crew->lock, dti_min(watch(t), until));
            continue;
        }
        told = true;
        (void)pthread_mutex_unlock(&t->crew->lock);
        if (tell) w->progress(w->progress_arg, shown = done, all);
        st = hand_on(t, first, st);
        (void)pthread_mutex_lock(&t->crew->lock);
    }
    (void)pthread_mutex_unlock(&t->crew->lock);
    return st;
}

dt_status dt_ticket_listen(dt_ticket *t, int64_t ms, bool *over)
{
    DT_CHECK(t != NULL && over != NULL, DT_ERR_ARG, "ticket or over is NULL");
    *over = true;
    DT_CHECK(!t->waiter->waited, DT_ERR_ARG, "this request was waited for before");
    DT_TRY(wait_and_tell(t, true, ms < 0 ? INT64_MAX : dti_after(dti_now_ns(), ms), over));
    return DT_OK;
}

dt_status dti_ticket_wait(dt_ticket *t)
{
    bool over;

    DT_CHECK(!t->waiter->waited, DT_ERR_ARG, "this request was waited for before");
    t->waiter->waited = true;
    DT_TRY(wait_and_tell(t, false, INT64_MAX, &over));
    if (t->error.code != DT_OK) {
        dti_error_restore(&t->error);
        return dti_error_frame(t->error.code, __func__, __FILE__, __LINE__);
    }
    if (t->cancelled) dti_waiter_cancelled(t->waiter);
    return DT_OK;
}
