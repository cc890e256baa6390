/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cpu/turn.h"

#include "dtensor/kernels/cpu/transpose_avx512.h"

/* Two rows at a time become pairs of words, which then are turned as words of 32 bits. */
void dti_turn_square_avx512(uint16_t *to, int64_t k, const uint16_t *from, int64_t stride)
{
    __m512i square[16];

    for (int i = 0; i < 16; i++, from += 2 * stride) {
        const __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)from));
        const __m512i high =
            _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)(from + stride)));
        square[i] = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    }
    dti_transpose_16(square);
    for (int i = 0; i < 16; i++) _mm512_storeu_si512(to + i * k, square[i]);
}
