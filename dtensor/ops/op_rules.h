/* SPDX-License-Identifier: Apache-2.0
 *
 * How an operator's shapes and placements are decided: the parsed letters of a row, the call that
 * rules look at, and the two rules that the letters themselves give. */
#ifndef DTI_OP_RULES_H
#define DTI_OP_RULES_H

#include <dtensor/ops.h>

#include "dtensor/tensor_internal.h"

/* Letters a..z are 0..25; the axes under "..." are letters of their own, counted from the left. */
enum { DTI_DOTS = 26, DTI_N_LETTERS = DTI_DOTS + DT_MAX_AXES };

/* One side of a comma: "...i" has dots and one letter. */
typedef struct dti_term {
    bool dots;
    int n_letters;
    int letter[DT_MAX_AXES];
} dti_term;

typedef struct dti_letters {
    int n_in, n_out;
    dti_term in[DT_OP_MAX_IN];
    dti_term out[DT_OP_MAX_OUT];
    uint32_t whole; /* bit l: letter l stood in brackets */
} dti_letters;

/* Grammar: term {", " term} " -> " term {", " term}; term = ["..."] {letter | "[" letter "]"}. A
 * scalar result is an empty term. DT_ERR_ARG points at the offending character. */
dt_status dti_letters_parse(const char *axes, dti_letters *out) DT_MUST_USE;

/* The letter of `axis` of a tensor with n_axes axes under `term`. */
static inline int dti_letter_of(const dti_term *term, int n_axes, int axis)
{
    const int leading = n_axes - term->n_letters;

    return axis < leading ? DTI_DOTS + axis : term->letter[axis - leading];
}

/* The axis that `letter` names, or -1. */
int dti_axis_of(const dti_term *term, int n_axes, int letter);

/* One call of an operator while it is decided. The shape rule fills out_axes and out_shape; the
 * sharding rule, one mesh dim at a time, fills in_place (what it needs) and out_place. */
typedef struct dti_op_call {
    const dt_op *op;
    const dti_letters *letters;
    const void *attr;
    int n;
    dt_tensor *const *in;
    int result;    /* that is decided; what is said of the operands is the same for all */
    bool may_move; /* operands that clash may be made Replicate; else a clash is an error */
    int out_axes;
    int64_t out_shape[DT_MAX_AXES];
    dt_placement in_place[DT_OP_MAX_IN][DT_MAX_DIMS];
    dt_placement out_place[DT_MAX_DIMS];
    bool reduced; /* a letter vanished: partial terms of a sum must not be rounded */
} dti_op_call;

/* Shapes by letters. */
dt_status dti_infer_letters(dti_op_call *call) DT_MUST_USE;

/* Placements by letters: on every mesh dim, and on one that has more than one rank. */
dt_status dti_shard_letters(dti_op_call *call) DT_MUST_USE;
dt_status dti_shard_letters_dim(dti_op_call *call, int m) DT_MUST_USE;

/* For rules: operands do not fit on mesh dim m. With may_move all operands become Replicate there
 * and DT_OK comes back; otherwise DT_ERR_LAYOUT with the operator's name and letters before the
 * message. */
dt_status dti_op_clash(dti_op_call *call, int m, const char *fmt, ...) DT_PRINTF(3, 4) DT_MUST_USE;

/* Own rules of rows whose shapes or placements letters cannot say (rules_own.c). */
dt_status dti_heads_infer(dti_op_call *call);
dt_status dti_heads_shard(dti_op_call *call);
dt_status dti_unheads_infer(dti_op_call *call);
dt_status dti_unheads_shard(dti_op_call *call);
dt_status dti_rope_table_infer(dti_op_call *call);
dt_status dti_rope_infer(dti_op_call *call);
dt_status dti_slice_infer(dti_op_call *call);
dt_status dti_slice_shard(dti_op_call *call);
dt_status dti_blocks_infer(dti_op_call *call);
dt_status dti_blocks_shard(dti_op_call *call);
dt_status dti_route_ids_infer(dti_op_call *call);
dt_status dti_experts_infer(dti_op_call *call);
dt_status dti_experts_shard(dti_op_call *call);
dt_status dti_top_k_keys_infer(dti_op_call *call);
dt_status dti_top_k_keys_shard(dti_op_call *call);
dt_status dti_top_k_infer(dti_op_call *call);
dt_status dti_reduce_infer(dti_op_call *call);
dt_status dti_extreme_infer(dti_op_call *call);
dt_status dti_sum_shard(dti_op_call *call);
dt_status dti_max_shard(dti_op_call *call);
dt_status dti_min_shard(dti_op_call *call);
dt_status dti_add_scalar_shard(dti_op_call *call);
dt_status dti_attention_infer(dti_op_call *call);
dt_status dti_attention_shard(dti_op_call *call);

/* The built-in rows (table.c), and all of them in a list for tests and documents. */
extern const dt_op *const dti_op_table[];
extern const int dti_op_table_size;
extern const dt_op dti_op_add, dti_op_mul, dti_op_silu, dti_op_gelu_new, dti_op_silu_mul,
    dti_op_cast, dti_op_linear, dti_op_linear_bias, dti_op_add_bias, dti_op_rms_norm,
    dti_op_layer_norm, dti_op_embedding, dti_op_rope_table, dti_op_rope, dti_op_heads,
    dti_op_unheads, dti_op_kv_write, dti_op_attention, dti_op_slice, dti_op_argmax_key,
    dti_op_argmax_id, dti_op_add_scalar, dti_op_mul_scalar, dti_op_sum, dti_op_max, dti_op_min,
    dti_op_gelu_tanh, dti_op_gelu_tanh_mul, dti_op_soft_cap, dti_op_rms_norm_1p, dti_op_blocks,
    dti_op_route_ids, dti_op_route_weights, dti_op_experts, dti_op_top_k_keys, dti_op_top_k;

#endif
