/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over a cache, beside what the machine can do at most: the reading of memory, since a
 * pass reads keys and values once, and the peak of multiply-adds. The limits are measured right
 * before and after each sample, with as many threads. Caches rotate over memory that is larger than
 * those of the processor. */
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/cpu/cpu.h"

static const bench_column columns[] = {
    { "dtype", "dtype", 5, -1 },
    { "threads", "threads", 7, 0 },
    { "batch", "batch", 5, 0 },
    { "tokens", "tokens", 6, 0 },
    { "behind", "behind", 6, 0 }, /* keys before the first token; in batch row b a (b + 1)th */
    { "us", "us", 9, 1 },
    { "us_least", "least", 9, 1 },
    { "cache_gbs", "GB/s", 6, 1 },
    { "read_gbs", "read", 6, 1 },
    { "read_ratio", "ratio", 6, 3 },
    { "gflops", "GFLOP/s", 8, 1 },
    { "fma_gflops", "FMA peak", 8, 1 },
    { "fma_ratio", "ratio", 6, 3 },
};

typedef struct attention_options {
    bench_common common;
    int64_t heads, kv, width;
    int64_t batch, tokens, behind; /* tokens 0: a list */
    int64_t rounds;
    int64_t memory; /* MiB */
    const char *dtype;
} attention_options;

typedef struct attention_shape {
    int64_t batch, tokens, behind;
} attention_shape;

static const attention_shape shapes[] = {
    { 1, 1, 512 },   { 1, 1, 4096 },  { 1, 1, 16384 }, { 8, 1, 4096 }, { 1, 4, 4096 },
    { 1, 16, 4096 }, { 1, 64, 4096 }, { 1, 512, 0 },   { 1, 4096, 0 },
};
static const dt_dtype dtypes[] = { DT_BF16, DT_F32, DT_F16 };

/* One row of the table. */
typedef struct attention_case {
    const attention_options *options;
    const bench_machine *machine;
    attention_shape shape;
    dti_cpu *cpu;
    dt_local q, y, positions, cache; /* the cache's data moves */
    size_t at;                       /* in the machine's memory: where the next cache lies */
    double bytes, flops;             /* of a pass */
    bench_samples seconds, read, read_ratio, fma, fma_ratio;
} attention_case;

enum { SAMPLE_NS = 100000000 };

static dt_local next_cache(attention_case *c)
{
    const size_t bytes = (size_t)dti_local_count(&c->cache) * dt_dtype_size(c->cache.dtype);

    if (c->at + bytes > c->machine->bytes) c->at = 0;
    c->cache.data = c->machine->memory + c->at;
    c->at += (bytes + 4095) / 4096 * 4096;
    return c->cache;
}

static dt_status pass(void *arg)
{
    attention_case *c = arg;
    const attention_options *o = c->options;
    const dti_attention_attr attr = { o->heads, o->kv, 0, 0.125f, 0.0f, 0, 0 };
    dt_local in[4] = { c->q };

    in[1] = next_cache(c);
    in[2] = next_cache(c);
    in[3] = c->positions;
    DT_TRY(dti_attention_cpu(&(dt_kargs){ in, &c->y, &attr, c->cpu, 4, 1, NULL }));
    return DT_OK;
}

static dt_status measure(attention_case *c)
{
    double seconds, read, fma, read_after, fma_after;

    DT_TRY(pass(c)); /* scratch is made */
    read = bench_read_gbs(c->machine);
    fma = bench_f32_gflops(c->machine);
    for (int64_t i = 0; i < c->options->rounds; i++) {
        DT_TRY(bench_repeat(&c->options->common, SAMPLE_NS, pass, c, &seconds));
        read_after = bench_read_gbs(c->machine);
        fma_after = bench_f32_gflops(c->machine);
        bench_add(&c->seconds, seconds);
        bench_add(&c->read, (read + read_after) / 2);
        bench_add(&c->fma, (fma + fma_after) / 2);
        bench_add(&c->read_ratio, c->bytes * 1e-9 / seconds / ((read + read_after) / 2));
        bench_add(&c->fma_ratio, c->flops * 1e-9 / seconds / ((fma + fma_after) / 2));
        read = read_after;
        fma = fma_after;
    }
    return DT_OK;
}

/* Positions of the tokens, and what they read and multiply. */
static void place(attention_case *c)
{
    const attention_options *o = c->options;
    const attention_shape *s = &c->shape;

    for (int64_t b = 0; b < s->batch; b++) {
        const int64_t behind = s->behind / (b + 1);
        for (int64_t t = 0; t < s->tokens; t++) {
            ((int32_t *)c->positions.data)[b * s->tokens + t] = (int32_t)(behind + t);
            c->flops += 4.0 * (double)((behind + t + 1) * o->heads * o->width);
        }
        c->bytes += 2.0 * (double)((behind + s->tokens) * o->kv * o->width) *
                    (double)dt_dtype_size(c->q.dtype);
    }
}

static dt_status open_tensors(attention_case *c, dt_dtype dtype)
{
    const attention_options *o = c->options;
    const attention_shape *s = &c->shape;
    const int64_t n = s->batch * s->tokens * o->heads * o->width;

    c->q = c->y = (dt_local){ .dtype = dtype,
                              .n_axes = 4,
                              .shape = { s->batch, s->tokens, o->heads, o->width } };
    c->positions = (dt_local){ .dtype = DT_I32, .n_axes = 2, .shape = { s->batch, s->tokens } };
    c->cache = (dt_local){ .dtype = dtype,
                           .n_axes = 4,
                           .shape = { s->batch, s->behind + s->tokens, o->kv, o->width } };
    DT_TRY(dti_big_alloc((size_t)n * dt_dtype_size(dtype), &c->q.data));
    DT_TRY(dti_big_alloc((size_t)n * dt_dtype_size(dtype), &c->y.data));
    DT_TRY(dti_big_alloc((size_t)(s->batch * s->tokens) * sizeof(int32_t), &c->positions.data));
    for (int64_t i = 0; i < n; i++) dti_store_f32(c->q.data, dtype, i, (float)(i % 7) * 0.125f);
    place(c);
    return DT_OK;
}

static void close_tensors(attention_case *c)
{
    const size_t bytes = (size_t)dti_local_count(&c->q) * dt_dtype_size(c->q.dtype);

    dti_big_free(c->q.data, bytes);
    dti_big_free(c->y.data, bytes);
    dti_big_free(c->positions.data, (size_t)dti_local_count(&c->positions) * sizeof(int32_t));
}

static void print_case(const attention_case *c, bench_report *report)
{
    const double seconds = bench_median(&c->seconds);

    bench_report_row(report, dt_dtype_name(c->q.dtype), (double)c->machine->n_threads,
                     (double)c->shape.batch, (double)c->shape.tokens, (double)c->shape.behind,
                     seconds * 1e6, bench_quantile(&c->seconds, 0) * 1e6, c->bytes * 1e-9 / seconds,
                     bench_median(&c->read), bench_median(&c->read_ratio),
                     c->flops * 1e-9 / seconds, bench_median(&c->fma), bench_median(&c->fma_ratio));
}

static dt_status run_case(const attention_options *o, const bench_machine *machine, dt_dtype dtype,
                          const attention_shape *shape, bench_report *report)
{
    attention_case c = { .options = o, .machine = machine, .shape = *shape };
    dt_status st = DT_OK;
    size_t bytes;
    dti_isa isa;

    DT_TRY(dti_isa_parse(o->common.isa == NULL ? "auto" : o->common.isa, &isa));
    DT_TRY(dti_cpu_create(isa, machine->pool, &c.cpu));
    DT_TRY_TO(done, st, open_tensors(&c, dtype));
    bytes = 2 * (size_t)dti_local_count(&c.cache) * dt_dtype_size(dtype);
    DT_CHECK_TO(done, st, bytes <= machine->bytes, DT_ERR_ARG,
                "a cache of %zu bytes does not fit into the %zu MiB that caches rotate over", bytes,
                machine->bytes >> 20);
    DT_TRY_TO(done, st, measure(&c));
    print_case(&c, report);
done:
    close_tensors(&c);
    dti_cpu_destroy(&c.cpu);
    return st;
}

static dt_status run_threads(const attention_options *o, int n_threads, bench_report *report)
{
    const attention_shape own = { o->batch, o->tokens, o->behind };
    bench_machine machine;
    dt_status st = DT_OK;

    DT_TRY(bench_machine_open(n_threads, (size_t)o->memory << 20, &machine));
    for (size_t i = 0; i < machine.bytes / 2; i++) /* as any dtype: no NaN, nothing denormal */
        ((uint16_t *)(void *)machine.memory)[i] = (uint16_t)(0x3c00 + i * 40503 % 0x180);
    for (size_t t = 0; t < DT_COUNT(dtypes); t++) {
        if (o->dtype != NULL && strcmp(o->dtype, dt_dtype_name(dtypes[t])) != 0) continue;
        if (own.tokens > 0) DT_TRY_TO(done, st, run_case(o, &machine, dtypes[t], &own, report));
        for (size_t i = 0; i < DT_COUNT(shapes) && own.tokens == 0; i++)
            if (!o->common.quick || shapes[i].tokens < 64)
                DT_TRY_TO(done, st, run_case(o, &machine, dtypes[t], &shapes[i], report));
    }
done:
    bench_machine_close(&machine);
    return st;
}

int main(int argc, char **argv)
{
    attention_options o = {
        .heads = 32, .kv = 8, .width = 64, .batch = 1, .rounds = 5, .memory = 1024
    };
    const bench_option own[] = {
        { "--heads", "N", "of queries (32)", BENCH_COUNT, &o.heads },
        { "--kv-heads", "N", "of keys and values (8)", BENCH_COUNT, &o.kv },
        { "--width", "N", "of a head (64)", BENCH_COUNT, &o.width },
        { "--batch", "N", "rows, with --tokens (1)", BENCH_COUNT, &o.batch },
        { "--tokens", "N", "new tokens of a row (a list)", BENCH_COUNT, &o.tokens },
        { "--behind", "N", "keys before them (0)", BENCH_COUNT, &o.behind },
        { "--rounds", "N", "samples of which medians are taken (5)", BENCH_COUNT, &o.rounds },
        { "--memory", "MIB", "memory that caches rotate over (1024)", BENCH_COUNT, &o.memory },
        { "--dtype", "NAME", "bf16, f32 or f16 (all)", BENCH_TEXT, &o.dtype },
    };
    bench_report report;
    dt_status st = DT_OK;
    int exit_code = 0;

    if (!bench_parse(argc, argv, "Attention over a cache beside the limits of the machine.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.heads = 4;
        o.kv = 2;
        o.memory = 64;
        o.rounds = 1;
    }
    bench_report_open(&report, "attention", &o.common, columns, DT_COUNT(columns));
    for (int n = 1; st == DT_OK && n <= (int)o.common.threads; n = 2 * n)
        st = run_threads(&o, n, &report);
    return bench_report_close(&report, st);
}
