/* SPDX-License-Identifier: Apache-2.0
 *
 * The three tables of one instruction set. Before including, define DT_SIMD and DT_ROWS (the name
 * of the array). */
#include "dtensor/kernels/cpu/cpu_rows.h"

#include <math.h>

#include "dtensor/kernels/cpu/simd.inc.c"

/* What formulas.h is written with. */
#define EXP(x)          vf_exp(x)
#define LOG(x)          vf_log(x)
#define SQRT(x)         vf_sqrt(x)
#define TANH(x)         vf_tanh(x)
#define ERF(x)          vf_erf(x)
#define SILU(x)         vf_silu(x)
#define GELU_TANH(x)    vf_gelu_tanh(x)
#define SELECT(c, a, b) vf_select((c), (a), (b))
#define SET(c)          vf_set(c)

#define T              float
#define LD(p, left)    load_f32((p), (left))
#define ST(p, v, left) store_f32((p), (v), (left))
#define RN(v)          (v)
#define FN(name)       name##_of_f32
#include "dtensor/kernels/cpu/rows.inc.c"

#define T              uint16_t
#define LD(p, left)    vf_of_bf16(load_half((p), (left)))
#define ST(p, v, left) store_half((p), bf16_of_vf(v), (left))
#define RN(v)          round_bf16(v)
#define FN(name)       name##_of_bf16
#include "dtensor/kernels/cpu/rows.inc.c"

#define T              uint16_t
#define LD(p, left)    vf_of_f16(load_half((p), (left)))
#define ST(p, v, left) store_half((p), f16_of_vf(v), (left))
#define RN(v)          round_f16(v)
#define FN(name)       name##_of_f16
#include "dtensor/kernels/cpu/rows.inc.c"

#define F32(name, formula, slope)        .name = name##_of_f32,
#define BF16(name, formula, slope)       .name = name##_of_bf16,
#define F16(name, formula, slope)        .name = name##_of_f16,
#define F32_SLOPE(name, formula, slope)  .name##_backward = name##_backward_of_f32,
#define BF16_SLOPE(name, formula, slope) .name##_backward = name##_backward_of_bf16,
#define F16_SLOPE(name, formula, slope)  .name##_backward = name##_backward_of_f16,
#define ROW(dtype, FORMULA)                                                              \
    {                                                                                    \
        DTI_FORMULAS(FORMULA)                                                            \
        DTI_CURVES(FORMULA##_SLOPE).load = load_of_##dtype, .store = store_of_##dtype,   \
        .add = add_of_##dtype, .mul = mul_of_##dtype, .sub = sub_of_##dtype,             \
        .div = div_of_##dtype, .silu_mul = silu_mul_of_##dtype,                          \
        .gelu_tanh_mul = gelu_tanh_mul_of_##dtype, .soft_cap = soft_cap_of_##dtype,      \
        .rms_norm = rms_norm_of_##dtype, .rms_norm_once = rms_norm_once_of_##dtype,      \
        .rms_norm_1p = rms_norm_1p_of_##dtype, .layer_norm = layer_norm_of_##dtype,      \
        .rope = rope_of_##dtype, .argmax = argmax_of_##dtype, .above = above_of_##dtype, \
        .silu_mul_backward = silu_mul_backward_of_##dtype,                               \
        .gelu_tanh_mul_backward = gelu_tanh_mul_backward_of_##dtype,                     \
        .soft_cap_backward = soft_cap_backward_of_##dtype,                               \
        .norm_backward = norm_backward_of_##dtype, .exp_sum = exp_sum_of_##dtype,        \
        .total = total_of_##dtype, .softmax_slope = softmax_slope_of_##dtype             \
    }

const dti_row_ops DT_ROWS[DTI_N_ROW_DTYPES] = {
    [DT_F32] = ROW(f32, F32), [DT_BF16] = ROW(bf16, BF16), [DT_F16] = ROW(f16, F16)
};
