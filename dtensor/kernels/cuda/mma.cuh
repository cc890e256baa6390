/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of small tiles by a warp, and copies into shared memory that run beside it: PTX, each
 * with a form in plain C++ for the simulated device. */
#ifndef DTI_MMA_CUH
#define DTI_MMA_CUH

#include "dtensor/kernels/cuda/device.cuh"

/* D += A B^T of A [16, 16], B [8, 16], D [16, 8], by all lanes of a warp (mma.sync m16n8k16). With
 * g = lane / 4 and t = lane % 4, and two elements of 16 bits in a register, the first one lowest:
 *
 *   a[0], a[1]   rows g and g + 8 of A, columns 2t and 2t + 1
 *   a[2], a[3]   the same rows, columns 2t + 8 and 2t + 9
 *   b[0], b[1]   row g of B, columns 2t, 2t + 1 and 2t + 8, 2t + 9
 *   d[0], d[1]   row g of D, columns 2t and 2t + 1; d[2], d[3] row g + 8
 *
 * Sums are f32. The order of columns is free as long as A and B have the same one: 16 bytes of a
 * row per lane, columns 8t .. 8t + 7 of 32, are registers 0, 2 of a first product and of a second
 * one, so tiles need no rearranging. */
#ifdef __CUDACC__
static __device__ inline void dti_mma(float d[4], const uint32_t a[4], const uint32_t b[2],
                                      dti_bf16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ inline void dti_mma(float d[4], const uint32_t a[4], const uint32_t b[2], dti_f16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
/* By shuffles: lane 4 g + s has columns 2s, 2s + 1 of row g in register 0, 2s + 8, .. in the other. */
template <typename T>
static inline void dti_mma(float d[4], const uint32_t a[4], const uint32_t b[2], T)
{
    const int lane = (int)(threadIdx.x % DTI_WARP), g = lane / 4, t = lane % 4;

    for (int half = 0; half < 2; half++)
        for (int s = 0; s < 4; s++) {
            const uint32_t top = __shfl_sync(0xffffffffu, a[2 * half], 4 * g + s);
            const uint32_t low = __shfl_sync(0xffffffffu, a[2 * half + 1], 4 * g + s);
            const uint32_t first = __shfl_sync(0xffffffffu, b[half], 8 * t + s);
            const uint32_t second = __shfl_sync(0xffffffffu, b[half], 8 * t + 4 + s);
            for (int i = 0; i < 2; i++) {
                T x[4];
                x[0].bits = (uint16_t)(top >> 16 * i);
                x[1].bits = (uint16_t)(low >> 16 * i);
                x[2].bits = (uint16_t)(first >> 16 * i);
                x[3].bits = (uint16_t)(second >> 16 * i);
                d[0] += dti_widen(x[0]) * dti_widen(x[2]);
                d[1] += dti_widen(x[0]) * dti_widen(x[3]);
                d[2] += dti_widen(x[1]) * dti_widen(x[2]);
                d[3] += dti_widen(x[1]) * dti_widen(x[3]);
            }
        }
}
#endif

/* Starts a copy of 16 bytes from global into shared memory, both aligned; zeros with valid false,
 * and then `from` is not read. A group of copies is closed by dti_copy_commit();
 * dti_copy_wait<N>() waits for all groups of this thread but the last N. Other threads see the bytes
 * after a __syncthreads() more. */
#ifdef __CUDACC__
static __device__ inline void dti_copy_async(void *shared, const void *from, bool valid)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
                 "r"(valid ? 16 : 0)
                 : "memory");
}

static __device__ inline void dti_copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> static __device__ inline void dti_copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#else
static inline void dti_copy_async(void *shared, const void *from, bool valid)
{
    *static_cast<uint4 *>(shared) = valid ? *static_cast<const uint4 *>(from) : uint4();
}

static inline void dti_copy_commit(void) {}

template <int N> static inline void dti_copy_wait(void) {}
#endif

#endif
