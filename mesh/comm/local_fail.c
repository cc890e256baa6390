/* SPDX-License-Identifier: Apache-2.0
 *
 * How waits end when a rank fails, leaves or never comes. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "mesh/comm/local_internal.h"

enum { REACHED_BYTES = 192 };

/* After an abort: until no other rank is inside anybody's buffers. Copies are finite, and none
 * begins once the flag is up. */
static void wait_until_quiet(dti_local_world *w, const dti_local_rank *self)
{
    for (int r = 0; r < w->n_ranks; r++)
        while (&w->ranks[r] != self && atomic_load(&w->ranks[r].busy)) (void)sched_yield();
}

static void abort_world(dti_local_world *w, const dti_local_rank *self, int rank, const char *why)
{
    (void)pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->aborted)) {
        w->culprit = rank;
        (void)snprintf(w->why, sizeof w->why, "%s", why);
        w->record = *dt_last_error();
        if (w->record.code == DT_OK) {
            w->record = (dt_error){ .code = DT_ERR_COMM, .rank = rank };
            (void)snprintf(w->record.message, sizeof w->record.message, "rank %d: %s", rank, why);
        }
        atomic_store(&w->aborted, 1);
    }
    (void)pthread_mutex_unlock(&w->lock);
    for (int r = 0; r < w->n_ranks; r++) dti_local_wake_rank(&w->ranks[r]);
    wait_until_quiet(w, self);
}

void dti_local_abort(dti_comm *head, int rank, const char *why)
{
    dti_local_comm *c = (dti_local_comm *)head;

    abort_world(c->world, c->self, rank, why);
}

void dti_local_abort_world(dti_local_world *world, int rank, const char *why)
{
    abort_world(world, &world->ranks[rank], rank, why);
}

dt_status dti_local_check_abort(dti_local_comm *c, const dti_comm_request *r)
{
    dti_local_world *w = c->world;

    if (atomic_load_explicit(&w->aborted, memory_order_acquire) == 0) return DT_OK;
    wait_until_quiet(w, c->self);
    DT_FAIL(DT_ERR_COMM, "%s #%llu on \"%s\" was cut short by rank %d: %s",
            dti_comm_op_name(r->call.op), (unsigned long long)r->seq, c->head.name, w->culprit,
            w->why);
}

void dti_local_tell_wait(dti_local_comm *c, int rank)
{
    atomic_store_explicit(&c->self->waits_for, (uint32_t)(rank + 1), memory_order_relaxed);
}

/* Whom a rank waits for in the end: one that is late because another is late is no culprit. The
 * rank itself if they wait for each other in a circle. */
static int root_of_wait(const dti_local_comm *c, int rank)
{
    const dti_local_world *w = c->world;
    int last = rank;

    for (int step = 0; step < w->n_ranks; step++) {
        const uint32_t next = atomic_load_explicit(&w->ranks[last].waits_for, memory_order_relaxed);
        if (next == DTI_LOCAL_NOBODY + 1) return last;
        last = (int)next - 1;
    }
    return rank;
}

/* Where a rank is instead of here, as far as it has told. */
static void reached_text(const dti_local_comm *c, int rank, char *text, size_t bytes)
{
    const dti_local_rank *r = &c->world->ranks[rank];
    const dti_local_group *group = atomic_load(&r->reached_group);
    const uint64_t reached = atomic_load(&r->reached);

    if (group == NULL)
        (void)snprintf(text, bytes, "rank %d has not begun any collective", rank);
    else
        (void)snprintf(text, bytes, "the last collective that rank %d began is %s #%llu on \"%s\"",
                       rank, dti_comm_op_name((dti_comm_op)(reached & 0xff)),
                       (unsigned long long)(reached >> 8), group->name);
}

dt_status dti_local_fail_left(dti_local_comm *c, const dti_comm_request *r, int member)
{
    const char *op = dti_comm_op_name(r->call.op);
    const int rank = c->head.world_ranks[member];
    char why[DTI_LOCAL_WHY_BYTES], reached[REACHED_BYTES];

    reached_text(c, rank, reached, sizeof reached);
    (void)dti_error_set(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                        "%s #%llu on \"%s\": rank %d has left, its function returned before "
                        "taking part; %s",
                        op, (unsigned long long)r->seq, c->head.name, rank, reached);
    (void)snprintf(why, sizeof why, "it has left before %s #%llu on \"%s\"; %s", op,
                   (unsigned long long)r->seq, c->head.name, reached);
    dti_local_abort(&c->head, rank, why);
    return DT_ERR_COMM;
}

/* The one who is waited for, and the one who keeps it if that is another. */
dt_status dti_local_fail_expired(dti_local_comm *c, const dti_comm_request *r, int member,
                                 const char *verb)
{
    const char *op = dti_comm_op_name(r->call.op);
    const long long ms = r->timeout_ms;
    const int rank = c->head.world_ranks[member], culprit = root_of_wait(c, rank);
    char why[DTI_LOCAL_WHY_BYTES], reached[REACHED_BYTES], keeper[64] = "";

    reached_text(c, culprit, reached, sizeof reached);
    if (culprit != rank)
        (void)snprintf(keeper, sizeof keeper, " since it waits for rank %d", culprit);
    (void)dti_error_set(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                        "%s #%llu on \"%s\": rank %d has not %s after %lld ms%s; %s; if it is only "
                        "slow, allow more (timeout_ms; the command reads DTENSOR_TIMEOUT_MS)",
                        op, (unsigned long long)r->seq, c->head.name, rank, verb, ms, keeper,
                        reached);
    (void)snprintf(why, sizeof why, "rank %d has not %s at %s #%llu on \"%s\" within %lld ms%s; %s",
                   rank, verb, op, (unsigned long long)r->seq, c->head.name, ms, keeper, reached);
    dti_local_abort(&c->head, culprit, why);
    return DT_ERR_COMM;
}
