/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of an embedding, as dtensor/kernels/cpu/embedding_backward.c has it, bit for bit: a
 * block for each id and THREADS columns. The first of equal ids finds the others and adds their
 * rows in order; the blocks of the others end when they have seen that they are not the first. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP, RUN = 32 };

struct scatter_job {
    const void *dy;
    const int32_t *ids;
    float *sums;
    int64_t n_ids, first, n_rows, d;
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

template <typename T> __global__ void __launch_bounds__(THREADS) scatter(const scatter_job j)
{
    DTI_SHARED(block_memory, m);
    const int64_t i = blockIdx.x, row = j.ids[i] - j.first;
    const int64_t column = (int64_t)blockIdx.y * THREADS + threadIdx.x;
    const T *dy = static_cast<const T *>(j.dy) + column;
    float sum = 0.0f, run = 0.0f;
    int n_run = 0;

    if (row < 0 || row >= j.n_rows || is_late(j, i, *m)) return;
    for (int64_t base = i; base < j.n_ids; base += THREADS) {
        const int64_t k = base + threadIdx.x;
        const unsigned who = __ballot_sync(0xffffffffu, k < j.n_ids && j.ids[k] == j.ids[i]);
        __syncthreads(); /* what was here before has been read */
        if (threadIdx.x % DTI_WARP == 0) m->who[threadIdx.x / DTI_WARP] = who;
        __syncthreads();
        for (int w = 0; w < WARPS; w++)
            for (unsigned left = m->who[w], lane = 0; left != 0; left >>= 1, lane++) {
                if ((left & 1u) == 0) continue;
                if (column < j.d) run += dti_widen(dy[(base + w * DTI_WARP + lane) * j.d]);
                if (++n_run < RUN) continue;
                sum += run;
                run = 0.0f;
                n_run = 0;
            }
    }
    if (column < j.d) j.sums[row * j.d + column] = n_run > 0 ? sum + run : sum;
}

template <typename T> int launch(dti_cuda *c, const scatter_job &j)
{
    return DTI_LAUNCH(c, scatter<T>,
                      dim3((unsigned)j.n_ids, (unsigned)((j.d + THREADS - 1) / THREADS)),
                      dim3(THREADS), sizeof(block_memory), j);
}

} /* namespace */

extern "C" {

int dti_embedding_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *dy = &a->in[0], *ids = &a->in[1], *table = &a->in[2];
    const scatter_job j = { dy->data,
                            (const int32_t *)ids->data,
                            (float *)a->out[0].data,
                            dti_cuda_count(ids),
                            table->offset[0],
                            table->shape[0],
                            table->shape[1] };

    if (dy->dtype != DT_F32 && dy->dtype != DT_BF16 && dy->dtype != DT_F16)
        return dti_refuse_dtype("embedding_backward", dy->dtype);
    if (j.n_rows * j.d == 0) return 0;
    if (dti_cuda_check(
            cudaMemsetAsync(j.sums, 0, (size_t)(j.n_rows * j.d) * sizeof(float), c->stream),
            "embedding_backward") != 0)
        return -1;
    if (j.n_ids == 0) return 0;
    if (dy->dtype == DT_F32) return launch<float>(c, j);
    return dy->dtype == DT_BF16 ? launch<dti_bf16>(c, j) : launch<dti_f16>(c, j);
}
} /* extern "C" */
