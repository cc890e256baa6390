/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with packed weights on floats, for one instruction set. Before including, define
 * DT_SIMD, DT_PACKED (the name of the table), R_MAX and O_MAX.
 *
 * A block is a vector of codes. A packed row of x is for each block 32 / bits vectors, of which
 * vector k has in lane l what belongs to code k of word l, and one with their sums if there are
 * zero points. */
#include "dtensor/kernels/cpu/packed.h"

#include "dtensor/kernels/cpu/simd.inc.c"

#include "dtensor/kernels/cpu/packed_tiles.inc.c"

static int64_t row_bytes(const dti_packed_form *f, int64_t depth)
{
    const int64_t chunk = VW * 32 / f->bits;

    return (depth + chunk - 1) / chunk * (32 / f->bits + f->zeros) * (int64_t)sizeof(vf);
}

static void pack(void *to_, int64_t step, const void *x_, const dti_packed_form *f, int64_t depth)
{
    const int K = 32 / f->bits;
    const float *x = x_;
    char *to = to_;

    for (int64_t i = 0; i < depth; i += VW * K) {
        vf sums = vf_set(0.0f);
        for (int k = 0; k < K; k++, to += step) {
            vf v = sums;
            for (int l = 0; l < VW; l++) v[l] = i + l * K < depth ? x[i + l * K + k] : 0.0f;
            sums += v;
            memcpy(to, &v, sizeof v);
        }
        if (!f->zeros) continue;
        memcpy(to, &sums, sizeof sums);
        to += step;
    }
}

/* Lane l is p[of[l]]; `of` counts up from 0, by 1 at most. */
static inline vf spread(const float *p, vi of)
{
#if DT_SIMD == 512
    return (vf)_mm512_permutexvar_ps((__m512i)of, (__m512)vf_load(p));
#elif DT_SIMD == 256
    return (vf)_mm256_permutevar8x32_ps((__m256)vf_load(p), (__m256i)of);
#else
    return (vf){ p[of[0]], p[of[1]], p[of[2]], p[of[3]] };
#endif
}

/* Words of codes, as many as there are `left` bytes for. */
static inline vi load_words(const uint8_t *p, int64_t left)
{
    vi v = { 0 };

    if (left >= (int64_t)sizeof v)
        memcpy(&v, p, sizeof v);
    else
        memcpy(&v, p, (size_t)left);
    return v;
}

/* Code k of each word: a whole number, or a float of 8 bits, whose exponent is brought to that of
 * f32 by a product, which subnormals need as well. */
static inline __attribute__((always_inline)) vf value(vi w, const int k, const int bits,
                                                      const bool floats)
{
    const vu top = (vu)w << (32 - bits * (k + 1));

    if (floats) return (vf)((top & 0x80000000u) | (top >> 4 & 0x07f00000u)) * 0x1p120f;
    return __builtin_convertvector((vi)top >> (32 - bits), vf);
}

static inline __attribute__((always_inline)) void
load_codes(vi w[O_MAX], const uint8_t *const codes[O_MAX], int64_t at, int64_t left, int64_t ahead)
{
    UNROLL
    for (int j = 0; j < O_MAX; j++) {
        w[j] = load_words(codes[j] + at, left);
        __builtin_prefetch(codes[j] + at + ahead, 0, 2);
    }
}

static inline __attribute__((always_inline)) void block(const dti_packed_tile *t, const int R,
                                                        const packed_kind k)
{
    const int K = 32 / k.bits;
    const int64_t chunk = VW * K, group = t->form.group;
    const int by = __builtin_ctzll((uint64_t)group);
    const uint32_t middle = k.bits == 4 ? 0x88888888u : 0x80808080u;
    const vi flip = (vi)((vu){ 0 } + (k.floats ? 0 : middle)); /* to two's complement */
    const float *x = t->x;
    float *keep = t->keep;
    const uint8_t *codes[O_MAX];
    const float *scales[O_MAX];
    vi lane, of;
    vf sum[R_MAX][O_MAX];

    for (int l = 0; l < VW; l++) lane[l] = l;
    for (int l = 0; l < VW; l++) of[l] = (int32_t)(chunk > group ? l * K / group : 0);
    UNROLL
    for (int j = 0; j < O_MAX; j++) {
        const int64_t o = j < t->n_outputs ? j : t->n_outputs - 1;
        codes[j] = t->codes + o * t->codes_stride;
        scales[j] = t->scales + o * t->scales_stride;
        UNROLL
        for (int r = 0; r < R; r++)
            sum[r][j] = t->begins ? vf_set(0.0f) : vf_load(t->lanes + (r * O_MAX + j) * VW);
    }
    for (int64_t i = 0; i < t->depth; i += chunk) {
        const int64_t left = t->depth - i;
        vi w[O_MAX];
        vf part[R_MAX][O_MAX];
        if (!k.kept) load_codes(w, codes, i * k.bits / 8, left * k.bits / 8, t->ahead);
        UNROLL
        for (int c = 0; c < K; c++, x += R * VW) UNROLL
        for (int j = 0; j < O_MAX; j++) {
            float *at = keep + (c * O_MAX + j) * VW;
            const vf q = k.kept ? vf_load(at) : value(w[j] ^ flip, c, k.bits, k.floats);
            if (k.keeps) vf_store(at, q);
            UNROLL
            for (int r = 0; r < R; r++) {
                const vf u = vf_load(x + r * VW);
                part[r][j] = c == 0 ? q * u : vf_fma(q, u, part[r][j]);
            }
        }
        if (k.keeps || k.kept) keep += K * O_MAX * VW;
        UNROLL
        for (int j = 0; j < O_MAX; j++) {
            vf s = spread(scales[j] + (i >> by), of), z = s;
            if (k.zeros) z = spread(t->shifts + (scales[j] - t->scales) + (i >> by), of);
            if (left < chunk) { /* lanes beyond have nothing */
                s = vf_select(lane < (int32_t)(left / K), s, vf_set(0.0f));
                z = vf_select(lane < (int32_t)(left / K), z, vf_set(0.0f));
            }
            UNROLL
            for (int r = 0; r < R; r++) {
                if (k.zeros) part[r][j] = vf_fma(z, vf_load(x + r * VW), part[r][j]);
                sum[r][j] = vf_fma(s, part[r][j], sum[r][j]);
            }
        }
        if (k.zeros) x += R * VW;
    }
    UNROLL
    for (int r = 0; r < R; r++) UNROLL
    for (int j = 0; j < O_MAX; j++)
        if (t->ends)
            t->y[r * t->y_stride + j] = vf_sum(sum[r][j]);
        else
            vf_store(t->lanes + (r * O_MAX + j) * VW, sum[r][j]);
}

static void multiply(const dti_packed_tile *t)
{
    const dti_packed_form *f = &t->form;

    if (f->floats)
        of_kind(t, (packed_kind){ 8, true, false, false, false, false });
    else if (f->bits == 4 && f->zeros)
        of_kind(t, (packed_kind){ 4, false, true, false, false, false });
    else if (f->bits == 4)
        of_kind(t, (packed_kind){ 4, false, false, false, false, false });
    else if (f->zeros)
        of_kind(t, (packed_kind){ 8, false, true, false, false, false });
    else
        of_kind(t, (packed_kind){ 8, false, false, false, false, false });
}

const dti_packed_ops DT_PACKED = { .rows = R_MAX,
                                   .outputs = O_MAX,
                                   .vector = sizeof(vf),
                                   .depth = 1024,
                                   .lanes = sizeof(vf),
                                   .widens = true,
                                   .row_bytes = row_bytes,
                                   .pack = pack,
                                   .multiply = multiply };
