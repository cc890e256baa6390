/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward: of y = f(x, ...) and dy, the gradient of a loss by y, the gradients by the operands.
 *
 *   dy     has the dtype of y, or is f32 and rounded to it, and lies as y does, a sum of terms
 *          reduced
 *   dx, .. each belongs to the tape, NULL after the first error. A NULL pointer: that gradient is
 *          not wanted, and not computed where that saves work. Gradients of values have their
 *          dtype, f32 where they are terms of a sum; gradients of parameters are f32, summed over
 *          tokens in an order that depends on shapes alone. A cut of the tokens leaves them
 *          Partial(sum). All is computed in f32.
 *
 * Collective  no: none communicates, unless its comment says so or the tape's policy allows moves.
 * Errors      latched on the tape, as dt_apply() says. */
#ifndef DT_OPS_BACKWARD_H
#define DT_OPS_BACKWARD_H

#include <dtensor/ops.h>

#ifdef __cplusplus
extern "C" {
#endif

/* y [..., o] = x [..., i] w[o, i]^T (+ bias[o]): dx = dy w, dw = dy^T x, db = the sum of dy. Where
 * dy is f32 and the parameters are not, it is rounded to their dtype first: the gradient of the
 * cast that made y f32. w is needed for dx, x for dw. */
DT_API void dt_linear_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *x, dt_tensor *w,
                               dt_tensor **dx, dt_tensor **dw, dt_tensor **db);

/* db [o] f32 of y = x + bias; dx is dy. */
DT_API dt_tensor *dt_add_bias_backward(dt_tape *tape, dt_tensor *dy);

/* dy, x [..., d] F, w [d] F, eps as it was -> dx [..., d] F, dw and db [d] f32. Terms of a sum pass
 * in dy. The first is that of dt_rms_norm_once(), too. */
DT_API void dt_rms_norm_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *x, dt_tensor *w,
                                 float eps, dt_tensor **dx, dt_tensor **dw);
DT_API void dt_rms_norm_1p_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *x, dt_tensor *w,
                                    float eps, dt_tensor **dx, dt_tensor **dw);

/* Where results go; NULL: not wanted. */
typedef struct dt_layer_norm_grads {
    dt_tensor **dx, **dw, **db;
} dt_layer_norm_grads;
DT_API void dt_layer_norm_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *x, dt_tensor *w,
                                   float eps, const dt_layer_norm_grads *out);

/* dy, x [...] F -> dy times the slope at x of a function of one element: `row` is dt_activation.row
 * or dt_op_find("exp"). Terms of a sum pass in dy. DT_ERR_ARG for a row that is none. */
DT_API dt_tensor *dt_curve_backward(dt_tape *tape, const dt_op *row, dt_tensor *dy, dt_tensor *x);

/* dy, gate, up [...] F -> dgate, dup [...] F, in one pass. Terms of a sum pass in dy. */
DT_API void dt_silu_mul_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *gate, dt_tensor *up,
                                 dt_tensor **dgate, dt_tensor **dup);
DT_API void dt_gelu_tanh_mul_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *gate, dt_tensor *up,
                                      dt_tensor **dgate, dt_tensor **dup);

/* dy [..., d] float, ids [...] i32, the table [v, d] for its shape and where it is cut, its values
 * are not read -> [v, d] f32: rows of dy added by id, those of one id in their order. An id that
 * no row has adds nothing. Where v is cut dy must be whole. */
DT_API dt_tensor *dt_embedding_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *ids,
                                        dt_tensor *table);

/* x [...] any float, sum [...] f32, laid alike -> sum itself, which becomes sum + x. Terms of sums
 * pass if both are. */
DT_API dt_tensor *dt_accumulate(dt_tape *tape, dt_tensor *x, dt_tensor *sum);

/* dy, y [...] F, y = dt_soft_cap(x, cap) -> dx [...] F. Terms of a sum pass in dy. */
DT_API dt_tensor *dt_soft_cap_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *y, double cap);

/**
 * Gradients of dt_softmax() and dt_log_softmax(), from what they returned.
 *
 *   dy, y   [...] F, laid alike
 *   result  [...] F
 *
 * Where ranks share the axis, one sum for each line is reduced over them, in f32: a move that the
 * tape counts under "softmax" or "log_softmax".
 *
 * Collective  if the axis is cut: over y's mesh. Else not.
 * Errors      latched: those of dt_apply() and dt_move(); DT_ERR_LAYOUT if an operand is Partial
 */
DT_API dt_tensor *dt_softmax_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *y, int axis);
DT_API dt_tensor *dt_log_softmax_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *y, int axis);

/* dy [...] F -> [...] F: sums from the last row on. Terms of a sum pass. */
DT_API dt_tensor *dt_cumsum_backward(dt_tape *tape, dt_tensor *dy, int axis);

/* dy [..., n, ...] float, ids [n] i32 -> [..., extent, ...] in dy's dtype: rows of dy added by id,
 * those of one id in their order, in f32. An id that no row has adds nothing. A cut of those n
 * leaves Partial(sum). */
DT_API dt_tensor *dt_index_select_backward(dt_tape *tape, dt_tensor *dy, int axis, dt_tensor *ids,
                                           int64_t extent);

/* dy [..., k] F, logits [..., e] F, ids [..., k], which are constants -> [..., e] F, of weights
 * that dt_route_tokens() made with these scores and scale, normalised or not. Terms of a sum pass
 * in dy. */
DT_API dt_tensor *dt_route_weights_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *logits,
                                            dt_tensor *ids, const dt_routing *routing);

/* Operands of dt_experts() as they were given. */
typedef struct dt_experts_kept {
    dt_tensor *x, *ids, *weights, *gate_up, *down;
} dt_experts_kept;

/* Where results go; NULL: not wanted. */
typedef struct dt_experts_gradients {
    dt_tensor **dx, **dweights, **dgate_up, **ddown;
    dt_tensor **dgate_up_bias, **ddown_bias; /* of clamped experts */
} dt_experts_gradients;

/* dy [..., d] F -> dx [..., d] and dweights [..., k] F, dgate_up [e, 2 f, d] and ddown [e, d, f]
 * f32. Of each token what its experts made of it is computed once more. Where ranks share the
 * experts dy is whole, dx and dweights are Partial(sum), dgate_up and ddown lie as gate_up and
 * down. Else terms of a sum pass in dy. */
DT_API void dt_experts_backward(dt_tape *tape, dt_tensor *dy, const dt_experts_kept *kept,
                                const dt_experts_gradients *out);

/* The same of dt_experts_clamped(): dgate_up_bias [e, 2 f] and ddown_bias [e, d] f32, which lie as
 * the biases do, whole where these are. A gate at its limit and an up at either of its own pass a
 * gradient, beyond it they do not. */
DT_API void dt_experts_clamped_backward(dt_tape *tape, dt_tensor *dy, const dt_experts_kept *kept,
                                        const dt_clamp *clamp, const dt_experts_gradients *out);

/* dx [b, t, h, e] F of y = rope(x): dy is turned back. */
DT_API dt_tensor *dt_rope_backward(dt_tape *tape, dt_tensor *dy, dt_tensor *table);

/* dt_attention() that also gives what its gradients need: lse [b, t, h] f32, the log-sum-exp of the
 * scores of each row, its sink included. NULL: not wanted. */
DT_API dt_tensor *dt_attention_lse(dt_tape *tape, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                                   dt_tensor *positions, const dt_attention_options *options,
                                   dt_tensor **lse);

/* What a way back needs of the way forward. */
typedef struct dt_attention_kept {
    dt_tensor *q, *k, *v, *positions; /* as they were given */
    dt_tensor *y, *lse;               /* as they came */
} dt_attention_kept;

/* Gradients: of q, k and v in their dtype; f32 [b or 1, h or 1, t or 1, s] and [h] of the bias and
 * sinks of the options, NULL where those are. */
typedef struct dt_attention_gradients {
    dt_tensor *q, *k, *v, *bias, *sinks;
} dt_attention_gradients;

/* By the options of the way forward. In tiles: no matrix of scores is held. Where ranks that hold
 * other query heads read the same kv heads, and hold them whole, dk and dv are Partial(sum). A row
 * of which a bias hides all keys has no gradient. */
DT_API void dt_attention_backward(dt_tape *tape, dt_tensor *dy, const dt_attention_kept *kept,
                                  const dt_attention_options *options, dt_attention_gradients *out);

#ifdef __cplusplus
}
#endif
#endif
