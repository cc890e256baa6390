/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/machine.h"

#include <immintrin.h>

static uint64_t read_avx512(const void *p, size_t bytes, size_t ahead)
{
    const __m512i *v = p;
    _Alignas(64) uint64_t lanes[8];
    uint64_t total = 0;
    __m512i sum[8];

    for (int a = 0; a < 8; a++) sum[a] = _mm512_setzero_si512();
    for (size_t i = 0; i + 8 <= bytes / sizeof *v; i += 8)
        for (size_t a = 0; a < 8; a++) {
            if (ahead > 0) _mm_prefetch((const char *)(v + i + a) + ahead, _MM_HINT_T0);
            sum[a] = _mm512_add_epi64(sum[a], _mm512_load_si512(v + i + a));
        }
    for (int a = 1; a < 8; a++) sum[0] = _mm512_add_epi64(sum[0], sum[a]);
    _mm512_store_si512(lanes, sum[0]);
    for (int a = 0; a < 8; a++) total += lanes[a]; /* unsigned: it may wrap around */
    return total;
}

static void copy_avx512(void *to, const void *from, size_t bytes)
{
    const __m512i *x = from;
    __m512i *y = to;

    for (size_t i = 0; i < bytes / sizeof *x; i++)
        _mm512_stream_si512(y + i, _mm512_load_si512(x + i));
    _mm_sfence();
}

const bench_loops bench_loops_avx512 = { read_avx512, copy_avx512 };
