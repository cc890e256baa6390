/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's share of each collective: straight from and into the buffers of its peers, all of which
 * have arrived. */
#include <stdio.h>
#include <string.h>

#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/local_work.h"
#include "mesh/comm/reduce.h"

/* Work of PARALLEL_BYTES takes longer than waking the threads of the pool. */
enum { PARALLEL_BYTES = 1 << 20, SPREAD_BYTES = 16 << 10 };

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
    const dti_local_slot *slot = dti_local_side(c, mine, member);
    const dti_comm_note *note = note_of(c, mine, member);
    const char *name = slot->call.op == DTI_COMM_EXCHANGE ? slot->call.what : NULL;
    const char *words = note != NULL && note->text[0] != '\0' ? note->text : name;
    const bool has_words = words != NULL;
    char call[DTI_CALL_TEXT_BYTES];

    (void)snprintf(text, bytes, "rank %d calls %s%s%s%s%s", c->head.world_ranks[member],
                   dti_call_text(slot->call.op, n, slot->call.dtype, call),
                   slot->call.stream != NULL ? " on its device" : "", has_words ? " (" : "",
                   has_words ? words : "", has_words ? ")" : "");
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

static dt_status fail_roots(dti_local_comm *c, const dti_local_slot *mine, int member)
{
    const int theirs = dti_local_side(c, mine, member)->call.root;

    DT_FAIL(DT_ERR_ARG,
            "broadcast #%llu on \"%s\": rank %d names %d as the source, rank %d names %d",
            (unsigned long long)atomic_load(&mine->seq), c->head.name,
            c->head.world_ranks[c->head.rank], c->head.world_ranks[mine->call.root],
            c->head.world_ranks[member], c->head.world_ranks[theirs]);
}

/* `n`: what this rank expects of the member's count. */
dt_status dti_local_check_same(dti_local_comm *c, const dti_local_slot *mine, int member, int64_t n)
{
    const dti_local_slot *theirs = dti_local_side(c, mine, member);
    const dti_comm_note *my_note = note_of(c, mine, c->head.rank);

    if (theirs->kind != mine->kind || theirs->n != n)
        return fail_differs(c, mine, member, n, theirs->n);
    if (mine->call.op == DTI_COMM_BROADCAST && theirs->call.root != mine->call.root)
        return fail_roots(c, mine, member);
    if (my_note != NULL && my_note->hash != note_of(c, mine, member)->hash)
        return fail_differs(c, mine, member, mine->n, theirs->n);
    return DT_OK;
}

typedef struct range_job {
    dti_range_fn run;
    dti_local_comm *c;
    const dti_local_slot *mine;
    int64_t begin, end, grain;
} range_job;

static void run_part(void *arg, int worker, int n_workers)
{
    const range_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->end - j->begin, j->grain, worker, n_workers, &begin, &end);
    if (begin < end) j->run(j->c, j->mine, j->begin + begin, j->begin + end);
}

void dti_local_run(dti_local_comm *c, const dti_local_slot *mine, dti_range_fn run,
                   const int64_t range[2], int64_t unit)
{
    const int64_t grain = unit < DTI_REDUCE_BLOCK ? DTI_REDUCE_BLOCK / unit : 1;
    const int64_t bytes = unit * (int64_t)dt_dtype_size(mine->call.dtype);
    range_job j = { run, c, mine, range[0], range[1], grain };

    if (range[1] - range[0] < PARALLEL_BYTES / bytes)
        run(c, mine, range[0], range[1]);
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

    dti_pool_share((int64_t)j->bytes, DTI_SLICE_BYTES, worker, n_workers, &begin, &end);
    dti_copy(j->to + begin, j->from + begin, (size_t)(end - begin), j->stream);
    dti_copy_finish(j->stream);
}

/* Elements of the operation's dtype. Own blocks may lie in place already. */
static dt_status copy(dti_local_comm *c, const dti_local_slot *mine, void *to, const void *from,
                      int64_t n)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    copy_job j = { to, from, (size_t)n * bytes, dti_is_large(n, bytes) };

    if (n == 0 || to == from) return DT_OK;
    if (mine->call.stream != NULL) return dti_local_cuda_copy(c, to, from, j.bytes);
    if (j.bytes < PARALLEL_BYTES)
        dti_copy(to, from, j.bytes, false);
    else
        dti_pool_run(c->self->pool, copy_part, &j);
    return DT_OK;
}

static dt_status work_barrier(dti_local_comm *c, const dti_local_slot *mine)
{
    for (int m = 0; m < c->head.size; m++) DT_TRY(dti_local_check_same(c, mine, m, 0));
    return DT_OK;
}

/* Elements [begin, end) to everybody: read once, written to all, in pieces that stay in a cache. */
static void spread(dti_local_comm *c, const dti_local_slot *mine, int64_t begin, int64_t end)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const bool stream = dti_is_large(mine->n, bytes);
    const void *send = dti_local_side(c, mine, mine->call.root)->call.send;
    const int64_t piece = SPREAD_BYTES / (int64_t)bytes;

    for (int64_t i = begin; i < end; i += piece) {
        const int64_t n = end - i < piece ? end - i : piece;
        for (int m = 0; m < c->head.size; m++) {
            void *recv = dti_local_side(c, mine, m)->call.recv;
            if (recv != send)
                dti_copy(dti_element(recv, i, bytes), dti_element(send, i, bytes),
                         (size_t)n * bytes, stream);
        }
    }
    dti_copy_finish(stream);
}

static dt_status work_broadcast(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);
    int64_t begin, end;

    if (dti_local_takes_from_root(c, call))
        DT_TRY(dti_local_check_same(c, mine, call->root, mine->n));
    else
        for (int m = 0; m < c->head.size; m++) DT_TRY(dti_local_check_same(c, mine, m, mine->n));
    if (dti_local_is_from_root(call))
        return copy(c, mine, call->recv, dti_local_side(c, mine, call->root)->call.send, mine->n);
    if (call->stream != NULL) return dti_local_cuda_spread(c, mine);
    dti_pool_share(mine->n, DTI_SLICE_BYTES / (int64_t)bytes, c->head.rank, c->head.size, &begin,
                   &end);
    dti_local_run(c, mine, spread, (int64_t[]){ begin, end }, 1);
    return DT_OK;
}

/* Ranks begin with different peers, so that they do not all read the same memory at a time. */
static dt_status work_all_gather(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int i = 0; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        const int64_t at = dti_block_at(call->counts, call->displs, m);
        DT_TRY(dti_local_check_same(c, mine, m, call->counts[m]));
        DT_TRY(copy(c, mine, dti_element(call->recv, at, bytes),
                    dti_local_side(c, mine, m)->call.send, call->counts[m]));
    }
    return DT_OK;
}

static dt_status work_all_to_all(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int i = 0; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        const dti_comm_call *theirs = &dti_local_side(c, mine, m)->call;
        const int64_t n = call->counts[m];
        int64_t to, from;
        DT_TRY(dti_local_check_same(c, mine, m, 0));
        if (theirs->send_counts[c->head.rank] != n)
            return fail_differs(c, mine, m, n, theirs->send_counts[c->head.rank]);
        to = dti_block_at(call->counts, call->displs, m);
        from = dti_block_at(theirs->send_counts, theirs->send_displs, c->head.rank);
        DT_TRY(copy(c, mine, dti_element(call->recv, to, bytes),
                    dti_element(theirs->send, from, bytes), n));
    }
    return DT_OK;
}

static dt_status work_exchange(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_comm_call *call = &mine->call;
    const size_t bytes = dt_dtype_size(call->dtype);

    for (int i = 0; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        const dti_comm_call *theirs = &dti_local_side(c, mine, m)->call;
        const dti_box *from, *to = &call->recv_boxes[m];
        DT_TRY(dti_local_check_same(c, mine, m, 0));
        from = &theirs->send_boxes[c->head.rank];
        DT_CHECK(dti_box_same_extents(from, to), DT_ERR_ARG,
                 "exchange #%llu on \"%s\": the box that rank %d sends to rank %d has other "
                 "extents than the one it lands in",
                 (unsigned long long)atomic_load(&mine->seq), c->head.name, c->head.world_ranks[m],
                 c->head.world_ranks[c->head.rank]);
        if (call->stream != NULL)
            DT_TRY(dti_local_cuda_copy_box(c, call->recv, to, theirs->send, from, bytes));
        else
            dti_box_copy_shared(c->self->pool, call->recv, to, theirs->send, from, bytes);
    }
    return DT_OK;
}

static dt_status work(dti_local_comm *c, const dti_local_slot *mine)
{
    switch (mine->call.op) {
    case DTI_COMM_BARRIER:
        return work_barrier(c, mine);
    case DTI_COMM_BROADCAST:
        return work_broadcast(c, mine);
    case DTI_COMM_ALL_GATHER:
        return work_all_gather(c, mine);
    case DTI_COMM_ALL_REDUCE:
        return dti_local_all_reduce(c, mine);
    case DTI_COMM_REDUCE_SCATTER:
        return dti_local_reduce_scatter(c, mine);
    case DTI_COMM_ALL_TO_ALL:
        return work_all_to_all(c, mine);
    case DTI_COMM_EXCHANGE:
        return work_exchange(c, mine);
    default:
        DT_FAIL(DT_ERR_INTERNAL, "operation %d is not a collective", (int)mine->call.op);
    }
}

dt_status dti_local_work(dti_local_comm *c, const dti_local_slot *mine)
{
    const bool on_device = mine->call.stream != NULL;

    if (on_device) DT_TRY(dti_local_cuda_begin(c, mine));
    DT_TRY(work(c, mine));
    if (on_device) DT_TRY(dti_local_cuda_end(c, mine));
    return DT_OK;
}
