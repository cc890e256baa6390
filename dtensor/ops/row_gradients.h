/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward of the library's rows, as the operator table names them, and what they share. */
#ifndef DTI_ROW_GRADIENTS_H
#define DTI_ROW_GRADIENTS_H

#include <dtensor/gradients.h>

#define BACKWARD(row) \
    void dti_##row##_gradient(dt_tape *t, const dt_node *n, dt_tensor *const *dy, dt_tensor **dx)
BACKWARD(add);
BACKWARD(sub);
BACKWARD(mul);
BACKWARD(div);
BACKWARD(where);
BACKWARD(neg);
BACKWARD(cast);
BACKWARD(add_scalar);
BACKWARD(mul_scalar);
BACKWARD(sum);
BACKWARD(extreme);
BACKWARD(cumsum);
BACKWARD(index_select);
BACKWARD(matmul);
BACKWARD(heads);
BACKWARD(unheads);
BACKWARD(reshape);
BACKWARD(permute);
BACKWARD(linear);
BACKWARD(linear_bias);
BACKWARD(add_bias);
BACKWARD(slice);
BACKWARD(blocks);
BACKWARD(pad);
BACKWARD(concat);

/* gradients_layers.c; curve: of every function of one element */
BACKWARD(curve);
BACKWARD(causal_conv);
BACKWARD(gated_delta);
BACKWARD(silu_mul);
BACKWARD(gelu_tanh_mul);
BACKWARD(soft_cap);
BACKWARD(softmax);
BACKWARD(log_softmax);
BACKWARD(dropout);
BACKWARD(rms_norm);
BACKWARD(rms_norm_1p);
BACKWARD(layer_norm);
BACKWARD(embedding);
BACKWARD(cross_entropy);
BACKWARD(rope);
BACKWARD(attention_lse);
BACKWARD(route_weights);
BACKWARD(experts);
BACKWARD(experts_clamped);

/* Where the gradient of operand i goes; NULL: it is not wanted. */
static inline dt_tensor **dti_wanted(const dt_node *n, int i, dt_tensor **dx)
{
    return dt_node_wants(n, i) ? &dx[i] : NULL;
}

/* Sums g over what broadcasting has repeated of operand i. */
dt_tensor *dti_sum_to_operand(dt_tape *t, const dt_node *n, int i, dt_tensor *g);

/* g [operand i's shape, or one element where it is repeated], repeated to operand i's shape; lies
 * as the operand's gradient does. */
dt_tensor *dti_spread_to_operand(dt_tape *t, const dt_node *n, int i, dt_tensor *g);

#endif
