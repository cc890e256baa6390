/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of a bias: dy [..., O] F -> db [O] f32, with the CPU's bits: tokens add up in runs
 * of RUN, and runs in their order (dtensor/kernels/cpu/linear_backward.c). A block has the columns
 * of a warp; its warps take runs in turn, and the first one adds them. */
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { WARPS = 8, THREADS = WARPS * DTI_WARP, RUN = 64 };

struct bias_job {
    const void *dy;
    float *db;
    int64_t n_tokens, n;
};

template <typename T> __global__ void __launch_bounds__(THREADS) sum_tokens(const bias_job j)
{
    DTI_SHARED(float, runs); /* [WARPS, DTI_WARP] */
    const int lane = (int)threadIdx.x % DTI_WARP, warp = (int)threadIdx.x / DTI_WARP;
    const int64_t column = (int64_t)blockIdx.x * DTI_WARP + lane;
    const bool there = column < j.n;
    const T *dy = static_cast<const T *>(j.dy) + column;
    float total = 0.0f;

    for (int64_t base = 0; base < j.n_tokens; base += WARPS * RUN) {
        const int64_t first = base + warp * RUN;
        const int64_t end = first + RUN < j.n_tokens ? first + RUN : j.n_tokens;
        float sum = there && first < end ? dti_widen(dy[first * j.n]) : 0.0f;
        for (int64_t t = first + 1; t < end && there; t++) sum += dti_widen(dy[t * j.n]);
        runs[threadIdx.x] = sum;
        __syncthreads();
        for (int w = 0; w < WARPS && warp == 0 && base + w * RUN < j.n_tokens; w++)
            total += runs[w * DTI_WARP + lane];
        __syncthreads();
    }
    if (warp == 0 && there) j.db[column] = total;
}

template <typename T> int start(dti_cuda *c, const bias_job &j)
{
    return DTI_LAUNCH(c, sum_tokens<T>, dim3((unsigned)((j.n + DTI_WARP - 1) / DTI_WARP)),
                      dim3(THREADS), THREADS * sizeof(float), j);
}

} /* namespace */

extern "C" int dti_add_bias_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *dy = &a->in[0];
    bias_job j = { dy->data, static_cast<float *>(a->out[0].data), 1, a->out[0].shape[0] };

    for (int axis = 0; axis < dy->n_axes - 1; axis++) j.n_tokens *= dy->shape[axis];
    if (j.n == 0) return 0;
    switch (dy->dtype) {
    case DT_F32:
        return start<float>(c, j);
    case DT_BF16:
        return start<dti_bf16>(c, j);
    case DT_F16:
        return start<dti_f16>(c, j);
    default:
        return dti_refuse_dtype("add_bias_backward", dy->dtype);
    }
}
