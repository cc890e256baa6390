/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of convert.h, compiled once per instruction set; LOOPS names the table. */
#include "files/convert.h"
#include "base/dtype.h"

/* a if the condition holds, otherwise b. With ?: gcc would compute the float side of a choice only
 * where it is needed, in a branch, which keeps the loop from vectorising. */
static inline uint32_t choose(bool condition, uint32_t a, uint32_t b)
{
    const uint32_t mask = 0u - (uint32_t)condition;

    return (a & mask) | (b & ~mask);
}

static void f32_from_bf16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = dti_float_of_bits((uint32_t)from[i] << 16);
}

static void f32_from_f16(float *restrict to, const uint16_t *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t h = from[i];
        const uint32_t sign = (h & 0x8000u) << 16, rest = h & 0x7fffu;
        /* Zero and subnormals are mantissa * 2^-24, exactly. */
        const uint32_t small = dti_bits_of_float((float)(int32_t)rest * 0x1p-24f);
        const uint32_t normal = (rest << 13) + (112u << 23);
        const uint32_t large = (rest << 13) | 0x7f800000u; /* infinity and NaN */
        const uint32_t bits = choose(rest < 0x0400u, small, choose(rest < 0x7c00u, normal, large));

        to[i] = dti_float_of_bits(sign | bits);
    }
}

static void bf16_from_f32(uint16_t *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = dti_bits_of_float(from[i]);
        const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
        const uint32_t quiet = (u >> 16) | 0x40u; /* a NaN must not round to infinity */

        to[i] = (uint16_t)choose((u & 0x7fffffffu) > 0x7f800000u, quiet, rounded);
    }
}

static void f16_from_f32(uint16_t *restrict to, const float *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = dti_bits_of_float(from[i]);
        const uint32_t sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
        /* Adding 0.5 rounds a subnormal to a multiple of 2^-24. */
        const uint32_t small = dti_bits_of_float(dti_float_of_bits(a) + 0.5f) - 0x3f000000u;
        const uint32_t normal = (a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13;
        const uint32_t large = choose(a > 0x7f800000u, 0x7e00u, 0x7c00u); /* NaN, infinity */
        const uint32_t rest = choose(a < 0x477ff000u, normal, large);
        const uint32_t bits = choose(a < 0x38800000u, small, rest);

        to[i] = (uint16_t)(sign | bits);
    }
}

const dti_convert_loops LOOPS = {
    .f32_from_bf16 = f32_from_bf16,
    .f32_from_f16 = f32_from_f16,
    .bf16_from_f32 = bf16_from_f32,
    .f16_from_f32 = f16_from_f32,
};
