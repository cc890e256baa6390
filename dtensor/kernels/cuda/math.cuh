/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the model that are no single instruction. They are those of the CPU kernels
 * (dtensor/kernels/cpu/simd.inc.c), operation by operation, fused where those fuse: a device and a
 * CPU with fused multiplication give the same bits. The files of the module are compiled so that no
 * other product and sum are fused (nvcc -fmad=false). */
#ifndef DTI_MATH_CUH
#define DTI_MATH_CUH

#include "dtensor/kernels/cuda/device.cuh"
#include "dtensor/kernels/random.h"

/* v 2^n in two steps, since 2^n alone may be no float where the product is one. */
static __device__ inline float dti_scale(float v, int n)
{
    const int half = n >> 1;

    return v * __uint_as_float((uint32_t)(half + 127) << 23) *
           __uint_as_float((uint32_t)(n - half + 127) << 23);
}

/* e^x within 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r, times 2^n. */
static __device__ inline float dti_exp(float x)
{
    const float magic = 0x1.8p23f; /* adding it leaves the nearest integer in the low bits */
    const float above = -105.0f > x ? -105.0f : x; /* a NaN stays one */
    const float c = 90.0f < above ? 90.0f : above;
    const float t = fmaf(c, 0x1.715476p0f, magic);
    const float whole = t - magic;
    /* ln 2 in two parts; the product with the first is exact */
    const float r = fmaf(whole, -1.428606765330187045e-06f, fmaf(whole, -0.693145751953125f, c));
    float p = 0.000198527617612853646278381f;

    p = fmaf(p, r, 0.00139304355252534151077271f);
    p = fmaf(p, r, 0.00833336077630519866943359f);
    p = fmaf(p, r, 0.0416664853692054748535156f);
    p = fmaf(p, r, 0.166666671633720397949219f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    if (fabsf(c) < 87.0f) /* both p and the result are normal: n goes into the exponent */
        return __uint_as_float(__float_as_uint(p) + (__float_as_uint(t) << 23));
    return dti_scale(p, (int)(__float_as_uint(t) - __float_as_uint(magic)));
}

/* tanh x within 1.5 ulp: an odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere. */
static __device__ inline float dti_tanh(float x)
{
    const float a = fabsf(x), z = x * x;
    const float far = 1.0f - 2.0f / (dti_exp(a + a) + 1.0f);
    float p = -5.70498872745e-3f;

    p = fmaf(p, z, 2.06390887954e-2f);
    p = fmaf(p, z, -5.37397155531e-2f);
    p = fmaf(p, z, 1.33314422036e-1f);
    p = fmaf(p, z, -3.33332819422e-1f);
    return a < 0.625f ? fmaf(p * z, x, x)
                      : __uint_as_float(__float_as_uint(far) | (__float_as_uint(x) & 0x80000000u));
}

/* ln x within 1 ulp; zeros, negative numbers and denormals too. */
static __device__ inline float dti_log(float x)
{
    const bool tiny = x < 0x1p-126f && x > 0.0f;

    if (x != x || x == INFINITY) return x;
    if (!(x > 0.0f)) return x == 0.0f ? -INFINITY : __uint_as_float(0x7fc00000u);
    return dti_ln_f32(tiny ? x * 0x1p24f : x, tiny ? 24 : 0);
}

/* erf x within 1.5 ulp: an odd polynomial near zero, 1 - e^-p elsewhere. */
static __device__ inline float dti_erf(float x)
{
    const float a = fabsf(x), t = 8.0f < a ? 8.0f : a, s = t * t;
    float p = fmaf(t, -1.72853470e-5f, 3.83197126e-4f);
    float q = fmaf(s, -5.96761703e-4f, 4.99119423e-3f);

    p = fmaf(p, s, fmaf(t, -3.88396438e-3f, 2.42546219e-2f));
    p = fmaf(p, t, -1.06777877e-1f);
    p = fmaf(p, t, -6.34846687e-1f);
    p = fmaf(p, t, -1.28717512e-1f);
    p = 1.0f - dti_exp(fmaf(p, t, -t));
    q = fmaf(q, s, -2.67681349e-2f);
    q = fmaf(q, s, 1.12819925e-1f);
    q = fmaf(q, s, -3.76125336e-1f);
    q = fmaf(q, s, 1.28379166e-1f);
    q = fmaf(q, t, t);
    return __uint_as_float(__float_as_uint(t > 0.927734375f ? p : q) |
                           (__float_as_uint(x) & 0x80000000u));
}

static __device__ inline float dti_silu(float x)
{
    return x / (1.0f + dti_exp(-x));
}

static __device__ inline float dti_gelu_tanh(float x)
{
    const float inner = (x + x * x * x * 0.044715f) * 0.79788456080286536f;

    return x * 0.5f * (1.0f + dti_tanh(inner));
}

#endif
