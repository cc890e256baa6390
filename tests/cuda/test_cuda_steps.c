/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of optimizers have the CPU's bits, also where they round at random, and sums of squares its
 * digits. */
#include "tests/cuda/rows.h"

#include "dtensor/kernels/digits.h"
#include "dtensor/kernels/step_attrs.h"

enum { MAX_ARRAYS = 5 };

static dti_cpu *open_cpu(void)
{
    dti_cpu *cpu;

    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    return cpu;
}

/* Runs both kernels on copies of `in` and compares what in[first] and all behind it became. */
static void compare_in_place(const cr_device *d, const char *row, dt_kernel cpu_kernel,
                             const void *attr, dt_local *in, int n, int64_t skew)
{
    dt_local there[MAX_ARRAYS], got = { 0 };
    const dt_kargs on_gpu = {
        .in = there, .out = there + 1, .attr = attr, .n_in = n, .n_out = n - 1
    };
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = open_cpu();

    for (int i = 0; i < n; i++) {
        there[i] = in[i];
        there[i].data = cr_up(d, &in[i], skew);
    }
    DT_ASSERT_CUDA(d->m, dt_test_cuda_row(d->m, row)(d->c, &on_gpu));
    DT_ASSERT_OK(cpu_kernel(&(dt_kargs){
        .in = in, .out = in + 1, .attr = attr, .cpu = cpu, .n_in = n, .n_out = n - 1 }));
    for (int i = 1; i < n; i++) {
        const cr_case c = { .row = row, .out = in[i] };
        got = kt_local(in[i].dtype, 1, in[i].shape);
        cr_down(&c, d, there[i].data, got.data);
        for (int64_t e = 0; e < kt_count(&got); e++) {
            const float a = (float)kt_get(&got, e), b = (float)kt_get(&in[i], e);
            if (dti_bits_of_float(a) != dti_bits_of_float(b) && !(isnan(a) && isnan(b)))
                dt_test_fail(__FILE__, __LINE__, "%s, %s: array %d, element %lld is %.9g, not %.9g",
                             row, dt_dtype_name(in[1].dtype), i, (long long)e, (double)a,
                             (double)b);
        }
        kt_release(&got);
    }
    for (int i = 0; i < n; i++) {
        cr_release(d, &in[i], there[i].data, skew);
        kt_release(&in[i]);
    }
}

static dt_local operand(int which, dt_dtype dtype, int64_t n)
{
    static const float odd[] = { 0.0f, -0.0f, 1e-40f, 3e38f, 65520.0f, 2e-6f, INFINITY, NAN };
    dt_local x = kt_filled(dtype, 1, &n, KT_MIXED, (uint32_t)(which + 3));

    for (int64_t i = which; i < n; i += 13)
        dti_store_f32(x.data, dtype, i, odd[(i / 13 + which) % 8]);
    for (int64_t i = 0; i < n && which == 3; i++) /* of squares */
        dti_store_f32(x.data, dtype, i, fabsf((float)kt_get(&x, i)));
    return x;
}

/* How parameters of 16 bits are kept. */
typedef enum copies { NEAREST, AT_RANDOM, MASTER, N_COPIES } copies;

static const dti_step_rounding at_random = {
    .stochastic = true,
    .key = { 12, 34 },
    .where = { .n_axes = 2, .skip = 3, .offset = 1000, .extent = { 70, 11 }, .stride = { 40, 1 } }
};

static void run_adamw(const cr_device *d, dt_dtype dtype, copies kept, int64_t n, int64_t skew)
{
    dti_adamw_attr attr = { .scale = 0.7f,
                            .decay = 0.999f,
                            .lerp = n % 2 ? 0.75f : 0.1f,
                            .beta2 = 0.95f,
                            .rest2 = 0.05f,
                            .root2 = 0.2236068f,
                            .eps = 1e-8f,
                            .step = -0.01f };
    dt_local in[MAX_ARRAYS];
    int n_in = 0;

    if (kept == AT_RANDOM) attr.rounding = at_random;
    in[n_in++] = operand(0, DT_F32, n);
    in[n_in++] = operand(1, dtype, n);
    in[n_in++] = operand(2, DT_F32, n);
    in[n_in++] = operand(3, DT_F32, n);
    if (kept == MASTER) in[n_in++] = operand(4, DT_F32, n);
    compare_in_place(d, "adamw", dti_adamw_cpu, &attr, in, n_in, skew);
}

static void run_sgd(const cr_device *d, dt_dtype dtype, copies kept, int64_t n, int64_t skew)
{
    for (int way = 0; way < 4; way++) { /* no momentum, the first step, later ones, Nesterov */
        dti_sgd_attr attr = { .scale = 0.7f,
                              .decay = way == 1 ? 0.0f : 0.01f,
                              .momentum = 0.9f,
                              .rest = 0.8f,
                              .step = -0.1f,
                              .has_momentum = way > 0,
                              .has_master = kept == MASTER,
                              .first = way == 1,
                              .nesterov = way == 3 };
        dt_local in[MAX_ARRAYS];
        int n_in = 0;
        if (kept == AT_RANDOM) attr.rounding = at_random;
        in[n_in++] = operand(0, DT_F32, n);
        in[n_in++] = operand(1, dtype, n);
        if (way > 0) in[n_in++] = operand(2, DT_F32, n);
        if (kept == MASTER) in[n_in++] = operand(4, DT_F32, n);
        compare_in_place(d, "sgd", dti_sgd_cpu, &attr, in, n_in, skew);
    }
}

DT_TEST(cuda_steps, steps_have_the_bits_of_the_cpu)
{
    static const int64_t sizes[] = { 0, 1, 7, 33, 250, 767 };
    CR_DEVICE d = cr_open();

    for (int t = 0; t < 3; t++)
        for (copies kept = NEAREST; kept < (kt_floats[t] == DT_F32 ? AT_RANDOM : N_COPIES); kept++)
            for (size_t s = 0; s < DT_COUNT(sizes); s++)
                for (size_t k = 0; k < DT_COUNT(cr_skews); k++) {
                    run_adamw(&d, kt_floats[t], kept, sizes[s], cr_skews[k]);
                    run_sgd(&d, kt_floats[t], kept, sizes[s], cr_skews[k]);
                }
}

DT_TEST(cuda_steps, other_dtypes_are_refused)
{
    const dti_adamw_attr attr = { 0 };
    dt_local in[4] = { { .dtype = DT_F32 }, { .dtype = DT_F64 } };
    CR_DEVICE d = cr_open();

    DT_ASSERT_CUDA_FAILS(
        d.m,
        dt_test_cuda_row(d.m, "adamw")(
            d.c, &(dt_kargs){ .in = in, .out = in + 1, .attr = &attr, .n_in = 4, .n_out = 3 }),
        "adamw on CUDA takes f32, bf16 or f16, not f64");
}

/* --- sums of squares -------------------------------------------------------------------------- */

static float value_of(int fill, int64_t i, int64_t n, uint32_t *state)
{
    const uint32_t bits = kt_random(state) << 24 ^ kt_random(state);
    float x;

    memcpy(&x, &bits, sizeof x);
    switch (fill) {
    case 0:
        return (float)kt_value(KT_UNIFORM, state);
    case 1:
        return x; /* any bits */
    case 2:
        return isfinite(x) ? x : 0.0f;
    case 3:
        return (float)ldexp(1.0, (int)(i * 276 / n) - 149); /* growing */
    case 4:
        return (float)ldexp(1.9, 127 - (int)(i * 276 / n));
    default:
        return i % 2 ? 3.4028235e38f : 1.17549421e-38f;
    }
}

static void run_squares(const cr_device *d, int fill, int64_t n, int64_t skew)
{
    const int64_t n_digits = DTI_DIGITS_N, two = 2;
    dt_local in[3] = { kt_local(DT_F32, 1, &n), kt_local(DT_I64, 1, &n_digits),
                       kt_local(DT_I64, 1, &two) };
    dt_local there[3];
    int64_t got[DTI_DIGITS_N], *want = in[1].data, bad[2];
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = open_cpu();
    uint32_t state = 9;

    for (int64_t i = 0; i < n; i++) ((float *)in[0].data)[i] = value_of(fill, i, n, &state);
    want[7] = 5; /* sums are added to what is there */
    for (int i = 0; i < 3; i++) {
        there[i] = in[i];
        there[i].data = cr_up(d, &in[i], i == 0 ? skew : 0);
    }
    DT_ASSERT_CUDA(d->m,
                   dt_test_cuda_row(d->m, "square_digits")(
                       d->c, &(dt_kargs){ .in = there, .out = there + 1, .n_in = 3, .n_out = 2 }));
    DT_ASSERT_OK(dti_square_digits_cpu(
        &(dt_kargs){ .in = in, .out = in + 1, .cpu = cpu, .n_in = 3, .n_out = 2 }));
    cr_down(&(cr_case){ .row = "square_digits", .out = in[1] }, d, there[1].data, got);
    cr_down(&(cr_case){ .row = "square_digits", .out = in[2] }, d, there[2].data, bad);
    dti_digits_carry(got);
    for (int k = 0; k < DTI_DIGITS_N; k++)
        if (got[k] != want[k])
            dt_test_fail(__FILE__, __LINE__, "fill %d of %lld: digit %d is %llx, not %llx", fill,
                         (long long)n, k, (long long)got[k], (long long)want[k]);
    DT_ASSERT_EQ_INT(bad[0], ((int64_t *)in[2].data)[0]);
    DT_ASSERT_EQ_INT(bad[1], ((int64_t *)in[2].data)[1]);
    for (int i = 0; i < 3; i++) {
        cr_release(d, &in[i], there[i].data, i == 0 ? skew : 0);
        kt_release(&in[i]);
    }
}

DT_TEST(cuda_steps, squares_have_the_digits_of_the_cpu)
{
    static const int64_t sizes[] = { 0, 1, 5, 1000, 30011 };
    CR_DEVICE d = cr_open();

    for (int fill = 0; fill < 6; fill++)
        for (size_t s = 0; s < DT_COUNT(sizes); s++) run_squares(&d, fill, sizes[s], s % 2);
}
