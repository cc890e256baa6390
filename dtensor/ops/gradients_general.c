/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward of general rows: each a few calls of other rows. No placement, no rank and no reduction
 * appears here; they follow from letters as in any pass. */
#include "dtensor/ops/row_gradients.h"

#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>

#include "dtensor/graph.h"
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/compose.h"
#include "dtensor/tape.h"
#include "placements/duals.h"

/* --- shapes ----------------------------------------------------------------------------------- */

dt_tensor *dti_sum_to_operand(dt_tape *t, const dt_node *n, int i, dt_tensor *g)
{
    const dt_op_shape want = dt_node_in_shape(n, i);

    while (g != NULL && g->n_axes > want.n_axes) g = dt_sum(t, g, 0);
    for (int a = 0; a < want.n_axes && g != NULL; a++)
        if (want.extent[a] == 1 && g->shape[a] != 1) {
            int64_t shape[DT_MAX_AXES];
            g = dt_sum(t, g, a);
            for (int k = 0; k < want.n_axes && g != NULL; k++)
                shape[k] = k == a ? 1 : g->shape[k - (k > a)];
            if (g != NULL) g = dt_reshape(t, g, want.n_axes, shape);
        }
    return g;
}

/* Zeros in the place of operand i's gradient. */
static dt_tensor *zeros_of_operand(dt_tape *t, const dt_node *n, int i, dt_dtype dtype)
{
    const dti_graph_value *x = &n->graph->values[n->in[i]];
    const dt_layout *layout;
    dt_tensor *zeros;
    dt_status st;

    st = dti_gradient_layout(x->layout, n->name, &layout);
    if (st == DT_OK) st = dti_tensor_create(x->mesh, layout, dtype, x->shape.extent, &zeros);
    if (st != DT_OK) return dti_tape_latch(t, st);
    st = dt_fill(zeros, 0.0);
    zeros = dt_tape_own(t, zeros);
    return st == DT_OK ? zeros : dti_tape_latch(t, st);
}

dt_tensor *dti_spread_to_operand(dt_tape *t, const dt_node *n, int i, dt_tensor *g)
{
    const dt_layout *of_terms;
    dt_tensor *zeros;
    dt_status st;

    if (g == NULL || dti_tape_is_down(t)) return NULL;
    zeros = zeros_of_operand(t, n, i, g->local.dtype);
    if (zeros == NULL || dti_layout_terms(g->layout) == 0) return dt_add(t, zeros, g);
    st = dti_dual_layout(zeros->layout, NULL, &of_terms); /* zeros must be terms as well */
    if (st != DT_OK) return dti_tape_latch(t, st);
    return dt_add(t, dt_move(t, zeros, of_terms->place), g);
}

/* Whole blocks of a packed axis: each rank's part of them goes back to where it was. */
BACKWARD(blocks)
{
    const dti_blocks_attr *attr = dt_node_attr(n);
    dt_tensor *x = zeros_of_operand(t, n, 0, dy[0]->local.dtype), *y = dy[0];
    int64_t outer = 1, inner = 1;
    dt_status st = DT_OK;

    if (x == NULL) return;
    for (int a = 0; a < x->n_axes; a++)
        if (a != attr->axis) *(a < attr->axis ? &outer : &inner) *= x->local.shape[a];
    const int64_t rows = x->local.shape[attr->axis], count = y->local.shape[attr->axis];
    const dti_box to = {
        3, attr->local_begin * inner, { outer, count, inner }, { rows * inner, inner, 1 }
    };
    const dti_box from = { 3, 0, { outer, count, inner }, { count * inner, inner, 1 } };
    if (!x->device->dry && outer * count * inner > 0)
        st = x->device->ops->copy_box(x->device, x->local.data, &to, y->local.data, &from,
                                      dt_dtype_size(y->local.dtype));
    dx[0] = st == DT_OK ? x : dti_tape_latch(t, st);
}

BACKWARD(heads)
{
    (void)n;
    dx[0] = dt_unheads(t, dy[0]);
}

BACKWARD(unheads)
{
    dx[0] = dt_heads(t, dy[0], ((const dti_heads_attr *)dt_node_attr(n))->head_dim);
}

BACKWARD(reshape)
{
    const dt_op_shape x = dt_node_in_shape(n, 0);

    dx[0] = dt_reshape(t, dy[0], x.n_axes, x.extent);
}

BACKWARD(permute)
{
    const dti_permute_attr *attr = dt_node_attr(n);
    int axes[DT_MAX_AXES];

    for (int a = 0; a < dt_tensor_n_axes(dy[0]); a++) axes[attr->axis[a]] = a;
    dx[0] = dt_permute(t, dy[0], axes);
}

/* Rows of an axis come back with zeros around them. */
BACKWARD(slice)
{
    const dti_slice_attr *attr = dt_node_attr(n);
    const int64_t extent = dt_node_in_shape(n, 0).extent[attr->axis];
    const int64_t begin = attr->begin < 0 ? attr->begin + extent : attr->begin;

    dx[0] = dt_pad(t, dy[0], (int)attr->axis, begin, extent - begin - attr->count, 0.0);
}

BACKWARD(pad)
{
    const dti_pad_attr *attr = dt_node_attr(n);

    dx[0] = dt_slice(t, dy[0], attr->axis, attr->before, dt_node_in_shape(n, 0).extent[attr->axis]);
}

/* Each operand's rows. */
BACKWARD(concat)
{
    const int axis = ((const dti_concat_attr *)dt_node_attr(n))->axis;
    int64_t begin = 0;

    for (int i = 0; i < n->n_in; i++) {
        const int64_t count = dt_node_in_shape(n, i).extent[axis];
        if (dt_node_wants(n, i)) dx[i] = dt_slice(t, dy[0], axis, begin, count);
        begin += count;
    }
}

/* --- elements --------------------------------------------------------------------------------- */

BACKWARD(add)
{
    for (int i = 0; i < 2; i++)
        if (dt_node_wants(n, i)) dx[i] = dti_sum_to_operand(t, n, i, dy[0]);
}

BACKWARD(sub)
{
    if (dt_node_wants(n, 0)) dx[0] = dti_sum_to_operand(t, n, 0, dy[0]);
    if (dt_node_wants(n, 1)) dx[1] = dt_neg(t, dti_sum_to_operand(t, n, 1, dy[0]));
}

BACKWARD(mul)
{
    for (int i = 0; i < 2; i++)
        if (dt_node_wants(n, i))
            dx[i] = dti_sum_to_operand(t, n, i, dt_mul(t, dy[0], dt_node_in(n, 1 - i)));
}

/* a / b: dy / b and -dy a / b^2 */
BACKWARD(div)
{
    dt_tensor *a = dt_node_in(n, 0), *b = dt_node_in(n, 1), *part = dt_div(t, dy[0], b);

    if (dt_node_wants(n, 0)) dx[0] = dti_sum_to_operand(t, n, 0, part);
    if (dt_node_wants(n, 1))
        dx[1] = dt_neg(t, dti_sum_to_operand(t, n, 1, dt_div(t, dt_mul(t, part, a), b)));
}

/* One element that is repeated wherever it is read with `like`. */
static dt_tensor *constant(dt_tape *t, const dt_tensor *like, dt_dtype dtype, double value)
{
    dt_placement place[DT_MAX_DIMS];
    int64_t shape[DT_MAX_AXES];
    dt_tensor *x;
    dt_status st;

    if (dti_tape_is_down(t) || like == NULL) return NULL;
    for (int m = 0; m < like->layout->n_dims; m++) place[m] = DT_REPLICATE;
    for (int a = 0; a < like->n_axes; a++) shape[a] = 1;
    st = dt_full(like->mesh, place, dtype, like->n_axes, shape, value, &x);
    return st == DT_OK ? dt_tape_own(t, x) : dti_tape_latch(t, st);
}

BACKWARD(where)
{
    dt_tensor *mask = dt_node_in(n, 0), *zero = constant(t, dy[0], dy[0]->local.dtype, 0.0);

    if (dt_node_wants(n, 1)) dx[1] = dti_sum_to_operand(t, n, 1, dt_where(t, mask, dy[0], zero));
    if (dt_node_wants(n, 2)) dx[2] = dti_sum_to_operand(t, n, 2, dt_where(t, mask, zero, dy[0]));
}

BACKWARD(neg)
{
    (void)n;
    dx[0] = dt_neg(t, dy[0]);
}

/* In the dtype in which it comes: whoever reads it casts. */
BACKWARD(cast)
{
    (void)t;
    (void)n;
    dx[0] = dy[0];
}

BACKWARD(add_scalar)
{
    (void)t;
    (void)n;
    dx[0] = dy[0];
}

BACKWARD(mul_scalar)
{
    dx[0] = dt_mul_scalar(t, dy[0], ((const dti_scalar_attr *)dt_node_attr(n))->value);
}

/* --- reductions and products ------------------------------------------------------------------ */

BACKWARD(sum)
{
    const int axis = ((const dti_reduce_attr *)dt_node_attr(n))->axis;
    const dt_op_shape x = dt_node_in_shape(n, 0);
    int64_t shape[DT_MAX_AXES];

    for (int a = 0; a < x.n_axes; a++) shape[a] = axis < 0 || a == axis ? 1 : x.extent[a];
    dx[0] = dti_spread_to_operand(t, n, 0, dt_reshape(t, dy[0], x.n_axes, shape));
}

/* Of max and min: to what is as large as the result; several share it evenly. Terms of a maximum
 * are reduced, to know it. */
BACKWARD(extreme)
{
    const int axis = ((const dti_reduce_attr *)dt_node_attr(n))->axis;
    dt_tensor *x = dti_compose_reduced(t, n->name, dt_node_in(n, 0));
    dt_tensor *y = dti_compose_reduced(t, n->name, dt_node_out(n, 0)), *mask, *count, *each;
    int64_t shape[DT_MAX_AXES];

    if (x == NULL || y == NULL) return;
    for (int a = 0; a < x->n_axes; a++) shape[a] = axis < 0 || a == axis ? 1 : x->shape[a];
    y = dt_reshape(t, dt_cast(t, y, x->local.dtype), x->n_axes, shape);
    mask = dt_compare(t, x, DT_EQUAL, y);
    count = dt_where(t, mask, constant(t, x, DT_F32, 1.0), constant(t, x, DT_F32, 0.0));
    count = dti_compose_reduced(t, n->name, dt_sum(t, count, axis < 0 ? DT_ALL_AXES : axis));
    each = dt_reshape(t, dt_div(t, dt_cast(t, dy[0], DT_F32), count), x->n_axes, shape);
    dx[0] = dt_where(t, mask, each, constant(t, x, DT_F32, 0.0));
}

BACKWARD(cumsum)
{
    dx[0] = dt_cumsum_backward(t, dy[0], (int)((const dti_axis_attr *)dt_node_attr(n))->axis);
}

BACKWARD(index_select)
{
    const int axis = (int)((const dti_axis_attr *)dt_node_attr(n))->axis;

    dx[0] = dt_index_select_backward(t, dy[0], axis, dt_node_in(n, 1),
                                     dt_node_in_shape(n, 0).extent[axis]);
}

/* y = a b, where either may lie transposed: its gradient then lies so too. */
BACKWARD(matmul)
{
    const dti_matmul_attr *attr = dt_node_attr(n);
    const bool ta = attr->transposed_a != 0, tb = attr->transposed_b != 0;
    dt_tensor *a = dt_node_in(n, 0), *b = dt_node_in(n, 1);

    if (dt_node_wants(n, 0))
        dx[0] = ta ? dt_matmul(t, b, tb, dy[0], true) : dt_matmul(t, dy[0], false, b, !tb);
    if (dt_node_wants(n, 1))
        dx[1] = tb ? dt_matmul(t, dy[0], true, a, ta) : dt_matmul(t, a, !ta, dy[0], false);
}

BACKWARD(linear)
{
    dt_linear_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), dti_wanted(n, 0, dx),
                       dti_wanted(n, 1, dx), NULL);
}

BACKWARD(linear_bias)
{
    dt_linear_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), dti_wanted(n, 0, dx),
                       dti_wanted(n, 1, dx), dti_wanted(n, 2, dx));
}

BACKWARD(add_bias)
{
    dx[0] = dy[0];
    if (dt_node_wants(n, 1)) dx[1] = dt_add_bias_backward(t, dy[0]);
}
