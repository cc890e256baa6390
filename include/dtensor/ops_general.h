/* SPDX-License-Identifier: Apache-2.0
 *
 * General operators: arithmetic, functions of one element, choices, products, and what moves rows
 * and axes. Every function takes tensors and returns one that belongs to the tape, NULL after the
 * first error.
 *
 * Collective  no: none communicates, unless its comment says so or the tape's policy allows moves.
 *             All operands lie on one mesh.
 * Errors      latched on the tape, as dt_apply() says.
 *
 * Broadcasting is NumPy's: axes of two operands are matched from the last one on, and an operand
 * that lacks an axis, or has one element along it, has the same values everywhere along it. Such an
 * axis of one element must not be cut. */
#ifndef DT_OPS_GENERAL_H
#define DT_OPS_GENERAL_H

#include <dtensor/factories.h>
#include <dtensor/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

struct dt_op;

/* --- elements --------------------------------------------------------------------------------- */

/* x, y [...] F, broadcast -> x + y, x - y, x y, x / y. Terms of a sum pass where the operation is
 * linear in them: both of a sum or difference, one of a product, the first of a quotient. */
DT_API dt_tensor *dt_add(dt_tape *tape, dt_tensor *x, dt_tensor *y);
DT_API dt_tensor *dt_sub(dt_tape *tape, dt_tensor *x, dt_tensor *y);
DT_API dt_tensor *dt_mul(dt_tape *tape, dt_tensor *x, dt_tensor *y);
DT_API dt_tensor *dt_div(dt_tape *tape, dt_tensor *x, dt_tensor *y);

/* x [...] F: -x, e^x, ln x, the root, 1 / root, tanh x, 1 / (1 + e^-x), max(x, 0), ln(1 + e^x), x
 * / 2 (1 + erf(x / root of 2)). In f32, rounded once. */
DT_API dt_tensor *dt_neg(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_exp(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_log(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_sqrt(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_rsqrt(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_tanh(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_sigmoid(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_relu(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_softplus(dt_tape *tape, dt_tensor *x);
DT_API dt_tensor *dt_gelu(dt_tape *tape, dt_tensor *x);

/* x, y [...] F, broadcast -> u8 [...]: 1 where the relation holds, else 0; nowhere for a NaN. */
typedef enum dt_relation { DT_LESS, DT_LESS_EQUAL, DT_EQUAL } dt_relation;
DT_API dt_tensor *dt_compare(dt_tape *tape, dt_tensor *x, dt_relation relation, dt_tensor *y);

/* mask u8, x, y [...] F, all three broadcast -> x where mask is not 0, y elsewhere. */
DT_API dt_tensor *dt_where(dt_tape *tape, dt_tensor *mask, dt_tensor *x, dt_tensor *y);

/**
 * Dropout: element with global index i becomes 0 where uniform number i of the key, as dt_rand()
 * has it in f32, is below p, and x / (1 - p) elsewhere. So the same elements go on every mesh and
 * whenever the key comes again; dt_random_next() gives each call of a step its own.
 *
 *   x  [...] F; terms of a sum pass
 *   p  0 to 1; 0 is x itself
 *
 * Not collective. Errors: latched, those of dt_apply(); DT_ERR_ARG for another p.
 */
DT_API dt_tensor *dt_dropout(dt_tape *tape, dt_tensor *x, double p, dt_random key);

/* --- along one axis: negative axes count from the end ----------------------------------------- */

/**
 * Softmax along an axis, and its logarithm, in f32 with sums in f64, rounded once.
 *
 * Where ranks share the axis three values per line travel instead of the line: the largest element
 * is found as Partial(max) and reduced, then the sum of all e^(x - largest) as Partial(sum). Both
 * are moves that the tape counts, under "softmax" or "log_softmax", whatever dt_tape_set_moves()
 * says; y is cut as x is.
 *
 * Collective  if the axis is cut: over x's mesh. Else not.
 * Errors      latched: those of dt_apply() and dt_move(); DT_ERR_LAYOUT if x is Partial
 */
DT_API dt_tensor *dt_softmax(dt_tape *tape, dt_tensor *x, int axis);
DT_API dt_tensor *dt_log_softmax(dt_tape *tape, dt_tensor *x, int axis);

/* x [..., k, ...] F -> sums of the elements up to each along the axis, which must be whole; in f64,
 * each rounded. Terms of a sum pass. */
DT_API dt_tensor *dt_cumsum(dt_tape *tape, dt_tensor *x, int axis);

/* x [..., k, ...] float, ids [n] i32 -> [..., n, ...]: row ids[i] of the axis, zeros where there is
 * none. A cut of the axis leaves Partial(sum) of one exact term, a cut of ids cuts the result. */
DT_API dt_tensor *dt_index_select(dt_tape *tape, dt_tensor *x, int axis, dt_tensor *ids);

/* x [..., k, ...] float -> [..., before + k + after, ...] with `value` around. Nothing moves: if
 * the axis is cut, its first and last part grow, and the result is cut at offsets. */
DT_API dt_tensor *dt_pad(dt_tape *tape, dt_tensor *x, int axis, int64_t before, int64_t after,
                         double value);

/* n operands [..., k_i, ...] F -> [..., sum of k_i, ...]. Cuts of other axes stay. Along a cut axis
 * each rank joins its parts, so nothing moves: the result is packed, a block for each operand
 * (dt_slice() takes them out again); up to six operands, all cut into chunks of one unit. */
DT_API dt_tensor *dt_concat(dt_tape *tape, int n, dt_tensor *const *in, int axis);

/* --- axes ------------------------------------------------------------------------------------- */

/**
 * The same elements in row-major order under other axes: a view.
 *
 *   x      any dtype
 *   shape  n_axes extents above 0; one of them may be -1: what is left
 *
 * Axes are matched in the smallest groups whose elements are as many, and a cut survives if each
 * rank's elements stay one piece in order:
 *   - of an axis that stays, whatever it is;
 *   - of the first axis of a group that becomes one, as a cut in units of the rows behind it;
 *   - of a second axis that joins one of at most 32 rows, as a packed cut with a block for each row
 *     ([2, f] cut along f becomes [2 f], gate | up), and back;
 *   - of an axis that splits, if its unit is a multiple of the rows behind (DT_SHARD_UNITS).
 * Other cuts are refused, with words: redistribute first. Terms of any reduction pass.
 *
 * Not collective. Errors: latched, those of dt_apply(); DT_ERR_SHAPE for other numbers of elements.
 */
DT_API dt_tensor *dt_reshape(dt_tape *tape, dt_tensor *x, int n_axes, const int64_t *shape);

/* x any dtype -> axis a of the result is axis axes[a] of x (x's number of axes, each once); two of
 * them exchanged. Every placement goes along. */
DT_API dt_tensor *dt_permute(dt_tape *tape, dt_tensor *x, const int *axes);
DT_API dt_tensor *dt_transpose(dt_tape *tape, dt_tensor *x, int a, int b);

/* --- products --------------------------------------------------------------------------------- */

/* a [..., i, k] F, or [..., k, i] if it lies transposed, b [..., k, j] or [..., j, k] -> [..., i,
 * j]: a product for each leading index. f32 accumulation. If k is cut the result is Partial(sum) in
 * f32. */
DT_API dt_tensor *dt_matmul(dt_tape *tape, dt_tensor *a, bool transposed_a, dt_tensor *b,
                            bool transposed_b);

/* --- activations ------------------------------------------------------------------------------ */

/* One of the names of Transformers' ACT2FN, with its rounding: what PyTorch computes with one call
 * rounds once, what is composed in Python rounds after every step. */
typedef struct dt_activation {
    const char *name;
    const struct dt_op *row;   /* of x; NULL: x itself ("linear") */
    const struct dt_op *gated; /* of gate and up in one pass; NULL: row, then a product */
} dt_activation;

/** Activation i of the table, NULL past the last; and the one of that name, NULL if there is none.
 * Not collective. Errors: none. */
DT_API const dt_activation *dt_activation_at(int i);
DT_API const dt_activation *dt_activation_find(const char *name);

/* x [...] F -> activation(x); gate, up [...] F -> activation(gate), rounded, times up */
DT_API dt_tensor *dt_activate(dt_tape *tape, const dt_activation *activation, dt_tensor *x);
DT_API dt_tensor *dt_activate_mul(dt_tape *tape, const dt_activation *activation, dt_tensor *gate,
                                  dt_tensor *up);

#ifdef __cplusplus
}
#endif
#endif
