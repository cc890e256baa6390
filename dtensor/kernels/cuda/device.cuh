/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels share: launching, numbers of 16 bits, sums over a warp. Kernels use nothing of
 * CUDA that is not named here or in the simulated device (tests/cuda_sim/), so that the same source
 * runs on both. */
#ifndef DTI_DEVICE_CUH
#define DTI_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>

#include "dtensor/kernels/cuda/cuda_internal.h"

/* Starts a kernel on c's stream: 0, or -1 with the reason. The simulated device has its own. */
#ifndef DTI_LAUNCH
#define DTI_LAUNCH(c, kernel, grid, block, shared_bytes, ...)               \
    (kernel<<<(grid), (block), (shared_bytes), (c)->stream>>>(__VA_ARGS__), \
     dti_cuda_launched(#kernel))
/* Dynamic shared memory of a kernel. */
#define DTI_SHARED(type, name)                                    \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type *const name = reinterpret_cast<type *>(name##_bytes)
#endif

enum { DTI_WARP = 32 };

/* Storage types of 16 bits; arithmetic is in float. */
typedef struct dti_bf16 {
    uint16_t bits;
} dti_bf16;
typedef struct dti_f16 {
    uint16_t bits;
} dti_f16;

static __device__ inline float dti_widen(float x)
{
    return x;
}

static __device__ inline float dti_widen(dti_bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

/* To nearest, ties to even; NaN stays a NaN, as base/dtype.h. */
static __device__ inline uint16_t dti_bf16_bits(float x)
{
    const uint32_t u = __float_as_uint(x);

    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static __device__ inline float dti_warp_sum(float x)
{
    for (int step = DTI_WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

static __device__ inline float dti_warp_max(float x)
{
    for (int step = DTI_WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

#endif
