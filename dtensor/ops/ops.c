/* SPDX-License-Identifier: Apache-2.0
 *
 * The operators by name: each packs its attributes and applies its row. */
#include <string.h>

#include <dtensor/gradients.h>
#include <dtensor/ops_backward.h>

#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"

static dt_tensor *unary(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x)
{
    return dt_apply(t, op, attr, 1, (dt_tensor *[]){ x });
}

static dt_tensor *binary(dt_tape *t, const dt_op *op, const void *attr, dt_tensor *x, dt_tensor *y)
{
    return dt_apply(t, op, attr, 2, (dt_tensor *[]){ x, y });
}

dt_tensor *dt_gelu_tanh_mul(dt_tape *t, dt_tensor *gate, dt_tensor *up)
{
    return binary(t, &dti_op_gelu_tanh_mul, NULL, gate, up);
}

dt_tensor *dt_soft_cap(dt_tape *t, dt_tensor *x, double cap)
{
    if (!(cap > 0.0)) return dt_tape_fail(t, DT_ERR_ARG, "dt_soft_cap: the cap is %g", cap);
    return unary(t, &dti_op_soft_cap, &(dti_scalar_attr){ cap }, x);
}

dt_tensor *dt_silu_mul(dt_tape *t, dt_tensor *gate, dt_tensor *up)
{
    return binary(t, &dti_op_silu_mul, NULL, gate, up);
}

dt_tensor *dt_cast(dt_tape *t, dt_tensor *x, dt_dtype dtype)
{
    if (x != NULL && x->local.dtype == dtype) return x;
    return unary(t, &dti_op_cast, &(dti_dtype_attr){ dtype }, x);
}

dt_tensor *dt_linear(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *bias)
{
    const dti_dtype_attr attr = { x != NULL ? x->local.dtype : DT_F32 };

    if (bias == NULL) return binary(t, &dti_op_linear, &attr, x, w);
    return dt_apply(t, &dti_op_linear_bias, &attr, 3, (dt_tensor *[]){ x, w, bias });
}

/* The attributes follow from extents; of operands that do not fit the row's own rule says so. */
static dt_tensor *packed(dt_tape *t, const dt_op *op, int n, dt_tensor *const *in, dt_tensor *bias)
{
    const dt_tensor *x = in[0], *codes = in[1], *scales = in[2];
    const bool known = x != NULL && codes != NULL && scales != NULL && x->n_axes > 0 &&
                       codes->n_axes == 2 && scales->n_axes == 2 && scales->shape[1] > 0;
    const int64_t n_in = known ? x->shape[x->n_axes - 1] : 1;
    const dti_packed_attr attr = { x == NULL || bias != NULL ? DT_F32 : x->local.dtype,
                                   known && codes->shape[1] < n_in ? 4 : 8,
                                   known ? n_in / scales->shape[1] : 1 };
    dt_tensor *y = dt_apply(t, op, &attr, n, in);

    return bias != NULL ? dt_add_bias(t, y, bias) : y;
}

dt_tensor *dt_linear_packed(dt_tape *t, dt_tensor *x, dt_tensor *codes, dt_tensor *scales,
                            dt_tensor *zeros, dt_tensor *bias)
{
    return packed(t, zeros != NULL ? &dti_op_linear_packed_zeros : &dti_op_linear_packed,
                  zeros != NULL ? 4 : 3, (dt_tensor *[]){ x, codes, scales, zeros }, bias);
}

dt_tensor *dt_linear_e4m3(dt_tape *t, dt_tensor *x, dt_tensor *codes, dt_tensor *scales,
                          dt_tensor *bias)
{
    return packed(t, &dti_op_linear_e4m3, 3, (dt_tensor *[]){ x, codes, scales }, bias);
}

dt_tensor *dt_add_bias(dt_tape *t, dt_tensor *x, dt_tensor *bias)
{
    const bool terms = x != NULL && x->layout->partial_dims != 0; /* are not rounded */
    const dt_tensor *like = terms ? x : bias;
    const dti_dtype_attr attr = { like != NULL ? like->local.dtype : DT_F32 };

    return binary(t, &dti_op_add_bias, &attr, x, bias);
}

dt_tensor *dt_rms_norm(dt_tape *t, dt_tensor *x, dt_tensor *w, float eps)
{
    return binary(t, &dti_op_rms_norm, &(dti_norm_attr){ eps }, x, w);
}

dt_tensor *dt_rms_norm_once(dt_tape *t, dt_tensor *x, dt_tensor *w, float eps)
{
    return binary(t, &dti_op_rms_norm_once, &(dti_norm_attr){ eps }, x, w);
}

dt_tensor *dt_rms_norm_1p(dt_tape *t, dt_tensor *x, dt_tensor *w, float eps)
{
    return binary(t, &dti_op_rms_norm_1p, &(dti_norm_attr){ eps }, x, w);
}

dt_tensor *dt_layer_norm(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *b, float eps)
{
    return dt_apply(t, &dti_op_layer_norm, &(dti_norm_attr){ eps }, 3, (dt_tensor *[]){ x, w, b });
}

dt_tensor *dt_embedding(dt_tape *t, dt_tensor *ids, dt_tensor *table)
{
    return dt_embedding_padded(t, ids, table, -1);
}

dt_tensor *dt_embedding_padded(dt_tape *t, dt_tensor *ids, dt_tensor *table, int64_t padding)
{
    return binary(t, &dti_op_embedding, &(dti_embedding_attr){ padding }, ids, table);
}

dt_tensor *dt_rope_table(dt_tape *t, dt_tensor *positions, dt_tensor *inv_freq, float factor,
                         dt_dtype dtype)
{
    return binary(t, &dti_op_rope_table, &(dti_rope_table_attr){ dtype, factor }, positions,
                  inv_freq);
}

dt_tensor *dt_rope(dt_tape *t, dt_tensor *x, dt_tensor *table)
{
    return binary(t, &dti_op_rope, NULL, x, table);
}

dt_tensor *dt_heads(dt_tape *t, dt_tensor *x, int64_t head_dim)
{
    return unary(t, &dti_op_heads, &(dti_heads_attr){ head_dim }, x);
}

dt_tensor *dt_unheads(dt_tape *t, dt_tensor *x)
{
    const dti_heads_attr attr = { x != NULL && x->n_axes == 4 ? x->shape[3] : 0 };

    return unary(t, &dti_op_unheads, &attr, x);
}

dt_tensor *dt_kv_write(dt_tape *t, dt_tensor *k, dt_tensor *positions, dt_tensor *cache)
{
    return dt_apply(t, &dti_op_kv_write, NULL, 3, (dt_tensor *[]){ k, positions, cache });
}

dti_attention_attr dti_attention_attr_of(const dt_attention_options *o)
{
    dti_attention_attr attr;

    memset(&attr, 0, sizeof attr); /* its padding is part of the cache key */
    attr.n_heads = o->n_heads;
    attr.n_kv_heads = o->n_kv_heads;
    attr.window = o->window;
    attr.scale = o->scale;
    attr.soft_cap = o->soft_cap;
    attr.flags = o->both_ways ? DTI_ATTENTION_BOTH_WAYS : 0;
    if (o->bias != NULL) attr.flags |= DTI_ATTENTION_BIAS;
    for (int a = 0; a < 3 && o->bias != NULL && o->bias->n_axes == 4; a++)
        if (o->bias->shape[a] == 1) attr.flags |= (uint32_t)DTI_ATTENTION_ONE_BATCH << a;
    if (o->sinks != NULL) attr.flags |= DTI_ATTENTION_SINKS;
    if (o->segments != NULL) attr.flags |= DTI_ATTENTION_SEGMENTS;
    return attr;
}

dt_tensor *dt_attention(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v, dt_tensor *positions,
                        const dt_attention_options *o)
{
    static const dt_op *const rows[] = { &dti_op_attention, &dti_op_attention_bias,
                                         &dti_op_attention_sinks, &dti_op_attention_bias_sinks };
    dt_tensor *in[DT_OP_MAX_IN] = { q, k, v, positions };
    dti_attention_attr attr;
    int n = 4;

    if (o == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_attention: options is NULL");
    if (o->segments != NULL || o->dropout != 0.0 || dt_tape_records(t))
        return dt_attention_lse(t, q, k, v, positions, o, NULL);
    attr = dti_attention_attr_of(o);
    if (o->bias != NULL) in[n++] = o->bias;
    if (o->sinks != NULL) in[n++] = o->sinks;
    return dt_apply(t, rows[attr.flags & (DTI_ATTENTION_BIAS | DTI_ATTENTION_SINKS)], &attr, n, in);
}

dt_tensor *dt_route_ids(dt_tape *t, dt_tensor *logits, int64_t k)
{
    return unary(t, &dti_op_route_ids, &(dti_route_attr){ .k = k }, logits);
}

dt_tensor *dt_route_weights(dt_tape *t, dt_tensor *logits, dt_tensor *ids, bool normalise)
{
    return binary(t, &dti_op_route_weights, &(dti_route_attr){ .normalise = normalise }, logits,
                  ids);
}

void dt_route_tokens(dt_tape *t, dt_tensor *logits, const dt_routing *r, dt_tensor **ids,
                     dt_tensor **weights)
{
    const dti_route_attr choice = { .k = r->n_chosen,
                                    .scores = (int32_t)r->scores,
                                    .n_groups = (int32_t)r->n_groups,
                                    .n_chosen_groups = (int32_t)r->n_chosen_groups };
    const dti_route_attr weight = { .normalise = r->normalise,
                                    .scores = (int32_t)r->scores,
                                    .scale = (float)r->scale };

    *ids = dt_apply(t, r->bias != NULL ? &dti_op_route_ids_bias : &dti_op_route_ids, &choice,
                    r->bias != NULL ? 2 : 1, (dt_tensor *[]){ logits, r->bias });
    *weights = binary(t, &dti_op_route_weights, &weight, logits, *ids);
}

dt_tensor *dt_experts(dt_tape *t, dt_tensor *x, dt_tensor *ids, dt_tensor *weights,
                      dt_tensor *gate_up, dt_tensor *down)
{
    const dti_experts_attr attr = { gate_up != NULL ? gate_up->shape[0] : 0 };

    return dt_apply(t, &dti_op_experts, &attr, 5,
                    (dt_tensor *[]){ x, ids, weights, gate_up, down });
}

dt_tensor *dt_experts_clamped(dt_tape *t, dt_tensor *x, dt_tensor *ids, dt_tensor *weights,
                              dt_tensor *gate_up, dt_tensor *down, const dt_clamp *clamp)
{
    dti_experts_clamped_attr attr = { gate_up != NULL ? gate_up->shape[0] : 0, 0, 0 };

    if (clamp == NULL || !(clamp->limit > 0))
        return dt_tape_fail(t, DT_ERR_ARG, "dt_experts_clamped: clamp is NULL, or its limit %g",
                            clamp != NULL ? (double)clamp->limit : 0.0);
    attr.limit = clamp->limit;
    attr.alpha = clamp->alpha;
    return dt_apply(
        t, &dti_op_experts_clamped, &attr, 7,
        (dt_tensor *[]){ x, ids, weights, gate_up, down, clamp->gate_up_bias, clamp->down_bias });
}

/* Bits and group follow from extents, as those of a linear layer do. */
static void experts_form(const dt_packed_weight *w, int64_t n_in, int32_t *bits, int64_t *group)
{
    const bool known = w->codes != NULL && w->scales != NULL && w->codes->n_axes == 3 &&
                       w->scales->n_axes == 3 && w->scales->shape[2] > 0;

    *bits = known && w->codes->shape[2] < n_in ? 4 : 8;
    *group = known ? n_in / w->scales->shape[2] : 1;
}

dt_tensor *dt_experts_packed(dt_tape *t, dt_tensor *x, dt_tensor *ids, dt_tensor *weights,
                             const dt_packed_weight *gate_up, const dt_packed_weight *down)
{
    dt_tensor *in[DT_OP_MAX_IN] = { x, ids, weights };
    dti_experts_packed_attr attr = { 0 };
    int n = 3;
    bool known;

    if (gate_up == NULL || down == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_experts_packed: gate_up or down is NULL");
    if (gate_up->floats != down->floats || (gate_up->zeros != NULL) != (down->zeros != NULL))
        return dt_tape_fail(t, DT_ERR_ARG,
                            "dt_experts_packed: of gate, up and down all or none are floats, and "
                            "have zero points");
    known = x != NULL && x->n_axes > 0 && gate_up->codes != NULL && gate_up->codes->n_axes == 3;
    if (known) attr.n_experts = gate_up->codes->shape[0];
    experts_form(gate_up, known ? x->shape[x->n_axes - 1] : 1, &attr.bits[0], &attr.group[0]);
    experts_form(down, known ? gate_up->codes->shape[1] / 2 : 1, &attr.bits[1], &attr.group[1]);
    for (int i = 0; i < 2; i++) {
        const dt_packed_weight *w = i == 0 ? gate_up : down;
        in[n++] = w->codes;
        in[n++] = w->scales;
        if (w->zeros != NULL) in[n++] = w->zeros;
    }
    return dt_apply(t,
                    gate_up->floats          ? &dti_op_experts_e4m3
                    : gate_up->zeros != NULL ? &dti_op_experts_packed_zeros
                                             : &dti_op_experts_packed,
                    &attr, n, in);
}

/* Kernels see local rows: where the axis is cut they cannot count from its end. */
static bool is_cut(const dt_tensor *x, int axis)
{
    for (int m = 0; m < x->layout->n_dims; m++)
        if (x->layout->dim_size[m] > 1 && x->layout->place[m].kind == DT_PLACE_SHARD &&
            x->layout->place[m].axis == axis)
            return true;
    return false;
}

/* Whole blocks of an axis that is packed. Where they begin in this rank's piece is an attribute,
 * since a kernel sees no layout: the rows before them that the rank holds. */
static dt_tensor *slice_blocks(dt_tape *t, dt_tensor *x, int axis, int64_t begin, int64_t count)
{
    dti_blocks_attr attr = { axis, begin < 0 ? begin + x->shape[axis] : begin, count, 0 };
    int coord[DT_MAX_DIMS];
    dti_runs runs;

    if (dt_mesh_is_member(x->mesh)) {
        for (int m = 0; m < x->layout->n_dims; m++) coord[m] = dt_mesh_coord(x->mesh, m);
        dti_layout_axis_runs(x->layout, axis, x->shape[axis], coord, &runs);
        for (int i = 0; i < runs.n && runs.run[i].begin < attr.begin; i++)
            attr.local_begin +=
                (runs.run[i].end < attr.begin ? runs.run[i].end : attr.begin) - runs.run[i].begin;
    }
    return unary(t, &dti_op_blocks, &attr, x);
}

dt_tensor *dt_slice(dt_tape *t, dt_tensor *x, int axis, int64_t begin, int64_t count)
{
    const int from_front = x != NULL && axis < 0 && axis >= -x->n_axes ? axis + x->n_axes : axis;
    dti_slice_attr attr = { from_front, begin, count };

    if (x != NULL && from_front >= 0 && from_front < x->n_axes &&
        (x->layout->packed_axes >> from_front & 1u) && dt_tape_status(t) == DT_OK)
        return slice_blocks(t, x, from_front, begin, count);
    if (x != NULL && begin < 0 && from_front >= 0 && from_front < x->n_axes &&
        begin >= -x->shape[from_front] && is_cut(x, from_front))
        attr.begin += x->shape[from_front];
    return unary(t, &dti_op_slice, &attr, x);
}

dt_tensor *dt_add_scalar(dt_tape *t, dt_tensor *x, double value)
{
    return unary(t, &dti_op_add_scalar, &(dti_scalar_attr){ value }, x);
}

dt_tensor *dt_mul_scalar(dt_tape *t, dt_tensor *x, double value)
{
    return unary(t, &dti_op_mul_scalar, &(dti_scalar_attr){ value }, x);
}

/* `axis` of the caller's as attributes have it: -1 for all, or not negative. */
static dt_tensor *reduce(dt_tape *t, const dt_op *op, dt_tensor *x, int axis, dt_dtype dtype)
{
    dti_reduce_attr attr = { dtype, -1 };

    if (x == NULL || dt_tape_status(t) != DT_OK) return unary(t, op, &attr, x);
    if (axis != DT_ALL_AXES) {
        if (axis < -x->n_axes || axis >= x->n_axes)
            return dt_tape_fail(t, DT_ERR_ARG, "%s: axis %d of a tensor of %d axes", op->name, axis,
                                x->n_axes);
        attr.axis = axis < 0 ? axis + x->n_axes : axis;
    }
    return unary(t, op, &attr, x);
}

dt_tensor *dt_sum(dt_tape *t, dt_tensor *x, int axis)
{
    return reduce(t, &dti_op_sum, x, axis, x != NULL ? x->local.dtype : DT_F32);
}

dt_tensor *dt_max(dt_tape *t, dt_tensor *x, int axis)
{
    return reduce(t, &dti_op_max, x, axis, x != NULL ? x->local.dtype : DT_F32);
}

dt_tensor *dt_min(dt_tape *t, dt_tensor *x, int axis)
{
    return reduce(t, &dti_op_min, x, axis, x != NULL ? x->local.dtype : DT_F32);
}

dt_tensor *dt_mean(dt_tape *t, dt_tensor *x, int axis)
{
    dt_tensor *y = reduce(t, &dti_op_sum, x, axis, DT_F32);
    double n = 1.0;

    if (y == NULL) return NULL;
    for (int a = 0; a < x->n_axes; a++)
        if (axis == DT_ALL_AXES || a == (axis < 0 ? axis + x->n_axes : axis))
            n *= (double)x->shape[a];
    y = dt_mul_scalar(t, y, 1.0 / n);
    return y == NULL || y->layout->partial_dims != 0 ? y : dt_cast(t, y, x->local.dtype);
}

dt_tensor *dt_argmax_key(dt_tape *t, dt_tensor *x)
{
    return unary(t, &dti_op_argmax_key, NULL, x);
}

dt_tensor *dt_argmax_id(dt_tape *t, dt_tensor *key)
{
    return unary(t, &dti_op_argmax_id, NULL, key);
}

/* Into how many pieces the mesh cuts the last axis. */
static int64_t pieces_of(const dt_tensor *x)
{
    int dims[DT_MAX_DIMS];
    int64_t n = 1;

    for (int c = dti_layout_cuts(x->layout, x->n_axes - 1, dims); c > 0; c--)
        n *= x->layout->dim_size[dims[c - 1]];
    return n;
}

dt_tensor *dt_top_k_keys(dt_tape *t, dt_tensor *x, int64_t k)
{
    const dti_top_k_attr attr = { k, x != NULL && x->n_axes > 0 ? pieces_of(x) : 1 };

    return unary(t, &dti_op_top_k_keys, &attr, x);
}

void dt_top_k(dt_tape *t, dt_tensor *keys, int64_t k, dt_tensor **values, dt_tensor **indices)
{
    dt_tensor *out[] = { NULL, NULL };

    dt_apply_n(t, &dti_op_top_k, &(dti_top_k_attr){ k, 1 }, 1, (dt_tensor *[]){ keys }, 2, out);
    if (values != NULL) *values = out[0];
    if (indices != NULL) *indices = out[1];
}
