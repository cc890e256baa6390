/* SPDX-License-Identifier: Apache-2.0
 *
 * What workers say: of requests, which the crew has as if its ranks were here, and of themselves.
 */
#include <stdio.h>
#include <string.h>

#include "service/workers.h"

/* --- requests --------------------------------------------------------------------------------- */

/* A reference; NULL: nobody wants it any more. */
static dt_ticket *find(dti_crew *c, int64_t number)
{
    dt_ticket *t;

    (void)pthread_mutex_lock(&c->lock);
    for (t = c->queue; t != NULL && t->number != number; t = t->next) continue;
    for (int i = 0; t == NULL && i < DTI_MAX_RUNNING; i++)
        if (c->running[i] != NULL && c->running[i]->number == number) t = c->running[i];
    if (t != NULL) (void)dti_ticket_retain(t);
    (void)pthread_mutex_unlock(&c->lock);
    return t;
}

static void begin(dt_ticket *t)
{
    dti_crew *c = t->crew;
    int slot = 0;

    (void)pthread_mutex_lock(&c->lock);
    while (slot < DTI_MAX_RUNNING && c->running[slot] != NULL) slot++;
    for (dt_ticket **at = &c->queue; *at != NULL && slot < DTI_MAX_RUNNING; at = &(*at)->next)
        if (*at == t) {
            *at = t->next;
            t->next = NULL;
            t->state = DT_TICKET_RUNNING;
            c->running[slot] = t; /* with the queue's reference */
            c->counts.queued--;
            c->counts.running++;
            break;
        }
    (void)pthread_mutex_unlock(&c->lock);
}

static void take_event(dti_workers *w, dt_ticket *t, const dti_message *m, const char *bytes)
{
    dti_event head;
    dt_status st;

    if (m->n_bytes < offsetof(dti_event, data)) return;
    memcpy(&head, bytes, offsetof(dti_event, data));
    if (head.n_bytes != m->n_bytes - offsetof(dti_event, data)) return;
    st = dti_ticket_tell(t, &head, bytes + offsetof(dti_event, data));
    if (st == DT_OK) return;
    (void)pthread_mutex_lock(&w->crew->lock);
    dti_workers_cancel(w, t);
    (void)pthread_mutex_unlock(&w->crew->lock);
    dti_ticket_finish(t, st);
}

static void take_progress(dt_ticket *t, const dti_message *m, const char *bytes)
{
    (void)pthread_mutex_lock(&t->crew->lock);
    if (m->n_bytes == sizeof t->progress) memcpy(t->progress, bytes, sizeof t->progress);
    (void)pthread_cond_broadcast(&t->changed);
    (void)pthread_mutex_unlock(&t->crew->lock);
}

static void finish(dt_ticket *t, const dti_message *m, const char *bytes)
{
    dti_crew *c = t->crew;
    dt_ticket *held = NULL;
    dt_error how;

    dti_pipe_read_record(m, bytes, &how);
    (void)pthread_mutex_lock(&c->lock);
    t->n_steps = dti_ticket_steps(t);
    for (int i = 0; i < DTI_MAX_RUNNING; i++)
        if (c->running[i] == t) {
            held = t;
            c->running[i] = NULL;
            c->counts.running--;
        }
    dti_ticket_finish_locked(t, &how);
    (void)pthread_mutex_unlock(&c->lock);
    dti_ticket_release(&held);
}

/* --- models and ranks ------------------------------------------------------------------------- */

static dt_status keep_loaded(dti_crew *c, dti_unpacking *u)
{
    dti_packet *p = &c->defaults_packet;

    DT_TRY(dti_unpack_copy(u, &c->info, sizeof c->info));
    DT_TRY(dti_unpack_copy(u, &c->defaults_error, sizeof c->defaults_error));
    if (c->defaults_error.code != DT_OK) return DT_OK;
    DT_TRY(dti_packet_put(p, u->at, (size_t)(u->end - u->at)));
    c->defaults_lists = (dti_unpacking){ p->bytes, p->bytes + p->n, DTI_ARENA_INIT };
    return dti_unpack_options(&c->defaults_lists, &c->defaults);
}

static void take_loaded(dti_crew *c, const dti_message *m, const char *bytes)
{
    dti_unpacking u = { bytes, bytes + m->n_bytes, DTI_ARENA_INIT };

    (void)pthread_mutex_lock(&c->lock);
    if (keep_loaded(c, &u) != DT_OK) dti_crew_fail(c, 0, dt_last_error());
    (void)pthread_mutex_unlock(&c->lock);
}

static void take_ready(dti_crew *c)
{
    (void)pthread_mutex_lock(&c->lock);
    c->n_ready++;
    (void)pthread_cond_broadcast(&c->changed);
    (void)pthread_mutex_unlock(&c->lock);
}

/* Of ranks that were cut short and the one that did it the latter has more to say: it is waited
 * for. */
static void take_failure(dti_workers *w, int i, const dti_message *m, const char *bytes)
{
    const dti_worker *x = &w->each[i];
    const bool is_its = m->rank >= x->first_rank && m->rank < x->first_rank + x->n_ranks;
    const int rank = is_its ? m->rank : x->first_rank;
    dt_error why;

    dti_pipe_read_record(m, bytes, &why);
    if (why.code == DT_ERR_COMM) {
        if (w->hearsay_ns != 0) return;
        w->hearsay = why;
        w->hearsay_rank = rank;
        w->hearsay_ns = dti_now_ns();
        return;
    }
    (void)pthread_mutex_lock(&w->crew->lock);
    dti_crew_fail(w->crew, rank, &why);
    (void)pthread_mutex_unlock(&w->crew->lock);
}

static void take_line(const dti_crew *c, const dti_message *m, const char *bytes)
{
    char line[2048];

    (void)snprintf(line, sizeof line, "%.*s", (int)(m->n_bytes < 2000 ? m->n_bytes : 2000), bytes);
    if (c->run.log != NULL) c->run.log(c->run.log_arg, (dt_log_level)m->number, m->rank, line);
}

static void take_of_request(dti_workers *w, const dti_message *m, const char *bytes)
{
    dt_ticket *t = find(w->crew, m->number);

    if (t == NULL) return;
    if (m->kind == DTI_SAYS_BEGUN) begin(t);
    if (m->kind == DTI_SAYS_EVENT) take_event(w, t, m, bytes);
    if (m->kind == DTI_SAYS_PROGRESS) take_progress(t, m, bytes);
    if (m->kind == DTI_SAYS_DONE) finish(t, m, bytes);
    dti_ticket_release(&t);
}

void dti_workers_hear(dti_workers *w, int i, const dti_message *m, const char *bytes)
{
    switch ((dti_message_kind)m->kind) {
    case DTI_SAYS_READY:
        take_ready(w->crew);
        break;
    case DTI_SAYS_LOG:
        take_line(w->crew, m, bytes);
        break;
    case DTI_SAYS_FAILED:
        (void)pthread_mutex_lock(&w->crew->lock);
        w->each[i].failed = true;
        (void)pthread_mutex_unlock(&w->crew->lock);
        take_failure(w, i, m, bytes);
        break;
    case DTI_SAYS_LOADED:
        take_loaded(w->crew, m, bytes);
        break;
    case DTI_SAYS_BEGUN:
    case DTI_SAYS_EVENT:
    case DTI_SAYS_PROGRESS:
    case DTI_SAYS_DONE:
        take_of_request(w, m, bytes);
        break;
    default: /* those of the program */
        break;
    }
}
