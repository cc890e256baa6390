/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of keys on the way forward, for one dtype of the cache. Before including, define
 *   T, LD(p, left), FN(name)  as for rows.inc.c
 *   PER, LD_Q(p, left)        elements of T in what a query is multiplied by, and a vector of those
 *   SCORES, MULADD(a, b, c)   the product of such; c + a b of two vectors */

static void FN(rows)(float *to, const void *from, int64_t stride, int64_t n, int64_t width)
{
    const int64_t padded = dti_padded(width);

    for (int64_t j = 0; j < n; j++) {
        const T *row = (const T *)from + j * stride;
        for (int64_t d = 0; d < padded; d += VW)
            vf_store(to + j * padded + d, d < width ? LD(row + d, width - d) : vf_set(0.0f));
    }
}

static void FN(queries)(float *to, const void *from, int64_t stride, int64_t n, int64_t width)
{
    const int64_t padded = dti_padded(width);

    for (int64_t j = 0; j < n; j++)
        for (int64_t d = 0; d < width; d += PER * VW)
            vf_store(to + j * padded + d / PER, LD_Q((const T *)from + j * stride + d, width - d));
}

/* PER columns of VW keys from the j-th on, from column d on; what the tile does not have is 0. */
static inline void FN(square)(const dti_attention_tile *t, int64_t j, int64_t d, vf square[VW])
{
    const T *from = (const T *)t->k + j * t->stride + d;

    if (j + VW <= t->n_keys && d + PER * VW <= t->width)
        for (int64_t i = 0; i < VW; i++) square[i] = LD_Q(from + i * t->stride, PER * VW);
    else
        for (int64_t i = 0; i < VW; i++)
            square[i] = j + i < t->n_keys ? LD_Q(from + i * t->stride, t->width - d) : vf_set(0.0f);
    turn_square(square);
}

/* Keys become columns; columns beyond n_keys are zeros. */
static void FN(turn)(const dti_attention_tile *t)
{
    for (int64_t j = 0; j < t->n_keys; j += VW)
        for (int64_t d = 0; d < t->width; d += PER * VW) {
            float *to = t->keys + d / PER * DTI_TILE_KEYS + j;
            vf square[VW];
            FN(square)(t, j, d, square);
            for (int64_t i = 0; i < VW; i++) vf_store(to + i * DTI_TILE_KEYS, square[i]);
        }
}

/* Many rows: k is turned and v converted once for all of them. */
static void FN(many)(const dti_attention_tile *t)
{
    const int64_t padded = dti_padded(t->width);
    const int64_t blocks = (t->n_rows + P_ROWS - 1) / P_ROWS;
    fetcher f = fetcher_of(t, t->stride * (int64_t)sizeof(T), 2 * blocks);
    _Alignas(64) float weights[P_ROWS * DTI_WEIGHTS_STRIDE];
    dti_product scores = { .c_stride = DTI_WEIGHTS_STRIDE,
                           .a_row = padded,
                           .a_column = 1,
                           .b_stride = DTI_TILE_KEYS,
                           .k = (t->width + PER - 1) / PER };
    dti_product sums = { .c_stride = padded,
                         .a_row = DTI_WEIGHTS_STRIDE,
                         .a_column = 1,
                         .b_stride = padded,
                         .n = padded,
                         .add = true };

    FN(turn)(t);
    FN(rows)(t->values, t->v, t->stride, t->n_keys, t->width);
    for (int64_t row = 0; row < t->n_rows; row += scores.m) {
        int64_t begin, end;
        scores.m = sums.m = rows_of(t->n_rows - row);
        fetch(&f, 1);
        if (!span_of(t, row, scores.m, &begin, &end)) continue;
        scores.a = t->q + row * padded;
        scores.b = t->keys + begin;
        scores.c = weights + begin;
        scores.n = (end - begin + VW - 1) / VW * VW;
        SCORES(&scores);
        fetch(&f, 1);
        weigh(t, weights, row, scores.m, begin, end);
        sums.a = weights + begin;
        sums.b = t->values + begin * padded;
        sums.c = t->sums + row * padded;
        sums.k = end - begin;
        product_of_f32(&sums);
    }
}

/* --- few rows: nothing is written but scores and sums ----------------------------------------- */

static inline __attribute__((always_inline)) void FN(few_scores)(const dti_attention_tile *t,
                                                                 fetcher *f, float *scores,
                                                                 const int64_t span[2], const int M)
{
    const int64_t padded = dti_padded(t->width);

    for (int64_t d = 0; d < t->width; d += PER * VW)
        for (int64_t j = span[0]; j < span[1]; j += VW) {
            const float *q = t->q + d / PER;
            vf square[VW], sum[P_ROWS];
            FN(square)(t, j, d, square);
            fetch(f, SQUARE);
            for (int r = 0; r < M; r++)
                sum[r] = d == 0 ? vf_set(0.0f) : vf_load(scores + r * DTI_WEIGHTS_STRIDE + j);
            for (int i = 0; i < VW; i++)
                for (int r = 0; r < M; r++)
                    sum[r] = MULADD(vf_set(q[r * padded + i]), square[i], sum[r]);
            for (int r = 0; r < M; r++) vf_store(scores + r * DTI_WEIGHTS_STRIDE + j, sum[r]);
        }
}

static inline __attribute__((always_inline)) void
FN(few_sums)(const dti_attention_tile *t, fetcher *f, const float *weights, const int64_t span[2],
             int64_t column, const int M, const int N)
{
    const int64_t padded = dti_padded(t->width);
    const T *v = (const T *)t->v + span[0] * t->stride + column;
    float *to = t->sums + column;
    vf sum[P_ROWS][P_COLUMNS];

    for (int r = 0; r < M; r++)
        for (int c = 0; c < N; c++) sum[r][c] = vf_load(to + r * padded + c * VW);
    for (int64_t j = span[0]; j < span[1]; j++, v += t->stride) {
        vf row[P_COLUMNS];
        fetch(f, 1);
        for (int c = 0; c < N; c++) row[c] = LD(v + c * VW, VW);
        for (int r = 0; r < M; r++) {
            const vf weight = vf_set(weights[r * DTI_WEIGHTS_STRIDE + j]);
            for (int c = 0; c < N; c++) sum[r][c] = vf_fma(weight, row[c], sum[r][c]);
        }
    }
    for (int r = 0; r < M; r++)
        for (int c = 0; c < N; c++) vf_store(to + r * padded + c * VW, sum[r][c]);
}

static inline __attribute__((always_inline)) void FN(few_rows)(const dti_attention_tile *t,
                                                               const int M)
{
    const int64_t squares = (t->n_keys + VW - 1) / VW * ((t->width + PER * VW - 1) / (PER * VW));
    _Alignas(64) float weights[P_ROWS * DTI_WEIGHTS_STRIDE];
    fetcher f = fetcher_of(t, t->stride * (int64_t)sizeof(T),
                           SQUARE * squares + t->n_keys * ((t->width + WIDE - 1) / WIDE));
    int64_t span[2], column = 0;

    if (!span_of(t, 0, M, &span[0], &span[1])) return;
    FN(few_scores)(t, &f, weights, span, M);
    weigh(t, weights, 0, M, span[0], span[1]);
    for (; column + P_COLUMNS * VW <= t->width; column += P_COLUMNS * VW)
        FN(few_sums)(t, &f, weights, span, column, M, P_COLUMNS);
    for (; column < t->width; column += VW) FN(few_sums)(t, &f, weights, span, column, M, 1);
}

static void FN(tile)(const dti_attention_tile *t)
{
    const int64_t few = t->width % VW == 0 && t->n_rows <= P_ROWS ? t->n_rows : 0;

    if (few == 0) FN(many)(t);
    if (few == 1) FN(few_rows)(t, 1);
    if (few == 2) FN(few_rows)(t, 2);
    if (few == 3) FN(few_rows)(t, 3);
    if (few == 4) FN(few_rows)(t, 4);
    if (few == 5) FN(few_rows)(t, 5);
    if (few == 6) FN(few_rows)(t, 6);
}

#undef T
#undef LD
#undef FN
#undef PER
#undef LD_Q
#undef SCORES
#undef MULADD
