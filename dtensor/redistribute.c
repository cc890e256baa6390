/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes the plans of placements/move.h on bytes. Each step makes one tensor from the one before.
 * Dry tensors take the same way: what would be copied here is left out, what would be sent goes to
 * the dry back end, so that steps, counters and memory are those of a run. */
#include "base/dtype.h"
#include "dtensor/agree.h"
#include "dtensor/exchange.h"
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
    dti_overlap o;

    if (!x->device->dry && dti_move_overlap(step, x->shape, me, me, &o))
        dti_overlap_copy(&o, x->local.data, y->local.data, dt_dtype_size(x->local.dtype));
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

/* The terms of all members, each laid out as the member's piece, in the order of members. */
static void pack(const dti_move_step *step, const int *me, int size, const dt_tensor *x, char *to)
{
    const size_t bytes = dt_dtype_size(x->local.dtype);
    dti_overlap o;

    for (int r = 0; r < size; r++) {
        int member[DT_MAX_DIMS];
        dti_move_member(step, me, r, member);
        if (!dti_move_overlap(step, x->shape, member, me, &o)) continue;
        dti_overlap_copy(&o, x->local.data, to, bytes);
        to += (size_t)o.count * bytes;
    }
}

/* Does this box follow on the `at` elements before it, as those of a cut of axis 0 do? */
static bool lies_next(const dti_overlap *o, int64_t at)
{
    dti_box box, other;
    int64_t stride = 1;

    dti_overlap_box(o, 0, &box, &other);
    if (o->n_boxes > 1 || box.offset != at) return false;
    for (int a = box.n_axes - 1; a >= 0; a--) {
        if (box.extent[a] > 1 && box.stride[a] != stride) return false;
        stride *= box.extent[a];
    }
    return true;
}

/* Terms per member; false if they have to be packed to lie in the order of members. */
static bool count_terms(const dti_move_step *step, const int *me, int size, const dt_tensor *x,
                        int64_t *counts)
{
    bool in_order = true;
    int64_t at = 0;
    dti_overlap o;

    for (int r = 0; r < size; r++) {
        int member[DT_MAX_DIMS];
        dti_move_member(step, me, r, member);
        counts[r] = 0;
        if (!dti_move_overlap(step, x->shape, member, me, &o)) continue;
        counts[r] = o.count;
        in_order = in_order && lies_next(&o, at);
        at += o.count;
    }
    return in_order;
}

static dt_status reduce_scatter(const dti_move_step *step, const int *me, const dt_tensor *x,
                                dt_tensor *y)
{
    const size_t bytes = (size_t)dti_local_count(&x->local) * dt_dtype_size(x->local.dtype);
    dti_storage *packed = NULL;
    dti_comm_note note;
    dti_comm *comm;
    dt_status st;
    void *counts;

    DT_TRY(dti_agree_comm(x, step->to, step->dims, &note, &comm));
    DT_TRY(dti_move_room(x->device, (size_t)comm->size * sizeof(int64_t), &counts));
    if (!count_terms(step, me, comm->size, x, counts)) {
        DT_TRY(dti_storage_create(x->device->memory, bytes, true, &packed));
        if (!x->device->dry) pack(step, me, comm->size, x, packed->data);
    }
    st = dti_reduce_scatter(comm, packed != NULL ? packed->data : x->local.data, y->local.data,
                            counts, NULL, x->local.dtype, step->reduce);
    dti_storage_release(packed);
    return st;
}

/* The pairs of one step, seen from one rank. */
typedef struct step_pairs {
    const dti_move_step *step;
    const int *me;
    const int64_t *shape;
} step_pairs;

static bool sent_to(const void *arg, int r, dti_overlap *out)
{
    const step_pairs *p = arg;
    int member[DT_MAX_DIMS];

    dti_move_member(p->step, p->me, r, member);
    return dti_move_overlap(p->step, p->shape, member, p->me, out);
}

static bool received_from(const void *arg, int r, dti_overlap *out)
{
    const step_pairs *p = arg;
    int member[DT_MAX_DIMS];

    dti_move_member(p->step, p->me, r, member);
    return dti_move_overlap(p->step, p->shape, p->me, member, out);
}

static dt_status exchange(const dti_move_step *step, const int *me, const dt_tensor *x,
                          dt_tensor *y)
{
    dti_comm_note note;
    const step_pairs arg = { step, me, x->shape };
    const dti_pairs pairs = { sent_to, received_from, &arg };
    dti_comm *comm;

    DT_TRY(dti_agree_comm(x, step->to, step->dims, &note, &comm));
    DT_TRY(
        dti_exchange_pairs(x->device, comm, &pairs, x->local.data, y->local.data, x->local.dtype));
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
