/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops over the cache for one token, for one dtype of the cache. Before including, define
 *   T, LD(p, left), FN(name) as for rows.inc.c */

/* Dot products of one row of k with G heads. A sum of VW lanes per product: its order depends on
 * the width alone. */
static inline __attribute__((always_inline)) void FN(dots)(float *s, const float *q, const T *k,
                                                           int64_t width, const int G)
{
    const int64_t padded = dti_padded(width);
    vf sum[HEADS];

    for (int g = 0; g < G; g++) sum[g] = vf_set(0.0f);
    for (int64_t d = 0; d < width; d += VW) {
        const vf row = LD(k + d, width - d);
        for (int g = 0; g < G; g++) sum[g] = vf_fma(row, vf_load(q + g * padded + d), sum[g]);
    }
    for (int g = 0; g < G; g++) s[g * DTI_DECODE_KEYS] = vf_sum(sum[g]);
}

static void FN(scores)(float *s, const float *q, int64_t n_heads, const void *k_, int64_t stride,
                       int64_t n, int64_t width)
{
    const T *k = k_;

    for (int64_t g = 0; g < n_heads;) {
        const int64_t padded = dti_padded(width);
        const bool several = g + HEADS <= n_heads;
        for (int64_t j = 0; j < n; j++) {
            if (several)
                FN(dots)(s + g * DTI_DECODE_KEYS + j, q + g * padded, k + j * stride, width, HEADS);
            else
                FN(dots)(s + g * DTI_DECODE_KEYS + j, q + g * padded, k + j * stride, width, 1);
        }
        g += several ? HEADS : 1;
    }
}

/* G heads, N vectors of columns from d: their sums stay in registers over all rows of v. */
static inline __attribute__((always_inline)) void
FN(mix_block)(float *o, const float *p, const T *v, const mix_args *a, const int G, const int N)
{
    const int64_t padded = dti_padded(a->width);
    vf sum[HEADS][COLUMNS];

    for (int g = 0; g < G; g++)
        for (int c = 0; c < N; c++) sum[g][c] = vf_load(o + g * padded + c * VW);
    for (int64_t j = 0; j < a->n; j++) {
        vf row[COLUMNS];
        for (int c = 0; c < N; c++) row[c] = LD(v + j * a->stride + c * VW, a->left - c * VW);
        for (int g = 0; g < G; g++) {
            const vf weight = vf_set(p[g * DTI_DECODE_KEYS + j]);
            for (int c = 0; c < N; c++) sum[g][c] = vf_fma(weight, row[c], sum[g][c]);
        }
    }
    for (int g = 0; g < G; g++)
        for (int c = 0; c < N; c++) vf_store(o + g * padded + c * VW, sum[g][c]);
}

static void FN(mix)(float *o, const float *p, int64_t n_heads, const void *v_, int64_t stride,
                    int64_t n, int64_t width)
{
    const T *v = v_;
    const int64_t padded = dti_padded(width);

    for (int64_t g = 0; g < n_heads;) {
        const bool several = g + HEADS <= n_heads;
        for (int64_t d = 0; d < width;) {
            const mix_args a = { stride, n, width, width - d };
            const bool wide = d + COLUMNS * VW <= width;
            float *to = o + g * padded + d;
            const float *weights = p + g * DTI_DECODE_KEYS;
            if (several && wide) FN(mix_block)(to, weights, v + d, &a, HEADS, COLUMNS);
            if (several && !wide) FN(mix_block)(to, weights, v + d, &a, HEADS, 1);
            if (!several && wide) FN(mix_block)(to, weights, v + d, &a, 1, COLUMNS);
            if (!several && !wide) FN(mix_block)(to, weights, v + d, &a, 1, 1);
            d += wide ? COLUMNS * VW : VW;
        }
        g += several ? HEADS : 1;
    }
}

#undef T
#undef LD
#undef FN
