/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward by name: each packs its attributes and applies its rows. */
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <string.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/compose.h"
#include "dtensor/ops/op_rules.h"

/* dy in the dtype of what it is multiplied with. */
static dt_tensor *narrowed(dt_tape *t, dt_tensor *dy, const dt_tensor *like)
{
    const bool wide = dy != NULL && like != NULL && dy->local.dtype == DT_F32;

    return wide && dy->layout->partial_dims == 0 ? dt_cast(t, dy, like->local.dtype) : dy;
}

void dt_linear_backward(dt_tape *t, dt_tensor *dy, dt_tensor *x, dt_tensor *w, dt_tensor **dx,
                        dt_tensor **dw, dt_tensor **db)
{
    dt_tensor *narrow = narrowed(t, dy, w != NULL ? w : x);
    const dti_dtype_attr attr = { narrow != NULL ? narrow->local.dtype : DT_F32 };

    if (dx != NULL)
        *dx = dt_apply(t, &dti_op_linear_backward_x, &attr, 2, (dt_tensor *[]){ narrow, w });
    if (dw != NULL)
        *dw = dt_apply(t, &dti_op_linear_backward_w, NULL, 2, (dt_tensor *[]){ narrow, x });
    if (db != NULL) *db = dt_add_bias_backward(t, dy);
}

dt_tensor *dt_add_bias_backward(dt_tape *t, dt_tensor *dy)
{
    return dt_apply(t, &dti_op_add_bias_backward, NULL, 1, &dy);
}

/* --- norms ------------------------------------------------------------------------------------ */

/* A row of dy and two more operands; hands on the results that are wanted, NULL after an error. */
static void apply_wanted(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *const *in,
                         int n_out, dt_tensor **const *wanted)
{
    dt_tensor *out[DT_OP_MAX_OUT] = { NULL };

    dt_apply_n(t, op, attr, 3, (dt_tensor *[]){ narrowed(t, in[0], in[1]), in[1], in[2] }, n_out,
               out);
    for (int r = 0; r < n_out; r++)
        if (wanted[r] != NULL) *wanted[r] = out[r];
}

static void norm(dt_tape *t, const dt_op *op, float eps, dt_tensor *const *in, int n_out,
                 dt_tensor **const *wanted)
{
    dti_norm_backward_attr attr = { eps, 0 };

    for (int r = 0; r < n_out; r++) attr.want |= (uint32_t)(wanted[r] != NULL) << r;
    if (attr.want != 0) apply_wanted(t, op, &attr, in, n_out, wanted);
}

void dt_rms_norm_backward(dt_tape *t, dt_tensor *dy, dt_tensor *x, dt_tensor *w, float eps,
                          dt_tensor **dx, dt_tensor **dw)
{
    norm(t, &dti_op_rms_norm_backward, eps, (dt_tensor *[]){ dy, x, w }, 2,
         (dt_tensor * *[]){ dx, dw });
}

void dt_rms_norm_1p_backward(dt_tape *t, dt_tensor *dy, dt_tensor *x, dt_tensor *w, float eps,
                             dt_tensor **dx, dt_tensor **dw)
{
    norm(t, &dti_op_rms_norm_1p_backward, eps, (dt_tensor *[]){ dy, x, w }, 2,
         (dt_tensor * *[]){ dx, dw });
}

void dt_layer_norm_backward(dt_tape *t, dt_tensor *dy, dt_tensor *x, dt_tensor *w, float eps,
                            const dt_layer_norm_grads *out)
{
    if (out == NULL)
        (void)dt_tape_fail(t, DT_ERR_ARG, "dt_layer_norm_backward: out is NULL");
    else
        norm(t, &dti_op_layer_norm_backward, eps, (dt_tensor *[]){ dy, x, w }, 3,
             (dt_tensor * *[]){ out->dx, out->dw, out->db });
}

/* --- elements --------------------------------------------------------------------------------- */

dt_tensor *dt_curve_backward(dt_tape *t, const dt_op *row, dt_tensor *dy, dt_tensor *x)
{
#define F(name, formula, slope) { &dti_op_##name, &dti_op_##name##_backward },
    static const struct {
        const dt_op *row, *backward;
    } curves[] = { DTI_CURVES(F) };
#undef F

    for (size_t i = 0; i < DT_COUNT(curves); i++)
        if (curves[i].row == row)
            return dt_apply(t, curves[i].backward, NULL, 2,
                            (dt_tensor *[]){ narrowed(t, dy, x), x });
    return dt_tape_fail(t, DT_ERR_ARG, "dt_curve_backward: %s is no function of one element",
                        row != NULL ? row->name : "NULL");
}

void dt_silu_mul_backward(dt_tape *t, dt_tensor *dy, dt_tensor *gate, dt_tensor *up,
                          dt_tensor **dgate, dt_tensor **dup)
{
    apply_wanted(t, &dti_op_silu_mul_backward, NULL, (dt_tensor *[]){ dy, gate, up }, 2,
                 (dt_tensor * *[]){ dgate, dup });
}

void dt_gelu_tanh_mul_backward(dt_tape *t, dt_tensor *dy, dt_tensor *gate, dt_tensor *up,
                               dt_tensor **dgate, dt_tensor **dup)
{
    apply_wanted(t, &dti_op_gelu_tanh_mul_backward, NULL, (dt_tensor *[]){ dy, gate, up }, 2,
                 (dt_tensor * *[]){ dgate, dup });
}

dt_tensor *dt_embedding_backward(dt_tape *t, dt_tensor *dy, dt_tensor *ids, dt_tensor *table)
{
    return dt_apply(t, &dti_op_embedding_backward, &(dti_embedding_attr){ -1 }, 3,
                    (dt_tensor *[]){ dy, ids, table });
}

dt_tensor *dt_accumulate(dt_tape *t, dt_tensor *x, dt_tensor *sum)
{
    return dt_apply(t, &dti_op_accumulate, NULL, 2, (dt_tensor *[]){ x, sum });
}

dt_tensor *dt_soft_cap_backward(dt_tape *t, dt_tensor *dy, dt_tensor *y, double cap)
{
    if (!(cap > 0.0))
        return dt_tape_fail(t, DT_ERR_ARG, "dt_soft_cap_backward: the cap is %g", cap);
    return dt_apply(t, &dti_op_soft_cap_backward, &(dti_scalar_attr){ cap }, 2,
                    (dt_tensor *[]){ narrowed(t, dy, y), y });
}

/* --- along an axis ---------------------------------------------------------------------------- */

/* Over an axis that ranks share: the sum for each line is reduced, in f32 between two roundings. */
static dt_tensor *cut_line(dt_tape *t, dt_tensor *dy, dt_tensor *y, int axis, bool logarithm)
{
    const char *why = logarithm ? "log_softmax" : "softmax";
    const dt_dtype dtype = y->local.dtype;
    dt_tensor *sum;

    dy = dt_cast(t, dy, DT_F32);
    y = dt_cast(t, y, DT_F32);
    sum = dt_sum(t, logarithm ? dy : dt_mul(t, dy, y), axis);
    sum = dti_compose_insert(t, dti_compose_reduced(t, why, sum), axis);
    return dt_cast(t,
                   logarithm ? dt_sub(t, dy, dt_mul(t, dt_exp(t, y), sum))
                             : dt_mul(t, y, dt_sub(t, dy, sum)),
                   dtype);
}

static dt_tensor *line(dt_tape *t, const dt_op *op, dt_tensor *dy, dt_tensor *y, int axis)
{
    dt_tensor *const in[] = { narrowed(t, dy, y), y };

    if (dti_tape_is_down(t) || dy == NULL || y == NULL)
        return dt_apply(t, op, &(dti_axis_attr){ 0 }, 2, in);
    if ((axis = dti_compose_axis(t, op->name, y, axis)) < 0) return NULL;
    if (dti_compose_is_cut(y, axis))
        return cut_line(t, dy, y, axis, op == &dti_op_log_softmax_backward);
    return dt_apply(t, op, &(dti_axis_attr){ axis }, 2, in);
}

dt_tensor *dt_softmax_backward(dt_tape *t, dt_tensor *dy, dt_tensor *y, int axis)
{
    return line(t, &dti_op_softmax_backward, dy, y, axis);
}

dt_tensor *dt_log_softmax_backward(dt_tape *t, dt_tensor *dy, dt_tensor *y, int axis)
{
    return line(t, &dti_op_log_softmax_backward, dy, y, axis);
}

dt_tensor *dt_cumsum_backward(dt_tape *t, dt_tensor *dy, int axis)
{
    dti_axis_attr attr = { 0 };

    if (!dti_tape_is_down(t) && dy != NULL) {
        axis = dti_compose_axis(t, "dt_cumsum_backward", dy, axis);
        if (axis < 0) return NULL;
        attr.axis = axis;
    }
    return dt_apply(t, &dti_op_cumsum_backward, &attr, 1, &dy);
}

dt_tensor *dt_index_select_backward(dt_tape *t, dt_tensor *dy, int axis, dt_tensor *ids,
                                    int64_t extent)
{
    dti_select_backward_attr attr = { 0, extent };

    if (!dti_tape_is_down(t) && dy != NULL) {
        axis = dti_compose_axis(t, "dt_index_select_backward", dy, axis);
        if (axis < 0) return NULL;
        attr.axis = axis;
    }
    return dt_apply(t, &dti_op_index_select_backward, &attr, 2, (dt_tensor *[]){ dy, ids });
}

/* --- mixtures of experts ---------------------------------------------------------------------- */

dt_tensor *dt_route_weights_backward(dt_tape *t, dt_tensor *dy, dt_tensor *logits, dt_tensor *ids,
                                     const dt_routing *routing)
{
    const dti_route_attr attr = { .normalise = routing->normalise,
                                  .scores = (int32_t)routing->scores,
                                  .scale = (float)routing->scale };

    return dt_apply(t, &dti_op_route_weights_backward, &attr, 3,
                    (dt_tensor *[]){ narrowed(t, dy, logits), logits, ids });
}

/* Of experts that are clamped, or, clamp NULL, of others. */
static void experts_backward(dt_tape *t, dt_tensor *dy, const dt_experts_kept *kept,
                             const dt_clamp *clamp, const dt_experts_gradients *out)
{
    dt_tensor **const wanted[] = { out->dx,    out->dweights,      out->dgate_up,
                                   out->ddown, out->dgate_up_bias, out->ddown_bias };
    const int all = clamp != NULL ? 6 : 4;
    dti_experts_clamped_backward_attr attr = { .want = 0 }; /* which begins as the others' */
    dt_tensor *y[6] = { NULL };
    const dt_op *op = clamp != NULL ? &dti_op_experts_clamped_backward : &dti_op_experts_backward;
    bool params = false;

    for (int r = 0; r < all; r++) {
        attr.want |= (int64_t)(wanted[r] != NULL) << r;
        params = params || (r >= 2 && wanted[r] != NULL);
    }
    if (attr.want == 0) return;
    if (!params)
        op = clamp != NULL ? &dti_op_experts_clamped_backward_x : &dti_op_experts_backward_x;
    if (kept->gate_up != NULL) attr.n_experts = kept->gate_up->shape[0];
    if (clamp != NULL) {
        attr.limit = clamp->limit;
        attr.alpha = clamp->alpha;
    }
    dt_apply_n(t, op, &attr, clamp != NULL ? 8 : 6,
               (dt_tensor *[]){ narrowed(t, dy, kept->x), kept->x, kept->ids, kept->weights,
                                kept->gate_up, kept->down,
                                clamp != NULL ? clamp->gate_up_bias : NULL,
                                clamp != NULL ? clamp->down_bias : NULL },
               params ? all : 2, y);
    for (int r = 0; r < all; r++)
        if (wanted[r] != NULL) *wanted[r] = y[r];
}

void dt_experts_backward(dt_tape *t, dt_tensor *dy, const dt_experts_kept *kept,
                         const dt_experts_gradients *out)
{
    if (kept == NULL || out == NULL)
        (void)dt_tape_fail(t, DT_ERR_ARG, "dt_experts_backward: kept or out is NULL");
    else
        experts_backward(t, dy, kept, NULL, out);
}

void dt_experts_clamped_backward(dt_tape *t, dt_tensor *dy, const dt_experts_kept *kept,
                                 const dt_clamp *clamp, const dt_experts_gradients *out)
{
    if (kept == NULL || out == NULL || clamp == NULL || !(clamp->limit > 0))
        (void)dt_tape_fail(t, DT_ERR_ARG,
                           "dt_experts_clamped_backward: kept, clamp or out is NULL, or its limit "
                           "is %g",
                           clamp != NULL ? (double)clamp->limit : 0.0);
    else
        experts_backward(t, dy, kept, clamp, out);
}

/* --- positions and attention ------------------------------------------------------------------ */

dt_tensor *dt_rope_backward(dt_tape *t, dt_tensor *dy, dt_tensor *table)
{
    return dt_apply(t, &dti_op_rope_backward, NULL, 2, (dt_tensor *[]){ dy, table });
}

static dti_attention_train_attr train_attr(const dt_attention_options *o)
{
    dti_attention_train_attr attr;

    memset(&attr, 0, sizeof attr);
    attr.of = dti_attention_attr_of(o);
    attr.seed = o->key.seed;
    attr.stream = o->key.stream;
    attr.dropout = o->dropout;
    return attr;
}

static bool may_drop(dt_tape *t, const char *what, const dt_attention_options *o)
{
    if (o != NULL && o->dropout >= 0.0 && o->dropout <= 1.0) return true;
    if (o == NULL)
        (void)dt_tape_fail(t, DT_ERR_ARG, "%s: options is NULL", what);
    else
        (void)dt_tape_fail(t, DT_ERR_ARG, "%s: dropout is %g", what, o->dropout);
    return false;
}

dt_tensor *dt_attention_lse(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                            dt_tensor *positions, const dt_attention_options *o, dt_tensor **lse)
{
    static const dt_op *const rows[] = { &dti_op_attention_lse,
                                         &dti_op_attention_lse_bias,
                                         &dti_op_attention_lse_sinks,
                                         &dti_op_attention_lse_bias_sinks,
                                         &dti_op_attention_lse_segments,
                                         &dti_op_attention_lse_bias_segments,
                                         &dti_op_attention_lse_sinks_segments,
                                         &dti_op_attention_lse_bias_sinks_segments };
    dt_tensor *in[DT_OP_MAX_IN] = { q, k, v, positions }, *out[2] = { NULL, NULL };
    dti_attention_train_attr attr;
    int n = 4;

    if (lse != NULL) *lse = NULL;
    if (!may_drop(t, "dt_attention", o)) return NULL;
    attr = train_attr(o);
    if (o->bias != NULL) in[n++] = o->bias;
    if (o->sinks != NULL) in[n++] = o->sinks;
    if (o->segments != NULL) in[n++] = o->segments;
    dt_apply_n(t, rows[(o->bias != NULL) + 2 * (o->sinks != NULL) + 4 * (o->segments != NULL)],
               &attr, n, in, 2, out);
    if (lse != NULL) *lse = out[1];
    return out[0];
}

void dt_attention_backward(dt_tape *t, dt_tensor *dy, const dt_attention_kept *kept,
                           const dt_attention_options *o, dt_attention_gradients *out)
{
    static const dt_op *const rows[] = { &dti_op_attention_backward,
                                         &dti_op_attention_backward_bias,
                                         &dti_op_attention_backward_segments,
                                         &dti_op_attention_backward_bias_segments };
    dt_tensor *y[4] = { NULL }, *stats, *in[DT_OP_MAX_IN];
    dti_attention_train_attr attr;
    int n = 6;

    if (out != NULL) *out = (dt_attention_gradients){ NULL };
    if (kept == NULL || out == NULL) {
        (void)dt_tape_fail(t, DT_ERR_ARG, "dt_attention_backward: kept or out is NULL");
        return;
    }
    if (!may_drop(t, "dt_attention_backward", o)) return;
    attr = train_attr(o);
    stats =
        dt_apply(t, &dti_op_attention_stats, NULL, 3, (dt_tensor *[]){ dy, kept->y, kept->lse });
    memcpy(in, (dt_tensor *[]){ dy, kept->q, kept->k, kept->v, stats, kept->positions },
           6 * sizeof *in);
    if (o->bias != NULL) in[n++] = o->bias;
    if (o->segments != NULL) in[n++] = o->segments;
    dt_apply_n(t, rows[(o->bias != NULL) + 2 * (o->segments != NULL)], &attr, n, in,
               o->bias != NULL ? 4 : 3, y);
    *out = (dt_attention_gradients){ .q = y[0], .k = y[1], .v = y[2], .bias = y[3] };
    if (o->sinks != NULL)
        out->sinks = dt_apply(t, &dti_op_attention_backward_sinks, NULL, 2,
                              (dt_tensor *[]){ stats, o->sinks });
}
