/* SPDX-License-Identifier: Apache-2.0
 *
 * What norms of whole rows and norms of heads compute alike, so that their bits are the same. */
#ifndef DTI_NORMS_CUH
#define DTI_NORMS_CUH

#include "dtensor/kernels/cuda/rows.cuh"
#include "dtensor/kernels/fused.h"

/* sum + (x[i] - shift)^p over the first `left`; p is 2, or 1 where `square` is false. */
template <typename T, int N>
static __device__ inline float dti_moment(float sum, const dti_pack<T, N> &x, int64_t left,
                                          float shift, bool square)
{
    DTI_UNROLL
    for (int i = 0; i < N; i++) {
        const float v = i < left ? dti_widen(x.v[i]) - shift : 0.0f;
        sum = square ? fmaf(v, v, sum) : sum + v;
    }
    return sum;
}

/* The sum over the G threads of a row, which are a warp or the whole block: the same bits in each.
 */
template <int G> static __device__ inline float dti_row_sum(float x, float *shared)
{
    float sum = dti_warp_sum(x);

    if (G == DTI_WARP) return sum;
    __syncthreads(); /* what was here before has been read */
    if (threadIdx.x % DTI_WARP == 0) shared[threadIdx.x / DTI_WARP] = sum;
    __syncthreads();
    sum = 0.0f;
    for (int warp = 0; warp < G / DTI_WARP; warp++) sum += shared[warp];
    return sum;
}

/* An element of a normed row, to be rounded; b and mean are of DTI_LAYER alone. */
template <typename T>
static __device__ inline float dti_normed(int form, float x, float mean, float scale, float w,
                                          float b)
{
    if (form == DTI_LAYER) return (x - mean) * scale * w + b;
    if (form == DTI_RMS_ONCE) return x * scale * w;
    if (form == DTI_RMS_1P) return x * scale * (1.0f + w);
    return dti_rounded<T>(x * scale) * w;
}

#endif
