/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of x as whole numbers of 16 bits, in the order of packed_vnni.h. */
#include "dtensor/kernels/cpu/packed_vnni.h"

#include <string.h>

enum { MAX_SPAN = 512 };

int64_t dti_packed_vnni_row_bytes(const dti_packed_form *f, int64_t depth)
{
    const dti_code_span s = dti_code_span_of(f->bits, (int)f->group * f->bits / 8);

    return (depth + s.inputs - 1) / s.inputs * dti_code_span_vectors(&s) * 64;
}

/* t is such that the largest magnitude is below 2^15, and hi of a byte: 2^-14 of the power of two
 * below it, or twice that if no larger bf16 has that power; 1 of zeros, which is in the midst of
 * what others have. A group with an infinity or a NaN gives NaN. */
void dti_packed_vnni_fix(int16_t *to, const uint16_t *x, int64_t group, int32_t *sum, float *unit)
{
    const __m256i magnitude = _mm256_set1_epi16(0x7fff);
    __m256i most = _mm256_setzero_si256();
    __m512i all = _mm512_setzero_si512();
    __m512 inverse;
    uint32_t largest, power;

    for (int64_t i = 0; i < group; i += 16)
        most = _mm256_max_epu16(
            most, _mm256_and_si256(magnitude,
                                   _mm256_loadu_si256((const __m256i *)(const void *)(x + i))));
    most = _mm256_xor_si256(most, _mm256_set1_epi16(-1));
    largest = 0xffff ^ (uint32_t)(uint16_t)_mm_extract_epi16(
                           _mm_minpos_epu16(_mm_min_epu16(_mm256_castsi256_si128(most),
                                                          _mm256_extracti128_si256(most, 1))),
                           0);
    power = (largest + 1) >> 7 < 15 ? 15 : (largest + 1) >> 7;
    if (largest == 0) power = 127 + 14;
    *unit = largest < 0x7f80
                ? _mm_cvtss_f32(_mm_castsi128_ps(_mm_set1_epi32((int)(power - 14) << 23)))
                : _mm_cvtss_f32(_mm_castsi128_ps(_mm_set1_epi32(0x7fc00000)));
    inverse = _mm512_castsi512_ps(_mm512_set1_epi32((int)(268 - power) << 23));
    for (int64_t i = 0; i < group; i += 16) {
        const __m256i some = _mm256_loadu_si256((const __m256i *)(const void *)(x + i));
        const __m512 v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(some), 16));
        const __m512i fixed = _mm512_cvtps_epi32(_mm512_mul_ps(v, inverse));
        _mm256_storeu_si256((__m256i *)(void *)(to + i), _mm512_cvtepi32_epi16(fixed));
        all = _mm512_add_epi32(all, fixed);
    }
    *sum = _mm512_reduce_add_epi32(all);
}

/* The vectors of a chunk, `step` bytes apart. */
static void split_chunk(char *to, int64_t step, const int16_t *x, int bits)
{
    const __m512i half = _mm512_set1_epi16(128);

    for (int i = 0; i < 16 / bits; i++) {
        const __m512i v = _mm512_loadu_si512(x + (ptrdiff_t)i * 32);
        const __m512i hi = _mm512_srai_epi16(_mm512_add_epi16(v, half), 8);
        if (bits == 8) {
            _mm256_store_si256((__m256i *)(void *)(to + (ptrdiff_t)i * 32),
                               _mm512_cvtepi16_epi8(hi));
            _mm256_store_si256((__m256i *)(void *)(to + step + (ptrdiff_t)i * 32),
                               _mm512_cvtepi16_epi8(v));
            continue;
        }
        for (int odd = 0; odd < 2; odd++) {
            const unsigned by = odd == 0 ? 0 : 16;
            __m128i *at = (__m128i *)(void *)(to + odd * step + (ptrdiff_t)i * 16);
            _mm_store_si128(at, _mm512_cvtepi32_epi8(_mm512_srli_epi32(hi, by)));
            at = (__m128i *)(void *)(to + (2 + odd) * step + (ptrdiff_t)i * 16);
            _mm_store_si128(at, _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, by)));
        }
    }
}

void dti_packed_vnni_pack(void *to_, int64_t step, const void *x, const dti_packed_form *f,
                          int64_t depth)
{
    const dti_code_span s = dti_code_span_of(f->bits, (int)f->group * f->bits / 8);
    char *to = to_;

    for (int64_t i = 0; i < depth; i += s.inputs) {
        const uint16_t *from = (const uint16_t *)x + i;
        uint16_t edge[MAX_SPAN];
        int16_t fixed[MAX_SPAN];
        char *of = to + 2 * s.chunks * s.per * step;
        if (i + s.inputs > depth) {
            memset(edge, 0, sizeof edge);
            memcpy(edge, from, (size_t)(depth - i) * sizeof *edge);
            from = edge;
        }
        for (int g = 0; g < 4 * s.fours; g++) {
            char *at = of + g / 4 * 2 * step + (ptrdiff_t)(g % 4) * 16;
            int32_t sum;
            float unit;
            dti_packed_vnni_fix(fixed + g * f->group, from + g * f->group, f->group, &sum, &unit);
            /* the lower half is not negative; of numbers that are none the sum is INT32_MIN */
            sum = (int32_t)(0u - (uint32_t)sum);
            _mm_store_si128((__m128i *)(void *)at,
                            _mm_set1_epi32((int)((uint32_t)(sum >> 7) << 16 | (sum & 127))));
            _mm_store_ps((float *)(void *)(at + step), _mm_set1_ps(unit));
        }
        for (int c = 0; c < s.chunks; c++, to += 2 * s.per * step)
            split_chunk(to, step, fixed + (ptrdiff_t)c * 512 / s.bits, s.bits);
        to += 2 * s.fours * step;
    }
}
