/* SPDX-License-Identifier: Apache-2.0
 *
 * The softmax of 16 rows whose scores and sums lie in registers as mma.sync leaves them: with
 * g = lane / 4 and t = lane % 4, tile i of either has columns 8 i + 2t and 8 i + 2t + 1 of row g in
 * elements 0 and 1, of row g + 8 in elements 2 and 3. */
#ifndef DTI_ATTENTION_MMA_CUH
#define DTI_ATTENTION_MMA_CUH

#include "dtensor/kernels/cuda/attention.cuh"
#include "dtensor/kernels/cuda/mma.cuh"

/* 2^x to within 2^-22 of it, and 0 below 2^-126: one instruction. */
static __device__ inline float dti_exp2(float x)
{
#ifdef __CUDACC__
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

/* of a row, from the four lanes that have it */
static __device__ inline float dti_row_sum(float x)
{
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

static __device__ inline float dti_row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

template <int TILES>
static __device__ inline void dti_scale_scores(float (&s)[TILES][4], float scale)
{
    DTI_UNROLL
    for (int i = 0; i < 4 * TILES; i++) s[i / 4][i % 4] *= scale;
}

/* Scores of row g, or g + 8 for half 1, that it does not see become -inf; key is that of the first
 * column. */
template <int TILES>
static __device__ inline void dti_hide_keys(float (&s)[TILES][4], int half, int key, int first,
                                            int last)
{
    const int from = first - key - (int)(threadIdx.x % 4) * 2;
    const int to = last - key - (int)(threadIdx.x % 4) * 2;

    DTI_UNROLL
    for (int i = 0; i < 2 * TILES; i++) {
        const int j = i / 2 * 8 + i % 2;
        if (j < from || j > to) s[i / 2][2 * half + i % 2] = -INFINITY;
    }
}

/* Scores of a row become weights; its largest score and total so far follow, and its sums so far
 * are to be multiplied by what is returned. The total is of this lane's columns. */
template <int TILES>
static __device__ inline float dti_soften_row(float (&s)[TILES][4], int half, float &largest,
                                              float &total)
{
    float most = largest, sum = 0.0f, base, factor;

    DTI_UNROLL
    for (int i = 0; i < 2 * TILES; i++) most = fmaxf(most, s[i / 2][2 * half + i % 2]);
    most = dti_row_max(most);
    base = most == -INFINITY ? 0.0f : most; /* no key seen yet */
    factor = dti_exp2(largest - base);
    largest = most;
    DTI_UNROLL
    for (int i = 0; i < 2 * TILES; i++) {
        float &x = s[i / 2][2 * half + i % 2];
        x = dti_exp2(x - base);
        sum += x;
    }
    total = total * factor + sum;
    return factor;
}

#endif
