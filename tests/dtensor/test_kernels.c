/* SPDX-License-Identifier: Apache-2.0
 *
 * State of the CPU kernels, and the operators that treat elements alone. */
#include "tests/dtensor/test_kernels.h"

#include "dtensor/kernels/cpu/cpu_internal.h"

#define DT_SIMD 128 /* the form that every compiler accepts here; all have the same polynomials */
#include "dtensor/kernels/cpu/simd.inc.c"

DT_TEST(kernels, instruction_sets_have_names_and_limits)
{
    const dti_isa best = dti_isa_detect();
    dti_isa isa = DTI_N_ISAS;
    dti_cpu *cpu;

    DT_ASSERT_OK(dti_isa_parse("auto", &isa));
    DT_ASSERT_EQ_INT(isa, best);
    for (int i = 0; i <= (int)best; i++) {
        DT_ASSERT_OK(dti_isa_parse(dti_isa_name((dti_isa)i), &isa));
        DT_ASSERT_EQ_INT(isa, i);
        DT_ASSERT_OK(dti_cpu_create(isa, NULL, &cpu));
        DT_ASSERT_EQ_INT(dti_cpu_isa(cpu), i);
        dti_cpu_destroy(&cpu);
        DT_ASSERT(cpu == NULL);
    }
    for (int i = (int)best + 1; i < DTI_N_ISAS; i++) {
        DT_ASSERT_STATUS(dti_isa_parse(dti_isa_name((dti_isa)i), &isa), DT_ERR_UNSUPPORTED,
                         dti_isa_name(best));
        DT_ASSERT_STATUS(dti_cpu_create((dti_isa)i, NULL, &cpu), DT_ERR_UNSUPPORTED, NULL);
    }
    DT_ASSERT_STATUS(dti_isa_parse("sse9", &isa), DT_ERR_ARG, "\"sse9\" is unknown");
}

DT_TEST(kernels, scratch_grows_and_is_aligned)
{
    dti_cpu *cpu;
    void *first, *second;

    DT_ASSERT_OK(dti_cpu_create(DTI_ISA_PORTABLE, NULL, &cpu));
    DT_ASSERT_OK(dti_cpu_scratch(cpu, 0, &first));
    DT_ASSERT_OK(dti_cpu_scratch(cpu, 100000, &first));
    DT_ASSERT_EQ_INT((uintptr_t)first % 64, 0);
    memset(first, 1, 100000);
    DT_ASSERT_OK(dti_cpu_scratch(cpu, 5, &second));
    DT_ASSERT(first == second);
    DT_ASSERT_OK(dti_cpu_scratch(cpu, 3 << 20, &second));
    memset(second, 1, 3 << 20);
    dti_cpu_destroy(&cpu);
    dti_cpu_destroy(&cpu);
}

DT_TEST(kernels, other_dtypes_are_refused)
{
    const int64_t shape[] = { 4 };
    DT_ENDS(kt_release) dt_local x = kt_local(DT_F64, 1, shape);
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    DT_ASSERT_OK(dti_cpu_create(DTI_ISA_PORTABLE, NULL, &cpu));
    DT_ASSERT_STATUS(dti_silu_cpu(&(dt_kargs){ &x, &x, NULL, cpu, 1, 1, NULL }), DT_ERR_UNSUPPORTED,
                     "silu on CPU takes f32, bf16 or f16, not f64");
}

/* --- elements --------------------------------------------------------------------------------- */

#define TEST_CAP 0.75

static double silu(double x)
{
    return x / (1.0 + exp(-x));
}

/* The tanh form as Transformers writes it, rounded to the dtype after every operation. */
static double gelu_new(double x, dt_dtype t)
{
    const double cube = kt_round(t, kt_round(t, x * x) * x);
    const double inner = kt_round(t, x + kt_round(t, 0.044715 * cube));
    const double th = kt_round(t, tanh(kt_round(t, sqrt(2.0 / 3.14159265358979323846) * inner)));

    return kt_round(t, 0.5 * x) * kt_round(t, 1.0 + th);
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* x + y, x y, silu x, gelu_new x, silu(x) y with the slack that their inner roundings need, in
 * units of the dtype: a value near the middle between two neighbours may go either way. */
static void element(const char *op, dt_dtype t, double x, double y, double *want, double *slack)
{
    const double unit = kt_unit(t);

    *slack = 0.0;
    if (strcmp(op, "add") == 0) *want = x + y;
    if (strcmp(op, "mul") == 0) *want = x * y;
    if (strcmp(op, "silu") == 0) {
        *want = silu(x);
        *slack = 4 * 0x1p-24 * fabs(*want); /* e^-x within 2 ulp, a sum, a quotient */
    }
    if (strcmp(op, "gelu_new") == 0) {
        *want = gelu_new(x, t);
        /* 1 + tanh loses digits where tanh is near -1: its error is absolute */
        *slack = unit * (8 * fabs(*want) + 4 * fabs(x));
    }
    if (strcmp(op, "gelu_tanh") == 0) {
        *want = gelu_tanh(x);
        *slack = 0x1p-24 * (8 * fabs(*want) + 4 * fabs(x));
    }
    if (strcmp(op, "gelu_tanh_mul") == 0) {
        *want = kt_round(t, gelu_tanh(x)) * y;
        *slack = 2 * unit * fabs(*want) + 0x1p-24 * (8 * fabs(*want) + 4 * fabs(x * y));
    }
    if (strcmp(op, "soft_cap") == 0) {
        const double inner = kt_round(t, tanh(kt_round(t, x / TEST_CAP)));
        *want = inner * TEST_CAP;
        *slack = 3 * unit * fabs(*want) + 0x1p-22;
    }
    if (strcmp(op, "silu_mul") == 0) {
        *want = kt_round(t, silu(x)) * y;
        *slack = (2 * unit + 4 * 0x1p-24) * fabs(*want);
    }
}

typedef struct element_op {
    const char *name;
    dt_kernel kernel;
    int n_in;
} element_op;

static const dti_scalar_attr test_cap = { TEST_CAP };

static const element_op element_ops[] = {
    { "add", dti_add_cpu, 2 },
    { "mul", dti_mul_cpu, 2 },
    { "silu", dti_silu_cpu, 1 },
    { "gelu_new", dti_gelu_new_cpu, 1 },
    { "silu_mul", dti_silu_mul_cpu, 2 },
    { "gelu_tanh", dti_gelu_tanh_cpu, 1 },
    { "gelu_tanh_mul", dti_gelu_tanh_mul_cpu, 2 },
    { "soft_cap", dti_soft_cap_cpu, 1 },
};

static void run_element_op(const element_op *op, dt_dtype t, int64_t n, kt_fill fill)
{
    const int64_t shape[] = { n };
    kt_case c = { .name = op->name, .kernel = op->kernel, .n_in = op->n_in, .attr = &test_cap };

    for (int i = 0; i < op->n_in; i++) c.in[i] = kt_filled(t, 1, shape, fill, (uint32_t)(7 + i));
    c.out = (dt_local){ .dtype = t, .n_axes = 1, .shape = { n } };
    kt_expect(&c);
    for (int64_t i = 0; i < n; i++)
        element(op->name, t, kt_get(&c.in[0], i), op->n_in > 1 ? kt_get(&c.in[1], i) : 0.0,
                &c.want[i], &c.slack[i]);
    for (int64_t i = 0; t == DT_F16 && i < n; i++) /* beyond the largest half */
        if (fabs(c.want[i]) >= 65520.0) c.want[i] = copysign((double)INFINITY, c.want[i]);
    kt_run(&c);
}

DT_TEST(kernels, elementwise_operators_match_float64)
{
    for (size_t o = 0; o < DT_COUNT(element_ops); o++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            for (size_t s = 0; s < DT_COUNT(kt_sizes); s++)
                run_element_op(&element_ops[o], kt_floats[t], kt_sizes[s], KT_UNIFORM);
            run_element_op(&element_ops[o], kt_floats[t], 33, KT_EQUAL);
            run_element_op(&element_ops[o], kt_floats[t], 250, KT_MIXED);
            run_element_op(&element_ops[o], kt_floats[t], 70001, KT_UNIFORM); /* wakes the pool */
        }
}

DT_TEST(kernels, activations_keep_their_limits)
{
    static const float x[] = {
        0.0f, -0.0f, 100.0f, -100.0f, 3e38f, -3e38f, INFINITY, 89.0f, -89.0f
    };
    static const float silu_of[] = {
        0.0f, -0.0f, 100.0f, 0.0f, 3e38f, 0.0f, INFINITY, 89.0f, 0.0f
    };

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        dt_local in = {
            .data = (void *)(uintptr_t)x, .dtype = DT_F32, .n_axes = 1, .shape = { 9 }
        };
        float y[9];
        dt_local out = in;
        dti_cpu *cpu;
        out.data = y;
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
        DT_ASSERT_OK(dti_silu_cpu(&(dt_kargs){ &in, &out, NULL, cpu, 1, 1, NULL }));
        for (int i = 0; i < 9; i++) DT_ASSERT(y[i] == silu_of[i] || fabsf(y[i]) < 1e-36f);
        DT_ASSERT_OK(dti_gelu_new_cpu(&(dt_kargs){ &in, &out, NULL, cpu, 1, 1, NULL }));
        DT_ASSERT(y[0] == 0.0f && y[2] == 100.0f && y[3] == 0.0f && isinf(y[6]));
        dti_cpu_destroy(&cpu);
    }
}

static double ulps(float got, double want)
{
    int exponent;

    if (got == (float)want) return 0.0;
    (void)frexp(want, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent < -125 ? -149 : exponent - 24);
}

/* Every 4001st float. Measured over every 37th: 0.98 and 1.30. */
DT_TEST(kernels, exp_and_tanh_are_as_exact_as_they_say)
{
    double worst_exp = 0.0, worst_tanh = 0.0;

    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4001) {
        const float x = dti_float_of_bits((uint32_t)bits);
        const float e = vf_exp(vf_set(x))[0], t = vf_tanh(vf_set(x))[0];
        if (isnan(x)) {
            DT_ASSERT(isnan(e) && isnan(t));
            continue;
        }
        if (exp((double)x) < (double)3.4e38f) worst_exp = fmax(worst_exp, ulps(e, exp((double)x)));
        if (x > 89.0f) DT_ASSERT(isinf(e));
        worst_tanh = fmax(worst_tanh, ulps(t, tanh((double)x)));
    }
    DT_ASSERT_CLOSE(worst_exp, 0.5, 0.5);
    DT_ASSERT_CLOSE(worst_tanh, 0.75, 0.75);
}

/* --- cast and bias ---------------------------------------------------------------------------- */

static void run_cast(dt_dtype from, dt_dtype to, int64_t n, kt_fill fill)
{
    const int64_t shape[] = { n };
    const dti_dtype_attr attr = { to };
    kt_case c = { .name = "cast", .kernel = dti_cast_cpu, .n_in = 1, .attr = &attr };

    c.in[0] = kt_filled(from, 1, shape, fill, 3);
    c.out = (dt_local){ .dtype = to, .n_axes = 1, .shape = { n } };
    kt_expect(&c);
    for (int64_t i = 0; i < n; i++) c.want[i] = kt_round(to, kt_get(&c.in[0], i));
    kt_run(&c);
}

DT_TEST(kernels, cast_rounds_to_nearest)
{
    static const dt_dtype all[] = { DT_F32, DT_BF16, DT_F16, DT_F64 };

    for (size_t from = 0; from < DT_COUNT(all); from++)
        for (size_t to = 0; to < DT_COUNT(all); to++) {
            for (size_t s = 0; s < DT_COUNT(kt_sizes); s++)
                run_cast(all[from], all[to], kt_sizes[s], KT_UNIFORM);
            run_cast(all[from], all[to], 40000, KT_MIXED);
        }
}

/* Every bf16 and f16 pattern goes to f32 and back to itself, on every instruction set. */
DT_TEST(kernels, casts_of_every_half_are_exact)
{
    enum { N = 1 << 16 };
    static uint16_t x[N], back[N];
    static float wide[N];

    for (int i = 0; i < N; i++) x[i] = (uint16_t)i;
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (int t = 1; t < 3; t++) {
            dt_local half = { .data = x, .dtype = kt_floats[t], .n_axes = 1, .shape = { N } };
            dt_local f32 = { .data = wide, .dtype = DT_F32, .n_axes = 1, .shape = { N } };
            dt_local again = half;
            dti_cpu *cpu;
            again.data = back;
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            DT_ASSERT_OK(dti_cast_cpu(&(dt_kargs){ &half, &f32, NULL, cpu, 1, 1, NULL }));
            DT_ASSERT_OK(dti_cast_cpu(&(dt_kargs){ &f32, &again, NULL, cpu, 1, 1, NULL }));
            for (int i = 0; i < N; i++) {
                const float want = dti_load_f32(x, kt_floats[t], i);
                if (isnan(want) ? !isnan(wide[i]) : wide[i] != want || back[i] != x[i])
                    dt_test_fail(__FILE__, __LINE__, "%s %04x becomes %g, then %04x",
                                 dt_dtype_name(kt_floats[t]), (unsigned)i, (double)wide[i],
                                 (unsigned)back[i]);
            }
            dti_cpu_destroy(&cpu);
        }
}

/* f32 values in the middle between two halves, and one ulp to either side. */
DT_TEST(kernels, casts_round_ties_to_even)
{
    enum { N = 3 * 4096 };
    static float x[N];
    static uint16_t y[N];

    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (int t = 1; t < 3; t++) {
            dt_local wide = { .data = x, .dtype = DT_F32, .n_axes = 1, .shape = { N } };
            dt_local half = { .data = y, .dtype = kt_floats[t], .n_axes = 1, .shape = { N } };
            dti_cpu *cpu;
            for (int i = 0; i < N; i++) {
                const uint32_t tie = t == 1 ? 0x3f808000u + ((uint32_t)(i / 3) << 16)
                                            : 0x38001000u + ((uint32_t)(i / 3) << 13);
                x[i] = dti_float_of_bits(tie + (uint32_t)(i % 3) - 1u);
            }
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            DT_ASSERT_OK(dti_cast_cpu(&(dt_kargs){ &wide, &half, NULL, cpu, 1, 1, NULL }));
            for (int i = 0; i < N; i++)
                DT_ASSERT_EQ_INT(y[i], t == 1 ? dti_f32_to_bf16(x[i]) : dti_f32_to_f16(x[i]));
            dti_cpu_destroy(&cpu);
        }
}

DT_TEST(kernels, add_bias_rounds_once)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(kt_sizes); s++)
            for (int64_t rows = 0; rows < 5; rows += 2) {
                const int64_t n = kt_sizes[s], shape[] = { rows, n };
                const dti_dtype_attr attr = { kt_floats[t] };
                kt_case c = { .name = "add_bias", .kernel = dti_add_bias_cpu, .attr = &attr };
                c.n_in = 2;
                c.in[0] = kt_filled(rows == 2 ? DT_F32 : kt_floats[t], 2, shape, KT_UNIFORM, 5);
                c.in[1] = kt_filled(kt_floats[t], 1, shape + 1, KT_UNIFORM, 6);
                c.out = (dt_local){ .dtype = kt_floats[t], .n_axes = 2, .shape = { rows, n } };
                kt_expect(&c);
                for (int64_t i = 0; i < rows * n; i++) {
                    c.want[i] = kt_get(&c.in[0], i) + kt_get(&c.in[1], i % n);
                    c.slack[i] = 0x1p-24; /* of the f32 sum before it is rounded */
                }
                kt_run(&c);
            }
}

static dt_status uses_the_portable_ones(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    DT_EXPECT_EQ_STR(dt_kernels_of(dt_mesh_runtime(mesh)), "portable");
    return DT_OK;
}

DT_TEST(kernels, users_learn_their_names)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    bool best = false;
    int n = 0;

    for (; dt_kernels_name(n) != NULL; n++)
        best |= strcmp(dt_kernels_name(n), dt_kernels_best()) == 0;
    DT_ASSERT(best && n >= 1);
    DT_ASSERT_EQ_STR(dt_kernels_name(0), "portable");
    DT_ASSERT(dt_kernels_name(-1) == NULL);
    DT_ASSERT_OK(dt_kernels_check("auto"));
    DT_ASSERT_OK(dt_kernels_check(dt_kernels_best()));
    DT_ASSERT_STATUS(dt_kernels_check("mmx"), DT_ERR_ARG, "mmx");
    DT_ASSERT_STATUS(dt_kernels_check(NULL), DT_ERR_ARG, "NULL");
    o.isa = "portable";
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", uses_the_portable_ones, NULL));
}

static void note_workers(void *arg, int worker, int n_workers)
{
    if (worker == 0) *(int *)arg = n_workers;
}

/* Small products of a decode step stay on the rank's own thread: waking another takes longer. */
DT_TEST(kernels, workers_are_woken_for_enough_work_only)
{
    static const struct {
        int64_t bytes;
        int any, stream;
    } rows[] = { { 0, 1, 1 },
                 { DTI_PARALLEL_BYTES - 1, 1, 1 },
                 { DTI_PARALLEL_BYTES, 2, 1 },
                 { DTI_PARALLEL_STREAM_BYTES - 1, 2, 1 },
                 { DTI_PARALLEL_STREAM_BYTES, 2, 2 } };
    DT_ENDS(dti_pool_destroy) dti_pool *pool = NULL;
    DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;

    DT_ASSERT_OK(dti_pool_create(2, false, NULL, NULL, &pool));
    DT_ASSERT_OK(dti_cpu_create(DTI_ISA_PORTABLE, pool, &cpu));
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        int n = 0;
        dti_cpu_run(cpu, rows[i].bytes, note_workers, &n);
        DT_ASSERT_EQ_INT(n, rows[i].any);
        dti_cpu_run_stream(cpu, rows[i].bytes, note_workers, &n);
        DT_ASSERT_EQ_INT(n, rows[i].stream);
    }
}
