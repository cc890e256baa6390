/* SPDX-License-Identifier: Apache-2.0
 *
 * A cast during a move. Casting an element commutes with moving it, so it stands where the fewer
 * bytes travel; it does not commute with rounding sums, so reductions run in the wider dtype. */
#include "base/error.h"
#include "dtensor/move_cache.h"
#include "dtensor/tape.h"
#include "dtensor/tensor_internal.h"
#include "mesh/runtime.h"

dt_status dti_tensor_cast(dt_tensor *x, dt_dtype dtype, dt_tensor **out)
{
    const dti_dtype_attr attr = { dtype };
    dt_kargs args = {
        .in = &x->local, .attr = &attr, .cpu = x->device->cpu, .n_in = 1, .n_out = 1
    };
    dt_tensor *y;
    dt_status st = DT_OK;

    *out = NULL;
    DT_TRY(dti_tensor_create(x->mesh, x->layout, dtype, x->shape, &y));
    args.out = &y->local;
    if (!x->device->dry && dt_mesh_is_member(x->mesh)) st = dti_cast_cpu(&args);
    if (st != DT_OK) {
        dt_tensor_release(&y);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = y;
    return DT_OK;
}

/* Terms that stay terms: rounded one by one they are no longer terms of the rounded value. */
static dt_status check_terms(const dt_tensor *x, const dt_layout *want, dt_dtype dtype)
{
    char text[DTI_PLACEMENT_BYTES];

    if (dt_dtype_size(dtype) > dt_dtype_size(x->local.dtype)) return DT_OK;
    for (int m = 0; m < want->n_dims; m++) {
        const dt_placement *p = &want->place[m];
        if ((want->partial_dims >> m & 1u) == 0 || p->reduce == DT_MAX || p->reduce == DT_MIN)
            continue;
        DT_FAIL(DT_ERR_LAYOUT,
                "the terms of %s on mesh dim \"%s\" would each be rounded from %s to %s; reduce "
                "them first",
                dti_placement_words(p, text), dt_mesh_dim_name(x->mesh, m),
                dt_dtype_name(x->local.dtype), dt_dtype_name(dtype));
    }
    return DT_OK;
}

/* The layout on the way at which the cast happens. */
static dt_status place_of_cast(const dt_tensor *x, const dt_layout *want, dt_dtype dtype,
                               const dt_layout **out)
{
    const bool widens = dt_dtype_size(dtype) > dt_dtype_size(x->local.dtype);
    const dti_move *plan;
    bool reduces = false;

    *out = x->layout;
    if (want == x->layout) return DT_OK;
    DT_TRY(dti_move_cache_plan(x, want, &plan));
    for (int i = 0; i < plan->n_steps; i++) {
        if (plan->step[i].kind != DTI_MOVE_REDUCE_SCATTER &&
            plan->step[i].kind != DTI_MOVE_ALL_REDUCE)
            continue;
        reduces = true;
        if (!widens)
            *out = plan->step[i].to; /* sums in the wide dtype, what follows in the narrow */
    }
    if (widens && !reduces) *out = want;
    return DT_OK;
}

static dt_status move_and_cast(dt_tensor *x, const dt_layout *want, dt_dtype dtype,
                               dt_comm_counter *counters, dt_tensor **y)
{
    dt_status st = DT_OK;
    dt_tensor *near = NULL, *narrow = NULL;
    const dt_layout *between;

    *y = NULL;
    if (dtype == x->local.dtype) {
        DT_TRY(dti_redistribute(x, want, counters, y));
        return DT_OK;
    }
    DT_CHECK(dt_dtype_is_float(dtype) && dt_dtype_is_float(x->local.dtype), DT_ERR_UNSUPPORTED,
             "a cast from %s to %s: both must be floats", dt_dtype_name(x->local.dtype),
             dt_dtype_name(dtype));
    DT_TRY(check_terms(x, want, dtype));
    DT_TRY(place_of_cast(x, want, dtype, &between));
    DT_TRY_TO(done, st, dti_redistribute(x, between, counters, &near));
    DT_TRY_TO(done, st, dti_tensor_cast(near, dtype, &narrow));
    DT_TRY_TO(done, st, dti_redistribute(narrow, want, counters, y));
done:
    dt_tensor_release(&narrow);
    dt_tensor_release(&near);
    return st;
}

dt_status dt_redistribute_cast(dt_tensor *x, const dt_placement *want, dt_dtype dtype,
                               dt_tensor **y)
{
    const dt_layout *layout;

    DT_CHECK(y != NULL, DT_ERR_ARG, "y is NULL");
    *y = NULL;
    DT_CHECK(x != NULL && want != NULL, DT_ERR_ARG, "x or want is NULL");
    DT_CHECK(dt_dtype_size(dtype) > 0, DT_ERR_ARG, "%d is no dtype", (int)dtype);
    DT_TRY(dti_tensor_layout(x, want, &layout));
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(x->mesh), move_and_cast(x, layout, dtype, NULL, y)));
    return DT_OK;
}

dt_tensor *dt_move_cast(dt_tape *t, dt_tensor *x, const dt_placement *want, dt_dtype dtype)
{
    dt_comm_counter moved[DT_N_COMM_KINDS] = { { 0, 0 } };
    const dt_layout *layout;
    dt_tensor *y = NULL;
    dt_status st;

    if (t->status != DT_OK) return NULL;
    if (x == NULL || want == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_move_cast: x or want is NULL");
    if (dt_dtype_size(dtype) == 0)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_move_cast: %d is no dtype", (int)dtype);
    st = dti_tensor_layout(x, want, &layout);
    if (st == DT_OK) st = move_and_cast(x, layout, dtype, moved, &y);
    if (st == DT_OK) st = dti_tape_count(t, t->reason != NULL ? t->reason : "move", moved);
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}
