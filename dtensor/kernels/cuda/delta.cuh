/* SPDX-License-Identifier: Apache-2.0
 *
 * What linear attention and its gradients share: rows of length 1. */
#ifndef DTI_DELTA_CUH
#define DTI_DELTA_CUH

#include "dtensor/kernels/cuda/math.cuh"
#include "dtensor/kernels/cuda/rows.cuh"

#define DTI_UNIT_EPS 1e-6f

/* What makes a row of `width` columns one of length 1, of a warp, to all its lanes. */
template <typename T> static __device__ inline float dti_unit_factor(const T *x, int width)
{
    float sum = 0.0f;

    for (int i = (int)threadIdx.x % DTI_WARP; i < width; i += DTI_WARP)
        sum += dti_widen(x[i]) * dti_widen(x[i]);
    return 1.0f / sqrtf(dti_warp_sum(sum) + DTI_UNIT_EPS);
}

/* The warp's row of length 1, times scale. */
template <typename T>
static __device__ inline void dti_load_unit(float *to, const T *x, float scale, int width)
{
    const float factor = dti_unit_factor(x, width);

    for (int i = (int)threadIdx.x % DTI_WARP; i < width; i += DTI_WARP)
        to[i] = dti_widen(x[i]) * factor * scale;
}

#endif
