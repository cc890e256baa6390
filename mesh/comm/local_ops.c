/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's share of each collective: straight from and into the buffers of its peers, all of which
 * have arrived. */
#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/copy.h"
#include "mesh/comm/local_internal.h"
#include "mesh/comm/reduce.h"

/* Slices of a reduction begin on a cache line if the buffers do. Work of PARALLEL_BYTES takes
 * longer than waking the threads of the pool. */
enum {
    SLICE_BYTES = 64,
    PARALLEL_BYTES = 1 << 20,
    ALONE_BYTES = 32 << 10,
    SPREAD_BYTES = 16 << 10
};

static const dti_local_slot *slot_of(dti_local_comm *c, const dti_local_slot *mine, int member)
{
    return dti_local_slot_of(c, member, atomic_load_explicit(&mine->seq, memory_order_relaxed));
}

static const dti_comm_note *note_of(dti_local_comm *c, const dti_local_slot *mine, int member)
{
    const uint64_t seq = atomic_load_explicit(&mine->seq, memory_order_relaxed);
    const dti_comm_note *notes = c->group->members[member].notes;

    return notes != NULL ? &notes[seq % DTI_LOCAL_RING] : NULL;
}

/* "rank 1 calls all_reduce of 8 f32 (redistribute [2, 4] ...)" */
static void side_text(dti_local_comm *c, const dti_local_slot *mine, int member, int64_t n,
                      char *text, size_t bytes)
{
    const dti_local_slot *slot = slot_of(c, mine, member);
    const dti_comm_note *note = note_of(c, mine, member);
    const bool has_words = note != NULL && note->text[0] != '\0';
    char call[DTI_CALL_TEXT_BYTES];

    (void)snprintf(text, bytes, "rank %d calls %s%s%s%s", c->head.world_ranks[member],
                   dti_call_text(slot->call.op, n, slot->call.dtype, call), has_words ? " (" : "",
                   has_words ? note->text : "", has_words ? ")" : "");
}

static dt_status fail_differs(dti_local_comm *c, const dti_local_slot *mine, int member,
                              int64_t my_n, int64_t their_n)
{
    char ours[DTI_NOTE_BYTES + 96], theirs[DTI_NOTE_BYTES + 96];

    side_text(c, mine, c->head.rank, my_n, ours, sizeof ours);
    side_text(c, mine, member, their_n, theirs, sizeof theirs);
    DT_FAIL(DT_ERR_ARG,
            "operation #%llu on \"%s\" differs: %s, %s; all ranks of a communicator issue the same "
            "operations in the same order",
            (unsigned long long)atomic_load(&mine->seq), c->head.name, ours, theirs);
}

/* `n`: what this rank expects of the member's count. */
static dt_status check_same(dti_local_comm *c, const dti_local_slot *mine, int member, int64_t n)
{
    const dti_local_slot *theirs = slot_of(c, mine, member);
    const dti_comm_note *my_note = note_of(c, mine, c->head.rank);

    if (theirs->kind != mine->kind || theirs->n != n)
        return fail_differs(c, mine, member, n, theirs->n);
    if (my_note != NULL && my_note->hash != note_of(c, mine, member)->hash)
        return fail_differs(c, mine, member, mine->n, theirs->n);
    return DT_OK;
}

/* Where block `member` begins, in elements. */
static int64_t block_at(const int64_t *counts, const int64_t *displs, int member)
{
    int64_t at = 0;

    if (displs != NULL) return displs[member];
    for (int m = 0; m < member; m++) at += counts[m];
    return at;
}

static void *element(const void *base, int64_t i, size_t bytes)
{
    return (char *)base + i * (int64_t)bytes;
}

static bool is_large(int64_t n, size_t bytes)
{
    return n >= DTI_STREAM_BYTES / (int64_t)bytes;
}

/* Elements [begin, end) of an operation's share, by whatever thread of this rank. */
typedef void (*range_fn)(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end);

typedef struct range_job {
    range_fn run;
    dti_local_comm *c;
    const dti_local_slot *mine;
    int64_t begin, end;
} range_job;

static void run_part(void *arg, int worker, int n_workers)
{
    const range_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->end - j->begin, DTI_REDUCE_BLOCK, worker, n_workers, &begin, &end);
    if (begin < end) j->run(j->c, j->mine, j->begin + begin, j->begin + end);
}

static void run_range(dti_local_comm *c, const dti_local_slot *mine, range_fn run, int64_t begin,
                      int64_t end)
{
    range_job j = { run, c, mine, begin, end };

    if (end - begin < PARALLEL_BYTES / (int64_t)dt_dtype_size(mine->call.dtype))
        run(c, mine, begin, end);
    else
        dti_pool_run(c->self->pool, run_part, &j);
}

typedef struct copy_job {
    char *to;
    const char *from;
    size_t bytes;
    bool stream;
} copy_job;

static void copy_part(void *arg, int worker, int n_workers)
{
    const copy_job *j = arg;
    int64_t begin, end;

    dti_pool_share((int64_t)j->bytes, SLICE_BYTES, worker, n_workers, &begin, &end);
    dti_copy(j->to + begin, j->from + begin, (size_t)(end - begin), j->stream);
    dti_copy_finish(j->stream);
}

/* Own blocks may lie in place already. */
static void copy(dti_local_comm *c, void *to, const void *from, int64_t n, size_t bytes)
{
    copy_job j = { to, from, (size_t)n * bytes, is_large(n, bytes) };

    if (n == 0 || to == from) return;
    if (j.bytes < PARALLEL_BYTES)
        memcpy(to, from, j.bytes);
    else
        dti_pool_run(c->self->pool, copy_part, &j);
}

static dt_status work_barrier(dti_local_comm *c, const dti_local_slot *mine)
{
    for (int m = 0; m < c->head.size; m++) DT_TRY(check_same(c, mine, m, 0));
    return DT_OK;
}

/* The same source, the same count. */
static dt_status check_root(dti_local_comm *c, const dti_local_slot *mine, int member)
{
    const dti_local_slot *theirs = slot_of(c, mine, member);

    DT_TRY(check_same(c, mine, member, mine->n));
    DT_CHECK(theirs->call.root == mine->call.root, DT_ERR_ARG,
             "broadcast #%llu on \"%s\": rank %d names %d as the source, rank %d names %d",
             (unsigned long long)atomic_load(&mine->seq), c->head.name,
             c->head.world_ranks[c->head.rank], c->head.world_ranks[mine->call.root],
             c->head.world_ranks[member], c->head.world_ranks[theirs->call.root]);
    return DT_OK;
}

/* Elements [begin, end) to everybody: read once, written to all, in pieces that stay in a cache. */
static void spread(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const bool stream = is_large(mine->n, bytes);
    const void *send = slot_of(c, mine, mine->call.root)->call.send;
    const int64_t piece = SPREAD_BYTES / (int64_t)bytes;

    for (int64_t i = begin; i < end; i += piece) {
        const int64_t n = end - i < piece ? end - i : piece;
        for (int m = 0; m < c->head.size; m++) {
            void *recv = slot_of(c, mine, m)->call.recv;
            if (recv != send)
                dti_copy(element(recv, i, bytes), element(send, i, bytes), (size_t)n * bytes,
                         stream);
        }
    }
    dti_copy_finish(stream);
}

static dt_status work_broadcast(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);
    int64_t begin, end;

    if (dti_local_is_from_root(call)) {
        DT_TRY(check_root(c, mine, call->root));
        copy(c, call->recv, slot_of(c, mine, call->root)->call.send, mine->n, bytes);
        return DT_OK;
    }
    for (int m = 0; m < c->head.size; m++) DT_TRY(check_root(c, mine, m));
    dti_pool_share(mine->n, SLICE_BYTES / (int64_t)bytes, c->head.rank, c->head.size, &begin, &end);
    run_range(c, mine, spread, begin, end);
    return DT_OK;
}

/* Ranks begin with different peers, so that they do not all read the same memory at a time. */
static dt_status work_all_gather(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int i = 0; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        const int64_t at = block_at(call->counts, call->displs, m);
        DT_TRY(check_same(c, mine, m, call->counts[m]));
        copy(c, element(call->recv, at, bytes), slot_of(c, mine, m)->call.send, call->counts[m],
             bytes);
    }
    return DT_OK;
}

/* Somebody wants the result where its terms are. */
static bool is_in_place(dti_local_comm *c, const dti_local_slot *mine)
{
    for (int m = 0; m < c->head.size; m++)
        if (slot_of(c, mine, m)->call.send == slot_of(c, mine, m)->call.recv) return true;
    return false;
}

/* Where `member` keeps the terms of element i; a block of reduce_scatter begins at its own place.
 */
static const void *term(dti_local_comm *c, const dti_local_slot *mine, int member, int64_t i)
{
    const dti_comm_call *theirs = &slot_of(c, mine, member)->call;

    if (mine->call.op == DTI_COMM_REDUCE_SCATTER)
        i += block_at(mine->call.counts, theirs->displs, c->head.rank);
    return element(theirs->send, i, dt_dtype_size(mine->call.dtype));
}

/* n elements from i on, in rank order; made at `to` if it is not NULL. */
static const void *reduce_terms(dti_local_comm *c, const dti_local_slot *mine, dti_reducer *r,
                                void *to, int64_t i, int64_t n)
{
    dti_reducer_first_two(r, to, term(c, mine, 0, i), term(c, mine, 1, i), n);
    for (int m = 2; m < c->head.size; m++) dti_reducer_add(r, term(c, mine, m, i), n);
    return dti_reducer_finish(r, n);
}

/* Elements [begin, end) of everybody's send buffer, reduced in rank order and written into the recv
 * buffers of members [first, last). Nobody else touches these elements there, so recv may be send.
 */
static void reduce_for(dti_local_comm *c, const dti_local_slot *mine, const int members[2],
                       const int64_t range[2])
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const bool stream = is_large(mine->n, bytes), direct = !stream && !is_in_place(c, mine);
    dti_reducer r;

    r.dtype = mine->call.dtype;
    r.op = mine->call.reduce;
    for (int64_t i = range[0]; i < range[1]; i += DTI_REDUCE_BLOCK) {
        const int64_t n = range[1] - i < DTI_REDUCE_BLOCK ? range[1] - i : DTI_REDUCE_BLOCK;
        void *to = element(slot_of(c, mine, members[0])->call.recv, i, bytes);
        const void *result = reduce_terms(c, mine, &r, direct ? to : NULL, i, n);
        for (int m = members[0]; m < members[1]; m++) {
            to = element(slot_of(c, mine, m)->call.recv, i, bytes);
            if (to != result) dti_copy(to, result, (size_t)n * bytes, stream);
        }
    }
    dti_copy_finish(stream);
}

static void reduce_slice(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    reduce_for(c, mine, (int[]){ 0, c->head.size }, (int64_t[]){ begin, end });
}

/* A small sum is made by every rank for itself: reading all terms costs less than writing into the
 * peers' caches and their reading it back. The bits are the same, the order of terms is. */
static bool everyone_sums(dti_local_comm *c, const dti_local_slot *mine)
{
    const int64_t bytes = mine->n * (int64_t)dt_dtype_size(mine->call.dtype);

    return bytes * (c->head.size - 1) <= ALONE_BYTES && !is_in_place(c, mine);
}

static dt_status work_all_reduce(dti_local_comm *c, const dti_local_slot *mine)
{
    const int64_t grain = SLICE_BYTES / (int64_t)dt_dtype_size(mine->call.dtype);
    const int me = c->head.rank;
    int64_t begin, end;

    for (int m = 0; m < c->head.size; m++) DT_TRY(check_same(c, mine, m, mine->n));
    if (everyone_sums(c, mine)) {
        reduce_for(c, mine, (int[]){ me, me + 1 }, (int64_t[]){ 0, mine->n });
        return DT_OK;
    }
    dti_pool_share(mine->n, grain, me, c->head.size, &begin, &end);
    run_range(c, mine, reduce_slice, begin, end);
    return DT_OK;
}

/* Elements [begin, end) of this rank's block. */
static void reduce_block(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const bool stream = is_large(mine->call.counts[c->head.rank], bytes);
    dti_reducer r;

    r.dtype = mine->call.dtype;
    r.op = mine->call.reduce;
    for (int64_t i = begin; i < end; i += DTI_REDUCE_BLOCK) {
        const int64_t n = end - i < DTI_REDUCE_BLOCK ? end - i : DTI_REDUCE_BLOCK;
        void *to = element(mine->call.recv, i, bytes);
        const void *result = reduce_terms(c, mine, &r, stream ? NULL : to, i, n);
        if (to != result) dti_copy(to, result, (size_t)n * bytes, stream);
    }
    dti_copy_finish(stream);
}

/* Where reduce_boxed() finds a member's terms. */
typedef struct boxed_terms {
    dti_local_comm *c;
    const dti_local_slot *mine;
} boxed_terms;

static const void *boxed_term(const void *arg, int member, const dti_box **box)
{
    const boxed_terms *t = arg;
    const dti_comm_call *theirs = &slot_of(t->c, t->mine, member)->call;

    *box = &theirs->send_boxes[t->c->head.rank];
    return theirs->send;
}

/* The same, read from the boxes that peers' terms lie in. */
static void reduce_boxed(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);
    const boxed_terms arg = { c, mine };
    const dti_box_terms terms = { .dtype = call->dtype,
                                  .op = call->reduce,
                                  .n_sources = c->head.size,
                                  .source = boxed_term,
                                  .arg = &arg,
                                  .stream = is_large(call->counts[c->head.rank], bytes) };

    dti_reduce_boxes(&terms, call->recv, begin, end);
}

/* Terms in blocks on one rank and in boxes on another, or in other boxes, are no terms of one sum.
 */
static dt_status check_terms(dti_local_comm *c, const dti_local_slot *mine, int member)
{
    const dti_box *theirs = slot_of(c, mine, member)->call.send_boxes;
    const dti_box *ours = mine->call.send_boxes;
    const int me = c->head.rank;

    DT_CHECK((theirs == NULL) == (ours == NULL) &&
                 (ours == NULL || dti_box_same_extents(&theirs[me], &ours[me])),
             DT_ERR_ARG,
             "reduce_scatter #%llu on \"%s\": the box of terms that rank %d has for rank %d has "
             "other extents than that rank's own",
             (unsigned long long)atomic_load(&mine->seq), c->head.name, c->head.world_ranks[member],
             c->head.world_ranks[me]);
    return DT_OK;
}

static dt_status work_reduce_scatter(dti_local_comm *c, const dti_local_slot *mine)
{
    const range_fn reduce = mine->call.send_boxes != NULL ? reduce_boxed : reduce_block;

    for (int m = 0; m < c->head.size; m++) {
        DT_TRY(check_same(c, mine, m, mine->n));
        DT_TRY(check_terms(c, mine, m));
    }
    run_range(c, mine, reduce, 0, mine->call.counts[c->head.rank]);
    return DT_OK;
}

static dt_status work_all_to_all(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int i = 0; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        const dti_comm_call *theirs = &slot_of(c, mine, m)->call;
        const int64_t n = call->counts[m];
        int64_t to, from;
        DT_TRY(check_same(c, mine, m, 0));
        if (theirs->send_counts[c->head.rank] != n)
            return fail_differs(c, mine, m, n, theirs->send_counts[c->head.rank]);
        to = block_at(call->counts, call->displs, m);
        from = block_at(theirs->send_counts, theirs->send_displs, c->head.rank);
        copy(c, element(call->recv, to, bytes), element(theirs->send, from, bytes), n, bytes);
    }
    return DT_OK;
}

static dt_status work_exchange(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int i = 0; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        const dti_comm_call *theirs = &slot_of(c, mine, m)->call;
        const dti_box *from, *to = &call->recv_boxes[m];
        DT_TRY(check_same(c, mine, m, 0));
        from = &theirs->send_boxes[c->head.rank];
        DT_CHECK(dti_box_same_extents(from, to), DT_ERR_ARG,
                 "exchange #%llu on \"%s\": the box that rank %d sends to rank %d has other "
                 "extents than the one it lands in",
                 (unsigned long long)atomic_load(&mine->seq), c->head.name, c->head.world_ranks[m],
                 c->head.world_ranks[c->head.rank]);
        dti_box_copy_shared(c->self->pool, call->recv, to, theirs->send, from, bytes);
    }
    return DT_OK;
}

dt_status dti_local_work(dti_local_comm *c, const dti_local_slot *mine)
{
    switch (mine->call.op) {
    case DTI_COMM_BARRIER:
        return work_barrier(c, mine);
    case DTI_COMM_BROADCAST:
        return work_broadcast(c, mine);
    case DTI_COMM_ALL_GATHER:
        return work_all_gather(c, mine);
    case DTI_COMM_ALL_REDUCE:
        return work_all_reduce(c, mine);
    case DTI_COMM_REDUCE_SCATTER:
        return work_reduce_scatter(c, mine);
    case DTI_COMM_ALL_TO_ALL:
        return work_all_to_all(c, mine);
    case DTI_COMM_EXCHANGE:
        return work_exchange(c, mine);
    default:
        DT_FAIL(DT_ERR_INTERNAL, "operation %d is not a collective", (int)mine->call.op);
    }
}
