/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of an optimizer's step: the bits of a plain loop on every instruction set, and sums of
 * squares of an accumulator that adds bit by bit. */
#include "tests/dtensor/test_kernels.h"

#include <float.h>

#include "dtensor/kernels/cpu/cpu_internal.h"
#include "dtensor/optimize.h"

enum { MOST = 20000 };

static float float_of_bits(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

static const int64_t sizes[] = { 0, 1, 7, 31, 33, 250, 4099 };

/* --- on every instruction set, with 1, 2 and 3 threads ---------------------------------------- */

typedef void (*with_cpu_fn)(dti_cpu *cpu, void *arg);

static void with_each_cpu(with_cpu_fn fn, void *arg)
{
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (int t = 1; t <= KT_MAX_THREADS; t++) {
            dti_pool *pool;
            dti_cpu *cpu;
            DT_ASSERT_OK(dti_pool_create(t, false, NULL, NULL, &pool));
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, pool, &cpu));
            fn(cpu, arg);
            dti_cpu_destroy(&cpu);
            dti_pool_destroy(&pool);
        }
}

/* --- steps ------------------------------------------------------------------------------------ */

typedef enum rule { ADAMW, SGD, MOMENTUM, NESTEROV, N_RULES } rule;

/* g, p, m, v, master as a kernel has them; `p` holds what its dtype holds. */
typedef struct values {
    float g, p, m, v, master;
} values;

typedef struct step_case {
    rule rule;
    dt_dtype dtype;
    bool master, random;
    int64_t n;
    dti_adamw_attr adamw;
    dti_sgd_attr sgd;
    values *before, *want;
} step_case;

/* Written from the formulas of optimize.h, one rounding for each operation. */
static void plain_adamw(const dti_adamw_attr *a, float g, float *m, float *v, float *p)
{
    const float scaled = g * a->scale;
    const float away = scaled - *m;
    const float mean = a->lerp < 0.5f ? *m + away * a->lerp : scaled + away * (a->lerp - 1.0f);
    const float kept = *v * a->beta2, weighted = scaled * a->rest2, added = weighted * scaled;
    const float square = kept + added, root = sqrtf(square), ratio = root / a->root2;
    const float below = ratio + a->eps, shrunk = *p * a->decay, above = mean * a->step;
    const float change = above / below;

    *m = mean;
    *v = square;
    *p = shrunk + change;
}

static void plain_sgd(const dti_sgd_attr *a, float g, float *b, float *p)
{
    const float scaled = g * a->scale, decayed = *p * a->decay, kept = *b * a->momentum;
    float way = a->decay != 0.0f ? scaled + decayed : scaled;
    const float added = way * a->rest;

    if (a->has_momentum) {
        *b = a->first ? way : kept + added;
        const float ahead = *b * a->momentum;
        way = a->nesterov ? way + ahead : *b;
    }
    const float change = way * a->step;
    *p = *p + change;
}

/* Values of all sizes: none, subnormal ones, infinities and NaNs among them. */
static float any_value(uint32_t *state, int64_t i)
{
    static const float odd[] = { 0.0f, -0.0f, 1e-40f, -1e-45f, 3e38f, -2.5f, INFINITY, NAN };

    return i % 11 == 3 ? odd[i / 11 % 8] : (float)kt_value(KT_MIXED, state);
}

/* Rows of ROW of a parameter with rows of 100, from element 5 on; three elements come before. */
enum { ROW = 70, SKIPPED = 3 };

/* Of 128 elements the first 64 have upper halves of the words of 16 blocks, the others lower
 * ones. */
static uint32_t word_of(const step_case *c, int64_t i)
{
    const dt_random key = c->adamw.rounding.key;
    const int64_t global = 5 + (SKIPPED + i) / ROW * 100 + (SKIPPED + i) % ROW;
    const int64_t in_group = global % 128, number = in_group % 64;
    uint32_t w[4] = { (uint32_t)(global / 128 * 16 + number / 4), 0, (uint32_t)key.stream,
                      (uint32_t)(key.stream >> 32) };

    dti_philox_rounds(w, (uint32_t)key.seed, (uint32_t)(key.seed >> 32), 7);
    return in_group < 64 ? w[number % 4] >> 16 << 16 : w[number % 4] << 16;
}

/* Up as often as 16 random bits lie below the distance from the number below, in units. */
static float shaken(dt_dtype dtype, float x, uint32_t word)
{
    const uint32_t bits = dti_bits_of_float(x), units = dtype == DT_BF16 ? 1u << 16 : 1u << 13;
    const double size = fabs((double)x), u = (word >> 8) * 0x1p-24;
    double whole = floor(size * 0x1p24);

    if (!isfinite(x)) return x;
    if (dtype == DT_BF16 || size >= 0x1p-14)
        return float_of_bits((bits + (uint32_t)(u * units)) & (0u - units));
    whole += u < size * 0x1p24 - whole;
    return (float)copysign(whole * 0x1p-24, (double)x);
}

static void fill_case(step_case *c)
{
    uint32_t state = 77;

    for (int64_t i = 0; i < c->n; i++) {
        values *x = &c->before[i];
        *x = (values){ any_value(&state, i), (float)kt_value(KT_MIXED, &state),
                       any_value(&state, i + 5), fabsf(any_value(&state, i + 7)), 0.0f };
        x->master = x->p;
        x->p = (float)kt_round(c->dtype, (double)x->p);
        c->want[i] = *x;
        values *y = &c->want[i];
        float *p = c->master ? &y->master : &y->p;
        if (c->rule == ADAMW)
            plain_adamw(&c->adamw, y->g, &y->m, &y->v, p);
        else
            plain_sgd(&c->sgd, y->g, &y->m, p);
        if (c->random) *p = shaken(c->dtype, *p, word_of(c, i));
        y->p = (float)kt_round(c->dtype, (double)*p);
    }
}

static bool alike(float a, float b)
{
    return dti_bits_of_float(a) == dti_bits_of_float(b) || (isnan(a) && isnan(b));
}

static void expect_alike(const step_case *c, const dti_cpu *cpu, int64_t i, const char *what,
                         float got, float want)
{
    if (!alike(got, want))
        dt_test_fail(__FILE__, __LINE__, "%s of element %lld, rule %d, %s on %s: %.9g, not %.9g",
                     what, (long long)i, (int)c->rule, dt_dtype_name(c->dtype),
                     dti_isa_name(dti_cpu_isa(cpu)), (double)got, (double)want);
}

static void run_step_case(dti_cpu *cpu, void *arg)
{
    const step_case *c = arg;
    const bool adamw = c->rule == ADAMW, momentum = c->rule != SGD;
    dt_local in[5], *g = &in[0], *p = &in[1], *m = NULL, *v = NULL, *master = NULL;
    dt_kargs args = { .in = in, .out = in + 1, .cpu = cpu, .n_in = 2 };

    *g = kt_local(DT_F32, 1, &c->n);
    *p = kt_local(c->dtype, 1, &c->n);
    if (momentum) *(m = &in[args.n_in++]) = kt_local(DT_F32, 1, &c->n);
    if (adamw) *(v = &in[args.n_in++]) = kt_local(DT_F32, 1, &c->n);
    if (c->master) *(master = &in[args.n_in++]) = kt_local(DT_F32, 1, &c->n);
    args.n_out = args.n_in - 1;
    for (int64_t i = 0; i < c->n; i++) {
        const values *x = &c->before[i];
        dti_store_f32(g->data, DT_F32, i, x->g);
        dti_store_f32(p->data, c->dtype, i, x->p);
        if (m != NULL) dti_store_f32(m->data, DT_F32, i, x->m);
        if (v != NULL) dti_store_f32(v->data, DT_F32, i, x->v);
        if (master != NULL) dti_store_f32(master->data, DT_F32, i, x->master);
    }
    args.attr = adamw ? (const void *)&c->adamw : &c->sgd;
    DT_ASSERT_OK((adamw ? dti_adamw_cpu : dti_sgd_cpu)(&args));
    for (int64_t i = 0; i < c->n; i++) {
        const values *y = &c->want[i];
        expect_alike(c, cpu, i, "gradient", (float)kt_get(g, i), y->g);
        expect_alike(c, cpu, i, "parameter", (float)kt_get(p, i), y->p);
        if (m != NULL) expect_alike(c, cpu, i, "mean", (float)kt_get(m, i), y->m);
        if (v != NULL) expect_alike(c, cpu, i, "square", (float)kt_get(v, i), y->v);
        if (master != NULL) expect_alike(c, cpu, i, "master", (float)kt_get(master, i), y->master);
    }
    for (int i = 0; i < args.n_in; i++) kt_release(&in[i]);
}

static void run_step_cases(rule which, bool first, bool random)
{
    static values before[MOST], want[MOST];
    const dti_step_rounding rounding = { .stochastic = random,
                                         .key = { 0x123456789abcdef0u, 0xfedcba9876543210u },
                                         .where = {
                                             2, SKIPPED, 5, { MOST / ROW, ROW }, { 100, 1 } } };
    step_case c = { .rule = which, .random = random, .before = before, .want = want };

    c.adamw = (dti_adamw_attr){ .scale = 0.7f,
                                .decay = 0.999f,
                                .lerp = first ? 0.75f : 0.1f,
                                .beta2 = 0.95f,
                                .rest2 = 0.05f,
                                .root2 = 0.2236068f,
                                .eps = 1e-8f,
                                .step = -0.01f };
    c.sgd = (dti_sgd_attr){ .scale = 0.7f,
                            .decay = first ? 0.0f : 0.01f,
                            .momentum = 0.9f,
                            .rest = 0.8f,
                            .step = -0.1f,
                            .has_momentum = which != SGD,
                            .first = first,
                            .nesterov = which == NESTEROV };
    c.adamw.rounding = c.sgd.rounding = rounding;
    for (int t = random; t < 3; t++)
        for (int master = 0; master < (t == 0 || random ? 1 : 2); master++)
            for (size_t s = 0; s < DT_COUNT(sizes); s++) {
                c.dtype = kt_floats[t];
                c.master = c.sgd.has_master = master != 0;
                c.n = sizes[s];
                fill_case(&c);
                with_each_cpu(run_step_case, &c);
            }
}

DT_TEST(kernels_steps, adamw_has_the_bits_of_a_plain_loop)
{
    run_step_cases(ADAMW, false, false);
    run_step_cases(ADAMW, true, false);
}

DT_TEST(kernels_steps, sgd_has_the_bits_of_a_plain_loop)
{
    for (rule r = SGD; r < N_RULES; r++) {
        run_step_cases(r, false, false);
        run_step_cases(r, true, false);
    }
}

DT_TEST(kernels_steps, rounding_at_random_has_the_bits_of_a_plain_loop)
{
    run_step_cases(ADAMW, false, true);
    run_step_cases(MOMENTUM, false, true);
}

/* --- sums of squares -------------------------------------------------------------------------- */

/* A sum in base 2^16 that is added to with carries, digit by digit: 2^-298 and up. */
typedef struct long_sum {
    uint32_t digit[2 * DTI_DIGITS + 4];
} long_sum;

static void add_square(long_sum *sum, float x)
{
    const uint32_t bits = dti_bits_of_float(x);
    const int field = (int)(bits >> 23 & 0xff), exponent = field > 0 ? field - 1 : 0;
    const uint64_t whole = (bits & 0x7fffff) | (field > 0 ? 0x800000 : 0), square = whole * whole;

    for (int bit = 0; bit < 48; bit++) {
        int at = 2 * exponent + bit; /* 2 (-149) is 2^-298 */
        if ((square >> bit & 1) == 0) continue;
        uint32_t carry = 1u << at % 16;
        for (at /= 16; carry != 0; at++) {
            sum->digit[at] += carry;
            carry = sum->digit[at] >> 16;
            sum->digit[at] &= 0xffff;
        }
    }
}

typedef struct square_case {
    const char *name;
    dt_local x;
    int64_t bad, first;
    int64_t want[DTI_DIGITS];
} square_case;

static void expect_squares(square_case *c)
{
    long_sum sum = { { 0 } };

    c->bad = 0;
    c->first = -1;
    for (int64_t i = 0; i < kt_count(&c->x); i++) {
        const float x = ((const float *)c->x.data)[i];
        if (isfinite(x))
            add_square(&sum, x);
        else if (c->bad++ == 0)
            c->first = i;
    }
    for (int d = 0; d < DTI_DIGITS; d++)
        c->want[d] = (int64_t)sum.digit[2 * d] | (int64_t)sum.digit[2 * d + 1] << 16;
}

static void run_square_case(dti_cpu *cpu, void *arg)
{
    const square_case *c = arg;
    int64_t digits[DTI_DIGITS_N] = { 0 }, bad[2] = { 7, 7 };
    dt_local in[] = { c->x,
                      { .data = digits, .dtype = DT_I64, .n_axes = 1, .shape = { DTI_DIGITS_N } },
                      { .data = bad, .dtype = DT_I64, .n_axes = 1, .shape = { 2 } } };

    DT_ASSERT_OK(dti_square_digits_cpu(
        &(dt_kargs){ .in = in, .out = in + 1, .cpu = cpu, .n_in = 3, .n_out = 2 }));
    for (int d = 0; d < DTI_DIGITS; d++)
        if (digits[d] != c->want[d])
            dt_test_fail(__FILE__, __LINE__, "%s of %lld on %s: digit %d is %llx, not %llx",
                         c->name, (long long)kt_count(&c->x), dti_isa_name(dti_cpu_isa(cpu)), d,
                         (long long)digits[d], (long long)c->want[d]);
    DT_ASSERT_EQ_INT(digits[DTI_DIGITS_BAD], c->bad);
    DT_ASSERT_EQ_INT(bad[0], c->bad);
    DT_ASSERT_EQ_INT(bad[1], c->first);
}

static float uniform_value(int64_t i, uint32_t *state)
{
    return (void)i, (float)kt_value(KT_UNIFORM, state);
}

static float any_bits(int64_t i, uint32_t *state) /* NaNs, infinities and subnormals too */
{
    return (void)i, float_of_bits(kt_random(state) << 24 ^ kt_random(state));
}

static float any_finite(int64_t i, uint32_t *state)
{
    const float x = any_bits(i, state);

    return isfinite(x) ? x : 0.5f;
}

static float growing(int64_t i, uint32_t *state) /* past all that a level of sums has room for */
{
    return (float)ldexp(kt_value(KT_UNIFORM, state), (int)(i / 64) - 149);
}

static float falling(int64_t i, uint32_t *state)
{
    return growing(MOST - i, state);
}

static float subnormal(int64_t i, uint32_t *state)
{
    return (void)i, float_of_bits(kt_random(state) % 0x800000);
}

static float largest(int64_t i, uint32_t *state)
{
    return (void)state, i % 2 ? FLT_MAX : -FLT_MAX;
}

static float zeros_between(int64_t i, uint32_t *state)
{
    return i / 4096 % 2 ? 0.0f : (float)kt_value(KT_MIXED, state);
}

static float late_nan(int64_t i, uint32_t *state)
{
    return i == 9001 ? NAN : i == 9002 || i == 15000 ? -INFINITY : uniform_value(i, state);
}

DT_TEST(kernels_steps, sums_of_squares_lose_no_bit)
{
    static const struct {
        const char *name;
        float (*value)(int64_t i, uint32_t *state);
    } fills[] = { { "uniform values", uniform_value },
                  { "any bits", any_bits },
                  { "finite values", any_finite },
                  { "growing values", growing },
                  { "falling values", falling },
                  { "subnormal values", subnormal },
                  { "largest values", largest },
                  { "zeros in between", zeros_between },
                  { "late NaNs", late_nan } };
    static const int64_t lengths[] = { 0, 1, 2, 15, 16, 33, 1000, 4095, 4097, MOST };

    for (size_t f = 0; f < DT_COUNT(fills); f++)
        for (size_t l = 0; l < DT_COUNT(lengths); l++) {
            square_case c = { fills[f].name, kt_local(DT_F32, 1, &lengths[l]), 0, 0, { 0 } };
            uint32_t state = 5;
            for (int64_t i = 0; i < lengths[l]; i++)
                ((float *)c.x.data)[i] = fills[f].value(i, &state);
            expect_squares(&c);
            with_each_cpu(run_square_case, &c);
            kt_release(&c.x);
        }
}

/* 300 blocks of 4096: differences of bits are written down before they overflow. */
DT_TEST(kernels_steps, long_sums_do_not_overflow)
{
    const int64_t n = (int64_t)300 * 4096;
    square_case c = { "long sums", kt_local(DT_F32, 1, &n), 0, -1, { 0 } };
    long_sum sum = { { 0 } };

    for (int64_t i = 0; i < n; i++) ((float *)c.x.data)[i] = 1.99999988f;
    add_square(&sum, 1.99999988f);
    for (int d = 0; d < DTI_DIGITS; d++)
        c.want[d] = n * ((int64_t)sum.digit[2 * d] | (int64_t)sum.digit[2 * d + 1] << 16);
    dti_digits_carry(c.want);
    with_each_cpu(run_square_case, &c);
    kt_release(&c.x);
}

DT_TEST(kernels_steps, a_total_is_rounded_once)
{
    static const struct {
        int64_t value[3];
        int exponent[3];
        double want;
    } cases[] = {
        { { 0 }, { 0 }, 0.0 },
        { { 1 }, { -298 }, 0x1p-298 },
        { { 1 }, { 256 }, 0x1p256 },
        { { (int64_t)1 << 53, 1 }, { 0, 0 }, 0x1p53 },              /* a tie, to even */
        { { (int64_t)1 << 53, 1, 1 }, { 0, 0, -200 }, 0x1p53 + 2 }, /* more than one */
        { { (int64_t)1 << 53, 3 }, { 0, 0 }, 0x1p53 + 4 },
        { { INT64_MAX, 1 }, { 10, 10 }, 0x1p73 },
        { { 5, -5, 3 }, { 100, 100, 7 }, 384.0 },
        { { 1, -1 }, { 256, -298 }, 0x1p256 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        int64_t digits[DTI_DIGITS_N] = { 0 };
        for (int k = 0; k < 3; k++) dti_digits_add(digits, cases[i].value[k], cases[i].exponent[k]);
        DT_ASSERT(dti_digits_total(digits) == cases[i].want);
        dti_digits_carry(digits);
        DT_ASSERT(dti_digits_total(digits) == cases[i].want);
        digits[DTI_DIGITS_BAD] = 1;
        DT_ASSERT(isnan(dti_digits_total(digits)));
    }
}
