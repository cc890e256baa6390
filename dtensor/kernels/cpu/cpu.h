/* SPDX-License-Identifier: Apache-2.0
 *
 * The CPU kernels and their state: one dti_cpu per rank. */
#ifndef DTI_CPU_H
#define DTI_CPU_H

#include "dtensor/kernels/attrs.h"
#include "dtensor/kernels/formulas.h"
#include "dtensor/kernels/kernel.h"

typedef enum dti_isa {
    DTI_ISA_PORTABLE,
    DTI_ISA_AVX2,
    DTI_ISA_AVX512,
    DTI_ISA_AVX512_BF16,
    DTI_ISA_AMX, /* all of the above and tiles of bf16 */
    DTI_N_ISAS
} dti_isa;

const char *dti_isa_name(dti_isa isa);
dti_isa dti_isa_detect(void); /* the best that this machine and this build have */

/* "auto" or a name of dti_isa_name(); DT_ERR_UNSUPPORTED names what the machine lacks. */
dt_status dti_isa_parse(const char *text, dti_isa *out) DT_MUST_USE;

/* The pool is borrowed. Holds scratch memory that only grows and the GEMM library's primitives. */
dt_status dti_cpu_create(dti_isa isa, dti_pool *pool, dti_cpu **out) DT_MUST_USE;
void dti_cpu_destroy(dti_cpu **cpu);

/* From now on products of many rows may add up in another order than those of few. */
void dti_cpu_allow_any_order(dti_cpu *cpu);
dti_isa dti_cpu_isa(const dti_cpu *cpu);

/* The same for a kernel that calls others: theirs does not touch it. */
dt_status dti_cpu_outer_scratch(dti_cpu *cpu, size_t bytes, void **out) DT_MUST_USE;

/* 64-byte aligned scratch of at least `bytes`, valid until the next call; grows, never shrinks. */
dt_status dti_cpu_scratch(dti_cpu *cpu, size_t bytes, void **out) DT_MUST_USE;

/* While a kernel of a user's own runs on a GPU: the scratch memory that it asks for is the
 * device's, from `take`. NULL: the host's again. */
typedef dt_status (*dti_scratch_fn)(void *arg, size_t bytes, void **out);
/* What the rank's thread does between parts of kernels that take long: no kernel. NULL: nothing. */
void dti_cpu_do_beside(dti_cpu *cpu, void (*beside)(void *arg), void *arg);

void dti_cpu_lend_scratch(dti_cpu *cpu, dti_scratch_fn take, void *arg);

/* One function per row of the operator table; formulas stand at the definitions.
 * F is any of f32, bf16, f16; model dtype is the dtype of the first float input. Rounding follows
 * Hugging Face: where a sentence says "rounds", the value is rounded to the output's dtype there.
 */
dt_status dti_add_cpu(const dt_kargs *a);     /* x F, y F -> x + y */
dt_status dti_mul_cpu(const dt_kargs *a);     /* x F, y F -> x y */
dt_status dti_sub_cpu(const dt_kargs *a);     /* x F, y F -> x - y */
dt_status dti_div_cpu(const dt_kargs *a);     /* x F, y F -> x / y */
dt_status dti_where_cpu(const dt_kargs *a);   /* mask u8, x F, y F -> mask ? x : y */
dt_status dti_compare_cpu(const dt_kargs *a); /* x F, y F -> u8: x < y, ...; compare_attr */
#define F(name, formula, slope) dt_status dti_##name##_cpu(const dt_kargs *a); /* x F -> formula */
DTI_FORMULAS(F)
#undef F
dt_status dti_silu_mul_cpu(const dt_kargs *a);      /* g F, u F -> silu(g) rounds, times u rounds */
dt_status dti_gelu_tanh_mul_cpu(const dt_kargs *a); /* g F, u F -> gelu_tanh(g) rounds, times u */
dt_status
dti_soft_cap_cpu(const dt_kargs *a); /* x F -> c tanh(x / c), every step rounds; scalar_attr */
dt_status dti_cast_cpu(const dt_kargs *a); /* x any float -> out any float */

/* x [..., O] (F or f32), bias [O] F -> out [..., O]: x + bias in f32, rounds once to out's dtype.
 */
dt_status dti_add_bias_cpu(const dt_kargs *a);

/* x [..., I] F, w [O, I] F (, bias [O] F) -> out [..., O], F or f32. f32 accumulation, bias added
 * in f32, one rounding. Any extent may be 0 (I == 0 gives zeros, plus bias). */
dt_status dti_linear_cpu(const dt_kargs *a);
dt_status dti_linear_packed_cpu(const dt_kargs *a);
dt_status dti_linear_e4m3_cpu(const dt_kargs *a);

/* Gradients of linear and add_bias (linear_backward.c): dy [..., O] F, w [O, I] F -> dx [..., I], F
 * or f32, rounded once; dy [..., O] F, x [..., I] F -> dw [O, I] f32; dy [..., O] F -> db [O] f32,
 * the sum over tokens in their order. */
dt_status dti_linear_backward_x_cpu(const dt_kargs *a);
dt_status dti_linear_backward_w_cpu(const dt_kargs *a);
dt_status dti_add_bias_backward_cpu(const dt_kargs *a);

/* x [..., d] F, w [d] F -> h = x / sqrt(mean x^2 + eps) in f32, rounds, times w, rounds. norm_attr.
 */
dt_status dti_rms_norm_cpu(const dt_kargs *a);

/* The same all in f32, rounds once; times 1 + w. norm_attr. */
dt_status dti_rms_norm_once_cpu(const dt_kargs *a);
dt_status dti_rms_norm_1p_cpu(const dt_kargs *a);

/* x [..., d] F, w [d], b [d] -> (x - mean) / sqrt(var + eps) * w + b in f32, rounds once.
 * norm_attr. */
dt_status dti_layer_norm_cpu(const dt_kargs *a);

/* ids [...] i32 (global), table [V, d] F (this rank's rows start at offset[0]) -> [..., d]; rows of
 * ids that this rank does not own are zeros. */
dt_status dti_embedding_cpu(const dt_kargs *a);

/* positions [B, T] i32, inv_freq [r/2] f32 -> [B, T, r]: cos of (f32 position * f32 inv_freq) in
 * the first half, sin in the second, times factor in f32, rounds. rope_table_attr. */
dt_status dti_rope_table_cpu(const dt_kargs *a);

/* x [B, T, H, e] F, table [B, T, r] F with r <= e -> half-split rotation of the first r columns:
 * y = x cos + rot(x) sin, rot(x) = (-x[r/2:r], x[:r/2]); each product rounds, the sum rounds. */
dt_status dti_rope_cpu(const dt_kargs *a);
dt_status dti_rope_backward_cpu(const dt_kargs *a); /* dy, table -> dx: by the negative angle */

/* k [B, T, K, e] F, positions [B, T] i32, cache [B, S, K, e] F -> out[0] is the cache itself (same
 * data): row positions[b, t] of batch b becomes k[b, t]. A position outside 0..S-1 is DT_ERR_ARG.
 */
dt_status dti_kv_write_cpu(const dt_kargs *a);

/* q [B, T, H, e], K cache [B, S, Kv, e], V cache [B, S, Kv, e], positions [B, T] i32 -> [B, T, H,
 * e]. Global head g = q.offset[2] + h reads kv head g / (n_heads / n_kv_heads), local index minus
 * k.offset[2]. Query at position p sees cache rows j <= p, and j > p - window if window > 0.
 * Scores, softmax and sums in f32, one rounding at the end. attention_attr. */
dt_status dti_attention_cpu(const dt_kargs *a);

/* The same over blocks of a pool (attention_paged.c). k [N, 1, K, e], positions, sequence [N, 1]
 * i32, table [M, C] i32, pool [n, S, K, e], S a multiple of 64: the token at position p of
 * sequence m lies in block table[m, p / S], row p % S. Numbers of sequences and blocks are
 * global: table and pool begin at their offset[0]. A sequence of -1: a row that writes and reads
 * nothing and gives zeros. q, K pool, V pool, positions, sequence, table, bias [N or 1, H or 1,
 * 1, R], sinks -> y. Positions, sequences and blocks that are not there are DT_ERR_ARG. */
dt_status dti_kv_write_paged_cpu(const dt_kargs *a);
dt_status dti_attention_paged_cpu(const dt_kargs *a);

/* As attention, with lse [B, T, H] f32 of each row's scores, sink included; segments [B, S] i32,
 * if any: a query sees the keys of its own. attention_train_attr. */
dt_status dti_attention_lse_cpu(const dt_kargs *a);

/* Its gradients (attention_backward.c). stats: dy, y [B, T, H, e] F, lse -> [B, T, H, 2] f32: lse
 * and dy . y. backward: dy, q, k, v, stats, positions, bias, segments -> dq, dk, dv, dbias f32.
 * sinks: stats, sinks [H] F -> dsinks [H] f32. */
dt_status dti_attention_stats_cpu(const dt_kargs *a);
dt_status dti_attention_backward_cpu(const dt_kargs *a);
dt_status dti_attention_backward_sinks_cpu(const dt_kargs *a);

/* x [..., T, ...] -> out [..., n, ...]: rows begin .. begin + n - 1 of an axis. slice_attr. */
dt_status dti_slice_cpu(const dt_kargs *a);

/* The same from row local_begin on, as many rows as the output has. blocks_attr. */
dt_status dti_blocks_cpu(const dt_kargs *a);

/* x [..., V] F with offset of the last axis -> key [...] i64 whose order is that of (value, lower
 * index first): the maximum over ranks of keys is the first argmax of the whole row. NaN is
 * largest. An empty row gives INT64_MIN. argmax_id takes the index out of a key, i64 [...] -> i32
 * [...]. */
dt_status dti_argmax_key_cpu(const dt_kargs *a);
dt_status dti_argmax_id_cpu(const dt_kargs *a);

/* x [..., V] F with offset of the last axis -> the [..., K] largest of these keys in falling order,
 * INT64_MIN where there are no more; keys [..., C] i64 -> values f32 and indices i32 [..., K] of
 * the K largest, in falling order; -inf and -1 of INT64_MIN. */
dt_status dti_top_k_keys_cpu(const dt_kargs *a);
dt_status dti_top_k_cpu(const dt_kargs *a);

/* x [..., k, ...] F -> [..., ...]: without axis reduce_attr.axis, or one element. Sums in f64, one
 * rounding. NaN wins in max and min; of no elements: 0, -inf, inf. */
dt_status dti_sum_cpu(const dt_kargs *a);
dt_status dti_max_cpu(const dt_kargs *a);
dt_status dti_min_cpu(const dt_kargs *a);

/* x F -> x + value, x value; in f64, rounds. scalar_attr. */
dt_status dti_add_scalar_cpu(const dt_kargs *a);
dt_status dti_mul_scalar_cpu(const dt_kargs *a);

/* Mixtures of experts (routes.c, experts.c). route_attr for the first two. */
dt_status dti_route_ids_cpu(const dt_kargs *a);
dt_status dti_route_weights_cpu(const dt_kargs *a);
dt_status dti_experts_cpu(const dt_kargs *a);
dt_status dti_causal_conv_cpu(const dt_kargs *a);
dt_status dti_gated_delta_cpu(const dt_kargs *a);
dt_status dti_causal_conv_slots_cpu(const dt_kargs *a);
dt_status dti_gated_delta_slots_cpu(const dt_kargs *a);
dt_status dti_causal_conv_backward_cpu(const dt_kargs *a);
dt_status dti_gated_delta_backward_cpu(const dt_kargs *a);
dt_status dti_experts_clamped_cpu(const dt_kargs *a);
dt_status dti_experts_packed_cpu(const dt_kargs *a); /* experts_packed_attr, as the next one */
dt_status dti_experts_e4m3_cpu(const dt_kargs *a);

/* Gradients: dy, then what is kept of the forward call (norm_backward.c, elementwise_backward.c,
 * softmax.c). */
dt_status dti_rms_norm_backward_cpu(const dt_kargs *a);    /* of rms_norm; norm_backward_attr */
dt_status dti_rms_norm_1p_backward_cpu(const dt_kargs *a); /* of rms_norm_1p */
dt_status dti_layer_norm_backward_cpu(const dt_kargs *a);  /* of layer_norm */
#define F(name, formula, slope) dt_status dti_##name##_backward_cpu(const dt_kargs *a);
DTI_CURVES(F)
#undef F
dt_status dti_silu_mul_backward_cpu(const dt_kargs *a);
dt_status dti_gelu_tanh_mul_backward_cpu(const dt_kargs *a);
dt_status dti_soft_cap_backward_cpu(const dt_kargs *a); /* dy, y; scalar_attr */
dt_status dti_softmax_backward_cpu(const dt_kargs *a);  /* dy, y; axis_attr */
dt_status dti_log_softmax_backward_cpu(const dt_kargs *a);
dt_status dti_embedding_backward_cpu(const dt_kargs *a);     /* dy, ids, table */
dt_status dti_index_select_backward_cpu(const dt_kargs *a);  /* dy, ids; select_backward_attr */
dt_status dti_cumsum_backward_cpu(const dt_kargs *a);        /* dy; axis_attr */
dt_status dti_route_weights_backward_cpu(const dt_kargs *a); /* dy, logits, ids; route_attr */
dt_status dti_experts_backward_cpu(const dt_kargs *a); /* dy, x, ids, weights, gate_up, down */
dt_status dti_experts_clamped_backward_cpu(const dt_kargs *a); /* and biases */

/* Cross entropy (cross_entropy.c); cross_entropy_attr, of the last count_attr. */
dt_status dti_cross_entropy_sums_cpu(const dt_kargs *a);
dt_status dti_cross_entropy_cpu(const dt_kargs *a);
dt_status dti_cross_entropy_backward_cpu(const dt_kargs *a);
dt_status dti_count_targets_cpu(const dt_kargs *a);

/* x any float, y f32 -> y itself, which becomes y + x. */
dt_status dti_accumulate_cpu(const dt_kargs *a);

/* Steps of optimizers (steps.c): dtensor/optimize.h calls them, no tape does. */
dt_status dti_adamw_cpu(const dt_kargs *a);
dt_status dti_sgd_cpu(const dt_kargs *a);
dt_status dti_square_digits_cpu(const dt_kargs *a);

/* General operators; what they compute stands at the definitions (softmax.c, matmul.c, moves.c,
 * dropout.c). */
dt_status dti_softmax_cpu(const dt_kargs *a);
dt_status dti_log_softmax_cpu(const dt_kargs *a);
dt_status dti_cumsum_cpu(const dt_kargs *a);
dt_status dti_matmul_cpu(const dt_kargs *a);
dt_status dti_permute_cpu(const dt_kargs *a);
dt_status dti_concat_cpu(const dt_kargs *a);
dt_status dti_pad_cpu(const dt_kargs *a);
dt_status dti_index_select_cpu(const dt_kargs *a);
dt_status dti_dropout_cpu(const dt_kargs *a);

#endif
