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

const bench_loops bench_loops_avx2 = { read_avx2, copy_avx2 };
