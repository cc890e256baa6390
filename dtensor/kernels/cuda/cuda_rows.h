/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the operator table (dtensor/ops/table.c) that have a CUDA kernel, one a line:
 * ROW(name) is dti_name_cuda(). */
#ifndef DTI_CUDA_ROWS_H
#define DTI_CUDA_ROWS_H

/* clang-format off */
#define DTI_CUDA_ROWS(ROW) \
    ROW(add) \
    ROW(mul) \
    ROW(sub) \
    ROW(div) \
    ROW(where) \
    ROW(compare) \
    ROW(neg) \
    ROW(exp) \
    ROW(log) \
    ROW(sqrt) \
    ROW(rsqrt) \
    ROW(tanh) \
    ROW(sigmoid) \
    ROW(relu) \
    ROW(relu2) \
    ROW(relu6) \
    ROW(leaky_relu) \
    ROW(hardswish) \
    ROW(sqrtsoftplus) \
    ROW(silu) \
    ROW(quick_gelu) \
    ROW(mish) \
    ROW(laplace) \
    ROW(gelu) \
    ROW(gelu_10) \
    ROW(gelu_python) \
    ROW(gelu_tanh) \
    ROW(gelu_new) \
    ROW(gelu_fast) \
    ROW(silu_mul) \
    ROW(gelu_tanh_mul) \
    ROW(soft_cap) \
    ROW(cast) \
    ROW(add_scalar) \
    ROW(mul_scalar) \
    ROW(sum) \
    ROW(max) \
    ROW(min) \
    ROW(softmax) \
    ROW(log_softmax) \
    ROW(cumsum) \
    ROW(matmul) \
    ROW(permute) \
    ROW(concat) \
    ROW(pad) \
    ROW(index_select) \
    ROW(dropout) \
    ROW(linear) \
    ROW(linear_bias) \
    ROW(add_bias) \
    ROW(rms_norm) \
    ROW(rms_norm_1p) \
    ROW(layer_norm) \
    ROW(embedding) \
    ROW(rope_table) \
    ROW(rope) \
    ROW(kv_write) \
    ROW(attention) \
    ROW(route_ids) \
    ROW(route_weights) \
    ROW(experts) \
    ROW(slice) \
    ROW(blocks) \
    ROW(argmax_key) \
    ROW(argmax_id) \
    ROW(top_k_keys) \
    ROW(top_k) \
    ROW(exp_backward) \
    ROW(log_backward) \
    ROW(sqrt_backward) \
    ROW(rsqrt_backward) \
    ROW(tanh_backward) \
    ROW(sigmoid_backward) \
    ROW(relu_backward) \
    ROW(relu2_backward) \
    ROW(relu6_backward) \
    ROW(leaky_relu_backward) \
    ROW(hardswish_backward) \
    ROW(sqrtsoftplus_backward) \
    ROW(silu_backward) \
    ROW(quick_gelu_backward) \
    ROW(mish_backward) \
    ROW(laplace_backward) \
    ROW(gelu_backward) \
    ROW(gelu_10_backward) \
    ROW(gelu_python_backward) \
    ROW(gelu_tanh_backward) \
    ROW(gelu_new_backward) \
    ROW(gelu_fast_backward) \
    ROW(silu_mul_backward) \
    ROW(gelu_tanh_mul_backward) \
    ROW(soft_cap_backward) \
    ROW(softmax_backward) \
    ROW(log_softmax_backward) \
    ROW(rms_norm_backward) \
    ROW(rms_norm_1p_backward) \
    ROW(layer_norm_backward) \
    ROW(embedding_backward) \
    ROW(cross_entropy_sums) \
    ROW(cross_entropy) \
    ROW(cross_entropy_backward) \
    ROW(count_targets) \
    ROW(accumulate)
/* clang-format on */

#endif
