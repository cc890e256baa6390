/* SPDX-License-Identifier: Apache-2.0
 *
 * All-gathers. Up to 8 ranks every rank sends to every other, at once. Among more, small blocks
 * take log2 p rounds, in each of which a rank sends all that it has, 1, 2, 4 ... blocks, to the one
 * that many before it; large ones go round a ring, and are passed on as they come. */
#include "base/memory.h"
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"

enum { RECEIVES = false, SENDS = true };

/* --- blocks -------------------------------------------------------------------------------------
 */

dt_status dti_mpi_blocks_begin(dti_mpi_comm *c, const dti_comm_call *call)
{
    const size_t n = (size_t)c->head.size;
    int64_t at = 0;

    c->blocks =
        (dti_mpi_blocks){ .counts = call->counts,
                          .places = call->displs,
                          .boxes = call->op == DTI_COMM_REDUCE_SCATTER ? call->send_boxes : NULL,
                          .size = c->head.size,
                          .each = INT64_MAX };
    if (call->displs != NULL) return DT_OK;
    if (c->places == NULL) DT_TRY(dti_alloc_array(n, sizeof *c->places, (void **)&c->places));
    for (size_t m = 0; m < n; at += call->counts[m++]) c->places[m] = at;
    c->blocks.places = c->places;
    return DT_OK;
}

int64_t dti_mpi_part(const dti_mpi_blocks *b, int64_t count)
{
    const int64_t left = count - b->at;

    if (left <= 0) return 0;
    return left < b->each ? left : b->each;
}

void dti_mpi_list_move(dti_mpi_transfer *t, char *packed, int64_t n, bool packs)
{
    const dti_mpi_blocks *b = t->blocks;
    const size_t bytes = t->element_bytes;

    while (n > 0) {
        const int m = t->members != NULL ? *t->members : t->member;
        const int64_t left = dti_mpi_part(b, b->counts[m]) - t->used, now = left < n ? left : n;
        char *lies = dti_element(t->data, b->places[m] + b->at + t->used, bytes);
        if (b->boxes != NULL && now > 0)
            dti_box_pack(packed, t->data, &b->boxes[m], b->at + t->used, now, bytes);
        else
            dti_mpi_copy(packs ? packed : lies, packs ? lies : packed, now, bytes);
        packed += now * (int64_t)bytes;
        n -= now;
        t->used += now;
        if (now < left) return;
        t->used = 0;
        t->member = (t->member + t->step + b->size) % b->size;
        if (t->members != NULL) t->members++;
    }
}

/* --- all-gathers --------------------------------------------------------------------------------
 */

static void begin_direct(dti_mpi_comm *c, const dti_comm_call *call)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    const int me = c->head.rank;

    for (int m = 0; m < c->head.size; m++) {
        void *to = dti_element(call->recv, dti_block_at(call->counts, call->displs, m), bytes);
        const dti_mpi_transfer out = dti_mpi_flat(c, DTI_MPI_COPY, call->send, call->counts[me]);
        const dti_mpi_transfer in = dti_mpi_flat(c, DTI_MPI_COPY, to, call->counts[m]);
        if (m == me) {
            dti_mpi_copy(to, call->send, call->counts[me], bytes);
            continue;
        }
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, m, &out);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, m, &in);
    }
}

/* The blocks of `n` members, from `first` on in steps of 1 or -1. */
static dti_mpi_transfer blocks_of(const dti_mpi_comm *c, int first, int step, int n)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const int p = c->head.size;
    dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_LIST, call->recv, 0);

    t.blocks = &c->blocks;
    t.member = (first + p) % p;
    t.step = step;
    for (int i = 0; i < n; i++) t.n += call->counts[(first + i * step + 2 * p) % p];
    return t;
}

static void begin_round(dti_mpi_comm *c)
{
    const int p = c->head.size, me = c->head.rank, far = 1 << c->round;
    const int n = p - far < far ? p - far : far;
    const dti_mpi_transfer out = blocks_of(c, me, 1, n), in = blocks_of(c, me + far, 1, n);

    c->n_streams = 0;
    dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, (me + p - far) % p, &out);
    dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, (me + far) % p, &in);
}

static void begin_ring(dti_mpi_comm *c)
{
    const int p = c->head.size, me = c->head.rank;
    const dti_mpi_transfer in = blocks_of(c, me - 1, -1, p - 1);
    dti_mpi_transfer out = blocks_of(c, me, -1, p - 1);

    out.available = &c->taken_bytes;
    dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, (me + p - 1) % p, &in);
    dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, (me + 1) % p, &out);
}

void dti_mpi_gather_begin(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const int p = c->head.size, me = c->head.rank;
    const size_t bytes = dt_dtype_size(call->dtype);
    int64_t all = 0;

    if (p <= DTI_MPI_DIRECT) {
        begin_direct(c, call);
        return;
    }
    c->begun = dti_mpi_blocks_begin(c, call);
    if (c->begun != DT_OK) return;
    dti_mpi_copy(dti_element(call->recv, c->blocks.places[me], bytes), call->send, call->counts[me],
                 bytes);
    for (int m = 0; m < p; m++) all += call->counts[m];
    c->taken_bytes = call->counts[me] * (int64_t)bytes;
    if (all * (int64_t)bytes >= p * c->segment_bytes) { /* one has a segment, so the ring starts */
        begin_ring(c);
        return;
    }
    while (1 << c->n_rounds < p) c->n_rounds++;
    begin_round(c);
}

void dti_mpi_gather_advance(dti_mpi_comm *c, bool *moved)
{
    const dti_comm_call *call = dti_mpi_call_of(c);

    if (c->head.size <= DTI_MPI_DIRECT) return;
    if (c->n_rounds == 0) {
        const dti_mpi_stream *s = c->streams[0];
        const int64_t own = call->counts[c->head.rank] * (int64_t)dt_dtype_size(call->dtype);
        const int64_t come = s->finished * c->segment_bytes;
        c->taken_bytes = own + (come < s->bytes ? come : s->bytes);
    } else if (c->round < c->n_rounds && dti_mpi_streams_are_done(c)) {
        c->round++;
        *moved = true;
        if (c->round < c->n_rounds) begin_round(c);
    }
}
