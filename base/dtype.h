/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions between storage types and float, one element at a time. Rounding is to nearest,
 * ties to even, as hardware and PyTorch round. */
#ifndef DTI_DTYPE_H
#define DTI_DTYPE_H

#include <dtensor/base.h>
#include <string.h>

static inline float dti_float_of_bits(uint32_t bits)
{
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t dti_bits_of_float(float f)
{
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static inline float dti_bf16_to_f32(uint16_t h)
{
    return dti_float_of_bits((uint32_t)h << 16);
}

static inline uint16_t dti_f32_to_bf16(float f)
{
    uint32_t u = dti_bits_of_float(f);

    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u); /* quiet NaN */
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

float dti_f16_to_f32(uint16_t h);
uint16_t dti_f32_to_f16(float f);

/* Element i of a buffer of f32, bf16, f16 or f64 as float, and back. For cold paths and
 * references; kernels convert in their own loops. */
float dti_load_f32(const void *data, dt_dtype dtype, int64_t i);
void dti_store_f32(void *data, dt_dtype dtype, int64_t i, float value);

/* n elements between any two float dtypes. Buffers do not overlap. */
void dti_convert(void *to, dt_dtype to_dtype, const void *from, dt_dtype from_dtype, int64_t n);

#endif
