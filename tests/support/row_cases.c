/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/row_cases.h"

#include <math.h>
#include <string.h>

#include "dtensor/ops/op_rules.h"
#include "tests/support/tensors.h"

enum { MAX_ELEMENTS = 2048 };

/* Where rows, tables and blocks are cut, each rank has what its row needs. */
static const int32_t paged_positions[] = { 40, 63 }, zero_one[] = { 0, 1 };

/* clang-format off */
const row_case row_cases[] = {
    { .op = &dti_op_add,         .shape = { { 3, 5 }, { 3, 5 } },                      .accepted = 8 },
    { .op = &dti_op_mul,         .shape = { { 3, 5 }, { 3, 5 } },                      .accepted = 9 },
    { .op = &dti_op_silu,        .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_gelu_new,    .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_silu_mul,    .shape = { { 3, 5 }, { 3, 5 } },                      .accepted = 7 },
    { .op = &dti_op_gelu_tanh,   .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_gelu_tanh_mul, .shape = { { 3, 5 }, { 3, 5 } },                    .accepted = 7 },
    { .op = &dti_op_soft_cap,    .shape = { { 3, 5 } }, .attr = { 0x4004000000000000 }, .accepted = 3 },
    { .op = &dti_op_cast,        .shape = { { 3, 5 } }, .attr = { DT_BF16 },           .accepted = 3 },
    { .op = &dti_op_linear,      .shape = { { 2, 3, 6 }, { 5, 6 } }, .attr = { DT_F32 }, .accepted = 9 },
    { .op = &dti_op_linear_bias, .shape = { { 2, 3, 6 }, { 5, 6 }, { 5 } }, .attr = { DT_F32 }, .accepted = 6 },
    { .op = &dti_op_linear_packed, .shape = { { 2, 3, 64 }, { 5, 32 }, { 5, 4 } },
      .attr = { (uint64_t)4 << 32 | DT_F32, 16 }, .positive = true, .accepted = 5 },
    { .op = &dti_op_linear_packed_zeros, .shape = { { 2, 3, 64 }, { 5, 64 }, { 5, 2 }, { 5, 2 } },
      .attr = { (uint64_t)8 << 32 | DT_F32, 32 }, .positive = true, .accepted = 5 },
    { .op = &dti_op_linear_e4m3, .shape = { { 2, 3, 64 }, { 5, 64 }, { 5, 4 } },
      .attr = { (uint64_t)8 << 32 | DT_F32, 16 }, .positive = true, .accepted = 5 },
    { .op = &dti_op_add_bias,    .shape = { { 2, 3, 5 }, { 5 } }, .attr = { DT_F32 },  .accepted = 6 },
    { .op = &dti_op_rms_norm,    .shape = { { 2, 3, 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_rms_norm_once, .shape = { { 2, 3, 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_rms_norm_1p, .shape = { { 2, 3, 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_layer_norm,  .shape = { { 2, 3, 5 }, { 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_embedding,   .shape = { { 2, 3 }, { 7, 5 } }, .attr = { UINT64_MAX }, .modulo = 7, .accepted = 5 },
    { .op = &dti_op_rope_table,  .shape = { { 2, 3 }, { 4 } },
      .attr = { 0x3f80000000000000u | DT_F32 }, .modulo = 9, .accepted = 3 },
    { .op = &dti_op_rope,        .shape = { { 2, 3, 4, 8 }, { 2, 3, 8 } },             .accepted = 7 },
    { .op = &dti_op_rope_backward, .shape = { { 2, 3, 4, 8 }, { 2, 3, 8 } },           .accepted = 7 },
    { .op = &dti_op_attention_stats, .shape = { { 2, 3, 4, 2 }, { 2, 3, 4, 2 }, { 2, 3, 4 } }, .accepted = 22 },
    { .op = &dti_op_attention_backward_sinks, .shape = { { 2, 3, 4, 2 }, { 4 } },     .accepted = 6 },
    { .op = &dti_op_heads,       .shape = { { 2, 3, 8 } }, .attr = { 2 },              .accepted = 3 },
    { .op = &dti_op_unheads,     .shape = { { 2, 3, 4, 2 } }, .attr = { 2 },           .accepted = 4 },
    { .op = &dti_op_attention,   .shape = { { 2, 3, 4, 2 }, { 2, 6, 2, 2 }, { 2, 6, 2, 2 }, { 2, 3 } },
      .attr = { 4, 2, 0, 0x3f000000 }, .modulo = 6, .accepted = 4 },
    { .op = &dti_op_attention_bias, .shape = { { 2, 3, 4, 2 }, { 2, 6, 2, 2 }, { 2, 6, 2, 2 }, { 2, 3 }, { 2, 4, 1, 6 } },
      .attr = { 4, 2, 0, 0x3f000000, 1 | 32 }, .modulo = 6, .accepted = 8 },
    { .op = &dti_op_attention_bias, .shape = { { 2, 3, 4, 2 }, { 2, 6, 2, 2 }, { 2, 6, 2, 2 }, { 2, 3 }, { 1, 1, 3, 6 } },
      .attr = { 4, 2, 0, 0x3f000000, 1 | 8 | 16 }, .modulo = 6, .accepted = 4 },
    { .op = &dti_op_attention_sinks, .shape = { { 2, 3, 4, 2 }, { 2, 6, 2, 2 }, { 2, 6, 2, 2 }, { 2, 3 }, { 4 } },
      .attr = { 4, 2, 0, (uint64_t)0x40000000 << 32 | 0x3f000000, 2 | 4 }, .modulo = 6, .accepted = 6 },
    { .op = &dti_op_attention_bias_sinks, .shape = { { 2, 2, 2, 2 }, { 2, 3, 2, 2 }, { 2, 3, 2, 2 }, { 2, 2 }, { 1, 2, 1, 3 }, { 2 } },
      .attr = { 2, 2, 0, 0x3f000000, 3 | 8 | 32 }, .modulo = 3, .accepted = 10 },
    { .op = &dti_op_attention_paged,
      .shape = { { 2, 1, 4, 2 }, { 2, 64, 2, 2 }, { 2, 64, 2, 2 }, { 2, 1 }, { 2, 1 }, { 2, 1 } },
      .attr = { 4, 2, 0, 0x3f000000 }, .ids = { [3] = paged_positions, [4] = zero_one, [5] = zero_one }, .accepted = 4 },
    { .op = &dti_op_slice,       .shape = { { 3, 4, 2 } }, .attr = { 1, 1, 2 },        .accepted = 5 },
    { .op = &dti_op_slice,       .shape = { { 3, 4, 2 } }, .attr = { 0, 1, 2 },        .accepted = 5 },
    { .op = &dti_op_slice,       .shape = { { 3, 4, 2 } }, .attr = { 2, 1, 1 },        .accepted = 5 },
    { .op = &dti_op_causal_conv, .shape = { { 2, 5, 3 }, { 2, 2, 3 }, { 3, 3 } },      .accepted = 10 },
    { .op = &dti_op_route_ids,   .shape = { { 2, 3, 5 } }, .attr = { 2 },              .accepted = 3 },
    { .op = &dti_op_route_ids,   .shape = { { 2, 3, 6 } }, .attr = { 2, 0, (uint64_t)DT_ROUTE_SIGMOID << 32, (uint64_t)2 << 32 | 3 },
      .accepted = 3 },
    { .op = &dti_op_route_ids_bias, .shape = { { 2, 3, 6 }, { 6 } }, .attr = { 2, 0, (uint64_t)DT_ROUTE_SIGMOID << 32, (uint64_t)1 << 32 | 2 },
      .accepted = 3 },
    { .op = &dti_op_route_weights, .shape = { { 2, 3, 5 }, { 2, 3, 2 } },
      .attr = { 0, 1, (uint64_t)DT_ROUTE_SIGMOID << 32 | 0x40200000 }, .modulo = 5, .accepted = 7 },
    { .op = &dti_op_route_weights, .shape = { { 2, 3, 5 }, { 2, 3, 2 } }, .attr = { 0, 1 }, .modulo = 5, .accepted = 7 },
    { .op = &dti_op_experts,     .shape = { { 2, 3, 4 }, { 2, 3, 2 }, { 2, 3, 2 }, { 7, 6, 4 }, { 7, 4, 3 } },
      .attr = { 7 }, .modulo = 7, .accepted = 16 },
    { .op = &dti_op_blocks,      .shape = { { 3, 4, 2 } }, .attr = { 1, 1, 2, 1 },     .accepted = 4 },
    { .op = &dti_op_add_scalar,  .shape = { { 3, 5 } }, .attr = { 0x4004000000000000 }, .accepted = 4 },
    { .op = &dti_op_mul_scalar,  .shape = { { 3, 5 } }, .attr = { 0x4004000000000000 }, .accepted = 4 },
    { .op = &dti_op_sum,         .shape = { { 3, 5 } },                                .accepted = 4 },
    { .op = &dti_op_sum,         .shape = { { 2, 3, 5 } }, .attr = { (uint64_t)1 << 32 }, .accepted = 5 },
    { .op = &dti_op_sum,         .shape = { { 3, 5 } }, .attr = { 0xffffffff00000000 }, .accepted = 4 },
    { .op = &dti_op_max,         .shape = { { 2, 3, 5 } }, .attr = { (uint64_t)2 << 32 }, .apart = true, .accepted = 4 },
    { .op = &dti_op_min,         .shape = { { 3, 5 } }, .attr = { 0xffffffff00000000 }, .apart = true, .accepted = 3 },
    { .op = &dti_op_neg,         .shape = { { 3, 5 } },                                .accepted = 4 },
    { .op = &dti_op_exp,         .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_tanh,        .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_sigmoid,     .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_relu,        .shape = { { 3, 5 } }, .apart = true, .accepted = 3 },
    { .op = &dti_op_relu2,       .shape = { { 3, 5 } }, .apart = true, .accepted = 3 },
    { .op = &dti_op_relu6,       .shape = { { 3, 5 } }, .apart = true, .accepted = 3 },
    { .op = &dti_op_leaky_relu,  .shape = { { 3, 5 } }, .apart = true, .accepted = 3 },
    { .op = &dti_op_hardswish,   .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_softplus,    .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_sqrtsoftplus, .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_quick_gelu,  .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_mish,        .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_laplace,     .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_gelu,        .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_gelu_10,     .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_gelu_python, .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_gelu_fast,   .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_log,         .shape = { { 3, 5 } }, .positive = true,               .accepted = 3 },
    { .op = &dti_op_sqrt,        .shape = { { 3, 5 } }, .positive = true,               .accepted = 3 },
    { .op = &dti_op_rsqrt,       .shape = { { 3, 5 } }, .positive = true,               .accepted = 3 },
    { .op = &dti_op_sub,         .shape = { { 3, 5 }, { 3, 5 } },                      .accepted = 8 },
    { .op = &dti_op_sub,         .shape = { { 3, 1 }, { 3, 5 } },                      .accepted = 6 },
    { .op = &dti_op_add,         .shape = { { 1, 5 }, { 3, 1 } },                      .accepted = 4 },
    { .op = &dti_op_mul,         .shape = { { 2, 1, 5 }, { 2, 3, 1 } },                .accepted = 7 },
    { .op = &dti_op_div,         .shape = { { 3, 5 }, { 3, 5 } }, .positive = true,    .accepted = 8 },
    { .op = &dti_op_div,         .shape = { { 3, 5 }, { 1, 5 } }, .positive = true,    .accepted = 6 },
    { .op = &dti_op_where,       .shape = { { 3, 5 }, { 3, 5 }, { 3, 5 } },            .accepted = 15 },
    { .op = &dti_op_where,       .shape = { { 1, 5 }, { 3, 5 }, { 3, 1 } },            .accepted = 8 },
    { .op = &dti_op_compare,     .shape = { { 3, 5 }, { 3, 5 } },                      .accepted = 7 },
    { .op = &dti_op_matmul,      .shape = { { 2, 3, 6 }, { 2, 6, 5 } }, .attr = { DT_F32 }, .accepted = 11 },
    { .op = &dti_op_matmul_nt,   .shape = { { 2, 3, 6 }, { 2, 5, 6 } },
      .attr = { DT_F32, 1 }, .accepted = 11 },
    { .op = &dti_op_matmul_tn,   .shape = { { 2, 6, 3 }, { 2, 6, 5 } },
      .attr = { (uint64_t)1 << 32 | DT_F32, 0 }, .accepted = 11 },
    { .op = &dti_op_matmul_tt,   .shape = { { 2, 6, 3 }, { 2, 5, 6 } },
      .attr = { (uint64_t)1 << 32 | DT_F32, 1 }, .accepted = 11 },
    { .op = &dti_op_linear_backward_x, .shape = { { 2, 3, 5 }, { 5, 6 } }, .attr = { DT_F32 }, .accepted = 9 },
    { .op = &dti_op_linear_backward_w, .shape = { { 2, 3, 5 }, { 2, 3, 6 } },          .accepted = 11 },
    { .op = &dti_op_add_bias_backward, .shape = { { 2, 3, 5 } },                       .accepted = 5 },
    { .op = &dti_op_softmax,     .shape = { { 2, 3, 5 } }, .attr = { 1 },              .accepted = 3 },
    { .op = &dti_op_softmax,     .shape = { { 3, 5 } }, .attr = { 1 },                 .accepted = 2 },
    { .op = &dti_op_log_softmax, .shape = { { 2, 3, 5 } }, .attr = { 2 },              .accepted = 3 },
    { .op = &dti_op_cumsum,      .shape = { { 2, 3, 5 } }, .attr = { 1 },              .accepted = 4 },
    /* reshape: merge, split (units of one row only), insert, drop */
    { .op = &dti_op_reshape,     .shape = { { 3, 4, 5 } }, .attr = { (uint64_t)1 << 32, 4, 5 }, .accepted = 5 },
    { .op = &dti_op_reshape,     .shape = { { 3, 8, 5 } }, .attr = { (uint64_t)1 << 32 | 1, 4, 2 }, .accepted = 4 },
    { .op = &dti_op_reshape,     .shape = { { 3, 5 } }, .attr = { (uint64_t)1 << 32 | 2, 1, 1 }, .accepted = 4 },
    { .op = &dti_op_reshape,     .shape = { { 3, 1, 5 } }, .attr = { (uint64_t)1 << 32 | 3, 1, 1 }, .accepted = 4 },
    { .op = &dti_op_permute,     .shape = { { 2, 3, 5 } }, .attr = { 0x010002 },       .accepted = 5 },
    { .op = &dti_op_concat_2,    .shape = { { 3, 5 }, { 2, 5 } },
      .attr = { (uint64_t)3 << 32, 2 }, .accepted = 8 },
    { .op = &dti_op_concat_3,    .shape = { { 3, 5 }, { 3, 1 }, { 3, 4 } },
      .attr = { (uint64_t)5 << 32 | 1, (uint64_t)4 << 32 | 1 }, .accepted = 14 },
    { .op = &dti_op_concat_4,    .shape = { { 3 }, { 5 }, { 1 }, { 2 } },
      .attr = { (uint64_t)3 << 32, (uint64_t)1 << 32 | 5, 2 }, .accepted = 16 },
    { .op = &dti_op_concat_5,    .shape = { { 3 }, { 5 }, { 1 }, { 2 }, { 4 } },
      .attr = { (uint64_t)3 << 32, (uint64_t)1 << 32 | 5, (uint64_t)4 << 32 | 2 }, .accepted = 32 },
    { .op = &dti_op_concat_6,    .shape = { { 3 }, { 5 }, { 1 }, { 2 }, { 4 }, { 2 } },
      .attr = { (uint64_t)3 << 32, (uint64_t)1 << 32 | 5, (uint64_t)4 << 32 | 2, 2 }, .accepted = 64 },
    { .op = &dti_op_pad,         .shape = { { 3, 5 } }, .attr = { 1, 0, 2, 1, 5 },     .accepted = 4 },
    { .op = &dti_op_pad,         .shape = { { 3, 5 } },
      .attr = { 0, 0x3f800000, 1, 0, 3 }, .accepted = 3 },
    { .op = &dti_op_index_select, .shape = { { 3, 7, 2 }, { 4 } }, .attr = { 1 }, .modulo = 7, .accepted = 6 },
    { .op = &dti_op_dropout,     .shape = { { 3, 5 } },
      .attr = { 7, 1, 0x3fd999999999999a, 3, 5 }, .accepted = 4 },
    { .op = &dti_op_argmax_key,  .shape = { { 3, 7 } },                                .accepted = 3 },
    /* gradients */
    { .op = &dti_op_embedding_backward, .shape = { { 2, 3, 5 }, { 2, 3 }, { 7, 5 } }, .attr = { 4 }, .modulo = 7, .accepted = 12 },
    { .op = &dti_op_cross_entropy_sums, .shape = { { 2, 3, 7 }, { 2, 3 }, { 2, 3 } },
      .attr = { 7, 2, 0x3fb999999999999a, 0 }, .modulo = 7, .accepted = 16 },
    { .op = &dti_op_cross_entropy, .shape = { { 2, 3, 7 }, { 2, 3 }, { 2, 3 }, { 2, 3, 3 } },
      .attr = { 7, 2, 0x3fb999999999999a, 0x3f847ae147ae147b }, .modulo = 7, .positive = true, .accepted = 32 },
    { .op = &dti_op_cross_entropy_backward, .shape = { { 2, 3 }, { 2, 3, 7 }, { 2, 3 }, { 2, 3 } },
      .attr = { 7, 2, 0x3fb999999999999a, 0x3f847ae147ae147b }, .modulo = 7, .accepted = 33 },
    { .op = &dti_op_count_targets, .shape = { { 3, 5 } }, .attr = { 2 }, .modulo = 7,   .accepted = 3 },
    { .op = &dti_op_accumulate,  .shape = { { 3, 5 }, { 3, 5 } },                      .accepted = 6 },
    { .op = &dti_op_rms_norm_backward, .shape = { { 2, 3, 5 }, { 2, 3, 5 }, { 5 } },
      .attr = { (uint64_t)3 << 32 | 0x3727c5ac }, .accepted = 8 },
    { .op = &dti_op_rms_norm_1p_backward, .shape = { { 2, 3, 5 }, { 2, 3, 5 }, { 5 } },
      .attr = { (uint64_t)3 << 32 | 0x3727c5ac }, .accepted = 8 },
    { .op = &dti_op_layer_norm_backward, .shape = { { 2, 3, 5 }, { 2, 3, 5 }, { 5 } },
      .attr = { (uint64_t)7 << 32 | 0x3727c5ac }, .accepted = 8 },
#define CURVE(name, formula, slope) \
    { .op = &dti_op_##name##_backward, .shape = { { 3, 5 }, { 3, 5 } }, .positive = true, .accepted = 8 },
    DTI_CURVES(CURVE)
    { .op = &dti_op_silu_mul_backward, .shape = { { 3, 5 }, { 3, 5 }, { 3, 5 } },      .accepted = 16 },
    { .op = &dti_op_gelu_tanh_mul_backward, .shape = { { 3, 5 }, { 3, 5 }, { 3, 5 } }, .accepted = 16 },
    { .op = &dti_op_soft_cap_backward, .shape = { { 3, 5 }, { 3, 5 } }, .attr = { 0x4004000000000000 }, .accepted = 8 },
    { .op = &dti_op_softmax_backward, .shape = { { 2, 3, 5 }, { 2, 3, 5 } }, .attr = { 1 }, .accepted = 7 },
    { .op = &dti_op_log_softmax_backward, .shape = { { 2, 3, 5 }, { 2, 3, 5 } }, .attr = { 2 }, .accepted = 7 },
    { .op = &dti_op_cumsum_backward, .shape = { { 2, 3, 5 } }, .attr = { 1 },           .accepted = 4 },
    { .op = &dti_op_index_select_backward, .shape = { { 3, 4, 2 }, { 4 } }, .attr = { 1, 7 }, .modulo = 7, .accepted = 7 },
    { .op = &dti_op_route_weights_backward, .shape = { { 2, 3, 2 }, { 2, 3, 5 }, { 2, 3, 2 } },
      .attr = { 0, 1 }, .modulo = 5, .accepted = 16 },
    { .op = &dti_op_route_weights_backward, .shape = { { 3, 2 }, { 3, 5 }, { 3, 2 } },
      .attr = { 0, 1, (uint64_t)DT_ROUTE_SIGMOID << 32 | 0x40200000 }, .modulo = 5, .accepted = 9 },
    { .op = &dti_op_route_weights_backward, .shape = { { 3, 2 }, { 3, 5 }, { 3, 2 } }, .modulo = 5, .accepted = 9 },
    { .op = &dti_op_causal_conv_backward, .shape = { { 2, 4, 3 }, { 2, 2, 3 }, { 2, 4, 3 }, { 2, 2, 3 }, { 3, 3 } }, .accepted = 20 },
    { .op = &dti_op_experts_backward, .shape = { { 2, 3, 4 }, { 2, 3, 4 }, { 2, 3, 2 }, { 2, 3, 2 }, { 7, 6, 4 }, { 7, 4, 3 } },
      .attr = { 7, 15 }, .modulo = 7, .accepted = 33 },
    { .op = &dti_op_experts_backward_x, .shape = { { 3, 4 }, { 3, 4 }, { 3, 2 }, { 3, 2 }, { 7, 6, 4 }, { 7, 4, 3 } },
      .attr = { 7, 3 }, .modulo = 7, .accepted = 18 },
};
/* clang-format on */

const int n_row_cases = (int)DT_COUNT(row_cases);

int row_case_axes(const int64_t *shape)
{
    int n = 0;

    while (n < 5 && shape[n] > 0) n++;
    return n;
}

int row_case_results(const row_case *c)
{
    return (int)strlen(strchr(c->op->types, '>') + 1);
}

bool row_case_is_ints(const row_case *c, int i)
{
    return c->op->types[i] == 'i' || c->op->types[i] == 'b';
}

int row_case_operands(const row_case *c)
{
    int n = 0;

    while (n < DT_OP_MAX_IN && c->shape[n][0] > 0) n++;
    return n;
}

dt_status row_case_operand(dt_mesh *mesh, const row_case *c, int i, const dt_placement *place,
                           dt_tensor **out)
{
    dt_placement whole[DT_MAX_DIMS];
    const int n_axes = row_case_axes(c->shape[i]);
    const bool ints = row_case_is_ints(c, i), masks = c->op->types[i] == 'b';
    uint8_t bytes[MAX_ELEMENTS];
    float values[MAX_ELEMENTS];
    int32_t ids[MAX_ELEMENTS];
    dt_tensor *x = NULL;
    bool partial = false;
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= c->shape[i][a];
    dt_test_random(values, n, (uint32_t)i + 1);
    for (int64_t k = 0; k < n; k++) {
        ids[k] =
            c->ids[i] != NULL ? c->ids[i][k] : (int32_t)(k * 5 % (c->modulo > 0 ? c->modulo : 1));
        bytes[k] = (uint8_t)(k % 3 == 1 ? k + 1 : 0);
        if (c->positive) values[k] = fabsf(values[k]) * 2.0f + 1.0f;
        if (c->apart) values[k] = (float)(k * 7 % 31) * 0.15f - 2.33f;
    }
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) {
        whole[m] = place[m].kind == DT_PLACE_PARTIAL ? DT_REPLICATE : place[m];
        if (place[m].kind != DT_PLACE_PARTIAL || dt_mesh_dim_size(mesh, m) == 1) continue;
        partial = true;
        for (int64_t k = 0; k < n; k++)
            values[k] = dt_mesh_coord(mesh, m) > 0
                            ? 0.25f
                            : values[k] - 0.25f * (float)(dt_mesh_dim_size(mesh, m) - 1);
    }
    DT_TRY(dt_distribute(mesh, whole,
                         masks  ? DT_U8
                         : ints ? DT_I32
                                : DT_F32,
                         n_axes, c->shape[i],
                         (dt_source){ masks  ? (const void *)bytes
                                      : ints ? (const void *)ids
                                             : values,
                                      DT_EQUAL_COPIES },
                         &x));
    if (!partial) {
        *out = x;
        return DT_OK;
    }
    const dt_status st =
        dt_from_local(mesh, place, DT_F32, n_axes, c->shape[i], dt_tensor_local(x)->data, out);
    dt_tensor_release(&x);
    return st;
}
