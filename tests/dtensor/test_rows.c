/* SPDX-License-Identifier: Apache-2.0
 *
 * One driver for every row of the operator table: whatever placements a row accepts, the gathered
 * result is that of whole operands; what it refuses, it refuses as a layout. */
#include <dtensor/ops.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { MAX_ELEMENTS = 2048 };

/* One call: shapes of operands by their axes, 0 ends. Integer operands count up modulo `modulo`. */
typedef struct row_case {
    const dt_op *op;
    int64_t shape[DT_OP_MAX_IN][5];
    uint64_t attr[DT_OP_MAX_VALUE_BYTES / 8];
    int64_t modulo;
    bool positive; /* operands lie between 1 and 3 */
    int accepted;  /* at least so many combinations on one mesh dim of 2 ranks */
} row_case;

/* clang-format off */
static const row_case cases[] = {
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
    { .op = &dti_op_add_bias,    .shape = { { 2, 3, 5 }, { 5 } }, .attr = { DT_F32 },  .accepted = 6 },
    { .op = &dti_op_rms_norm,    .shape = { { 2, 3, 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_rms_norm_1p, .shape = { { 2, 3, 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_layer_norm,  .shape = { { 2, 3, 5 }, { 5 }, { 5 } }, .attr = { 0x3727c5ac }, .accepted = 3 },
    { .op = &dti_op_embedding,   .shape = { { 2, 3 }, { 7, 5 } }, .modulo = 7,         .accepted = 5 },
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
    { .op = &dti_op_slice,       .shape = { { 3, 4, 2 } }, .attr = { 1, 1, 2 },        .accepted = 5 },
    { .op = &dti_op_slice,       .shape = { { 3, 4, 2 } }, .attr = { 0, 1, 2 },        .accepted = 5 },
    { .op = &dti_op_slice,       .shape = { { 3, 4, 2 } }, .attr = { 2, 1, 1 },        .accepted = 5 },
    { .op = &dti_op_route_ids,   .shape = { { 2, 3, 5 } }, .attr = { 2 },              .accepted = 3 },
    { .op = &dti_op_route_weights, .shape = { { 2, 3, 5 }, { 2, 3, 2 } }, .attr = { 0, 1 }, .modulo = 5, .accepted = 7 },
    { .op = &dti_op_experts,     .shape = { { 2, 3, 4 }, { 2, 3, 2 }, { 2, 3, 2 }, { 7, 6, 4 }, { 7, 4, 3 } },
      .attr = { 7 }, .modulo = 7, .accepted = 16 },
    { .op = &dti_op_blocks,      .shape = { { 3, 4, 2 } }, .attr = { 1, 1, 2, 1 },     .accepted = 4 },
    { .op = &dti_op_add_scalar,  .shape = { { 3, 5 } }, .attr = { 0x4004000000000000 }, .accepted = 4 },
    { .op = &dti_op_mul_scalar,  .shape = { { 3, 5 } }, .attr = { 0x4004000000000000 }, .accepted = 4 },
    { .op = &dti_op_sum,         .shape = { { 3, 5 } },                                .accepted = 4 },
    { .op = &dti_op_sum,         .shape = { { 2, 3, 5 } }, .attr = { (uint64_t)1 << 32 }, .accepted = 5 },
    { .op = &dti_op_sum,         .shape = { { 3, 5 } }, .attr = { 0xffffffff00000000 }, .accepted = 4 },
    { .op = &dti_op_max,         .shape = { { 2, 3, 5 } }, .attr = { (uint64_t)2 << 32 }, .accepted = 4 },
    { .op = &dti_op_min,         .shape = { { 3, 5 } }, .attr = { 0xffffffff00000000 }, .accepted = 3 },
    { .op = &dti_op_neg,         .shape = { { 3, 5 } },                                .accepted = 4 },
    { .op = &dti_op_exp,         .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_tanh,        .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_sigmoid,     .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_relu,        .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_relu2,       .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_relu6,       .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_leaky_relu,  .shape = { { 3, 5 } },                                .accepted = 3 },
    { .op = &dti_op_hardswish,   .shape = { { 3, 5 } },                                .accepted = 3 },
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
    { .op = &dti_op_embedding_backward, .shape = { { 2, 3, 5 }, { 2, 3 }, { 7, 5 } }, .modulo = 7, .accepted = 12 },
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
};
/* clang-format on */

static int n_axes_of(const int64_t *shape)
{
    int n = 0;

    while (n < 5 && shape[n] > 0) n++;
    return n;
}

static int n_out_of(const row_case *c)
{
    return (int)strlen(strchr(c->op->types, '>') + 1);
}

static bool is_whole_number(const row_case *c, int i)
{
    return c->op->types[i] == 'i' || c->op->types[i] == 'b';
}

/* Operand i of a case, placed on every mesh dim as its digits say: 0 whole, 1 .. n cut, n + 1
 * terms. */
static dt_status make_operand(dt_mesh *mesh, const row_case *c, int i, const dt_placement *place,
                              dt_tensor **out)
{
    dt_placement whole[DT_MAX_DIMS];
    const int n_axes = n_axes_of(c->shape[i]);
    const bool ints = is_whole_number(c, i), masks = c->op->types[i] == 'b';
    uint8_t bytes[MAX_ELEMENTS];
    float values[MAX_ELEMENTS];
    int32_t ids[MAX_ELEMENTS];
    dt_tensor *x = NULL;
    bool partial = false;
    int64_t n = 1;

    for (int a = 0; a < n_axes; a++) n *= c->shape[i][a];
    dt_test_random(values, n, (uint32_t)i + 1);
    for (int64_t k = 0; k < n; k++) {
        ids[k] = (int32_t)(k * 5 % (c->modulo > 0 ? c->modulo : 1));
        bytes[k] = (uint8_t)(k % 3 == 1 ? k + 1 : 0);
        if (c->positive) values[k] = fabsf(values[k]) * 2.0f + 1.0f;
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

static dt_status compare(const row_case *c, dt_tensor *got, dt_tensor *want)
{
    const dt_local *g = dt_tensor_local(got), *w = dt_tensor_local(want);
    dt_tensor *full = NULL;
    dt_status st = DT_OK;
    int64_t n = 1;

    DT_TRY(dt_full_tensor(got, &full));
    g = dt_tensor_local(full);
    DT_EXPECT_TO(done, st, g->n_axes == w->n_axes, "axes");
    for (int a = 0; a < w->n_axes; a++) {
        DT_EXPECT_TO(done, st, g->shape[a] == w->shape[a], "extent of axis %d", a);
        n *= w->shape[a];
    }
    for (int64_t k = 0; k < n; k++) {
        if (w->dtype == DT_U8) {
            DT_EXPECT_TO(done, st, ((const uint8_t *)g->data)[k] == ((const uint8_t *)w->data)[k],
                         "%s: byte %lld", c->op->name, (long long)k);
            continue;
        }
        if (w->dtype == DT_I64) {
            DT_EXPECT_TO(done, st, ((const int64_t *)g->data)[k] == ((const int64_t *)w->data)[k],
                         "%s: key %lld", c->op->name, (long long)k);
            continue;
        }
        const double a = (double)dti_load_f32(g->data, g->dtype, k);
        const double b = (double)dti_load_f32(w->data, w->dtype, k);
        DT_EXPECT_TO(done, st, fabs(a - b) <= 2e-6 * (1.0 + fabs(b)),
                     "%s: element %lld is %.9g, not %.9g", c->op->name, (long long)k, a, b);
    }
done:
    dt_tensor_release(&full);
    return st;
}

static dt_status compare_all(const row_case *c, dt_tensor *const *got, dt_tensor *const *want)
{
    for (int r = 0; r < n_out_of(c); r++) DT_TRY(compare(c, got[r], want[r]));
    return DT_OK;
}

/* Digits choose one placement per operand and mesh dim. */
static bool next_choice(const row_case *c, int n, int n_dims, int *digit)
{
    for (int k = 0; k < n * n_dims; k++) {
        const bool ints = is_whole_number(c, k / n_dims);
        if (++digit[k] <= n_axes_of(c->shape[k / n_dims]) + (ints ? 0 : 1)) return true;
        digit[k] = 0;
    }
    return false;
}

static void choice_of(const row_case *c, int i, int n_dims, const int *digit, dt_placement *place)
{
    const int n_axes = n_axes_of(c->shape[i]);

    for (int m = 0; m < n_dims; m++) {
        const int d = digit[i * n_dims + m];
        place[m] = d == 0 ? DT_REPLICATE : d <= n_axes ? DT_SHARD(d - 1) : DT_PARTIAL(DT_SUM);
    }
}

static dt_status try_choice(dt_mesh *mesh, dt_tape *t, const row_case *c, int n, const int *digit,
                            dt_tensor *const *want, int *accepted)
{
    dt_tensor *in[DT_OP_MAX_IN], *y[DT_OP_MAX_OUT];
    dt_status st;

    dt_tape_reset(t);
    for (int i = 0; i < n; i++) {
        dt_placement place[DT_MAX_DIMS];
        choice_of(c, i, dt_mesh_n_dims(mesh), digit, place);
        DT_TRY(make_operand(mesh, c, i, place, &in[i]));
        in[i] = dt_tape_own(t, in[i]);
    }
    dt_apply_n(t, c->op, c->attr, n, in, n_out_of(c), y);
    st = dt_tape_status(t);
    DT_EXPECT(st == DT_OK || st == DT_ERR_LAYOUT, "%s: %s", c->op->name, dt_last_error()->message);
    if (st != DT_OK) {
        DT_EXPECT(strstr(dt_last_error()->message, c->op->name) != NULL, "message names the row");
        return DT_OK;
    }
    ++*accepted;
    return compare_all(c, y, want);
}

static dt_status every_placement(dt_mesh *mesh, const void *arg)
{
    const row_case *c = arg;
    const int n_dims = dt_mesh_n_dims(mesh);
    int digit[DT_OP_MAX_IN * DT_MAX_DIMS] = { 0 }, n = 0, accepted = 0;
    dt_tape *t = NULL, *whole = NULL;
    dt_tensor *in[DT_OP_MAX_IN], *want[DT_OP_MAX_OUT];
    dt_status st = DT_OK;

    while (n < DT_OP_MAX_IN && c->shape[n][0] > 0) n++;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &whole));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < n; i++) {
        const dt_placement place[DT_MAX_DIMS] = { { 0 } };
        DT_TRY_TO(done, st, make_operand(mesh, c, i, place, &in[i]));
        in[i] = dt_tape_own(whole, in[i]);
    }
    dt_apply_n(whole, c->op, c->attr, n, in, n_out_of(c), want);
    DT_TRY_TO(done, st, dt_tape_status(whole));
    do {
        DT_TRY_TO(done, st, try_choice(mesh, t, c, n, digit, want, &accepted));
    } while (next_choice(c, n, n_dims, digit));
    if (n_dims == 1 && dt_mesh_dim_size(mesh, 0) == 2)
        DT_EXPECT_TO(done, st, accepted >= c->accepted, "%s accepted %d placements, %d are legal",
                     c->op->name, accepted, c->accepted);
done:
    dt_tape_release(&t);
    dt_tape_release(&whole);
    return st;
}

DT_TEST(rows, every_accepted_placement_gives_the_whole_result)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++)
            dt_test_on_ranks(meshes[m], every_placement, &cases[c]);
}

/* --- placements beyond whole, cut and terms of a sum ------------------------------------------ */

enum { SAMPLES = 160 };

/* An operand that lies as one of: whole, or for each axis cut, cut with copies, packed in two
 * blocks; terms of a sum, of an average, of a maximum. `blocks` is for the packed one. */
static dt_placement rich_placement(const int64_t *shape, bool ints, int *pick, int64_t blocks[2])
{
    const int n_axes = n_axes_of(shape), n = 3 * n_axes + (ints ? 1 : 4), k = *pick % n;
    dt_placement p = DT_REPLICATE;

    *pick /= n;
    if (k >= 3 * n_axes + 1)
        return k == 3 * n_axes + 1   ? DT_PARTIAL(DT_SUM)
               : k == 3 * n_axes + 2 ? DT_PARTIAL(DT_AVG)
                                     : DT_PARTIAL(DT_MAX);
    if (k == 0) return p;
    p = DT_SHARD((k - 1) / 3);
    if (k % 3 == 2) p.replicas = 2;
    if (k % 3 == 0) {
        blocks[0] = (shape[p.axis] + 1) / 2;
        blocks[1] = shape[p.axis] - blocks[0];
        p.n_blocks = 2;
        p.blocks = blocks;
    }
    return p;
}

/* As make_operand(), on one mesh dim; terms of an average and of a maximum are what gives x. */
static dt_status make_rich(dt_mesh *mesh, const row_case *c, int i, dt_placement place,
                           dt_tensor **out)
{
    const int size = dt_mesh_n_ranks(mesh), me = dt_mesh_coord(mesh, 0);
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *x = NULL;
    dt_status st = DT_OK;
    float *v;

    if (place.kind != DT_PLACE_PARTIAL || place.reduce == DT_SUM || size == 1)
        return make_operand(mesh, c, i, &place, out);
    DT_TRY(make_operand(mesh, c, i, &whole, &x));
    v = dt_tensor_local(x)->data;
    for (int64_t k = 0, n = dti_local_count(dt_tensor_local(x)); k < n; k++)
        v[k] += place.reduce == DT_MAX ? -0.25f * (float)me
                : me == 0              ? 0.25f * (float)(size - 1)
                                       : -0.25f;
    st = dt_from_local(mesh, &place, DT_F32, n_axes_of(c->shape[i]), c->shape[i], v, out);
    dt_tensor_release(&x);
    return st;
}

static dt_status try_rich(dt_mesh *mesh, dt_tape *t, const row_case *c, int n, uint32_t sample,
                          dt_tensor *const *want)
{
    dt_tensor *in[DT_OP_MAX_IN], *y[DT_OP_MAX_OUT];
    int64_t blocks[2];
    dt_status st;

    dt_tape_reset(t);
    for (int i = 0; i < n; i++) {
        int pick = (int)((sample * 2654435761u + (uint32_t)i * 40503u) >> 12);
        dt_placement p = rich_placement(c->shape[i], is_whole_number(c, i), &pick, blocks);
        if (sample % 2 == 0 && i > 0 && pick % 3 == 0) /* often as the first, so that they meet */
            p = dt_layout_placement(dt_tensor_layout(in[0]), 0);
        if (p.kind == DT_PLACE_SHARD && p.axis >= n_axes_of(c->shape[i])) p = DT_REPLICATE;
        if (p.kind == DT_PLACE_PARTIAL && is_whole_number(c, i)) p = DT_REPLICATE;
        if (p.n_blocks > 0 && p.blocks[0] + p.blocks[1] != c->shape[i][p.axis]) p = DT_REPLICATE;
        p.order = 0;
        DT_TRY(make_rich(mesh, c, i, p, &in[i]));
        in[i] = dt_tape_own(t, in[i]);
    }
    dt_apply_n(t, c->op, c->attr, n, in, n_out_of(c), y);
    st = dt_tape_status(t);
    DT_EXPECT(st == DT_OK || st == DT_ERR_LAYOUT, "%s: %s", c->op->name, dt_last_error()->message);
    return st == DT_OK ? compare_all(c, y, want) : DT_OK;
}

static dt_status rich_placements(dt_mesh *mesh, const void *arg)
{
    const row_case *c = arg;
    const dt_placement whole = DT_REPLICATE;
    dt_tensor *in[DT_OP_MAX_IN], *want[DT_OP_MAX_OUT];
    dt_tape *t = NULL, *kept = NULL;
    dt_status st = DT_OK;
    int n = 0;

    while (n < DT_OP_MAX_IN && c->shape[n][0] > 0) n++;
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &kept));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < n; i++) {
        DT_TRY_TO(done, st, make_operand(mesh, c, i, &whole, &in[i]));
        in[i] = dt_tape_own(kept, in[i]);
    }
    dt_apply_n(kept, c->op, c->attr, n, in, n_out_of(c), want);
    DT_TRY_TO(done, st, dt_tape_status(kept));
    for (uint32_t k = 0; k < SAMPLES; k++) DT_TRY_TO(done, st, try_rich(mesh, t, c, n, k, want));
done:
    dt_tape_release(&t);
    dt_tape_release(&kept);
    return st;
}

/* Blocks says in its attributes where they lie, so only placements that it was made for fit. */
DT_TEST(rows, copies_blocks_averages_and_maxima_give_the_whole_result_or_are_refused)
{
    static const char *const meshes[] = { "tp=2", "tp=4" };

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t m = 0; m < DT_COUNT(meshes) && cases[c].op != &dti_op_blocks; m++)
            dt_test_on_ranks(meshes[m], rich_placements, &cases[c]);
}

DT_TEST(rows, products_and_sums_on_two_mesh_dims)
{
    static const dt_op *const ops[] = { &dti_op_add, &dti_op_linear, &dti_op_embedding };

    for (size_t c = 0; c < DT_COUNT(cases); c++)
        for (size_t o = 0; o < DT_COUNT(ops); o++)
            if (cases[c].op == ops[o]) dt_test_on_ranks("dp=2,tp=2", every_placement, &cases[c]);
}

DT_TEST(rows, every_row_has_a_case)
{
    /* kv_write changes its operand, argmax_id and top_k take keys, top_k_keys gives more of them on
     * more ranks, attention that is trained has several results: all have tests of their own. */
    static const dt_op *const others[] = { &dti_op_kv_write, &dti_op_argmax_id, &dti_op_top_k_keys,
                                           &dti_op_top_k };
    static const char *const several[] = { "attention_lse", "attention_backward" };

    for (int i = 0; i < dti_op_table_size; i++) {
        bool found = false;
        for (size_t o = 0; o < DT_COUNT(others); o++) found = found || others[o] == dti_op_table[i];
        for (size_t s = 0; s < DT_COUNT(several); s++)
            found = found || strncmp(dti_op_table[i]->name, several[s], strlen(several[s])) == 0;
        for (size_t c = 0; c < DT_COUNT(cases); c++)
            found = found || cases[c].op == dti_op_table[i];
        DT_ASSERT(found);
    }
}

DT_TEST(rows, letters_of_every_row_parse)
{
    for (int i = 0; i < dti_op_table_size; i++) {
        dti_letters letters;
        DT_ASSERT_OK(dti_letters_parse(dti_op_table[i]->axes, &letters));
    }
}

DT_TEST(rows, malformed_letters_are_refused_where_they_go_wrong)
{
    dti_letters letters;

    DT_ASSERT_STATUS(dti_letters_parse("ab, bc", &letters), DT_ERR_ARG, "->");
    DT_ASSERT_STATUS(dti_letters_parse("aB -> a", &letters), DT_ERR_ARG,
                     "letter from a to z is expected at \"B");
    DT_ASSERT_STATUS(dti_letters_parse("a[b -> a", &letters), DT_ERR_ARG, "']'");
    DT_ASSERT_STATUS(dti_letters_parse("a, b, c, d, e, f, g, h, i -> a", &letters), DT_ERR_ARG,
                     "operands");
    DT_ASSERT_STATUS(dti_letters_parse("a -> a b", &letters), DT_ERR_ARG, "nothing is expected");
}
