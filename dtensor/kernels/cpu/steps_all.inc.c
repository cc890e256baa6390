/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of an optimizer's step with the vectors of one instruction set. Before including,
 * define DT_SIMD, and DT_STEPS, the name of the table. */
#include "dtensor/kernels/cpu/cpu_steps.h"
#include "dtensor/kernels/cpu/philox.inc.c"

#define INLINE  static inline __attribute__((always_inline))
#define FORMULA INLINE
#define V       vf
#define SQRT(x) vf_sqrt(x)
#include "dtensor/kernels/step_elements.inc.c"

/* --- rounding by a uniform number, the upper 16 bits of a word -------------------------------- */

/* Towards zero, after adding what is below one unit of 2^bits: so much of the distance to the next.
 * Infinities and NaNs stay. */
INLINE vf shaken(vf v, vu word, int bits)
{
    const vu all = (vu)v, more = word >> (32 - bits);
    const vi finite = (vi)(all & 0x7f800000u) != 0x7f800000;

    return vf_select(finite, (vf)((all + more) & (0u - (1u << bits))), v);
}

/* Below 2^-14 neighbours of f16 lie 2^-24 apart, whatever the exponent is. */
INLINE vf shaken_f16(vf v, vu word)
{
    const vf size = (vf)((vu)v & 0x7fffffffu);
    const vf scaled = vf_select(size < 0x1p-14f, size, vf_set(0.0f)) * 0x1p24f;
    const vf whole = __builtin_convertvector(__builtin_convertvector(scaled, vi), vf);
    const vf u = __builtin_convertvector((vi)(word >> 8), vf) * 0x1p-24f;
    const vf up = vf_select(u < scaled - whole, vf_set(0x1p-24f), vf_set(0.0f));
    const vf small = (vf)((vu)(whole * 0x1p-24f + up) | ((vu)v & 0x80000000u));

    return vf_select(size < 0x1p-14f, small, shaken(v, word, 13));
}

enum { HALF = DTI_SHAKES / 2, VECTORS = HALF / VW };

/* The words of elements that share them (dti_shake()), in order: those of group number `group`. */
INLINE void draw(const rounds *key, int64_t group, vu w[VECTORS])
{
    for (int i = 0; i < VECTORS; i += 4) {
        vf z[4];
        philox(key, DTI_SHAKE_ROUNDS, (uint64_t)(group * (DTI_SHAKES / 8) + i * VW / 4), w + i);
        memcpy(z, w + i, sizeof z);
        transpose(z);
        memcpy(w + i, z, sizeof z);
    }
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

INLINE void store_param(const dti_step_run *r, kind k, vf p, vu word, int64_t i, int64_t left)
{
    if (k.master) store_f32(r->master + i, p, left);
    if (k.dtype == DT_F32) {
        store_f32((float *)r->p + i, p, left);
        return;
    }
    if (k.stochastic) p = k.dtype == DT_BF16 ? shaken(p, word, 16) : shaken_f16(p, word);
    store_half((uint16_t *)r->p + i, k.dtype == DT_BF16 ? bf16_of_vf(p) : f16_of_vf(p), left);
}

/* Elements i .. i + left - 1, at most a vector of them, and their words. */
typedef void (*part_fn)(const void *attr, const dti_step_run *r, kind k, vu word, int64_t i,
                        int64_t left);

INLINE void adamw_part(const void *attr, const dti_step_run *r, kind k, vu word, int64_t i,
                       int64_t left)
{
    vf m = load_f32(r->first + i, left), v = load_f32(r->second + i, left);
    vf p = load_param(r, k, i, left);

    adamw_element(attr, load_f32(r->g + i, left), &m, &v, &p);
    store_f32(r->first + i, m, left);
    store_f32(r->second + i, v, left);
    store_param(r, k, p, word, i, left);
}

INLINE void sgd_part(const void *attr, const dti_step_run *r, kind k, vu word, int64_t i,
                     int64_t left)
{
    const dti_sgd_attr *a = attr;
    vf b = { 0 }, p = load_param(r, k, i, left);

    if (a->has_momentum && !a->first) b = load_f32(r->first + i, left);
    sgd_element(a, load_f32(r->g + i, left), &b, &p);
    if (a->has_momentum) store_f32(r->first + i, b, left);
    store_param(r, k, p, word, i, left);
}

/* Elements i .. i + n - 1, which lie in one group. */
INLINE void few_shaken(part_fn part, const void *attr, const dti_step_run *r, const rounds *key,
                       kind k, int64_t i, int64_t n)
{
    const int64_t at = r->global + i;
    float words[DTI_SHAKES + VW] = { 0 };
    vu w[2 * VECTORS];

    if (n == 0) return;
    draw(key, at / DTI_SHAKES, w);
    for (int j = 0; j < VECTORS; j++) w[VECTORS + j] = w[j] << 16;
    memcpy(words, w, sizeof w);
    for (int64_t j = 0; j < n; j += VW)
        part(attr, r, k, (vu)vf_load(words + at % DTI_SHAKES + j), i + j, n - j < VW ? n - j : VW);
}

/* The next words are drawn while a part divides. Where this ends. */
INLINE int64_t all_shaken(part_fn part, const void *attr, const dti_step_run *r, kind k)
{
    const rounds key = rounds_of(*r->key);
    int64_t i = -r->global & (DTI_SHAKES - 1);
    vu w[VECTORS], next[VECTORS];

    if (i > r->n) i = r->n;
    few_shaken(part, attr, r, &key, k, 0, i);
    draw(&key, (r->global + i) / DTI_SHAKES, w);
    for (; i + DTI_SHAKES <= r->n; i += DTI_SHAKES) {
        draw(&key, (r->global + i) / DTI_SHAKES + 1, next);
        for (int j = 0; j < VECTORS; j++) part(attr, r, k, w[j], i + j * VW, VW);
        for (int j = 0; j < VECTORS; j++) part(attr, r, k, w[j] << 16, i + HALF + j * VW, VW);
        memcpy(w, next, sizeof w);
    }
    few_shaken(part, attr, r, &key, k, i, r->n - i);
    return r->n;
}

INLINE void step_of(part_fn part, const void *attr, const dti_step_run *r, kind k)
{
    int64_t i = k.stochastic ? all_shaken(part, attr, r, k) : 0;

    for (; i + VW <= r->n; i += VW) part(attr, r, k, (vu){ 0 }, i, VW);
    if (i < r->n) part(attr, r, k, (vu){ 0 }, i, r->n - i);
}

#define BY_KIND(part, a, r)                                       \
    switch ((r)->dtype) {                                         \
    case DT_F32:                                                  \
        step_of(part, a, r, (kind){ DT_F32, false, false });      \
        return;                                                   \
    case DT_BF16:                                                 \
        if ((r)->master != NULL)                                  \
            step_of(part, a, r, (kind){ DT_BF16, true, false });  \
        else if ((r)->key != NULL)                                \
            step_of(part, a, r, (kind){ DT_BF16, false, true });  \
        else                                                      \
            step_of(part, a, r, (kind){ DT_BF16, false, false }); \
        return;                                                   \
    default:                                                      \
        if ((r)->master != NULL)                                  \
            step_of(part, a, r, (kind){ DT_F16, true, false });   \
        else if ((r)->key != NULL)                                \
            step_of(part, a, r, (kind){ DT_F16, false, true });   \
        else                                                      \
            step_of(part, a, r, (kind){ DT_F16, false, false });  \
    }

static void adamw(const dti_adamw_attr *a, const dti_step_run *r)
{
    BY_KIND(adamw_part, a, r)
}

static void sgd(const dti_sgd_attr *a, const dti_step_run *r)
{
    BY_KIND(sgd_part, a, r)
}

/* --- sums of squares -------------------------------------------------------------------------- */

/* Three levels of doubles. Level 0 adds squares to 2^room, so what is cut off lies below a fixed
 * unit as long as the sum stays below twice that; level 1 adds what was cut off in the same way, to
 * a unit some 44 bits below, and level 2, where that cuts off anything, to one that is as far below
 * again. Sums are whole multiples of these units, which the differences of their bits count; what
 * level 2 cuts off, of values some 2^40 times smaller than most, goes to the digits one by one.
 * Nothing is rounded away, so neither order nor vectors matter. */
enum {
    LEVELS = 3,
    CHAINS = 4,   /* sums that do not wait for each other */
    VD = VW / 2,  /* doubles in a vector */
    BLOCK = 4096, /* values between two looks at the sums */
    COUNT_BITS = DT_SIMD == 512   ? 7
                 : DT_SIMD == 256 ? 8
                                  : 9, /* ld of additions to a sum */
    BLOCKS = 32                        /* that differences of bits may count */
};

typedef float vs __attribute__((vector_size(DT_SIMD / 16)));
typedef double vd __attribute__((vector_size(DT_SIMD / 8)));
typedef int64_t vl __attribute__((vector_size(DT_SIMD / 8)));

/* A sum of each level. */
typedef struct chain {
    vd level0, level1, level2;
} chain;

typedef struct squares {
    int room;
    chain begin;
    vl more[LEVELS]; /* multiples of the units since they were written down */
    int blocks;
    int slow;   /* parts of this block that level 1 cut off from */
    int steady; /* blocks whose parts go to level 2 unasked: a branch would be guessed wrong */
    bool rare;  /* of this block, in `few` */
    int64_t few[DTI_DIGITS];
} squares;

INLINE vd vd_set(double x)
{
    return x - (vd){ 0 };
}

INLINE double power_of_2(int exponent)
{
    const int64_t bits = (int64_t)(exponent + 1023) << 52;
    double x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Of |x|, 2^-1022 or more. */
INLINE int exponent_of(double x)
{
    int64_t bits;

    memcpy(&bits, &x, sizeof bits);
    return (int)(bits >> 52 & 0x7ff) - 1023;
}

/* The power of two that a level begins with; times 1.5 where its terms have signs. */
INLINE int level_of(const squares *s, int level)
{
    return s->room - level * (51 - COUNT_BITS);
}

/* Makes room for block sums of 2^exponent and some times that. */
static void make_room(squares *s, int exponent, int64_t *digits)
{
    for (int level = 0; level < LEVELS; level++) {
        int64_t all = 0;
        for (int i = 0; i < VD; i++) all += s->more[level][i];
        dti_digits_add(digits, all, level_of(s, level) - 52);
        s->more[level] = (vl){ 0 };
    }
    s->blocks = 0;
    s->room = exponent + 4;
    s->begin.level0 = vd_set(power_of_2(level_of(s, 0)));
    s->begin.level1 = vd_set(1.5 * power_of_2(level_of(s, 1)));
    s->begin.level2 = vd_set(1.5 * power_of_2(level_of(s, 2)));
}

/* gcc 12 converts lane by lane where it is asked in C. */
INLINE vd doubles_of(vs x)
{
#if DT_SIMD == 512
    return (vd)_mm512_cvtps_pd((__m256)x);
#elif DT_SIMD == 256
    return (vd)_mm256_cvtps_pd((__m128)x);
#else
    return __builtin_convertvector(x, vd);
#endif
}

/* a b + c, where a b is exact. */
INLINE vd vd_fma(vd a, vd b, vd c)
{
#if DT_SIMD == 512
    return (vd)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#elif DT_SIMD == 256
    return (vd)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
#else
    return a * b + c;
#endif
}

/* *sum += x; what is cut off. */
INLINE vd add_to(vd *sum, vd x)
{
    const vd before = *sum;

    *sum = before + x;
    return x - (*sum - before);
}

/* Adds squares to levels 0 and 1; what these cut off. */
INLINE vd add_squares(chain *c, const float *x)
{
    const vd before = c->level0;
    vs part;

    memcpy(&part, x, sizeof part);
    const vd v = doubles_of(part);
    c->level0 = vd_fma(v, v, before);
    return add_to(&c->level1, vd_fma(v, v, before - c->level0));
}

/* NaN if any is. */
static double largest_of(vd a, vd b, vd c, vd d)
{
    const vd sums[CHAINS] = { a, b, c, d };
    double largest = 0.0;

    for (int k = 0; k < CHAINS; k++)
        for (int i = 0; i < VD; i++) {
            if (sums[k][i] != sums[k][i]) return NAN;
            if (sums[k][i] > largest) largest = sums[k][i];
        }
    return largest;
}

/* Whether all sums had room, so that what they cut off is exact. NaNs had none. */
INLINE bool had_room(const squares *s, double largest)
{
    return largest < power_of_2(s->room + 1);
}

INLINE bool vd_any(vd a, vd b, vd c, vd d)
{
    return vi_any(((vi)a | (vi)b | (vi)c | (vi)d) & 0x7fffffff);
}

static void keep_rare(squares *s, vd a, vd b, vd c, vd d)
{
    const vd rest[CHAINS] = { a, b, c, d };

    if (!s->rare) memset(s->few, 0, sizeof s->few);
    s->rare = true;
    for (int k = 0; k < CHAINS; k++)
        for (int i = 0; i < VD; i++)
            if (rest[k][i] != 0.0) dti_digits_add_double(s->few, rest[k][i]);
}

/* Adds CHAINS * VD values. */
INLINE void add_part(squares *s, chain *a, chain *b, chain *c, chain *d, const float *x,
                     bool steady)
{
    vd ra = add_squares(a, x), rb = add_squares(b, x + VD);
    vd rc = add_squares(c, x + 2 * VD), rd = add_squares(d, x + 3 * VD);

    if (!steady && !vd_any(ra, rb, rc, rd)) return;
    s->slow++;
    ra = add_to(&a->level2, ra);
    rb = add_to(&b->level2, rb);
    rc = add_to(&c->level2, rc);
    rd = add_to(&d->level2, rd);
    if (vd_any(ra, rb, rc, rd) &&
        had_room(s, largest_of(a->level0, b->level0, c->level0, d->level0)))
        keep_rare(s, ra, rb, rc, rd);
}

/* What a chain has counted since it began. */
INLINE void count_chain(squares *s, const chain *c)
{
    s->more[0] += (vl)c->level0 - (vl)s->begin.level0;
    s->more[1] += (vl)c->level1 - (vl)s->begin.level1;
    s->more[2] += (vl)c->level2 - (vl)s->begin.level2;
}

INLINE double squares_of_kind(squares *s, const float *x, int64_t n, bool steady)
{
    chain a = s->begin, b = a, c = a, d = a;
    double largest;
    int64_t i = 0;

    s->rare = false;
    s->slow = 0;
    for (; i + CHAINS * VD <= n; i += CHAINS * VD) add_part(s, &a, &b, &c, &d, x + i, steady);
    if (i < n) {
        float last[CHAINS * VD] = { 0 };
        memcpy(last, x + i, (size_t)(n - i) * sizeof *x);
        add_part(s, &a, &b, &c, &d, last, steady);
    }
    largest = largest_of(a.level0, b.level0, c.level0, d.level0);
    if (!had_room(s, largest)) return largest;
    count_chain(s, &a);
    count_chain(s, &b);
    count_chain(s, &c);
    count_chain(s, &d);
    return largest;
}

/* Adds n <= BLOCK values, if there is room; the largest sum. */
static double squares_of_block(squares *s, const float *x, int64_t n)
{
    double largest;

    if (s->steady > 0) {
        s->steady--;
        return squares_of_kind(s, x, n, true);
    }
    largest = squares_of_kind(s, x, n, false);
    if (s->slow * CHAINS * VD > BLOCK / 8) s->steady = BLOCKS;
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

/* Adds x[first .. first + n - 1]. */
static void squares_run(const float *x, int64_t first, int64_t n, dti_found_squares *sum)
{
    squares s = { 0 };

    make_room(&s, DTI_DIGITS_LOWEST, sum->digits);
    for (const int64_t end = first + n; first < end; first += BLOCK) {
        const int64_t count = end - first < BLOCK ? end - first : BLOCK;
        double largest = squares_of_block(&s, x + first, count);
        if (!isfinite(largest)) {
            squares_one_by_one(x, first, count, sum);
            continue;
        }
        if (!had_room(&s, largest)) {
            make_room(&s, exponent_of(largest), sum->digits);
            largest = squares_of_block(&s, x + first, count);
        }
        for (int d = 0; s.rare && d < DTI_DIGITS; d++) sum->digits[d] += s.few[d];
        largest -= power_of_2(s.room);
        if (++s.blocks == BLOCKS || (largest > 0.0 && exponent_of(largest) < s.room - 12))
            make_room(&s, largest > 0.0 ? exponent_of(largest) : s.room - 4, sum->digits);
    }
    make_room(&s, 0, sum->digits);
}

const dti_step_ops DT_STEPS = { .adamw = adamw, .sgd = sgd, .squares = squares_run };
