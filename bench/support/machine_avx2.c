/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/machine.h"

#include <immintrin.h>

static uint64_t read_avx2(const void *p, size_t bytes, size_t ahead)
{
    const __m256i *v = p;
    __m256i sum[8];
    uint64_t lanes[4];

    for (int a = 0; a < 8; a++) sum[a] = _mm256_setzero_si256();
    for (size_t i = 0; i + 8 <= bytes / sizeof *v; i += 8) {
        const char *next = (const char *)(v + i) + ahead;
        if (ahead > 0)
            for (int line = 0; line < 4; line++) _mm_prefetch(next + line * 64, _MM_HINT_T0);
        for (size_t a = 0; a < 8; a++)
            sum[a] = _mm256_add_epi64(sum[a], _mm256_load_si256(v + i + a));
    }
    for (int a = 1; a < 8; a++) sum[0] = _mm256_add_epi64(sum[0], sum[a]);
    _mm256_storeu_si256((__m256i *)(void *)lanes, sum[0]);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

static void copy_avx2(void *to, const void *from, size_t bytes)
{
    const __m256i *x = from;
    __m256i *y = to;

    for (size_t i = 0; i < bytes / sizeof *x; i++)
        _mm256_stream_si256(y + i, _mm256_load_si256(x + i));
    _mm_sfence();
}

/* Twelve independent sums hide the latency of two multiply-adds per cycle. */
static double f32_avx2(int64_t rounds)
{
    volatile float seed = 1e-9f;
    volatile float sink;
    const __m256 x = _mm256_set1_ps(seed);
    __m256 sum[12];

    for (int a = 0; a < 12; a++) sum[a] = _mm256_set1_ps(seed * (float)a);
    for (int64_t i = 0; i < rounds; i++)
        for (int a = 0; a < 12; a++) sum[a] = _mm256_fmadd_ps(sum[a], x, x);
    for (int a = 1; a < 12; a++) sum[0] = _mm256_add_ps(sum[0], sum[a]);
    sink = _mm256_cvtss_f32(sum[0]);
    (void)sink;
    return (double)rounds * 12 * 8 * 2;
}

const bench_loops bench_loops_avx2 = { "avx2", read_avx2, copy_avx2, f32_avx2, NULL };
