/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows without a library: y[m, o] = sum_i x[m, i] w[o, i] (+ bias[o]). x [M, I],
 * w [O, I], bias [O] of one dtype, y [M, O] of that or f32. Sums in f32, bias added in f32, one
 * rounding. An output is one chain of additions, 16 columns at a time for 16-bit types, so a row
 * does not depend on its neighbours.
 *
 * 16-bit types: a block of 4 warps has 64 rows of x and 128 of w, 32 columns of both at a time,
 * copied into shared memory three steps ahead. A lane reads 16 bytes of a row, which are its part
 * of two steps of mma.sync, so nothing is rearranged and 8 rows of 64 bytes touch each bank once.
 * f32: 64 by 64, 16 columns at a time, 4 by 4 outputs in a thread; no tf32. Blocks with the same
 * rows of w run side by side, so w is read once from memory and x stays in level 2. */
#include "dtensor/kernels/cuda/product.cuh"

namespace
{

enum {
    ROWS = DTI_PLAIN_ROWS, /* of x in a block */
    OUTS = 128,            /* rows of w */
    DEPTH = 32,            /* columns at a time */
    PARTS = DEPTH / 8,     /* 16 bytes each, of a row in a step */
    STAGES = 3,
    THREADS = 128,
    WARP_ROWS = 32, /* of x: 2 tiles of 16 */
    WARP_OUTS = 64, /* of w: 8 tiles of 8 */
    M_TILES = WARP_ROWS / 16,
    N_TILES = WARP_OUTS / 8,
    X_LOADS = ROWS * PARTS / THREADS,
    W_LOADS = OUTS * PARTS / THREADS
};

struct stage {
    uint4 x[ROWS][PARTS], w[OUTS][PARTS];
};

/* 8 elements of `row` from column i on into shared memory; zeros beyond the last one. */
template <typename T>
__device__ inline void copy_part(uint4 *to, const T *row, int64_t i, int64_t k, bool aligned)
{
    if (aligned) {
        dti_cp_async_16(to, i < k ? row + i : row, i < k ? 16 : 0);
    } else {
        T *const some = reinterpret_cast<T *>(to);
        for (int e = 0; e < 8; e++) {
            T zero;
            zero.bits = 0;
            some[e] = i + e < k ? row[i + e] : zero;
        }
    }
}

/* What a thread copies: one part of some rows. Rows that are not there are copies of the last one,
 * and nobody looks at their sums. */
template <typename T> struct sources {
    const T *x[X_LOADS], *w[W_LOADS];
    int row, part;
};

template <typename T>
__device__ inline sources<T> find_sources(const dti_product_job &p, const dti_row_range &rows,
                                          int64_t first_out)
{
    const T *const w = static_cast<const T *>(p.w) + rows.group * p.n * p.k;
    sources<T> s;

    s.row = (int)threadIdx.x / PARTS;
    s.part = (int)threadIdx.x % PARTS;
    DTI_UNROLL
    for (int l = 0; l < X_LOADS; l++) {
        const int r = s.row + l * (THREADS / PARTS);
        s.x[l] = static_cast<const T *>(p.x) +
                 dti_x_row(p, rows.row + (r < rows.n_rows ? r : rows.n_rows - 1)) * p.k;
    }
    DTI_UNROLL
    for (int l = 0; l < W_LOADS; l++) {
        const int64_t o = first_out + s.row + l * (THREADS / PARTS);
        s.w[l] = w + (o < p.n ? o : p.n - 1) * p.k;
    }
    return s;
}

template <typename T>
__device__ inline void copy_stage(stage *to, const sources<T> &s, int64_t i, int64_t k,
                                  bool aligned)
{
    DTI_UNROLL
    for (int l = 0; l < X_LOADS; l++)
        copy_part(&to->x[s.row + l * (THREADS / PARTS)][s.part], s.x[l], i + 8 * s.part, k,
                  aligned);
    DTI_UNROLL
    for (int l = 0; l < W_LOADS; l++)
        copy_part(&to->w[s.row + l * (THREADS / PARTS)][s.part], s.w[l], i + 8 * s.part, k,
                  aligned);
}

/* d += the stage's 32 columns, of this warp's rows and outputs. */
template <typename T>
__device__ inline void add_stage(float d[M_TILES][N_TILES][4], const stage &s, int row, int out,
                                 int lane)
{
    const int g = lane / 4, t = lane % 4;
    uint4 a[M_TILES][2];

    DTI_UNROLL
    for (int i = 0; i < M_TILES; i++) {
        a[i][0] = s.x[row + 16 * i + g][t];
        a[i][1] = s.x[row + 16 * i + g + 8][t];
    }
    DTI_UNROLL
    for (int j = 0; j < N_TILES; j++) {
        const uint4 b = s.w[out + 8 * j + g][t];
        const uint32_t b0[2] = { b.x, b.y }, b1[2] = { b.z, b.w };
        DTI_UNROLL
        for (int i = 0; i < M_TILES; i++) {
            const uint32_t a0[4] = { a[i][0].x, a[i][1].x, a[i][0].y, a[i][1].y };
            const uint32_t a1[4] = { a[i][0].z, a[i][1].z, a[i][0].w, a[i][1].w };
            dti_mma(d[i][j], a0, b0, T());
            dti_mma(d[i][j], a1, b1, T());
        }
    }
}

template <typename T>
__global__ void __launch_bounds__(THREADS) gemm_tiles(dti_product_job p, bool aligned)
{
    __shared__ stage stages[STAGES];
    const int warp = (int)threadIdx.x / DTI_WARP, lane = (int)threadIdx.x % DTI_WARP;
    const int row = warp / 2 * WARP_ROWS, out = warp % 2 * WARP_OUTS;
    const int64_t first_out = (int64_t)blockIdx.y * OUTS;
    const int64_t n_steps = (p.k + DEPTH - 1) / DEPTH;
    float d[M_TILES][N_TILES][4] = {};
    dti_row_range rows;

    if (!dti_find_rows(p, (int)blockIdx.x, ROWS, &rows)) return;
    const sources<T> from = find_sources<T>(p, rows, first_out);
    for (int s = 0; s < STAGES - 1; s++) {
        copy_stage(&stages[s], from, (int64_t)s * DEPTH, p.k, aligned);
        dti_cp_async_commit();
    }
    for (int64_t step = 0; step < n_steps; step++) {
        const int64_t next = step + STAGES - 1;
        dti_cp_async_wait<STAGES - 2>();
        __syncthreads(); /* this step has come, and all are done with the one before it */
        copy_stage(&stages[next % STAGES], from, next * DEPTH, p.k, aligned);
        dti_cp_async_commit();
        if (row < rows.n_rows) add_stage<T>(d, stages[step % STAGES], row, out, lane);
    }
    dti_cp_async_wait<0>(); /* of zeros beyond the last column */
    DTI_UNROLL
    for (int i = 0; i < M_TILES; i++) DTI_UNROLL
    for (int j = 0; j < N_TILES; j++) DTI_UNROLL
    for (int e = 0; e < 4; e++) {
        const int r = row + 16 * i + lane / 4 + e / 2 * 8;
        const int64_t o = first_out + out + 8 * j + lane % 4 * 2 + e % 2;
        if (r < rows.n_rows && o < p.n) dti_store_sum<T>(p, rows.row + r, o, d[i][j][e]);
    }
}

/* --- f32 -------------------------------------------------------------------------------------- */

enum { F_OUTS = 64, F_DEPTH = 16, F_THREADS = 256, F_PITCH = ROWS + 4, EACH = 4 };

/* 4 columns of a row from i on; zeros beyond the last one. */
__device__ inline void load_columns(float to[EACH], const float *row, int64_t i, int64_t k,
                                    bool aligned)
{
    if (aligned && i < k) {
        const float4 v = *reinterpret_cast<const float4 *>(row + i);
        to[0] = v.x;
        to[1] = v.y;
        to[2] = v.z;
        to[3] = v.w;
    } else {
        DTI_UNROLL
        for (int e = 0; e < EACH; e++) to[e] = i + e < k ? row[i + e] : 0.0f;
    }
}

/* d += F_DEPTH columns of 4 rows from r0 on and 4 outputs from o0 on. */
__device__ inline void add_columns(float d[EACH][EACH], const float xs[F_DEPTH][F_PITCH],
                                   const float ws[F_DEPTH][F_PITCH], int r0, int o0)
{
    DTI_UNROLL
    for (int c = 0; c < F_DEPTH; c++) {
        const float4 xr = *reinterpret_cast<const float4 *>(&xs[c][r0]);
        const float4 wr = *reinterpret_cast<const float4 *>(&ws[c][o0]);
        const float xe[EACH] = { xr.x, xr.y, xr.z, xr.w };
        const float we[EACH] = { wr.x, wr.y, wr.z, wr.w };
        DTI_UNROLL
        for (int r = 0; r < EACH; r++) DTI_UNROLL
        for (int e = 0; e < EACH; e++) d[r][e] = fmaf(xe[r], we[e], d[r][e]);
    }
}

__global__ void __launch_bounds__(F_THREADS) gemm_f32(dti_product_job p, bool aligned)
{
    __shared__ float xs[F_DEPTH][F_PITCH], ws[F_DEPTH][F_PITCH]; /* columns first */
    const int row = (int)threadIdx.x / EACH, column = (int)threadIdx.x % EACH * EACH;
    const int r0 = (int)threadIdx.x / 16 * EACH, o0 = (int)threadIdx.x % 16 * EACH;
    const int64_t first_out = (int64_t)blockIdx.y * F_OUTS;
    float d[EACH][EACH] = {}, xv[EACH], wv[EACH];
    dti_row_range rows;

    if (!dti_find_rows(p, (int)blockIdx.x, ROWS, &rows)) return;
    const int64_t o = first_out + row < p.n ? first_out + row : p.n - 1;
    const float *const w = static_cast<const float *>(p.w) + (rows.group * p.n + o) * p.k;
    const float *const x =
        static_cast<const float *>(p.x) +
        dti_x_row(p, rows.row + (row < rows.n_rows ? row : rows.n_rows - 1)) * p.k;

    load_columns(xv, x, column, p.k, aligned);
    load_columns(wv, w, column, p.k, aligned);
    for (int64_t i = 0; i < p.k; i += F_DEPTH) {
        __syncthreads();
        DTI_UNROLL
        for (int e = 0; e < EACH; e++) {
            xs[column + e][row] = xv[e];
            ws[column + e][row] = wv[e];
        }
        __syncthreads();
        load_columns(xv, x, i + F_DEPTH + column, p.k, aligned); /* while this one is added */
        load_columns(wv, w, i + F_DEPTH + column, p.k, aligned);
        if (r0 < rows.n_rows && first_out + o0 < p.n) add_columns(d, xs, ws, r0, o0);
    }
    DTI_UNROLL
    for (int r = 0; r < EACH; r++) DTI_UNROLL
    for (int e = 0; e < EACH; e++)
        if (r0 + r < rows.n_rows && first_out + o0 + e < p.n)
            dti_store_sum<float>(p, rows.row + r0 + r, first_out + o0 + e, d[r][e]);
}

/* --- launching -------------------------------------------------------------------------------- */

dim3 count_blocks(const dti_product_job *p, int outs)
{
    const int64_t row_tiles =
        p->groups.tiles != NULL ? p->groups.max_tiles : (p->m + ROWS - 1) / ROWS;

    return dim3((unsigned)row_tiles, (unsigned)((p->n + outs - 1) / outs));
}

} // namespace

int dti_cuda_gemm_plain(dti_cuda *c, int dtype, const dti_product_job *p)
{
    const int64_t row = p->k * (int64_t)dti_cuda_dtype_bytes(dtype);
    const bool aligned = dti_rows_aligned(p->x, row) && dti_rows_aligned(p->w, row);

    if (p->m == 0 || p->n == 0) return 0;
    switch (dtype) {
    case DT_F32:
        return DTI_LAUNCH(c, gemm_f32, count_blocks(p, F_OUTS), dim3(F_THREADS), 0, *p, aligned);
    case DT_BF16:
        return DTI_LAUNCH(c, gemm_tiles<dti_bf16>, count_blocks(p, OUTS), dim3(THREADS), 0, *p,
                          aligned);
    case DT_F16:
        return DTI_LAUNCH(c, gemm_tiles<dti_f16>, count_blocks(p, OUTS), dim3(THREADS), 0, *p,
                          aligned);
    default:
        return dti_cuda_fail("a product: no kernel for %s", dti_cuda_dtype_name(dtype));
    }
}
