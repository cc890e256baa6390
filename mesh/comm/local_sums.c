/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's share of a sum: straight from the terms of its peers, into their results. */
#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/local_work.h"
#include "mesh/comm/reduce.h"

enum {
    ALONE_BYTES = 32 << 10,    /* sums of fewer are made by everybody */
    TURN_BYTES = 64 << 10,     /* of more, and */
    LONG_ROW_BYTES = 16 << 10, /* in rows of fewer, terms are reduced for all members in turn */
    TURN_RANKS = 64
};

/* Somebody wants the result where its terms are. */
static bool is_in_place(dti_local_comm *c, const dti_local_slot *mine)
{
    for (int m = 0; m < c->head.size; m++)
        if (dti_local_side(c, mine, m)->call.send == dti_local_side(c, mine, m)->call.recv)
            return true;
    return false;
}

/* Where `member` keeps the terms of element i; a block of reduce_scatter begins at its own place.
 */
static const void *term(dti_local_comm *c, const dti_local_slot *mine, int member, int64_t i)
{
    const dti_comm_call *theirs = &dti_local_side(c, mine, member)->call;

    if (mine->call.op == DTI_COMM_REDUCE_SCATTER)
        i += dti_block_at(mine->call.counts, theirs->displs, c->head.rank);
    return dti_element(theirs->send, i, dt_dtype_size(mine->call.dtype));
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
    const bool stream = dti_is_large(mine->n, bytes), direct = !stream && !is_in_place(c, mine);
    dti_reducer r;

    r.dtype = mine->call.dtype;
    r.op = mine->call.reduce;
    for (int64_t i = range[0]; i < range[1]; i += DTI_REDUCE_BLOCK) {
        const int64_t n = range[1] - i < DTI_REDUCE_BLOCK ? range[1] - i : DTI_REDUCE_BLOCK;
        void *to = dti_element(dti_local_side(c, mine, members[0])->call.recv, i, bytes);
        const void *result = reduce_terms(c, mine, &r, direct ? to : NULL, i, n);
        for (int m = members[0]; m < members[1]; m++) {
            to = dti_element(dti_local_side(c, mine, m)->call.recv, i, bytes);
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

dt_status dti_local_all_reduce(dti_local_comm *c, const dti_local_slot *mine)
{
    const int64_t grain = DTI_SLICE_BYTES / (int64_t)dt_dtype_size(mine->call.dtype);
    const int me = c->head.rank;
    int64_t begin, end;

    for (int m = 0; m < c->head.size; m++) DT_TRY(dti_local_check_same(c, mine, m, mine->n));
    if (mine->call.stream != NULL) return dti_local_cuda_all_reduce(c, mine);
    if (everyone_sums(c, mine)) {
        reduce_for(c, mine, (int[]){ me, me + 1 }, (int64_t[]){ 0, mine->n });
        return DT_OK;
    }
    dti_pool_share(mine->n, grain, me, c->head.size, &begin, &end);
    dti_local_run(c, mine, reduce_slice, (int64_t[]){ begin, end }, 1);
    return DT_OK;
}

/* Elements [begin, end) of this rank's block. */
static void reduce_block(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const bool stream = dti_is_large(mine->call.counts[c->head.rank], bytes);
    dti_reducer r;

    r.dtype = mine->call.dtype;
    r.op = mine->call.reduce;
    for (int64_t i = begin; i < end; i += DTI_REDUCE_BLOCK) {
        const int64_t n = end - i < DTI_REDUCE_BLOCK ? end - i : DTI_REDUCE_BLOCK;
        void *to = dti_element(mine->call.recv, i, bytes);
        const void *result = reduce_terms(c, mine, &r, stream ? NULL : to, i, n);
        if (to != result) dti_copy(to, result, (size_t)n * bytes, stream);
    }
    dti_copy_finish(stream);
}

/* --- terms in boxes --------------------------------------------------------------------------- */

/* The terms for one member, and this rank's share of them in units of rows. */
typedef struct target {
    dti_local_comm *c;
    const dti_local_slot *mine;
    int member;
    char *recv;
    dti_box_terms terms;
    int64_t n_rows, row; /* of the whole */
    int64_t first, n;    /* rows of the share */
} target;

static const void *source(const void *arg, int member, const dti_box **box)
{
    const target *t = arg;
    const dti_comm_call *theirs = &dti_local_side(t->c, t->mine, member)->call;

    *box = &theirs->send_boxes[t->member];
    return theirs->send;
}

/* In place: terms keep the address of *t. */
static void look_at(target *t, dti_local_comm *c, const dti_local_slot *mine, int member)
{
    const dti_comm_call *call = &mine->call;
    const int64_t count = call->counts[member];
    int64_t end;

    t->c = c;
    t->mine = mine;
    t->member = member;
    t->recv = dti_local_side(c, mine, member)->call.recv;
    t->terms = (dti_box_terms){ .dtype = call->dtype,
                                .op = call->reduce,
                                .n_sources = c->head.size,
                                .source = source,
                                .arg = t,
                                .stream = dti_is_large(count, dt_dtype_size(call->dtype)) };
    dti_box_terms_look(&t->terms);
    t->row = t->terms.row > 0 ? t->terms.row : count;
    t->n_rows = count > 0 ? count / t->row : 0;
    dti_pool_share(t->n_rows, 1, c->head.rank, c->head.size, &t->first, &end);
    t->n = end - t->first;
}

/* Elements [begin, end) of this rank's result. */
static void reduce_own(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    target own;

    look_at(&own, c, mine, c->head.rank);
    dti_reduce_boxes(&own.terms, own.recv, begin, end);
    dti_copy_finish(own.terms.stream);
}

/* n i / of without a product that could overflow. */
static int64_t part_of(int64_t n, int64_t i, int64_t of)
{
    return n / of * i + n % of * i / of;
}

/* All targets; returns the one of which this rank's share is the most rows. */
static const target *look_at_all(target *targets, dti_local_comm *c, const dti_local_slot *mine)
{
    const target *longest = targets;

    for (int m = 0; m < c->head.size; m++) {
        look_at(&targets[m], c, mine, m);
        if (targets[m].n > longest->n) longest = &targets[m];
    }
    return longest;
}

/* Rows [begin, end) of the longest share, and what lies beside them of the others. */
static void reduce_in_turns(dti_local_comm *c, const dti_local_slot *mine, int64_t begin,
                            int64_t end)
{
    target targets[TURN_RANKS];
    const target *longest = look_at_all(targets, c, mine);
    const int64_t step = longest->row < DTI_REDUCE_BLOCK ? DTI_REDUCE_BLOCK / longest->row : 1;

    for (int64_t i = begin; i < end; i += step) {
        const int64_t next = end - i < step ? end : i + step;
        for (int m = 0; m < c->head.size; m++) {
            const target *t = &targets[m];
            dti_reduce_boxes(&t->terms, t->recv, (t->first + part_of(t->n, i, longest->n)) * t->row,
                             (t->first + part_of(t->n, next, longest->n)) * t->row);
        }
    }
    dti_copy_finish(true);
}

/* Rows of few bytes lie between rows for other ranks, which processors fetch along. All ranks see
 * the same boxes and counts, so they give the same answer. */
static bool takes_turns(dti_local_comm *c, const dti_local_slot *mine)
{
    const int64_t bytes = (int64_t)dt_dtype_size(mine->call.dtype);
    target largest;
    int most = 0;

    if (c->head.size > TURN_RANKS || mine->n < TURN_BYTES / bytes) return false;
    for (int m = 1; m < c->head.size; m++)
        if (mine->call.counts[m] > mine->call.counts[most]) most = m;
    look_at(&largest, c, mine, most);
    return largest.n_rows > 1 && largest.row < LONG_ROW_BYTES / bytes;
}

/* Of long rows each rank reads those that it wants. Of short ones it reads a part of all and hands
 * the sums out. */
static void reduce_boxes(dti_local_comm *c, const dti_local_slot *mine)
{
    const int64_t own[2] = { 0, mine->call.counts[c->head.rank] };

    if (takes_turns(c, mine)) {
        target targets[TURN_RANKS];
        const target *longest = look_at_all(targets, c, mine);
        dti_local_run(c, mine, reduce_in_turns, (int64_t[]){ 0, longest->n }, longest->row);
    } else {
        dti_local_run(c, mine, reduce_own, own, 1);
    }
}

/* Terms in blocks on one rank and in boxes on another, or in other boxes, are no terms of one sum.
 */
static dt_status check_terms(dti_local_comm *c, const dti_local_slot *mine, int member)
{
    const dti_comm_call *theirs = &dti_local_side(c, mine, member)->call, *ours = &mine->call;
    const int me = c->head.rank;
    bool same = (theirs->send_boxes == NULL) == (ours->send_boxes == NULL);

    for (int m = 0; m < c->head.size; m++) same = same && theirs->counts[m] == ours->counts[m];
    if (same && ours->send_boxes != NULL)
        same = dti_box_same_extents(&theirs->send_boxes[me], &ours->send_boxes[me]);
    DT_CHECK(
        same, DT_ERR_ARG,
        "reduce_scatter #%llu on \"%s\": what rank %d has for others differs in number or form "
        "from what rank %d has",
        (unsigned long long)atomic_load(&mine->seq), c->head.name, c->head.world_ranks[member],
        c->head.world_ranks[me]);
    return DT_OK;
}

dt_status dti_local_reduce_scatter(dti_local_comm *c, const dti_local_slot *mine)
{
    const int64_t own[2] = { 0, mine->call.counts[c->head.rank] };

    for (int m = 0; m < c->head.size; m++) {
        DT_TRY(dti_local_check_same(c, mine, m, mine->n));
        DT_TRY(check_terms(c, mine, m));
    }
    if (mine->call.stream != NULL) return dti_local_cuda_reduce_scatter(c, mine);
    if (mine->call.send_boxes == NULL)
        dti_local_run(c, mine, reduce_block, own, 1);
    else
        reduce_boxes(c, mine);
    return DT_OK;
}
