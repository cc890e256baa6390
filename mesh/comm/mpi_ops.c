/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives as sets of streams. With p ranks:
 *
 *   barrier         up to 8 ranks everybody tells everybody, so that it is clear who is missing;
 *                   beyond, dissemination: log2 p rounds of headers
 *   broadcast       a binomial tree; segments are passed on as they come
 *   all_gather      mpi_gather.c
 *   all_to_all, exchange   every rank to every other, at once
 *   reduce_scatter  as all_to_all; a rank sums its block in rank order as segments come
 *   all_reduce      small: everybody sums everything; large: a reduce_scatter of p shares whose
 *                   sums are handed out while later terms still come
 *
 * So a sum moves as many bytes as a ring would, 2 (p-1)/p of the tensor, and has the bits of a
 * serial sum in rank order on every rank. What that order costs is the number of messages: more
 * than 8 ranks make sums in a tree over their hosts (mpi_tree.c), those of one host its small ones.
 * A run may hand sums to MPI instead (mpi_sums.c). */
#include <string.h>

#include "base/memory.h"
#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/mpi_internal.h"
#include "mesh/comm/reduce.h"

/* Below this many bytes received per rank a sum by everybody is faster than two phases. */
enum { WHOLE_BYTES = 32 * 1024, SHARE_BYTES = 64 };

enum { RECEIVES = false, SENDS = true };

/* That a rank's terms come in. */
static dti_mpi_stream *from(const dti_mpi_comm *c, int member)
{
    return c->peers[member]->streams[DTI_MPI_LANE_FIRST][RECEIVES];
}

const dti_comm_call *dti_mpi_call_of(const dti_mpi_comm *c)
{
    return &c->calls[(c->completed + 1) % DTI_MPI_RING];
}

uint32_t dti_mpi_kind_of(const dti_comm_call *call)
{
    const bool reduces = call->op == DTI_COMM_ALL_REDUCE || call->op == DTI_COMM_REDUCE_SCATTER;

    if (call->op == DTI_COMM_BARRIER) return (uint32_t)call->op;
    return (uint32_t)call->op | (uint32_t)call->dtype << 8 |
           (reduces ? (uint32_t)call->reduce << 16 : 0) | (uint32_t)call->tag << 25;
}

/* --- the beginning of an operation --------------------------------------------------------------
 */

/* What this rank thinks that the member contributes. */
static int64_t expected(const dti_mpi_comm *c, const dti_comm_call *call, int member, int64_t n)
{
    if (call->op == DTI_COMM_ALL_GATHER) return call->counts[member];
    return call->op == DTI_COMM_ALL_TO_ALL ? n : c->counts[(c->completed + 1) % DTI_MPI_RING];
}

static dt_status take_part(dti_mpi_comm *c, dti_mpi_lane lane, bool sends, int member,
                           dti_mpi_stream **out)
{
    dti_mpi_peer *peer;

    DT_TRY(dti_mpi_peer_of(c, member, &peer));
    if (peer->streams[lane][sends] == NULL)
        DT_TRY(dti_mpi_stream_open(c, member, lane, sends, &peer->streams[lane][sends]));
    DT_TRY(dti_grow((void **)&c->streams, &c->most_streams, (size_t)c->n_streams + 1,
                    sizeof *c->streams));
    *out = c->streams[c->n_streams++] = peer->streams[lane][sends];
    return DT_OK;
}

void dti_mpi_begin(dti_mpi_comm *c, dti_mpi_lane lane, bool sends, int member,
                   const dti_mpi_transfer *t)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dti_comm_note *note = &c->notes[(c->completed + 1) % DTI_MPI_RING];
    const dti_mpi_header header = {
        .group = c->group,
        .seq = c->completed + 1,
        .n = t->n + c->agreed,
        .count =
            sends ? c->counts[(c->completed + 1) % DTI_MPI_RING] : expected(c, call, member, t->n),
        .kind = dti_mpi_kind_of(call),
        .root = call->op == DTI_COMM_BROADCAST ? call->root : 0,
        .note = note->hash,
    };
    dti_mpi_stream *s = NULL;

    if (c->begun == DT_OK) c->begun = take_part(c, lane, sends, member, &s);
    if (c->begun == DT_OK) dti_mpi_stream_begin(s, &header, t, note->hash != 0 ? note->text : NULL);
}

/* Elements side by side; `how` COPY, or HOLD, which needs no place. */
dti_mpi_transfer dti_mpi_flat(const dti_mpi_comm *c, dti_mpi_how how, const void *data, int64_t n)
{
    return (dti_mpi_transfer){ .how = how,
                               .data = (void *)data,
                               .n = n,
                               .element_bytes = dt_dtype_size(dti_mpi_call_of(c)->dtype) };
}

void dti_mpi_copy(void *to, const void *from, int64_t n, size_t bytes)
{
    if (n > 0 && to != from) memcpy(to, from, (size_t)n * bytes);
}

static void begin_round(dti_mpi_comm *c)
{
    const dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_COPY, NULL, 0);

    if (c->round < c->n_rounds)
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, (c->head.rank + (1 << c->round)) % c->head.size,
                      &t);
}

/* Headers alone, for a barrier, or to agree on a sum by MPI. In round k a rank hears from the one
 * 2^k before it, and tells the one 2^k behind it. */
static void begin_barrier(dti_mpi_comm *c)
{
    const dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_COPY, NULL, 0);
    const int p = c->head.size;

    for (int m = 0; p <= DTI_MPI_DIRECT && m < p; m++) {
        if (m == c->head.rank) continue;
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, m, &t);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, m, &t);
    }
    if (p <= DTI_MPI_DIRECT) return;
    for (; 1 << c->n_rounds < p; c->n_rounds++)
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, (c->head.rank + p - (1 << c->n_rounds)) % p,
                      &t);
    begin_round(c);
}

/* Who takes itself for the root hears from nobody, and may end before that is noticed. So each rank
 * shows its neighbour what it has called: somewhere two that differ are neighbours. */
static void show_neighbour(dti_mpi_comm *c)
{
    const dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_COPY, NULL, 0);
    const int p = c->head.size;

    dti_mpi_begin(c, DTI_MPI_LANE_SECOND, SENDS, (c->head.rank + 1) % p, &t);
    dti_mpi_begin(c, DTI_MPI_LANE_SECOND, RECEIVES, (c->head.rank + p - 1) % p, &t);
}

static void begin_broadcast(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const int p = c->head.size, place = (c->head.rank + p - call->root) % p;
    const int64_t n = call->counts[0];
    dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_COPY, call->recv, n);
    int low = 1; /* the lowest set bit of the place; of the root's, one that is beyond all */

    while (low < p && (place & low) == 0) low <<= 1;
    if (place != 0)
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, (place - low + call->root) % p, &t);
    else
        dti_mpi_copy(call->recv, call->send, n, t.element_bytes);
    c->taken_bytes = place == 0 ? n * (int64_t)t.element_bytes : -1;
    t.available = &c->taken_bytes;
    for (int step = low >> 1; step > 0; step >>= 1)
        if (place + step < p)
            dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, (place + step + call->root) % p, &t);
    if (c->port->world->agree) show_neighbour(c);
}

static void begin_all_to_all(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int m = 0; m < c->head.size; m++) {
        void *to = dti_element(call->recv, dti_block_at(call->counts, call->displs, m), bytes);
        void *from =
            dti_element(call->send, dti_block_at(call->send_counts, call->send_displs, m), bytes);
        const dti_mpi_transfer out = dti_mpi_flat(c, DTI_MPI_COPY, from, call->send_counts[m]);
        const dti_mpi_transfer in = dti_mpi_flat(c, DTI_MPI_COPY, to, call->counts[m]);
        if (m == c->head.rank) {
            dti_mpi_copy(to, from, call->counts[m], bytes);
            continue;
        }
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, m, &out);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, m, &in);
    }
}

static dti_mpi_transfer boxed(const dti_mpi_comm *c, const void *data, const dti_box *box)
{
    dti_mpi_transfer t = dti_mpi_flat(c, DTI_MPI_BOX, data, dti_box_count(box));

    t.box = box;
    return t;
}

static void begin_exchange(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const int me = c->head.rank;

    for (int m = 0; m < c->head.size; m++) {
        const dti_mpi_transfer out = boxed(c, call->send, &call->send_boxes[m]);
        const dti_mpi_transfer in = boxed(c, call->recv, &call->recv_boxes[m]);
        if (m == me) {
            dti_box_copy(call->recv, in.box, call->send, out.box, in.element_bytes);
            continue;
        }
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, m, &out);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, m, &in);
    }
}

/* What this rank sends the member: a block, or a box, which is packed as it is sent. */
static dti_mpi_transfer terms_for(const dti_mpi_comm *c, const dti_comm_call *call, int member)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    const int64_t at = dti_block_at(call->counts, call->displs, member);

    if (call->send_boxes != NULL) return boxed(c, call->send, &call->send_boxes[member]);
    return dti_mpi_flat(c, DTI_MPI_COPY, dti_element(call->send, at, bytes), call->counts[member]);
}

static void begin_reduce_scatter(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const dti_mpi_transfer in = dti_mpi_flat(c, DTI_MPI_HOLD, NULL, call->counts[c->head.rank]);

    for (int m = 0; m < c->head.size; m++) {
        const dti_mpi_transfer out = terms_for(c, call, m);
        if (m == c->head.rank) {
            c->share_begin = dti_block_at(call->counts, call->displs, m);
            c->share_n = call->counts[m];
            continue;
        }
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, m, &out);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, m, &in);
    }
}

static bool sums_whole(const dti_mpi_comm *c, const dti_comm_call *call)
{
    const int64_t bytes = call->counts[0] * (int64_t)dt_dtype_size(call->dtype);

    return bytes <= c->segment_bytes && bytes * (c->head.size - 1) <= WHOLE_BYTES;
}

static void begin_all_reduce(dti_mpi_comm *c)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const size_t bytes = dt_dtype_size(call->dtype);
    const int64_t grain = SHARE_BYTES / (int64_t)bytes, n = call->counts[0];
    const bool whole = sums_whole(c, call);
    int64_t first = 0, end = n;

    if (!whole) dti_pool_share(n, grain, c->head.rank, c->head.size, &first, &end);
    c->share_begin = first;
    c->share_n = end - first;
    for (int m = 0; m < c->head.size; m++) {
        dti_mpi_transfer terms = dti_mpi_flat(c, DTI_MPI_HOLD, NULL, c->share_n);
        dti_mpi_transfer sums =
            dti_mpi_flat(c, DTI_MPI_COPY, dti_element(call->recv, first, bytes), c->share_n);
        int64_t at = 0, behind = n;
        if (m == c->head.rank) continue;
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, RECEIVES, m, &terms);
        if (!whole) dti_pool_share(n, grain, m, c->head.size, &at, &behind);
        terms = dti_mpi_flat(c, DTI_MPI_COPY, dti_element(call->send, at, bytes), behind - at);
        dti_mpi_begin(c, DTI_MPI_LANE_FIRST, SENDS, m, &terms);
        if (whole) continue;
        sums.available = &c->reduced_bytes;
        dti_mpi_begin(c, DTI_MPI_LANE_SECOND, SENDS, m, &sums);
        sums = dti_mpi_flat(c, DTI_MPI_COPY, dti_element(call->recv, at, bytes), behind - at);
        dti_mpi_begin(c, DTI_MPI_LANE_SECOND, RECEIVES, m, &sums);
    }
}

static void begin_call(dti_mpi_comm *c)
{
    c->n_streams = 0;
    c->active = true;
    c->begun = DT_OK;
    c->reduced = c->reduced_bytes = c->share_n = c->agreed = 0;
    c->round = c->n_rounds = 0;
    c->tree.active = false;
    if (dti_mpi_sums_take(c, dti_mpi_call_of(c))) {
        c->agreed = dti_mpi_sums_begin(c, dti_mpi_call_of(c));
        begin_barrier(c);
        return;
    }
    if (dti_mpi_tree_takes(c, dti_mpi_call_of(c))) {
        dti_mpi_tree_begin(c);
        return;
    }
    switch (dti_mpi_call_of(c)->op) {
    case DTI_COMM_BROADCAST:
        begin_broadcast(c);
        break;
    case DTI_COMM_ALL_GATHER:
        dti_mpi_gather_begin(c);
        break;
    case DTI_COMM_ALL_REDUCE:
        begin_all_reduce(c);
        break;
    case DTI_COMM_REDUCE_SCATTER:
        begin_reduce_scatter(c);
        break;
    case DTI_COMM_ALL_TO_ALL:
        begin_all_to_all(c);
        break;
    case DTI_COMM_EXCHANGE:
        begin_exchange(c);
        break;
    default:
        begin_barrier(c);
        break;
    }
}

/* --- sums ---------------------------------------------------------------------------------------
 */

/* n terms of this rank's own from element i of its share on: where they lie, or packed in `block`.
 */
static const void *own_terms(const dti_mpi_comm *c, const dti_comm_call *call, int64_t i, int64_t n,
                             void *block)
{
    const size_t bytes = dt_dtype_size(call->dtype);

    if (call->op != DTI_COMM_REDUCE_SCATTER || call->send_boxes == NULL)
        return dti_element(call->send, c->share_begin + i, bytes);
    dti_box_pack(block, call->send, &call->send_boxes[c->head.rank], i, n, bytes);
    return block;
}

/* Elements [first, first + n) of this rank's share, which lie in segment `reduced` of every peer.
 */
static void sum_segment(dti_mpi_comm *c, int64_t first, int64_t n)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const size_t bytes = dt_dtype_size(call->dtype);
    const bool all = call->op == DTI_COMM_ALL_REDUCE;
    char *to = dti_element(call->recv, (all ? c->share_begin : 0) + first, bytes);
    _Alignas(64) char block[DTI_REDUCE_BLOCK * 8];
    dti_reducer r;

    r.dtype = call->dtype;
    r.op = call->reduce;
    for (int64_t i = 0; i < n; i += DTI_REDUCE_BLOCK) {
        const int64_t now = n - i < DTI_REDUCE_BLOCK ? n - i : DTI_REDUCE_BLOCK;
        for (int m = 0; m < c->head.size; m++) {
            const void *x =
                m == c->head.rank
                    ? own_terms(c, call, first + i, now, block)
                    : dti_element(dti_mpi_stream_held(from(c, m), c->reduced), i, bytes);
            if (m == 0)
                dti_reducer_first(&r, x, now);
            else
                dti_reducer_add(&r, x, now);
        }
        dti_mpi_copy(dti_element(to, i, bytes), dti_reducer_finish(&r, now), now, bytes);
    }
}

/* The next segment has come from everybody. A sum that overwrites its own terms also waits until
 * these have been sent. */
static bool segment_is_here(const dti_mpi_comm *c, const dti_comm_call *call)
{
    const bool overwrites = call->op == DTI_COMM_ALL_REDUCE && sums_whole(c, call);

    for (int i = 0; i < c->n_streams; i++) {
        const dti_mpi_stream *s = c->streams[i];
        if (s->transfer.how == DTI_MPI_HOLD && s->arrived <= c->reduced) return false;
        if (overwrites && s->sends && !dti_mpi_stream_is_done(s)) return false;
    }
    return true;
}

static void sum(dti_mpi_comm *c, bool *moved)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const int64_t bytes = (int64_t)dt_dtype_size(call->dtype);
    const int64_t segment = c->segment_bytes / bytes;

    while (c->reduced * segment < c->share_n || c->reduced == 0) {
        const int64_t first = c->reduced * segment;
        const int64_t n = c->share_n - first < segment ? c->share_n - first : segment;
        if (!segment_is_here(c, call)) return;
        sum_segment(c, first, n);
        c->reduced++;
        c->reduced_bytes = (first + n) * bytes;
        for (int i = 0; i < c->n_streams; i++)
            if (c->streams[i]->transfer.how == DTI_MPI_HOLD) dti_mpi_stream_release(c->streams[i]);
        *moved = true;
    }
}

/* --- the middle and the end ---------------------------------------------------------------------
 */

bool dti_mpi_streams_are_done(const dti_mpi_comm *c)
{
    for (int i = 0; i < c->n_streams; i++)
        if (!dti_mpi_stream_is_done(c->streams[i])) return false;
    return true;
}

/* Every rank has begun this operation. */
static bool all_have_come(const dti_mpi_comm *c)
{
    if (c->round < c->n_rounds) return false;
    for (int i = 0; i < c->n_streams; i++)
        if (!c->streams[i]->sends && !dti_mpi_stream_is_done(c->streams[i])) return false;
    return true;
}

/* What an operation does between receiving and sending. */
static dt_status between(dti_mpi_comm *c, bool *moved)
{
    const dti_comm_call *call = dti_mpi_call_of(c);
    const int p = c->head.size;

    if (c->tree.active) {
        dti_mpi_tree_advance(c, moved);
        return DT_OK;
    }
    if (call->op == DTI_COMM_ALL_GATHER) {
        dti_mpi_gather_advance(c, moved);
        return DT_OK;
    }
    if (dti_mpi_sums_are_active(c)) {
        if (all_have_come(c)) DT_TRY(dti_mpi_sums_advance(c, call, moved));
    } else if (call->op == DTI_COMM_ALL_REDUCE || call->op == DTI_COMM_REDUCE_SCATTER) {
        if (!dti_mpi_sums_take(c, call)) sum(c, moved);
    }
    if (c->round < c->n_rounds) {
        if (!dti_mpi_stream_is_done(from(c, (c->head.rank + p - (1 << c->round)) % p)))
            return DT_OK;
        c->round++;
        begin_round(c);
        *moved = true;
    }
    if (call->op == DTI_COMM_BROADCAST && call->root != c->head.rank)
        for (int i = 0; i < c->n_streams; i++) {
            const dti_mpi_stream *s = c->streams[i];
            if (s->sends || s->finished == 0 || s->lane != DTI_MPI_LANE_FIRST) continue;
            c->taken_bytes = s->finished * c->segment_bytes;
            if (c->taken_bytes > s->bytes) c->taken_bytes = s->bytes;
        }
    return DT_OK;
}

/* A rank that only sends could run ahead of its receivers for ever, and MPI would keep what it
 * sent. Every eighth broadcast waits for them. */
static void bound_the_lead(dti_mpi_stream *s)
{
    s->matched = false;
    if (s->shared) return; /* a ring has an end */
    if ((s->header.kind & 0xff) == DTI_COMM_BROADCAST && s->posted + 1 >= s->n_segments)
        s->matched = s->header.seq % 8 == 0;
}

static dt_status advance_call(dti_mpi_comm *c, bool *moved)
{
    for (int i = 0; i < c->n_streams; i++)
        if (!c->streams[i]->sends) DT_TRY(dti_mpi_stream_pull(c->streams[i], moved));
    DT_TRY(between(c, moved));
    DT_TRY(c->begun);
    for (int i = 0; i < c->n_streams; i++) {
        if (!c->streams[i]->sends) continue;
        bound_the_lead(c->streams[i]);
        DT_TRY(dti_mpi_stream_push(c->streams[i], moved));
    }
    return DT_OK;
}

static bool call_is_done(const dti_mpi_comm *c)
{
    if (c->round < c->n_rounds || c->tree.active || dti_mpi_sums_are_active(c)) return false;
    return dti_mpi_streams_are_done(c);
}

dt_status dti_mpi_advance(dti_mpi_comm *c, bool *moved)
{
    while (c->completed < c->started) {
        bool again = true;
        if (!c->active) begin_call(c);
        while (again) {
            again = false;
            DT_TRY(advance_call(c, &again));
            *moved = *moved || again;
        }
        if (!call_is_done(c)) break;
        c->active = false;
        c->n_streams = 0;
        c->completed++;
        *moved = true;
    }
    if (c->n_messages > 0) DT_TRY(dti_mpi_p2p_advance(c, moved));
    return DT_OK;
}

/* What others send comes before what they take, terms before sums. */
int dti_mpi_waits_for(const dti_mpi_comm *c)
{
    int member = (c->head.rank + 1) % c->head.size, best = 0;

    for (int i = 0; i < c->n_streams; i++) {
        const dti_mpi_stream *s = c->streams[i];
        const int weight = s->sends ? 1 : s->lane == DTI_MPI_LANE_FIRST ? 3 : 2;
        const bool waits = s->sends ? !dti_mpi_stream_is_done(s) : s->arrived < s->n_segments;
        if (!waits || weight <= best) continue;
        member = s->member;
        best = weight;
    }
    return member;
}
