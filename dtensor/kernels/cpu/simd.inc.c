/* SPDX-License-Identifier: Apache-2.0
 *
 * A vector of DT_SIMD bits of floats (128, 256 or 512), written with the vector types of gcc and
 * clang; intrinsics only where those have no word for it. Included by files of one instruction set,
 * so every function is static. DT_SIMD 128 is portable: it needs nothing beyond C. */
#include <stdint.h>
#include <string.h>

#include "base/dtype.h"

#if DT_SIMD > 128
#include <immintrin.h>
#endif

enum { VW = DT_SIMD / 32 }; /* floats in a vector */

typedef float vf __attribute__((vector_size(DT_SIMD / 8)));
typedef int32_t vi __attribute__((vector_size(DT_SIMD / 8)));
typedef uint32_t vu __attribute__((vector_size(DT_SIMD / 8)));
typedef uint16_t vh __attribute__((vector_size(DT_SIMD / 16)));

static inline vf vf_set(float x)
{
    return x - (vf){ 0 };
}

static inline vf vf_load(const float *p)
{
    vf v;

    memcpy(&v, p, sizeof v);
    return v;
}

static inline void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

static inline vf vf_select(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* a b + c, rounded once where the machine can, twice where it cannot. */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if DT_SIMD == 512
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif DT_SIMD == 256
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* The larger, the smaller; b if either is NaN. */
static inline vf vf_max(vf a, vf b)
{
#if DT_SIMD == 512
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif DT_SIMD == 256
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vf_select(a > b, a, b);
#endif
}

static inline vf vf_min(vf a, vf b)
{
#if DT_SIMD == 512
    return (vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif DT_SIMD == 256
    return (vf)_mm256_min_ps((__m256)a, (__m256)b);
#else
    return vf_select(a < b, a, b);
#endif
}

/* Sum of the lanes, by halves: lane i with lane i + VW / 2, and so on. */
static inline float vf_sum(vf v)
{
#if DT_SIMD == 128
    return (v[0] + v[2]) + (v[1] + v[3]);
#else
#if DT_SIMD == 512
    const __m256 h =
        _mm256_add_ps(_mm512_castps512_ps256((__m512)v), _mm512_extractf32x8_ps((__m512)v, 1));
#else
    const __m256 h = (__m256)v;
#endif
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
#endif
}

static inline float vf_largest(vf v)
{
    float largest = v[0];

    for (int i = 1; i < VW; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

/* --- storage types ---------------------------------------------------------------------------- */

static inline vf vf_of_bf16(vh h)
{
    return (vf)(__builtin_convertvector(h, vu) << 16);
}

/* To nearest, ties to even; a NaN stays one. */
static inline vu bf16_bits(vf v)
{
    const vu u = (vu)v;
    const vu rounded = u + (0x7fffu + ((u >> 16) & 1u));
    const vu is_nan = (vu)((vi)(u & 0x7fffffffu) > 0x7f800000);

    return (is_nan & (u | 0x400000u)) | (~is_nan & rounded);
}

static inline vh bf16_of_vf(vf v)
{
    return __builtin_convertvector(bf16_bits(v) >> 16, vh);
}

static inline vf round_bf16(vf v)
{
    return (vf)(bf16_bits(v) & 0xffff0000u);
}

static inline vf vf_of_f16(vh h)
{
#if DT_SIMD == 512
    return (vf)_mm512_cvtph_ps((__m256i)h);
#elif DT_SIMD == 256
    return (vf)_mm256_cvtph_ps((__m128i)h);
#else
    vf v = { 0 };

    for (int i = 0; i < VW; i++) v[i] = dti_f16_to_f32(h[i]);
    return v;
#endif
}

static inline vh f16_of_vf(vf v)
{
#if DT_SIMD == 512
    return (vh)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif DT_SIMD == 256
    return (vh)_mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    vh h = { 0 };

    for (int i = 0; i < VW; i++) h[i] = dti_f32_to_f16(v[i]);
    return h;
#endif
}

static inline vf round_f16(vf v)
{
    return vf_of_f16(f16_of_vf(v));
}

/* `left` elements at most are read or written; the lanes beyond are zero. */
static inline vf load_f32(const float *p, int64_t left)
{
    vf v = { 0 };

    memcpy(&v, p, left >= VW ? sizeof v : (size_t)left * sizeof *p);
    return v;
}

static inline void store_f32(float *p, vf v, int64_t left)
{
    memcpy(p, &v, left >= VW ? sizeof v : (size_t)left * sizeof *p);
}

static inline vh load_half(const uint16_t *p, int64_t left)
{
    vh h = { 0 };

    memcpy(&h, p, left >= VW ? sizeof h : (size_t)left * sizeof *p);
    return h;
}

static inline void store_half(uint16_t *p, vh h, int64_t left)
{
    memcpy(p, &h, left >= VW ? sizeof h : (size_t)left * sizeof *p);
}

/* --- functions -------------------------------------------------------------------------------- */

/* e^x within 2 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r, and two powers of two so
 * that the ends of the range, where 2^n alone is no float, come out right. */
static inline vf vf_exp(vf x)
{
    const vf magic = vf_set(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    const vf c = vf_min(vf_set(90.0f), vf_max(vf_set(-105.0f), x));
    const vf t = vf_fma(c, vf_set(0x1.715476p0f), magic);
    const vi n = (vi)t - (vi)magic;
    const vi half = n >> 1;
    const vf whole = t - magic;
    /* ln 2 in two parts; the product with the first is exact */
    const vf r = vf_fma(whole, vf_set(-1.428606765330187045e-06f),
                        vf_fma(whole, vf_set(-0.693145751953125f), c));
    vf p = vf_set(0.000198527617612853646278381f);

    p = vf_fma(p, r, vf_set(0.00139304355252534151077271f));
    p = vf_fma(p, r, vf_set(0.00833336077630519866943359f));
    p = vf_fma(p, r, vf_set(0.0416664853692054748535156f));
    p = vf_fma(p, r, vf_set(0.166666671633720397949219f));
    p = vf_fma(p, r, vf_set(0.5f));
    p = vf_fma(p, r * r, r) + 1.0f;
    return p * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
}

/* tanh x within 3 ulp: an odd polynomial near zero (Cephes), 1 - 2 / (e^2x + 1) elsewhere. */
static inline vf vf_tanh(vf x)
{
    const vf a = (vf)((vi)x & 0x7fffffff);
    const vi sign = (vi)x & INT32_MIN;
    const vf z = x * x;
    const vf far = 1.0f - 2.0f / (vf_exp(a + a) + 1.0f);
    vf p = vf_set(-5.70498872745e-3f);

    p = vf_fma(p, z, vf_set(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set(-3.33332819422e-1f));
    return vf_select(a < 0.625f, vf_fma(p * z, x, x), (vf)((vi)far | sign));
}

static inline vf vf_silu(vf x)
{
    return x / (1.0f + vf_exp(-x));
}
