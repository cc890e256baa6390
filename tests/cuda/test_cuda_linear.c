/* SPDX-License-Identifier: Apache-2.0
 *
 * linear on a device: few rows by tiles and by lanes, many rows by the library and without it,
 * beside float64 and beside the CPU's kernel.
 *
 * A sum of k products in f32 is off by at most k + 2 units of the sum of their magnitudes, in any
 * order of additions; then it is rounded once. The CPU's sum may be off by as much again. */
#include "tests/cuda/products.h"

#include <stdlib.h>

typedef struct linear_case {
    int64_t m, k, n;
    dt_dtype dtype, out;
    bool bias;
    int64_t skew;
    kt_fill fill;
} linear_case;

/* With the simulated library, or as if there were none. A GPU has its own and is not asked. */
static const char *const libraries[] = { "", "none" };

static void open_with(cr_device *d, const char *library)
{
    DT_ASSERT(setenv("DTENSOR_SIM_LT", library, 1) == 0);
    *d = cr_open();
}

/* Opens with the l-th of them; false: there is none. */
static bool open_next(cr_device *d, size_t l)
{
    if (l >= DT_COUNT(libraries) || (l > 0 && dt_test_cuda_is_real(dt_test_cuda_module())))
        return false;
    open_with(d, libraries[l]);
    return true;
}

/* One output beside float64 and the CPU's. `size` is the sum of magnitudes. */
static void check_output(const linear_case *l, int64_t i, double sum, double size, double got,
                         double cpu)
{
    const double slack =
        0x1p-24 * (double)(l->k + 2) * size + (l->out == DT_F16 ? 0x1p-25 : 0x1p-126);
    const double allowed = slack + 1.01 * kt_unit(l->out) * fabs(sum);

    if (fabs(got - sum) <= allowed && fabs(got - cpu) <= 2 * allowed) return;
    dt_test_fail(__FILE__, __LINE__,
                 "linear %lldx%lldx%lld of %s to %s, bias %d, skew %lld: output %lld is %.9g, not "
                 "%.9g (%.3g is allowed), and %.9g on the CPU",
                 (long long)l->m, (long long)l->k, (long long)l->n, dt_dtype_name(l->dtype),
                 dt_dtype_name(l->out), l->bias, (long long)l->skew, (long long)i, got, sum,
                 allowed, cpu);
}

static void check_outputs(const cr_case *c, const linear_case *l, const void *got, const void *cpu)
{
    double *const x = cp_values(&c->in[0]), *const w = cp_values(&c->in[1]);

    for (int64_t i = 0; i < l->m * l->n; i++) {
        const double bias = l->bias ? kt_get(&c->in[2], i % l->n) : 0.0;
        double size;
        const double sum = cp_dot(x + i / l->n * l->k, w + i % l->n * l->k, l->k, &size);
        check_output(l, i, sum + bias, size + fabs(bias), (double)dti_load_f32(got, l->out, i),
                     (double)dti_load_f32(cpu, l->out, i));
    }
    dti_free(x);
    dti_free(w);
}

static cr_case make_case(const linear_case *l, const dti_dtype_attr *attr)
{
    const int64_t x[] = { l->m, l->k }, w[] = { l->n, l->k };
    cr_case c = { .row = l->bias ? "linear_bias" : "linear",
                  .cpu = dti_linear_cpu,
                  .n_in = l->bias ? 3 : 2,
                  .attr = attr,
                  .skew = l->skew,
                  .out = { .dtype = l->out, .n_axes = 2, .shape = { l->m, l->n } } };

    c.in[0] = kt_filled(l->dtype, 2, x, l->fill, 11);
    c.in[1] = kt_filled(l->dtype, 2, w, l->fill, 12);
    if (l->bias) c.in[2] = kt_filled(l->dtype, 1, w, l->fill, 13);
    return c;
}

/* Twice: a run repeats bit for bit. */
static void run_linear(const cr_device *d, linear_case l)
{
    const dti_dtype_attr attr = { l.out };
    cr_case c = make_case(&l, &attr);
    const size_t bytes = cr_bytes(&c.out);
    unsigned char *got, *again, *cpu;

    DT_ASSERT_OK(dti_big_alloc(bytes + 64, (void **)&got));
    DT_ASSERT_OK(dti_big_alloc(bytes + 64, (void **)&again));
    DT_ASSERT_OK(dti_big_alloc(bytes + 64, (void **)&cpu));
    cr_run_cuda(&c, d, got);
    cr_run_cuda(&c, d, again);
    DT_ASSERT(bytes == 0 || memcmp(got, again, bytes) == 0);
    cr_run_cpu(&c, cpu);
    check_outputs(&c, &l, got, cpu);
    dti_big_free(got, bytes + 64);
    dti_big_free(again, bytes + 64);
    dti_big_free(cpu, bytes + 64);
    for (int i = 0; i < c.n_in; i++) kt_release(&c.in[i]);
}

/* One of the ways to have a dtype, a result, a bias and an alignment, drawn by `state`. */
static void run_one(const cr_device *d, int64_t m, int64_t k, int64_t n, uint32_t *state)
{
    const dt_dtype t = kt_floats[kt_random(state) % 3];

    run_linear(d, (linear_case){ .m = m,
                                 .k = k,
                                 .n = n,
                                 .dtype = t,
                                 .out = kt_random(state) % 2 == 0 ? t : DT_F32,
                                 .bias = kt_random(state) % 2 == 0,
                                 .skew = kt_random(state) % 4 == 0 ? 1 : 0 });
}

static const int64_t depths[] = { 0, 1, 7, 8, 40, 129, 136, 520 };
static const int64_t widths[] = { 0, 1, 16, 17, 35, 130 };

DT_TEST(cuda_linear, few_rows_of_all_sizes)
{
    static const int64_t rows[] = { 0, 1, 2, 5, 8, 9, 16 };
    CR_DEVICE d = cr_open();
    uint32_t state = 1;

    for (size_t m = 0; m < DT_COUNT(rows); m++)
        for (size_t k = 0; k < DT_COUNT(depths); k++)
            for (size_t n = 0; n < DT_COUNT(widths); n++)
                run_one(&d, rows[m], depths[k], widths[n], &state);
}

DT_TEST(cuda_linear, many_rows_of_all_sizes)
{
    static const int64_t rows[] = { 9, 17, 129 };
    static const int64_t few_depths[] = { 0, 1, 40, 129 };
    static const int64_t few_widths[] = { 1, 17, 130 };
    uint32_t state = 1;
    cr_device d;

    for (size_t l = 0; open_next(&d, l); l++) {
        for (size_t m = 0; m < DT_COUNT(rows); m++)
            for (size_t k = 0; k < DT_COUNT(few_depths); k++)
                for (size_t n = 0; n < DT_COUNT(few_widths); n++)
                    run_one(&d, rows[m], few_depths[k], few_widths[n], &state);
        cr_close(&d);
    }
}

/* All 24 ways at sizes that fill some tiles and end within others. */
DT_TEST(cuda_linear, every_dtype_result_bias_and_alignment)
{
    static const int64_t rows[] = { 3, 13, 70 };
    cr_device d;

    for (size_t l = 0; open_next(&d, l); l++) {
        for (size_t which = 0; which < 24 * DT_COUNT(rows); which++)
            run_linear(&d, (linear_case){ .m = rows[which / 24],
                                          .k = 72,
                                          .n = 70,
                                          .dtype = kt_floats[which % 3],
                                          .out = which / 3 % 2 ? DT_F32 : kt_floats[which % 3],
                                          .bias = which / 6 % 2 != 0,
                                          .skew = (int64_t)(which / 12 % 2) });
        cr_close(&d);
    }
}

/* Few outputs and many columns: blocks share the columns. */
DT_TEST(cuda_linear, few_outputs_of_long_rows)
{
    static const struct {
        int64_t m, k, n;
        dt_dtype dtype;
    } cases[] = {
        { 1, 16392, 16, DT_BF16 }, { 11, 16392, 17, DT_F16 }, /* tiles */
        { 1, 4096, 16, DT_F32 },   { 8, 2048, 17, DT_F32 },   /* lanes, 16 bytes */
        { 3, 4001, 20, DT_BF16 },  { 2, 4001, 9, DT_F32 },    /* one by one */
    };
    CR_DEVICE d = cr_open();

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        for (int bias = 0; bias < 2; bias++)
            run_linear(&d, (linear_case){ .m = cases[i].m,
                                          .k = cases[i].k,
                                          .n = cases[i].n,
                                          .dtype = cases[i].dtype,
                                          .out = bias ? cases[i].dtype : DT_F32,
                                          .bias = bias != 0 });
}

DT_TEST(cuda_linear, huge_and_tiny_side_by_side)
{
    static const int64_t rows[] = { 1, 6, 18 };
    static const kt_fill fills[] = { KT_MIXED, KT_EQUAL, KT_ZERO };
    cr_device d;

    for (size_t l = 0; open_next(&d, l); l++) {
        for (size_t i = 0; i < DT_COUNT(rows) * DT_COUNT(fills) * 3; i++)
            run_linear(&d, (linear_case){ .m = rows[i % 3],
                                          .k = 248,
                                          .n = 33,
                                          .dtype = kt_floats[i / 3 % 3],
                                          .out = DT_F32,
                                          .bias = true,
                                          .fill = fills[i / 9] });
        cr_close(&d);
    }
}

static bool is_skinny(const linear_case *l)
{
    return l->m <= 8 || (l->m <= 16 && l->dtype != DT_F32 && l->k % 8 == 0);
}

/* The fewest rows that get the kernel that these get. */
static int64_t least_rows(const linear_case *l)
{
    if (l->m > 16) return l->m - 7;
    return is_skinny(l) ? 1 : 9;
}

/* What a row of x holds stays in its row of y: bits of other rows, and what is not a number. The
 * library promises no such thing. A GPU has one, but not for a bias of 16 bits on f32. */
DT_TEST(cuda_linear, a_row_does_not_depend_on_its_neighbours)
{
    static const int64_t most[] = { 8, 16, 70 }, depth[] = { 200, 199 };
    const dti_dtype_attr attr = { DT_F32 };
    enum { N = 37 };
    static float all[70 * N], some[70 * N];
    cr_device d;

    open_with(&d, "none");
    for (size_t i = 0; i < 6 * DT_COUNT(most); i++) {
        const linear_case l = { .m = most[i % 3],
                                .k = depth[i / 3 % 2],
                                .n = N,
                                .dtype = kt_floats[i / 6],
                                .out = DT_F32,
                                .bias = kt_floats[i / 6] != DT_F32 };
        cr_case c;
        if (dt_test_cuda_is_real(d.m) && l.dtype == DT_F32 && !is_skinny(&l)) continue;
        c = make_case(&l, &attr);
        cr_run_cuda(&c, &d, all);
        for (int64_t m = l.m - 1; m >= least_rows(&l); m -= 2) {
            c.in[0].shape[0] = c.out.shape[0] = m;
            cr_run_cuda(&c, &d, some);
            DT_ASSERT(memcmp(all, some, (size_t)(m * N) * sizeof(float)) == 0);
        }
        c.in[0].shape[0] = c.out.shape[0] = l.m;
        dti_store_f32(c.in[0].data, l.dtype, 0, INFINITY); /* of row 0 */
        dti_store_f32(c.in[0].data, l.dtype, 1, NAN);
        cr_run_cuda(&c, &d, some);
        DT_ASSERT(memcmp(all + N, some + N, (size_t)((l.m - 1) * N) * sizeof(float)) == 0);
        for (int o = 0; o < N; o++) DT_ASSERT(isnan(some[o]));
        for (int j = 0; j < c.n_in; j++) kt_release(&c.in[j]);
    }
    cr_close(&d);
}

/* Numbers of rows that share the algorithm of a bucket, and that the library wants asked anew. */
DT_TEST(cuda_linear, plans_serve_other_numbers_of_rows)
{
    static const int64_t rows[] = { 40, 35, 48, 40, 600, 601, 768, 600 };
    cr_device d;

    open_with(&d, "");
    for (size_t m = 0; m < DT_COUNT(rows); m++)
        run_linear(&d, (linear_case){ .m = rows[m],
                                      .k = 24,
                                      .n = 20,
                                      .dtype = DT_BF16,
                                      .out = DT_BF16,
                                      .bias = m % 2 == 0 });
    cr_close(&d);
}

/* The first large product may come while a graph is recorded. */
DT_TEST(cuda_linear, products_are_recorded_and_launched_again)
{
    enum { M = 40, K = 64, N = 48 };
    const dti_dtype_attr attr = { DT_F32 };
    const linear_case l = { .m = M, .k = K, .n = N, .dtype = DT_F16, .out = DT_F32 };
    static float want[M * N], got[M * N];
    dti_cuda_graph *graph = NULL;
    dt_local in[2], out;
    cr_device d;
    cr_case c;

    open_with(&d, "");
    c = make_case(&l, &attr);
    cr_run_cpu(&c, want);
    for (int i = 0; i < 2; i++) {
        in[i] = c.in[i];
        in[i].data = cr_up(&d, &c.in[i], 0);
    }
    out = c.out;
    out.data = cr_up(&d, &c.out, 0);
    DT_ASSERT_CUDA(d.m, d.m->capture_begin(d.c));
    DT_ASSERT_CUDA(
        d.m, dt_test_cuda_row(d.m, "linear")(
                 d.c, &(dt_kargs){ .in = in, .out = &out, .attr = &attr, .n_in = 2, .n_out = 1 }));
    DT_ASSERT_CUDA(d.m, d.m->capture_end(d.c, &graph));
    for (int launch = 0; launch < 2; launch++) {
        DT_ASSERT_CUDA(d.m, d.m->clear(d.c, out.data, sizeof got));
        DT_ASSERT_CUDA(d.m, d.m->graph_launch(d.c, graph));
        cr_down(&c, &d, out.data, got);
        for (int i = 0; i < M * N; i++)
            DT_ASSERT(fabsf(got[i] - want[i]) <= 0x1p-23f * (K + 2) * K); /* terms are below 1 */
    }
    d.m->graph_destroy(graph);
    for (int i = 0; i < 2; i++) {
        cr_release(&d, &c.in[i], in[i].data, 0);
        kt_release(&c.in[i]);
    }
    cr_release(&d, &c.out, out.data, 0);
    cr_close(&d);
}

DT_TEST(cuda_linear, dtypes_that_do_not_fit_are_refused)
{
    dt_local in[3] = { { .dtype = DT_BF16, .n_axes = 2, .shape = { 1, 1 } },
                       { .dtype = DT_F16, .n_axes = 2, .shape = { 1, 1 } },
                       { .dtype = DT_F32, .n_axes = 1, .shape = { 1 } } };
    dt_local out = { .dtype = DT_F16, .n_axes = 2, .shape = { 1, 1 } };
    const dt_kargs args = { .in = in, .out = &out, .n_in = 3, .n_out = 1 };
    dti_cuda_kernel linear;
    CR_DEVICE d = cr_open();

    linear = dt_test_cuda_row(d.m, "linear_bias");
    DT_ASSERT_CUDA_FAILS(d.m, linear(d.c, &args), "x is bf16 but w is f16");
    in[0].dtype = DT_F16;
    DT_ASSERT_CUDA_FAILS(d.m, linear(d.c, &args), "bias is f32 but w is f16");
    in[2].dtype = DT_F16;
    out.dtype = DT_BF16;
    DT_ASSERT_CUDA_FAILS(d.m, linear(d.c, &args), "the result is that or f32, not bf16");
    for (int i = 0; i < 3; i++) in[i].dtype = DT_F64;
    out.dtype = DT_F64;
    DT_ASSERT_CUDA_FAILS(d.m, linear(d.c, &args), "no kernel for f64");
}

/* --- gradients -------------------------------------------------------------------------------- */

/* dx [m, n] of dy [m, k] and w [k, n]; or dw [m, n] of dy [k, m] and x [k, n]. */
static void run_turned(const cr_device *d, bool of_w, linear_case l)
{
    const int64_t first[] = { of_w ? l.k : l.m, of_w ? l.m : l.k }, second[] = { l.k, l.n };
    const dti_dtype_attr attr = { l.out };
    cr_case c = { .row = of_w ? "linear_backward_w" : "linear_backward_x",
                  .cpu = of_w ? dti_linear_backward_w_cpu : dti_linear_backward_x_cpu,
                  .n_in = 2,
                  .attr = &attr,
                  .skew = l.skew,
                  .ulps = l.out == DT_F32 ? 0.0 : 1.0,
                  .slack = 0x1p-23 * (double)(l.k + 2) * ((double)l.k / 3 + 1),
                  .out = { .dtype = l.out, .n_axes = 2, .shape = { l.m, l.n } } };

    c.in[0] = kt_filled(l.dtype, 2, first, KT_UNIFORM, 11);
    c.in[1] = kt_filled(l.dtype, 2, second, KT_UNIFORM, 12);
    cr_run(&c, d);
}

DT_TEST(cuda_linear, gradients_are_those_of_the_cpu)
{
    static const int64_t sizes[][3] = { { 1, 1, 1 },   { 0, 5, 3 },    { 5, 0, 3 },    { 3, 7, 0 },
                                        { 9, 17, 35 }, { 70, 72, 68 }, { 33, 130, 64 } };
    cr_device d;

    for (size_t l = 0; open_next(&d, l); l++) {
        for (size_t s = 0; s < DT_COUNT(sizes); s++)
            for (size_t which = 0; which < 3 * DT_COUNT(kt_floats); which++) {
                linear_case of = { .m = sizes[s][0],
                                   .k = sizes[s][1],
                                   .n = sizes[s][2],
                                   .dtype = kt_floats[which % 3],
                                   .skew = (int64_t)(which % 2) };
                of.out = which / 3 == 0 ? of.dtype : DT_F32;
                run_turned(&d, which / 3 == 2, of);
            }
        cr_close(&d);
    }
}

/* Plans are by size: what has another number of tokens, or lies the other way, is another. */
DT_TEST(cuda_linear, gradients_of_many_sizes_share_a_device)
{
    cr_device d;

    open_with(&d, libraries[0]);
    for (int64_t m = 60; m <= 68; m += 4)
        for (int of_w = 0; of_w < 2; of_w++)
            for (int again = 0; again < 2; again++) {
                run_turned(
                    &d, of_w != 0,
                    (linear_case){ .m = m, .k = 64, .n = 64, .dtype = DT_BF16, .out = DT_F32 });
                run_linear(
                    &d, (linear_case){ .m = m, .k = 64, .n = 64, .dtype = DT_BF16, .out = DT_F32 });
            }
    cr_close(&d);
}
