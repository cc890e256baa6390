/* SPDX-License-Identifier: Apache-2.0
 *
 * Tiles of one weight dtype on the vectors of simd.inc.c (dots.h). Before including, define
 *   T               element type of w and x as they lie
 *   P, V            element type of what is packed; a vector of it,
 *   LANES, PARTS    which has so many; vectors of COLUMNS elements
 *   UNPACKED(p, h)  part h of COLUMNS elements at p as they lie, as a vector
 *   FMA(v, u, sum)  sum and the products of two vectors, lane by lane
 *   FN(name)        name of the function for this dtype
 * and once R_MAX, O_MAX (rows and outputs whose sums fit into the registers), COLUMNS. */

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

static inline V FN(load)(const P *p)
{
    V v;

    memcpy(&v, p, sizeof v);
    return v;
}

/* R rows and O outputs from `first` on, known when compiling: their sums stay in registers. x is
 * vectors [columns][row]. Where fewer outputs are left the last one is computed again. */
static inline __attribute__((always_inline)) void FN(block)(const dti_dots_tile *t, int64_t first,
                                                            const int R, const int O)
{
    const int64_t depth = t->depth, rest = depth % COLUMNS, n_ahead = t->n_ahead;
    const char *ahead = t->ahead + first * t->ahead_stride;
    const bool begins = t->begins, ends = t->ends;
    const P *x = t->x;
    const T *w[O_MAX];
    float *lanes = t->lanes + first * R * VW, *y = t->y + first;
    _Alignas(64) T edge[O_MAX][COLUMNS];
    vf sum[R_MAX][O_MAX];

    for (int j = 0; j < O; j++) {
        const int64_t o = first + j < t->n_outputs ? first + j : t->n_outputs - 1;
        w[j] = (const T *)(const void *)((const char *)t->w + o * t->w_stride);
        if (rest == 0) continue;
        memset(edge[j], 0, sizeof edge[j]);
        memcpy(edge[j], w[j] + depth - rest, (size_t)rest * sizeof(T));
    }
    UNROLL
    for (int k = 0; k < R * O; k++)
        sum[k / O][k % O] = begins ? vf_set(0.0f) : vf_load(lanes + k * VW);
    for (int64_t i = 0; i < depth; i += COLUMNS) {
        if (i + COLUMNS > depth)
            for (int j = 0; j < O; j++) w[j] = edge[j] - i;
        DTI_DOTS_PREFETCH(ahead, n_ahead, COLUMNS * (int)sizeof(T));
        for (int h = 0; h < PARTS; h++) {
            V u[R_MAX];
            for (int r = 0; r < R; r++) u[r] = FN(load)(x + r * LANES);
            for (int j = 0; j < O; j++) {
                const V v = UNPACKED(w[j] + i, h);
                for (int r = 0; r < R; r++) sum[r][j] = FMA(v, u[r], sum[r][j]);
            }
            x += R * LANES;
        }
    }
    if (!ends) {
        UNROLL
        for (int k = 0; k < R * O; k++) vf_store(lanes + k * VW, sum[k / O][k % O]);
        return;
    }
    UNROLL
    for (int r = 0; r < R; r++, y += t->y_stride)
        if (O == 4) {
            vf_sum4(y, sum[r][0], sum[r][1], sum[r][2], sum[r][3]);
        } else {
            y[0] = vf_sum(sum[r][0]);
            if (O == 2) y[1] = vf_sum(sum[r][1]);
        }
}

static inline __attribute__((always_inline)) void FN(rows)(const dti_dots_tile *t, const int R)
{
    const bool shared = R >= R_MAX / 2; /* where there are several tiles they share rows evenly */

    if (t->width == O_MAX)
        for (int64_t o = 0; o < t->n_outputs; o += O_MAX) FN(block)(t, o, R, O_MAX);
    else if (t->width == 2 && shared)
        for (int64_t o = 0; o < t->n_outputs; o += 2) FN(block)(t, o, R, 2);
    else if (R <= DTI_DOTS_SINGLE)
        for (int64_t o = 0; o < t->n_outputs; o++) FN(block)(t, o, R, 1);
}

static void FN(multiply)(const dti_dots_tile *t)
{
    switch (t->n_rows) {
    case 1:
        FN(rows)(t, 1);
        break;
    case 2:
        FN(rows)(t, 2);
        break;
#if R_MAX > 2
    case 3:
        FN(rows)(t, 3);
        break;
#endif
#if R_MAX > 3
    case 4:
        FN(rows)(t, 4);
        break;
    case 5:
        FN(rows)(t, 5);
        break;
    case 6:
        FN(rows)(t, 6);
        break;
#endif
    default:
        break;
    }
}

static void FN(pack)(void *to_, const void *x, int64_t stride, int64_t n_rows, int64_t depth)
{
    for (int64_t r = 0; r < n_rows; r++) {
        const T *row = (const T *)(const void *)((const char *)x + r * stride);
        P *to = (P *)to_ + r * LANES;
        T edge[COLUMNS] = { 0 };
        memcpy(edge, row + depth / COLUMNS * COLUMNS, (size_t)(depth % COLUMNS) * sizeof(T));
        for (int64_t i = 0; i < depth; i += COLUMNS)
            for (int h = 0; h < PARTS; h++, to += n_rows * LANES) {
                const V v = UNPACKED(i + COLUMNS > depth ? edge : row + i, h);
                memcpy(to, &v, sizeof v);
            }
    }
}

#undef UNROLL
#undef T
#undef P
#undef V
#undef LANES
#undef PARTS
#undef UNPACKED
#undef FMA
#undef FN
