/* SPDX-License-Identifier: Apache-2.0
 *
 * Moves on a tape: what each communicates is counted, and the result is the tape's. */
#include "dtensor/copy_to.h"
#include "dtensor/graph.h"
#include "dtensor/tape.h"
#include "dtensor/tensor_internal.h"

/* Takes over y, the result of a move of x that went as st says. */
static dt_tensor *moved(dt_tape *t, dt_status st, const dt_comm_counter counters[DT_N_COMM_KINDS],
                        dt_tensor *x, dt_tensor *y)
{
    if (st == DT_OK) st = dti_tape_count(t, t->reason != NULL ? t->reason : "move", counters);
    if (st == DT_OK) st = dti_graph_move(t, x, y);
    if (st == DT_OK) return dti_tape_push(t, y);
    dt_tensor_release(&y);
    return dti_tape_latch(t, dti_error_frame(st, __func__, __FILE__, __LINE__));
}

/* x, or a tensor of the tape's that lies as `layout` says; st: how that was found. */
static dt_tensor *move_to(dt_tape *t, dt_status st, dt_tensor *x, const dt_layout *layout)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_tensor *y = NULL;

    if (st == DT_OK && layout == x->layout) return x;
    if (st == DT_OK) st = dti_redistribute(x, layout, counters, &y);
    return moved(t, st, counters, x, y);
}

dt_tensor *dt_move(dt_tape *t, dt_tensor *x, const dt_placement *want)
{
    const dt_layout *layout = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL || want == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_move: x or want is NULL");
    st = dti_tensor_layout(x, want, &layout);
    return move_to(t, st, x, layout);
}

dt_tensor *dt_move_dim(dt_tape *t, dt_tensor *x, int dim, dt_placement want)
{
    const dt_layout *layout = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_move_dim: x is NULL");
    if (dim < 0 || dim >= x->layout->n_dims)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_move_dim: mesh dim %d of a mesh that has %d", dim,
                            x->layout->n_dims);
    st = dti_layout_with(x->layout, dim, &want, &layout);
    return move_to(t, st, x, layout);
}

dt_tensor *dt_move_to(dt_tape *t, dt_tensor *x, dt_mesh *mesh, const dt_placement *want)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_tensor *y = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL || mesh == NULL || want == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_move_to: x, mesh or want is NULL");
    st = dti_copy_to(x, mesh, want, counters, &y);
    return moved(t, st, counters, x, y);
}

dt_tensor *dt_move_cast(dt_tape *t, dt_tensor *x, const dt_placement *want, dt_dtype dtype)
{
    dt_comm_counter counters[DT_N_COMM_KINDS] = { { 0, 0 } };
    dt_tensor *y = NULL;
    dt_status st;

    if (dti_tape_is_down(t)) return NULL;
    if (x == NULL || want == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_move_cast: x or want is NULL");
    st = dti_move_cast(x, want, dtype, counters, &y);
    return moved(t, st, counters, x, y);
}
