/* SPDX-License-Identifier: Apache-2.0
 *
 * y = x w^T for few rows (decode) and many (prefill), beside what the machine can do at most: the
 * reading of memory, since each weight is read once, and the peak of multiply-adds. The limits are
 * measured right before and after each sample, with as many threads. Weights rotate over memory
 * that is larger than the caches. */
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/cpu/cpu.h"

static const bench_column columns[] = {
    { "dtype", "dtype", 5, -1 },
    { "threads", "threads", 7, 0 },
    { "rows", "rows", 5, 0 },
    { "in", "in", 6, 0 },
    { "out", "out", 6, 0 },
    { "us", "us", 9, 1 },
    { "bound_us", "bound", 9, 1 }, /* the longer of reading w and of the arithmetic */
    { "bound_ratio", "ratio", 6, 3 },
    { "weights_gbs", "GB/s of w", 9, 1 },
    { "read_gbs", "read", 6, 1 },
    { "read_ratio", "ratio", 6, 3 },
    { "gflops", "GFLOP/s", 8, 1 },
    { "fma_gflops", "FMA peak", 8, 1 }, /* of f32, the instruction that f32 and f16 end up in */
    { "fma_ratio", "ratio", 6, 3 },
    { "dot_gflops", "dot peak", 8, 1 }, /* vdpbf16ps; bf16 alone, as the next two */
    { "tile_gflops", "tile peak", 9, 1 },
    { "tile_ratio", "ratio", 6, 3 },
};

typedef struct linear_options {
    bench_common common;
    int64_t in, out;
    int64_t rows; /* 0: a list */
    int64_t rounds;
    int64_t memory; /* MiB */
    int64_t group;
    const char *dtype;
} linear_options;

static const int64_t row_list[] = {
    1, 2, 3, 4, 6, 8, 12, 16, 24, 31, 32, 48, 63, 64, 128, 256, 512
};

/* What weights are: of x's dtype, or codes of so many bits with a scale of bf16 for some inputs. */
static const struct linear_form {
    const char *name;
    dt_dtype dtype;
    int bits;
} forms[] = { { "bf16", DT_BF16, 0 }, { "f32", DT_F32, 0 },   { "f16", DT_F16, 0 },
              { "int8", DT_BF16, 8 }, { "int4", DT_BF16, 4 }, { "e4m3", DT_BF16, 8 } };
typedef struct linear_form linear_form;

/* One row of the table. */
typedef struct linear_case {
    const linear_options *options;
    const bench_machine *machine;
    dti_cpu *cpu;
    const linear_form *form;
    int64_t rows;
    dt_local x, y;
    size_t at; /* in the machine's memory: where the next weights lie */
    bench_samples seconds, bound, bound_ratio, read, read_ratio, fma, fma_ratio, dot, tile,
        tile_ratio;
} linear_case;

enum { SAMPLE_NS = 100000000 };

/* Of codes and of scales; of weights, and of nothing. */
static int64_t weight_bytes(const linear_case *c, int64_t *scales)
{
    const linear_options *o = c->options;

    *scales = c->form->bits > 0 ? o->in / o->group * o->out * 2 : 0;
    return c->form->bits > 0 ? o->in * c->form->bits / 8 * o->out
                             : o->in * o->out * (int64_t)dt_dtype_size(c->form->dtype);
}

static dt_status product(void *arg)
{
    linear_case *c = arg;
    const linear_options *o = c->options;
    const int bits = c->form->bits;
    const dti_packed_attr attr = { c->form->dtype, bits, o->group }; /* begins as that of linear */
    int64_t scales;
    const int64_t bytes = weight_bytes(c, &scales);
    dt_local in[3] = { c->x,
                       { .dtype = bits > 0 ? DT_U8 : c->form->dtype,
                         .n_axes = 2,
                         .shape = { o->out, bits > 0 ? o->in * bits / 8 : o->in } },
                       { .dtype = DT_BF16, .n_axes = 2, .shape = { o->out, o->in / o->group } } };
    const dt_kargs args = { in, &c->y, &attr, c->cpu, bits > 0 ? 3 : 2, 1, NULL };

    if (c->at + (size_t)(bytes + scales) > c->machine->bytes) c->at = 0;
    in[1].data = c->machine->memory + c->at;
    in[2].data = c->machine->memory + c->at + bytes;
    c->at += ((size_t)(bytes + scales) + 4095) / 4096 * 4096;
    if (bits == 0)
        DT_TRY(dti_linear_cpu(&args));
    else if (strcmp(c->form->name, "e4m3") == 0)
        DT_TRY(dti_linear_e4m3_cpu(&args));
    else
        DT_TRY(dti_linear_packed_cpu(&args));
    return DT_OK;
}

typedef struct limits {
    double read, fma, dot, tile;
} limits;

static limits measure_limits(const linear_case *c)
{
    const bool bf16 = c->form->dtype == DT_BF16;

    return (limits){ bench_read_gbs(c->machine), bench_f32_gflops(c->machine),
                     bf16 ? bench_bf16_gflops(c->machine) : 0.0,
                     bf16 ? bench_amx_gflops(c->machine) : 0.0 };
}

/* Seconds that w takes from memory, or the products at the peak of what multiplies them. */
static double bound_of(const limits *l, double gigabytes, double gflop)
{
    const double peak = l->tile > 0.0 ? l->tile : l->dot > 0.0 ? l->dot : l->fma;
    const double read = gigabytes / l->read, multiply = gflop / peak;

    return read > multiply ? read : multiply;
}

static dt_status measure(linear_case *c)
{
    const linear_options *o = c->options;
    int64_t scales;
    const double weights = (double)(weight_bytes(c, &scales) + scales) * 1e-9;
    const double gflop = 2e-9 * (double)(c->rows * o->in) * (double)o->out;
    limits before, after;
    double seconds, bound;

    DT_TRY(product(c)); /* scratch and the library's products are made */
    before = measure_limits(c);
    for (int64_t i = 0; i < o->rounds; i++) {
        DT_TRY(bench_repeat(&o->common, SAMPLE_NS, product, c, &seconds));
        after = measure_limits(c);
        bound = (bound_of(&before, weights, gflop) + bound_of(&after, weights, gflop)) / 2;
        bench_add(&c->seconds, seconds);
        bench_add(&c->bound, bound);
        bench_add(&c->bound_ratio, bound / seconds);
        bench_add(&c->read, (before.read + after.read) / 2);
        bench_add(&c->read_ratio, weights / seconds / ((before.read + after.read) / 2));
        bench_add(&c->fma, (before.fma + after.fma) / 2);
        bench_add(&c->fma_ratio, gflop / seconds / ((before.fma + after.fma) / 2));
        if (before.dot > 0.0) bench_add(&c->dot, (before.dot + after.dot) / 2);
        if (before.tile > 0.0) bench_add(&c->tile, (before.tile + after.tile) / 2);
        if (before.tile > 0.0)
            bench_add(&c->tile_ratio, gflop / seconds / ((before.tile + after.tile) / 2));
        before = after;
    }
    return DT_OK;
}

static void print_case(const linear_case *c, bench_report *report)
{
    const linear_options *o = c->options;
    const double seconds = bench_median(&c->seconds);
    int64_t scales;
    const int64_t bytes = weight_bytes(c, &scales);

    bench_report_row(report, c->form->name, (double)c->machine->n_threads, (double)c->rows,
                     (double)o->in, (double)o->out, seconds * 1e6, bench_median(&c->bound) * 1e6,
                     bench_median(&c->bound_ratio), (double)(bytes + scales) * 1e-9 / seconds,
                     bench_median(&c->read), bench_median(&c->read_ratio),
                     2e-9 * (double)(c->rows * o->in) * (double)o->out / seconds,
                     bench_median(&c->fma), bench_median(&c->fma_ratio), bench_median(&c->dot),
                     bench_median(&c->tile), bench_median(&c->tile_ratio));
}

static dt_status matrix(dt_dtype dtype, int64_t rows, int64_t columns_, dt_local *out)
{
    const int64_t n = rows * columns_;

    *out = (dt_local){ .dtype = dtype, .n_axes = 2, .shape = { rows, columns_ } };
    DT_TRY(dti_big_alloc((size_t)n * dt_dtype_size(dtype), &out->data));
    for (int64_t i = 0; i < n; i++) dti_store_f32(out->data, dtype, i, 0.0078125f);
    return DT_OK;
}

static void matrix_free(dt_local *x)
{
    dti_big_free(x->data, (size_t)dti_local_count(x) * dt_dtype_size(x->dtype));
}

static dt_status run_case(const linear_options *o, const bench_machine *machine,
                          const linear_form *form, int64_t rows, bench_report *report)
{
    linear_case c = { .options = o, .machine = machine, .form = form, .rows = rows };
    dt_status st = DT_OK;
    dti_isa isa;

    DT_TRY(dti_isa_parse(o->common.isa == NULL ? "auto" : o->common.isa, &isa));
    DT_TRY(dti_cpu_create(isa, machine->pool, &c.cpu));
    DT_TRY_TO(done, st, matrix(form->dtype, rows, o->in, &c.x));
    DT_TRY_TO(done, st, matrix(form->dtype, rows, o->out, &c.y));
    DT_TRY_TO(done, st, measure(&c));
    print_case(&c, report);
done:
    matrix_free(&c.y);
    matrix_free(&c.x);
    dti_cpu_destroy(&c.cpu);
    return st;
}

static dt_status run_threads(const linear_options *o, int n_threads, bench_report *report)
{
    bench_machine machine;
    dt_status st = DT_OK;

    DT_TRY(bench_machine_open(n_threads, (size_t)o->memory << 20, &machine));
    DT_CHECK_TO(done, st, (size_t)(o->in * o->out) * 4 <= machine.bytes, DT_ERR_ARG,
                "weights of %lld x %lld do not fit into the %zu MiB that they rotate over",
                (long long)o->out, (long long)o->in, machine.bytes >> 20);
    if (n_threads == 1)
        bench_report_fact(report, "memory", "%zu MiB that weights and read rotate over",
                          machine.bytes >> 20);
    else
        bench_report_fact(report, "handoff", "%.0f ns from one thread to another",
                          bench_handoff_ns(&machine));
    for (size_t t = 0; t < DT_COUNT(forms); t++) {
        if (o->dtype != NULL && strcmp(o->dtype, forms[t].name) != 0) continue;
        for (size_t r = 0; r < (o->rows > 0 ? 1 : DT_COUNT(row_list)); r++)
            DT_TRY_TO(
                done, st,
                run_case(o, &machine, &forms[t], o->rows > 0 ? o->rows : row_list[r], report));
    }
done:
    bench_machine_close(&machine);
    return st;
}

int main(int argc, char **argv)
{
    linear_options o = { .in = 4096, .out = 4096, .rounds = 5, .memory = 2048, .group = 128 };
    const bench_option own[] = {
        { "--in", "N", "columns of x and w (4096)", BENCH_COUNT, &o.in },
        { "--out", "N", "rows of w (4096)", BENCH_COUNT, &o.out },
        { "--rows", "N", "rows of x (1 to 512, a list)", BENCH_COUNT, &o.rows },
        { "--rounds", "N", "samples of which medians are taken (5)", BENCH_COUNT, &o.rounds },
        { "--memory", "MIB", "memory that weights rotate over (2048)", BENCH_COUNT, &o.memory },
        { "--group", "N", "inputs that have a scale in common (128)", BENCH_COUNT, &o.group },
        { "--dtype", "NAME", "of w: bf16, f32, f16, int8, int4 or e4m3 (all)", BENCH_TEXT,
          &o.dtype },
    };
    bench_report report;
    dt_status st = DT_OK;
    int exit_code = 0;

    if (!bench_parse(argc, argv, "Products of linear beside the limits of the machine.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.in = o.out = 256;
        o.memory = 8;
        o.rounds = 1;
    }
    bench_report_open(&report, "linear", &o.common, columns, DT_COUNT(columns));
    for (int n = 1; st == DT_OK && n <= (int)o.common.threads; n = 2 * n)
        st = run_threads(&o, n, &report);
    return bench_report_close(&report, st);
}
