/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with packed weights and x of bf16, by the instruction for dot products of pairs: codes
 * become bf16, which is exact, sums are f32 (the instruction takes subnormals for zero).
 *
 * A packed row of x is for each chunk as many vectors of 32 bf16 as the codes of 64 bytes become,
 * in the order in which they do, and the sums of what falls into each lane. */
#include "dtensor/kernels/cpu/packed.h"

#include <immintrin.h>
#include <string.h>

enum { R_MAX = 6 };

static inline int64_t n_chunks(int64_t n_in, int bits)
{
    return (n_in + 512 / bits - 1) / (512 / bits);
}

static int64_t stride(int64_t n_in, int bits)
{
    return n_chunks(n_in, bits) * (16 / bits + 1) * 64 + 64;
}

/* Which input of a chunk stands in half-word h of vector k: those of one word of codes stand in one
 * lane of all vectors. */
static inline int input_of(int k, int h, int bits)
{
    return 16 / bits * h + k;
}

static void pack(void *to_, const float *x, int64_t n_in, int bits)
{
    const int V = 16 / bits, chunk = 512 / bits;
    char *to = to_;

    for (int64_t c = 0; c < n_chunks(n_in, bits); c++, to += (V + 1) * 64) {
        const int64_t left = n_in - c * chunk;
        uint16_t half[4 * 32];
        float sums[16] = { 0 };
        for (int k = 0; k < V; k++)
            for (int h = 0; h < 32; h++) {
                const int i = input_of(k, h, bits);
                const float f = i < left ? x[c * chunk + i] : 0.0f;
                uint32_t u;
                memcpy(&u, &f, sizeof u);
                half[k * 32 + h] = (uint16_t)(u >> 16);
                sums[h / 2] += f;
            }
        memcpy(to, half, (size_t)V * 64);
        memcpy(to + V * 64, sums, sizeof sums);
    }
}

typedef uint16_t halves __attribute__((vector_size(64)));
typedef int32_t words __attribute__((vector_size(64)));
typedef uint32_t bare_words __attribute__((vector_size(64)));

/* Byte `i` of each word, in two's complement, as floats. */
static inline __m512i float_of_byte(__m512i w, int i)
{
    return (__m512i)_mm512_cvtepi32_ps((__m512i)((words)((bare_words)w << (24 - 8 * i)) >> 24));
}

/* bf16 of -8 .. 7 */
static const uint16_t nibbles[16] = { 0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040,
                                      0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040,
                                      0x4080, 0x40a0, 0x40c0, 0x40e0 };

/* bf16 of the magnitudes of e4m3: a mantissa of 3 bits below an exponent of 4 */
/* clang-format off */
static const uint16_t magnitudes[128] = {
    0x0000, 0x3b00, 0x3b80, 0x3bc0, 0x3c00, 0x3c20, 0x3c40, 0x3c60,
    0x3c80, 0x3c90, 0x3ca0, 0x3cb0, 0x3cc0, 0x3cd0, 0x3ce0, 0x3cf0,
    0x3d00, 0x3d10, 0x3d20, 0x3d30, 0x3d40, 0x3d50, 0x3d60, 0x3d70,
    0x3d80, 0x3d90, 0x3da0, 0x3db0, 0x3dc0, 0x3dd0, 0x3de0, 0x3df0,
    0x3e00, 0x3e10, 0x3e20, 0x3e30, 0x3e40, 0x3e50, 0x3e60, 0x3e70,
    0x3e80, 0x3e90, 0x3ea0, 0x3eb0, 0x3ec0, 0x3ed0, 0x3ee0, 0x3ef0,
    0x3f00, 0x3f10, 0x3f20, 0x3f30, 0x3f40, 0x3f50, 0x3f60, 0x3f70,
    0x3f80, 0x3f90, 0x3fa0, 0x3fb0, 0x3fc0, 0x3fd0, 0x3fe0, 0x3ff0,
    0x4000, 0x4010, 0x4020, 0x4030, 0x4040, 0x4050, 0x4060, 0x4070,
    0x4080, 0x4090, 0x40a0, 0x40b0, 0x40c0, 0x40d0, 0x40e0, 0x40f0,
    0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170,
    0x4180, 0x4190, 0x41a0, 0x41b0, 0x41c0, 0x41d0, 0x41e0, 0x41f0,
    0x4200, 0x4210, 0x4220, 0x4230, 0x4240, 0x4250, 0x4260, 0x4270,
    0x4280, 0x4290, 0x42a0, 0x42b0, 0x42c0, 0x42d0, 0x42e0, 0x42f0,
    0x4300, 0x4310, 0x4320, 0x4330, 0x4340, 0x4350, 0x4360, 0x4370,
    0x4380, 0x4390, 0x43a0, 0x43b0, 0x43c0, 0x43d0, 0x43e0, 0x43f0,
};
/* clang-format on */

typedef struct tables {
    __m512i nibbles;
    __m512i floats[4];
} tables;

static inline tables load_tables(void)
{
    tables t = { .nibbles = _mm512_broadcast_i64x4(
                     _mm256_loadu_si256((const __m256i *)(const void *)nibbles)) };

    for (int i = 0; i < 4; i++)
        t.floats[i] = _mm512_loadu_si512((const void *)(magnitudes + (ptrdiff_t)32 * i));
    return t;
}

/* Magnitudes from a table of 128 in two halves, then signs. */
static inline __m512i floats_of(__m512i bytes, const tables *t)
{
    const __mmask32 large = _mm512_test_epi16_mask(bytes, _mm512_set1_epi16(0x40));
    const __m512i low = _mm512_permutex2var_epi16(t->floats[0], bytes, t->floats[1]);
    const __m512i high = _mm512_permutex2var_epi16(t->floats[2], bytes, t->floats[3]);

    return _mm512_or_si512(_mm512_mask_blend_epi16(large, low, high),
                           (__m512i)(((halves)bytes & 0x80) << 8));
}

/* Vector k of those that 64 bytes of codes become. */
static inline __attribute__((always_inline)) __m512bh code(__m512i w, const int k, const int bits,
                                                           const bool floats, const tables *t)
{
    if (bits == 4) /* the table looks at 5 bits, and has everything twice */
        return (__m512bh)_mm512_permutexvar_epi16((__m512i)((halves)w >> (4 * k)), t->nibbles);
    if (floats) return (__m512bh)floats_of((__m512i)((halves)w >> (8 * k)), t);
    w = _mm512_xor_si512(w, _mm512_set1_epi32((int)0x80808080u)); /* two's complement */
    return (__m512bh)_mm512_or_si512(_mm512_srli_epi32(float_of_byte(w, k), 16),
                                     float_of_byte(w, k + 2)); /* whose lower halves are zero */
}

static inline __attribute__((always_inline)) void block(const dti_packed_args *a, int64_t m,
                                                        int64_t o, const int R, const int O,
                                                        const int bits, const bool shifted,
                                                        const bool floats)
{
    const int V = 16 / bits, K = 32 / bits;
    const int64_t chunk = 512 / bits, bytes = a->n_in * bits / 8, groups = a->n_in / a->group;
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    /* of which group a lane is, counted from the first lane's */
    const __m512i of = _mm512_srli_epi32(
        lane, (unsigned)(chunk > a->group ? __builtin_ctzll((uint64_t)(a->group / K)) : 31));
    __m512 sum[R_MAX][DTI_PACKED_OUTPUTS];
    const tables t = load_tables();

    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) sum[r][j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < a->n_in; i += chunk) {
        const char *x = (const char *)a->x + m * a->x_stride + i / chunk * (V + 1) * 64;
        const int64_t lanes = (a->n_in - i) / K;
        const __mmask16 there = lanes >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << lanes) - 1);
        __m512i w[DTI_PACKED_OUTPUTS];
        __m512 part[R_MAX][DTI_PACKED_OUTPUTS];
        for (int j = 0; j < O; j++) {
            const uint8_t *at = a->codes + (o + j) * bytes + i * bits / 8;
            w[j] = _mm512_maskz_loadu_epi32(there, at);
            _mm_prefetch((const char *)(at + DTI_PACKED_OUTPUTS * bytes), _MM_HINT_T1);
        }
        for (int r = 0; r < R; r++)
            for (int j = 0; j < O; j++) part[r][j] = _mm512_setzero_ps();
        for (int k = 0; k < V; k++) {
            __m512bh q[DTI_PACKED_OUTPUTS];
            for (int j = 0; j < O; j++) q[j] = code(w[j], k, bits, floats, &t);
            for (int r = 0; r < R; r++) {
                const __m512bh u = (__m512bh)_mm512_load_si512(x + r * a->x_stride + k * 64);
                for (int j = 0; j < O; j++) part[r][j] = _mm512_dpbf16_ps(part[r][j], q[j], u);
            }
        }
        for (int j = 0; j < O; j++) {
            const int64_t at = (o + j) * groups + i / a->group;
            const __m512 s =
                _mm512_maskz_permutexvar_ps(there, of, _mm512_loadu_ps(a->scales + at));
            for (int r = 0; r < R; r++) {
                if (shifted)
                    part[r][j] = _mm512_fmadd_ps(
                        _mm512_maskz_permutexvar_ps(there, of, _mm512_loadu_ps(a->shifts + at)),
                        _mm512_load_ps(x + r * a->x_stride + V * 64), part[r][j]);
                sum[r][j] = _mm512_fmadd_ps(s, part[r][j], sum[r][j]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++)
            a->y[(m + r) * a->y_stride + o + j] = _mm512_reduce_add_ps(sum[r][j]);
}

#include "dtensor/kernels/cpu/packed_tiles.inc.c"

const dti_packed_ops dti_packed_avx512_bf16 = { stride, pack, dot };
