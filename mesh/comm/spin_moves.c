/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/spin_moves.h"

#include "base/dtype.h"
#include "mesh/comm/call.h"

enum { SLOT_GRAIN = 256 };

/* One recorded operation. */
typedef struct move {
    dti_comm *c;
    const dti_comm_call *call;
    const dti_cuda_place *place;
    dti_cuda_circle with;
    size_t bytes; /* of an element */
} move;

static size_t slot_bytes(const dti_comm *c)
{
    return (size_t)DTI_CUDA_SPIN_ROOM_BYTES / (size_t)c->size / SLOT_GRAIN * SLOT_GRAIN;
}

/* What `from` has for `to`. */
static void *slot_of(const move *v, int from, int to)
{
    return (char *)v->with.areas[from] + DTI_CUDA_SPIN_HEAD_BYTES + (size_t)to * slot_bytes(v->c);
}

bool dti_spin_is_move(const dti_comm_call *call)
{
    return call->op == DTI_COMM_ALL_GATHER || call->op == DTI_COMM_ALL_TO_ALL ||
           call->op == DTI_COMM_EXCHANGE || call->op == DTI_COMM_REDUCE_SCATTER;
}

bool dti_spin_can_move(const dti_comm *c, const dti_comm_call *call)
{
    const int64_t most = (int64_t)(slot_bytes(c) / dt_dtype_size(call->dtype));

    if (!dti_spin_is_move(call)) return false;
    for (int m = 0; m < c->size; m++) {
        const dti_box sent = dti_cuda_part(c, call, true, m);
        const dti_box brought = dti_cuda_part(c, call, false, m);
        if (dti_box_count(&sent) > most || dti_box_count(&brought) > most) return false;
    }
    return true;
}

static dt_status meet(const move *v)
{
    return dti_cuda_check_call(v->place, v->place->module->spin_meet(v->place->cuda, &v->with),
                               "meeting other ranks");
}

/* Terms of a sum are added in the order of ranks, this one's among them. */
static dt_status hand_out(const move *v)
{
    const bool sums = v->call->op == DTI_COMM_REDUCE_SCATTER;

    for (int m = 0; m < v->c->size; m++) {
        const dti_box part = dti_cuda_part(v->c, v->call, true, m);
        if (m == v->c->rank && !sums) continue;
        DT_TRY(dti_cuda_pack(v->place, slot_of(v, v->c->rank, m), v->call->send, &part, v->bytes));
    }
    return DT_OK;
}

static dt_status take_in(const move *v)
{
    for (int m = 0; m < v->c->size; m++) {
        const dti_box part = dti_cuda_part(v->c, v->call, false, m);
        const dti_box own = dti_cuda_part(v->c, v->call, true, m);
        if (m == v->c->rank)
            DT_TRY(
                dti_cuda_copy_box(v->place, v->call->recv, &part, v->call->send, &own, v->bytes));
        else
            DT_TRY(dti_cuda_unpack(v->place, v->call->recv, &part, slot_of(v, m, v->c->rank),
                                   v->bytes));
    }
    return DT_OK;
}

static dt_status add(const move *v)
{
    const int64_t n = v->call->counts[v->c->rank];
    dti_cuda_sum sum = { .dtype = (int)v->call->dtype,
                         .reduce = (int)v->call->reduce,
                         .n_terms = v->c->size,
                         .n_to = 1,
                         .to = { v->call->recv } };

    if (n == 0) return DT_OK;
    sum.box = sum.to_box = dti_cuda_row_of(n);
    for (int m = 0; m < v->c->size; m++) sum.terms[m] = slot_of(v, m, v->c->rank);
    return dti_cuda_check_call(v->place, v->place->module->sum(v->place->cuda, &sum), "adding");
}

dt_status dti_spin_record_move(dti_comm *c, const dti_cuda_circle *with, const dti_comm_call *call,
                               int64_t limit_ms)
{
    move v = { c, call, dti_cuda_place_of(c), *with, dt_dtype_size(call->dtype) };

    v.with.limit_ms = limit_ms;
    DT_TRY(hand_out(&v));
    DT_TRY(meet(&v));
    DT_TRY(call->op == DTI_COMM_REDUCE_SCATTER ? add(&v) : take_in(&v));
    DT_TRY(meet(&v));
    return DT_OK;
}
