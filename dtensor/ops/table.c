/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operator, one row each: the page to read first.
 *
 * `axes` names axes by letter. "..." is any leading axes; [x] must be whole on every rank. LETTERS
 * in the rule columns reads the shape rule and the sharding rule from it: a sharded letter that
 * reaches the result leaves Shard, one that vanishes leaves Partial. A row whose shapes or sharding
 * the letters cannot say names its own function instead (rules_own.c).
 *
 * `types`: F one float dtype for all, x any float, f f32, i i32, k i64 keys, a the dtype that the
 * attributes begin with.
 *
 * Partial operands: LINEAR passes them on if every operand is Partial, BILINEAR if exactly one is;
 * any other row asks for them to be reduced first. VIEW rows share their operand's storage. ANY
 * rows take packed operands, whose local rows do not follow each other in the whole. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/ops/op_rules.h"

#define AXES         NULL /* what the axes say */
#define INFER(f)     dti_##f##_infer
#define SHARD(f)     dti_##f##_shard
#define dti_none_cpu NULL
#define ATTR(a)      sizeof(dti_##a##_attr)
#define LINEAR       DT_OP_LINEAR
#define BILINEAR     DT_OP_BILINEAR
#define VIEW         DT_OP_VIEW
#define EXACT        DT_OP_EXACT_PARTIAL
#define MAXIMUM      DT_OP_REDUCE_MAX
#define IN_PLACE     DT_OP_INPLACE_LAST
#define ANY          DT_OP_ANY_ROWS
#define VALUE        DT_OP_VALUE_ATTR
#define ONCE         DT_OP_ADDS_ONCE
#define ROW(row, axes, types, infer, shard, cpu, flags, bytes)                       \
    const dt_op dti_op_##row = { #row,  axes,  types, infer, shard, dti_##cpu##_cpu, \
                                 flags, bytes, NULL };

/* clang-format off */
/*  name         axes                          types     shape rule         sharding rule     CPU kernel  flags           attr */
/* elementwise */
ROW(add,         "..., ... -> ...",            "FF>F",   AXES,              AXES,             add,        ANY | LINEAR,   0)
ROW(mul,         "..., ... -> ...",            "FF>F",   AXES,              AXES,             mul,        ANY | BILINEAR, 0)
ROW(silu,        "... -> ...",                 "F>F",    AXES,              AXES,             silu,       ANY,            0)
ROW(gelu_new,    "... -> ...",                 "F>F",    AXES,              AXES,             gelu_new,   ANY,            0)
ROW(gelu_tanh,   "... -> ...",                 "F>F",    AXES,              AXES,             gelu_tanh,  ANY,            0)
ROW(silu_mul,    "..., ... -> ...",            "FF>F",   AXES,              AXES,             silu_mul,   ANY,            0)
ROW(gelu_tanh_mul, "..., ... -> ...",          "FF>F",   AXES,              AXES,             gelu_tanh_mul, ANY,         0)
ROW(soft_cap,    "... -> ...",                 "F>F",    AXES,              AXES,             soft_cap,   ANY | VALUE,    ATTR(scalar))
ROW(cast,        "... -> ...",                 "x>a",    AXES,              AXES,             cast,       ANY,            ATTR(dtype))
ROW(add_scalar,  "... -> ...",                 "F>F",    AXES,              SHARD(add_scalar), add_scalar, ANY | VALUE | ONCE, ATTR(scalar))
ROW(mul_scalar,  "... -> ...",                 "F>F",    AXES,              AXES,             mul_scalar, ANY | VALUE | LINEAR, ATTR(scalar))
/* reductions over an axis of the caller's or over all */
ROW(sum,         "... -> ...",                 "F>a",    INFER(reduce),     SHARD(sum),       sum,        ANY,            ATTR(reduce))
ROW(max,         "... -> ...",                 "F>a",    INFER(extreme),    SHARD(max),       max,        ANY,            ATTR(reduce))
ROW(min,         "... -> ...",                 "F>a",    INFER(extreme),    SHARD(min),       min,        ANY,            ATTR(reduce))
/* products */
ROW(linear,      "...i, oi -> ...o",           "FF>a",   AXES,              AXES,             linear,     ANY | BILINEAR, ATTR(dtype))
ROW(linear_bias, "...[i], o[i], o -> ...o",    "FFF>a",  AXES,              AXES,             linear,     ANY,            ATTR(dtype))
ROW(add_bias,    "...o, o -> ...o",            "xF>a",   AXES,              AXES,             add_bias,   ANY | LINEAR,   ATTR(dtype))
/* norms */
ROW(rms_norm,    "...[d], [d] -> ...[d]",      "FF>F",   AXES,              AXES,             rms_norm,   0,              ATTR(norm))
ROW(rms_norm_1p, "...[d], [d] -> ...[d]",      "FF>F",   AXES,              AXES,             rms_norm_1p, 0,             ATTR(norm))
ROW(layer_norm,  "...[d], [d], [d] -> ...[d]", "FFF>F",  AXES,              AXES,             layer_norm, 0,              ATTR(norm))
/* embeddings and positions */
ROW(embedding,   "..., vd -> ...d",            "iF>F",   AXES,              AXES,             embedding,  EXACT,          0)
ROW(rope_table,  "bt, [r] -> bt[q]",           "if>a",   INFER(rope_table), AXES,             rope_table, 0,              ATTR(rope_table))
ROW(rope,        "bth[e], bt[r] -> bth[e]",    "FF>F",   INFER(rope),       AXES,             rope,       0,              0)
/* attention */
ROW(heads,       "bth -> bth[e]",              "F>F",    INFER(heads),      SHARD(heads),     none,       VIEW,           ATTR(heads))
ROW(unheads,     "bth[e] -> bth",              "F>F",    INFER(unheads),    SHARD(unheads),   none,       VIEW,           ATTR(heads))
ROW(kv_write,    "b[t]k[e], b[t], b[s]k[e] -> b[s]k[e]",
                                               "FiF>F",  AXES,              AXES,             kv_write,   IN_PLACE,       0)
ROW(attention,   "bth[e], b[s]k[e], b[s]k[e], bt -> bth[e]",
                                               "FFFi>F", INFER(attention),  SHARD(attention), attention,  0,              ATTR(attention))
/* mixtures of experts: which experts, with which weights, and what they make of a token */
ROW(route_ids,   "...[e] -> ...k",             "F>i",    INFER(route_ids),  AXES,             route_ids,  0,              ATTR(route))
ROW(route_weights, "...[e], ...[k] -> ...[k]", "Fi>F",   AXES,              AXES,             route_weights, 0,           ATTR(route))
ROW(experts,     "...[d], ...[k], ...[k], eo[d], e[d]f -> ...[d]",
                                               "FiFFF>F", INFER(experts),   SHARD(experts),   experts,    ANY,            ATTR(experts))
/* rows and choices */
ROW(slice,       "... -> ...",                 "x>x",    INFER(slice),      SHARD(slice),     slice,      LINEAR | EXACT, ATTR(slice))
ROW(blocks,      "... -> ...",                 "x>x",    INFER(blocks),     SHARD(blocks),    blocks,     ANY | LINEAR,   ATTR(blocks))
ROW(argmax_key,  "...v -> ...",                "F>k",    AXES,              AXES,             argmax_key, MAXIMUM,        0)
ROW(argmax_id,   "... -> ...",                 "k>i",    AXES,              AXES,             argmax_id,  0,              0)
ROW(top_k_keys,  "...v -> ...k",               "F>k",    INFER(top_k_keys), SHARD(top_k_keys), top_k_keys, 0,             ATTR(top_k))
ROW(top_k,       "...[c] -> ...k, ...k",       "k>fi",   INFER(top_k),      AXES,             top_k,      0,              ATTR(top_k))
/* clang-format on */

const dt_op *const dti_op_table[] = {
    &dti_op_add,           &dti_op_mul,         &dti_op_silu,       &dti_op_gelu_new,
    &dti_op_silu_mul,      &dti_op_cast,        &dti_op_linear,     &dti_op_linear_bias,
    &dti_op_add_bias,      &dti_op_rms_norm,    &dti_op_layer_norm, &dti_op_embedding,
    &dti_op_rope_table,    &dti_op_rope,        &dti_op_heads,      &dti_op_unheads,
    &dti_op_kv_write,      &dti_op_attention,   &dti_op_slice,      &dti_op_argmax_key,
    &dti_op_argmax_id,     &dti_op_add_scalar,  &dti_op_mul_scalar, &dti_op_sum,
    &dti_op_max,           &dti_op_min,         &dti_op_gelu_tanh,  &dti_op_gelu_tanh_mul,
    &dti_op_soft_cap,      &dti_op_rms_norm_1p, &dti_op_blocks,     &dti_op_route_ids,
    &dti_op_route_weights, &dti_op_experts,     &dti_op_top_k_keys, &dti_op_top_k,
};
const int dti_op_table_size = (int)DT_COUNT(dti_op_table);
