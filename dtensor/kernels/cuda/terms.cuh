/* SPDX-License-Identifier: Apache-2.0
 *
 * Terms of a reduction over ranks: what is stored, what is added up, and one step of it, with the
 * bits of mesh/comm/reduce.c. bf16 and f16 add up in f32. */
#ifndef DTI_TERMS_CUH
#define DTI_TERMS_CUH

#include "dtensor/kernels/cuda/device.cuh"

template <typename T> struct dti_term {
    typedef T sum;
};
template <> struct dti_term<dti_bf16> {
    typedef float sum;
};
template <> struct dti_term<dti_f16> {
    typedef float sum;
};

template <typename T> static __device__ inline T dti_widen_term(T x)
{
    return x;
}

static __device__ inline float dti_widen_term(dti_bf16 x)
{
    return dti_widen(x);
}

static __device__ inline float dti_widen_term(dti_f16 x)
{
    return dti_widen(x);
}

template <typename T> static __device__ inline void dti_narrow_term(T *to, T x)
{
    *to = x;
}

static __device__ inline void dti_narrow_term(dti_bf16 *to, float x)
{
    dti_narrow(to, x);
}

static __device__ inline void dti_narrow_term(dti_f16 *to, float x)
{
    dti_narrow(to, x);
}

/* Integer sums and products wrap; unsigned arithmetic makes that defined. */
static __device__ inline float dti_add(float a, float b)
{
    return a + b;
}

static __device__ inline double dti_add(double a, double b)
{
    return a + b;
}

static __device__ inline int32_t dti_add(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a + (uint32_t)b);
}

static __device__ inline int64_t dti_add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static __device__ inline float dti_multiply(float a, float b)
{
    return a * b;
}

static __device__ inline double dti_multiply(double a, double b)
{
    return a * b;
}

static __device__ inline int32_t dti_multiply(int32_t a, int32_t b)
{
    return (int32_t)((uint32_t)a * (uint32_t)b);
}

static __device__ inline int64_t dti_multiply(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a * (uint64_t)b);
}

/* acc (op) x; a NaN wins in minimum and maximum. */
template <typename S> static __device__ inline S dti_take(int op, S acc, S x)
{
    switch (op) {
    case DT_MIN:
        return x < acc || x != x ? x : acc;
    case DT_MAX:
        return x > acc || x != x ? x : acc;
    case DT_PROD:
        return dti_multiply(acc, x);
    default:
        return dti_add(acc, x);
    }
}

#endif
