/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with codes of e4m3 and x of bf16, by the instruction for dot products of pairs: codes
 * become bf16, which is exact, sums are f32 (the instruction takes subnormals for zero).
 *
 * A lane of a vector of 64 bytes of codes is a word, of 4 neighbouring inputs. Groups of 128 are
 * "wide": a block is 256 inputs, of whose halves the first stands in even lanes, the second in odd
 * ones, so that a scale meets 16 inputs of a lane at once. Otherwise it is 64 inputs. A packed row
 * of x is for each block the inputs in the order in which codes become numbers.
 */
#include "dtensor/kernels/cpu/packed.h"

#include <immintrin.h>
#include <string.h>

enum { R_MAX = 3, O_MAX = 4, WIDE = 256, EVEN = 0x5555, ODD = 0xaaaa };

#include "dtensor/kernels/cpu/packed_tiles.inc.c"

static bool is_wide(const dti_packed_form *f)
{
    return f->group == WIDE / 2;
}

static int64_t block_of(const dti_packed_form *f)
{
    return is_wide(f) ? WIDE : 64;
}

static int64_t row_bytes(const dti_packed_form *f, int64_t depth)
{
    const int64_t block = block_of(f);

    return (depth + block - 1) / block * block * (int64_t)sizeof(uint16_t);
}

/* The input of a block that half-word h of vector v of its numbers is. */
static int input_of(const dti_packed_form *f, int v, int h)
{
    const int word = h / 2, codes = v / 2, code = 2 * (h % 2) + v % 2;

    if (!is_wide(f)) return word * 4 + code;
    return word % 2 * (WIDE / 2) + codes / 2 * 64 + (word / 2 * 2 + codes % 2) * 4 + code;
}

static void order_of(const dti_packed_form *f, uint8_t order[WIDE])
{
    for (int e = 0; e < (int)block_of(f); e++) order[e] = (uint8_t)input_of(f, e / 32, e % 32);
}

static void pack(void *to_, int64_t step, const void *x, const dti_packed_form *f, int64_t depth)
{
    const int64_t block = block_of(f);
    uint8_t order[WIDE];
    char *to = to_;

    order_of(f, order);
    for (int64_t i = 0; i < depth; i += block) {
        const uint16_t *from = (const uint16_t *)x + i;
        uint16_t edge[WIDE] = { 0 };
        if (i + block > depth) {
            memcpy(edge, from, (size_t)(depth - i) * sizeof *edge);
            from = edge;
        }
        for (int64_t v = 0; v < block / 32; v++, to += step) {
            _Alignas(64) uint16_t some[32];
            for (int h = 0; h < 32; h++) some[h] = from[order[v * 32 + h]];
            memcpy(to, some, sizeof some);
        }
    }
}

typedef uint16_t halves __attribute__((vector_size(64)));

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
    __m512i part[4];
} tables;

static inline __attribute__((always_inline)) tables load_tables(void)
{
    tables t;

    for (int i = 0; i < 4; i++)
        t.part[i] = _mm512_loadu_si512((const void *)(magnitudes + (ptrdiff_t)32 * i));
    return t;
}

/* Magnitudes from a table of 128 in two halves, then signs. */
static inline __m512i floats_of(__m512i bytes, const tables *t)
{
    const __mmask32 large = _mm512_test_epi16_mask(bytes, _mm512_set1_epi16(0x40));
    const __m512i low = _mm512_permutex2var_epi16(t->part[0], bytes, t->part[1]);
    const __m512i high = _mm512_permutex2var_epi16(t->part[2], bytes, t->part[3]);

    return _mm512_or_si512(_mm512_mask_blend_epi16(large, low, high),
                           (__m512i)(((halves)bytes & 0x80) << 8));
}

/* Vector v of those that 64 bytes of codes become. */
static inline __attribute__((always_inline)) __m512bh number(__m512i w, const int v,
                                                             const tables *t)
{
    return (__m512bh)floats_of((__m512i)((halves)w >> (8 * v)), t);
}

/* Vector v of a block's codes at p, of `half` bytes for each half of the inputs, of which the
 * second may not be there: then `odd` is 0. */
static inline __attribute__((always_inline)) __m512i wide_words(const uint8_t *p, const int v,
                                                                const int half, __mmask16 odd)
{
    const uint8_t *a = p + v / 2 * 64, *b = a + half;

    if (v % 2 == 0) return _mm512_mask_loadu_epi32(_mm512_loadu_si512(a), odd, b - 4);
    return _mm512_mask_loadu_epi32(_mm512_maskz_loadu_epi32(odd, b), EVEN, a + 4);
}

/* Of each lane the float of its group, of those that the block has from p on. */
static inline __attribute__((always_inline)) __m512 by_lane(const float *p, const packed_kind k,
                                                            __m512i of, __mmask16 there)
{
    if (!k.wide) return _mm512_maskz_permutexvar_ps(there, of, _mm512_loadu_ps(p));
    return _mm512_maskz_broadcast_f32x2(
        there, _mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}

/* Where the tile is. */
typedef struct place {
    const uint8_t *codes[O_MAX]; /* of this block */
    const float *scales[O_MAX];  /* of all groups */
    const char *x;
    char *keep;
    int64_t group;
    __mmask16 odd, there; /* lanes */
} place;

/* The numbers of a block of codes, and their products. */
static inline __attribute__((always_inline)) void add_codes(__m512 part[R_MAX][O_MAX],
                                                            const place *p, int64_t ahead,
                                                            const int R, const packed_kind k,
                                                            const tables *tab)
{
    const int per = 2, n = k.wide ? 4 : 1;

    UNROLL
    for (int c = 0; c < n; c++) {
        __m512i w[O_MAX];
        UNROLL
        for (int j = 0; j < O_MAX; j++) {
            w[j] = k.wide ? wide_words(p->codes[j], c, WIDE / 2, p->odd)
                          : _mm512_maskz_loadu_epi32(p->there, p->codes[j]);
            _mm_prefetch((const char *)(p->codes[j] + ahead + c * 64), _MM_HINT_T1);
        }
        UNROLL
        for (int v = 0; v < per; v++) {
            UNROLL
            for (int j = 0; j < O_MAX; j++) {
                const __m512bh q = number(w[j], v, tab);
                if (k.keeps)
                    _mm512_store_si512(p->keep + ((c * per + v) * O_MAX + j) * 64, (__m512i)q);
                UNROLL
                for (int r = 0; r < R; r++)
                    part[r][j] = _mm512_dpbf16_ps(
                        part[r][j], q,
                        (__m512bh)_mm512_load_si512(p->x + ((c * per + v) * R + r) * 64));
            }
        }
    }
}

static inline __attribute__((always_inline)) void
add_kept(__m512 part[R_MAX][O_MAX], const char *x, const char *keep, const int n, const int R)
{
    UNROLL
    for (int v = 0; v < n; v++) {
        __m512bh u[R_MAX];
        UNROLL
        for (int r = 0; r < R; r++) u[r] = (__m512bh)_mm512_load_si512(x + (v * R + r) * 64);
        UNROLL
        for (int j = 0; j < O_MAX; j++) {
            const __m512bh q = (__m512bh)_mm512_load_si512(keep + (v * O_MAX + j) * 64);
            UNROLL
            for (int r = 0; r < R; r++) part[r][j] = _mm512_dpbf16_ps(part[r][j], q, u[r]);
        }
    }
}

static inline __attribute__((always_inline)) void add_scaled(__m512 sum[R_MAX][O_MAX],
                                                             __m512 part[R_MAX][O_MAX],
                                                             const place *p, const int R,
                                                             const packed_kind k, __m512i of)
{
    UNROLL
    for (int j = 0; j < O_MAX; j++) {
        const __m512 s = by_lane(p->scales[j] + p->group, k, of, p->there);
        UNROLL
        for (int r = 0; r < R; r++) sum[r][j] = _mm512_fmadd_ps(s, part[r][j], sum[r][j]);
    }
}

static inline __attribute__((always_inline)) void finish(const dti_packed_tile *t,
                                                         __m512 sum[R_MAX][O_MAX], const int R)
{
    UNROLL
    for (int r = 0; r < R; r++) {
        UNROLL
        for (int j = 0; j < O_MAX; j++)
            if (t->ends)
                t->y[r * t->y_stride + j] = _mm512_reduce_add_ps(sum[r][j]);
            else
                _mm512_store_ps(t->lanes + (r * O_MAX + j) * 16, sum[r][j]);
    }
}

static inline __attribute__((always_inline)) void block(const dti_packed_tile *t, const int R,
                                                        const packed_kind k)
{
    const int64_t step = k.wide ? WIDE : 64, group = t->form.group;
    const int by = __builtin_ctzll((uint64_t)group), n = (int)step / 32;
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i of =
        _mm512_srli_epi32(/* which group of those of a block */
                          lane,
                          (unsigned)(step > group ? __builtin_ctzll((uint64_t)(group / 4)) : 31));
    const tables tab = load_tables();
    place p = { .x = t->x, .keep = t->keep };
    __m512 sum[R_MAX][O_MAX];

    UNROLL
    for (int j = 0; j < O_MAX; j++) {
        const int64_t o = j < t->n_outputs ? j : t->n_outputs - 1;
        p.codes[j] = t->codes + o * t->codes_stride;
        p.scales[j] = t->scales + o * t->scales_stride;
        UNROLL
        for (int r = 0; r < R; r++)
            sum[r][j] =
                t->begins ? _mm512_setzero_ps() : _mm512_load_ps(t->lanes + (r * O_MAX + j) * 16);
    }
    for (int64_t left = t->depth; left > 0; left -= step) {
        const __mmask16 some = (__mmask16)((1u << (left / 4 & 15)) - 1);
        __m512 part[R_MAX][O_MAX];
        p.odd = left > WIDE / 2 ? ODD : 0;
        p.there = k.wide ? EVEN | p.odd : left >= step ? (__mmask16)0xffff : some;
        p.group = (t->depth - left) >> by;
        UNROLL
        for (int e = 0; e < R * O_MAX; e++) part[e / O_MAX][e % O_MAX] = _mm512_setzero_ps();
        if (k.kept)
            add_kept(part, p.x, p.keep, n, R);
        else
            add_codes(part, &p, t->ahead, R, k, &tab);
        p.x += n * R * 64;
        add_scaled(sum, part, &p, R, k, of);
        if (k.keeps || k.kept) p.keep += n * O_MAX * 64;
        UNROLL
        for (int j = 0; j < O_MAX; j++) p.codes[j] += step;
    }
    finish(t, sum, R);
}

static void multiply(const dti_packed_tile *t)
{
    if (is_wide(&t->form))
        of_kind(t, (packed_kind){ 8, true, false, true, false, false });
    else
        of_kind(t, (packed_kind){ 8, true, false, false, false, false });
}

const dti_packed_ops dti_packed_avx512_bf16 = { .rows = R_MAX,
                                                .outputs = O_MAX,
                                                .vector = 64,
                                                .depth = 2048,
                                                .lanes = 64,
                                                .row_bytes = row_bytes,
                                                .pack = pack,
                                                .multiply = multiply };
