/* SPDX-License-Identifier: Apache-2.0
 *
 * linear_packed: codes of 4 and 8 bits, with and without zero points, groups shorter and longer
 * than what a kernel takes at a time. */
#include "tests/dtensor/test_kernels.h"

#include "dtensor/kernels/attrs.h"

typedef struct packed_shape {
    int64_t m, k, n, group;
    int bits;
    bool zeros, floats;
    kt_fill fill; /* of x */
} packed_shape;

static double float_of(unsigned e4m3)
{
    const unsigned m = e4m3 & 127u;
    const double f = m < 8 ? ldexp(m, -9) : ldexp(8 + m % 8, (int)(m / 8) - 10);

    return e4m3 < 128 ? f : -f;
}

static double code_of(const kt_case *c, const packed_shape *s, int64_t o, int64_t i)
{
    const uint8_t *row = (const uint8_t *)c->in[1].data + o * s->k * s->bits / 8;

    if (s->floats) return float_of(row[i]);
    return s->bits == 8 ? row[i] : row[i / 2] >> (i % 2 * 4) & 15;
}

/* What x may be off where a group of it is rounded to 16 bits: half a unit, of which the largest
 * magnitude, of bf16, has more than 2^14 (255/256 of it at least). */
static double rounding_of(const kt_case *c, const packed_shape *s, int64_t m, int64_t g)
{
    double largest = 0.0;

    for (int64_t i = 0; i < s->group; i++)
        largest = fmax(largest, fabs(kt_get(&c->in[0], m * s->k + g * s->group + i)));
    return largest * 0x1p-15 * 256 / 255;
}

/* Any order of n additions is off by at most n units of the sum of magnitudes. Kernels add products
 * with codes less their middle, and what zero points are off it. */
static void expect_packed(kt_case *c, const packed_shape *s)
{
    const double middle = s->floats ? 0.0 : s->bits == 8 ? 128.0 : 8.0;
    const bool rounds = s->fill == KT_MIXED && c->in[0].dtype == DT_BF16 && !s->floats;

    kt_expect(c);
    for (int64_t e = 0; e < s->m * s->n; e++) {
        const int64_t m = e / s->n, o = e % s->n;
        double sum = 0.0, magnitude = 0.0, rounding = 0.0, off = 0.0;
        for (int64_t i = 0; i < s->k; i++) {
            const int64_t g = o * (s->k / s->group) + i / s->group;
            const double x = kt_get(&c->in[0], m * s->k + i), scale = kt_get(&c->in[2], g);
            const double zero = s->zeros ? ((const uint8_t *)c->in[3].data)[g] : middle;
            const double q = code_of(c, s, o, i);
            if (rounds && i % s->group == 0) off = rounding_of(c, s, m, i / s->group);
            rounding += off * fabs(scale * (q - zero));
            sum += x * scale * (q - zero);
            magnitude += fabs(x * scale) * (fabs(q - middle) + fabs(middle - zero));
        }
        c->want[e] = sum;
        c->slack[e] = 0x1p-24 * (double)(s->k + 4) * magnitude + rounding;
    }
}

static dt_local random_bytes(int64_t rows, int64_t n, int below, uint32_t seed)
{
    dt_local x = kt_local(DT_U8, 2, (int64_t[]){ rows, n });

    for (int64_t i = 0; i < rows * n; i++)
        ((uint8_t *)x.data)[i] = (uint8_t)(kt_random(&seed) % (uint32_t)below);
    return x;
}

static void fill_packed(kt_case *c, const packed_shape *s, dt_dtype dtype, dt_dtype out)
{
    const int64_t groups = s->k / s->group;

    c->n_in = s->zeros ? 4 : 3;
    c->in[0] = kt_filled(dtype, 2, (int64_t[]){ s->m, s->k }, s->fill, 11);
    for (int64_t i = 0; i < s->m * s->k && s->fill == KT_UNIFORM; i++) /* no kernel rounds these */
        dti_store_f32(c->in[0].data, dtype, i,
                      (float)(round(kt_get(&c->in[0], i) * 0x1p14) * 0x1p-14));
    c->in[1] = random_bytes(s->n, s->k * s->bits / 8, 256, 12);
    for (int64_t i = 0; i < s->n * s->k && s->floats; i++) /* NaN is none of the codes */
        if ((((const uint8_t *)c->in[1].data)[i] & 127) == 127) ((uint8_t *)c->in[1].data)[i] = 5;
    c->in[2] = kt_filled(dtype, 2, (int64_t[]){ s->n, groups }, KT_UNIFORM, 13);
    if (s->zeros) c->in[3] = random_bytes(s->n, groups, 1 << s->bits, 14);
    c->out = (dt_local){ .dtype = out, .n_axes = 2, .shape = { s->m, s->n } };
}

static void run_packed(packed_shape s, dt_dtype dtype, dt_dtype out)
{
    const dti_packed_attr attr = { out, s.bits, s.group };
    char name[96];
    kt_case c = { .name = name,
                  .kernel = s.floats ? dti_linear_e4m3_cpu : dti_linear_packed_cpu,
                  .attr = &attr };

    (void)snprintf(name, sizeof name, "linear_packed %lldx%lldx%lld of %s, %d bits, %lld%s",
                   (long long)s.m, (long long)s.k, (long long)s.n, dt_dtype_name(dtype), s.bits,
                   (long long)s.group,
                   s.floats  ? ", e4m3"
                   : s.zeros ? ", zeros"
                             : "");
    fill_packed(&c, &s, dtype, out);
    expect_packed(&c, &s);
    kt_run(&c);
}

/* All groups, both widths of codes, numbers of rows that different loops compute. */
static void run_all(kt_fill fill)
{
    static const int64_t inputs[][2] = { { 80, 16 }, { 416, 32 }, { 832, 64 }, { 1408, 128 } };
    static const int64_t rows[] = { 1, 2, 3, 12, 26 };

    for (size_t k = 0; k < DT_COUNT(inputs); k++)
        for (size_t m = 0; m < DT_COUNT(rows); m++)
            for (int t = 0; t < 4; t++)
                run_packed((packed_shape){ rows[m], inputs[k][0], 37, inputs[k][1], t < 2 ? 4 : 8,
                                           t % 2 == 0, false, fill },
                           DT_BF16, DT_F32);
}

DT_TEST(kernels_packed, activations_keep_16_bits_of_the_largest_of_their_group)
{
    run_all(KT_MIXED);
}

DT_TEST(kernels_packed, activations_that_16_bits_hold_are_exact)
{
    run_all(KT_UNIFORM);
    run_all(KT_EQUAL);
}

/* One output of codes 255 and x of one number, with zero point z. */
static float product_of(dti_cpu *cpu, float x, uint8_t z, int64_t m, float other)
{
    enum { K = 256, ROWS = 130 };
    static const dti_packed_attr attr = { DT_F32, 8, 128 };
    uint16_t xs[ROWS * K];
    uint8_t codes[K], zeros[2] = { z, z };
    float scales[2] = { 1.0f, 1.0f }, got[ROWS];
    const dt_local in[] = { { .dtype = DT_BF16, .n_axes = 2, .shape = { m, K }, .data = xs },
                            { .dtype = DT_U8, .n_axes = 2, .shape = { 1, K }, .data = codes },
                            { .dtype = DT_F32, .n_axes = 2, .shape = { 1, 2 }, .data = scales },
                            { .dtype = DT_U8, .n_axes = 2, .shape = { 1, 2 }, .data = zeros } };
    dt_local y = { .dtype = DT_F32, .n_axes = 2, .shape = { m, 1 }, .data = got };

    memset(codes, 255, sizeof codes);
    for (int64_t i = 0; i < m * K; i++) dti_store_f32(xs, DT_BF16, i, i % K == 9 ? other : x);
    DT_ASSERT_OK(dti_linear_packed_cpu(&(dt_kargs){ in, &y, &attr, cpu, 4, 1, NULL }));
    for (int64_t i = 1; i < m; i++) DT_ASSERT(isnan(got[0]) ? isnan(got[i]) : got[i] == got[0]);
    return got[0];
}

DT_TEST(kernels_packed, largest_sums_and_numbers_that_are_none)
{
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;
    const float ones = 1.9921875f; /* the mantissa that has its power of two raised */

    DT_ASSERT_OK(dti_pool_create(1, false, NULL, NULL, &pool));
    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), pool, &cpu));
    for (int64_t m = 1; m <= 130; m += m < 4 ? 1 : 126) { /* these loops, and that of many rows */
        for (int sign = -1; sign <= 1; sign += 2) {
            const float s = (float)sign;
            DT_ASSERT(product_of(cpu, s * ones, 0, m, s * ones) == s * ones * 255 * 256);
            DT_ASSERT(product_of(cpu, s * 1.984375f, 0, m, 0.0f) == s * 1.984375f * 255 * 255);
            DT_ASSERT(product_of(cpu, s * 0x1p-126f, 254, m, 0.0f) == s * 0x1p-126f * 255);
            DT_ASSERT(product_of(cpu, s * 0x1p112f, 127, m, 0.0f) == s * 0x1p112f * 128 * 255);
        }
        DT_ASSERT(product_of(cpu, ones, 255, m, ones) == 0.0f);
        DT_ASSERT(isnan(product_of(cpu, 1.0f, 0, m, NAN)));
        DT_ASSERT(!isfinite(product_of(cpu, 1.0f, 0, m, -INFINITY)));
    }
}

DT_TEST(kernels_packed, products_match_float64)
{
    static const int64_t inputs[][2] = { { 16, 16 },   { 48, 16 },   { 160, 32 }, { 192, 64 },
                                         { 384, 128 }, { 512, 512 }, { 32, 32 },  { 0, 32 } };
    static const int64_t rows[] = { 1, 2, 3, 5, 6, 13, 0 };
    int turn = 0;

    for (size_t k = 0; k < DT_COUNT(inputs); k++)
        for (size_t m = 0; m < DT_COUNT(rows); m++)
            for (int bits = 4; bits <= 8; bits += 4, turn++) {
                packed_shape s = { rows[m], inputs[k][0],   1 + turn % 9, inputs[k][1],
                                   bits,    (turn / 2) % 2, false,        KT_UNIFORM };
                run_packed(s, kt_floats[turn % 3], turn % 4 == 3 ? DT_F32 : kt_floats[turn % 3]);
                s.zeros = false;
                s.floats = true;
                if (bits == 8) run_packed(s, kt_floats[turn / 2 % 3], kt_floats[turn / 2 % 3]);
            }
}

DT_TEST(kernels_packed, more_outputs_and_rows_than_one_block)
{
    run_packed((packed_shape){ 70, 1024, 135, 128, 4, false, false, KT_UNIFORM }, DT_BF16, DT_BF16);
    run_packed((packed_shape){ 29, 1024, 70, 32, 8, true, false, KT_UNIFORM }, DT_F32, DT_F32);
    run_packed((packed_shape){ 110, 2432, 67, 128, 4, true, false, KT_UNIFORM }, DT_BF16, DT_F32);
    run_packed((packed_shape){ 5, 4480, 9, 128, 8, true, false, KT_UNIFORM }, DT_BF16, DT_BF16);
    run_packed((packed_shape){ 4, 4224, 6, 128, 8, false, true, KT_UNIFORM }, DT_BF16, DT_F32);
    run_packed((packed_shape){ 7, 1280, 9, 64, 4, true, false, KT_UNIFORM }, DT_F16, DT_F32);
    run_packed((packed_shape){ 515, 64, 3, 32, 4, false, false, KT_UNIFORM }, DT_F32, DT_F32);
}

/* Scales and x from zero to the largest whose products are floats. */
static void spread(kt_case *c)
{
    const int64_t scales = dti_local_count(&c->in[2]), xs = dti_local_count(&c->in[0]);
    const float huge = c->in[0].dtype == DT_F16 ? 0x1p10f : 0x1p100f;

    for (int64_t i = 0; i < scales; i++)
        if (i % 7 > 3)
            dti_store_f32(c->in[2].data, c->in[2].dtype, i, i % 7 == 4 ? 0.0f : 1 / huge);
    for (int64_t i = 0; i < xs; i += 301)
        dti_store_f32(c->in[0].data, c->in[0].dtype, i, i % 2 == 0 ? huge : 1 / huge);
}

/* One row, and the same row among others. */
static void compare_alone(const packed_shape *s, dt_dtype dtype, dti_isa isa, bool spreads)
{
    const dti_packed_attr attr = { DT_F32, s->bits, s->group };
    const dt_kernel kernel = s->floats ? dti_linear_e4m3_cpu : dti_linear_packed_cpu;
    kt_case c = { .name = "alone", .attr = &attr };
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;
    DT_FREED float *one = NULL, *all = NULL;
    dt_local x, y;

    fill_packed(&c, s, dtype, DT_F32);
    if (spreads) spread(&c);
    x = c.in[0];
    DT_ASSERT_OK(dti_alloc_array((size_t)(s->m * s->n), sizeof *all, (void **)&all));
    DT_ASSERT_OK(dti_alloc_array((size_t)s->n, sizeof *one, (void **)&one));
    DT_ASSERT_OK(dti_pool_create(1, false, NULL, NULL, &pool));
    DT_ASSERT_OK(dti_cpu_create(isa, pool, &cpu));
    y = (dt_local){ .dtype = DT_F32, .n_axes = 2, .shape = { s->m, s->n }, .data = all };
    DT_ASSERT_OK(kernel(&(dt_kargs){ c.in, &y, &attr, cpu, c.n_in, 1, NULL }));
    for (int64_t m = 0; m < s->m; m++) {
        c.in[0].shape[0] = y.shape[0] = 1;
        c.in[0].data = (char *)x.data + m * s->k * (int64_t)dt_dtype_size(dtype);
        y.data = one;
        DT_ASSERT_OK(kernel(&(dt_kargs){ c.in, &y, &attr, cpu, c.n_in, 1, NULL }));
        if (memcmp(one, all + m * s->n, (size_t)s->n * sizeof *one) != 0)
            dt_test_fail(__FILE__, __LINE__, "row %lld of %lld on %s, %d bits: other bits alone",
                         (long long)m, (long long)s->m, dti_isa_name(isa), s->bits);
    }
    c.in[0] = x;
    for (int i = 0; i < c.n_in; i++) kt_release(&c.in[i]);
}

DT_TEST(kernels_packed, a_row_has_the_same_bits_alone_and_among_others)
{
    static const int64_t inputs[][2] = {
        { 336, 16 }, { 352, 32 }, { 576, 64 }, { 640, 128 }, { 2432, 128 }
    };

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t k = 0; k < DT_COUNT(inputs); k++)
            for (int t = 0; t < 6; t++) /* of codes, twice; dtypes */
                for (int64_t m = 2; m <= 130; m += m < 37 ? 7 : 93) {
                    const packed_shape s = {
                        m,      inputs[k][0], 11, inputs[k][1], t < 2 ? 4 : 8, m % 2 == 0 && t < 4,
                        t >= 4, KT_MIXED
                    };
                    compare_alone(&s, kt_floats[t % 2], (dti_isa)isa, m == 16 || m == 130);
                }
}
