/* SPDX-License-Identifier: Apache-2.0
 *
 * The three products of a layer in training: y = x w^T, dx = dy w, dw = dy^T x, beside the peak of
 * multiply-adds, by turns so that a busy machine slows all of them alike. The shapes are those of a
 * small Llama (tokens, out, in), or one that is given. */
#include "base/dtype.h"
#include "base/memory.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/cpu/cpu.h"

enum { FORWARD, DX, DW, N_PRODUCTS, SAMPLE_NS = 30000000 };

static const bench_column columns[] = {
    { "dtype", "dtype", 5, -1 },
    { "threads", "threads", 7, 0 },
    { "tokens", "tokens", 6, 0 },
    { "out", "out", 6, 0 },
    { "in", "in", 6, 0 },
    { "forward_gflops", "forward", 8, 1 }, /* GFLOP/s */
    { "dx_gflops", "dx", 8, 1 },
    { "dw_gflops", "dw", 8, 1 },
    { "dx_ratio", "dx/fwd", 6, 3 },
    { "dw_ratio", "dw/fwd", 6, 3 },
    { "peak_gflops", "peak", 8, 1 }, /* of f32, or of bf16 dot products */
    { "dx_peak_ratio", "dx/peak", 7, 3 },
    { "dw_peak_ratio", "dw/peak", 7, 3 },
};

typedef struct products_shape {
    int64_t tokens, out, in;
} products_shape;

static const products_shape shapes[] = {
    { 1024, 512, 512 }, { 1024, 1408, 512 }, { 1024, 512, 1408 }, { 1024, 8192, 512 }
};

typedef struct products_case {
    dti_cpu *cpu;
    dt_dtype dtype;
    products_shape shape;
    int which;
    dt_local x, w, y, dw; /* y is dy too */
} products_case;

static dt_status multiply(void *arg)
{
    products_case *c = arg;
    const dti_dtype_attr attr = { c->dtype };
    dt_local xw[2] = { c->x, c->w }, yw[2] = { c->y, c->w }, yx[2] = { c->y, c->x };
    dt_local x = c->x;

    if (c->which == FORWARD)
        DT_TRY(dti_linear_cpu(&(dt_kargs){ xw, &c->y, &attr, c->cpu, 2, 1, NULL }));
    else if (c->which == DX)
        DT_TRY(dti_linear_backward_x_cpu(&(dt_kargs){ yw, &x, &attr, c->cpu, 2, 1, NULL }));
    else
        DT_TRY(dti_linear_backward_w_cpu(&(dt_kargs){ yx, &c->dw, NULL, c->cpu, 2, 1, NULL }));
    return DT_OK;
}

static dt_status measure(products_case *c, const bench_machine *machine, const bench_common *common,
                         int64_t rounds, bench_report *report)
{
    const double gflop =
        2e-9 * (double)c->shape.tokens * (double)c->shape.out * (double)c->shape.in;
    bench_samples rate[N_PRODUCTS] = { 0 }, ratio[N_PRODUCTS] = { 0 }, of_peak[N_PRODUCTS] = { 0 };
    bench_samples peaks = { 0 };

    for (c->which = 0; c->which < N_PRODUCTS; c->which++) DT_TRY(multiply(c));
    for (int64_t i = 0; i < rounds; i++) {
        const double peak =
            c->dtype == DT_BF16 ? bench_bf16_gflops(machine) : bench_f32_gflops(machine);
        double forward = 0.0;
        bench_add(&peaks, peak);
        for (int p = 0; p < N_PRODUCTS; p++) {
            double seconds;
            c->which = p;
            DT_TRY(bench_repeat(common, SAMPLE_NS, multiply, c, &seconds));
            if (p == FORWARD) forward = gflop / seconds;
            bench_add(&rate[p], gflop / seconds);
            bench_add(&ratio[p], gflop / seconds / forward);
            bench_add(&of_peak[p], gflop / seconds / peak);
        }
    }
    bench_report_row(report, dt_dtype_name(c->dtype), (double)machine->n_threads,
                     (double)c->shape.tokens, (double)c->shape.out, (double)c->shape.in,
                     bench_median(&rate[FORWARD]), bench_median(&rate[DX]), bench_median(&rate[DW]),
                     bench_median(&ratio[DX]), bench_median(&ratio[DW]), bench_median(&peaks),
                     bench_median(&of_peak[DX]), bench_median(&of_peak[DW]));
    return DT_OK;
}

static dt_status matrix(dt_dtype dtype, int64_t rows, int64_t n_columns, dt_local *out)
{
    const int64_t n = rows * n_columns;

    *out = (dt_local){ .dtype = dtype, .n_axes = 2, .shape = { rows, n_columns } };
    DT_TRY(dti_big_alloc((size_t)n * dt_dtype_size(dtype), &out->data));
    for (int64_t i = 0; i < n; i++) dti_store_f32(out->data, dtype, i, 0.0078125f);
    return DT_OK;
}

static void matrix_free(dt_local *x)
{
    dti_big_free(x->data, (size_t)dti_local_count(x) * dt_dtype_size(x->dtype));
}

static dt_status run_case(const bench_machine *machine, const bench_common *common, dt_dtype dtype,
                          products_shape s, int64_t rounds, bench_report *report)
{
    products_case c = { .dtype = dtype, .shape = s };
    dt_status st = DT_OK;
    dti_isa isa;

    DT_TRY(dti_isa_parse(common->isa == NULL ? "auto" : common->isa, &isa));
    DT_TRY(dti_cpu_create(isa, machine->pool, &c.cpu));
    DT_TRY_TO(done, st, matrix(dtype, s.tokens, s.in, &c.x));
    DT_TRY_TO(done, st, matrix(dtype, s.out, s.in, &c.w));
    DT_TRY_TO(done, st, matrix(dtype, s.tokens, s.out, &c.y));
    DT_TRY_TO(done, st, matrix(DT_F32, s.out, s.in, &c.dw));
    DT_TRY_TO(done, st, measure(&c, machine, common, rounds, report));
done:
    matrix_free(&c.dw);
    matrix_free(&c.y);
    matrix_free(&c.w);
    matrix_free(&c.x);
    dti_cpu_destroy(&c.cpu);
    return st;
}

static dt_status run_threads(const bench_common *common, const products_shape *own, int64_t rounds,
                             int n_threads, bench_report *report)
{
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16 };
    bench_machine machine;
    dt_status st = DT_OK;

    DT_TRY(bench_machine_open(n_threads, (size_t)8 << 20, &machine));
    for (size_t t = 0; t < DT_COUNT(dtypes); t++)
        for (size_t s = 0; s < (own->tokens > 0 ? 1 : DT_COUNT(shapes)); s++)
            DT_TRY_TO(done, st,
                      run_case(&machine, common, dtypes[t], own->tokens > 0 ? *own : shapes[s],
                               rounds, report));
done:
    bench_machine_close(&machine);
    return st;
}

int main(int argc, char **argv)
{
    bench_common common;
    products_shape own = { 0, 512, 512 };
    int64_t rounds = 7;
    const bench_option options[] = {
        { "--tokens", "N", "rows of x and dy (a list of shapes)", BENCH_COUNT, &own.tokens },
        { "--out", "N", "rows of w, with --tokens (512)", BENCH_COUNT, &own.out },
        { "--in", "N", "columns of w, with --tokens (512)", BENCH_COUNT, &own.in },
        { "--rounds", "N", "samples of which medians are taken (7)", BENCH_COUNT, &rounds },
    };
    bench_report report;
    dt_status st = DT_OK;
    int exit_code = 0;

    if (!bench_parse(argc, argv, "Products of linear and its gradients beside the peak.", options,
                     DT_COUNT(options), &common, &exit_code))
        return exit_code;
    if (common.quick) {
        own = (products_shape){ 64, 96, 80 };
        rounds = 1;
    }
    bench_report_open(&report, "linear_backward", &common, columns, DT_COUNT(columns));
    for (int n = 1; st == DT_OK && n <= (int)common.threads; n = 2 * n)
        st = run_threads(&common, &own, rounds, n, &report);
    return bench_report_close(&report, st);
}
