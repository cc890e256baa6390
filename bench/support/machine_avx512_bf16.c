/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/machine_avx512.inc.c"

static double bf16_avx512(int64_t rounds)
{
    volatile float seed = 1e-9f;
    volatile float sink;
    const __m512bh x = _mm512_cvtne2ps_pbh(_mm512_set1_ps(seed), _mm512_set1_ps(seed));
    __m512 sum[GROUPS][SUMS];
    __m512 total = _mm512_setzero_ps();

    for (int g = 0; g < GROUPS; g++)
        for (int a = 0; a < SUMS; a++) sum[g][a] = _mm512_set1_ps(seed * (float)(g + a));
    for (int64_t i = 0; i < rounds; i++)
        for (int g = 0; g < GROUPS; g++)
            for (int a = 0; a < SUMS; a++) sum[g][a] = _mm512_dpbf16_ps(sum[g][a], x, x);
    for (int g = 0; g < GROUPS; g++)
        for (int a = 0; a < SUMS; a++) total = _mm512_add_ps(total, sum[g][a]);
    sink = _mm512_cvtss_f32(total);
    (void)sink;
    return (double)rounds * GROUPS * SUMS * 32 * 2;
}

const bench_loops bench_loops_avx512_bf16 = { "avx512_bf16", read_avx512, copy_avx512, f32_avx512,
                                              bf16_avx512 };
