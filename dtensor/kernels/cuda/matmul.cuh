/* SPDX-License-Identifier: Apache-2.0
 *
 * A tile of a product of matrices that lie anyhow: a block of 256 threads has 64 x 64 results, a
 * thread 4 x 4 of them; both operands pass through shared memory in f32, 16 deep. An element is one
 * chain of fused multiply-adds along k, as on the CPU. */
#ifndef DTI_MATMUL_CUH
#define DTI_MATMUL_CUH

#include "dtensor/kernels/cuda/rows.cuh"

enum { DTI_TILE = 64, DTI_TILE_DEPTH = 16, DTI_TILE_EACH = 4, DTI_TILE_THREADS = 256 };

struct dti_tile_memory {
    float a[DTI_TILE_DEPTH][DTI_TILE + 4], b[DTI_TILE_DEPTH][DTI_TILE + 4];
};

/* y [m, n] = a [m, k] b [k, n]; element (r, c) of a is r a_row + c a_column elements behind its
 * first, so with b. `adds`: to what y holds. */
template <typename T, typename Y> struct dti_tile_job {
    const T *a, *b;
    Y *y;
    int64_t a_row, a_column, b_row, b_column, m, n, k;
    bool adds;
};

/* How an operand's elements lie: steps along the result's axis and along k, and how many. */
struct dti_tile_side {
    int64_t along, depth, n_along, n_depth;
};

/* Elements first .. of the result's axis, k .. of the depth. Neighbours in memory go to neighbour
 * threads. */
template <typename T>
static __device__ inline void dti_load_tile(float (*to)[DTI_TILE + 4], const T *from,
                                            const dti_tile_side &s, int64_t k, int64_t first)
{
    const bool deep = s.depth == 1;

    for (int i = (int)threadIdx.x; i < DTI_TILE * DTI_TILE_DEPTH; i += DTI_TILE_THREADS) {
        const int d = deep ? i % DTI_TILE_DEPTH : i / DTI_TILE;
        const int at = deep ? i / DTI_TILE_DEPTH : i % DTI_TILE;
        const bool there = k + d < s.n_depth && first + at < s.n_along;
        to[d][at] = there ? dti_widen(from[(first + at) * s.along + (k + d) * s.depth]) : 0.0f;
    }
}

/* The results from (row, column) on. */
template <typename T, typename Y>
static __device__ inline void dti_multiply_tile(dti_tile_memory *m, const dti_tile_job<T, Y> &j,
                                                int64_t row, int64_t column)
{
    enum { EACH = DTI_TILE_EACH, APART = DTI_TILE / DTI_TILE_EACH };
    const int r = (int)threadIdx.x / APART * EACH, c = (int)threadIdx.x % APART;
    float sum[EACH][EACH] = {};

    for (int64_t k = 0; k < j.k; k += DTI_TILE_DEPTH) {
        dti_load_tile<T>(m->a, j.a, dti_tile_side{ j.a_row, j.a_column, j.m, j.k }, k, row);
        dti_load_tile<T>(m->b, j.b, dti_tile_side{ j.b_column, j.b_row, j.n, j.k }, k, column);
        __syncthreads();
        for (int d = 0; d < DTI_TILE_DEPTH && k + d < j.k; d++) {
            DTI_UNROLL
            for (int x = 0; x < EACH; x++) DTI_UNROLL
            for (int z = 0; z < EACH; z++)
                sum[x][z] = fmaf(m->a[d][r + x], m->b[d][c + z * APART], sum[x][z]);
        }
        __syncthreads();
    }
    DTI_UNROLL
    for (int x = 0; x < EACH; x++) DTI_UNROLL
    for (int z = 0; z < EACH; z++) {
        const int64_t i = row + r + x, at = column + c + z * APART;
        Y *const y = j.y + i * j.n + at;
        if (i < j.m && at < j.n) dti_narrow(y, j.adds ? dti_widen(*y) + sum[x][z] : sum[x][z]);
    }
}

#endif
