/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of gradients over one row: included by rows.inc.c, whose words T, LD, ST and FN it is
 * written with. All in f32, one rounding at the end. */

/* dx = dy times the slope at x: formulas.h */
#define F(name, formula, slope)                                                            \
    static void FN(name##_backward)(void *dx_, const void *dy_, const void *x_, int64_t n) \
    {                                                                                      \
        const T *dy = dy_, *at = x_;                                                       \
        T *dx = dx_;                                                                       \
                                                                                           \
        for (int64_t i = 0; i < n; i += VW) {                                              \
            const vf x = LD(at + i, n - i);                                                \
            ST(dx + i, LD(dy + i, n - i) * (slope), n - i);                                \
        }                                                                                  \
    }
DTI_CURVES(F)
#undef F

/* Of f(g) u: dg = dy u f'(g), du = dy f(g), f = silu and gelu_tanh. */
#define GATED(name, value, slope)                               \
    static void FN(name##_mul_backward)(const dti_gated_row *r) \
    {                                                           \
        const T *dy = r->dy, *g = r->g, *u = r->u;              \
        T *dg = r->dg, *du = r->du;                             \
                                                                \
        for (int64_t i = 0; i < r->n; i += VW) {                \
            const int64_t left = r->n - i;                      \
            const vf x = LD(g + i, left), d = LD(dy + i, left); \
            const vf by_u = d * LD(u + i, left);                \
            ST(du + i, d * (value), left);                      \
            ST(dg + i, by_u * (slope), left);                   \
        }                                                       \
    }
GATED(silu, SILU(x), DTI_SWISH_SLOPE(x, 1.0f))
GATED(gelu_tanh, GELU_TANH(x), DTI_GELU_TANH_SLOPE(x))
#undef GATED

/* Of y = cap tanh(x / cap): dx = dy (1 - (y / cap)^2) */
static void FN(soft_cap_backward)(void *dx_, const void *dy_, const void *y_, int64_t n, float cap)
{
    const T *dy = dy_, *y = y_;
    T *dx = dx_;

    for (int64_t i = 0; i < n; i += VW) {
        const vf t = LD(y + i, n - i) / cap;
        ST(dx + i, LD(dy + i, n - i) * (1.0f - t * t), n - i);
    }
}

/* Of y = h (w + plus) (+ b), h = (x - mean) scale, dh = dy (w + plus):
 *   dx = scale (dh - h mean(dh h) - mean(dh)), dw += dy h, db += dy
 * where `mean`s of x and dh are those of a layer norm and zeros of an RMS norm. */
static void FN(norm_backward)(const dti_norm_row *r)
{
    const T *dy = r->dy, *x = r->x, *w = r->w;
    const int64_t n = r->n;
    const float mean = r->centred ? FN(moment)(x, n, 0.0f, false) / (float)n : 0.0f;
    const float scale = 1.0f / sqrtf(FN(moment)(x, n, mean, true) / (float)n + r->eps);
    T *dx = r->dx;
    vf along = { 0 }, total = { 0 };
    float by_h, by_one;

    for (int64_t i = 0; i < n && (r->dw != NULL || r->db != NULL); i += VW) {
        const vf d = LD(dy + i, n - i), h = (LD(x + i, n - i) - mean) * scale;
        if (r->dw != NULL) store_f32(r->dw + i, load_f32(r->dw + i, n - i) + d * h, n - i);
        if (r->db != NULL) store_f32(r->db + i, load_f32(r->db + i, n - i) + d, n - i);
    }
    if (dx == NULL) return;
    for (int64_t i = 0; i < n; i += VW) {
        const vf dh = LD(dy + i, n - i) * (LD(w + i, n - i) + r->plus);
        along = vf_fma(dh, (LD(x + i, n - i) - mean) * scale, along);
        total += dh;
    }
    by_h = vf_sum(along) / (float)n;
    by_one = r->centred ? vf_sum(total) / (float)n : 0.0f;
    for (int64_t i = 0; i < n; i += VW) {
        const vf dh = LD(dy + i, n - i) * (LD(w + i, n - i) + r->plus);
        const vf h = (LD(x + i, n - i) - mean) * scale;
        ST(dx + i, (dh - h * by_h - by_one) * scale, n - i);
    }
}

/* Sum of e^(x - most), and of x. */
static float FN(exp_sum)(const void *x_, int64_t n, float most)
{
    const T *x = x_;
    vf sum = { 0 };

    for (int64_t i = 0; i < n; i += VW) {
        vf e = vf_exp(LD(x + i, n - i) - most);
        for (int64_t lane = n - i; lane < VW; lane++) e[lane] = 0.0f;
        sum += e;
    }
    return vf_sum(sum);
}

static float FN(total)(const void *x, int64_t n)
{
    return FN(moment)(x, n, 0.0f, false);
}

/* dx = e^(x - lse) of_softmax - of_each */
static void FN(softmax_slope)(void *dx_, const void *x_, int64_t n, const dti_softmax_slope *s)
{
    const T *x = x_;
    T *dx = dx_;

    for (int64_t i = 0; i < n; i += VW)
        ST(dx + i, vf_exp(LD(x + i, n - i) - s->lse) * s->of_softmax - s->of_each, n - i);
}
