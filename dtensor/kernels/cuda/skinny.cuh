/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows, the plain way: what both kernels of skinny.cu share, and the one for f32
 * and for rows of any alignment. */
#ifndef DTI_SKINNY_CUH
#define DTI_SKINNY_CUH

#include "dtensor/kernels/cuda/product.cuh"

namespace
{

enum {
    TILE = 16, /* rows of w in a block */
    AHEAD = 4, /* loads of one row on their way in a lane */
    WARPS = 8  /* of a block */
};

struct skinny_args {
    dti_product_job p;
    float *parts; /* [splits, M, O] or NULL */
};

/* Adds the sums of the block's warps in their order: sums [n_sums][ROWS * TILE]. */
template <typename T, int ROWS>
__device__ void finish(const skinny_args &a, const dti_row_range &rows, const float *sums,
                       int n_sums)
{
    const int r = threadIdx.x / TILE, j = threadIdx.x % TILE;
    const int64_t o = (int64_t)blockIdx.x * TILE + j;
    float sum = 0.0f;

    if (r >= rows.n_rows || o >= a.p.n) return;
    for (int s = 0; s < n_sums; s++) sum += sums[s * ROWS * TILE + r * TILE + j];
    if (a.parts != NULL)
        a.parts[((int64_t)blockIdx.z * a.p.m + rows.row + r) * a.p.n + o] = sum;
    else
        dti_store_sum<T>(a.p, rows.row + r, o, sum);
}

/* --- by lanes --------------------------------------------------------------------------------- */

enum { PAIR = 2 };

/* The sum over lanes of 16 values in each: value lane / 2 in each lane. */
__device__ inline float sum_lanes(float v[DTI_SKINNY_MAX * PAIR], int lane)
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
__device__ inline void load_some(float to[N], const T *row, int64_t i, bool there)
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
__global__ void __launch_bounds__(WARPS *DTI_WARP) skinny_lanes(skinny_args a)
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
    finish<T, DTI_SKINNY_MAX>(a, rows, sums, 1);
}

} // namespace

#endif
