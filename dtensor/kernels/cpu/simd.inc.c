/* SPDX-License-Identifier: Apache-2.0
 *
 * A vector of DT_SIMD bits of floats (128, 256 or 512), written with the vector types of gcc and
 * clang; intrinsics only where those have no word for it. Included by files of one instruction set,
 * so every function is static. DT_SIMD 128 is portable: it needs nothing beyond C. */
#include <math.h>
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

/* Sum of the lanes. Groups of four first, (0 + 2) + (1 + 3); then the groups, by halves. */
static inline float vf_sum(vf v)
{
#if DT_SIMD == 128
    return (v[0] + v[2]) + (v[1] + v[3]);
#elif DT_SIMD == 256
    const __m256 t = _mm256_add_ps((__m256)v, _mm256_permute_ps((__m256)v, 0x4e));
    const __m256 u = _mm256_add_ps(t, _mm256_permute_ps(t, 0xb1));

    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(u), _mm256_extractf128_ps(u, 1)));
#else
    const __m512 t = _mm512_add_ps((__m512)v, _mm512_permute_ps((__m512)v, 0x4e));
    const __m512 u = _mm512_add_ps(t, _mm512_permute_ps(t, 0xb1));
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(u), _mm512_extractf32x8_ps(u, 1));

    return _mm_cvtss_f32(_mm_add_ss(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
#endif
}

/* Four sums at once, each the bits of vf_sum(): a third of the instructions. */
static inline void vf_sum4(float sums[4], vf a, vf b, vf c, vf d)
{
#if DT_SIMD == 128
    sums[0] = vf_sum(a);
    sums[1] = vf_sum(b);
    sums[2] = vf_sum(c);
    sums[3] = vf_sum(d);
#elif DT_SIMD == 256
    const __m256 ab = _mm256_add_ps(_mm256_unpacklo_ps((__m256)a, (__m256)b),
                                    _mm256_unpackhi_ps((__m256)a, (__m256)b));
    const __m256 cd = _mm256_add_ps(_mm256_unpacklo_ps((__m256)c, (__m256)d),
                                    _mm256_unpackhi_ps((__m256)c, (__m256)d));
    const __m256 all =
        _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xee));

    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
#else
    const __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps((__m512)a, (__m512)b),
                                    _mm512_unpackhi_ps((__m512)a, (__m512)b));
    const __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps((__m512)c, (__m512)d),
                                    _mm512_unpackhi_ps((__m512)c, (__m512)d));
    const __m512 all =
        _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 h = _mm256_add_ps(_mm512_castps512_ps256(all), _mm512_extractf32x8_ps(all, 1));

    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
#endif
}

static inline float vf_largest(vf v)
{
#if DT_SIMD == 512
    return _mm512_reduce_max_ps((__m512)v);
#else
    float largest = v[0];

    for (int i = 1; i < VW; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
#endif
}

/* Whether any lane has a bit. */
static inline bool vi_any(vi v)
{
#if DT_SIMD == 512
    return _mm512_test_epi32_mask((__m512i)v, (__m512i)v) != 0;
#elif DT_SIMD == 256
    return _mm256_testz_si256((__m256i)v, (__m256i)v) == 0;
#else
    uint64_t words[VW / 2], any = 0;

    memcpy(words, &v, sizeof v);
    for (int i = 0; i < VW / 2; i++) any |= words[i];
    return any != 0;
#endif
}

/* --- storage types ---------------------------------------------------------------------------- */

/* Widening and narrowing of 16-bit words; gcc 12 splits the general form in two. */
static inline vu widen(vh h)
{
#if DT_SIMD == 512
    return (vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif DT_SIMD == 256
    return (vu)_mm256_cvtepu16_epi32((__m128i)h);
#else
    return __builtin_convertvector(h, vu);
#endif
}

static inline vh narrow(vu u)
{
#if DT_SIMD == 512
    return (vh)_mm512_cvtepi32_epi16((__m512i)u);
#elif DT_SIMD == 256
    const __m256i packed = _mm256_packus_epi32((__m256i)u, (__m256i)u);

    return (vh)_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08));
#else
    return __builtin_convertvector(u, vh);
#endif
}

static inline vf vf_of_bf16(vh h)
{
    return (vf)(widen(h) << 16);
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
    return narrow(bf16_bits(v) >> 16);
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
    return (vh)_mm512_maskz_cvtps_ph((__mmask16)0xffff, (__m512)v,
                                     _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
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

/* `left` elements at most are read or written; the lanes beyond are zero. Whole vectors have a
 * branch of their own, because a copy of variable length is a function call. */
static inline vf load_f32(const float *p, int64_t left)
{
    vf v = { 0 };

    if (left >= VW) return vf_load(p);
    memcpy(&v, p, (size_t)left * sizeof *p);
    return v;
}

static inline void store_f32(float *p, vf v, int64_t left)
{
    if (left >= VW)
        vf_store(p, v);
    else
        memcpy(p, &v, (size_t)left * sizeof *p);
}

static inline vh load_half(const uint16_t *p, int64_t left)
{
    vh h = { 0 };

    if (left >= VW)
        memcpy(&h, p, sizeof h);
    else
        memcpy(&h, p, (size_t)left * sizeof *p);
    return h;
}

static inline void store_half(uint16_t *p, vh h, int64_t left)
{
    if (left >= VW)
        memcpy(p, &h, sizeof h);
    else
        memcpy(p, &h, (size_t)left * sizeof *p);
}

/* --- functions -------------------------------------------------------------------------------- */

/* v 2^n for whole n. Without an instruction: two powers of two, since 2^n alone may be no float
 * where the product is one. `bits` holds n in its low bits, above those of `magic`. */
static inline vf vf_scale(vf v, vf whole, vf bits, vf magic)
{
#if DT_SIMD == 512
    (void)bits, (void)magic;
    return (vf)_mm512_scalef_ps((__m512)v, (__m512)whole);
#else
    const vi n = (vi)bits - (vi)magic, half = n >> 1;

    (void)whole;
    return v * (vf)((half + 127) << 23) * (vf)((n - half + 127) << 23);
#endif
}

/* e^x within 1 ulp: x = n ln 2 + r, |r| <= ln 2 / 2, a polynomial in r, times 2^n. */
static inline vf vf_exp(vf x)
{
    const vf magic = vf_set(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    const vf c = vf_min(vf_set(90.0f), vf_max(vf_set(-105.0f), x));
    const vf t = vf_fma(c, vf_set(0x1.715476p0f), magic);
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
    return vf_scale(p, whole, t, magic);
}

/* tanh x within 1.5 ulp: an odd polynomial near zero (Cephes), 1 - 2 / (e^2x + 1) elsewhere. */
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

/* dti_ln_f32() (kernels/random.h), operation by operation. */
static inline vf vf_ln(vf x, vi down)
{
    const vu bits = (vu)x + (0x3f800000u - 0x3f3504f3u); /* sqrt(1/2) <= m < sqrt(2) */
    const vf e = __builtin_convertvector((vi)(bits >> 23) - 127 - down, vf);
    const vf m = (vf)((bits & 0x007fffffu) + 0x3f3504f3u) - 1.0f, z = m * m;
    vf y = m * 7.0376836292e-2f - 1.1514610310e-1f;

    y = y * m + 1.1676998740e-1f;
    y = y * m - 1.2420140846e-1f;
    y = y * m + 1.4249322787e-1f;
    y = y * m - 1.6668057665e-1f;
    y = y * m + 2.0000714765e-1f;
    y = y * m - 2.4999993993e-1f;
    y = y * m + 3.3333331174e-1f;
    y = y * m * z;
    y = y - e * 2.12194440e-4f;
    y = y - z * 0.5f;
    return (m + y) + e * 0.693359375f;
}

/* ln x within 1 ulp; -inf of zeros, NaN of what is below. */
static inline vf vf_log(vf x)
{
    const vi tiny = (x < 0x1p-126f) & (x > 0.0f);
    vf y = vf_ln(vf_select(tiny, x * 0x1p24f, x), tiny & 24);

    y = vf_select(x > 0.0f, y, vf_select(x == 0.0f, vf_set(-INFINITY), vf_set(NAN)));
    return vf_select((x != x) | (x == INFINITY), x, y);
}

static inline vf vf_sqrt(vf x)
{
#if DT_SIMD == 512
    return (vf)_mm512_sqrt_ps((__m512)x);
#elif DT_SIMD == 256
    return (vf)_mm256_sqrt_ps((__m256)x);
#else
    for (int i = 0; i < VW; i++) x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* erf x within 1.5 ulp (N. Juffa): an odd polynomial near zero, 1 - e^-p elsewhere. */
static inline vf vf_erf(vf x)
{
    const vf t = vf_min(vf_set(8.0f), (vf)((vi)x & 0x7fffffff)), s = t * t;
    vf p = vf_fma(t, vf_set(-1.72853470e-5f), vf_set(3.83197126e-4f));
    vf q = vf_fma(s, vf_set(-5.96761703e-4f), vf_set(4.99119423e-3f));

    p = vf_fma(p, s, vf_fma(t, vf_set(-3.88396438e-3f), vf_set(2.42546219e-2f)));
    p = vf_fma(p, t, vf_set(-1.06777877e-1f));
    p = vf_fma(p, t, vf_set(-6.34846687e-1f));
    p = vf_fma(p, t, vf_set(-1.28717512e-1f));
    p = 1.0f - vf_exp(vf_fma(p, t, -t));
    q = vf_fma(q, s, vf_set(-2.67681349e-2f));
    q = vf_fma(q, s, vf_set(1.12819925e-1f));
    q = vf_fma(q, s, vf_set(-3.76125336e-1f));
    q = vf_fma(q, s, vf_set(1.28379166e-1f));
    q = vf_fma(q, t, t);
    return (vf)((vi)vf_select(t > 0.927734375f, p, q) | ((vi)x & INT32_MIN));
}

static inline vf vf_silu(vf x)
{
    return x / (1.0f + vf_exp(-x));
}

static inline vf vf_gelu_tanh(vf x)
{
    const vf inner = (x + x * x * x * 0.044715f) * 0.79788456080286536f;

    return x * 0.5f * (1.0f + vf_tanh(inner));
}
