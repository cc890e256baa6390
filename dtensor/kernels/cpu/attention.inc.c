/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of keys on the way forward, for one dtype of the cache. Before including, define
 *   T, LD(p, left), FN(name)  as for rows.inc.c
 *   PER, LD_Q(p, left)        elements of T in what a query is multiplied by, and a vector of those
 *   SCORES                    the product of such */

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

/* Keys become columns; columns beyond n_keys are zeros. */
static void FN(turn)(const dti_attention_tile *t, fetcher *f)
{
    for (int64_t j = 0; j < t->n_keys; j += VW)
        for (int64_t d = 0; d < t->width; d += PER * VW) {
            const T *from = (const T *)t->k + j * t->stride + d;
            float *to = t->keys + d / PER * DTI_TILE_KEYS + j;
            vf square[VW];
            fetch(f);
            if (j + VW <= t->n_keys && d + PER * VW <= t->width)
                for (int64_t i = 0; i < VW; i++) square[i] = LD_Q(from + i * t->stride, PER * VW);
            else
                for (int64_t i = 0; i < VW; i++)
                    square[i] =
                        j + i < t->n_keys ? LD_Q(from + i * t->stride, t->width - d) : vf_set(0.0f);
            turn_square(square);
            for (int64_t i = 0; i < VW; i++) vf_store(to + i * DTI_TILE_KEYS, square[i]);
        }
}

/* Few rows take v as it lies, many convert it once. */
static void FN(tile)(const dti_attention_tile *t)
{
    const int64_t padded = dti_padded(t->width), depth = (t->width + PER - 1) / PER;
    const bool few = t->n_rows <= P_ROWS && t->width % VW == 0;
    const int64_t squares = (t->n_keys + VW - 1) / VW * ((depth + VW - 1) / VW);
    const int64_t rounds = DTI_TILE_KEYS / WIDE * depth + (padded + WIDE - 1) / WIDE * t->n_keys;
    _Alignas(64) float weights[P_ROWS * DTI_WEIGHTS_STRIDE];
    fetcher f = fetcher_of(t, t->stride * (int64_t)sizeof(T), squares + (few ? rounds : 0));
    dti_product scores = { .c_stride = DTI_WEIGHTS_STRIDE,
                           .a_row = padded,
                           .a_column = 1,
                           .b_stride = DTI_TILE_KEYS,
                           .k = depth };
    dti_product sums = { .c_stride = padded,
                         .a_row = DTI_WEIGHTS_STRIDE,
                         .a_column = 1,
                         .b_stride = few ? t->stride : padded,
                         .n = few ? t->width : padded,
                         .add = true };

    FN(turn)(t, &f);
    if (!few) FN(rows)(t->values, t->v, t->stride, t->n_keys, t->width);
    for (int64_t row = 0; row < t->n_rows; row += scores.m) {
        int64_t begin, end;
        scores.m = sums.m = rows_of(t->n_rows - row);
        if (!span_of(t, row, scores.m, &begin, &end)) continue;
        scores.a = t->q + row * padded;
        scores.b = t->keys + begin;
        scores.c = weights + begin;
        scores.n = (end - begin + VW - 1) / VW * VW;
        SCORES(&scores, few ? &f : NULL);
        if (t->adjust != NULL) t->adjust(t, weights, row, scores.m);
        soften(t, weights, row, scores.m, begin, end);
        if (t->drop != NULL) t->drop(t, weights, row, scores.m);
        sums.a = weights + begin;
        sums.c = t->sums + row * padded;
        sums.k = end - begin;
        sums.b = few ? (const void *)((const T *)t->v + begin * t->stride)
                     : (const void *)(t->values + begin * padded);
        if (few)
            FN(product)(&sums, &f);
        else
            product_of_f32(&sums, NULL);
    }
}

#undef T
#undef LD
#undef FN
#undef PER
#undef LD_Q
#undef SCORES
