/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for peers, and how waits end when a rank fails, leaves or never comes. */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "mesh/comm/mpi_internal.h"
#include "mesh/comm/wait_clock.h"

/* A rank that waits looks by itself: without a pause at first, then after yields, then after
 * sleeps. Where all processes share memory, whoever leaves something for it wakes it, and it asks
 * every few milliseconds what MPI has to say, failures among it, and whether processes live. Else
 * nobody wakes it, and it sleeps shortly. What a rank that has left sent before takes its time to
 * arrive. */
enum {
    SPIN_NS = 50 * 1000,
    YIELD_NS = 2 * 1000 * 1000,
    SLEEP_NS = 200 * 1000,
    IDLE_SLEEP_NS = 5 * 1000 * 1000,
    DOZE_NS = 2 * 1000 * 1000,
    IDLE_DOZE_NS = 20 * 1000 * 1000,
    IDLE_AFTER_NS = 100 * 1000 * 1000,
    ASK_NS = 20 * 1000 * 1000, /* whether a rank that is waited for has left */
    LEFT_NS = 200 * 1000 * 1000,
    NS_PER_MS = 1000 * 1000,
    LOOK_EVERY = 16
};

typedef struct waiter {
    const dti_comm_request *request;
    dti_wait_clock clock;
    int64_t left_ns; /* when the member was first seen to have left; 0: it has not */
    unsigned polls;
} waiter;

static void take(const dti_mpi_done *done)
{
    dti_mpi_slot *slot = done->cookie;
    dti_mpi_stream *s = slot->stream;

    slot->done = true;
    slot->bytes = done->bytes;
    s->comm->moved = true;
    if (s->sends) dti_mpi_slot_sent(slot);
}

/* Nobody tells of what comes through rings. */
static bool looks_at_rings(const dti_mpi_comm *c)
{
    return c->shared && (c->completed < c->started || c->n_messages > 0);
}

dt_status dti_mpi_progress(dti_mpi_port *port, bool *moved)
{
    dti_mpi_world *w = port->world;
    const dti_mpi_done *done = NULL;
    const int n = w->api->poll(port->queue, &done);
    dt_status st = DT_OK;

    if (n < 0)
        st = dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__, "MPI reports: %s",
                        w->api->why(port->queue));
    for (int i = 0; i < n; i++) take(&done[i]);
    for (dti_mpi_comm *c = port->comms; c != NULL && st == DT_OK; c = c->next) {
        if (!c->moved && !looks_at_rings(c)) continue;
        *moved = *moved || c->moved;
        c->moved = false;
        st = dti_mpi_advance(c, moved);
    }
    if (st == DT_OK) return DT_OK;
    dti_mpi_abort(w, port->rank, dt_last_error()->message);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

dt_status dti_mpi_push_on(dti_mpi_comm *c)
{
    bool moved = false;

    c->moved = true;
    DT_TRY(dti_mpi_progress(c->port, &moved));
    return DT_OK;
}

/* Waiting for the root of a broadcast of work, which may come tomorrow. */
static bool waits_for_work(const dti_mpi_comm *c, const dti_comm_request *r)
{
    return r->call.for_work && c->head.rank != r->call.root && c->completed + 1 == r->seq &&
           c->taken_bytes < 0;
}

/* Ranks that share cores keep those from going on that they wait for: who has waited for long looks
 * less often. */
static int64_t nap_ns(const dti_mpi_port *port, bool idle, int64_t elapsed)
{
    const int64_t shared = elapsed / 8 < IDLE_SLEEP_NS ? elapsed / 8 : IDLE_SLEEP_NS;

    if (idle) return IDLE_SLEEP_NS;
    return port->world->spin || shared < SLEEP_NS ? SLEEP_NS : shared;
}

static void sleep_a_little(dti_mpi_port *port, bool idle, int64_t elapsed)
{
    if (port->bell == NULL) {
        dti_mpi_watch(port->world, nap_ns(port, idle, elapsed));
        return;
    }
    dti_mpi_bell_doze(port->bell, idle ? IDLE_DOZE_NS : DOZE_NS);
    dti_mpi_watch(port->world, 0);
}

/* A helper has no core of its own. */
static bool spins(const dti_mpi_port *port)
{
    return port->world->spin && !port->helps;
}

static void pause_a_little(dti_mpi_port *port, bool idle, int64_t elapsed)
{
    if (elapsed >= (port->helps ? SPIN_NS : YIELD_NS))
        sleep_a_little(port, idle && elapsed > IDLE_AFTER_NS, elapsed);
    else if (spins(port) && elapsed < SPIN_NS)
        dti_cpu_relax();
    else
        (void)sched_yield();
}

static void wake_up(dti_mpi_port *port)
{
    if (port->bell != NULL) dti_mpi_bell_awake(port->bell);
}

typedef enum verdict { GOES_ON, HAS_LEFT, IS_LATE } verdict;

/* One step of waiting for `member`, during which nothing has moved. */
static verdict wait_step(dti_mpi_comm *c, waiter *wait, int member)
{
    dti_mpi_world *w = c->port->world;
    const bool idle = waits_for_work(c, wait->request);
    const int seat = dti_mpi_seat(c->port, c->head.world_ranks[member]);
    int64_t now, elapsed;

    wait->polls++;
    if (wait->polls % LOOK_EVERY != 0 && wait->clock.begin_ns == 0) {
        if (spins(c->port))
            dti_cpu_relax();
        else
            (void)sched_yield();
        return GOES_ON;
    }
    now = dti_now_ns();
    elapsed = dti_wait_elapsed(&wait->clock, now);
    dti_mpi_tell_wait(c->port, seat);
    if (elapsed / NS_PER_MS >= wait->request->timeout_ms && !idle) return IS_LATE;
    if (elapsed >= YIELD_NS || wait->polls % LOOK_EVERY == 0) dti_mpi_look(w);
    if (dti_mpi_has_left(w, seat, elapsed > ASK_NS) && !dti_mpi_sums_are_with_mpi(c)) {
        if (wait->left_ns == 0) wait->left_ns = now;
        if (now - wait->left_ns > LEFT_NS) return HAS_LEFT;
    }
    dti_beside_step(&c->head);
    pause_a_little(c->port, idle, elapsed);
    return GOES_ON;
}

dt_status dti_mpi_await(dti_mpi_comm *c, const dti_comm_request *r, dti_mpi_condition ready,
                        const char *verb)
{
    waiter wait = { .request = r };
    verdict outcome = GOES_ON;
    dt_status st = DT_OK;
    int member;

    while ((member = ready(c, r)) != DTI_MPI_READY) {
        bool moved = false;
        st = dti_mpi_check_abort(c, r);
        if (st == DT_OK) st = dti_mpi_progress(c->port, &moved);
        if (st != DT_OK) break;
        if (moved) {
            wait.clock.begin_ns = wait.left_ns = 0;
            wake_up(c->port);
        } else {
            outcome = wait_step(c, &wait, member);
        }
        if (outcome == HAS_LEFT) st = dti_mpi_fail_left(c, r, member);
        if (outcome == IS_LATE) st = dti_mpi_fail_expired(c, r, member, verb);
        if (st != DT_OK) break;
    }
    wake_up(c->port);
    dti_mpi_tell_wait(c->port, DTI_MPI_NOBODY);
    return st;
}
