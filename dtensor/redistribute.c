/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes the plans of placements/move.h on bytes. Each step makes one tensor from the one before.
 * Dry tensors take the same way: what would be copied here is left out, what would be sent goes to
 * the dry back end, so that steps, counters and memory are those of a run. */
#include "base/dtype.h"
#include "dtensor/agree.h"
#include "dtensor/move_cache.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

static void coords_of(const dt_mesh *mesh, int *coord)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
}

static void count(const dti_move_step *step, const dt_tensor *x, const int *me,
                  dt_comm_counter *counters)
{
    dt_comm_kind kind;

    switch (step->kind) {
    case DTI_MOVE_REDUCE_SCATTER:
        kind = DT_COMM_REDUCE_SCATTER;
        break;
    case DTI_MOVE_ALL_REDUCE:
        kind = DT_COMM_ALL_REDUCE;
        break;
    case DTI_MOVE_EXCHANGE:
        kind = step->gathers ? DT_COMM_ALL_GATHER : DT_COMM_ALL_TO_ALL;
        break;
    default:
        return;
    }
    if (counters == NULL) return;
    counters[kind].calls++;
    counters[kind].bytes += dti_move_bytes(step, x->shape, dt_dtype_size(x->local.dtype), me);
}

static dt_status local_slice(const dti_move_step *step, const int *me, const dt_tensor *x,
                             dt_tensor *y)
{
    dti_box from, to;

    if (!x->device->dry && dti_move_boxes(step, x->shape, me, me, &from, &to))
        dti_box_copy(y->local.data, &to, x->local.data, &from, dt_dtype_size(x->local.dtype));
    return DT_OK;
}

/* x / divisor in place, for a sum that is part average. */
static void divide(dt_local *x, int64_t divisor)
{
    const int64_t n = dti_local_count(x);

    if (divisor == 1 || x->data == NULL) return;
    for (int64_t i = 0; i < n; i++)
        dti_store_f32(x->data, x->dtype, i, dti_load_f32(x->data, x->dtype, i) / (float)divisor);
}

static dt_status all_reduce(const dti_move_step *step, const dt_tensor *x, dt_tensor *y)
{
    dti_comm_note note;
    dti_comm *comm;

    DT_CHECK(step->divisor == 1 || dt_dtype_is_float(x->local.dtype), DT_ERR_UNSUPPORTED,
             "a mixture of Partial(sum) and Partial(avg) of %s cannot be divided",
             dt_dtype_name(x->local.dtype));
    DT_TRY(dti_agree_comm(x, step->to, step->dims, &note, &comm));
    DT_TRY(dti_all_reduce(comm, x->local.data, y->local.data, dti_local_count(&x->local),
                          x->local.dtype, step->reduce));
    divide(&y->local, step->divisor);
    return DT_OK;
}

/* Room for two boxes and two counts per member, in the kernels' scratch memory. */
typedef struct group_room {
    int64_t *counts;
    dti_box *sent;
    dti_box *received;
} group_room;

static dt_status take_room(dti_device *device, int size, group_room *out)
{
    const size_t n = (size_t)size;
    void *room;

    DT_TRY(dti_cpu_scratch(device->cpu, n * (2 * sizeof(dti_box) + sizeof(int64_t)), &room));
    out->sent = room;
    out->received = out->sent + n;
    out->counts = (int64_t *)(out->received + n);
    return DT_OK;
}

static int64_t box_count(const dti_box *box)
{
    int64_t n = 1;

    for (int a = 0; a < box->n_axes; a++) n *= box->extent[a];
    return n;
}

/* The terms for all members back to back, in the order of members. */
static void pack(const dti_box *boxes, const int64_t *counts, int size, const dt_tensor *x,
                 char *to)
{
    const size_t bytes = dt_dtype_size(x->local.dtype);

    for (int r = 0; r < size; r++) {
        dti_box flat = boxes[r];
        int64_t stride = 1;
        if (counts[r] == 0) continue;
        flat.offset = 0;
        for (int a = flat.n_axes - 1; a >= 0; a--) {
            flat.stride[a] = stride;
            stride *= flat.extent[a];
        }
        dti_box_copy(to, &flat, x->local.data, &boxes[r], bytes);
        to += (size_t)counts[r] * bytes;
    }
}

/* Do the terms lie back to back in the order of members already, as those of a cut of axis 0 do? */
static bool lies_in_order(const dti_box *boxes, const int64_t *counts, int size)
{
    int64_t at = 0;

    for (int r = 0; r < size; r++) {
        int64_t stride = 1;
        if (counts[r] == 0) continue;
        if (boxes[r].offset != at) return false;
        for (int a = boxes[r].n_axes - 1; a >= 0; a--) {
            if (boxes[r].extent[a] > 1 && boxes[r].stride[a] != stride) return false;
            stride *= boxes[r].extent[a];
        }
        at += counts[r];
    }
    return true;
}

static dt_status reduce_scatter(const dti_move_step *step, const int *me, const dt_tensor *x,
                                dt_tensor *y)
{
    const size_t bytes = (size_t)dti_local_count(&x->local) * dt_dtype_size(x->local.dtype);
    dti_storage *packed = NULL;
    dti_comm_note note;
    group_room room;
    dti_comm *comm;
    dt_status st;

    DT_TRY(dti_agree_comm(x, step->to, step->dims, &note, &comm));
    DT_TRY(take_room(x->device, comm->size, &room));
    for (int r = 0; r < comm->size; r++) {
        int member[DT_MAX_DIMS];
        dti_move_member(step, me, r, member);
        room.counts[r] = 0;
        if (dti_move_boxes(step, x->shape, member, me, &room.sent[r], &room.received[r]))
            room.counts[r] = box_count(&room.sent[r]);
    }
    if (!lies_in_order(room.sent, room.counts, comm->size)) {
        DT_TRY(dti_storage_create(x->device->memory, bytes, true, &packed));
        if (!x->device->dry) pack(room.sent, room.counts, comm->size, x, packed->data);
    }
    st = dti_reduce_scatter(comm, packed != NULL ? packed->data : x->local.data, y->local.data,
                            room.counts, NULL, x->local.dtype, step->reduce);
    dti_storage_release(packed);
    return st;
}

static dt_status exchange(const dti_move_step *step, const int *me, const dt_tensor *x,
                          dt_tensor *y)
{
    dti_comm_note note;
    group_room room;
    dti_comm *comm;
    dti_box unused;

    DT_TRY(dti_agree_comm(x, step->to, step->dims, &note, &comm));
    DT_TRY(take_room(x->device, comm->size, &room));
    for (int r = 0; r < comm->size; r++) {
        int member[DT_MAX_DIMS];
        dti_move_member(step, me, r, member);
        (void)dti_move_boxes(step, x->shape, member, me, &room.sent[r], &unused);
        (void)dti_move_boxes(step, x->shape, me, member, &unused, &room.received[r]);
    }
    DT_TRY(
        dti_exchange(comm, x->local.data, room.sent, y->local.data, room.received, x->local.dtype));
    return DT_OK;
}

static dt_status run_step(const dti_move_step *step, const int *me, dt_tensor *x, dt_tensor **out)
{
    dt_status st = DT_OK;
    dt_tensor *y;

    *out = NULL;
    if (step->kind == DTI_MOVE_LOCAL_SLICE && step->same_piece)
        return dti_tensor_view(x, step->to, x->n_axes, x->shape, out);
    DT_TRY(dti_tensor_create(x->mesh, step->to, x->local.dtype, x->shape, &y));
    if (dt_mesh_is_member(x->mesh))
        st = step->kind == DTI_MOVE_LOCAL_SLICE      ? local_slice(step, me, x, y)
             : step->kind == DTI_MOVE_ALL_REDUCE     ? all_reduce(step, x, y)
             : step->kind == DTI_MOVE_REDUCE_SCATTER ? reduce_scatter(step, me, x, y)
                                                     : exchange(step, me, x, y);
    if (st != DT_OK) {
        dt_tensor_release(&y);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = y;
    return DT_OK;
}

dt_status dti_redistribute(dt_tensor *x, const dt_layout *want, dt_comm_counter *counters,
                           dt_tensor **y)
{
    const dti_move *plan;
    int me[DT_MAX_DIMS];
    dt_tensor *now, *next;

    *y = NULL;
    if (want == x->layout) {
        *y = dt_tensor_retain(x);
        return DT_OK;
    }
    DT_TRY(dti_move_cache_plan(x->device, x->layout, want, &plan));
    coords_of(x->mesh, me);
    now = dt_tensor_retain(x);
    for (int i = 0; i < plan->n_steps; i++) {
        const dt_status st = run_step(&plan->step[i], me, now, &next);
        if (st == DT_OK && dt_mesh_is_member(x->mesh)) count(&plan->step[i], now, me, counters);
        dt_tensor_release(&now);
        if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
        now = next;
    }
    *y = now;
    return DT_OK;
}

dt_status dt_redistribute(dt_tensor *x, const dt_placement *want, dt_tensor **y)
{
    const dt_layout *layout;

    DT_CHECK(y != NULL, DT_ERR_ARG, "y is NULL");
    *y = NULL;
    DT_CHECK(x != NULL && want != NULL, DT_ERR_ARG, "x or want is NULL");
    DT_TRY(dti_tensor_layout(x, want, &layout));
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(x->mesh), dti_redistribute(x, layout, NULL, y)));
    return DT_OK;
}

dt_status dt_full_tensor(dt_tensor *x, dt_tensor **y)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };

    DT_TRY(dt_redistribute(x, whole, y));
    return DT_OK;
}
