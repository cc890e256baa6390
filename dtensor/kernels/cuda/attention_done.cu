/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cuda/attention_done.h"

#include "dtensor/kernels/cuda/device.cuh"

namespace
{

enum { THREADS = 256, ROWS_OF_BLOCK = THREADS / DTI_WARP, JUNK_BLOCKS = 32 };

/* Whether a pair of 16-bit numbers has an infinite one or a NaN: an exponent of ones alone. */
__device__ inline bool is_junk(uint32_t pair, uint32_t exponent)
{
    return (pair & exponent) == exponent || (pair >> 16 & exponent) == exponent;
}

/* JUNK_BLOCKS blocks a sequence; rows are whole pieces of 16 bytes. */
__global__ void find_junk(const __grid_constant__ dti_span_job job)
{
    const int64_t b = blockIdx.x / JUNK_BLOCKS, last = job.positions[(b + 1) * job.n_tokens - 1];
    const int64_t begin = last + 1, end = min(job.n_keys, begin + DTI_TILE_BEYOND);
    const int64_t pieces = job.k_columns / 8;
    const uint32_t exponent = job.dtype == DT_BF16 ? 0x7f80u : 0x7c00u;
    bool junk = false;

    if (last < 0) return; /* find_done() will tell */
    for (int64_t i = blockIdx.x % JUNK_BLOCKS * THREADS + threadIdx.x; i < (end - begin) * pieces;
         i += JUNK_BLOCKS * THREADS) {
        const int64_t at =
            (b * job.cache_rows + begin + i / pieces) * job.k_stride + i % pieces * 8;
        const uint4 k = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(job.k) + at);
        const uint4 v = *reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(job.v) + at);
        for (int j = 0; j < 4; j++)
            junk = junk || is_junk(dti_word(k, j), exponent) || is_junk(dti_word(v, j), exponent);
    }
    if (junk) atomicMax(job.junk + b, 1);
}

/* One block a sequence. */
__global__ void find_done(const __grid_constant__ dti_span_job job)
{
    __shared__ int bad; /* the last query that stands elsewhere; -1 */
    const int32_t *const positions = job.positions + blockIdx.x * job.n_tokens;
    const int64_t end = job.n_tokens - 1, last = positions[end];
    int32_t *const lengths =
        job.lengths + (int64_t)blockIdx.x * job.n_spans * 2 * DTI_LENGTH_STRIDE;
    int mine = -1;

    if (threadIdx.x == 0) bad = job.junk[blockIdx.x] != 0 ? (int)end : -1;
    __syncthreads();
    for (int64_t t = threadIdx.x; t <= end; t += THREADS)
        if (positions[t] < 0 || last >= job.n_keys || positions[t] != last - (end - t))
            mine = (int)t;
    if (mine >= 0) atomicMax(&bad, mine);
    __syncthreads();
    for (int k = (int)threadIdx.x; k < job.n_spans; k += THREADS) {
        const dti_attention_span span = job.spans[k];
        const bool fits = span.begin > bad;
        lengths[2 * k * DTI_LENGTH_STRIDE] = fits ? (int32_t)span.n_rows : 1;
        lengths[(2 * k + 1) * DTI_LENGTH_STRIDE] =
            fits ? positions[span.begin + span.n_rows - 1] + 1 : 1;
    }
    if (threadIdx.x != 0) return;
    int64_t done = job.n_tokens;
    for (int k = 0; k < job.n_spans && job.spans[k].begin > bad; k++) done = job.spans[k].begin;
    job.done[blockIdx.x] = (int32_t)done;
}

struct comparison {
    const void *got, *want;
    float *worst;
    int64_t n_rows, n_heads;
    int width;
};

/* A warp a row, which is a head of a query. NaN counts as infinitely far; the smallest f16 as 0. */
template <typename T>
__global__ void compare(const __grid_constant__ comparison c,
                        const __grid_constant__ dti_span_job job)
{
    const int lane = (int)threadIdx.x % DTI_WARP;
    const int64_t row = (int64_t)blockIdx.x * ROWS_OF_BLOCK + threadIdx.x / DTI_WARP;
    const int64_t token = row / c.n_heads, t = token % job.n_tokens;
    const T *const got = static_cast<const T *>(c.got) + row * c.width;
    const T *const want = static_cast<const T *>(c.want) + row * c.width;
    float apart = 0.0f, size = 0.0f, ratio;
    int k = 0;

    if (row >= c.n_rows || t < job.done[token / job.n_tokens]) return;
    while (t < job.spans[k].begin) k++;
    for (int i = lane; i < c.width; i += DTI_WARP) {
        const float x = dti_widen(got[i]), y = dti_widen(want[i]), d = x - y;
        apart += d * d;
        size += y * y;
    }
    apart = dti_warp_sum(apart);
    size = dti_warp_sum(size) + (float)c.width * 1e-12f;
    ratio = apart / size;
    if (!(ratio < INFINITY)) ratio = INFINITY;
    if (lane == 0) /* no ratio is negative, so their bits have their order */
        atomicMax(reinterpret_cast<int *>(c.worst + k), __float_as_int(ratio));
}

} // namespace

extern "C" int dti_attention_find_done(dti_cuda *c, const dti_span_job *job)
{
    const unsigned grid = (unsigned)job->batch * JUNK_BLOCKS;

    if (dti_cuda_check(
            cudaMemsetAsync(job->junk, 0, (size_t)job->batch * sizeof *job->junk, c->stream),
            "attention: clearing") != 0 ||
        DTI_LAUNCH(c, find_junk, grid, THREADS, 0, *job) != 0)
        return -1;
    return DTI_LAUNCH(c, find_done, (unsigned)job->batch, THREADS, 0, *job);
}

extern "C" int dti_attention_compare(dti_cuda *c, const dti_span_check *check)
{
    const dti_span_job *job = check->job;
    const comparison of = { check->got,     check->want,
                            check->worst,   job->batch * job->n_tokens * check->n_heads,
                            check->n_heads, check->width };
    const unsigned grid = (unsigned)((of.n_rows + ROWS_OF_BLOCK - 1) / ROWS_OF_BLOCK);

    if (check->dtype == DT_BF16)
        return DTI_LAUNCH(c, compare<dti_bf16>, grid, THREADS, 0, of, *job);
    return DTI_LAUNCH(c, compare<dti_f16>, grid, THREADS, 0, of, *job);
}
