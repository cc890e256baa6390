/* SPDX-License-Identifier: Apache-2.0
 *
 * Along one axis, x [outer, k, inner]: softmax, its logarithm, their gradients, cumulative sums,
 * with the formulas of dtensor/kernels/cpu/softmax.c. A softmax has a block per line, whose threads
 * take every 256th element: their sums are in f64, in an order of their own. A cumulative sum is
 * one chain in f64 by one thread, so it has the CPU's bits. */
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP };

struct line_job {
    const void *x, *kept; /* of gradients x is dy, and `kept` the forward result */
    void *y;
    int64_t n_lines, k, inner;
    bool logarithm, from_end; /* sums begin with the last element */
};

struct block_memory {
    float most[WARPS];
    double sum[WARPS];
};

__device__ inline float larger(float a, float b)
{
    return b > a || b != b ? b : a;
}

/* The largest of the block's, a NaN being larger than all. */
__device__ inline float block_max(block_memory &m, float x)
{
    for (int step = DTI_WARP / 2; step > 0; step /= 2)
        x = larger(x, __shfl_xor_sync(0xffffffffu, x, step));
    if (threadIdx.x % DTI_WARP == 0) m.most[threadIdx.x / DTI_WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) x = larger(x, m.most[w]);
    return x;
}

__device__ inline double block_sum(block_memory &m, double x)
{
    double sum = 0.0;

    for (int step = DTI_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    if (threadIdx.x % DTI_WARP == 0) m.sum[threadIdx.x / DTI_WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) sum += m.sum[w];
    return sum;
}

template <typename T> __global__ void __launch_bounds__(THREADS) soften_lines(const line_job j)
{
    DTI_SHARED(block_memory, m);
    const int64_t line = blockIdx.x, at = line / j.inner * j.k * j.inner + line % j.inner;
    const T *x = static_cast<const T *>(j.x) + at;
    T *y = static_cast<T *>(j.y) + at;
    float most = -INFINITY;
    double sum = 0.0;

    for (int64_t i = threadIdx.x; i < j.k; i += THREADS)
        most = larger(most, dti_widen(x[i * j.inner]));
    most = block_max(*m, most);
    for (int64_t i = threadIdx.x; i < j.k; i += THREADS)
        sum += (double)dti_exp(dti_widen(x[i * j.inner]) - most);
    sum = block_sum(*m, sum);
    const float log_of = j.logarithm ? (float)log(sum) : 0.0f;
    for (int64_t i = threadIdx.x; i < j.k; i += THREADS) {
        const float d = dti_widen(x[i * j.inner]) - most;
        dti_narrow(y + i * j.inner, j.logarithm ? d - log_of : dti_exp(d) / (float)sum);
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) slope_lines(const line_job j)
{
    DTI_SHARED(block_memory, m);
    const int64_t line = blockIdx.x, at = line / j.inner * j.k * j.inner + line % j.inner;
    const T *dy = static_cast<const T *>(j.x) + at, *y = static_cast<const T *>(j.kept) + at;
    T *dx = static_cast<T *>(j.y) + at;
    double all = 0.0;

    for (int64_t i = threadIdx.x; i < j.k; i += THREADS)
        all += (double)dti_widen(dy[i * j.inner]) *
               (j.logarithm ? 1.0 : (double)dti_widen(y[i * j.inner]));
    const float sum = (float)block_sum(*m, all);
    for (int64_t i = threadIdx.x; i < j.k; i += THREADS) {
        const float d = dti_widen(dy[i * j.inner]), v = dti_widen(y[i * j.inner]);
        dti_narrow(dx + i * j.inner, j.logarithm ? d - dti_exp(v) * sum : v * (d - sum));
    }
}

template <typename T> __global__ void __launch_bounds__(THREADS) add_lines(const line_job j)
{
    const int64_t line = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    const int64_t at = line / j.inner * j.k * j.inner + line % j.inner;
    double sum = 0.0;

    if (line >= j.n_lines) return;
    for (int64_t r = 0; r < j.k; r++) {
        const int64_t i = at + (j.from_end ? j.k - 1 - r : r) * j.inner;
        sum += (double)dti_widen(static_cast<const T *>(j.x)[i]);
        dti_narrow(static_cast<T *>(j.y) + i, (float)sum);
    }
}

enum form { SOFTMAX, LOG_SOFTMAX, CUMSUM, CUMSUM_BACKWARD };

template <typename T> int start(dti_cuda *c, const line_job &j, form f)
{
    if (f >= CUMSUM)
        return DTI_LAUNCH(c, add_lines<T>, dim3((unsigned)((j.n_lines + THREADS - 1) / THREADS)),
                          dim3(THREADS), 0, j);
    if (j.kept != NULL)
        return DTI_LAUNCH(c, slope_lines<T>, dim3((unsigned)j.n_lines), dim3(THREADS),
                          sizeof(block_memory), j);
    return DTI_LAUNCH(c, soften_lines<T>, dim3((unsigned)j.n_lines), dim3(THREADS),
                      sizeof(block_memory), j);
}

int line(dti_cuda *c, const dt_kargs *a, const char *op, form f)
{
    const int64_t axis = ((const dti_axis_attr *)a->attr)->axis;
    const dt_local *x = &a->in[0];
    line_job j = { x->data,          a->n_in > 1 ? a->in[1].data : NULL,
                   a->out[0].data,   1,
                   x->shape[axis],   1,
                   f == LOG_SOFTMAX, f == CUMSUM_BACKWARD };

    for (int b = 0; b < x->n_axes; b++) {
        if (b != axis) j.n_lines *= x->shape[b];
        if (b > axis) j.inner *= x->shape[b];
    }
    if (x->dtype != DT_F32 && x->dtype != DT_BF16 && x->dtype != DT_F16)
        return dti_refuse_dtype(op, x->dtype);
    if (j.n_lines * j.k == 0) return 0;
    if (x->dtype == DT_F32) return start<float>(c, j, f);
    return x->dtype == DT_BF16 ? start<dti_bf16>(c, j, f) : start<dti_f16>(c, j, f);
}

} /* namespace */

extern "C" {

int dti_softmax_cuda(dti_cuda *c, const dt_kargs *a)
{
    return line(c, a, "softmax", SOFTMAX);
}

int dti_log_softmax_cuda(dti_cuda *c, const dt_kargs *a)
{
    return line(c, a, "log_softmax", LOG_SOFTMAX);
}

int dti_softmax_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return line(c, a, "softmax_backward", SOFTMAX);
}

int dti_log_softmax_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return line(c, a, "log_softmax_backward", LOG_SOFTMAX);
}

int dti_cumsum_cuda(dti_cuda *c, const dt_kargs *a)
{
    return line(c, a, "cumsum", CUMSUM);
}

int dti_cumsum_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    return line(c, a, "cumsum_backward", CUMSUM_BACKWARD);
}
} /* extern "C" */
