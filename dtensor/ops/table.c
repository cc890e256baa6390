/* SPDX-License-Identifier: Apache-2.0
 *
 * Every operator, one row each: the page to read first.
 *
 * `axes` names axes by letter. "..." is any leading axes; [x] must be whole on every rank. BY_LETTERS
 * reads both the shape rule and the sharding rule from it: a sharded letter that reaches the result
 * leaves Shard, one that vanishes leaves Partial. A row whose shapes or sharding the letters cannot
 * say names its own function instead (rules_own.c).
 *
 * `types`: F one float dtype for all, x any float, f f32, i i32, k i64 keys, a the dtype that the
 * attributes begin with.
 *
 * Partial operands: LINEAR passes them on if every operand is Partial, BILINEAR if exactly one is; any
 * other row asks for them to be reduced first. VIEW rows share their operand's storage. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/ops/rules.h"

#define BY_LETTERS NULL, NULL
#define LINEAR     DT_OP_LINEAR
#define BILINEAR   DT_OP_BILINEAR
#define VIEW       DT_OP_VIEW
#define NO_ATTR    0
#define ROW(field) const dt_op dti_op_##field

/* clang-format off */
/*                  name           axes                                 types      shape rule, sharding rule                CPU kernel           flags                attributes */
/* elementwise */
ROW(add)        = { "add",         "..., ... -> ...",                   "FF>F",    BY_LETTERS,                              dti_add_cpu,         LINEAR,              NO_ATTR };
ROW(mul)        = { "mul",         "..., ... -> ...",                   "FF>F",    BY_LETTERS,                              dti_mul_cpu,         BILINEAR,            NO_ATTR };
ROW(silu)       = { "silu",        "... -> ...",                        "F>F",     BY_LETTERS,                              dti_silu_cpu,        0,                   NO_ATTR };
ROW(gelu_new)   = { "gelu_new",    "... -> ...",                        "F>F",     BY_LETTERS,                              dti_gelu_new_cpu,    0,                   NO_ATTR };
ROW(silu_mul)   = { "silu_mul",    "..., ... -> ...",                   "FF>F",    BY_LETTERS,                              dti_silu_mul_cpu,    0,                   NO_ATTR };
ROW(cast)       = { "cast",        "... -> ...",                        "x>a",     BY_LETTERS,                              dti_cast_cpu,        0,                   sizeof(dti_dtype_attr) };
/* products */
ROW(linear)     = { "linear",      "...i, oi -> ...o",                  "FF>a",    BY_LETTERS,                              dti_linear_cpu,      BILINEAR,            sizeof(dti_dtype_attr) };
ROW(linear_bias)= { "linear_bias", "...[i], o[i], o -> ...o",           "FFF>a",   BY_LETTERS,                              dti_linear_cpu,      0,                   sizeof(dti_dtype_attr) };
ROW(add_bias)   = { "add_bias",    "...o, o -> ...o",                   "xF>a",    BY_LETTERS,                              dti_add_bias_cpu,    0,                   sizeof(dti_dtype_attr) };
/* norms */
ROW(rms_norm)   = { "rms_norm",    "...[d], [d] -> ...[d]",             "FF>F",    BY_LETTERS,                              dti_rms_norm_cpu,    0,                   sizeof(dti_norm_attr) };
ROW(layer_norm) = { "layer_norm",  "...[d], [d], [d] -> ...[d]",        "FFF>F",   BY_LETTERS,                              dti_layer_norm_cpu,  0,                   sizeof(dti_norm_attr) };
/* embeddings and positions */
ROW(embedding)  = { "embedding",   "..., vd -> ...d",                   "iF>F",    BY_LETTERS,                              dti_embedding_cpu,   DT_OP_EXACT_PARTIAL, NO_ATTR };
ROW(rope_table) = { "rope_table",  "bt, [r] -> bt[q]",                  "if>a",    dti_rope_table_infer, NULL,              dti_rope_table_cpu,  0,                   sizeof(dti_rope_table_attr) };
ROW(rope)       = { "rope",        "bth[e], bt[r] -> bth[e]",           "FF>F",    dti_rope_infer, NULL,                    dti_rope_cpu,        0,                   NO_ATTR };
/* attention */
ROW(heads)      = { "heads",       "bth -> bth[e]",                     "F>F",     dti_heads_infer, dti_heads_shard,        NULL,                VIEW,                sizeof(dti_heads_attr) };
ROW(unheads)    = { "unheads",     "bth[e] -> bth",                     "F>F",     dti_unheads_infer, dti_unheads_shard,    NULL,                VIEW,                NO_ATTR };
ROW(kv_write)   = { "kv_write",    "b[t]k[e], b[t], b[s]k[e] -> b[s]k[e]", "FiF>F", BY_LETTERS,                             dti_kv_write_cpu,    DT_OP_INPLACE_LAST,  NO_ATTR };
ROW(attention)  = { "attention",   "bth[e], b[s]k[e], b[s]k[e], bt -> bth[e]", "FFFi>F", dti_attention_infer, dti_attention_shard, dti_attention_cpu, 0,                sizeof(dti_attention_attr) };
/* rows and choices */
ROW(slice)      = { "slice",       "... -> ...",                        "x>x",     dti_slice_infer, dti_slice_shard,        dti_slice_cpu,       LINEAR,              sizeof(dti_slice_attr) };
ROW(argmax_key) = { "argmax_key",  "...v -> ...",                       "F>k",     BY_LETTERS,                              dti_argmax_key_cpu,  DT_OP_REDUCE_MAX,    NO_ATTR };
ROW(argmax_id)  = { "argmax_id",   "... -> ...",                        "k>i",     BY_LETTERS,                              dti_argmax_id_cpu,   0,                   NO_ATTR };
/* clang-format on */

const dt_op *const dti_op_table[] = {
    &dti_op_add,        &dti_op_mul,        &dti_op_silu,       &dti_op_gelu_new, &dti_op_silu_mul,
    &dti_op_cast,       &dti_op_linear,     &dti_op_linear_bias, &dti_op_add_bias, &dti_op_rms_norm,
    &dti_op_layer_norm, &dti_op_embedding,  &dti_op_rope_table, &dti_op_rope,     &dti_op_heads,
    &dti_op_unheads,    &dti_op_kv_write,   &dti_op_attention,  &dti_op_slice,    &dti_op_argmax_key,
    &dti_op_argmax_id,
};
const int dti_op_table_size = (int)DT_COUNT(dti_op_table);
