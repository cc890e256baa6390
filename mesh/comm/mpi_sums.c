/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums by MPI's own reductions, for runs that ask for them. Ranks first compare headers, as in a
 * barrier, so that nobody enters a reduction of MPI whose other members are elsewhere; then chunks
 * go through memory of the library to MPI_Iallreduce or MPI_Ireduce_scatter, two at a time. */
#include <sched.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"

enum { CHUNK_BYTES = 1 << 20, MS_NS = 1000 * 1000, PATIENCE_MS = 60 * 1000 };

typedef struct chunk {
    char *terms, *sums; /* [CHUNK_BYTES] that MPI may see */
    int *counts;        /* [size], of a reduce_scatter */
} chunk;

struct dti_mpi_sums {
    dti_mpi_stream stream; /* what polling marks as done: its slots stand for the chunks */
    chunk chunks[DTI_MPI_DEPTH];
    int lane;        /* which of the module's communicators */
    int64_t each;    /* elements of a chunk, of a reduce_scatter in each block */
    int64_t largest; /* elements of an all_reduce, or of its largest block */
    int64_t begun, finished;
    bool active;
};

/* --- the beginning of a run ---------------------------------------------------------------------
 */

/* Collective over processes, which all ask for it: their cards say so. MPI knows processes, not
 * ranks, so a run with several ranks in one keeps its order. */
dt_status dti_mpi_sums_join(dti_mpi_world *w)
{
    const int64_t begin = dti_now_ns();
    const int64_t limit_ms = w->timeout_ms > PATIENCE_MS ? w->timeout_ms : PATIENCE_MS;
    dti_mpi_queue *q;
    dt_status st = DT_OK;
    int missing = DTI_MPI_SUM_LANES;

    w->sums_by_mpi = w->n_ranks == w->n_processes;
    if (!w->sums_by_mpi) return DT_OK;
    q = w->api->queue_create(DTI_MPI_SUM_LANES);
    DT_CHECK(q != NULL, DT_ERR_MEMORY, "no memory for messages to %d processes", w->n_processes);
    DT_CHECK_TO(done, st, w->api->sums_open(q) == 0, DT_ERR_UNSUPPORTED,
                "sums by MPI (DTENSOR_MPI_SUMS=mpi) are not possible over %s: %s", w->api->name,
                w->api->why(q));
    while (missing > 0) {
        const dti_mpi_done *finished = NULL;
        const int n = w->api->poll(q, &finished);
        DT_CHECK_TO(done, st, n >= 0, DT_ERR_COMM, "MPI reports: %s", w->api->why(q));
        missing -= n;
        dti_mpi_look(w);
        DT_CHECK_TO(done, st, !atomic_load(&w->aborted), DT_ERR_COMM, "%s", w->why);
        DT_CHECK_TO(done, st, (dti_now_ns() - begin) / MS_NS < limit_ms, DT_ERR_COMM,
                    "process %d of %d: MPI has not made the communicators of sums after %lld ms",
                    w->process, w->n_processes, (long long)limit_ms);
        if (n == 0) (void)sched_yield();
    }
done:
    w->api->queue_destroy(q);
    return st;
}

static bool has_all_ranks(const dti_mpi_comm *c)
{
    if (c->head.size != c->port->world->n_ranks) return false;
    for (int m = 0; m < c->head.size; m++)
        if (c->head.world_ranks[m] != m) return false;
    return true;
}

/* Members make communicators of all ranks in the same order, so they number them alike. */
dt_status dti_mpi_sums_create(dti_mpi_comm *c)
{
    dti_mpi_port *port = c->port;
    const size_t counts_bytes = (size_t)c->head.size * sizeof(int);
    dti_mpi_sums *s;
    char *memory;

    if (!port->world->sums_by_mpi || !has_all_ranks(c)) return DT_OK;
    if (port->n_sum_lanes == DTI_MPI_SUM_LANES) return DT_OK;
    DT_TRY(dti_new(sizeof *s, &s));
    c->sums = s;
    s->lane = port->n_sum_lanes++;
    s->stream.comm = c;
    s->stream.sends = true;
    memory = port->world->api->queue_memory(port->queue,
                                            DTI_MPI_DEPTH * (2 * CHUNK_BYTES + counts_bytes));
    DT_CHECK(memory != NULL, DT_ERR_MEMORY, "\"%s\": no memory for sums by MPI", c->head.name);
    for (int k = 0; k < DTI_MPI_DEPTH; k++) {
        s->stream.slots[k].stream = &s->stream;
        s->chunks[k] = (chunk){ .terms = memory, .sums = memory + CHUNK_BYTES };
        memory += 2 * CHUNK_BYTES;
    }
    for (int k = 0; k < DTI_MPI_DEPTH; k++)
        s->chunks[k].counts = (int *)(void *)(memory + (size_t)k * counts_bytes);
    return DT_OK;
}

/* --- one sum ------------------------------------------------------------------------------------
 */

static bool number_of(dt_dtype dtype, dti_mpi_number *out)
{
    switch (dtype) {
    case DT_F32:
        *out = DTI_MPI_F32;
        return true;
    case DT_I32:
        *out = DTI_MPI_I32;
        return true;
    case DT_I64:
        *out = DTI_MPI_I64;
        return true;
    default:
        break;
    }
    *out = DTI_MPI_F64;
    return dtype == DT_F64;
}

/* The same on all ranks that agree on the call. bf16 and f16 are added in f32, which MPI has no way
 * to say; of maxima MPI does not say what becomes of a NaN. */
bool dti_mpi_sums_take(const dti_mpi_comm *c, const dti_comm_call *call)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    dti_mpi_number number;

    if (c->sums == NULL || call->reduce != DT_SUM || !number_of(call->dtype, &number)) return false;
    if (call->op == DTI_COMM_ALL_REDUCE) return true;
    return call->op == DTI_COMM_REDUCE_SCATTER && (size_t)c->head.size * bytes <= CHUNK_BYTES;
}

/* What has to agree beside the operation: all counts. */
int64_t dti_mpi_sums_begin(dti_mpi_comm *c, const dti_comm_call *call)
{
    dti_mpi_sums *s = c->sums;
    const bool all = call->op == DTI_COMM_ALL_REDUCE;
    const int n = all ? 1 : c->head.size;

    s->each = CHUNK_BYTES / ((int64_t)dt_dtype_size(call->dtype) * n);
    s->begun = s->finished = s->largest = 0;
    s->active = true;
    for (int m = 0; m < n; m++)
        if (call->counts[m] > s->largest) s->largest = call->counts[m];
    if (all) return call->counts[0];
    return (int64_t)(dti_mpi_hash(1, call->counts, (size_t)n * sizeof *call->counts) >> 1);
}

/* Elements of chunk `k` in a block of `count`. */
static int64_t part_of(const dti_mpi_sums *s, int64_t k, int64_t count)
{
    const int64_t left = count - k * s->each;

    if (left <= 0) return 0;
    return left < s->each ? left : s->each;
}

/* This rank's terms of chunk k, block behind block. Returns how many. */
static int64_t pack(const dti_mpi_comm *c, const dti_comm_call *call, int64_t k, chunk *to)
{
    const dti_mpi_sums *s = c->sums;
    const size_t bytes = dt_dtype_size(call->dtype);
    const bool all = call->op == DTI_COMM_ALL_REDUCE;
    int64_t n = 0, at = 0;

    for (int m = 0; m < (all ? 1 : c->head.size); m++) {
        const int64_t now = part_of(s, k, call->counts[m]);
        const int64_t block = !all && call->displs != NULL ? call->displs[m] : at;
        char *place = dti_element(to->terms, n, bytes);
        to->counts[m] = (int)now;
        if (now > 0 && !all && call->send_boxes != NULL)
            dti_box_pack(place, call->send, &call->send_boxes[m], k * s->each, now, bytes);
        else if (now > 0)
            memcpy(place, dti_element(call->send, block + k * s->each, bytes), (size_t)now * bytes);
        n += now;
        at += call->counts[m];
    }
    return n;
}

static dt_status begin_chunk(dti_mpi_comm *c, const dti_comm_call *call)
{
    dti_mpi_sums *s = c->sums;
    dti_mpi_port *port = c->port;
    dti_mpi_slot *slot = &s->stream.slots[s->begun % DTI_MPI_DEPTH];
    chunk *k = &s->chunks[s->begun % DTI_MPI_DEPTH];
    dti_mpi_sum sum = {
        .terms = k->terms,
        .sums = k->sums,
        .counts = call->op == DTI_COMM_REDUCE_SCATTER ? k->counts : NULL,
        .n = (int)pack(c, call, s->begun, k),
        .lane = s->lane,
        .cookie = slot,
    };

    (void)number_of(call->dtype, &sum.number);
    DT_CHECK(port->world->api->sum(port->queue, &sum) == 0, DT_ERR_COMM, "\"%s\": %s", c->head.name,
             port->world->api->why(port->queue));
    slot->busy = true;
    slot->done = false;
    port->n_sends++;
    s->begun++;
    return DT_OK;
}

/* This rank's sums of the oldest chunk, to where they belong. */
static void finish_chunk(dti_mpi_comm *c, const dti_comm_call *call)
{
    dti_mpi_sums *s = c->sums;
    const size_t bytes = dt_dtype_size(call->dtype);
    const int64_t count = call->counts[call->op == DTI_COMM_ALL_REDUCE ? 0 : c->head.rank];
    const int64_t n = part_of(s, s->finished, count);

    if (n > 0)
        memcpy(dti_element(call->recv, s->finished * s->each, bytes),
               s->chunks[s->finished % DTI_MPI_DEPTH].sums, (size_t)n * bytes);
    s->finished++;
}

dt_status dti_mpi_sums_advance(dti_mpi_comm *c, const dti_comm_call *call, bool *moved)
{
    dti_mpi_sums *s = c->sums;
    const int64_t n_chunks = (s->largest + s->each - 1) / s->each;

    while (s->finished < n_chunks) {
        if (s->begun < n_chunks && s->begun - s->finished < DTI_MPI_DEPTH)
            DT_TRY(begin_chunk(c, call));
        else if (s->stream.slots[s->finished % DTI_MPI_DEPTH].done)
            finish_chunk(c, call);
        else
            return DT_OK;
        *moved = true;
    }
    s->active = false;
    return DT_OK;
}

bool dti_mpi_sums_are_active(const dti_mpi_comm *c)
{
    return c->sums != NULL && c->sums->active;
}

bool dti_mpi_sums_are_with_mpi(const dti_mpi_comm *c)
{
    return dti_mpi_sums_are_active(c) && c->sums->begun > 0;
}
