/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done next: a request begins, or has its step. Texts share passes, all of them one step;
 * requests that cannot have steps of their own, by turns with these, token by token, those of the
 * largest priority first. */
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

/* Requests that have steps of their own hold caches of their own: not too many at a time, and of a
 * model in stages one. */
enum { MOST_TURNS = 4 };

static bool may_begin(const dti_crew *c, const dt_ticket *t)
{
    int turns = 0;

    if (t->kind != DTI_TICKET_TEXTS || !(t->by_turns || c->takes_turns)) return true;
    for (int i = 0; i < c->max_running; i++)
        turns +=
            c->running[i] != NULL && c->running[i]->kind == DTI_TICKET_TEXTS && !c->together[i];
    return turns < (c->in_stages ? 1 : MOST_TURNS);
}

/* The first that may; those that share passes do not wait for those that do not. */
static bool begin(dti_crew *c, dti_order *out)
{
    dt_ticket **at = &c->queue, *t;
    int slot = 0;

    while (*at != NULL && !may_begin(c, *at)) at = &(*at)->next;
    t = *at;
    if (t == NULL || c->counts.running == c->max_running) return false;
    while (c->running[slot] != NULL) slot++;
    *at = t->next;
    t->next = NULL;
    t->state = DT_TICKET_RUNNING;
    c->running[slot] = t;
    c->together[slot] = false;
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
        if (t == NULL || c->together[slot]) continue;
        if (best < 0 || t->priority > c->running[best]->priority) best = slot;
    }
    if (best < 0) return false;
    c->turn = best;
    c->passed = false;
    c->running[best]->n_steps++;
    c->counts.steps++;
    *out = (dti_order){ .kind = DTI_ORDER_STEP, .slot = best, .number = c->running[best]->number };
    return true;
}

/* A step of all that share passes, in the name of the first of them. */
static bool pass(dti_crew *c, dti_order *out)
{
    int first = -1;

    for (int i = c->max_running - 1; i >= 0; i--) {
        if (c->running[i] == NULL || !c->together[i]) continue;
        first = i;
        c->running[i]->n_steps++;
    }
    if (first < 0) return false;
    c->passed = true;
    c->counts.steps++;
    *out =
        (dti_order){ .kind = DTI_ORDER_PASS, .slot = first, .number = c->running[first]->number };
    return true;
}

/* By turns; but parts of a step may still be on their way through stages when it ends. */
static bool go_on(dti_crew *c, dti_order *out)
{
    if (c->passed || c->in_stages) return step(c, out) || pass(c, out);
    return pass(c, out) || step(c, out);
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
        if (begin(c, out) || go_on(c, out)) break;
        dti_cond_wait(&c->changed, &c->lock, INT64_MAX);
    }
    (void)pthread_mutex_unlock(&c->lock);
}
