/* SPDX-License-Identifier: Apache-2.0
 *
 * Keys of dtensor/argmax.h on the device: integers whose order is (value, lower index first), with
 * every NaN above all numbers. */
#ifndef DTI_KEYS_CUH
#define DTI_KEYS_CUH

#include "dtensor/kernels/cuda/device.cuh"

/* dti_argmax_key(). */
static __device__ inline int64_t dti_key_of(float value, int64_t index)
{
    const int32_t bits = (int32_t)__float_as_uint(value + 0.0f);
    const int32_t order = value != value ? INT32_MAX : bits ^ ((bits >> 31) & INT32_MAX);

    return (int64_t)order * ((int64_t)1 << 32) + (int64_t)(UINT32_MAX - (uint32_t)index);
}

/* dti_argmax_value(). */
static __device__ inline float dti_key_value(int64_t key)
{
    const int32_t order = (int32_t)(key >> 32);

    return __uint_as_float((uint32_t)(order ^ ((order >> 31) & INT32_MAX)));
}

static __device__ inline int32_t dti_key_index(int64_t key)
{
    return (int32_t)(UINT32_MAX - (uint32_t)key);
}

static __device__ inline int64_t dti_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static __device__ inline int64_t dti_warp_largest(int64_t x)
{
    for (int step = DTI_WARP / 2; step > 0; step /= 2)
        x = dti_larger(x, (int64_t)__shfl_xor_sync(0xffffffffu, (long long)x, step));
    return x;
}

#endif
