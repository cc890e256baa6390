/* SPDX-License-Identifier: Apache-2.0
 *
 * Loops over one row, for one instruction set (simd.inc.c) and one dtype. Before including, define
 *   T            element type
 *   LD(p, left)  vector at p, at most `left` elements
 *   ST(p, v, left)
 *   RN(v)        v rounded to the dtype, as floats
 *   FN(name)     name of the function for this dtype */

/* y = x as floats */
static void FN(load)(float *y, const void *x_, int64_t n)
{
    const T *x = x_;

    for (int64_t i = 0; i < n; i += VW) store_f32(y + i, LD(x + i, n - i), n - i);
}

/* y = x rounded */
static void FN(store)(void *y_, const float *x, int64_t n)
{
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW) ST(y + i, load_f32(x + i, n - i), n - i);
}

static void FN(add)(void *y_, const void *x_, const void *z_, int64_t n)
{
    const T *x = x_, *z = z_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW) ST(y + i, LD(x + i, n - i) + LD(z + i, n - i), n - i);
}

static void FN(mul)(void *y_, const void *x_, const void *z_, int64_t n)
{
    const T *x = x_, *z = z_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW) ST(y + i, LD(x + i, n - i) * LD(z + i, n - i), n - i);
}

static void FN(sub)(void *y_, const void *x_, const void *z_, int64_t n)
{
    const T *x = x_, *z = z_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW) ST(y + i, LD(x + i, n - i) - LD(z + i, n - i), n - i);
}

static void FN(div)(void *y_, const void *x_, const void *z_, int64_t n)
{
    const T *x = x_, *z = z_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW) ST(y + i, LD(x + i, n - i) / LD(z + i, n - i), n - i);
}

/* Functions of one element: formulas.h */
static inline __attribute__((always_inline)) void FN(map)(void *y_, const void *x_, int64_t n,
                                                          vf (*formula)(vf))
{
    const T *x = x_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW) ST(y + i, formula(LD(x + i, n - i)), n - i);
}

#define F(name, formula, slope)                             \
    static inline vf FN(of_##name)(vf x)                    \
    {                                                       \
        return formula;                                     \
    }                                                       \
    static void FN(name)(void *y, const void *x, int64_t n) \
    {                                                       \
        FN(map)(y, x, n, FN(of_##name));                    \
    }
DTI_FORMULAS(F)
#undef F

/* y = silu(g) u, where silu(g) rounds, then the product */
static void FN(silu_mul)(void *y_, const void *g_, const void *u_, int64_t n)
{
    const T *g = g_, *u = u_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW)
        ST(y + i, RN(vf_silu(LD(g + i, n - i))) * LD(u + i, n - i), n - i);
}

/* y = gelu_tanh(g) u, where gelu_tanh(g) rounds, then the product */
static void FN(gelu_tanh_mul)(void *y_, const void *g_, const void *u_, int64_t n)
{
    const T *g = g_, *u = u_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW)
        ST(y + i, RN(vf_gelu_tanh(LD(g + i, n - i))) * LD(u + i, n - i), n - i);
}

/* y = cap tanh(x / cap), every operation rounds */
static void FN(soft_cap)(void *y_, const void *x_, int64_t n, float cap)
{
    const T *x = x_;
    T *y = y_;

    for (int64_t i = 0; i < n; i += VW)
        ST(y + i, RN(vf_tanh(RN(LD(x + i, n - i) / cap))) * cap, n - i);
}

/* Sum of (x[i] - shift)^p over the row, p = 1 or 2, in four vectors of f32: an order fixed by the
 * width of the vector, and errors of n / (4 VW) additions. */
static float FN(moment)(const T *x, int64_t n, float shift, bool square)
{
    vf sum[4] = { { 0 } };
    int64_t i = 0;

    for (; i + 4 * VW <= n; i += 4 * VW)
        for (int a = 0; a < 4; a++) {
            const vf v = LD(x + i + a * VW, VW) - shift;
            sum[a] = square ? vf_fma(v, v, sum[a]) : sum[a] + v;
        }
    for (; i + VW <= n; i += VW) {
        const vf v = LD(x + i, VW) - shift;
        sum[0] = square ? vf_fma(v, v, sum[0]) : sum[0] + v;
    }
    if (i < n) {
        vf v = LD(x + i, n - i) - shift;
        for (int64_t lane = n - i; lane < VW; lane++) v[lane] = 0.0f;
        sum[0] = square ? vf_fma(v, v, sum[0]) : sum[0] + v;
    }
    return vf_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* h = x / sqrt(mean x^2 + eps) in f32, rounds; y = h w, rounds */
static void FN(rms_norm)(void *y_, const void *x_, const void *w_, int64_t n, float eps)
{
    const T *x = x_, *w = w_;
    T *y = y_;
    const float scale = 1.0f / sqrtf(FN(moment)(x, n, 0.0f, true) / (float)n + eps);

    for (int64_t i = 0; i < n; i += VW)
        ST(y + i, RN(LD(x + i, n - i) * scale) * LD(w + i, n - i), n - i);
}

/* y = x / sqrt(mean x^2 + eps) w in f32, rounds once */
static void FN(rms_norm_once)(void *y_, const void *x_, const void *w_, int64_t n, float eps)
{
    const T *x = x_, *w = w_;
    T *y = y_;
    const float scale = 1.0f / sqrtf(FN(moment)(x, n, 0.0f, true) / (float)n + eps);

    for (int64_t i = 0; i < n; i += VW)
        ST(y + i, LD(x + i, n - i) * scale * LD(w + i, n - i), n - i);
}

/* y = x / sqrt(mean x^2 + eps) (1 + w) in f32, rounds once */
static void FN(rms_norm_1p)(void *y_, const void *x_, const void *w_, int64_t n, float eps)
{
    const T *x = x_, *w = w_;
    T *y = y_;
    const float scale = 1.0f / sqrtf(FN(moment)(x, n, 0.0f, true) / (float)n + eps);

    for (int64_t i = 0; i < n; i += VW)
        ST(y + i, LD(x + i, n - i) * scale * (1.0f + LD(w + i, n - i)), n - i);
}

/* y = (x - mean) / sqrt(var + eps) w + b in f32, rounds once; var is the mean of (x - mean)^2 */
static void FN(layer_norm)(void *y_, const void *x_, const void *w_, const void *b_, int64_t n,
                           float eps)
{
    const T *x = x_, *w = w_, *b = b_;
    T *y = y_;
    const float mean = FN(moment)(x, n, 0.0f, false) / (float)n;
    const float scale = 1.0f / sqrtf(FN(moment)(x, n, mean, true) / (float)n + eps);

    for (int64_t i = 0; i < n; i += VW) {
        const vf h = (LD(x + i, n - i) - mean) * scale;
        ST(y + i, h * LD(w + i, n - i) + LD(b + i, n - i), n - i);
    }
}

/* y[i] = x[i] cos[i] - x[half + i] sin[i], y[half + i] = x[half + i] cos[i] + x[i] sin[i];
 * each product rounds, each sum rounds */
static void FN(rope)(void *y_, const void *x_, const void *table_, int64_t half)
{
    const T *x = x_, *table = table_;
    T *y = y_;

    for (int64_t i = 0; i < half; i += VW) {
        const int64_t left = half - i;
        const vf c = LD(table + i, left), s = LD(table + half + i, left);
        const vf a = LD(x + i, left), b = LD(x + half + i, left);
        ST(y + i, RN(a * c) - RN(b * s), left);
        ST(y + half + i, RN(b * c) + RN(a * s), left);
    }
}

/* Index of the first largest element; a NaN is larger than all. */
static int64_t FN(argmax)(const void *x_, int64_t n)
{
    const T *x = x_;
    vf best = vf_set(-INFINITY);
    vi nan = { 0 };
    float largest;

    for (int64_t i = 0; i < n; i += VW) {
        vf v = LD(x + i, n - i);
        for (int64_t lane = n - i; lane < VW; lane++) v[lane] = -INFINITY;
        nan |= v != v;
        best = vf_max(v, best);
    }
    for (int lane = 0; lane < VW; lane++)
        if (nan[lane] != 0) {
            for (int64_t i = 0; i < n; i++)
                if (isnan(LD(x + i, 1)[0])) return i;
        }
    largest = vf_largest(best);
    for (int64_t i = 0; i < n; i++)
        if (LD(x + i, 1)[0] == largest) return i;
    return 0;
}

/* Index of the first element that is above a limit or a NaN, n if there is none. Most rows have few
 * of them: whole blocks are passed over. */
static int64_t FN(above)(const void *x_, int64_t n, float limit)
{
    enum { BLOCK = 8 * VW };
    const T *x = x_;
    const vf most = vf_set(limit);
    int64_t i = 0;

    for (; i + BLOCK <= n; i += BLOCK) {
        vi found = { 0 };
        for (int64_t k = i; k < i + BLOCK; k += VW) found |= ~(LD(x + k, VW) <= most);
        if (vi_any(found)) break;
    }
    for (; i < n; i += VW) {
        const vi found = ~(LD(x + i, n - i) <= most);
        if (!vi_any(found)) continue;
        for (int64_t lane = 0; lane < VW && lane < n - i; lane++)
            if (found[lane] != 0) return i + lane;
    }
    return n;
}

#include "dtensor/kernels/cpu/rows_backward.inc.c"

#undef T
#undef LD
#undef ST
#undef RN
#undef FN
