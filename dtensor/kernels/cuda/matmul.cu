/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of matrices that are both values of a pass (dtensor/kernels/cpu/matmul.c). A block has a
 * tile of 64 x 64 results, a thread 4 x 4 of them; both operands pass through shared memory in f32,
 * 16 deep. An element is one chain of fused multiply-adds along k, as on the CPU. */
#include "dtensor/kernels/cuda/product.h"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, TILE = 64, DEPTH = 16, EACH = 4 };

/* Element (r, c) of a batch's matrix is r row + c column elements behind its first. */
struct matrix {
    const void *data;
    int64_t batch, row, column;
};

struct matmul_job {
    matrix a, b;
    void *y;
    int64_t m, n, k, down, across; /* tiles */
};

struct block_memory {
    float a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
};

/* How an operand's elements lie: steps along the result's axis and along k, and how many. */
struct side {
    int64_t along, depth, n_along, n_depth;
};

/* Elements first .. of the result's axis, k .. of the depth. Neighbours in memory go to neighbour
 * threads. */
template <typename T>
__device__ inline void load_tile(float (*to)[TILE + 4], const T *from, const side &s, int64_t k,
                                 int64_t first)
{
    const bool deep = s.depth == 1;

    for (int i = (int)threadIdx.x; i < TILE * DEPTH; i += THREADS) {
        const int d = deep ? i % DEPTH : i / TILE, at = deep ? i / DEPTH : i % TILE;
        const bool there = k + d < s.n_depth && first + at < s.n_along;
        to[d][at] = there ? dti_widen(from[(first + at) * s.along + (k + d) * s.depth]) : 0.0f;
    }
}

template <typename T, typename Y>
__global__ void __launch_bounds__(THREADS) multiply_tiles(const matmul_job j)
{
    DTI_SHARED(block_memory, m);
    const int64_t tile = blockIdx.x % (j.down * j.across), batch = blockIdx.x / (j.down * j.across);
    const int64_t row = tile / j.across * TILE, column = tile % j.across * TILE;
    const int r = (int)threadIdx.x / (TILE / EACH) * EACH, c = (int)threadIdx.x % (TILE / EACH);
    const T *a = static_cast<const T *>(j.a.data) + batch * j.a.batch;
    const T *b = static_cast<const T *>(j.b.data) + batch * j.b.batch;
    Y *y = static_cast<Y *>(j.y) + batch * j.m * j.n;
    float sum[EACH][EACH] = {};

    for (int64_t k = 0; k < j.k; k += DEPTH) {
        load_tile<T>(m->a, a, side{ j.a.row, j.a.column, j.m, j.k }, k, row);
        load_tile<T>(m->b, b, side{ j.b.column, j.b.row, j.n, j.k }, k, column);
        __syncthreads();
        for (int d = 0; d < DEPTH && k + d < j.k; d++) {
            DTI_UNROLL
            for (int x = 0; x < EACH; x++) DTI_UNROLL
            for (int z = 0; z < EACH; z++)
                sum[x][z] = fmaf(m->a[d][r + x], m->b[d][c + z * (TILE / EACH)], sum[x][z]);
        }
        __syncthreads();
    }
    DTI_UNROLL
    for (int x = 0; x < EACH; x++) DTI_UNROLL
    for (int z = 0; z < EACH; z++) {
        const int64_t i = row + r + x, at = column + c + z * (TILE / EACH);
        if (i < j.m && at < j.n) dti_narrow(y + i * j.n + at, sum[x][z]);
    }
}

template <typename T, typename Y> int start(dti_cuda *c, const matmul_job &j, int64_t batch)
{
    return DTI_LAUNCH(c, (multiply_tiles<T, Y>), dim3((unsigned)(batch * j.down * j.across)),
                      dim3(THREADS), sizeof(block_memory), j);
}

template <typename T> int start_as(dti_cuda *c, const matmul_job &j, int64_t batch, bool f32_out)
{
    return f32_out ? start<T, float>(c, j, batch) : start<T, T>(c, j, batch);
}

int start_of(dti_cuda *c, matmul_job j, int64_t batch, int dtype, int out_dtype)
{
    j.down = (j.m + TILE - 1) / TILE;
    j.across = (j.n + TILE - 1) / TILE;
    switch (dtype) {
    case DT_F32:
        return start<float, float>(c, j, batch);
    case DT_BF16:
        return start_as<dti_bf16>(c, j, batch, out_dtype == DT_F32);
    case DT_F16:
        return start_as<dti_f16>(c, j, batch, out_dtype == DT_F32);
    default:
        return dti_refuse_dtype("matmul", dtype);
    }
}

} /* namespace */

extern "C" int dti_cuda_matmul_plain(dti_cuda *c, const dti_cuda_product *p)
{
    matmul_job j = {};

    j.m = p->m;
    j.n = p->n;
    j.k = p->k;
    j.a = { p->x, 0, p->x_turned ? 1 : p->k, p->x_turned ? p->m : 1 };
    j.b = { p->w, 0, p->w_turned ? p->n : 1, p->w_turned ? 1 : p->k };
    j.y = p->y;
    return start_of(c, j, 1, p->dtype, p->out_dtype);
}

extern "C" int dti_matmul_cuda(dti_cuda *c, const dt_kargs *args)
{
    const dti_matmul_attr *attr = (const dti_matmul_attr *)args->attr;
    const dt_local *a = &args->in[0], *b = &args->in[1], *y = &args->out[0];
    matmul_job j = {};
    int64_t batch = 1;

    j.m = y->shape[y->n_axes - 2];
    j.n = y->shape[y->n_axes - 1];
    j.k = a->shape[a->n_axes - (attr->transposed_a ? 2 : 1)];
    j.a = { a->data, j.m * j.k, attr->transposed_a ? 1 : j.k, attr->transposed_a ? j.m : 1 };
    j.b = { b->data, j.k * j.n, attr->transposed_b ? 1 : j.n, attr->transposed_b ? j.k : 1 };
    j.y = y->data;
    for (int axis = 0; axis < y->n_axes - 2; axis++) batch *= y->shape[axis];
    if (dti_cuda_count(y) == 0) return 0;
    if (y->dtype != a->dtype && y->dtype != DT_F32) return dti_refuse_dtype("matmul", y->dtype);
    return start_of(c, j, batch, a->dtype, y->dtype);
}
