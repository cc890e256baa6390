/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross entropy, with the formulas of dtensor/kernels/cpu/cross_entropy.c: a block for each token's
 * part of the vocabulary, whose threads add every 256th logit, in f64 and in an order of their own;
 * a thread for each token's loss. */
#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

namespace
{

enum { THREADS = 256, WARPS = THREADS / DTI_WARP };

struct entropy_job {
    const void *logits;
    const int32_t *targets;
    const float *per_token; /* the largest logits, or dlosses */
    const float *sums;      /* or lse */
    void *out;
    float *lse, *counted;
    dti_cuda_fault_word *fault;
    int64_t n_tokens, n, n_sums, first; /* first: number of the first logit of this rank */
    int64_t vocabulary, ignore_index;
    float smooth, z;
};

__device__ inline double block_sum(double *sums, double x)
{
    double all = 0.0;

    for (int step = DTI_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    __syncthreads(); /* what was here before has been read */
    if (threadIdx.x % DTI_WARP == 0) sums[threadIdx.x / DTI_WARP] = x;
    __syncthreads();
    for (int w = 0; w < WARPS; w++) all += sums[w];
    return all;
}

template <typename T> __global__ void __launch_bounds__(THREADS) sum_tokens(const entropy_job j)
{
    DTI_SHARED(double, shared);
    const int64_t token = blockIdx.x, at = j.targets[token] - j.first;
    const T *x = static_cast<const T *>(j.logits) + token * j.n;
    const float most = j.per_token[token], shift = most == -INFINITY ? 0.0f : most;
    float *sums = static_cast<float *>(j.out) + token * j.n_sums;
    double exps = 0.0, all = 0.0;

    for (int64_t i = threadIdx.x; i < j.n; i += THREADS) {
        const float v = dti_widen(x[i]);
        exps += (double)dti_exp(v - shift);
        all += (double)v;
    }
    exps = block_sum(shared, exps);
    if (j.n_sums > 2) all = block_sum(shared, all);
    if (threadIdx.x != 0) return;
    sums[0] = (float)exps;
    sums[1] = at >= 0 && at < j.n ? dti_widen(x[at]) : 0.0f;
    if (j.n_sums > 2) sums[2] = (float)all;
}

__global__ void __launch_bounds__(THREADS) lose_tokens(const entropy_job j)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i >= j.n_tokens) return;
    const float *s = j.sums + i * j.n_sums;
    const float lse = dti_log(s[0]) + j.per_token[i];
    const bool counts = j.targets[i] != j.ignore_index;
    float loss = lse - s[1];

    if (counts && (j.targets[i] < 0 || j.targets[i] >= j.vocabulary))
        dti_report(j.fault, DTI_CUDA_BAD_TARGET, j.targets[i], j.vocabulary);
    if (j.n_sums > 2)
        loss = (1.0f - j.smooth) * loss + j.smooth * (lse - s[2] / (float)j.vocabulary);
    j.lse[i] = lse;
    j.counted[i] = counts ? 1.0f : 0.0f;
    static_cast<float *>(j.out)[i] = counts ? loss + j.z * lse * lse : 0.0f;
}

template <typename T> __global__ void __launch_bounds__(THREADS) slope_tokens(const entropy_job j)
{
    const int64_t token = blockIdx.x, target = j.targets[token];
    const T *x = static_cast<const T *>(j.logits) + token * j.n;
    T *dx = static_cast<T *>(j.out) + token * j.n;
    const float dloss = j.per_token[token], lse = j.sums[token];
    const float of_softmax = dloss * (1.0f + 2.0f * j.z * lse);
    const float of_each = dloss * j.smooth / (float)j.vocabulary;

    for (int64_t i = threadIdx.x; i < j.n; i += THREADS) {
        float v = dti_exp(dti_widen(x[i]) - lse) * of_softmax - of_each;
        if (i == target - j.first) v -= dloss * (1.0f - j.smooth);
        dti_narrow(dx + i, target == j.ignore_index ? 0.0f : v);
    }
}

/* One block. */
__global__ void __launch_bounds__(THREADS)
    count(float *out, const int32_t *targets, int64_t n, int64_t ignore)
{
    DTI_SHARED(double, shared);
    double all = 0.0;

    for (int64_t i = threadIdx.x; i < n; i += THREADS) all += targets[i] != ignore ? 1.0 : 0.0;
    all = block_sum(shared, all);
    if (threadIdx.x == 0) *out = (float)all;
}

entropy_job job_of(dti_cuda *c, const dt_kargs *a, int logits)
{
    const dti_cross_entropy_attr *attr = (const dti_cross_entropy_attr *)a->attr;
    const dt_local *x = &a->in[logits];
    entropy_job j = {};

    j.logits = x->data;
    j.targets = (const int32_t *)a->in[logits + 1].data;
    j.out = a->out[0].data;
    j.fault = c->fault;
    j.n = x->shape[x->n_axes - 1];
    j.n_tokens = dti_cuda_count(&a->in[logits + 1]);
    j.first = x->offset[x->n_axes - 1];
    j.vocabulary = attr->vocabulary;
    j.ignore_index = attr->ignore_index;
    j.smooth = (float)attr->label_smoothing;
    j.z = (float)attr->z_loss;
    return j;
}

template <typename T> int run(dti_cuda *c, const entropy_job &j, bool gradient)
{
    if (gradient)
        return DTI_LAUNCH(c, slope_tokens<T>, dim3((unsigned)j.n_tokens), dim3(THREADS), 0, j);
    return DTI_LAUNCH(c, sum_tokens<T>, dim3((unsigned)j.n_tokens), dim3(THREADS),
                      WARPS * sizeof(double), j);
}

int by_dtype(dti_cuda *c, const entropy_job &j, int dtype, const char *op, bool gradient)
{
    if (dtype != DT_F32 && dtype != DT_BF16 && dtype != DT_F16) return dti_refuse_dtype(op, dtype);
    if (j.n_tokens == 0) return 0;
    if (dtype == DT_F32) return run<float>(c, j, gradient);
    return dtype == DT_BF16 ? run<dti_bf16>(c, j, gradient) : run<dti_f16>(c, j, gradient);
}

} /* namespace */

extern "C" {

int dti_cross_entropy_sums_cuda(dti_cuda *c, const dt_kargs *a)
{
    entropy_job j = job_of(c, a, 0);

    j.per_token = (const float *)a->in[2].data;
    j.n_sums = a->out[0].shape[a->out[0].n_axes - 1];
    return by_dtype(c, j, a->in[0].dtype, "cross_entropy_sums", false);
}

int dti_cross_entropy_cuda(dti_cuda *c, const dt_kargs *a)
{
    entropy_job j = job_of(c, a, 0);

    j.per_token = (const float *)a->in[2].data;
    j.sums = (const float *)a->in[3].data;
    j.n_sums = a->in[3].shape[a->in[3].n_axes - 1];
    j.lse = (float *)a->out[1].data;
    j.counted = (float *)a->out[2].data;
    if (j.n_tokens == 0) return 0;
    return DTI_LAUNCH(c, lose_tokens, dim3((unsigned)((j.n_tokens + THREADS - 1) / THREADS)),
                      dim3(THREADS), 0, j);
}

int dti_cross_entropy_backward_cuda(dti_cuda *c, const dt_kargs *a)
{
    entropy_job j = job_of(c, a, 1);

    j.per_token = (const float *)a->in[0].data;
    j.sums = (const float *)a->in[3].data;
    return by_dtype(c, j, a->in[1].dtype, "cross_entropy_backward", true);
}

int dti_count_targets_cuda(dti_cuda *c, const dt_kargs *a)
{
    return DTI_LAUNCH(c, count, dim3(1), dim3(THREADS), WARPS * sizeof(double),
                      (float *)a->out[0].data, (const int32_t *)a->in[0].data,
                      dti_cuda_count(&a->in[0]), ((const dti_count_attr *)a->attr)->ignore_index);
}
} /* extern "C" */
