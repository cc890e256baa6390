/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of reductions over an axis that the caller names, and of adding a number, which terms of a
 * sum must get once. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* [..., k, ...] -> [..., ...]; axis -1: [...] -> one element */
dt_status dti_reduce_extents(dt_op_shapes *call)
{
    const int axis = ((const dti_reduce_attr *)call->attr)->axis;
    const dt_op_shape *x = &call->in[0];
    dt_op_shape *y = &call->out[0];

    DT_CHECK(axis < x->n_axes, DT_ERR_ARG, "%s: axis %d of a tensor of %d axes", call->op->name,
             axis, x->n_axes);
    y->n_axes = 0;
    for (int a = 0; axis >= 0 && a < x->n_axes; a++)
        if (a != axis) y->extent[y->n_axes++] = x->extent[a];
    return DT_OK;
}

/* Of no elements there is a sum, but no largest. */
dt_status dti_extreme_extents(dt_op_shapes *call)
{
    const int axis = ((const dti_reduce_attr *)call->attr)->axis;
    const dt_op_shape *x = &call->in[0];

    DT_TRY(dti_reduce_extents(call));
    for (int a = 0; a < x->n_axes; a++)
        DT_CHECK(x->extent[a] > 0 || (axis >= 0 && a != axis), DT_ERR_SHAPE,
                 "%s over axis %d, which has no elements", call->op->name, a);
    return DT_OK;
}

/* Partial of which reduction passes, and is left by a cut of what is reduced. */
static bool passes(dt_reduce row, dt_reduce terms)
{
    return terms == row || (row == DT_SUM && terms == DT_AVG);
}

static dt_status reduce_dim(dti_op_call *call, int m, dt_reduce row)
{
    const int axis = ((const dti_reduce_attr *)call->attr)->axis;
    const dt_placement *p = &call->in_place[0][m];
    char text[DTI_PLACEMENT_BYTES];

    call->out_place[m] = *p;
    if (p->kind == DT_PLACE_PARTIAL && !passes(row, p->reduce))
        return dti_op_clash(call, m, "operand 0 is %s and must be reduced",
                            dti_placement_words(p, text));
    if (p->kind != DT_PLACE_SHARD) return DT_OK;
    if (axis >= 0 && p->axis != axis) {
        call->out_place[m].axis -= p->axis > axis;
        return DT_OK;
    }
    if (row == DT_SUM && dti_op_counts_copies(call, m, p))
        return dti_op_clash(call, m, "operand 0 is %s: its sum would count copies",
                            dti_placement_words(p, text));
    call->out_place[m] = DT_PARTIAL(row);
    call->reduced = call->reduced || row == DT_SUM;
    return DT_OK;
}

static dt_status reduce_shard(dti_op_call *call, dt_reduce row)
{
    const dt_layout *x = call->in[0]->layout;

    for (int m = 0; m < x->n_dims; m++) {
        call->out_place[m] = DT_REPLICATE;
        if (x->dim_size[m] > 1) DT_TRY(reduce_dim(call, m, row));
    }
    return DT_OK;
}

dt_status dti_sum_shard(dti_op_call *call)
{
    return reduce_shard(call, DT_SUM);
}

dt_status dti_max_shard(dti_op_call *call)
{
    return reduce_shard(call, DT_MAX);
}

dt_status dti_min_shard(dti_op_call *call)
{
    return reduce_shard(call, DT_MIN);
}

/* A number joins one term of a sum, and every term of an average, a minimum or a maximum. */
dt_status dti_add_scalar_shard(dti_op_call *call)
{
    const dt_layout *x = call->in[0]->layout;

    for (int m = 0; m < x->n_dims; m++) {
        const dt_placement *p = &call->in_place[0][m];
        call->out_place[m] = x->dim_size[m] > 1 ? *p : DT_REPLICATE;
        if (x->dim_size[m] > 1 && p->kind == DT_PLACE_PARTIAL && p->reduce == DT_PROD)
            DT_TRY(dti_op_clash(call, m, "operand 0 is Partial(prod) and must be reduced"));
    }
    return DT_OK;
}
