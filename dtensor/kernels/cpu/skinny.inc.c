/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows for one weight dtype, on the vectors of simd.inc.c. Before including, define
 *   T                      element type of w and x
 *   PAIR(p, left, v0, v1)  2 VW elements at p (at most `left`, zeros beyond) as two vectors of
 * floats FN(name)               name of the function for this dtype
 *
 * One sum of VW lanes per output, chunk by chunk, first v0, then v1: the order of additions is the
 * same for every M and every blocking. */

/* R rows of x from m, O outputs from o, both known when compiling: their sums stay in registers.
 * With `ahead`, w is fetched into level 2 one row before it is used: the prefetchers of the
 * processor lose the stream when there is much arithmetic between two lines. */
static inline __attribute__((always_inline)) void FN(block)(const dti_skinny_args *a, int64_t m,
                                                            int64_t o, const int R, const int O,
                                                            const bool ahead)
{
    const int64_t n_in = a->n_in, x_stride = packed_stride(n_in);
    const float *x = (const float *)a->x + m * x_stride;
    const T *w = (const T *)a->w + o * n_in;
    vf sum[R_MAX > 3 ? R_MAX : 3][O_MAX];

    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) sum[r][j] = vf_set(0.0f);
    for (int64_t i = 0; i < n_in; i += CHUNK) {
        const int64_t left = n_in - i;
        vf w0[O_MAX], w1[O_MAX];
        if (left >= CHUNK) {
            for (int j = 0; j < O; j++) PAIR(w + j * n_in + i, CHUNK, w0[j], w1[j]);
        } else {
            for (int j = 0; j < O; j++) PAIR(w + j * n_in + i, left, w0[j], w1[j]);
        }
        if (ahead)
            for (size_t line = 0; line < CHUNK * sizeof(T); line += 64)
                __builtin_prefetch((const char *)(w + n_in + i) + line, 0, 2);
        for (int r = 0; r < R; r++) {
            const vf x0 = vf_load(x + r * x_stride + i), x1 = vf_load(x + r * x_stride + i + VW);
            for (int j = 0; j < O; j++) sum[r][j] = vf_fma(w0[j], x0, sum[r][j]);
            for (int j = 0; j < O; j++) sum[r][j] = vf_fma(w1[j], x1, sum[r][j]);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) a->y[(m + r) * a->y_stride + o + j] = vf_sum(sum[r][j]);
}

/* All rows of x against one row of w. */
static void FN(one)(const dti_skinny_args *a, int64_t o)
{
    int64_t m = 0;

    for (; m + 3 <= a->n_rows; m += 3) FN(block)(a, m, o, 3, 1, true);
    if (m + 2 == a->n_rows) FN(block)(a, m, o, 2, 1, true);
    if (m + 1 == a->n_rows) FN(block)(a, m, o, 1, 1, true);
}

/* All rows of x against O_MAX rows of w: x is read from the caches once for all of them. */
static void FN(several)(const dti_skinny_args *a, int64_t o)
{
    int64_t m = 0;

    for (; m + R_MAX <= a->n_rows; m += R_MAX) FN(block)(a, m, o, R_MAX, O_MAX, false);
    for (; m + 2 <= a->n_rows; m += 2) FN(block)(a, m, o, 2, O_MAX, false);
    if (m < a->n_rows) FN(block)(a, m, o, 1, O_MAX, false);
}

static void FN(dot)(const dti_skinny_args *a, int64_t begin, int64_t end)
{
    int64_t o = begin;

    if (a->n_rows >= SEVERAL_FROM)
        for (; o + O_MAX <= end; o += O_MAX) FN(several)(a, o);
    for (; o < end; o++) FN(one)(a, o);
}

static void FN(pack)(void *to_, const void *x_, int64_t n_rows, int64_t n_in)
{
    for (int64_t m = 0; m < n_rows; m++) {
        const T *x = (const T *)x_ + m * n_in;
        float *to = (float *)to_ + m * packed_stride(n_in);
        for (int64_t i = 0; i < n_in; i += CHUNK) {
            vf x0, x1;
            PAIR(x + i, n_in - i, x0, x1);
            vf_store(to + i, x0);
            vf_store(to + i + VW, x1);
        }
    }
}

#undef T
#undef PAIR
#undef FN
