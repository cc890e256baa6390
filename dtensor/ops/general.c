/* SPDX-License-Identifier: Apache-2.0
 *
 * The general operators by name: each packs its attributes and applies its row or, where one is a
 * composition, its rows. */
#include <dtensor/gradients.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/compose.h"
#include "dtensor/ops/op_rules.h"

/* There is no x to look at: dt_apply() says why, or stays silent after an earlier error. */
static bool is_down(dt_tape *t, const dt_tensor *x)
{
    return dti_tape_is_down(t) || x == NULL;
}

static dt_tensor *unary(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x)
{
    return dt_apply(t, op, attr, 1, (dt_tensor *[]){ x });
}

int dti_compose_axis(dt_tape *t, const char *op, const dt_tensor *x, int axis)
{
    if (axis >= -x->n_axes && axis < x->n_axes) return axis < 0 ? axis + x->n_axes : axis;
    (void)dt_tape_fail(t, DT_ERR_ARG, "%s: axis %d of a tensor of %d axes", op, axis, x->n_axes);
    return -1;
}

bool dti_compose_is_cut(const dt_tensor *x, int axis)
{
    return dti_layout_cuts(x->layout, axis, (int[DT_MAX_DIMS]){ 0 }) > 0;
}

/* --- views ------------------------------------------------------------------------------------ */

static dt_tensor *view(dt_tape *t, dt_tensor *x, dti_view_step step, int axis, int64_t outer,
                       int64_t inner)
{
    return unary(t, &dti_op_reshape, &(dti_view_attr){ (int32_t)step, axis, outer, inner }, x);
}

/* Axes of x and axes wanted that hold the same elements. Axes of one element that only one side has
 * are inserted and dropped on their own, so that they never stand in the way of a cut. */
static dt_tensor *reshape_group(dt_tape *t, dt_tensor *x, int *axis, const int64_t **want,
                                const int64_t *end)
{
    int64_t have = x->shape[*axis], wanted = **want;
    const int64_t *first = *want;

    while (have != wanted && x != NULL) {
        if (have < wanted) {
            const int64_t inner = x->shape[*axis + 1];
            x = view(t, x, DTI_VIEW_MERGE, *axis, have, inner);
            have *= inner;
        } else if (*want + 1 < end) {
            wanted *= *++*want;
        }
    }
    ++*want;
    for (; first + 1 < *want && x != NULL; first++, ++*axis) {
        x = view(t, x, DTI_VIEW_SPLIT, *axis, *first, have / *first);
        have /= *first;
    }
    ++*axis;
    return x;
}

static dt_tensor *reshape(dt_tape *t, dt_tensor *x, const int64_t *want, int n)
{
    const int64_t *end = want + n;
    int axis = 0;

    while (x != NULL && (axis < x->n_axes || want < end)) {
        const bool have_one = axis < x->n_axes && x->shape[axis] == 1;
        const bool want_one = want < end && *want == 1;
        if (have_one && want_one) {
            axis++;
            want++;
        } else if (want_one) {
            x = view(t, x, DTI_VIEW_INSERT, axis++, 1, 1);
            want++;
        } else if (have_one) {
            x = view(t, x, DTI_VIEW_DROP, axis, 1, 1);
        } else {
            x = reshape_group(t, x, &axis, &want, end);
        }
    }
    return x;
}

dt_tensor *dt_reshape(dt_tape *t, dt_tensor *x, int n_axes, const int64_t *shape)
{
    int64_t want[DT_MAX_AXES], have = 1, n = 1;
    bool fits = true;
    int open = -1;

    if (is_down(t, x)) return unary(t, &dti_op_reshape, NULL, x);
    if (n_axes < 0 || n_axes > DT_MAX_AXES || (shape == NULL && n_axes > 0))
        return dt_tape_fail(t, DT_ERR_ARG, "dt_reshape: %d axes", n_axes);
    for (int a = 0; a < x->n_axes; a++) have *= x->shape[a];
    for (int a = 0; a < n_axes; a++) {
        want[a] = shape[a];
        if (shape[a] == -1 && open < 0)
            open = a;
        else if (shape[a] < 1)
            return dt_tape_fail(t, DT_ERR_SHAPE, "dt_reshape: axis %d of %lld elements", a,
                                (long long)shape[a]);
        else
            fits = fits && dti_mul_i64(n, shape[a], &n);
    }
    if (open >= 0) want[open] = have / n;
    if (!fits || have < 1 || (open >= 0 ? have % n : have - n) != 0)
        return dt_tape_fail(t, DT_ERR_SHAPE,
                            "dt_reshape: %lld elements do not fill the shape that is asked for",
                            (long long)have);
    return reshape(t, x, want, n_axes);
}

dt_tensor *dt_permute(dt_tape *t, dt_tensor *x, const int *axes)
{
    dti_permute_attr attr = { { 0 } };

    if (!is_down(t, x) && axes == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_permute: axes is NULL");
    for (int a = 0; x != NULL && a < x->n_axes; a++) {
        const int axis = axes[a] < 0 ? axes[a] + x->n_axes : axes[a];
        attr.axis[a] = (int8_t)(axis < 0 || axis >= x->n_axes ? -1 : axis);
    }
    return unary(t, &dti_op_permute, &attr, x);
}

dt_tensor *dt_transpose(dt_tape *t, dt_tensor *x, int a, int b)
{
    int axes[DT_MAX_AXES];

    if (is_down(t, x)) return unary(t, &dti_op_permute, &(dti_permute_attr){ { 0 } }, x);
    for (int i = 0; i < x->n_axes; i++) axes[i] = i;
    if ((a = dti_compose_axis(t, "dt_transpose", x, a)) < 0 ||
        (b = dti_compose_axis(t, "dt_transpose", x, b)) < 0)
        return NULL;
    axes[a] = b;
    axes[b] = a;
    return dt_permute(t, x, axes);
}

/* --- elements --------------------------------------------------------------------------------- */

/* Operands with as many axes as the one that has most: in front, of one element. */
static dt_tensor *apply_spread(dt_tape *t, const dt_op *op, const void *attr, int n, dt_tensor **in)
{
    int most = 0;

    for (int i = 0; i < n && in[i] != NULL; i++)
        if (in[i]->n_axes > most) most = in[i]->n_axes;
    for (int i = 0; i < n; i++)
        while (in[i] != NULL && in[i]->n_axes < most)
            in[i] = view(t, in[i], DTI_VIEW_INSERT, 0, 1, 1);
    return dt_apply(t, op, attr, n, in);
}

static dt_tensor *binary(dt_tape *t, const dt_op *op, dt_tensor *x, dt_tensor *y)
{
    return apply_spread(t, op, NULL, 2, (dt_tensor *[]){ x, y });
}

dt_tensor *dt_add(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    return binary(t, &dti_op_add, x, y);
}

dt_tensor *dt_sub(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    return binary(t, &dti_op_sub, x, y);
}

dt_tensor *dt_mul(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    return binary(t, &dti_op_mul, x, y);
}

dt_tensor *dt_div(dt_tape *t, dt_tensor *x, dt_tensor *y)
{
    return binary(t, &dti_op_div, x, y);
}

dt_tensor *dt_compare(dt_tape *t, dt_tensor *x, dt_relation relation, dt_tensor *y)
{
    if ((int)relation < DT_LESS || relation > DT_EQUAL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_compare: %d is no relation", (int)relation);
    return apply_spread(t, &dti_op_compare, &(dti_compare_attr){ relation, 0 }, 2,
                        (dt_tensor *[]){ x, y });
}

dt_tensor *dt_where(dt_tape *t, dt_tensor *mask, dt_tensor *x, dt_tensor *y)
{
    return apply_spread(t, &dti_op_where, NULL, 3, (dt_tensor *[]){ mask, x, y });
}

#define UNARY(name)                                \
    dt_tensor *dt_##name(dt_tape *t, dt_tensor *x) \
    {                                              \
        return unary(t, &dti_op_##name, NULL, x);  \
    }
UNARY(neg)
UNARY(exp)
UNARY(log)
UNARY(sqrt)
UNARY(rsqrt)
UNARY(tanh)
UNARY(sigmoid)
UNARY(relu)
UNARY(softplus)
UNARY(gelu)
UNARY(silu)
UNARY(gelu_new)
UNARY(gelu_tanh)
#undef UNARY

/* --- along an axis ---------------------------------------------------------------------------- */

dt_tensor *dti_compose_reduced(dt_tape *t, const char *why, dt_tensor *x)
{
    dt_placement want[DT_MAX_DIMS];
    const char *before;

    if (x == NULL || x->layout->partial_dims == 0) return x;
    for (int m = 0; m < x->layout->n_dims; m++)
        want[m] = dti_placement_reduced(&x->layout->place[m]);
    before = dt_tape_because(t, why);
    x = dt_move(t, x, want);
    (void)dt_tape_because(t, before);
    return x;
}

dt_tensor *dti_compose_insert(dt_tape *t, dt_tensor *x, int axis)
{
    return x != NULL ? view(t, x, DTI_VIEW_INSERT, axis, 1, 1) : NULL;
}

/* Over an axis that ranks share: the largest, then the sum of all e^(x - largest), each a value
 * for every line that is reduced over the ranks, in f32 between the two roundings of x and y. */
static dt_tensor *cut_softmax(dt_tape *t, dt_tensor *x, int axis, bool logarithm)
{
    const char *why = logarithm ? "log_softmax" : "softmax";
    const dt_dtype dtype = x->local.dtype;
    dt_tensor *d, *e, *most, *sum;

    x = dt_cast(t, x, DT_F32);
    dt_tape_pause(t); /* whatever is subtracted, y stays: nothing flows back through it */
    most = dti_compose_reduced(t, why, dt_max(t, x, axis));
    dt_tape_resume(t);
    d = dt_sub(t, x, dti_compose_insert(t, most, axis));
    e = dt_exp(t, d);
    sum = dti_compose_insert(t, dti_compose_reduced(t, why, dt_sum(t, e, axis)), axis);
    return dt_cast(t, logarithm ? dt_sub(t, d, dt_log(t, sum)) : dt_div(t, e, sum), dtype);
}

static dt_tensor *along(dt_tape *t, const dt_op *op, dt_tensor *x, int axis)
{
    if (is_down(t, x)) return unary(t, op, &(dti_axis_attr){ 0 }, x);
    if ((axis = dti_compose_axis(t, op->name, x, axis)) < 0) return NULL;
    if (op != &dti_op_cumsum && dti_compose_is_cut(x, axis))
        return cut_softmax(t, x, axis, op == &dti_op_log_softmax);
    return unary(t, op, &(dti_axis_attr){ axis }, x);
}

dt_tensor *dt_softmax(dt_tape *t, dt_tensor *x, int axis)
{
    return along(t, &dti_op_softmax, x, axis);
}

dt_tensor *dt_log_softmax(dt_tape *t, dt_tensor *x, int axis)
{
    return along(t, &dti_op_log_softmax, x, axis);
}

dt_tensor *dt_cumsum(dt_tape *t, dt_tensor *x, int axis)
{
    return along(t, &dti_op_cumsum, x, axis);
}

dt_tensor *dt_index_select(dt_tape *t, dt_tensor *x, int axis, dt_tensor *ids)
{
    if (is_down(t, x)) axis = 0;
    if (!is_down(t, x) && (axis = dti_compose_axis(t, "dt_index_select", x, axis)) < 0) return NULL;
    return dt_apply(t, &dti_op_index_select, &(dti_axis_attr){ axis }, 2,
                    (dt_tensor *[]){ x, ids });
}

dt_tensor *dt_pad(dt_tape *t, dt_tensor *x, int axis, int64_t before, int64_t after, double value)
{
    dti_pad_attr attr = { .before = before, .after = after };

    if (is_down(t, x)) return unary(t, &dti_op_pad, &attr, x);
    if ((attr.axis = dti_compose_axis(t, "dt_pad", x, axis)) < 0) return NULL;
    if (value != 0.0) dti_convert(&attr.bits, x->local.dtype, &value, DT_F64, 1);
    if (dti_compose_is_cut(x, attr.axis)) attr.extent = x->shape[attr.axis];
    return unary(t, &dti_op_pad, &attr, x);
}

/* Two to six operands. */
static dt_tensor *concat_few(dt_tape *t, int n, dt_tensor *const *in, int axis)
{
    static const dt_op *const rows[] = { &dti_op_concat_2, &dti_op_concat_3, &dti_op_concat_4,
                                         &dti_op_concat_5, &dti_op_concat_6 };
    dti_concat_attr attr = { .axis = axis };
    bool cut = false;

    for (int i = 0; i < n && in[i] != NULL; i++)
        cut = cut || (axis < in[i]->n_axes && dti_compose_is_cut(in[i], axis));
    for (int i = 0; i < n && cut && in[i] != NULL; i++) {
        const int64_t extent = axis < in[i]->n_axes ? in[i]->shape[axis] : 0;
        if (extent > INT32_MAX)
            return dt_tape_fail(t, DT_ERR_UNSUPPORTED, "dt_concat: %lld rows of a cut axis",
                                (long long)extent);
        attr.extent[i] = (int32_t)extent;
    }
    return dt_apply(t, rows[n - 2], &attr, n, in);
}

dt_tensor *dt_concat(dt_tape *t, int n, dt_tensor *const *in, int axis)
{
    dt_tensor *operands[DTI_CONCAT_MAX];

    if (dti_tape_is_down(t)) return NULL;
    if (n < 1 || in == NULL || in[0] == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_concat: %d operands, or the first is NULL", n);
    if ((axis = dti_compose_axis(t, "dt_concat", in[0], axis)) < 0) return NULL;
    operands[0] = in[0];
    for (int i = 1; i < n && operands[0] != NULL;) {
        int count = 1;
        while (count < DTI_CONCAT_MAX && i < n) operands[count++] = in[i++];
        operands[0] = concat_few(t, count, operands, axis);
    }
    return operands[0];
}

dt_tensor *dt_dropout(dt_tape *t, dt_tensor *x, double p, dt_random key)
{
    dti_dropout_attr attr = { .seed = key.seed, .stream = key.stream, .p = p };

    if (!(p >= 0.0 && p <= 1.0)) return dt_tape_fail(t, DT_ERR_ARG, "dt_dropout: p is %g", p);
    if (x != NULL) memcpy(attr.shape, x->shape, sizeof attr.shape);
    return p == 0.0 ? x : unary(t, &dti_op_dropout, &attr, x);
}

dt_tensor *dt_matmul(dt_tape *t, dt_tensor *a, bool transposed_a, dt_tensor *b, bool transposed_b)
{
    static const dt_op *const rows[] = { &dti_op_matmul, &dti_op_matmul_nt, &dti_op_matmul_tn,
                                         &dti_op_matmul_tt };
    const dti_matmul_attr attr = { a != NULL ? a->local.dtype : DT_F32, transposed_a, transposed_b,
                                   0 };

    return dt_apply(t, rows[2 * transposed_a + transposed_b], &attr, 2, (dt_tensor *[]){ a, b });
}
