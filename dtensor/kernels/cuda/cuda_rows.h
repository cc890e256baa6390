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
    ROW(silu) \
    ROW(gelu_new) \
    ROW(gelu_tanh) \
    ROW(silu_mul) \
    ROW(gelu_tanh_mul) \
    ROW(soft_cap) \
    ROW(cast) \
    ROW(add_scalar) \
    ROW(mul_scalar) \
    ROW(sum) \
    ROW(max) \
    ROW(min) \
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
    ROW(top_k)
/* clang-format on */

#endif
