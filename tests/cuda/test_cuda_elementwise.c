/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that treat elements alone: the CUDA kernels have the CPU's bits, functions included,
 * because both do the same operations in the same order. */
#include "tests/cuda/rows.h"

static const dti_scalar_attr attr = { 0.3 };

typedef struct element_row {
    const char *name;
    dt_kernel cpu;
    int n_in;
    bool has_function;
} element_row;

static const element_row rows[] = {
    { "add", dti_add_cpu, 2, false },
    { "mul", dti_mul_cpu, 2, false },
    { "sub", dti_sub_cpu, 2, false },
    { "div", dti_div_cpu, 2, false },
#define F(name, formula, slope) { #name, dti_##name##_cpu, 1, true },
    DTI_FORMULAS(F)
#undef F
        { "silu_mul", dti_silu_mul_cpu, 2, true },
    { "gelu_tanh_mul", dti_gelu_tanh_mul_cpu, 2, true },
    { "soft_cap", dti_soft_cap_cpu, 1, true },
    { "add_scalar", dti_add_scalar_cpu, 1, false },
    { "mul_scalar", dti_mul_scalar_cpu, 1, false },
};

/* What finite values do not show. */
static const float specials[] = { 0.0f,   -0.0f,  INFINITY, -INFINITY, NAN,    1e-40f,
                                  -1e-6f, 86.9f,  87.1f,    -87.1f,    104.5f, -104.5f,
                                  3e38f,  -3e38f, 65504.0f, 65520.0f,  5e-8f,  0.625f };

static dt_local specials_of(dt_dtype t)
{
    const int64_t shape[] = { DT_COUNT(specials) };
    dt_local x = kt_local(t, 1, shape);

    for (int64_t i = 0; i < shape[0]; i++) dti_store_f32(x.data, t, i, specials[i]);
    return x;
}

static cr_case case_of(const element_row *row, dt_dtype t, int64_t n)
{
    return (cr_case){ .row = row->name,
                      .cpu = row->cpu,
                      .n_in = row->n_in,
                      .attr = &attr,
                      .out = { .dtype = t, .n_axes = 1, .shape = { n } },
                      .ulps = row->has_function ? cr_function_ulps() : 0.0 };
}

static void run_row(const cr_device *d, const element_row *row, dt_dtype t, int64_t n, kt_fill fill)
{
    const int64_t shape[] = { n };

    for (size_t s = 0; s < DT_COUNT(cr_skews); s++)
        for (int in_place = 0; in_place <= (n < 300 ? row->n_in : 0); in_place++) {
            cr_case c = case_of(row, t, n);
            c.skew = cr_skews[s];
            c.in_place = in_place;
            for (int i = 0; i < row->n_in; i++)
                c.in[i] = kt_filled(t, 1, shape, fill, (uint32_t)(7 + i));
            cr_run(&c, d);
        }
}

DT_TEST(cuda_elementwise, rows_have_the_bits_of_the_cpu)
{
    static const int64_t sizes[] = { 0, 1, 7, 33, 257, 4109 };
    CR_DEVICE d = cr_open();

    for (size_t r = 0; r < DT_COUNT(rows); r++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            for (size_t s = 0; s < DT_COUNT(sizes); s++)
                run_row(&d, &rows[r], kt_floats[t], sizes[s], KT_UNIFORM);
            run_row(&d, &rows[r], kt_floats[t], 777, KT_MIXED);
        }
}

DT_TEST(cuda_elementwise, limits_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t r = 0; r < DT_COUNT(rows); r++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            cr_case c = case_of(&rows[r], kt_floats[t], DT_COUNT(specials));
            for (int i = 0; i < c.n_in; i++) c.in[i] = specials_of(kt_floats[t]);
            cr_run(&c, &d);
        }
}

DT_TEST(cuda_elementwise, other_dtypes_are_refused)
{
    dt_local x = { .dtype = DT_F64, .n_axes = 1, .shape = { 4 } };
    const dt_kargs args = { .in = &x, .out = &x, .attr = &attr, .n_in = 1, .n_out = 1 };
    CR_DEVICE d = cr_open();

    for (size_t r = 0; r < DT_COUNT(rows); r++) {
        DT_ASSERT_CUDA_FAILS(d.m, dt_test_cuda_row(d.m, rows[r].name)(d.c, &args),
                             "on CUDA takes f32, bf16 or f16, not f64");
    }
}

/* --- dtypes of their own ---------------------------------------------------------------------- */

DT_TEST(cuda_elementwise, casts_have_the_bits_of_the_cpu)
{
    static const dt_dtype floats[] = { DT_F32, DT_BF16, DT_F16, DT_F64 };
    static const int64_t sizes[] = { 0, 1, 5, 1024, 4099 };
    CR_DEVICE d = cr_open();

    for (size_t from = 0; from < DT_COUNT(floats); from++)
        for (size_t to = 0; to < DT_COUNT(floats); to++)
            for (size_t s = 0; s < DT_COUNT(sizes); s++) {
                const dti_dtype_attr dtype = { floats[to] };
                cr_case c = { .row = "cast",
                              .cpu = dti_cast_cpu,
                              .n_in = 1,
                              .attr = &dtype,
                              .skew = (int64_t)s % 2,
                              .out = { .dtype = floats[to], .n_axes = 1, .shape = { sizes[s] } } };
                c.in[0] = kt_filled(floats[from], 1, &sizes[s], KT_MIXED, 3);
                cr_run(&c, &d);
            }
}

/* Halfway between two neighbours of bf16, and a little beyond in f64 alone: rounded by way of f32,
 * which forgets the little, both would become the even one. */
DT_TEST(cuda_elementwise, f64_is_rounded_to_halves_once)
{
    static const double values[] = { 1.00390625,
                                     1.00390625 + 0x1p-40,
                                     -1.00390625 - 0x1p-40,
                                     1.0 + 0x1p-11,
                                     1.0 + 0x1p-11 + 0x1p-45,
                                     NAN,
                                     1e300,
                                     -1e-320 };
    static const dt_dtype halves[] = { DT_BF16, DT_F16 };
    const int64_t shape[] = { DT_COUNT(values) };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(halves); t++) {
        const dti_dtype_attr dtype = { halves[t] };
        cr_case c = { .row = "cast",
                      .cpu = dti_cast_cpu,
                      .n_in = 1,
                      .attr = &dtype,
                      .out = { .dtype = halves[t], .n_axes = 1, .shape = { shape[0] } } };
        c.in[0] = kt_local(DT_F64, 1, shape);
        memcpy(c.in[0].data, values, sizeof values);
        cr_run(&c, &d);
    }
}

static void run_bias(const cr_device *d, const dt_dtype types[3], const int64_t shape[2],
                     int64_t skew)
{
    const dti_dtype_attr dtype = { types[2] };
    cr_case c = { .row = "add_bias",
                  .cpu = dti_add_bias_cpu,
                  .n_in = 2,
                  .attr = &dtype,
                  .skew = skew,
                  .out = { .dtype = types[2], .n_axes = 2, .shape = { shape[0], shape[1] } } };

    c.in[0] = kt_filled(types[0], 2, shape, KT_UNIFORM, 5);
    c.in[1] = kt_filled(types[1], 1, shape + 1, KT_MIXED, 6);
    cr_run(&c, d);
}

DT_TEST(cuda_elementwise, biases_are_added_to_every_row)
{
    static const int64_t shapes[][2] = { { 0, 4 }, { 3, 0 },   { 1, 1 },   { 5, 3 },
                                         { 9, 8 }, { 1, 257 }, { 70, 33 }, { 3, 4100 } };
    static const dt_dtype types[][3] = {
        { DT_F32, DT_F32, DT_F32 },   { DT_F32, DT_BF16, DT_BF16 }, { DT_BF16, DT_BF16, DT_BF16 },
        { DT_BF16, DT_BF16, DT_F32 }, { DT_F16, DT_F16, DT_F16 },   { DT_F32, DT_F16, DT_F32 }
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(types); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int64_t skew = 0; skew < 2; skew++) run_bias(&d, types[t], shapes[s], skew);
}
