/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of an embedding and of index_select, as dtensor/kernels/cpu/embedding_backward.c
 * has them, bit for bit: a block for each id and THREADS columns at a time, of all matrices side by
 * side. The first of equal ids finds the others and adds their rows in order; the blocks of the
 * others end when they have seen that they are not the first. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP, RUN = 32 };

struct scatter_job {
    const void *dy;
    const int32_t *ids;
    void *sums;
    int64_t n_ids, first, n_rows, d,
        n_outer;     /* dy [n_outer, n_ids, d], sums [n_outer, n_rows, d] */
    int64_t padding; /* the id that is passed over */
};

struct block_memory {
    unsigned who[WARPS];
    int is_late;
};

/* Whether an id before place i is the same. */
__device__ inline bool is_late(const scatter_job &j, int64_t i, block_memory &m)
{
    bool found = false;

    if (threadIdx.x == 0) m.is_late = 0;
    __syncthreads();
    for (int64_t k = threadIdx.x; k < i && !found; k += THREADS) found = j.ids[k] == j.ids[i];
    if (found) m.is_late = 1;
    __syncthreads();
    return m.is_late != 0;
}

/* Column `column` of the matrices' rows side by side, of places with the id of place i. */
template <typename T>
__device__ inline float sum_places(const scatter_job &j, int64_t i, int64_t column, block_memory &m)
{
    const bool mine = column < j.n_outer * j.d;
    const T *dy = static_cast<const T *>(j.dy) + column / j.d * j.n_ids * j.d + column % j.d;
    float sum = 0.0f, run = 0.0f;
    int n_run = 0;

    for (int64_t base = i; base < j.n_ids; base += THREADS) {
        const int64_t k = base + threadIdx.x;
        const unsigned who = __ballot_sync(0xffffffffu, k < j.n_ids && j.ids[k] == j.ids[i]);
        __syncthreads(); /* what was here before has been read */
        if (threadIdx.x % DTI_WARP == 0) m.who[threadIdx.x / DTI_WARP] = who;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            for (unsigned left = m.who[w], lane = 0; left != 0; left >>= 1, lane++) {
                if ((left & 1u) == 0) continue;
                if (mine) run += dti_widen(dy[(base + w * DTI_WARP + lane) * j.d]);
                if (++n_run < RUN) continue;
                sum += run;
                run = 0.0f;
                n_run = 0;
            }
    }
    return n_run > 0 ? sum + run : sum;
}

template <typename T, typename Y>
__global__ void __launch_bounds__(THREADS) scatter(const scatter_job j)
{
    DTI_SHARED(block_memory, m);
    const int64_t i = blockIdx.x, row = j.ids[i] - j.first, step = (int64_t)gridDim.y * THREADS;

    if (row < 0 || row >= j.n_rows || j.ids[i] == j.padding || is_late(j, i, *m)) return;
    for (int64_t first = (int64_t)blockIdx.y * THREADS; first < j.n_outer * j.d; first += step) {
        const int64_t column = first + threadIdx.x;
        const float sum = sum_places<T>(j, i, column, *m);
        if (column >= j.n_outer * j.d) continue;
        dti_narrow(static_cast<Y *>(j.sums) + (column / j.d * j.n_rows + row) * j.d + column % j.d,
                   sum);
    }
}

template <typename T, typename Y> int launch(dti_cuda *c, const scatter_job &j)
{
    const int64_t n_blocks = (j.n_outer * j.d + THREADS - 1) / THREADS, most = 65535;

    return DTI_LAUNCH(c, (scatter<T, Y>),
                      dim3((unsigned)j.n_ids, (unsigned)(n_blocks < most ? n_blocks : most)),
                      dim3(THREADS), sizeof(block_memory), j);
}

/* `dtype` is dy's. Rows that no id names are zeros. */
int start(dti_cuda *c, const char *op, int dtype, const scatter_job &j, const dt_local *y)
{
    const size_t n_bytes = (size_t)dti_cuda_count(y) * dti_cuda_dtype_bytes(y->dtype);
    const bool wide = y->dtype == DT_F32;

    if (dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) return dti_refuse_dtype(op, dtype);
    if (n_bytes == 0) return 0;
    if (dti_cuda_check(cudaMemsetAsync(j.sums, 0, n_bytes, c->stream), op) != 0) return -1;
    if (j.n_ids == 0) return 0;
    if (dtype == DT_F32) return launch<float, float>(c, j);
    if (dtype == DT_BF16)
        return wide ? launch<dti_bf16, float>(c, j) : launch<dti_bf16, dti_bf16>(c, j);
    return wide ? launch<dti_f16, float>(c, j) : launch<dti_f16, dti_f16>(c, j);
}

} /* namespace */

extern "C" {

int dti_embedding_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *dy = &a->in[0], *ids = &a->in[1], *table = &a->in[2];
    const scatter_job j = { dy->data,
                            (const int32_t *)ids->data,
                            a->out[0].data,
                            dti_cuda_count(ids),
                            table->offset[0],
                            table->shape[0],
                            table->shape[1],
                            1,
                            ((const dti_embedding_attr *)a->attr)->padding };

    return start(c, "embedding_backward", dy->dtype, j, &a->out[0]);
}

int dti_index_select_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    const int64_t axis = ((const dti_select_backward_attr *)a->attr)->axis;
    const dt_local *dy = &a->in[0], *ids = &a->in[1], *y = &a->out[0];
    scatter_job j = {
        dy->data, (const int32_t *)ids->data, y->data, ids->shape[0], 0, y->shape[axis], 1, 1, -1
    };

    for (int b = 0; b < y->n_axes; b++)
        if (b != axis) *(b < axis ? &j.n_outer : &j.d) *= y->shape[b];
    return start(c, "index_select_backward", dy->dtype, j, y);
}
} /* extern "C" */
