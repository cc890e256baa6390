/* SPDX-License-Identifier: Apache-2.0
 *
 * How waits end when a rank fails, leaves or never comes. */
#include <stdio.h>
#include <string.h>

#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"

enum { LOOK_NS = 5 * 1000 * 1000, LOOKS = 4, WATCH_NS = 200 * 1000 * 1000 };

dt_status dti_mpi_check_abort(dti_mpi_comm *c, const dti_comm_request *r)
{
    const dti_mpi_world *w = c->port->world;

    if (atomic_load_explicit(&w->aborted, memory_order_acquire) == 0) return DT_OK;
    DT_FAIL(DT_ERR_COMM, "%s #%llu on \"%s\" was cut short by rank %d: %s",
            dti_comm_op_name(r->call.op), (unsigned long long)r->seq, c->head.name, w->culprit,
            w->why);
}

/* A rank that comes late hears first what has happened meanwhile. MPI takes messages in when asked,
 * and tells of them when asked again. A run in which nobody ever waits for long looks now and then
 * whether its launcher lives. */
dt_status dti_mpi_arrive(dti_mpi_comm *c, const dti_comm_request *r)
{
    const int64_t now = dti_now_ns();

    for (int i = 0; i < LOOKS && now - c->port->looked_ns > LOOK_NS; i++)
        dti_mpi_look(c->port->world);
    c->port->looked_ns = now;
    if (now - c->port->watched_ns > WATCH_NS) {
        c->port->watched_ns = now;
        dti_mpi_watch(c->port->world, 0);
    }
    DT_TRY(dti_mpi_check_abort(c, r));
    atomic_store_explicit(&c->port->where, c->head.name, memory_order_relaxed);
    atomic_store_explicit(&c->port->reached, (uint64_t)r->call.op | r->seq << 8,
                          memory_order_release);
    return DT_OK;
}

void dti_mpi_tell_wait(dti_mpi_port *port, int seat)
{
    atomic_store_explicit(&port->waits_for, seat, memory_order_relaxed);
}

/* Whom a seat waits for in the end: one that is late because another is late is no culprit. The
 * seat itself if they wait for each other in a circle. */
static int root_of_wait(dti_mpi_world *w, int seat)
{
    int last = seat;

    for (int step = 0; step < w->n_ranks; step++) {
        const int next = dti_mpi_place_of(w, last).waits_for;
        if (next == DTI_MPI_NOBODY) return last;
        last = next;
    }
    return seat;
}

/* What the last message of a rank said, if it does not answer. */
static void place_seen(const dti_mpi_port *port, int rank, dti_mpi_place *p)
{
    uint64_t last = 0;

    for (const dti_mpi_comm *c = port->comms; c != NULL; c = c->next)
        for (const dti_mpi_peer *known = c->known; known != NULL; known = known->next)
            for (int lane = 0; lane < 2; lane++) {
                const dti_mpi_stream *s = known->streams[lane][false];
                if (s == NULL || c->head.world_ranks[s->member] != rank || s->seen_as <= last)
                    continue;
                last = s->seen_as;
                p->op = (int32_t)(s->seen.kind & 0xff);
                p->seq = s->seen.seq;
                (void)snprintf(p->comm, sizeof p->comm, "%s", c->head.name);
            }
}

/* How far a rank has come, as it has told; its place holds the name. */
static dti_reached reached_by(const dti_mpi_port *port, int rank, dti_mpi_place *place)
{
    *place = dti_mpi_place_of(port->world, dti_mpi_seat(port, rank));
    if (place->op < 0) place_seen(port, rank, place);
    return (dti_reached){ place->op >= 0, (dti_comm_op)place->op, (uint64_t)place->seq,
                          place->comm };
}

dt_status dti_mpi_fail_left(dti_mpi_comm *c, const dti_comm_request *r, int member)
{
    const int rank = c->head.world_ranks[member];
    dti_mpi_place place;
    const dti_reached reached = reached_by(c->port, rank, &place);
    char why[DTI_WHY_BYTES];

    dti_say_left(&c->head, r, rank, &reached, why);
    dti_mpi_abort(c->port->world, rank, why);
    return DT_ERR_COMM;
}

/* A process closes its memory when its run is over: of a run that has failed the first failure is
 * still on its way here, and is what counts. */
dt_status dti_mpi_fail_unreached(const dti_mpi_comm *c)
{
    dti_mpi_world *w = c->port->world;

    dti_mpi_hear_out(w);
    if (atomic_load_explicit(&w->aborted, memory_order_acquire) == 0) return DT_ERR_COMM;
    DT_FAIL(DT_ERR_COMM, "\"%s\" was cut short by rank %d: %s", c->head.name, w->culprit, w->why);
}

/* The one who is waited for, and the one who keeps it if that is another. */
static dt_status find_and_blame(dti_mpi_comm *c, const dti_comm_request *r, int member,
                                const char *verb)
{
    dti_mpi_world *w = c->port->world;
    dti_late late = { .rank = c->head.world_ranks[member], .verb = verb };
    char why[DTI_WHY_BYTES];
    dti_mpi_place place;
    dti_reached reached;

    dti_mpi_ask(w);
    DT_TRY(dti_mpi_check_abort(c, r)); /* meanwhile another may have noticed */
    late.culprit = root_of_wait(w, dti_mpi_seat(c->port, late.rank)) % w->n_ranks;
    reached = reached_by(c->port, late.culprit, &place);
    dti_say_expired(&c->head, r, &late, &reached, why);
    dti_mpi_abort(w, late.culprit, why);
    return DT_ERR_COMM;
}

/* One rank of a process at a time: what others answer is kept in one place, and those who come
 * second hear what the first has found. */
dt_status dti_mpi_fail_expired(dti_mpi_comm *c, const dti_comm_request *r, int member,
                               const char *verb)
{
    dti_mpi_world *w = c->port->world;
    dt_status st;

    (void)pthread_mutex_lock(&w->asks);
    st = dti_mpi_check_abort(c, r);
    if (st == DT_OK) st = find_and_blame(c, r, member, verb);
    (void)pthread_mutex_unlock(&w->asks);
    return st;
}

/* --- ranks that do different things -------------------------------------------------------------
 */

static dti_comm_op op_of(uint32_t kind)
{
    return (dti_comm_op)(kind & 0xff);
}

static dt_dtype dtype_of(uint32_t kind)
{
    return (dt_dtype)(kind >> 8 & 0xff);
}

/* "rank 1 calls all_reduce of 8 f32 (redistribute [2, 4] ...)" */
static void side_text(int rank, const dti_mpi_header *h, const char *words,
                      char text[DTI_MPI_SIDE_BYTES])
{
    const bool has_words = h->note != 0 && words != NULL && words[0] != '\0';
    char call[DTI_CALL_TEXT_BYTES];

    (void)snprintf(text, DTI_MPI_SIDE_BYTES, "rank %d calls %s%s%.*s%s", rank,
                   dti_call_text(op_of(h->kind), h->count, dtype_of(h->kind), call),
                   has_words ? " (" : "", DTI_NOTE_BYTES - 1, has_words ? words : "",
                   has_words ? ")" : "");
}

/* What this rank did as operation `seq`, which is over: it expected nothing of the other rank. */
static dti_mpi_header past_header(const dti_mpi_comm *c, uint64_t seq)
{
    const size_t k = seq % DTI_MPI_RING;

    return (dti_mpi_header){ .seq = seq,
                             .kind = dti_mpi_kind_of(&c->calls[k]),
                             .count = c->counts[k],
                             .note = c->notes[k].hash };
}

static dt_status fail_other_number(const dti_mpi_stream *s, const dti_mpi_header *theirs,
                                   const char *their_words)
{
    const dti_comm *head = &s->comm->head;
    const bool earlier = theirs->seq < s->header.seq;
    const int me = head->world_ranks[head->rank], member = head->world_ranks[s->member];
    dti_mpi_header ours = s->header;
    char our_text[DTI_MPI_SIDE_BYTES], their_text[DTI_MPI_SIDE_BYTES];

    if (earlier && theirs->seq + DTI_MPI_RING > s->comm->started)
        ours = past_header(s->comm, theirs->seq);
    side_text(me, &ours, ours.note != 0 ? s->comm->notes[ours.seq % DTI_MPI_RING].text : NULL,
              our_text);
    side_text(member, theirs, their_words, their_text);
    DT_FAIL(DT_ERR_ARG,
            "operation #%llu on \"%s\" differs: %s, %s%s; all ranks of a communicator issue the "
            "same operations in the same order",
            (unsigned long long)ours.seq, head->name, our_text, their_text,
            earlier ? "" : " as a later one");
}

dt_status dti_mpi_fail_differs(const dti_mpi_stream *s, const dti_mpi_header *theirs,
                               const char *their_words)
{
    const dti_comm *head = &s->comm->head;
    const dti_mpi_header *ours = &s->header;
    const int me = head->world_ranks[head->rank], member = head->world_ranks[s->member];
    char our_text[DTI_MPI_SIDE_BYTES], their_text[DTI_MPI_SIDE_BYTES];

    DT_CHECK(theirs->group == ours->group, DT_ERR_INTERNAL,
             "\"%s\": a message of rank %d belongs to another communicator", head->name, member);
    DT_CHECK(op_of(ours->kind) != DTI_COMM_RECV, DT_ERR_ARG,
             "recv on \"%s\": rank %d sends %lld elements of %s but rank %d receives %lld of %s",
             head->name, member, (long long)theirs->n, dt_dtype_name(dtype_of(theirs->kind)), me,
             (long long)ours->n, dt_dtype_name(dtype_of(ours->kind)));
    if (theirs->seq != ours->seq) return fail_other_number(s, theirs, their_words);
    DT_CHECK(theirs->kind != ours->kind || theirs->root == ours->root, DT_ERR_ARG,
             "broadcast #%llu on \"%s\": rank %d names %d as the source, rank %d names %d",
             (unsigned long long)ours->seq, head->name, me, head->world_ranks[ours->root], member,
             head->world_ranks[theirs->root]);
    side_text(me, ours, s->words, our_text);
    side_text(member, theirs, their_words, their_text);
    DT_FAIL(DT_ERR_ARG,
            "operation #%llu on \"%s\" differs: %s, %s; all ranks of a communicator issue the same "
            "operations in the same order",
            (unsigned long long)ours->seq, head->name, our_text, their_text);
}
