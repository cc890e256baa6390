/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of 1 to 8 rows: y[m, o] = sum_i x[m, i] w[o, i] (+ bias[o]). x [M, I], w [O, I], bias
 * [O] of one dtype, y [M, O] of that or f32. Sums in f32, bias added in f32, one rounding.
 *
 * w is read once, so time is bytes of w over the speed of memory; everything else has to stay out
 * of the way. A block has 16 rows of w. Of 16-bit types a warp multiplies them by mma.sync with w
 * as the tall operand and up to 8 rows of x as the other one: for each KiB of w a lane has two
 * loads of w, one of x from level 1 and two instructions of arithmetic, for 8 rows as for one.
 * Warps of a block take chunks of columns in turn, 128 elements at a time, so a block reads 2 KiB
 * of a row side by side, and each lane has 8 loads of w on their way. f32, and rows that are not
 * 16-byte aligned, are summed by lanes, two rows of w in a warp.
 *
 * Few outputs do not fill the device with blocks of 16: then blocks share the columns too, and a
 * second kernel adds their sums. All sums have a fixed order, which depends on O, I and the number
 * of SMs and never on M, so a row does not depend on its neighbours. */
#include "dtensor/kernels/cuda/product.cuh"

enum {
    TILE = 16, /* rows of w in a block */
    AHEAD = 4, /* loads of one row on their way in a lane */
    CHUNK = 32 * AHEAD,
    WARPS = 8, /* of a block; twice as many where there are few blocks */
    MOST_WARPS = 2 * WARPS,
    MOST_SPLITS = 16
};

struct skinny_args {
    dti_product_job p;
    float *parts; /* [splits, M, O] or NULL */
};

/* Adds the sums of the block's warps in their order: sums [warps][M * TILE]. */
template <typename T>
static __device__ void finish(const skinny_args &a, const dti_row_range &rows, const float *sums,
                              int n_sums)
{
    const int r = threadIdx.x / TILE, j = threadIdx.x % TILE;
    const int64_t o = (int64_t)blockIdx.x * TILE + j;
    float sum = 0.0f;

    if (r >= rows.n_rows || o >= a.p.n) return;
    for (int s = 0; s < n_sums; s++) sum += sums[s * DTI_SKINNY_MAX * TILE + r * TILE + j];
    if (a.parts != NULL)
        a.parts[((int64_t)blockIdx.z * a.p.m + rows.row + r) * a.p.n + o] = sum;
    else
        dti_store_sum<T>(a.p, rows.row + r, o, sum);
}

/* --- by tiles: 16-bit types, rows 16-byte aligned --------------------------------------------- */

/* The chunk that begins at column i of this lane: `left` elements are there. `w` has rows g and
 * g + 8, `x` row g or NULL. */
template <typename T, bool WHOLE>
static __device__ inline void add_chunk(float sums[2][4], const T *const w[2], const T *x,
                                        int64_t i, int64_t left)
{
    const uint4 zero = make_uint4(0, 0, 0, 0);
    uint4 wv[AHEAD][2], xv[AHEAD];

    DTI_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        const bool there = WHOLE || 32 * u < left;
        wv[u][0] = there ? dti_load_once(w[0] + i + 32 * u) : zero;
        wv[u][1] = there ? dti_load_once(w[1] + i + 32 * u) : zero;
    }
    DTI_UNROLL
    for (int u = 0; u < AHEAD; u++)
        xv[u] = x != NULL && (WHOLE || 32 * u < left)
                    ? *reinterpret_cast<const uint4 *>(x + i + 32 * u)
                    : zero;
    DTI_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        const uint32_t a0[4] = { wv[u][0].x, wv[u][1].x, wv[u][0].y, wv[u][1].y };
        const uint32_t a1[4] = { wv[u][0].z, wv[u][1].z, wv[u][0].w, wv[u][1].w };
        const uint32_t b0[2] = { xv[u].x, xv[u].y }, b1[2] = { xv[u].z, xv[u].w };
        dti_mma(sums[0], a0, b0, T());
        dti_mma(sums[1], a1, b1, T());
    }
}

template <typename T> static __global__ void __launch_bounds__(512) skinny_tiles(skinny_args a)
{
    __shared__ float sums[MOST_WARPS][DTI_SKINNY_MAX * TILE];
    const int warp = (int)threadIdx.x / DTI_WARP, lane = (int)threadIdx.x % DTI_WARP;
    const int n_warps = (int)blockDim.x / DTI_WARP, g = lane / 4, t = lane % 4;
    const int64_t o = (int64_t)blockIdx.x * TILE + g, last = a.p.n - 1;
    float d[2][4] = {};
    dti_row_range rows;

    if (!dti_find_rows(a.p, (int)blockIdx.y, DTI_SKINNY_MAX, &rows)) return;
    /* Rows beyond the last one read that one again; nobody looks at their sums. */
    const T *const base = static_cast<const T *>(a.p.w) + rows.group * a.p.n * a.p.k + 8 * t;
    const T *const w[2] = { base + (o < last ? o : last) * a.p.k,
                            base + (o + 8 < last ? o + 8 : last) * a.p.k };
    const T *x = NULL;
    if (g < rows.n_rows)
        x = static_cast<const T *>(a.p.x) + dti_x_row(a.p, rows.row + g) * a.p.k + 8 * t;

    const int64_t step = (int64_t)gridDim.z * n_warps * CHUNK;
    int64_t i = ((int64_t)blockIdx.z * n_warps + warp) * CHUNK;
    for (; i + CHUNK <= a.p.k; i += step) add_chunk<T, true>(d, w, x, i, 0);
    if (i < a.p.k) add_chunk<T, false>(d, w, x, i, a.p.k - i - 8 * t);

    for (int e = 0; e < 4; e++) /* rows of w are rows of D, rows of x its columns */
        sums[warp][(2 * t + e % 2) * TILE + g + e / 2 * 8] = d[0][e] + d[1][e];
    __syncthreads();
    finish<T>(a, rows, &sums[0][0], n_warps);
}

/* --- by lanes: f32, and rows of any alignment ------------------------------------------------- */

enum { PAIR = 2 };

/* The sum over lanes of 16 values in each: value lane / 2 in each lane. */
static __device__ inline float sum_lanes(float v[DTI_SKINNY_MAX * PAIR], int lane)
{
    DTI_UNROLL
    for (int n = DTI_SKINNY_MAX; n >= 1; n /= 2) {
        const bool upper = (lane & 2 * n) != 0;
        DTI_UNROLL
        for (int i = 0; i < n; i++) {
            const float keep = upper ? v[i + n] : v[i], give = upper ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, 2 * n);
        }
    }
    return v[0] + __shfl_xor_sync(0xffffffffu, v[0], 1);
}

/* N elements of a row from column i on: one, or those of 16 bytes. */
template <typename T, int N>
static __device__ inline void load_some(float to[N], const T *row, int64_t i, bool there)
{
    if (N == 1) {
        to[0] = there ? dti_widen(row[i]) : 0.0f;
    } else {
        const uint4 v = there ? dti_load_once(row + i) : make_uint4(0, 0, 0, 0);
        DTI_UNROLL
        for (int e = 0; e < N; e++) to[e] = dti_element(v, e, T());
    }
}

template <typename T, int N>
static __global__ void __launch_bounds__(WARPS *DTI_WARP) skinny_lanes(skinny_args a)
{
    __shared__ float sums[DTI_SKINNY_MAX * TILE];
    const int warp = (int)threadIdx.x / DTI_WARP, lane = (int)threadIdx.x % DTI_WARP;
    const int64_t o = (int64_t)blockIdx.x * TILE + PAIR * warp, last = a.p.n - 1;
    float d[DTI_SKINNY_MAX * PAIR] = {};
    const T *x[DTI_SKINNY_MAX];
    dti_row_range rows;

    if (!dti_find_rows(a.p, (int)blockIdx.y, DTI_SKINNY_MAX, &rows)) return;
    const T *const base = static_cast<const T *>(a.p.w) + rows.group * a.p.n * a.p.k;
    const T *const w[PAIR] = { base + (o < last ? o : last) * a.p.k,
                               base + (o + 1 < last ? o + 1 : last) * a.p.k };
    for (int r = 0; r < DTI_SKINNY_MAX; r++)
        x[r] = static_cast<const T *>(a.p.x) +
               (r < rows.n_rows ? dti_x_row(a.p, rows.row + r) * a.p.k : 0);

    const int64_t step = (int64_t)gridDim.z * DTI_WARP * N * AHEAD;
    for (int64_t i = ((int64_t)blockIdx.z * DTI_WARP * AHEAD + lane) * N; i < a.p.k; i += step) {
        float wv[AHEAD][PAIR][N], xv[N];
        DTI_UNROLL
        for (int u = 0; u < AHEAD; u++) DTI_UNROLL
        for (int j = 0; j < PAIR; j++) {
            const int64_t at = i + (int64_t)u * DTI_WARP * N;
            load_some<T, N>(wv[u][j], w[j], at, at < a.p.k);
        }
        DTI_UNROLL
        for (int r = 0; r < DTI_SKINNY_MAX; r++) {
            if (r >= rows.n_rows) break;
            DTI_UNROLL
            for (int u = 0; u < AHEAD; u++) {
                const int64_t at = i + (int64_t)u * DTI_WARP * N;
                if (at >= a.p.k) break;
                if (N == 1) {
                    xv[0] = dti_widen(x[r][at]);
                } else {
                    const uint4 v = *reinterpret_cast<const uint4 *>(x[r] + at);
                    DTI_UNROLL
                    for (int e = 0; e < N; e++) xv[e] = dti_element(v, e, T());
                }
                DTI_UNROLL
                for (int j = 0; j < PAIR; j++) DTI_UNROLL
                for (int e = 0; e < N; e++)
                    d[PAIR * r + j] = fmaf(wv[u][j][e], xv[e], d[PAIR * r + j]);
            }
        }
    }
    const float sum = sum_lanes(d, lane); /* lanes 2 v and 2 v + 1 have value v = PAIR r + j */
    if (lane % 2 == 0) sums[lane / 4 * TILE + PAIR * warp + lane / 2 % 2] = sum;
    __syncthreads();
    finish<T>(a, rows, sums, 1);
}

/* --- sums of blocks that share columns -------------------------------------------------------- */

template <typename T> static __global__ void add_parts(skinny_args a, int n_parts)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, n = a.p.m * a.p.n;
    float sum = 0.0f;

    if (i >= n) return;
    for (int s = 0; s < n_parts; s++) sum += a.parts[s * n + i];
    dti_store_sum<T>(a.p, i / a.p.n, i % a.p.n, sum);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T> static int add_blocks(dti_cuda *c, const skinny_args *a, int n_parts)
{
    const unsigned n_blocks = (unsigned)((a->p.m * a->p.n + 255) / 256);

    return DTI_LAUNCH(c, add_parts<T>, dim3(n_blocks), dim3(256), 0, *a, n_parts);
}

/* In how many parts blocks share the columns: enough to fill the SMs, each with two chunks or more
 * for every warp. */
static int count_splits(const dti_cuda *c, const dti_product_job *p, int64_t block_columns)
{
    const int64_t n_tiles = (p->n + TILE - 1) / TILE;
    int64_t splits = c->n_sms / n_tiles;

    if (p->groups.tiles != NULL) return 1; /* tiles of rows fill the device */
    if (splits > p->k / (2 * block_columns)) splits = p->k / (2 * block_columns);
    if (splits > MOST_SPLITS) splits = MOST_SPLITS;
    return splits < 2 ? 1 : (int)splits;
}

template <typename T>
static int launch(dti_cuda *c, const dti_product_job *p, void (*skinny)(skinny_args), int n_warps,
                  int64_t block_columns)
{
    const int splits = count_splits(c, p, block_columns);
    const unsigned n_tiles = (unsigned)((p->n + TILE - 1) / TILE);
    const unsigned row_tiles = p->groups.tiles != NULL ? (unsigned)p->groups.max_tiles : 1;
    skinny_args a = { *p, NULL };
    void *parts;

    if (splits > 1) {
        if (dti_cuda_scratch(c, (size_t)(splits * p->m * p->n) * sizeof(float), &parts) != 0)
            return -1;
        a.parts = static_cast<float *>(parts);
    }
    if (DTI_LAUNCH(c, skinny, dim3(n_tiles, row_tiles, (unsigned)splits),
                   dim3((unsigned)(n_warps * DTI_WARP)), 0, a) != 0)
        return -1;
    return splits > 1 ? add_blocks<T>(c, &a, splits) : 0;
}

/* Is there a block or less for each SM? */
static bool few_blocks(const dti_cuda *c, const dti_product_job *p)
{
    return p->groups.tiles == NULL && (p->n + TILE - 1) / TILE <= c->n_sms;
}

template <typename T> static int skinny_16(dti_cuda *c, const dti_product_job *p)
{
    const int n_warps = few_blocks(c, p) ? MOST_WARPS : WARPS;
    const int64_t row = p->k * (int64_t)sizeof(T);

    if (dti_rows_aligned(p->x, row) && dti_rows_aligned(p->w, row))
        return launch<T>(c, p, skinny_tiles<T>, n_warps, (int64_t)n_warps * CHUNK);
    return launch<T>(c, p, skinny_lanes<T, 1>, WARPS, DTI_WARP * AHEAD);
}

static int skinny_32(dti_cuda *c, const dti_product_job *p)
{
    const int64_t row = p->k * (int64_t)sizeof(float);

    if (dti_rows_aligned(p->x, row) && dti_rows_aligned(p->w, row))
        return launch<float>(c, p, skinny_lanes<float, 4>, WARPS, DTI_WARP * AHEAD * 4);
    return launch<float>(c, p, skinny_lanes<float, 1>, WARPS, DTI_WARP * AHEAD);
}

int dti_cuda_skinny(dti_cuda *c, int dtype, const dti_product_job *p)
{
    if (p->m == 0 || p->n == 0) return 0;
    switch (dtype) {
    case DT_F32:
        return skinny_32(c, p);
    case DT_BF16:
        return skinny_16<dti_bf16>(c, p);
    case DT_F16:
        return skinny_16<dti_f16>(c, p);
    default:
        return dti_cuda_fail("a product of few rows: no kernel for %s", dti_cuda_dtype_name(dtype));
    }
}
