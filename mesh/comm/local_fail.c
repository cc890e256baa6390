/* SPDX-License-Identifier: Apache-2.0
 *
 * How waits end when a rank fails, leaves or never comes. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "mesh/comm/local_internal.h"

/* After an abort: until no other rank is inside anybody's buffers. Copies are finite, and none
 * begins once the flag is up. */
static void wait_until_quiet(dti_local_world *w, const dti_local_rank *self)
{
    for (int r = 0; r < w->n_ranks; r++)
        while (&w->ranks[r] != self && atomic_load(&w->ranks[r].busy)) (void)sched_yield();
    dti_local_cuda_quiet(self);
}

static void flag(dti_local_world *w, int rank, const char *why, const dt_error *record)
{
    (void)pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->aborted)) {
        w->culprit = rank;
        (void)snprintf(w->why, sizeof w->why, "%s", why);
        w->record = *record;
        atomic_store(&w->aborted, 1);
        dti_local_spin_stop_all(w);
    }
    (void)pthread_mutex_unlock(&w->lock);
    for (int r = 0; r < w->n_ranks; r++) dti_local_wake_rank(&w->ranks[r]);
}

static void abort_world(dti_local_world *w, const dti_local_rank *self, int rank, const char *why)
{
    dt_error record = *dt_last_error();

    if (record.code == DT_OK) {
        record = (dt_error){ .code = DT_ERR_COMM, .rank = rank };
        (void)snprintf(record.message, sizeof record.message, "rank %d: %s", rank, why);
    }
    flag(w, rank, why, &record);
    if (w->twin != NULL) flag(w->twin, rank, why, &record);
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

/* The share of r may have failed while this rank waited for something else: it has a word of its
 * own then, which is that of the run unless another rank was faster. */
static bool failed_here(const dti_local_comm *c, const dti_comm_request *r)
{
    return c->failed && r->seq == c->worked + 1 &&
           c->world->culprit == c->head.world_ranks[c->head.rank];
}

dt_status dti_local_check_abort(dti_local_comm *c, const dti_comm_request *r)
{
    dti_local_world *w = c->world;

    if (atomic_load_explicit(&w->aborted, memory_order_acquire) == 0) return DT_OK;
    wait_until_quiet(w, c->self);
    if (failed_here(c, r)) {
        dti_error_restore(&w->record);
        return w->record.code;
    }
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

/* How far a rank has come, as it has told. */
static dti_reached reached_by(const dti_local_comm *c, int rank)
{
    const dti_local_rank *r = &c->world->ranks[rank];
    const dti_local_group *group = atomic_load(&r->reached_group);
    const uint64_t reached = atomic_load(&r->reached);

    return (dti_reached){ group != NULL, (dti_comm_op)(reached & 0xff), reached >> 8,
                          group != NULL ? group->name : "" };
}

dt_status dti_local_fail_left(dti_local_comm *c, const dti_comm_request *r, int member)
{
    const int rank = c->head.world_ranks[member];
    const dti_reached reached = reached_by(c, rank);
    char why[DTI_WHY_BYTES];

    dti_say_left(&c->head, r, rank, &reached, why);
    dti_local_abort(&c->head, rank, why);
    return DT_ERR_COMM;
}

/* The one who is waited for, and the one who keeps it if that is another. */
dt_status dti_local_fail_expired(dti_local_comm *c, const dti_comm_request *r, int member,
                                 const char *verb)
{
    const int rank = c->head.world_ranks[member];
    const dti_late late = { rank, root_of_wait(c, rank), verb };
    const dti_reached reached = reached_by(c, late.culprit);
    char why[DTI_WHY_BYTES];

    dti_say_expired(&c->head, r, &late, &reached, why);
    dti_local_abort(&c->head, late.culprit, why);
    return DT_ERR_COMM;
}
