/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows: y[m, o] = sum_i x[m, i] w[o, i] (+ bias[o]). x [M, I], w [O, I], bias
 * [O] of one dtype, y [M, O] of that or f32. Sums in f32, bias added in f32, one rounding.
 *
 * w is read once, so time is bytes of w over the speed of memory; everything else has to stay out
 * of the way. A block has 16 rows of w. Of 16-bit types a warp multiplies them by mma.sync with w
 * as the tall operand and up to 8 rows of x as the other one: for each KiB of w a lane has two
 * loads of w, one of x from level 1 and two instructions of arithmetic, for 8 rows as for one; for
 * up to 16 rows x is two such operands.
 * Warps of a block take chunks of columns in turn, 128 elements at a time, so a block reads 2 KiB
 * of a row side by side, and each lane has 8 loads of w on their way. f32, and rows that are not
 * 16-byte aligned, are summed by lanes, two rows of w in a warp.
 *
 * Few outputs do not fill the device with blocks of 16: then blocks share the columns too, and a
 * second kernel adds their sums. All sums have a fixed order, which depends on O, I and the number
 * of SMs and never on M, so a row does not depend on its neighbours. */
#include "dtensor/kernels/cuda/skinny.cuh"

namespace
{

/* --- by tiles: 16-bit types, rows 16-byte aligned --------------------------------------------- */

enum {
    CHUNK = 32 * AHEAD,
    MOST_WARPS = 2 * WARPS, /* of a block, where there are few blocks */
    MOST_SPLITS = 16
};

/* The chunk that begins at column i of this lane: `left` elements are there. `w` has rows g and
 * g + 8, `x` rows g, g + 8, .. of X tiles, or NULL. */
template <typename T, int X, bool WHOLE>
__device__ inline void add_chunk(float sums[X][2][4], const T *const w[2], const T *const x[X],
                                 int64_t i, int64_t left)
{
    uint4 wv[AHEAD][2], xv[AHEAD][X];

    DTI_UNROLL
    for (int u = 0; u < AHEAD; u++) DTI_UNROLL
    for (int j = 0; j < 2; j++)
        wv[u][j] =
            WHOLE || 32 * u < left ? dti_load_once(w[j] + i + 32 * u) : make_uint4(0, 0, 0, 0);
    DTI_UNROLL
    for (int u = 0; u < AHEAD; u++) DTI_UNROLL
    for (int j = 0; j < X; j++)
        xv[u][j] = x[j] != NULL && (WHOLE || 32 * u < left)
                       ? *reinterpret_cast<const uint4 *>(x[j] + i + 32 * u)
                       : make_uint4(0, 0, 0, 0);
    DTI_UNROLL
    for (int u = 0; u < AHEAD; u++) {
        const uint32_t a0[4] = { wv[u][0].x, wv[u][1].x, wv[u][0].y, wv[u][1].y };
        const uint32_t a1[4] = { wv[u][0].z, wv[u][1].z, wv[u][0].w, wv[u][1].w };
        DTI_UNROLL
        for (int j = 0; j < X; j++) {
            const uint32_t b0[2] = { xv[u][j].x, xv[u][j].y }, b1[2] = { xv[u][j].z, xv[u][j].w };
            dti_mma(sums[j][0], a0, b0, T());
            dti_mma(sums[j][1], a1, b1, T());
        }
    }
}

/* Up to 8 X rows of x. */
template <typename T, int X>
__global__ void __launch_bounds__(MOST_WARPS *DTI_WARP) skinny_tiles(skinny_args a)
{
    __shared__ float sums[MOST_WARPS][X * 8 * TILE];
    const int warp = (int)threadIdx.x / DTI_WARP, lane = (int)threadIdx.x % DTI_WARP;
    const int n_warps = (int)blockDim.x / DTI_WARP, g = lane / 4, t = lane % 4;
    const int64_t o = (int64_t)blockIdx.x * TILE + g, last = a.p.n - 1;
    float d[X][2][4] = {};
    const T *x[X];
    dti_row_range rows;

    if (!dti_find_rows(a.p, (int)blockIdx.y, 8 * X, &rows)) return;
    /* Rows beyond the last one read that one again; nobody looks at their sums. */
    const T *const base = static_cast<const T *>(a.p.w) + rows.group * a.p.n * a.p.k + 8 * t;
    const T *const w[2] = { base + (o < last ? o : last) * a.p.k,
                            base + (o + 8 < last ? o + 8 : last) * a.p.k };
    DTI_UNROLL
    for (int j = 0; j < X; j++)
        x[j] = 8 * j + g >= rows.n_rows ? NULL
                                        : static_cast<const T *>(a.p.x) +
                                              dti_x_row(a.p, rows.row + 8 * j + g) * a.p.k + 8 * t;

    const int64_t step = (int64_t)gridDim.z * n_warps * CHUNK;
    int64_t i = ((int64_t)blockIdx.z * n_warps + warp) * CHUNK;
    for (; i + CHUNK <= a.p.k; i += step) add_chunk<T, X, true>(d, w, x, i, 0);
    if (i < a.p.k) add_chunk<T, X, false>(d, w, x, i, a.p.k - i - 8 * t);

    DTI_UNROLL
    for (int j = 0; j < X; j++) DTI_UNROLL
    for (int e = 0; e < 4; e++) /* rows of w are rows of D, rows of x its columns */
        sums[warp][(8 * j + 2 * t + e % 2) * TILE + g + e / 2 * 8] = d[j][0][e] + d[j][1][e];
    __syncthreads();
    finish<T, 8 * X>(a, rows, &sums[0][0], n_warps);
}

/* --- sums of blocks that share columns -------------------------------------------------------- */

template <typename T> __global__ void add_parts(skinny_args a, int n_parts)
{
    const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, n = a.p.m * a.p.n;
    float sum = 0.0f;

    if (i >= n) return;
    for (int s = 0; s < n_parts; s++) sum += a.parts[s * n + i];
    dti_store_sum<T>(a.p, i / a.p.n, i % a.p.n, sum);
}

/* --- launching -------------------------------------------------------------------------------- */

template <typename T> int add_blocks(dti_cuda *c, const skinny_args *a, int n_parts)
{
    const unsigned n_blocks = (unsigned)((a->p.m * a->p.n + 255) / 256);

    return DTI_LAUNCH(c, add_parts<T>, dim3(n_blocks), dim3(256), 0, *a, n_parts);
}

/* In how many parts blocks share the columns: enough to fill the SMs, each with two chunks or more
 * for every warp. */
int count_splits(const dti_cuda *c, const dti_product_job *p, int64_t block_columns)
{
    const int64_t n_tiles = (p->n + TILE - 1) / TILE;
    int64_t splits = c->n_sms / n_tiles;

    if (p->groups.tiles != NULL) return 1; /* tiles of rows fill the device */
    if (splits > p->k / (2 * block_columns)) splits = p->k / (2 * block_columns);
    if (splits > MOST_SPLITS) splits = MOST_SPLITS;
    return splits < 2 ? 1 : (int)splits;
}

template <typename T>
int launch(dti_cuda *c, const dti_product_job *p, void (*skinny)(skinny_args), int n_warps,
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

bool are_aligned(const dti_product_job *p, size_t element_bytes)
{
    const int64_t row = p->k * (int64_t)element_bytes;

    return dti_rows_aligned(p->x, row) && dti_rows_aligned(p->w, row);
}

/* Is there a block or less for each SM? */
bool few_blocks(const dti_cuda *c, const dti_product_job *p)
{
    return p->groups.tiles == NULL && (p->n + TILE - 1) / TILE <= c->n_sms;
}

template <typename T> int skinny_16(dti_cuda *c, const dti_product_job *p)
{
    const int n_warps = few_blocks(c, p) ? (int)MOST_WARPS : (int)WARPS;
    const int64_t columns = (int64_t)n_warps * CHUNK;

    if (!are_aligned(p, sizeof(T)))
        return launch<T>(c, p, skinny_lanes<T, 1>, WARPS, DTI_WARP * AHEAD);
    if (p->groups.tiles == NULL && p->m > DTI_SKINNY_MAX)
        return launch<T>(c, p, skinny_tiles<T, 2>, n_warps, columns);
    return launch<T>(c, p, skinny_tiles<T, 1>, n_warps, columns);
}

int skinny_32(dti_cuda *c, const dti_product_job *p)
{
    if (are_aligned(p, sizeof(float)))
        return launch<float>(c, p, skinny_lanes<float, 4>, WARPS, DTI_WARP * AHEAD * 4);
    return launch<float>(c, p, skinny_lanes<float, 1>, WARPS, DTI_WARP * AHEAD);
}

} // namespace

bool dti_is_skinny(int dtype, const dti_product_job *p)
{
    if (p->m <= DTI_SKINNY_MAX) return true;
    return p->m <= 2 * DTI_SKINNY_MAX && (dtype == DT_BF16 || dtype == DT_F16) &&
           are_aligned(p, sizeof(uint16_t));
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
