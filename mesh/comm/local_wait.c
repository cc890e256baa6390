/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for peers. */
#include <sched.h>

#include "mesh/comm/local_internal.h"
#include "mesh/comm/wait_clock.h"

/* With a core per rank: polls, then a clock read now and then, then yields, then the futex. With
 * more ranks than cores nobody spins: the peer may need this very core. */
enum {
    POLLS_WITHOUT_PAUSE = 16,
    POLLS_PER_CLOCK = 64,
    SPIN_NS = 50 * 1000,
    YIELD_NS = 1000 * 1000,
    SLEEP_NS = 2 * 1000 * 1000,
    IDLE_SLEEP_NS = 500 * 1000 * 1000,
    NS_PER_MS = 1000 * 1000
};

typedef struct waiter {
    const dti_comm_request *request;
    dti_wait_clock clock;
    unsigned polls;
    int left_member; /* 1 + the member that was seen to have left, then polled once more */
    bool armed;      /* peers know that this rank sleeps */
    uint32_t wake;   /* the futex word when it was armed */
} waiter;

static dti_local_rank *rank_of(const dti_local_comm *c, int member)
{
    return &c->world->ranks[c->head.world_ranks[member]];
}

void dti_local_wake_rank(dti_local_rank *rank)
{
    atomic_fetch_add(&rank->wake, 1);
    dti_futex_wake_all(&rank->wake);
}

/* The plain load may miss a peer that falls asleep at this moment; no fence is spent on it, as
 * sleepers look again after SLEEP_NS by themselves. */
void dti_local_wake_members(dti_local_comm *c)
{
    if (atomic_load_explicit(&c->world->sleepers, memory_order_relaxed) == 0) return;
    for (int m = 0; m < c->head.size; m++) {
        dti_local_rank *rank = rank_of(c, m);
        if (m != c->head.rank && atomic_load(&rank->asleep)) dti_local_wake_rank(rank);
    }
}

/* Writing the counter that sleepers raise orders what was published before it: whoever raises it
 * later sees the operation before falling asleep. */
void dti_local_see_sleepers(dti_local_comm *c)
{
    (void)atomic_fetch_add(&c->world->sleepers, 0);
}

/* Sequential consistency of both sides makes sure that either this rank sees the abort, or the
 * aborting rank sees it busy and waits. */
bool dti_local_enter(dti_local_comm *c)
{
    atomic_store(&c->self->busy, 1);
    if (atomic_load(&c->world->aborted) == 0) return true;
    dti_local_exit(c);
    return false;
}

void dti_local_exit(dti_local_comm *c)
{
    atomic_store_explicit(&c->self->busy, 0, memory_order_release);
}

/* Peers may be waiting for this rank's share on another communicator. */
void dti_local_progress(dti_local_comm *current)
{
    for (dti_local_comm *c = current->self->comms; c != NULL; c = c->next) {
        while (c->worked < c->started && dti_local_try_work(c) == DTI_LOCAL_READY) {
        }
        if (c->n_recvs > 0) dti_local_p2p_progress(c);
    }
}

/* Waiting for the root of a broadcast of work, which may come tomorrow. */
static bool waits_for_work(const dti_local_comm *c, const dti_comm_request *r)
{
    return r->call.for_work && c->head.rank != r->call.root && c->worked + 1 == r->seq;
}

static bool is_expired(const dti_local_comm *c, const waiter *w, int64_t elapsed_ns)
{
    return elapsed_ns / NS_PER_MS >= w->request->timeout_ms && !waits_for_work(c, w->request);
}

/* Arms first and sleeps at the next call, so that the condition is looked at in between. Only work
 * is announced by a rank that misses no sleeper; everybody else may, so sleep is short. */
static void sleep_a_little(dti_local_comm *c, waiter *w)
{
    const bool idle = waits_for_work(c, w->request) && c->self->n_due <= 1;

    if (!w->armed) {
        w->armed = true;
        w->wake = atomic_load(&c->self->wake);
        atomic_store(&c->self->asleep, 1);
        atomic_fetch_add(&c->world->sleepers, 1);
        return;
    }
    dti_futex_wait(&c->self->wake, w->wake, idle ? IDLE_SLEEP_NS : SLEEP_NS);
    w->wake = atomic_load(&c->self->wake);
}

static void disarm(dti_local_comm *c, const waiter *w)
{
    if (!w->armed) return;
    atomic_store(&c->self->asleep, 0);
    atomic_fetch_sub(&c->world->sleepers, 1);
}

/* One step of waiting for `member`; false when the deadline has passed. */
static bool wait_step(dti_local_comm *c, waiter *w, int member)
{
    const bool spin = c->world->spin;
    int64_t elapsed;

    w->polls++;
    if (c->self->n_due > 1) dti_local_progress(c);
    if (spin && w->polls % POLLS_PER_CLOCK != 0) {
        if (w->polls > POLLS_WITHOUT_PAUSE) dti_cpu_relax();
        return true;
    }
    elapsed = dti_wait_elapsed(&w->clock, dti_now_ns());
    dti_local_tell_wait(c, c->head.world_ranks[member]);
    if (is_expired(c, w, elapsed)) return false;
    if (c->self->n_due > 0) dti_local_progress(c);
    dti_beside_step(&c->head);
    if (atomic_load_explicit(&rank_of(c, member)->left, memory_order_acquire))
        w->left_member = member + 1;
    if (spin && elapsed < SPIN_NS)
        dti_cpu_relax();
    else if (elapsed < YIELD_NS)
        (void)sched_yield();
    else
        sleep_a_little(c, w);
    return true;
}

dt_status dti_local_await(dti_local_comm *c, const dti_comm_request *r, dti_local_condition ready,
                          const char *verb)
{
    waiter w = { .request = r };
    dt_status st = DT_OK;

    for (;;) {
        const int left = w.left_member;
        const int member = ready(c, r);
        if (member == DTI_LOCAL_READY) break;
        if (member == DTI_LOCAL_FAILED) {
            st = dt_last_error()->code;
            break;
        }
        st = dti_local_check_abort(c, r);
        if (st != DT_OK) break;
        if (left == member + 1) {
            st = dti_local_fail_left(c, r, member);
            break;
        }
        if (!wait_step(c, &w, member)) {
            st = dti_local_fail_expired(c, r, member, verb);
            break;
        }
    }
    disarm(c, &w);
    if (w.clock.begin_ns != 0) dti_local_tell_wait(c, DTI_LOCAL_NOBODY);
    return st;
}
