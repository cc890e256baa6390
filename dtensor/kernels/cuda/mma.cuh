/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of small tiles by a warp, and copies into shared memory that run beside it: PTX, which
 * the simulated device has its own of (tests/cuda_sim/include/sim_intrinsics.h). */
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
static __device__ inline void dti_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

static __device__ inline void dti_mma_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

static __device__ inline void dti_mma(float d[4], const uint32_t a[4], const uint32_t b[2],
                                      dti_bf16)
{
    dti_mma_bf16(d, a, b);
}

static __device__ inline void dti_mma(float d[4], const uint32_t a[4], const uint32_t b[2], dti_f16)
{
    dti_mma_f16(d, a, b);
}

/* x and y, rounded to T, in one register, x lowest. */
static __device__ inline uint32_t dti_pair(float x, float y, dti_bf16)
{
#ifdef __CUDACC__
    uint32_t pair;

    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#else
    return (uint32_t)dti_bf16_bits(y) << 16 | dti_bf16_bits(x);
#endif
}

static __device__ inline uint32_t dti_pair(float x, float y, dti_f16)
{
#ifdef __CUDACC__
    uint32_t pair;

    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(y), "f"(x));
    return pair;
#else
    return (uint32_t)dti_f16_bits(y) << 16 | dti_f16_bits(x);
#endif
}

/* Four matrices [8, 8] of 16 bits from shared memory, by all lanes of a warp: lane 8 m + i brings
 * the address of row i of matrix m, 16 aligned bytes. With g = lane / 4 and t = lane % 4, r[m] is
 * row g, columns 2t and 2t + 1, of matrix m; or, of the transposed one, rows 2t and 2t + 1, column
 * g. */
#ifdef __CUDACC__
static __device__ inline void dti_ldmatrix_x4(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}

static __device__ inline void dti_ldmatrix_x4_trans(uint32_t r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(row))
                 : "memory");
}
#endif

/* Starts a copy of 16 bytes from global into shared memory, both aligned: the first `bytes`, which
 * are 0 or 16, and zeros. A group of copies is closed by dti_cp_async_commit();
 * dti_cp_async_wait<N>() waits for all groups of this thread but the last N. Other threads see the
 * bytes after a __syncthreads() more. */
#ifdef __CUDACC__
static __device__ inline void dti_cp_async_16(void *shared, const void *global, int bytes)
{
    const uint32_t to = (uint32_t)__cvta_generic_to_shared(shared);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes)
                 : "memory");
}

static __device__ inline void dti_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int N> static __device__ inline void dti_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}
#endif

#endif
