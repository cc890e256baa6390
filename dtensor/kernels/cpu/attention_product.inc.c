/* SPDX-License-Identifier: Apache-2.0
 *
 * dti_product. Before including, define
 *   MULADD(a,b,c) c + a b, a being an element of a in every lane
 *   FN(name) */

static inline __attribute__((always_inline)) void
FN(product_block)(const dti_product *p, int64_t i, int64_t j, const int M, const int N)
{
    const float *a = p->a + i * p->a_row;
    const float *b = (const float *)p->b + j;
    float *c = p->c + i * p->c_stride + j;
    vf sum[P_ROWS][P_COLUMNS];

    for (int r = 0; r < M; r++)
        for (int v = 0; v < N; v++)
            sum[r][v] = p->add ? vf_load(c + r * p->c_stride + v * VW) : vf_set(0.0f);
    for (int64_t k = 0; k < p->k; k++) {
        vf row[P_COLUMNS];
        for (int v = 0; v < N; v++) row[v] = vf_load(b + k * p->b_stride + v * VW);
        for (int r = 0; r < M; r++) {
            const vf factor = vf_set(a[r * p->a_row + k * p->a_column]);
            for (int v = 0; v < N; v++) sum[r][v] = MULADD(factor, row[v], sum[r][v]);
        }
    }
    for (int r = 0; r < M; r++)
        for (int v = 0; v < N; v++) vf_store(c + r * p->c_stride + v * VW, sum[r][v]);
}

static inline __attribute__((always_inline)) void FN(product_columns)(const dti_product *p,
                                                                      int64_t i, const int M)
{
    int64_t j = 0;

    for (; j + P_COLUMNS * VW <= p->n; j += P_COLUMNS * VW)
        FN(product_block)(p, i, j, M, P_COLUMNS);
    if (P_COLUMNS > 2 && j + 2 * VW <= p->n) {
        FN(product_block)(p, i, j, M, 2);
        j += 2 * VW;
    }
    for (; j < p->n; j += VW) FN(product_block)(p, i, j, M, 1);
}

static void FN(product)(const dti_product *p)
{
    for (int64_t i = 0; i < p->m;) {
        const int64_t n = rows_of(p->m - i);
        if (n == 6) FN(product_columns)(p, i, 6);
        if (n == 5) FN(product_columns)(p, i, 5);
        if (n == 4) FN(product_columns)(p, i, 4);
        if (n == 3) FN(product_columns)(p, i, 3);
        if (n == 2) FN(product_columns)(p, i, 2);
        if (n == 1) FN(product_columns)(p, i, 1);
        i += n;
    }
}

#undef MULADD
#undef FN
