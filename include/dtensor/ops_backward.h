/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward: of y = f(x, ...) and dy, the gradient of a loss by y, the gradients by the operands.
 *
 *   dy     has the dtype of y and lies as y does, a sum of terms reduced
 *   dx, .. each belongs to the tape, NULL after the first error. A NULL pointer: that gradient is
 *          not wanted, and not computed where that saves work. Gradients of values have their
 *          dtype, f32 where they are terms of a sum; gradients of parameters are f32, summed over
 *          tokens in an order that depends on shapes alone. A cut of the tokens leaves them
 *          Partial(sum).
 *
 * Collective  no: none communicates, unless the tape's policy allows moves.
 * Errors      latched on the tape, as dt_apply() says. */
#ifndef DT_OPS_BACKWARD_H
#define DT_OPS_BACKWARD_H

#include <dtensor/tensor.h>

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

#ifdef __cplusplus
}
#endif
#endif
