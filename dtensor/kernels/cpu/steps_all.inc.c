/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of an optimizer's step with the vectors of one instruction set. Before including,
 * define DT_SIMD, and DT_STEPS, the name of the table. */
#include "dtensor/kernels/cpu/cpu_steps.h"
#include "dtensor/kernels/cpu/simd.inc.c"

#define INLINE  static inline __attribute__((always_inline))
#define FORMULA INLINE
#define V       vf
#define SQRT(x) vf_sqrt(x)
#include "dtensor/kernels/step_elements.inc.c"

/* --- rounding by a uniform number ------------------------------------------------------------- */

/* Towards zero, after adding what is below one unit: u of the distance to the next. Infinities and
 * NaNs stay. */
INLINE vf shaken(vf v, vf u, uint32_t units)
{
    const vu bits = (vu)v;
    const vu more = (vu) __builtin_convertvector(u * (float)units, vi);
    const vi finite = (vi)(bits & 0x7f800000u) != 0x7f800000;

    return vf_select(finite, (vf)((bits + more) & (0u - units)), v);
}

/* Below 2^-14 neighbours of f16 lie 2^-24 apart, whatever the exponent is. */
INLINE vf shaken_f16(vf v, vf u)
{
    const vf size = (vf)((vu)v & 0x7fffffffu);
    const vf scaled = vf_select(size < 0x1p-14f, size, vf_set(0.0f)) * 0x1p24f;
    const vf whole = __builtin_convertvector(__builtin_convertvector(scaled, vi), vf);
    const vf up = vf_select(u < scaled - whole, vf_set(0x1p-24f), vf_set(0.0f));
    const vf small = (vf)((vu)(whole * 0x1p-24f + up) | ((vu)v & 0x80000000u));

    return vf_select(size < 0x1p-14f, small, shaken(v, u, 1u << 13));
}

/* --- steps ------------------------------------------------------------------------------------ */

/* What a loop is made for; all known when compiling. */
typedef struct kind {
    dt_dtype dtype;
    bool master, stochastic;
} kind;

INLINE vf load_param(const dti_step_run *r, kind k, int64_t i, int64_t left)
{
    if (k.master) return load_f32(r->master + i, left);
    if (k.dtype == DT_F32) return load_f32((const float *)r->p + i, left);
    const vh h = load_half((const uint16_t *)r->p + i, left);
    return k.dtype == DT_BF16 ? vf_of_bf16(h) : vf_of_f16(h);
}

INLINE void store_param(const dti_step_run *r, kind k, vf p, int64_t i, int64_t left)
{
    if (k.master) store_f32(r->master + i, p, left);
    if (k.dtype == DT_F32) {
        store_f32((float *)r->p + i, p, left);
        return;
    }
    if (k.stochastic) {
        const vf u = load_f32(r->u + i, left);
        p = k.dtype == DT_BF16 ? shaken(p, u, 1u << 16) : shaken_f16(p, u);
    }
    store_half((uint16_t *)r->p + i, k.dtype == DT_BF16 ? bf16_of_vf(p) : f16_of_vf(p), left);
}

INLINE void adamw_part(const dti_adamw_attr *a, const dti_step_run *r, kind k, int64_t i,
                       int64_t left)
{
    vf m = load_f32(r->first + i, left), v = load_f32(r->second + i, left);
    vf p = load_param(r, k, i, left);

    adamw_element(a, load_f32(r->g + i, left), &m, &v, &p);
    store_f32(r->first + i, m, left);
    store_f32(r->second + i, v, left);
    store_param(r, k, p, i, left);
}

INLINE void adamw_of(const dti_adamw_attr *a, const dti_step_run *r, kind k)
{
    int64_t i = 0;

    for (; i + VW <= r->n; i += VW) adamw_part(a, r, k, i, VW);
    if (i < r->n) adamw_part(a, r, k, i, r->n - i);
}

INLINE void sgd_part(const dti_sgd_attr *a, const dti_step_run *r, kind k, int64_t i, int64_t left)
{
    vf b = { 0 }, p = load_param(r, k, i, left);

    if (a->has_momentum && !a->first) b = load_f32(r->first + i, left);
    sgd_element(a, load_f32(r->g + i, left), &b, &p);
    if (a->has_momentum) store_f32(r->first + i, b, left);
    store_param(r, k, p, i, left);
}

INLINE void sgd_of(const dti_sgd_attr *a, const dti_step_run *r, kind k)
{
    int64_t i = 0;

    for (; i + VW <= r->n; i += VW) sgd_part(a, r, k, i, VW);
    if (i < r->n) sgd_part(a, r, k, i, r->n - i);
}

#define BY_KIND(step, a, r)                              \
    switch ((r)->dtype) {                                \
    case DT_F32:                                         \
        step(a, r, (kind){ DT_F32, false, false });      \
        return;                                          \
    case DT_BF16:                                        \
        if ((r)->master != NULL)                         \
            step(a, r, (kind){ DT_BF16, true, false });  \
        else if ((r)->u != NULL)                         \
            step(a, r, (kind){ DT_BF16, false, true });  \
        else                                             \
            step(a, r, (kind){ DT_BF16, false, false }); \
        return;                                          \
    default:                                             \
        if ((r)->master != NULL)                         \
            step(a, r, (kind){ DT_F16, true, false });   \
        else if ((r)->u != NULL)                         \
            step(a, r, (kind){ DT_F16, false, true });   \
        else                                             \
            step(a, r, (kind){ DT_F16, false, false });  \
    }

static void adamw(const dti_adamw_attr *a, const dti_step_run *r)
{
    BY_KIND(adamw_of, a, r)
}

static void sgd(const dti_sgd_attr *a, const dti_step_run *r)
{
    BY_KIND(sgd_of, a, r)
}

/* --- sums of squares -------------------------------------------------------------------------- */

/* Two levels of doubles: level 0 adds a square to a number so large that what is cut off lies below
 * a fixed unit, level 1 adds what was cut off in the same way, to a unit 44 bits below. Sums are
 * whole multiples of these units, which the differences of their bits count; what level 1 cuts off,
 * of values some 2^19 times smaller than the largest, goes to the digits one by one. Nothing is
 * rounded away, so neither order nor vectors matter. */
enum {
    BLOCK = 4096, /* values between two looks at the largest */
    VD = VW / 2,  /* doubles in a vector */
    CHAINS = 4,   /* sums that do not wait for each other */
    COUNT_BITS = DT_SIMD == 512   ? 7
                 : DT_SIMD == 256 ? 8
                                  : 9, /* ld of additions to a sum */
    BLOCKS = 32                        /* that their differences may count */
};

typedef float vs __attribute__((vector_size(DT_SIMD / 16)));
typedef double vd __attribute__((vector_size(DT_SIMD / 8)));
typedef int64_t vl __attribute__((vector_size(DT_SIMD / 8)));

typedef struct squares {
    int top;          /* values are below 2^top */
    int64_t begin[2]; /* bits that both levels begin with */
    vl more[2];       /* multiples of their units since they were written down */
    int blocks;
    bool rare; /* of this block, in `few` */
    int64_t few[DTI_DIGITS];
} squares;

INLINE double power_of_2(int exponent)
{
    const int64_t bits = (int64_t)(exponent + 1023) << 52;
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The power of two that level begins with, times 1.5: its sums keep their exponent. */
INLINE int level_of(const squares *s, int level)
{
    const int first = 2 * s->top + COUNT_BITS + 1;

    return level == 0 ? first : first - 52 + COUNT_BITS;
}

static void write_down(squares *s, int64_t *digits)
{
    for (int level = 0; level < 2; level++) {
        int64_t all = 0;
        for (int i = 0; i < VD; i++) all += s->more[level][i];
        dti_digits_add(digits, all, level_of(s, level) - 52);
        s->more[level] = (vl){ 0 };
    }
    s->blocks = 0;
}

static void set_top(squares *s, int top)
{
    s->top = top;
    for (int level = 0; level < 2; level++) {
        const double x = 1.5 * power_of_2(level_of(s, level));
        memcpy(&s->begin[level], &x, sizeof x);
    }
}

INLINE vd square_of(vs x, vd *sum, vd *below)
{
    const vd v = __builtin_convertvector(x, vd), square = v * v;
    vd next = *sum + square;
    vd rest = square - (next - *sum);

    *sum = next;
    next = *below + rest;
    rest = rest - (next - *below);
    *below = next;
    return rest;
}

/* The values of which this is the largest are below 2^top. */
INLINE int top_of(int32_t largest)
{
    return (largest >> 23) - 126;
}

INLINE int32_t vi_largest(vi v)
{
    int32_t largest = v[0];

    for (int i = 1; i < VW; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

INLINE vi vi_max(vi a, vi b)
{
    return (vi)vf_select(a > b, (vf)a, (vf)b);
}

/* most: the largest sizes of the block, as bits; past the top it begins again, and its sums mean
 * nothing. */
static void keep_rare(squares *s, const vd *rest, vi most)
{
    if (top_of(vi_largest(most)) > s->top) return;
    if (!s->rare) memset(s->few, 0, sizeof s->few);
    s->rare = true;
    for (int c = 0; c < CHAINS; c++)
        for (int i = 0; i < VD; i++)
            if (rest[c][i] != 0.0) dti_digits_add_double(s->few, rest[c][i]);
}

/* Adds CHAINS * VD values. */
INLINE void squares_of_part(squares *s, const float *x, vd sum[2][CHAINS], vi *most)
{
    vd rest[CHAINS];
    vs part[CHAINS];
    vi left;

    memcpy(part, x, sizeof part);
    for (int c = 0; c < CHAINS; c++) rest[c] = square_of(part[c], &sum[0][c], &sum[1][c]);
    for (int c = 0; c < CHAINS / 2; c++)
        *most = vi_max(*most, (vi)vf_load(x + c * VW) & 0x7fffffff);
    left = ((vi)rest[0] | (vi)rest[1] | (vi)rest[2] | (vi)rest[3]) & 0x7fffffff;
    if (vi_any(left)) keep_rare(s, rest, *most);
}

/* Adds n <= BLOCK values, if all are below 2^top; the bits of the largest. */
static int32_t squares_of_block(squares *s, const float *x, int64_t n)
{
    vd sum[2][CHAINS];
    vi most = { 0 };
    int32_t largest;
    int64_t i = 0;

    s->rare = false;
    for (int level = 0; level < 2; level++)
        for (int c = 0; c < CHAINS; c++) sum[level][c] = (vd)(s->begin[level] - (vl){ 0 });
    for (; i + CHAINS * VD <= n; i += CHAINS * VD) squares_of_part(s, x + i, sum, &most);
    if (i < n) {
        float last[CHAINS * VD] = { 0 };
        memcpy(last, x + i, (size_t)(n - i) * sizeof *x);
        squares_of_part(s, last, sum, &most);
    }
    largest = vi_largest(most);
    if (top_of(largest) > s->top) return largest;
    for (int level = 0; level < 2; level++)
        for (int c = 0; c < CHAINS; c++) s->more[level] += (vl)sum[level][c] - s->begin[level];
    return largest;
}

/* A block with values that are not finite. */
static void squares_one_by_one(const float *x, int64_t first, int64_t n, dti_found_squares *sum)
{
    for (int64_t i = first; i < first + n; i++) {
        if (isfinite(x[i])) {
            dti_digits_add_double(sum->digits, (double)x[i] * x[i]);
            continue;
        }
        if (sum->bad++ == 0) sum->first_bad = i;
    }
}

/* Makes room for values below 2^top, and for twice that. */
static void move_to(squares *s, int top, int64_t *digits)
{
    write_down(s, digits);
    set_top(s, top < 128 ? top + 1 : top);
}

/* Adds x[first .. first + n - 1]. */
static void squares_run(const float *x, int64_t first, int64_t n, dti_found_squares *sum)
{
    squares s = { 0 };

    set_top(&s, -126);
    for (const int64_t end = first + n; first < end; first += BLOCK) {
        const int64_t count = end - first < BLOCK ? end - first : BLOCK;
        const int32_t largest = squares_of_block(&s, x + first, count);
        if (largest >= 0x7f800000) {
            squares_one_by_one(x, first, count, sum);
            continue;
        }
        if (top_of(largest) > s.top) {
            move_to(&s, top_of(largest), sum->digits);
            (void)squares_of_block(&s, x + first, count);
        }
        for (int d = 0; s.rare && d < DTI_DIGITS; d++) sum->digits[d] += s.few[d];
        if (++s.blocks == BLOCKS || top_of(largest) < s.top - 4)
            move_to(&s, top_of(largest), sum->digits);
    }
    write_down(&s, sum->digits);
}

const dti_step_ops DT_STEPS = { .adamw = adamw, .sgd = sgd, .squares = squares_run };
