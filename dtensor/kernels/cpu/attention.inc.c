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
    if (G == HEADS) {
        float sums[HEADS];
        vf_sum4(sums, sum[0], sum[1], sum[2], sum[3]);
        for (int g = 0; g < G; g++) s[g * DTI_DECODE_KEYS] = sums[g];
    } else {
        for (int g = 0; g < G; g++) s[g * DTI_DECODE_KEYS] = vf_sum(sum[g]);
    }
}

static void FN(scores)(float *s, const float *q, int64_t n_heads, const void *k_, int64_t stride,
                       int64_t n, int64_t width)
{
    const T *k = k_;
    const int64_t row_bytes = width * (int64_t)sizeof *k;

    for (int64_t g = 0; g < n_heads;) {
        const int64_t heads = heads_of(n_heads - g);
        const float *first = q + g * dti_padded(width);
        for (int64_t j = 0; j < n; j++) {
            float *to = s + g * DTI_DECODE_KEYS + j;
            if (g == 0) ahead_of(k + (j + AHEAD) * stride, row_bytes);
            if (heads == HEADS) FN(dots)(to, first, k + j * stride, width, HEADS);
            if (heads == 2) FN(dots)(to, first, k + j * stride, width, 2);
            if (heads == 1) FN(dots)(to, first, k + j * stride, width, 1);
        }
        g += heads;
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
        if (a->ahead) ahead_of(v + (j + AHEAD) * a->stride, N * VW * (int64_t)sizeof *v);
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

    for (int64_t g = 0; g < n_heads;) {
        const int64_t heads = heads_of(n_heads - g);
        for (int64_t d = 0; d < width;) {
            const mix_args a = { stride, n, width, width - d, g == 0 };
            const bool wide = d + COLUMNS * VW <= width;
            float *to = o + g * dti_padded(width) + d;
            const float *weights = p + g * DTI_DECODE_KEYS;
            if (heads == HEADS && wide) FN(mix_block)(to, weights, v + d, &a, HEADS, COLUMNS);
            if (heads == HEADS && !wide) FN(mix_block)(to, weights, v + d, &a, HEADS, 1);
            if (heads == 2 && wide) FN(mix_block)(to, weights, v + d, &a, 2, COLUMNS);
            if (heads == 2 && !wide) FN(mix_block)(to, weights, v + d, &a, 2, 1);
            if (heads == 1 && wide) FN(mix_block)(to, weights, v + d, &a, 1, COLUMNS);
            if (heads == 1 && !wide) FN(mix_block)(to, weights, v + d, &a, 1, 1);
            d += wide ? COLUMNS * VW : VW;
        }
        g += heads;
    }
}

static void FN(rows)(float *to, const void *from, int64_t stride, int64_t n, int64_t width)
{
    const int64_t padded = dti_padded(width);

    for (int64_t j = 0; j < n; j++) {
        const T *row = (const T *)from + j * stride;
        for (int64_t d = 0; d < padded; d += VW)
            vf_store(to + j * padded + d, d < width ? LD(row + d, width - d) : vf_set(0.0f));
    }
}

#undef T
#undef LD
#undef FN
