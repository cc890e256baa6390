/* SPDX-License-Identifier: Apache-2.0
 *
 * The MPI back end: communicators, start and wait. mpi_internal.h says how it works. */
#include "mesh/comm/mpi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"

/* Segments are as large as caches like, and small where every rank has one from every other. */
enum { SEGMENTS_BYTES = 1 << 20, MAX_SEGMENT_BYTES = 128 << 10 };

void dti_mpi_comm_free(dti_mpi_comm *c)
{
    dti_mpi_peers_free(c);
    dti_free((void *)c->peers);
    dti_free((void *)c->streams);
    dti_free(c->sums);
    dti_mpi_layout_free(c->layout);
    dti_free(c->tree.sums);
    dti_free(c->places);
    dti_free((void *)c->head.world_ranks);
    dti_free(c);
}

static int64_t segment_bytes(int n)
{
    const int64_t each = SEGMENTS_BYTES / n / DTI_MPI_SEGMENT * DTI_MPI_SEGMENT;

    if (each < DTI_MPI_SEGMENT) return DTI_MPI_SEGMENT;
    return each < MAX_SEGMENT_BYTES ? each : MAX_SEGMENT_BYTES;
}

/* The number of a group: of its ranks, in this run, and which of several with these ranks. All
 * members make these in the same order, so they count alike. Of its bits that tags have room for
 * the lowest says whether they are helpers. */
static uint64_t number_of(const dti_mpi_port *port, const int *world_ranks, int n)
{
    const size_t bytes = (size_t)n * sizeof *world_ranks;
    const uint64_t helps = (uint64_t)1 << (64 - port->world->hash_bits);
    uint64_t which = 0, number;

    for (int closed = 0; closed < 2; closed++)
        for (dti_mpi_comm *c = closed ? port->closed : port->comms; c != NULL; c = c->next)
            which += c->head.size == n && memcmp(c->head.world_ranks, world_ranks, bytes) == 0;
    number = dti_mpi_hash(port->world->session << 32 | which, world_ranks, bytes);
    return port->helps ? number | helps : number & ~helps;
}

static dt_status check_number(const dti_mpi_port *port, uint64_t group, const char *name)
{
    const int cut = 64 - port->world->hash_bits;

    for (dti_mpi_comm *c = port->comms; c != NULL; c = c->next)
        DT_CHECK(c->head.size == 1 || c->group >> cut != group >> cut, DT_ERR_UNSUPPORTED,
                 "\"%s\" and \"%s\" cannot be told apart by the tags of this MPI; list the ranks "
                 "of one of them in another order",
                 name, c->head.name);
    return DT_OK;
}

static const dti_comm_ops mpi_ops, sockets_ops;

/* A communicator of these world ranks, this one among them. */
static dt_status make_comm(dti_mpi_port *port, const int *world_ranks, int n, const char *name,
                           dti_comm **out)
{
    dt_status st = DT_OK;
    dti_mpi_comm *c = NULL;
    int *ranks = NULL;

    DT_TRY(dti_new(sizeof *c, &c));
    c->port = port;
    c->group = number_of(port, world_ranks, n);
    c->segment_bytes = segment_bytes(n);
    c->head.ops = strcmp(port->world->api->name, sockets_ops.name) == 0 ? &sockets_ops : &mpi_ops;
    c->head.size = n;
    (void)snprintf(c->head.name, sizeof c->head.name, "%s", name);
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)n, sizeof *ranks, (void **)&ranks));
    memcpy(ranks, world_ranks, (size_t)n * sizeof *ranks);
    c->head.world_ranks = ranks;
    while (ranks[c->head.rank] != port->rank) c->head.rank++;
    if (n > 1) {
        DT_TRY_TO(fail, st, check_number(port, c->group, name));
        DT_TRY_TO(fail, st, dti_alloc_array((size_t)n, sizeof(dti_mpi_peer *), (void **)&c->peers));
        DT_TRY_TO(fail, st, dti_mpi_sums_create(c));
    }
    c->next = port->comms;
    port->comms = c;
    *out = &c->head;
    return DT_OK;

fail:
    dti_mpi_comm_free(c);
    return st;
}

static dt_status mpi_group(dti_comm *head, const int *ranks, int n, const char *name,
                           dti_comm **out)
{
    dti_mpi_comm *c = (dti_mpi_comm *)head;
    dt_status st = DT_OK;
    int *world_ranks = NULL;

    *out = NULL;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *world_ranks, (void **)&world_ranks));
    for (int i = 0; i < n; i++) world_ranks[i] = head->world_ranks[ranks[i]];
    DT_TRY_TO(done, st, make_comm(c->port, world_ranks, n, name, out));
done:
    dti_free(world_ranks);
    return st;
}

/* Its segments may still be on their way. */
static void mpi_close(dti_comm *head)
{
    dti_mpi_comm *c = (dti_mpi_comm *)head;
    dti_mpi_comm **link = &c->port->comms;

    while (*link != c) link = &(*link)->next;
    *link = c->next;
    c->next = c->port->closed;
    c->port->closed = c;
}

/* --- operations ---------------------------------------------------------------------------------
 */

static int has_room(dti_mpi_comm *c, const dti_comm_request *r)
{
    return r->seq <= c->completed + DTI_MPI_RING ? DTI_MPI_READY : dti_mpi_waits_for(c);
}

static int is_done(dti_mpi_comm *c, const dti_comm_request *r)
{
    return r->seq <= c->completed ? DTI_MPI_READY : dti_mpi_waits_for(c);
}

static dt_status mpi_start(dti_comm *head, dti_comm_request *r)
{
    dti_mpi_comm *c = (dti_mpi_comm *)head;

    if (r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV) return dti_mpi_p2p_start(c, r);
    DT_TRY(dti_mpi_arrive(c, r));
    if (r->seq > c->completed + DTI_MPI_RING) DT_TRY(dti_mpi_await(c, r, has_room, "finished"));
    c->calls[r->seq % DTI_MPI_RING] = r->call;
    c->counts[r->seq % DTI_MPI_RING] = dti_call_count(head, &r->call);
    c->notes[r->seq % DTI_MPI_RING].hash = 0;
    if (r->note != NULL) c->notes[r->seq % DTI_MPI_RING] = *r->note;
    c->started = r->seq;
    c->port->n_under_way++;
    DT_TRY(dti_mpi_push_on(c));
    return DT_OK;
}

static dt_status mpi_wait(dti_comm *head, dti_comm_request *r)
{
    dti_mpi_comm *c = (dti_mpi_comm *)head;

    c->port->n_under_way--;
    if (r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV) return dti_mpi_p2p_wait(c, r);
    return dti_mpi_await(c, r, is_done, "arrived");
}

static dt_status mpi_check(dti_comm *head, const dti_comm_request *r)
{
    dti_mpi_comm *c = (dti_mpi_comm *)head;
    bool moved = false;

    dti_mpi_look(c->port->world);
    DT_TRY(dti_mpi_check_abort(c, r));
    DT_TRY(dti_mpi_progress(c->port, &moved));
    dti_beside_step(head);
    return DT_OK;
}

static bool mpi_is_over(dti_comm *head, const dti_comm_request *r)
{
    dti_mpi_comm *c = (dti_mpi_comm *)head;
    const bool message = r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV;

    return message ? dti_mpi_p2p_is_over(c, r) : is_done(c, r) == DTI_MPI_READY;
}

static void mpi_abort(dti_comm *head, int rank, const char *why)
{
    dti_mpi_abort(((dti_mpi_comm *)head)->port->world, rank, why);
}

static const dti_comm_ops mpi_ops = {
    .name = "mpi",
    .group = mpi_group,
    .start = mpi_start,
    .wait = mpi_wait,
    .check = mpi_check,
    .is_over = mpi_is_over,
    .abort = mpi_abort,
    .close = mpi_close,
};

/* The same over the module of processes without MPI: a name for those who ask what joins them. */
static const dti_comm_ops sockets_ops = {
    .name = "sockets",
    .group = mpi_group,
    .start = mpi_start,
    .wait = mpi_wait,
    .check = mpi_check,
    .is_over = mpi_is_over,
    .abort = mpi_abort,
    .close = mpi_close,
};

/* --- ranks --------------------------------------------------------------------------------------
 */

static dt_status open_port(dti_mpi_world *w, int seat, dti_comm **out)
{
    dti_mpi_port *port = dti_mpi_port_of(w, seat);
    const int rank = seat % w->n_ranks;
    dt_status st = DT_OK;
    int *ranks = NULL;

    *out = NULL;
    port->world = w;
    port->rank = rank;
    port->helps = seat != rank;
    port->queue = w->api->queue_create(64);
    DT_CHECK(port->queue != NULL, DT_ERR_MEMORY, "no memory for the messages of rank %d", rank);
    DT_TRY(dti_mpi_bell_open(port));
    DT_TRY(dti_alloc_array((size_t)w->n_ranks, sizeof *ranks, (void **)&ranks));
    for (int r = 0; r < w->n_ranks; r++) ranks[r] = r;
    DT_TRY_TO(done, st, make_comm(port, ranks, w->n_ranks, "world", out));
    (*out)->timeout_ms = w->timeout_ms;
done:
    dti_free(ranks);
    return st;
}

dt_status dti_mpi_open(dti_mpi_world *w, int rank, dti_fault *fault, dti_comm **out)
{
    DT_TRY(open_port(w, rank, out));
    (*out)->fault = fault;
    return DT_OK;
}

bool dti_mpi_has_lanes(const dti_mpi_world *w)
{
    return w->n_hands > 1;
}

dt_status dti_mpi_open_lane(dti_mpi_world *w, int rank, dti_comm **out)
{
    DT_TRY(open_port(w, w->n_ranks + rank, out));
    return DT_OK;
}

static bool is_mine(const dti_comm *head)
{
    return head->ops == &mpi_ops || head->ops == &sockets_ops;
}

void dti_mpi_poll(const dti_comm *head)
{
    dti_mpi_port *port = is_mine(head) ? ((const dti_mpi_comm *)head)->port : NULL;
    bool moved = false;

    if (port == NULL || atomic_load(&port->world->aborted)) return;
    if (dti_mpi_progress(port, &moved) != DT_OK) dti_error_clear();
}

void dti_mpi_tell_doing(const dti_comm *head, const char *what)
{
    dti_mpi_bell *bell = is_mine(head) ? ((const dti_mpi_comm *)head)->port->bell : NULL;

    if (bell != NULL) (void)snprintf(bell->doing, sizeof bell->doing, "%s", what);
}

bool dti_mpi_use_of(const dti_comm *head, dti_mpi_use *out)
{
    const dti_mpi_comm *c = (const dti_mpi_comm *)head;
    const size_t n = (size_t)head->size;

    *out = (dti_mpi_use){ 0 };
    if (!is_mine(head)) return false;
    out->n_sent = c->port->n_sent;
    out->own_bytes = sizeof *c + n * (sizeof *head->world_ranks + sizeof *c->peers) +
                     c->most_streams * sizeof(dti_mpi_stream *) + c->tree.sums_bytes;
    if (c->places != NULL) out->own_bytes += n * sizeof *c->places;
    if (c->layout != NULL) out->own_bytes += sizeof *c->layout + (4 * n + 2) * sizeof(int);
    for (const dti_mpi_peer *p = c->known; p != NULL; p = p->next, out->n_peers++) {
        out->peer_bytes += sizeof *p;
        for (int i = 0; i < 6; i++) {
            const dti_mpi_mail *mail = i < 4 ? NULL : p->mail[i - 4];
            const dti_mpi_stream *s = i < 4 ? p->streams[i / 2][i % 2] : NULL;
            if (mail != NULL) out->peer_bytes += sizeof *mail;
            if (mail != NULL) s = mail->stream;
            if (s != NULL) out->peer_bytes += sizeof *s + dti_mpi_ring_bytes(s);
        }
    }
    return true;
}

static bool is_sending(const dti_mpi_stream *s)
{
    bool busy = false;

    for (int k = 0; s != NULL && k < DTI_MPI_DEPTH; k++) busy = busy || s->slots[k].busy;
    return busy;
}

/* READY, or a rank of the world that has not taken all that was sent to it. */
static int is_sent(dti_mpi_comm *world, const dti_comm_request *r)
{
    const dti_mpi_port *port = world->port;

    (void)r;
    if (port->n_sends == 0) return DTI_MPI_READY;
    for (int closed = 0; closed < 2; closed++)
        for (dti_mpi_comm *c = closed ? port->closed : port->comms; c != NULL; c = c->next)
            for (const dti_mpi_peer *p = c->known; p != NULL; p = p->next)
                for (int lane = 0; lane < 2; lane++)
                    if (is_sending(p->streams[lane][true]))
                        return c->head.world_ranks[p->streams[lane][true]->member];
    return world->head.rank; /* a message: its wait is over only when it was taken */
}

/* c: any communicator of the seat's, also a closed one. */
static dt_status await_sent(dti_mpi_comm *c)
{
    const dti_comm_request last = { .call = { .op = DTI_COMM_BARRIER },
                                    .seq = c->started + 1,
                                    .timeout_ms = c->port->world->timeout_ms };

    DT_TRY(dti_mpi_await(c, &last, is_sent, "received what was sent"));
    return DT_OK;
}

dt_status dti_mpi_leave(dti_comm *world)
{
    dti_mpi_comm *c = (dti_mpi_comm *)world;
    dti_mpi_world *w = c->port->world;
    const int n = c->port->n_under_way;

    if (atomic_load(&w->aborted)) return DT_OK;
    DT_CHECK(n == 0, DT_ERR_ARG,
             "rank %d returned with %d operation%s under way; wait for what was started",
             c->port->rank, n, n == 1 ? "" : "s");
    DT_TRY(await_sent(c));
    dti_mpi_tell_left(w, c->port->rank);
    return DT_OK;
}

void dti_mpi_lane_left(dti_mpi_world *w, int rank)
{
    dti_mpi_port *port = dti_mpi_port_of(w, w->n_ranks + rank);

    if (atomic_load(&w->aborted) || (port->closed != NULL && await_sent(port->closed) != DT_OK))
        return;
    dti_mpi_tell_left(w, w->n_ranks + rank);
}
