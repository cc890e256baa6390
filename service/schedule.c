/* SPDX-License-Identifier: Apache-2.0
 *
 * Which request has the next step. Requests take turns, token by token, those of the largest
 * priority first; a batch of all of them in one pass would be decided here as well. */
#include "service/crew.h"

bool dti_ticket_is_over(dt_ticket *t)
{
    dti_crew *c = t->crew;
    bool over;

    (void)pthread_mutex_lock(&c->lock);
    over = t->cancelled || t->state == DT_TICKET_DONE || dti_now_ns() >= t->deadline_ns ||
           atomic_load(&c->quits);
    (void)pthread_mutex_unlock(&c->lock);
    return over;
}

void dti_crew_free_slot(dti_crew *c, int slot)
{
    dt_ticket *t;

    (void)pthread_mutex_lock(&c->lock);
    t = c->running[slot];
    c->running[slot] = NULL;
    c->counts.running--;
    (void)pthread_mutex_unlock(&c->lock);
    dti_ticket_release(&t);
}

/* A slot whose request nobody wants any more; -1: none. */
static int find_over(const dti_crew *c, int64_t now)
{
    for (int i = 0; i < c->max_running; i++) {
        const dt_ticket *t = c->running[i];
        if (t != NULL && (t->cancelled || t->state == DT_TICKET_DONE || now >= t->deadline_ns))
            return i;
    }
    return -1;
}

static bool begin(dti_crew *c, dti_order *out)
{
    dt_ticket *t = c->queue;
    int slot = 0;

    if (t == NULL || c->counts.running == c->max_running) return false;
    while (c->running[slot] != NULL) slot++;
    c->queue = t->next;
    t->next = NULL;
    t->state = DT_TICKET_RUNNING;
    c->running[slot] = t;
    c->counts.queued--;
    c->counts.running++;
    *out = (dti_order){ DTI_ORDER_BEGIN, slot, (int64_t)t->packet.n, t->kind, 0, t->number };
    return true;
}

static bool step(dti_crew *c, dti_order *out)
{
    int best = -1;

    for (int i = 1; i <= c->max_running; i++) { /* the one that had a turn is the last */
        const int slot = (c->turn + i) % c->max_running;
        const dt_ticket *t = c->running[slot];
        if (t != NULL && (best < 0 || t->priority > c->running[best]->priority)) best = slot;
    }
    if (best < 0) return false;
    c->turn = best;
    c->running[best]->n_steps++;
    c->counts.steps++;
    *out = (dti_order){ .kind = DTI_ORDER_STEP, .slot = best, .number = c->running[best]->number };
    return true;
}

void dti_crew_next(dti_crew *c, dti_order *out)
{
    (void)pthread_mutex_lock(&c->lock);
    for (;;) {
        const int over = find_over(c, dti_now_ns());
        *out = (dti_order){ .kind = DTI_ORDER_QUIT };
        if (atomic_load(&c->quits) || c->failing_ns != 0) break;
        if (over >= 0) {
            *out = (dti_order){ .kind = DTI_ORDER_DROP, .slot = over };
            break;
        }
        if (begin(c, out) || step(c, out)) break;
        dti_cond_wait(&c->changed, &c->lock, INT64_MAX);
    }
    (void)pthread_mutex_unlock(&c->lock);
}
