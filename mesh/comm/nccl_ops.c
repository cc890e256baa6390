/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives as NCCL's calls: uneven blocks and boxes are messages in a group, packed where they
 * do not lie side by side.
 *
 * Sums keep the promise of comm.h, rank order and one rounding, unless they are large: then NCCL
 * only moves the terms, and a kernel of ours adds them. Large sums of f32, f64 and integers are
 * NCCL's own, which the switches between GPUs help with; their order is NCCL's, the same bits reach
 * all ranks. */
#include "base/dtype.h"
#include "base/numbers.h"
#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/nccl.h"

enum {
    LARGE_BYTES = 1 << 20,     /* of what a rank hands in */
    ONE_SHOT_BYTES = 256 << 10 /* of what all ranks hand in: everybody adds everything */
};

static void *at(const void *base, int64_t i, const dti_comm_call *call)
{
    return dti_element(base, i, dt_dtype_size(call->dtype));
}

/* --- messages -----------------------------------------------------------------------------------
 */

/* What goes to and comes from a member, as boxes in memory that may be the room's. */
typedef struct trade {
    const void *send;
    void *recv;
    dti_box send_box, recv_box;
} trade;

/* Which trade a call has with a member. */
typedef trade (*trade_of)(const dti_nccl_job *j, const dti_comm_call *call, int member);

static trade call_trade(const dti_nccl_job *j, const dti_comm_call *call, int member)
{
    return (trade){ .send = call->send,
                    .recv = call->recv,
                    .send_box = dti_cuda_part(j->c, call, true, member),
                    .recv_box = dti_cuda_part(j->c, call, false, member) };
}

/* Elements of a box that have to be packed, or 0. */
static int64_t packed_count(const dti_box *box)
{
    return dti_box_is_block(box) ? 0 : dti_box_count(box);
}

/* Elements of the room that the trades of a call need. */
static int64_t packed_total(const dti_nccl_job *j, const dti_comm_call *call, trade_of trade_with)
{
    int64_t n = 0;

    for (int m = 0; m < j->c->size; m++) {
        const trade t = trade_with(j, call, m);
        if (m != j->c->rank) n += packed_count(&t.send_box) + packed_count(&t.recv_box);
    }
    return n;
}

/* Packs what does not lie side by side. */
static dt_status pack_all(const dti_nccl_job *j, const dti_comm_call *call, trade_of trade_with,
                          void *room)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    int64_t n = 0;

    for (int m = 0; m < j->c->size; m++) {
        const trade t = trade_with(j, call, m);
        if (m == j->c->rank || packed_count(&t.send_box) == 0) continue;
        DT_TRY(dti_cuda_pack(j->place, at(room, n, call), t.send, &t.send_box, bytes));
        n += dti_box_count(&t.send_box);
    }
    return DT_OK;
}

/* One message each way between this rank and a member; *n is where in the room packed boxes go. */
static int post_one(const dti_nccl_job *j, const dti_comm_call *call, const trade *t, int member,
                    const void *sent, void *brought)
{
    const int64_t n_sent = dti_box_count(&t->send_box), n_brought = dti_box_count(&t->recv_box);
    int failed = 0;

    if (n_sent > 0) failed = j->api->send(j->part->nccl, sent, n_sent, (int)call->dtype, member);
    if (n_brought > 0 && failed == 0)
        failed = j->api->recv(j->part->nccl, brought, n_brought, (int)call->dtype, member);
    return failed;
}

/* Sent boxes lie in the room first, then those that come. A group is ended even after a failure. */
static int post_all(const dti_nccl_job *j, const dti_comm_call *call, trade_of trade_with,
                    void *room)
{
    int failed = j->api->group_begin(j->part->nccl), ended;
    int64_t n = 0, n_sent = 0;

    if (failed != 0) return failed;
    for (int m = 0; m < j->c->size; m++) {
        const trade t = trade_with(j, call, m);
        if (m != j->c->rank) n += packed_count(&t.send_box);
    }
    for (int m = 0; m < j->c->size && failed == 0; m++) {
        const trade t = trade_with(j, call, m);
        const bool packs = packed_count(&t.send_box) > 0, unpacks = packed_count(&t.recv_box) > 0;
        if (m == j->c->rank) continue;
        failed = post_one(j, call, &t, m,
                          packs ? at(room, n_sent, call) : at(t.send, t.send_box.offset, call),
                          unpacks ? at(room, n, call) : at(t.recv, t.recv_box.offset, call));
        n_sent += packed_count(&t.send_box);
        n += packed_count(&t.recv_box);
    }
    ended = j->api->group_end(j->part->nccl);
    return failed != 0 ? failed : ended;
}

/* What came packed goes to its places, and this rank's own part to itself. */
static dt_status unpack_all(const dti_nccl_job *j, const dti_comm_call *call, trade_of trade_with,
                            void *room)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    const trade own = trade_with(j, call, j->c->rank);
    int64_t n = 0;

    for (int m = 0; m < j->c->size; m++) {
        const trade t = trade_with(j, call, m);
        if (m != j->c->rank) n += packed_count(&t.send_box);
    }
    for (int m = 0; m < j->c->size; m++) {
        const trade t = trade_with(j, call, m);
        if (m == j->c->rank || packed_count(&t.recv_box) == 0) continue;
        DT_TRY(dti_cuda_unpack(j->place, t.recv, &t.recv_box, at(room, n, call), bytes));
        n += dti_box_count(&t.recv_box);
    }
    if (dti_box_is_block(&own.recv_box))
        return dti_cuda_pack(j->place, at(own.recv, own.recv_box.offset, call), own.send,
                             &own.send_box, bytes);
    return dti_cuda_copy_box(j->place, own.recv, &own.recv_box, own.send, &own.send_box, bytes);
}

/* All trades of a call. `room` has packed_total() elements. */
static dt_status trade_all(const dti_nccl_job *j, const dti_comm_call *call, trade_of trade_with,
                           void *room)
{
    DT_TRY(pack_all(j, call, trade_with, room));
    DT_TRY(dti_nccl_settle(j, post_all(j, call, trade_with, room), "messages in a group"));
    return unpack_all(j, call, trade_with, room);
}

static dt_status trade_call(const dti_nccl_job *j, const dti_comm_call *call)
{
    const int64_t n = packed_total(j, call, call_trade);

    DT_TRY(dti_cuda_room_for(j->place, &j->c->cuda->room, (size_t)n * dt_dtype_size(call->dtype)));
    return trade_all(j, call, call_trade, j->c->cuda->room.data);
}

/* --- moves --------------------------------------------------------------------------------------
 */

/* Equal blocks, back to back. */
static bool is_even(const dti_comm *c, const dti_comm_call *call)
{
    for (int m = 0; m < c->size; m++)
        if (call->counts[m] != call->counts[0] ||
            (call->displs != NULL && call->displs[m] != m * call->counts[0]))
            return false;
    return true;
}

static dt_status all_gather(const dti_nccl_job *j, const dti_comm_call *call)
{
    if (!is_even(j->c, call)) return trade_call(j, call);
    if (call->counts[0] == 0) return DT_OK;
    return dti_nccl_settle(j,
                           j->api->all_gather(j->part->nccl, call->send, call->recv,
                                              call->counts[0], (int)call->dtype),
                           "all_gather");
}

/* Only the root has what is sent. */
static dt_status broadcast(const dti_nccl_job *j, const dti_comm_call *call)
{
    const void *send = j->c->rank == call->root ? call->send : call->recv;

    if (call->counts[0] == 0) return DT_OK;
    return dti_nccl_settle(j,
                           j->api->broadcast(j->part->nccl, send, call->recv, call->counts[0],
                                             (int)call->dtype, call->root),
                           "broadcast");
}

/* --- sums ---------------------------------------------------------------------------------------
 */

/* NaNs of minima, averages of integers and roundings of halves are not NCCL's as they are ours. */
static bool is_ncclish(const dti_comm_call *call)
{
    switch (call->dtype) {
    case DT_F32:
    case DT_F64:
        return call->reduce == DT_SUM || call->reduce == DT_AVG || call->reduce == DT_PROD;
    case DT_I32:
    case DT_I64:
        return call->reduce != DT_AVG;
    default:
        return false;
    }
}

static bool is_ours(const dti_comm *c, const dti_comm_call *call, int64_t n)
{
    const int64_t most = LARGE_BYTES / (int64_t)dt_dtype_size(call->dtype);

    if (c->size > DTI_CUDA_MAX_PEERS) return false;
    return n < most || !is_ncclish(call);
}

static dt_status add(const dti_nccl_job *j, const dti_comm_call *call, const void *const *terms,
                     void *to, int64_t n)
{
    dti_cuda_sum sum = { .dtype = (int)call->dtype,
                         .reduce = (int)call->reduce,
                         .n_terms = j->c->size,
                         .n_to = 1,
                         .box = dti_cuda_row_of(n),
                         .to_box = dti_cuda_row_of(n) };

    if (n == 0) return DT_OK;
    for (int m = 0; m < j->c->size; m++) sum.terms[m] = terms[m];
    sum.to[0] = to;
    return dti_cuda_check_call(j->place, j->place->module->sum(j->place->cuda, &sum), "adding");
}

/* A block of reduce_scatter comes from each rank, to its place in the room. */
static trade term_trade(const dti_nccl_job *j, const dti_comm_call *call, int member)
{
    const int64_t n = call->counts[j->c->rank];

    return (trade){ .send = call->send,
                    .recv = j->c->cuda->room.data,
                    .send_box = dti_cuda_part(j->c, call, true, member),
                    .recv_box = { 1, member * n, { n }, { 1 } } };
}

/* The room has the terms for this rank, in rank order, and behind them what was packed to be sent.
 * The sum is written last, so recv may lie in send where this rank's own term does. */
static dt_status scatter_ours(const dti_nccl_job *j, const dti_comm_call *call)
{
    const int64_t n = call->counts[j->c->rank];
    const size_t bytes = dt_dtype_size(call->dtype);
    dti_cuda_room *room = &j->c->cuda->room;
    const void *terms[DTI_CUDA_MAX_PEERS];
    const int64_t n_packed = packed_total(j, call, term_trade);

    DT_TRY(dti_cuda_room_for(j->place, room, (size_t)(n * j->c->size + n_packed) * bytes));
    DT_TRY(trade_all(j, call, term_trade, at(room->data, n * j->c->size, call)));
    for (int m = 0; m < j->c->size; m++) terms[m] = at(room->data, m * n, call);
    return add(j, call, terms, call->recv, n);
}

/* Blocks as long as the longest one, NCCL's sum of them, and this rank's block of that. */
static dt_status scatter_padded(const dti_nccl_job *j, const dti_comm_call *call)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    dti_cuda_room *room = &j->c->cuda->room;
    const dti_box own = { 1, 0, { call->counts[j->c->rank] }, { 1 } };
    int64_t most = 0;
    void *sum;

    for (int m = 0; m < j->c->size; m++) most = dti_max(most, call->counts[m]);
    DT_TRY(dti_cuda_room_for(j->place, room, (size_t)(most * (j->c->size + 1)) * bytes));
    sum = at(room->data, most * j->c->size, call);
    for (int m = 0; m < j->c->size; m++) {
        const dti_box part = dti_cuda_part(j->c, call, true, m);
        DT_TRY(dti_cuda_pack(j->place, at(room->data, m * most, call), call->send, &part, bytes));
    }
    DT_TRY(dti_nccl_settle(j,
                           j->api->reduce_scatter(j->part->nccl, room->data, sum, most,
                                                  (int)call->dtype, (int)call->reduce),
                           "reduce_scatter"));
    return dti_cuda_pack(j->place, call->recv, sum, &own, bytes);
}

static dt_status reduce_scatter(const dti_nccl_job *j, const dti_comm_call *call)
{
    int64_t n = 0;

    for (int m = 0; m < j->c->size; m++) n += call->counts[m];
    if (n == 0) return DT_OK;
    if (is_ours(j->c, call, n)) return scatter_ours(j, call);
    if (call->send_boxes != NULL || !is_even(j->c, call)) return scatter_padded(j, call);
    return dti_nccl_settle(j,
                           j->api->reduce_scatter(j->part->nccl, call->send, call->recv,
                                                  call->counts[0], (int)call->dtype,
                                                  (int)call->reduce),
                           "reduce_scatter");
}

/* Few bytes: every rank gets all terms and adds them. */
static dt_status all_reduce_once(const dti_nccl_job *j, const dti_comm_call *call)
{
    const int64_t n = call->counts[0];
    dti_cuda_room *room = &j->c->cuda->room;
    const void *terms[DTI_CUDA_MAX_PEERS];

    DT_TRY(
        dti_cuda_room_for(j->place, room, (size_t)(n * j->c->size) * dt_dtype_size(call->dtype)));
    DT_TRY(dti_nccl_settle(
        j, j->api->all_gather(j->part->nccl, call->send, room->data, n, (int)call->dtype),
        "all_gather of terms"));
    for (int m = 0; m < j->c->size; m++) terms[m] = at(room->data, m * n, call);
    return add(j, call, terms, call->recv, n);
}

/* More bytes: each rank adds a slice, and all gather the slices. */
static dt_status all_reduce_twice(const dti_nccl_job *j, const dti_comm_call *call)
{
    int64_t counts[DTI_CUDA_MAX_PEERS];
    dti_comm_call scatter = *call, gather = *call;
    int64_t begin, end;

    for (int m = 0; m < j->c->size; m++) {
        dti_pool_share(call->counts[0], 1, m, j->c->size, &begin, &end);
        counts[m] = end - begin;
    }
    scatter.op = DTI_COMM_REDUCE_SCATTER;
    gather.op = DTI_COMM_ALL_GATHER;
    scatter.counts = gather.counts = counts;
    scatter.displs = gather.displs = NULL;
    scatter.send_boxes = NULL;
    scatter.recv = at(call->recv, dti_block_at(counts, NULL, j->c->rank), call);
    gather.send = scatter.recv;
    DT_TRY(scatter_ours(j, &scatter));
    return all_gather(j, &gather);
}

static dt_status all_reduce(const dti_nccl_job *j, const dti_comm_call *call)
{
    const int64_t n = call->counts[0];
    const int64_t once = ONE_SHOT_BYTES / (int64_t)dt_dtype_size(call->dtype) / j->c->size;

    if (n == 0) return DT_OK;
    if (is_ours(j->c, call, n))
        return n <= once ? all_reduce_once(j, call) : all_reduce_twice(j, call);
    return dti_nccl_settle(j,
                           j->api->all_reduce(j->part->nccl, call->send, call->recv, n,
                                              (int)call->dtype, (int)call->reduce),
                           "all_reduce");
}

dt_status dti_nccl_collective(const dti_nccl_job *j, const dti_comm_call *call)
{
    switch (call->op) {
    case DTI_COMM_BROADCAST:
        return broadcast(j, call);
    case DTI_COMM_ALL_GATHER:
        return all_gather(j, call);
    case DTI_COMM_ALL_REDUCE:
        return all_reduce(j, call);
    case DTI_COMM_REDUCE_SCATTER:
        return reduce_scatter(j, call);
    case DTI_COMM_ALL_TO_ALL:
    case DTI_COMM_EXCHANGE:
        return trade_call(j, call);
    default:
        DT_FAIL(DT_ERR_INTERNAL, "operation %d is not a collective", (int)call->op);
    }
}
