/* SPDX-License-Identifier: Apache-2.0
 *
 * Products with packed weights on floats, for one instruction set. Before including, define
 * DT_SIMD, DT_PACKED (the name of the table) and R_MAX.
 *
 * A packed row of x is for each chunk 32 / bits vectors, of which vector k has in lane l what
 * belongs to code k of word l, and one with their sums. */
#include "dtensor/kernels/cpu/packed.h"

#include "dtensor/kernels/cpu/simd.inc.c"

static inline int64_t n_chunks(int64_t n_in, int bits)
{
    const int64_t chunk = VW * 32 / bits;

    return (n_in + chunk - 1) / chunk;
}

/* A line more, so that rows of a power of two do not all fall into the same sets of the cache. */
static int64_t stride(int64_t n_in, int bits)
{
    return n_chunks(n_in, bits) * (32 / bits + 1) * (int64_t)sizeof(vf) + 64;
}

static void pack(void *to_, const float *x, int64_t n_in, int bits)
{
    const int K = 32 / bits;
    float *to = to_;

    for (int64_t c = 0; c < n_chunks(n_in, bits); c++, to += (K + 1) * VW)
        for (int l = 0; l < VW; l++) {
            const int64_t i = (c * VW + l) * K;
            float sum = 0.0f;
            for (int k = 0; k < K; k++) {
                to[k * VW + l] = i < n_in ? x[i + k] : 0.0f;
                sum += to[k * VW + l];
            }
            to[K * VW + l] = sum;
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

static inline __attribute__((always_inline)) void block(const dti_packed_args *a, int64_t m,
                                                        int64_t o, const int R, const int O,
                                                        const int bits, const bool shifted,
                                                        const bool floats)
{
    const int K = 32 / bits;
    const int64_t chunk = VW * K, bytes = a->n_in * bits / 8, groups = a->n_in / a->group;
    const uint32_t middle = bits == 4 ? 0x88888888u : 0x80808080u;
    const vi flip = (vi)((vu){ 0 } + (floats ? 0 : middle));
    /* two's complement */ /* two's complement */
    vi lane, of;
    vf sum[R_MAX][DTI_PACKED_OUTPUTS];

    for (int l = 0; l < VW; l++) lane[l] = l;
    for (int l = 0; l < VW; l++) of[l] = (int32_t)(chunk > a->group ? l * K / a->group : 0);
    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) sum[r][j] = vf_set(0.0f);
    for (int64_t i = 0; i < a->n_in; i += chunk) {
        const float *x = (const float *)((const char *)a->x + m * a->x_stride) + i / K * (K + 1);
        const int64_t left = a->n_in - i;
        vi w[DTI_PACKED_OUTPUTS];
        vf part[R_MAX][DTI_PACKED_OUTPUTS];
        for (int j = 0; j < O; j++) {
            const uint8_t *at = a->codes + (o + j) * bytes + i * bits / 8;
            w[j] = load_words(at, left * bits / 8) ^ flip;
            __builtin_prefetch(at + DTI_PACKED_OUTPUTS * bytes, 0, 2);
        }
        for (int k = 0; k < K; k++)
            for (int j = 0; j < O; j++) {
                const vf q = value(w[j], k, bits, floats);
                for (int r = 0; r < R; r++) {
                    const vf u =
                        vf_load((const float *)((const char *)(x + k * VW) + r * a->x_stride));
                    part[r][j] = k == 0 ? q * u : vf_fma(q, u, part[r][j]);
                }
            }
        for (int j = 0; j < O; j++) {
            const int64_t at = (o + j) * groups + i / a->group;
            vf s = spread(a->scales + at, of), z = s;
            if (shifted) z = spread(a->shifts + at, of);
            if (left < chunk) { /* lanes beyond have nothing */
                s = vf_select(lane < (int32_t)(left / K), s, vf_set(0.0f));
                z = vf_select(lane < (int32_t)(left / K), z, vf_set(0.0f));
            }
            for (int r = 0; r < R; r++) {
                const float *sums = (const float *)((const char *)(x + K * VW) + r * a->x_stride);
                if (shifted) part[r][j] = vf_fma(z, vf_load(sums), part[r][j]);
                sum[r][j] = vf_fma(s, part[r][j], sum[r][j]);
            }
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) a->y[(m + r) * a->y_stride + o + j] = vf_sum(sum[r][j]);
}

#include "dtensor/kernels/cpu/packed_tiles.inc.c"

const dti_packed_ops DT_PACKED = { stride, pack, dot };
