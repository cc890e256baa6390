/* SPDX-License-Identifier: Apache-2.0
 *
 * Executes the plans of placements/move.h on bytes. Each step makes one tensor from the one before.
 * Dry tensors take the same way: what would be copied here is left out, what would be sent goes to
 * the dry back end, so that steps, counters and memory are those of a run. */
#include <string.h>

#include "base/dtype.h"
#include "dtensor/claims.h"
#include "dtensor/exchange.h"
#include "dtensor/move_cache.h"
#include "dtensor/move_steps.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

void dti_step_coords(const dt_mesh *mesh, int *coord)
{
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
}

void dti_step_count(const dti_move_step *step, const dt_tensor *x, const int *me, int calls,
                    dt_comm_counter *counters)
{
    const dti_observer *observer = x->device->observer;
    dt_comm_kind kind;
    int64_t bytes;

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
    if (counters == NULL && observer == NULL) return;
    bytes = dti_move_bytes(step, x->shape, dt_dtype_size(x->local.dtype), me);
    if (observer != NULL)
        observer->moved(observer->arg, step, x->shape, kind, &(dt_comm_counter){ calls, bytes });
    if (counters == NULL) return;
    counters[kind].calls += calls;
    counters[kind].bytes += bytes;
}

static dt_status local_slice(const dti_move_step *step, const int *me, const dt_tensor *x,
                             dt_tensor *y)
{
    dti_overlap o;

    if (!x->device->dry && dti_move_overlap(step, x->shape, me, me, &o))
        DT_TRY(dti_overlap_copy(x->device, &o, x->local.data, y->local.data,
                                dt_dtype_size(x->local.dtype)));
    return DT_OK;
}

dt_status dti_step_divide(dt_tensor *y, int64_t divisor)
{
    if (divisor != 1 && !y->device->dry)
        DT_TRY(y->device->ops->divide(y->device, &y->local, divisor));
    return DT_OK;
}

dt_status dti_step_group(const dti_move_step *step, dt_mesh *mesh, dti_comm **out)
{
    int along[DT_MAX_DIMS];

    for (int m = 0; m < step->from->n_dims; m++) along[m] = dti_move_along(step, m);
    DT_TRY(dti_mesh_comm_along(mesh, step->dims, along, out));
    return DT_OK;
}

static dt_status all_reduce(const dti_move_step *step, const dt_tensor *x, dt_tensor *y)
{
    const int64_t n = dti_tensor_count(x);
    dti_comm_call call = { .op = DTI_COMM_ALL_REDUCE,
                           .dtype = x->local.dtype,
                           .reduce = step->reduce,
                           .send = x->local.data,
                           .recv = y->local.data,
                           .counts = &n };
    dti_comm_note note;
    dti_comm *comm;

    DT_TRY(dti_step_group(step, x->mesh, &comm));
    call.about = dti_agree_about(x, step->to, comm, &note);
    DT_TRY(x->device->ops->communicate(x->device, comm, &call));
    DT_TRY(dti_step_divide(y, step->divisor));
    return DT_OK;
}

/* The terms of all members, each laid out as the member's piece, in the order of members. */
static dt_status pack(const dti_move_step *step, const int *me, int size, const dt_tensor *x,
                      char *to)
{
    const size_t bytes = dt_dtype_size(x->local.dtype);
    dti_overlap o;

    for (int r = 0; r < size; r++) {
        int member[DT_MAX_DIMS];
        dti_move_member(step, me, r, member);
        if (!dti_move_overlap(step, x->shape, member, me, &o)) continue;
        DT_TRY(dti_overlap_copy(x->device, &o, x->local.data, to, bytes));
        to += (size_t)o.count * bytes;
    }
    return DT_OK;
}

/* Where each member's terms lie in a piece, [size of the group] each. */
typedef struct term_places {
    dti_box *boxes;
    int64_t *counts, *begins;
    bool packs;  /* several boxes each: to be packed */
    bool blocks; /* each box is a block of neighbours */
} term_places;

static void find_terms(const dti_move_step *step, const int *me, const dt_tensor *x, int size,
                       term_places *t)
{
    t->packs = dti_move_packs_terms(step);
    t->blocks = !t->packs;
    for (int r = 0; r < size; r++) {
        int member[DT_MAX_DIMS];
        dti_move_member(step, me, r, member);
        if (t->packs) {
            t->counts[r] = dti_piece_count(step->to, member, x->shape);
            continue;
        }
        dti_move_term_box(step, x->shape, me, member, &t->boxes[r]);
        t->counts[r] = dti_box_count(&t->boxes[r]);
        t->begins[r] = t->boxes[r].offset;
        t->blocks = t->blocks && dti_box_is_block(&t->boxes[r]);
    }
}

static dt_status reduce_scatter(const dti_move_step *step, const int *me, const dt_tensor *x,
                                dt_tensor *y)
{
    dti_storage *packed = NULL;
    dti_comm_note note;
    dti_comm *comm;
    term_places t;
    dt_status st = DT_OK;
    void *room;

    DT_TRY(dti_step_group(step, x->mesh, &comm));
    if (x->device->dry && !dti_move_packs_terms(step)) { /* who has which terms says nothing */
        DT_TRY(x->device->ops->communicate(x->device, comm,
                                           &(dti_comm_call){ .op = DTI_COMM_REDUCE_SCATTER,
                                                             .dtype = x->local.dtype,
                                                             .reduce = step->reduce }));
        return DT_OK;
    }
    const size_t n = (size_t)comm->size;
    DT_TRY(dti_move_room(x->device, n * (sizeof(dti_box) + 2 * sizeof(int64_t)), &room));
    t.boxes = room;
    t.counts = (int64_t *)(void *)(t.boxes + n);
    t.begins = t.counts + n;
    find_terms(step, me, x, comm->size, &t);
    if (t.packs) {
        DT_TRY(dti_storage_create(x->device->memory, dti_tensor_bytes(x), true, &packed));
        if (!x->device->dry) DT_TRY_TO(done, st, pack(step, me, comm->size, x, packed->data));
    }
    DT_TRY_TO(done, st,
              x->device->ops->communicate(
                  x->device, comm,
                  &(dti_comm_call){ .op = DTI_COMM_REDUCE_SCATTER,
                                    .dtype = x->local.dtype,
                                    .reduce = step->reduce,
                                    .send = t.packs ? packed->data : x->local.data,
                                    .send_boxes = t.packs || t.blocks ? NULL : t.boxes,
                                    .recv = y->local.data,
                                    .counts = t.counts,
                                    .displs = t.blocks ? t.begins : NULL,
                                    .about = dti_agree_about(x, step->to, comm, &note) }));
    DT_TRY_TO(done, st, dti_step_divide(y, step->divisor));
done:
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
    dti_pairs pairs = { .sent = sent_to, .received = received_from, .arg = &arg };
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(x->mesh, step->dims, &comm));
    if (x->device->dry && (step->from->packed_axes | step->to->packed_axes) == 0) {
        /* one box for each pair at most, so nothing is packed */
        DT_TRY(x->device->ops->communicate(
            x->device, comm, &(dti_comm_call){ .op = DTI_COMM_EXCHANGE, .dtype = x->local.dtype }));
        return DT_OK;
    }
    pairs.about = dti_agree_about(x, step->to, comm, &note);
    DT_TRY(
        dti_exchange_pairs(x->device, comm, &pairs, x->local.data, y->local.data, x->local.dtype));
    return DT_OK;
}

static dt_status fill_zeros(dt_tensor *y)
{
    static const uint64_t zero = 0;
    dti_device *d = y->device;

    if (d->dry || dti_tensor_bytes(y) == 0) return DT_OK;
    if (!d->ops->host_visible)
        DT_TRY(d->ops->fill(d, y->local.data, dti_tensor_count(y), &zero,
                            dt_dtype_size(y->local.dtype)));
    else
        memset(y->local.data, 0, dti_tensor_bytes(y));
    return DT_OK;
}

static dt_status copy_piece(const dt_tensor *x, dt_tensor *to)
{
    if (to->local.data != x->local.data)
        DT_TRY(dti_tensor_copy_bytes(to, 0, x, 0, (int64_t)dti_tensor_bytes(x)));
    return DT_OK;
}

/* into: NULL, or where the result is to be. */
static dt_status run_step(const dti_move_step *step, const int *me, dt_tensor *x, dt_tensor *into,
                          dt_tensor **out)
{
    const bool keeps = step->kind == DTI_MOVE_KEEP_ONE && dti_move_keeps(step, me);
    const bool same = keeps || (step->kind == DTI_MOVE_LOCAL_SLICE && step->same_piece);
    dt_status st = DT_OK;
    dt_tensor *y;

    *out = NULL;
    if (same && into == NULL) return dti_tensor_view(x, step->to, x->n_axes, x->shape, out);
    if (same) DT_TRY(copy_piece(x, into));
    if (into != NULL)
        y = dt_tensor_retain(into);
    else
        DT_TRY(dti_tensor_create(x->mesh, step->to, x->local.dtype, x->shape, &y));
    if (same) {
        *out = y;
        return DT_OK;
    }
    st = step->kind == DTI_MOVE_LOCAL_SLICE      ? local_slice(step, me, x, y)
         : step->kind == DTI_MOVE_KEEP_ONE       ? fill_zeros(y)
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

/* Half floats become f32 or are rounded; takes over the reference `*x` and gives a new one. */
static dt_status turn(dt_tensor **x, dt_dtype dtype)
{
    dt_tensor *y;
    const dt_status st = dti_tensor_cast(*x, dtype, &y);

    dt_tensor_release(x);
    *x = y;
    return st;
}

/* *now after the step, of a plan that began with elements of `dtype`. NULL after an error. */
static dt_status take_step(const dti_move_step *step, const int *me, dt_dtype dtype,
                           dt_comm_counter *counters, dt_tensor *into, dt_tensor **now)
{
    const bool half = dtype == DT_BF16 || dtype == DT_F16;
    dt_tensor *next;
    dt_status st;

    if (half && step->widens) DT_TRY(turn(now, DT_F32));
    st = run_step(step, me, *now, into, &next);
    if (st == DT_OK) dti_step_count(step, *now, me, 1, counters);
    dt_tensor_release(now);
    *now = next;
    if (st == DT_OK && half && step->narrows) st = turn(now, dtype);
    return st;
}

dt_status dti_step_take(const dti_move_step *step, const int *me, dt_dtype dtype,
                        dt_comm_counter *counters, dt_tensor **now)
{
    DT_TRY(take_step(step, me, dtype, counters, NULL, now));
    return DT_OK;
}

dt_status dti_run_move(dt_tensor *x, const dti_move *plan, dt_comm_counter *counters, dt_tensor **y)
{
    int me[DT_MAX_DIMS];
    dt_tensor *now = dt_tensor_retain(x);

    *y = NULL;
    dti_step_coords(x->mesh, me);
    for (int i = 0; i < plan->n_steps; i++) {
        const dt_status st = dti_step_take(&plan->step[i], me, x->local.dtype, counters, &now);
        if (st != DT_OK) return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *y = now;
    return DT_OK;
}

dt_status dti_redistribute_into(dt_tensor *x, dt_tensor *to, dt_comm_counter *counters)
{
    const dti_move *plan;
    dt_tensor *now;
    int me[DT_MAX_DIMS];

    if (!dt_mesh_is_member(x->mesh)) return DT_OK;
    DT_TRY(dti_move_cache_plan(x, to->layout, &plan));
    if (plan->n_steps == 0) return copy_piece(x, to);
    now = dt_tensor_retain(x);
    dti_step_coords(x->mesh, me);
    for (int i = 0; i < plan->n_steps; i++) {
        const bool last = i + 1 == plan->n_steps;
        DT_ASSERT(!last || !plan->step[i].narrows); /* nothing is reduced, so nothing is rounded */
        DT_TRY(take_step(&plan->step[i], me, x->local.dtype, counters, last ? to : NULL, &now));
    }
    dt_tensor_release(&now);
    return DT_OK;
}

dt_status dti_redistribute(dt_tensor *x, const dt_layout *want, dt_comm_counter *counters,
                           dt_tensor **y)
{
    const dti_move *plan;

    *y = NULL;
    if (want == x->layout) {
        *y = dt_tensor_retain(x);
        return DT_OK;
    }
    if (want->table_axes != 0) DT_TRY(dti_layout_check_shape(want, x->shape));
    if (!dt_mesh_is_member(x->mesh)) { /* which way members go is their affair */
        DT_TRY(dti_move_check(x->layout, want));
        DT_TRY(dti_tensor_create(x->mesh, want, x->local.dtype, x->shape, y));
        return DT_OK;
    }
    DT_TRY(dti_move_cache_plan(x, want, &plan));
    DT_TRY(dti_run_move(x, plan, counters, y));
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
