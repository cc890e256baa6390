/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of matrices that are both values of a pass (dtensor/kernels/cpu/matmul.c), a tile of the
 * result in a block. */
#include "dtensor/kernels/cuda/matmul.cuh"
#include "dtensor/kernels/cuda/product.h"

namespace
{

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

template <typename T, typename Y>
__global__ void __launch_bounds__(DTI_TILE_THREADS) multiply_tiles(const matmul_job j)
{
    DTI_SHARED(dti_tile_memory, m);
    const int64_t tile = blockIdx.x % (j.down * j.across), batch = blockIdx.x / (j.down * j.across);
    const dti_tile_job<T, Y> of = { static_cast<const T *>(j.a.data) + batch * j.a.batch,
                                    static_cast<const T *>(j.b.data) + batch * j.b.batch,
                                    static_cast<Y *>(j.y) + batch * j.m * j.n,
                                    j.a.row,
                                    j.a.column,
                                    j.b.row,
                                    j.b.column,
                                    j.m,
                                    j.n,
                                    j.k,
                                    false };

    dti_multiply_tile(m, of, tile / j.across * DTI_TILE, tile % j.across * DTI_TILE);
}

template <typename T, typename Y> int start(dti_cuda *c, const matmul_job &j, int64_t batch)
{
    return DTI_LAUNCH(c, (multiply_tiles<T, Y>), dim3((unsigned)(batch * j.down * j.across)),
                      dim3(DTI_TILE_THREADS), sizeof(dti_tile_memory), j);
}

template <typename T> int start_as(dti_cuda *c, const matmul_job &j, int64_t batch, bool f32_out)
{
    return f32_out ? start<T, float>(c, j, batch) : start<T, T>(c, j, batch);
}

int start_of(dti_cuda *c, matmul_job j, int64_t batch, int dtype, int out_dtype)
{
    j.down = (j.m + DTI_TILE - 1) / DTI_TILE;
    j.across = (j.n + DTI_TILE - 1) / DTI_TILE;
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
