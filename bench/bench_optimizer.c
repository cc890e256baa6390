/* SPDX-License-Identifier: Apache-2.0
 *
 * A step of an optimizer, and the exact sum of squares that its norm comes from, beside the rate at
 * which this machine copies memory with as many threads, measured by turns. Bytes are those that
 * must be read and written once; parameters are larger than the caches. */
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/cpu/cpu.h"
#include "dtensor/kernels/digits.h"
#include "dtensor/kernels/step_attrs.h"

enum { MAX_ARRAYS = 5 };

static const bench_column columns[] = {
    { "step", "step", 16, -1 },
    { "threads", "threads", 7, 0 },
    { "element_bytes", "B/element", 9, 0 }, /* read and written */
    { "melements_per_s", "M/s", 8, 0 },
    { "gbs", "GB/s", 7, 2 },
    { "copy_gbs", "copy", 7, 2 },
    { "ratio", "ratio", 6, 3 },
    { "ratio_least", "least", 6, 3 },
    { "ratio_most", "most", 6, 3 },
};

static const dti_adamw_attr adamw = { .scale = 0.5f,
                                      .decay = 0.9999f,
                                      .lerp = 0.1f,
                                      .beta2 = 0.95f,
                                      .rest2 = 0.05f,
                                      .root2 = 0.9f,
                                      .eps = 1e-8f,
                                      .step = -1e-3f };
static const dti_adamw_attr adamw_stochastic = { .scale = 0.5f,
                                                 .decay = 0.9999f,
                                                 .lerp = 0.1f,
                                                 .beta2 = 0.95f,
                                                 .rest2 = 0.05f,
                                                 .root2 = 0.9f,
                                                 .eps = 1e-8f,
                                                 .step = -1e-3f,
                                                 .rounding = { .stochastic = true } };
static const dti_sgd_attr sgd = { .scale = 0.5f, .decay = 1e-4f, .step = -1e-3f };
static const dti_sgd_attr momentum = { .scale = 0.5f,
                                       .decay = 1e-4f,
                                       .momentum = 0.9f,
                                       .rest = 1.0f,
                                       .step = -1e-3f,
                                       .has_momentum = true };

/* Arrays are f32 but for the parameter: array 1. */
typedef struct step_row {
    const char *name;
    dt_kernel kernel;
    const void *attr;
    dt_dtype dtype;
    int n_arrays, bytes; /* of an element: all that is read and written */
} step_row;

static const step_row rows[] = {
    { "adamw f32", dti_adamw_cpu, &adamw, DT_F32, 4, 28 },
    { "adamw bf16+f32", dti_adamw_cpu, &adamw, DT_BF16, 5, 30 }, /* what p was is not read */
    { "adamw bf16", dti_adamw_cpu, &adamw, DT_BF16, 4, 24 },
    { "adamw bf16 random", dti_adamw_cpu, &adamw_stochastic, DT_BF16, 4, 24 },
    { "sgd f32", dti_sgd_cpu, &sgd, DT_F32, 2, 12 },
    { "sgd momentum f32", dti_sgd_cpu, &momentum, DT_F32, 3, 20 },
    { "digits", dti_square_digits_cpu, NULL, DT_F32, 1, 4 },
};

typedef struct step_bench {
    const bench_common *common;
    bench_machine machine;
    dti_cpu *cpu;
    int64_t n, rounds;
    float *array[MAX_ARRAYS];
} step_bench;

static dt_status run_once(const step_bench *b, const step_row *row)
{
    dti_adamw_attr at_random = adamw_stochastic;
    int64_t digits[DTI_DIGITS_N] = { 0 };
    dt_local in[MAX_ARRAYS + 1];
    dt_kargs args = { .in = in, .out = in + 1, .attr = row->attr, .cpu = b->cpu };

    for (int i = 0; i < row->n_arrays; i++)
        in[i] = (dt_local){ .data = b->array[i],
                            .dtype = i == 1 ? row->dtype : DT_F32,
                            .n_axes = 1,
                            .shape = { b->n } };
    args.n_in = row->n_arrays;
    if (row->n_arrays == 1)
        in[args.n_in++] =
            (dt_local){ .data = digits, .dtype = DT_I64, .n_axes = 1, .shape = { DTI_DIGITS_N } };
    args.n_out = args.n_in - 1;
    at_random.rounding.where = (dti_step_where){ .n_axes = 1, .extent = { b->n }, .stride = { 1 } };
    if (row->attr == &adamw_stochastic) args.attr = &at_random;
    DT_TRY(row->kernel(&args));
    return DT_OK;
}

/* Gradients of rows of 512 that are up to 256 times larger than others, their elements products. */
static void fill(const step_bench *b)
{
    uint32_t state = 1;

    for (int64_t i = 0; i < b->n; i++) {
        float x = 0x1p-62f / (float)(1 << i / 512 % 9);
        for (int k = 0; k < 2; k++) {
            state = state * 1664525u + 1013904223u;
            x *= (float)(int32_t)state;
        }
        b->array[0][i] = x;
        for (int a = 1; a < MAX_ARRAYS; a++) b->array[a][i] = 0.01f;
    }
}

static dt_status measure(step_bench *b, const step_row *row, bench_report *report)
{
    const double bytes = (double)b->n * row->bytes;
    bench_samples rate = { 0 }, copy = { 0 }, ratio = { 0 };

    fill(b);
    DT_TRY(run_once(b, row));
    for (int64_t i = 0; i < b->rounds; i++) {
        const double before = bench_copy_gbs(&b->machine);
        int64_t start = dti_now_ns(), times = 0;
        do {
            DT_TRY(run_once(b, row));
            times++;
        } while (dti_now_ns() - start < (b->common->quick ? 1 : 50000000));
        const double gbs = bytes * (double)times / (double)(dti_now_ns() - start);
        const double after = bench_copy_gbs(&b->machine);
        bench_add(&rate, gbs);
        bench_add(&copy, (before + after) / 2);
        bench_add(&ratio, gbs / ((before + after) / 2));
    }
    bench_report_row(report, row->name, (double)b->machine.n_threads, (double)row->bytes,
                     bench_median(&rate) * 1e3 / row->bytes, bench_median(&rate),
                     bench_median(&copy), bench_median(&ratio), bench_quantile(&ratio, 0.0),
                     bench_quantile(&ratio, 1.0));
    return DT_OK;
}

static dt_status run_threads(const bench_common *common, int64_t n, int64_t rounds, int n_threads,
                             bench_report *report)
{
    step_bench b = { .common = common, .n = n, .rounds = rounds };
    const size_t bytes = (size_t)n * sizeof(float);
    dt_status st = DT_OK;
    dti_isa isa;

    DT_TRY(dti_isa_parse(common->isa == NULL ? "auto" : common->isa, &isa));
    DT_TRY(bench_machine_open(n_threads, (size_t)(common->quick ? 8 : 256) << 20, &b.machine));
    DT_TRY_TO(done, st, dti_cpu_create(isa, b.machine.pool, &b.cpu));
    for (int a = 0; a < MAX_ARRAYS; a++)
        DT_TRY_TO(done, st, dti_big_alloc(bytes, (void **)&b.array[a]));
    for (size_t r = 0; r < DT_COUNT(rows); r++) DT_TRY_TO(done, st, measure(&b, &rows[r], report));
done:
    for (int a = 0; a < MAX_ARRAYS; a++) dti_big_free(b.array[a], bytes);
    dti_cpu_destroy(&b.cpu);
    bench_machine_close(&b.machine);
    return st;
}

int main(int argc, char **argv)
{
    bench_common common;
    int64_t elements = (int64_t)1 << 24, rounds = 7;
    const bench_option options[] = {
        { "--elements", "N", "of the parameter (16777216)", BENCH_COUNT, &elements },
        { "--rounds", "N", "samples of which medians are taken (7)", BENCH_COUNT, &rounds },
    };
    bench_report report;
    dt_status st = DT_OK;
    int exit_code = 0;

    if (!bench_parse(argc, argv, "Steps of optimizers and exact norms beside copying memory.",
                     options, DT_COUNT(options), &common, &exit_code))
        return exit_code;
    if (common.quick) {
        elements = 10000;
        rounds = 1;
    }
    bench_report_open(&report, "optimizer", &common, columns, DT_COUNT(columns));
    for (int n = 1; st == DT_OK && n <= (int)common.threads; n = 2 * n)
        st = run_threads(&common, elements, rounds, n, &report);
    return bench_report_close(&report, st);
}
