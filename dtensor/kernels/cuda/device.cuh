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
#define DTI_LAUNCH(c, kernel, grid, block, shared_bytes, ...)                                  \
    ((c)->n_launches++, kernel<<<(grid), (block), (shared_bytes), (c)->stream>>>(__VA_ARGS__), \
     dti_cuda_launched(#kernel))
/* The same for a kernel that waits for kernels on other streams, which the simulated device has to
 * know. */
#define DTI_LAUNCH_SPINNING DTI_LAUNCH
/* Dynamic shared memory of a kernel. */
#define DTI_SHARED(type, name)                                    \
    extern __shared__ __align__(16) unsigned char name##_bytes[]; \
    type *const name = reinterpret_cast<type *>(name##_bytes)
#endif

/* Before a loop of few turns, so that what it indexes stays in registers. A large parameter that is
 * __grid_constant__ is read where it lies, also at an index that is found at run time. */
#ifdef __CUDACC__
#define DTI_UNROLL _Pragma("unroll")
#else
#define DTI_UNROLL
#define __grid_constant__
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
#ifdef __CUDACC__
    uint16_t y;

    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return y;
#else
    const uint32_t u = __float_as_uint(x);

    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
#endif
}

/* PTX; the simulated device has its own (tests/cuda_sim/include/sim_intrinsics.h). */
#ifdef __CUDACC__
static __device__ inline float dti_f16_value(uint16_t bits)
{
    float x;

    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
}

static __device__ inline uint16_t dti_f16_bits(float x)
{
    uint16_t bits;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
    return bits;
}
#endif

/* --- what kernels of other devices see, and write --------------------------------------------- */

#ifdef __CUDACC__
/* Who reads x here sees all that was written before it was stored, by whatever device. */
static __device__ inline uint32_t dti_load_acquire(const uint32_t *p)
{
    uint32_t x;

    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}

static __device__ inline void dti_store_release(uint32_t *p, uint32_t x)
{
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

/* A clock that goes on whatever the device does. */
static __device__ inline uint64_t dti_now_ns(void)
{
    uint64_t t;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
#endif

static __device__ inline float dti_widen(dti_f16 x)
{
    return dti_f16_value(x.bits);
}

/* *to = x, rounded to its type. */
static __device__ inline void dti_narrow(float *to, float x)
{
    *to = x;
}

static __device__ inline void dti_narrow(dti_bf16 *to, float x)
{
    to->bits = dti_bf16_bits(x);
}

static __device__ inline void dti_narrow(dti_f16 *to, float x)
{
    to->bits = dti_f16_bits(x);
}

/* x as its type's values: rounded there, in float again. */
template <typename T> static __device__ inline float dti_rounded(float x)
{
    T y;

    dti_narrow(&y, x);
    return dti_widen(y);
}

/* --- 16 bytes at a time ----------------------------------------------------------------------- */

/* Element i of 16 bytes, i known when compiling. */
static __device__ inline uint32_t dti_word(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

static __device__ inline float dti_element(const uint4 &v, int i, float)
{
    return __uint_as_float(dti_word(v, i));
}

static __device__ inline float dti_element(const uint4 &v, int i, dti_bf16)
{
    const uint32_t word = dti_word(v, i / 2);

    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
}

static __device__ inline float dti_element(const uint4 &v, int i, dti_f16)
{
    dti_f16 x;

    x.bits = (uint16_t)(dti_word(v, i / 2) >> 16 * (i % 2));
    return dti_widen(x);
}

/* 16 aligned bytes that are read once, as weights are: they leave level 1 to what is read again. */
static __device__ inline uint4 dti_load_once(const void *at)
{
    uint4 v;

#ifdef __CUDACC__
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
#else
    v = *static_cast<const uint4 *>(at);
#endif
    return v;
}

/* Says that contents are wrong: a position outside the cache. The first to say so is heard. */
static __device__ inline void dti_report(dti_cuda_fault_word *word, int fault, long long value,
                                         long long limit)
{
    if (atomicCAS(&word->fault, (int)DTI_CUDA_FINE, fault) != DTI_CUDA_FINE) return;
    word->value = value;
    word->limit = limit;
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
