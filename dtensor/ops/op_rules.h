/* SPDX-License-Identifier: Apache-2.0
 *
 * How an operator's shapes and placements are decided: the parsed letters of a row, the call that
 * rules look at, and the two rules that the letters themselves give. */
#ifndef DTI_OP_RULES_H
#define DTI_OP_RULES_H

#include <dtensor/ops.h>

#include "dtensor/kernels/formulas.h"
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

/* One term, from *at on; what stands in brackets is added to all->whole. */
dt_status dti_letters_term(const char *axes, const char **at, dti_letters *all,
                           dti_term *term) DT_MUST_USE;

/* The placements of one line of op->accepts, operands first. */
typedef struct dti_accepted {
    dt_placement in[DT_OP_MAX_IN];
    dt_placement out[DT_OP_MAX_OUT];
} dti_accepted;

/* What op->cost says: sums of products of letters, and what is touched if that is not all. */
enum { DTI_COST_TERMS = 4 };
typedef struct dti_cost {
    int n_terms; /* 0: by all letters */
    double times[DTI_COST_TERMS];
    dti_term term[DTI_COST_TERMS];
    bool touches; /* `touched` is set; bit i of `nothing`: operand or, after those, result i is not
                   * touched at all */
    dti_letters touched;
    uint32_t nothing;
} dti_cost;

/* A row as it is read once: checked, its texts parsed. */
typedef struct dti_row {
    const dt_op *op;
    dti_letters letters;
    dti_cost cost;
    int n_accepted;
    dti_accepted *accepted;
    struct dti_row *next;
} dti_row;

/* Bytes of a row's attributes that rules look at, and by which calls differ. */
static inline size_t dti_op_key_bytes(const dt_op *op)
{
    return (op->flags & DT_OP_VALUE_ATTR) != 0 ? 0 : op->attr_bytes - op->value_bytes;
}

/* As many bytes of attributes as a row may have. */
dt_status dti_row_check_attr(const dt_op *op) DT_MUST_USE;

/* Reads a row: DT_ERR_ARG names the field that it may not have, or what is wrong with it. */
dt_status dti_row_read(const dt_op *op, dti_row *out) DT_MUST_USE;
void dti_row_free(dti_row *row); /* what it points to */

/* Parts of it: accepts.c, op_work.c. */
dt_status dti_accepts_read(const dt_op *op, const dti_letters *letters, dti_row *out) DT_MUST_USE;
dt_status dti_cost_read(const dt_op *op, const dti_letters *letters, dti_cost *out) DT_MUST_USE;

/* "axis c", "leading axis 1", for messages. Returns `text`. */
enum { DTI_LETTER_BYTES = 24 };
const char *dti_letter_text(int letter, char text[DTI_LETTER_BYTES]);

/* The letter of `axis` of a tensor with n_axes axes under `term`. */
static inline int dti_letter_of(const dti_term *term, int n_axes, int axis)
{
    const int leading = n_axes - term->n_letters;

    return axis < leading ? DTI_DOTS + axis : term->letter[axis - leading];
}

/* The axis that `letter` names, or -1. */
int dti_axis_of(const dti_term *term, int n_axes, int letter);

/* Dtypes of the results, after checking those of the operands. */
dt_status dti_row_dtypes(dt_op_shapes *call) DT_MUST_USE;

/* Extents of the results: by letters, then by the row's own function. */
dt_status dti_row_extents(const dti_row *row, dt_op_shapes *call) DT_MUST_USE;

/* What a call costs whose shapes are all known. */
void dti_row_work(const dti_row *row, const dt_op_shapes *call, dt_op_work *out);

enum { DTI_SPREAD_OPERANDS = 4, DTI_CALL_NUMBERS = 1025 };

/* One call of an operator while it is decided. The sharding rule, one mesh dim at a time, fills
 * in_place (what it needs) and out_place of one result. */
typedef struct dti_op_call {
    const dt_op *op;
    const dti_row *row;
    const void *attr;
    int n;
    dt_tensor *const *in;
    int result;      /* that is decided; what is said of the operands is the same for all */
    int out_axes;    /* of that result */
    uint32_t spread; /* bit 8 i + a: operand i has one element along axis a, others have more */
    bool may_move;   /* operands that clash may be made Replicate; else a clash is an error */
    dt_placement in_place[DT_OP_MAX_IN][DT_MAX_DIMS];
    dt_placement out_place[DT_MAX_DIMS];
    bool reduced;   /* a letter vanished: partial terms of a sum must not be rounded */
    uint32_t terms; /* bit m: neighbours hold terms that pass; rules see them as copies */
    int64_t numbers[DTI_CALL_NUMBERS]; /* for offsets and blocks of out_place: of one mesh dim */
} dti_op_call;

/* That word, of a row that spreads; whether it says so of an axis. */
uint32_t dti_op_spread(dt_tensor *const *in, int n);
static inline bool dti_spreads(const dti_op_call *call, int i, int axis)
{
    return i < DTI_SPREAD_OPERANDS && (call->spread >> (DT_MAX_AXES * i + axis) & 1u) != 0;
}

/* Calls `dim` for each mesh dim of more than one rank; on the others the result is whole. */
dt_status dti_shard_dims(dti_op_call *call, dt_status (*dim)(dti_op_call *call, int m)) DT_MUST_USE;

/* Placements by letters: on every mesh dim, and on one that has more than one rank. */
dt_status dti_shard_letters(dti_op_call *call) DT_MUST_USE;
dt_status dti_shard_letters_dim(dti_op_call *call, int m) DT_MUST_USE;

/* Placements by the lines of op->accepts. */
dt_status dti_shard_accepts(dti_op_call *call) DT_MUST_USE;

/* For a row with such lines: are axes that one mesh dim cuts of one extent, or cut into equal
 * pieces? `in` and `out`: layouts of operands as they will lie and of results. */
dt_status dti_accepts_fit(const dt_op_shapes *call, const dt_layout *const *in,
                          const dt_layout *const *out) DT_MUST_USE;

/* Around a row's rule: terms of a Shard become copies, which the rule is given, and where the row
 * is linear in who has them what results is terms again, or Partial. Where it is not they are
 * refused, or reduced before if the call may move. */
dt_status dti_op_take_terms(dti_op_call *call) DT_MUST_USE;
dt_status dti_op_give_terms(dti_op_call *call) DT_MUST_USE;

/* For rules: may a sum over what mesh dim m cuts, by `cut`, be taken? Not if copies counted. */
static inline bool dti_op_counts_copies(const dti_op_call *call, int m, const dt_placement *cut)
{
    return cut->replicas > 1 && !(call->terms >> m & 1u);
}

/* For rules: operands do not fit on mesh dim m. With may_move all operands become Replicate there
 * and DT_OK comes back; otherwise DT_ERR_LAYOUT with the operator's name and letters before the
 * message. */
dt_status dti_op_clash(dti_op_call *call, int m, const char *fmt, ...) DT_PRINTF(3, 4) DT_MUST_USE;

/* What a kernel returned; one that fails without a message gets one that names it. */
dt_status dti_kernel_said(const char *name, dt_status st) DT_MUST_USE;

/* Own rules of rows whose shapes or placements letters cannot say (rules_own.c). */
dt_status dti_heads_extents(dt_op_shapes *call);
dt_status dti_heads_shard(dti_op_call *call);
dt_status dti_unheads_extents(dt_op_shapes *call);
dt_status dti_unheads_shard(dti_op_call *call);
dt_status dti_rope_table_extents(dt_op_shapes *call);
dt_status dti_rope_extents(dt_op_shapes *call);
dt_status dti_slice_extents(dt_op_shapes *call);
dt_status dti_slice_shard(dti_op_call *call);
dt_status dti_blocks_extents(dt_op_shapes *call);
dt_status dti_blocks_shard(dti_op_call *call);
dt_status dti_causal_conv_extents(dt_op_shapes *call);
dt_status dti_gated_delta_backward_extents(dt_op_shapes *call);
dt_status dti_causal_conv_slots_extents(dt_op_shapes *call);
dt_status dti_gated_delta_slots_extents(dt_op_shapes *call);
extern const char *const dti_causal_conv_slots_lines[], *const dti_gated_delta_slots_lines[];
dt_status dti_route_ids_extents(dt_op_shapes *call);
dt_status dti_experts_extents(dt_op_shapes *call);
dt_status dti_experts_shard(dti_op_call *call);
dt_status dti_experts_clamped_extents(dt_op_shapes *call);
dt_status dti_experts_clamped_shard(dti_op_call *call);
dt_status dti_experts_packed_extents(dt_op_shapes *call);
dt_status dti_experts_packed_shard(dti_op_call *call);
dt_status dti_linear_packed_extents(dt_op_shapes *call);

/* Operand `codes` [..., n_in bits / 8] and the scales behind it, [..., n_in / group]. */
dt_status dti_packed_extents(const dt_op_shapes *call, int codes, int64_t n_in, int bits,
                             int64_t group) DT_MUST_USE;
dt_status dti_linear_packed_shard(dti_op_call *call);
dt_status dti_top_k_keys_extents(dt_op_shapes *call);
dt_status dti_top_k_keys_shard(dti_op_call *call);
dt_status dti_top_k_extents(dt_op_shapes *call);
dt_status dti_reduce_extents(dt_op_shapes *call);
dt_status dti_extreme_extents(dt_op_shapes *call);
dt_status dti_sum_shard(dti_op_call *call);
dt_status dti_max_shard(dti_op_call *call);
dt_status dti_min_shard(dti_op_call *call);
dt_status dti_add_scalar_shard(dti_op_call *call);
dt_status dti_attention_extents(dt_op_shapes *call);
dt_status dti_attention_backward_extents(dt_op_shapes *call);
dt_status dti_attention_stats_extents(dt_op_shapes *call);
dt_status dti_attention_shard(dti_op_call *call);
dt_status dti_attention_backward_shard(dti_op_call *call);
dt_status dti_attention_paged_extents(dt_op_shapes *call);
dt_status dti_attention_paged_shard(dti_op_call *call);
dt_status dti_kv_write_paged_extents(dt_op_shapes *call);
dt_status dti_kv_write_paged_shard(dti_op_call *call);

dt_status dti_cross_entropy_sums_extents(dt_op_shapes *call);
dt_status dti_cross_entropy_shard(dti_op_call *call);

/* Of general rows (rules_general.c). */
dt_status dti_first_shard(dti_op_call *call);
dt_status dti_line_extents(dt_op_shapes *call);
dt_status dti_line_shard(dti_op_call *call);
dt_status dti_permute_extents(dt_op_shapes *call);
dt_status dti_permute_shard(dti_op_call *call);
dt_status dti_view_extents(dt_op_shapes *call);
dt_status dti_view_shard(dti_op_call *call);
dt_status dti_concat_extents(dt_op_shapes *call);
dt_status dti_concat_shard(dti_op_call *call);
dt_status dti_pad_extents(dt_op_shapes *call);
dt_status dti_pad_shard(dti_op_call *call);
dt_status dti_index_select_extents(dt_op_shapes *call);
dt_status dti_index_select_shard(dti_op_call *call);
dt_status dti_index_select_backward_extents(dt_op_shapes *call);
dt_status dti_index_select_backward_shard(dti_op_call *call);

/* Costs that letters cannot say: rows that copy what results hold, attention, experts. */
void dti_copy_work(const dt_op_shapes *call, dt_op_work *work);
void dti_attention_work(const dt_op_shapes *call, dt_op_work *work);
void dti_attention_paged_work(const dt_op_shapes *call, dt_op_work *work);
void dti_attention_backward_work(const dt_op_shapes *call, dt_op_work *work);
void dti_experts_work(const dt_op_shapes *call, dt_op_work *work);
void dti_experts_packed_work(const dt_op_shapes *call, dt_op_work *work);
void dti_experts_backward_work(const dt_op_shapes *call, dt_op_work *work);

/* Attributes of attention (ops.c). */
struct dti_attention_attr dti_attention_attr_of(const dt_attention_options *options);

/* The built-in rows (table.c), and all of them in a list for tests and documents. */
extern const dt_op *const dti_op_table[];
extern const int dti_op_table_size;
extern const dt_op dti_op_add, dti_op_mul, dti_op_silu_mul, dti_op_cast, dti_op_linear,
    dti_op_linear_bias, dti_op_add_bias, dti_op_rms_norm, dti_op_layer_norm, dti_op_embedding,
    dti_op_rope_table, dti_op_rope, dti_op_heads, dti_op_unheads, dti_op_kv_write, dti_op_attention,
    dti_op_slice, dti_op_argmax_key, dti_op_argmax_id, dti_op_add_scalar, dti_op_mul_scalar,
    dti_op_sum, dti_op_max, dti_op_min, dti_op_gelu_tanh_mul, dti_op_soft_cap, dti_op_rms_norm_1p,
    dti_op_rms_norm_once, dti_op_blocks, dti_op_route_ids, dti_op_route_ids_bias,
    dti_op_route_weights, dti_op_experts, dti_op_experts_clamped, dti_op_experts_packed,
    dti_op_experts_packed_zeros, dti_op_experts_e4m3, dti_op_top_k_keys, dti_op_top_k,
    dti_op_linear_packed, dti_op_linear_packed_zeros, dti_op_linear_e4m3, dti_op_causal_conv,
    dti_op_gated_delta, dti_op_causal_conv_slots, dti_op_gated_delta_slots;
extern const dt_op dti_op_sub, dti_op_div, dti_op_where, dti_op_compare, dti_op_softmax,
    dti_op_log_softmax, dti_op_cumsum, dti_op_matmul, dti_op_matmul_nt, dti_op_matmul_tn,
    dti_op_matmul_tt, dti_op_reshape, dti_op_permute, dti_op_concat_2, dti_op_concat_3,
    dti_op_concat_4, dti_op_concat_5, dti_op_concat_6, dti_op_pad, dti_op_index_select,
    dti_op_dropout, dti_op_attention_bias, dti_op_attention_sinks, dti_op_attention_bias_sinks;
extern const dt_op dti_op_linear_backward_x, dti_op_linear_backward_w, dti_op_add_bias_backward,
    dti_op_attention_lse, dti_op_attention_lse_bias, dti_op_attention_lse_sinks,
    dti_op_attention_lse_bias_sinks, dti_op_attention_lse_segments,
    dti_op_attention_lse_bias_segments, dti_op_attention_lse_sinks_segments,
    dti_op_attention_lse_bias_sinks_segments, dti_op_attention_stats, dti_op_attention_backward,
    dti_op_attention_backward_bias, dti_op_attention_backward_segments,
    dti_op_attention_backward_bias_segments, dti_op_attention_backward_sinks, dti_op_rope_backward;
extern const dt_op dti_op_kv_write_paged, dti_op_attention_paged, dti_op_attention_paged_bias,
    dti_op_attention_paged_sinks, dti_op_attention_paged_bias_sinks;
#define F(name, formula, slope) extern const dt_op dti_op_##name;
DTI_FORMULAS(F)
#undef F

/* Gradients: <row>_backward. */
extern const dt_op dti_op_linear_backward_x, dti_op_linear_backward_w, dti_op_add_bias_backward;
extern const dt_op dti_op_embedding_backward, dti_op_cross_entropy_sums, dti_op_cross_entropy,
    dti_op_cross_entropy_backward, dti_op_count_targets, dti_op_accumulate;
extern const dt_op dti_op_silu_mul_backward, dti_op_gelu_tanh_mul_backward,
    dti_op_soft_cap_backward, dti_op_softmax_backward, dti_op_log_softmax_backward,
    dti_op_rms_norm_backward, dti_op_rms_norm_1p_backward, dti_op_layer_norm_backward,
    dti_op_cumsum_backward, dti_op_index_select_backward, dti_op_route_weights_backward,
    dti_op_experts_backward, dti_op_experts_backward_x, dti_op_experts_clamped_backward,
    dti_op_experts_clamped_backward_x, dti_op_causal_conv_backward, dti_op_gated_delta_backward;
#define F(name, formula, slope) extern const dt_op dti_op_##name##_backward;
DTI_CURVES(F)
#undef F

#endif
