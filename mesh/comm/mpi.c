/* SPDX-License-Identifier: Apache-2.0
 *
 * The MPI back end: worlds, communicators, start and wait. mpi_internal.h says how it works. */
#include "mesh/comm/mpi.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"

/* Segments are as large as caches like, and small where every rank has one from every other. */
enum {
    SEGMENTS_BYTES = 1 << 20,
    MAX_SEGMENT_BYTES = 128 << 10,
    MIN_HASH_BITS = 8,
    MAX_TAG_BITS = 30
};

uint64_t dti_mpi_hash(uint64_t seed, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = (seed + 1) * 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
    return h != 0 ? h : 1;
}

/* --- ranks on processes -------------------------------------------------------------------------
 */

int dti_mpi_first_rank_of(const dti_mpi_world *w, int process)
{
    const int each = w->n_ranks / w->n_processes, more = w->n_ranks % w->n_processes;

    return process * each + (process < more ? process : more);
}

/* Of n_ranks ranks in `n` blocks. */
static int block_of(const dti_mpi_world *w, int rank, int n)
{
    const int each = w->n_ranks / n, more = w->n_ranks % n;

    return rank < more * (each + 1) ? rank / (each + 1) : (rank - more) / each;
}

int dti_mpi_process_of(const dti_mpi_world *w, int rank)
{
    return block_of(w, rank, w->n_processes);
}

int dti_mpi_host_of(const dti_mpi_world *w, int rank)
{
    if (w->n_hosts > 0) return block_of(w, rank, w->n_hosts);
    return w->hosts[dti_mpi_process_of(w, rank)];
}

int dti_mpi_seat(const dti_mpi_port *port, int rank)
{
    return port->helps ? port->world->n_ranks + rank : rank;
}

dti_mpi_port *dti_mpi_port_of(const dti_mpi_world *w, int seat)
{
    const bool helps = seat >= w->n_ranks;

    return &w->ports[seat - w->first_rank + (helps ? w->n_local - w->n_ranks : 0)];
}

/* From the lowest bit: lane, sender's and receiver's place in their processes, the group. Groups of
 * one rank whose numbers are cut to the same bits are refused when the second one is made, and the
 * header says the whole number. */
int dti_mpi_tag(const dti_mpi_world *w, dti_mpi_lane lane, int from, int to, uint64_t group)
{
    const uint64_t bits = group >> (64 - w->hash_bits);
    const uint64_t f = (uint64_t)(from - dti_mpi_first_rank_of(w, dti_mpi_process_of(w, from)));
    const uint64_t t = (uint64_t)(to - dti_mpi_first_rank_of(w, dti_mpi_process_of(w, to)));

    return (int)((uint64_t)lane | f << 2 | t << (2 + w->thread_bits) |
                 bits << (2 + 2 * w->thread_bits));
}

static dt_status divide_tags(dti_mpi_world *w, const dti_mpi_job *job)
{
    const int most = (w->n_ranks + w->n_processes - 1) / w->n_processes;
    int bits = 0;

    while (bits < MAX_TAG_BITS && (job->tag_max >> bits) > 1) bits++;
    while (1 << w->thread_bits < most) w->thread_bits++;
    w->hash_bits = bits - 2 - 2 * w->thread_bits;
    DT_CHECK(w->hash_bits >= MIN_HASH_BITS, DT_ERR_UNSUPPORTED,
             "%d ranks per process need larger tags than this MPI has (up to %d); start more "
             "processes",
             most, job->tag_max);
    DT_CHECK(most == 1 || job->threads, DT_ERR_UNSUPPORTED,
             "this MPI (%s) allows one thread per process (no MPI_THREAD_MULTIPLE), but %d ranks "
             "in %d processes need more; start one process per rank",
             w->api->name, w->n_ranks, w->n_processes);
    return DT_OK;
}

/* --- worlds -------------------------------------------------------------------------------------
 */

static dt_status make_world(dti_mpi_world *w, const dti_mpi_job *job, bool share)
{
    const size_t n_processes = (size_t)job->n_processes;

    w->process = job->process;
    w->n_processes = job->n_processes;
    DT_CHECK(w->n_ranks >= w->n_processes, DT_ERR_ARG,
             "the run has %d rank%s, but %d processes were started; ask for at least one rank per "
             "process, or start fewer",
             w->n_ranks, w->n_ranks == 1 ? "" : "s", w->n_processes);
    DT_CHECK(w->n_hosts <= w->n_ranks, DT_ERR_ARG, "DTENSOR_HOSTS is %d, but the run has %d ranks",
             w->n_hosts, w->n_ranks);
    w->first_rank = dti_mpi_first_rank_of(w, w->process);
    w->n_local = dti_mpi_first_rank_of(w, w->process + 1) - w->first_rank;
    DT_TRY(divide_tags(w, job));
    DT_TRY(dti_alloc_array(n_processes, sizeof *w->hosts, (void **)&w->hosts));
    DT_TRY(dti_alloc_array(n_processes, sizeof *w->watched, (void **)&w->watched));
    for (size_t p = 0; p < n_processes; p++) w->watched[p].life = -1;
    DT_TRY(dti_alloc_array(2 * (size_t)w->n_local, sizeof *w->ports, (void **)&w->ports));
    DT_TRY(dti_alloc_array(2 * (size_t)w->n_ranks, sizeof *w->left, (void **)&w->left));
    for (int i = 0; i < 2 * w->n_local; i++) atomic_init(&w->ports[i].waits_for, DTI_MPI_NOBODY);
    w->threads = job->threads;
    DT_TRY(dti_mpi_join(w, share));
    if (w->sums_by_mpi) DT_TRY(dti_mpi_sums_join(w));
    return DT_OK;
}

dt_status dti_mpi_world_create(const dti_mpi_module *module, const dti_mpi_job *job,
                               const dti_mpi_plan *plan, dti_mpi_world **out)
{
    dti_mpi_world *w = NULL;
    uint64_t session;
    dt_status st;

    *out = NULL;
    DT_CHECK(module->enter(&session) == 0, DT_ERR_UNSUPPORTED,
             "dt_run() was called while a run is under way in this process; among several "
             "processes runs cannot overlap");
    st = dti_new(sizeof *w, &w);
    if (st != DT_OK) {
        module->leave(true);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    w->api = module;
    w->session = session;
    w->n_ranks = plan->n_ranks;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_mutex_init(&w->asks, NULL);
    *out = w;
    w->timeout_ms = plan->timeout_ms;
    w->sums_by_mpi = plan->sums_by_mpi;
    w->agree = plan->agree;
    w->n_hosts = plan->n_hosts;
    st = make_world(w, job, plan->share);
    if (st == DT_OK) return DT_OK;
    atomic_store(&w->aborted, 1); /* the others find out by themselves */
    dti_mpi_world_destroy(out);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

bool dti_mpi_world_finish(dti_mpi_world *w, dt_error *out)
{
    enum { NAP_NS = 200 * 1000, POLLS = 1000 };

    for (int i = 0; !atomic_load(&w->aborted) && !dti_mpi_is_over(w); i++) {
        if (i < POLLS)
            (void)sched_yield();
        else
            dti_mpi_watch(w, NAP_NS);
    }
    if (!atomic_load(&w->aborted)) return false;
    *out = w->record;
    return true;
}

static void free_comm(dti_mpi_comm *c)
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

void dti_mpi_world_destroy(dti_mpi_world **world)
{
    dti_mpi_world *w = *world;

    if (w == NULL) return;
    *world = NULL;
    for (int i = 0; w->ports != NULL && i < 2 * w->n_local; i++) {
        dti_mpi_port *port = &w->ports[i];
        while (port->closed != NULL) {
            dti_mpi_comm *c = port->closed;
            port->closed = c->next;
            free_comm(c);
        }
        w->api->queue_destroy(port->queue);
    }
    dti_mpi_control_close(w);
    dti_mpi_region_close(&w->region);
    w->api->leave(atomic_load(&w->aborted) != 0);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_mutex_destroy(&w->asks);
    dti_free(w->hosts);
    dti_free(w->watched);
    dti_free(w->ports);
    dti_free((void *)w->left);
    dti_free(w);
}

int dti_mpi_first_rank(const dti_mpi_world *w)
{
    return w->first_rank;
}

int dti_mpi_n_local(const dti_mpi_world *w)
{
    return w->n_local;
}

void dti_mpi_neighbours(const dti_mpi_world *w, int *before, int *n)
{
    *before = w->n_before;
    *n = w->n_neighbours;
}

int dti_mpi_before_on_machine(const dti_mpi_world *w)
{
    return w->n_before_on_machine;
}

void dti_mpi_sharing(const dti_mpi_world *w, char text[DTI_MPI_TEXT_BYTES])
{
    int n = 0;

    for (int p = 0; p < w->n_processes; p++)
        n += p != w->process && dti_mpi_shares(w, w->first_rank, dti_mpi_first_rank_of(w, p));
    (void)snprintf(text, DTI_MPI_TEXT_BYTES,
                   "process %d shares memory with %d of %d other processes%s%s%s", w->process, n,
                   w->n_processes - 1, n < w->n_processes - 1 && w->region.why[0] ? ": " : "",
                   n < w->n_processes - 1 ? w->region.why : "",
                   w->sums_by_mpi ? "; sums are made by MPI" : "");
}

void dti_mpi_may_spin(dti_mpi_world *w, bool spin)
{
    w->spin = spin;
}

void dti_mpi_abort_world(dti_mpi_world *w, int rank, const char *why)
{
    dti_mpi_abort(w, rank, why);
}

/* --- communicators ------------------------------------------------------------------------------
 */

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
    free_comm(c);
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
