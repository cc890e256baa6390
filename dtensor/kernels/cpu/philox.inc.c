/* SPDX-License-Identifier: Apache-2.0
 *
 * Philox (random.h) with the vectors of one instruction set. A lane is a block: its four words lie
 * in four vectors. Before including, define DT_SIMD. */
#include "dtensor/kernels/cpu/simd.inc.c"
#include "dtensor/kernels/random.h"

#if DT_SIMD == 128 && defined(__SSE2__)
#include <emmintrin.h>
#endif

typedef uint64_t vq __attribute__((vector_size(DT_SIMD / 8)));

/* Products of the low halves of lanes. */
static inline vq multiply(vq a, uint32_t m)
{
#if DT_SIMD == 512
    return (vq)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(m));
#elif DT_SIMD == 256
    return (vq)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(m));
#elif defined(__SSE2__)
    return (vq)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(m));
#else
    return (a & 0xffffffffu) * m;
#endif
}

/* Which block a lane has: lane i of quarter k is block i VW / 4 + k, so that a transpose within
 * quarters of vectors puts elements in order. */
static inline int block_of(int lane)
{
    return lane % 4 * (VW / 4) + lane / 4;
}

/* What the rounds take of a key. */
typedef struct rounds {
    uint64_t k[10][2], stream;
} rounds;

static inline rounds rounds_of(dt_random key)
{
    rounds r = { .stream = key.stream };

    for (uint32_t i = 0; i < 10; i++) {
        r.k[i][0] = (uint32_t)key.seed + i * 0x9E3779B9u;
        r.k[i][1] = (uint32_t)(key.seed >> 32) + i * 0xBB67AE85u;
    }
    return r;
}

/* The words of blocks first .. first + VW - 1, of n rounds. They are computed in low halves of
 * lanes twice as wide, even and odd ones apart; what stands in high halves does not count. */
static inline __attribute__((always_inline)) void philox(const rounds *r, int n, uint64_t first,
                                                         vu w[4])
{
    vq even = { 0 }, odd = { 0 }, e[4], o[4];

    for (int l = 0; l < VW / 2; l++) {
        even[l] = (uint64_t)block_of(2 * l);
        odd[l] = (uint64_t)block_of(2 * l + 1);
    }
    e[0] = first + even;
    o[0] = first + odd;
    e[1] = e[0] >> 32;
    o[1] = o[0] >> 32;
    e[2] = o[2] = r->stream - (vq){ 0 };
    e[3] = o[3] = e[2] >> 32;
    for (int i = 0; i < n; i++) {
        const vq e0 = multiply(e[0], 0xD2511F53u), e2 = multiply(e[2], 0xCD9E8D57u);
        const vq o0 = multiply(o[0], 0xD2511F53u), o2 = multiply(o[2], 0xCD9E8D57u);
        e[0] = (e2 >> 32) ^ e[1] ^ r->k[i][0];
        o[0] = (o2 >> 32) ^ o[1] ^ r->k[i][0];
        e[2] = (e0 >> 32) ^ e[3] ^ r->k[i][1];
        o[2] = (o0 >> 32) ^ o[3] ^ r->k[i][1];
        e[1] = e2;
        o[1] = o2;
        e[3] = e0;
        o[3] = o0;
    }
    for (int j = 0; j < 4; j++) w[j] = (vu)((e[j] & 0xffffffffu) | o[j] << 32);
}

/* Four vectors, of element 0, 1, 2, 3 of all blocks, to the elements of the first VW / 4 blocks, of
 * the next, ... */
static inline void transpose(vf z[4])
{
#if DT_SIMD == 512
    const __m512 a = _mm512_unpacklo_ps((__m512)z[0], (__m512)z[1]);
    const __m512 b = _mm512_unpackhi_ps((__m512)z[0], (__m512)z[1]);
    const __m512 c = _mm512_unpacklo_ps((__m512)z[2], (__m512)z[3]);
    const __m512 d = _mm512_unpackhi_ps((__m512)z[2], (__m512)z[3]);

    z[0] = (vf)_mm512_unpacklo_pd((__m512d)a, (__m512d)c);
    z[1] = (vf)_mm512_unpackhi_pd((__m512d)a, (__m512d)c);
    z[2] = (vf)_mm512_unpacklo_pd((__m512d)b, (__m512d)d);
    z[3] = (vf)_mm512_unpackhi_pd((__m512d)b, (__m512d)d);
#elif DT_SIMD == 256
    const __m256 a = _mm256_unpacklo_ps((__m256)z[0], (__m256)z[1]);
    const __m256 b = _mm256_unpackhi_ps((__m256)z[0], (__m256)z[1]);
    const __m256 c = _mm256_unpacklo_ps((__m256)z[2], (__m256)z[3]);
    const __m256 d = _mm256_unpackhi_ps((__m256)z[2], (__m256)z[3]);

    z[0] = (vf)_mm256_unpacklo_pd((__m256d)a, (__m256d)c);
    z[1] = (vf)_mm256_unpackhi_pd((__m256d)a, (__m256d)c);
    z[2] = (vf)_mm256_unpacklo_pd((__m256d)b, (__m256d)d);
    z[3] = (vf)_mm256_unpackhi_pd((__m256d)b, (__m256d)d);
#else
    const vf a = z[0], b = z[1], c = z[2], d = z[3];

    for (int i = 0; i < 4; i++) z[i] = (vf){ a[i], b[i], c[i], d[i] };
#endif
}
