/* SPDX-License-Identifier: Apache-2.0
 *
 * What attention that is trained has beside its softmax: which keys a query sees, once for all of
 * its heads; statistics of rows; the gradient of sinks. */
#include "dtensor/kernels/cuda/attention.cuh"
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, LANES = 16 };

/* --- keys that are seen ----------------------------------------------------------------------- */

/* The first place from `begin` on whose segment is not below `segment`. */
__device__ inline int segment_begin(const int32_t *segments, int begin, int end, int64_t segment)
{
    while (begin < end) {
        const int middle = begin + (end - begin) / 2;
        if (segments[middle] < segment)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

/* Those of a position, and of its segment. There is a thread for each of the segments, too, which
 * are contents of a tensor, so that no rule saw whether they fall. */
__global__ void __launch_bounds__(THREADS)
    see(const dti_attention_call a, const int32_t *segments, dti_key_range *to)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    dti_key_range seen = { 0, -1 };

    if (segments != NULL && i < a.batch * a.n_keys && i % a.n_keys > 0 &&
        segments[i - 1] > segments[i])
        dti_report(a.fault, DTI_CUDA_FALLING_SEGMENT, segments[i - 1], segments[i]);
    if (i >= a.batch * a.n_tokens) return;
    const int position = a.positions[i], n_keys = (int)a.n_keys;
    if (position < 0 || position >= n_keys) {
        dti_report(a.fault, DTI_CUDA_BAD_POSITION, position, a.n_keys);
    } else {
        seen.first = a.window > 0 && position >= a.window ? (int)(position - a.window + 1) : 0;
        seen.last = a.both_ways ? dti_attention_last_both_ways(a, position) : position;
        if (segments != NULL) {
            const int32_t *const own = segments + i / a.n_tokens * a.n_keys;
            const int64_t segment = own[position];
            seen.first = max(seen.first, segment_begin(own, 0, position, segment));
            seen.last = min(seen.last, segment_begin(own, position, n_keys, segment + 1) - 1);
        }
    }
    to[i] = seen;
}

/* --- statistics ------------------------------------------------------------------------------- */

struct stats_job {
    const void *dy, *y;
    const float *lse;
    float *stats; /* [rows, 2]: lse, dy . y */
    int64_t n_rows, width;
};

/* LANES threads have a row and add as the CPU does: the same bits. */
template <typename T> __global__ void __launch_bounds__(THREADS) find_stats(const stats_job j)
{
    const int64_t row = ((int64_t)blockIdx.x * THREADS + threadIdx.x) / LANES;
    const int lane = (int)threadIdx.x % LANES;
    const T *dy = static_cast<const T *>(j.dy) + row * j.width;
    const T *y = static_cast<const T *>(j.y) + row * j.width;
    float sum = 0.0f;

    for (int64_t d = lane; d < j.width && row < j.n_rows; d += LANES)
        sum += dti_widen(dy[d]) * dti_widen(y[d]);
    for (int half = LANES / 2; half > 0; half /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, half);
    if (row >= j.n_rows || lane != 0) return;
    j.stats[2 * row] = j.lse[row];
    j.stats[2 * row + 1] = sum;
}

template <typename T> int start_stats(dti_cuda *c, const stats_job &j)
{
    enum { ROWS = THREADS / LANES };

    return DTI_LAUNCH(c, find_stats<T>, dim3((unsigned)((j.n_rows + ROWS - 1) / ROWS)),
                      dim3(THREADS), 0, j);
}

/* --- sinks ------------------------------------------------------------------------------------ */

/* A block has a head: the sum of -weight mean over its rows, in f64. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    sum_sinks(float *to, const float *stats, const T *sinks, int64_t n_rows, int n_heads)
{
    DTI_SHARED(double, shared); /* [THREADS] */
    const float sink = dti_widen(sinks[blockIdx.x]);
    double sum = 0.0;

    for (int64_t r = threadIdx.x; r < n_rows; r += THREADS) {
        const float *const of = stats + 2 * (r * n_heads + blockIdx.x);
        sum -= (double)(dti_exp(sink - of[0]) * of[1]);
    }
    shared[threadIdx.x] = sum;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) shared[threadIdx.x] += shared[threadIdx.x + half];
    }
    if (threadIdx.x == 0) to[blockIdx.x] = (float)shared[0];
}

template <typename T> int start_sinks(dti_cuda *c, const dt_kargs *a, int64_t n_rows, int n_heads)
{
    return DTI_LAUNCH(c, sum_sinks<T>, dim3((unsigned)n_heads), dim3(THREADS),
                      THREADS * sizeof(double), static_cast<float *>(a->out[0].data),
                      static_cast<const float *>(a->in[0].data),
                      static_cast<const T *>(a->in[1].data), n_rows, n_heads);
}

} // namespace

extern "C" int dti_attention_train(dti_cuda *c, const dt_kargs *args, const int32_t *segments,
                                   dti_attention_call *a)
{
    const dti_attention_train_attr *attr =
        static_cast<const dti_attention_train_attr *>(args->attr);
    const int64_t n = a->batch * a->n_tokens, n_keys = segments != NULL ? a->batch * a->n_keys : 0;
    const int64_t n_threads = n_keys > n ? n_keys : n;
    void *seen;

    if (a->width > DTI_ATTENTION_WIDTH)
        return dti_cuda_fail("attention: heads of %d columns, but the CUDA kernels that train take "
                             "at most %d: train this model on the CPU",
                             a->width, DTI_ATTENTION_WIDTH);
    a->has_extras = true;
    a->key.seed = attr->seed;
    a->key.stream = attr->stream;
    a->dropout = (float)attr->dropout;
    a->kept = a->dropout < 1.0f ? (float)(1.0 / (1.0 - attr->dropout)) : 0.0f;
    if (dti_cuda_scratch(c, (size_t)n * sizeof(dti_key_range), &seen) != 0) return -1;
    a->seen = static_cast<dti_key_range *>(seen);
    return DTI_LAUNCH(c, see, dim3((unsigned)((n_threads + THREADS - 1) / THREADS)), dim3(THREADS),
                      0, *a, segments, static_cast<dti_key_range *>(seen));
}

extern "C" int dti_attention_stats_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *dy = &a->in[0];
    const stats_job j = { dy->data,
                          a->in[1].data,
                          static_cast<const float *>(a->in[2].data),
                          static_cast<float *>(a->out[0].data),
                          dti_cuda_count(&a->in[2]),
                          dy->shape[3] };

    if (j.n_rows == 0) return 0;
    switch (dy->dtype) {
    case DT_F32:
        return start_stats<float>(c, j);
    case DT_BF16:
        return start_stats<dti_bf16>(c, j);
    case DT_F16:
        return start_stats<dti_f16>(c, j);
    default:
        return dti_refuse_dtype("attention_stats", dy->dtype);
    }
}

extern "C" int dti_attention_backward_sinks_cuda(dti_cuda *c, const dt_kargs *a)
{
    const dt_local *sinks = &a->in[1];
    const int n_heads = (int)sinks->shape[0];

    if (n_heads == 0) return 0;
    const int64_t n_rows = dti_cuda_count(&a->in[0]) / 2 / n_heads;
    switch (sinks->dtype) {
    case DT_F32:
        return start_sinks<float>(c, a, n_rows, n_heads);
    case DT_BF16:
        return start_sinks<dti_bf16>(c, a, n_rows, n_heads);
    case DT_F16:
        return start_sinks<dti_f16>(c, a, n_rows, n_heads);
    default:
        return dti_refuse_dtype("attention_backward_sinks", sinks->dtype);
    }
}
