/* SPDX-License-Identifier: Apache-2.0
 *
 * f16 and bf16, which C has no types for, as bits in uint16_t. Rounding is to nearest, ties to
 * even, as hardware and PyTorch round; beyond the largest number is infinity; subnormal numbers are
 * kept. A NaN stays a NaN, quiet and of the same sign. */
#ifndef DT_HALF_H
#define DT_HALF_H

#include <dtensor/base.h>

#ifdef __cplusplus
extern "C" {
#endif

/** One number. Widening is exact. Not collective. Errors: none. */
DT_API float dt_f16_to_f32(uint16_t bits);
DT_API uint16_t dt_f32_to_f16(float value);
DT_API float dt_bf16_to_f32(uint16_t bits);
DT_API uint16_t dt_f32_to_bf16(float value);

/**
 * n elements from one float dtype to another, by the fastest loop of this machine; each is rounded
 * once, also from f64. The arrays do not overlap; they need no alignment beyond that of their
 * elements.
 *
 * Not collective.
 * Errors      DT_ERR_ARG          NULL for elements, n < 0, an unknown dtype
 *             DT_ERR_UNSUPPORTED  an integer dtype
 */
DT_API DT_MUST_USE dt_status dt_convert(void *to, dt_dtype to_dtype, const void *from,
                                        dt_dtype from_dtype, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
