/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over keys in blocks of a pool, beside keys of as many sequences that lie together: new
 * tokens of n sequences behind some keys, chunks of prompts, and both in one call. Samples of one
 * and of the other alternate; what is read rotates over memory larger than the processor's caches,
 * the blocks of a pool in no order. */
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/cpu/cpu.h"

enum { BLOCK = 128, SAMPLE_NS = 5000000 };

static const bench_column columns[] = {
    { "dtype", "dtype", 5, -1 },          { "threads", "threads", 7, 0 },
    { "sequences", "sequences", 9, 0 },   { "tokens", "tokens", 6, 0 }, /* of each */
    { "behind", "behind", 6, 0 }, /* keys before the first of them */
    { "together_us", "together", 10, 1 }, { "blocks_us", "blocks", 10, 1 },
    { "ratio", "ratio", 6, 3 },          /* together / blocks, of samples side by side */
    { "least_ratio", "of least", 8, 3 }, /* of the shortest samples: where others use the cores */
};

typedef struct paged_options {
    bench_common common;
    int64_t heads, kv, width, rounds, memory;
    const char *dtype;
} paged_options;

typedef struct paged_shape {
    int64_t sequences, tokens, behind;
} paged_shape;

static const paged_shape shapes[] = {
    { 1, 1, 128 },  { 4, 1, 128 },   { 8, 1, 128 },   { 32, 1, 128 }, { 1, 1, 1024 },
    { 4, 1, 1024 }, { 8, 1, 1024 },  { 32, 1, 1024 }, { 1, 1, 4096 }, { 4, 1, 4096 },
    { 8, 1, 4096 }, { 32, 1, 4096 }, { 1, 16, 1024 }, { 1, 256, 0 },  { 1, 256, 1024 },
};
static const dt_dtype dtypes[] = { DT_BF16, DT_F32 };

/* One row of the table: operands of either form, whose keys move on with each pass. */
typedef struct paged_case {
    const paged_options *options;
    const bench_machine *machine;
    paged_shape shape;
    dti_cpu *cpu;
    dt_local q, y, positions, sequence, table; /* q [n, t, ..] or [n t, 1, ..] */
    int64_t row_bytes;                         /* keys of a token */
    size_t at;                                 /* where the next caches that lie together begin */
    int64_t n_blocks, next_block; /* of the pool of keys, as many of values behind it */
    bench_samples together, blocks, ratio;
} paged_case;

static int64_t keys_of(const paged_case *c)
{
    return c->shape.behind + c->shape.tokens;
}

static dti_attention_attr attr_of(const paged_case *c)
{
    return (dti_attention_attr){ c->options->heads, c->options->kv, 0, 0.125f, 0.0f, 0, 0 };
}

static dt_local next_cache(paged_case *c)
{
    const paged_options *o = c->options;
    const int64_t rows = (keys_of(c) + BLOCK - 1) / BLOCK * BLOCK; /* as a state has room */
    const size_t bytes = (size_t)(c->shape.sequences * rows * c->row_bytes);
    dt_local x = { .dtype = c->q.dtype,
                   .n_axes = 4,
                   .shape = { c->shape.sequences, rows, o->kv, o->width } };

    if (c->at + bytes > c->machine->bytes) c->at = 0;
    x.data = c->machine->memory + c->at;
    c->at += (bytes + 4095) / 4096 * 4096;
    return x;
}

static dt_status run_together(void *arg)
{
    paged_case *c = arg;
    const dti_attention_attr attr = attr_of(c);
    dt_local in[4] = { c->q }, y = c->y;

    in[1] = next_cache(c);
    in[2] = next_cache(c);
    in[3] = c->positions;
    return dti_attention_cpu(&(dt_kargs){ in, &y, &attr, c->cpu, 4, 1, NULL });
}

/* The same memory as rows of one token. */
static dt_local as_rows(dt_local x)
{
    x.shape[0] *= x.shape[1];
    x.shape[1] = 1;
    return x;
}

/* Other blocks than before, which do not lie side by side: a step that shares no factor with their
 * number visits all of them. */
static void fill_table(paged_case *c)
{
    int32_t *table = c->table.data;
    int64_t step = c->n_blocks * 5 / 8 | 1;

    while (c->n_blocks % step == 0 && step > 1) step -= 2;
    for (int64_t i = 0; i < dti_local_count(&c->table); i++) {
        table[i] = (int32_t)c->next_block;
        c->next_block = (c->next_block + step) % c->n_blocks;
    }
}

static dt_status run_blocks(void *arg)
{
    paged_case *c = arg;
    const paged_options *o = c->options;
    const dti_attention_attr attr = attr_of(c);
    dt_local in[6] = { as_rows(c->q) }, y = as_rows(c->y);

    fill_table(c);
    in[1] = (dt_local){ .dtype = c->q.dtype,
                        .n_axes = 4,
                        .shape = { c->n_blocks, BLOCK, o->kv, o->width },
                        .data = c->machine->memory };
    in[2] = in[1];
    in[2].data = c->machine->memory + c->n_blocks * BLOCK * c->row_bytes;
    in[3] = as_rows(c->positions);
    in[4] = as_rows(c->sequence);
    in[5] = c->table;
    return dti_attention_paged_cpu(&(dt_kargs){ in, &y, &attr, c->cpu, 6, 1, NULL });
}

static dt_status measure(paged_case *c)
{
    double together, blocks;

    DT_TRY(run_together(c)); /* scratch is made */
    DT_TRY(run_blocks(c));
    for (int64_t i = 0; i < c->options->rounds; i++) {
        DT_TRY(bench_repeat(&c->options->common, SAMPLE_NS, run_together, c, &together));
        DT_TRY(bench_repeat(&c->options->common, SAMPLE_NS, run_blocks, c, &blocks));
        bench_add(&c->together, together);
        bench_add(&c->blocks, blocks);
        bench_add(&c->ratio, together / blocks);
    }
    return DT_OK;
}

static dt_status make(dt_dtype dtype, int n_axes, const int64_t *shape, dt_local *x)
{
    *x = (dt_local){ .dtype = dtype, .n_axes = n_axes };
    memcpy(x->shape, shape, (size_t)n_axes * sizeof *shape);
    return dti_big_alloc((size_t)dti_local_count(x) * dt_dtype_size(dtype), &x->data);
}

static void release(dt_local *x)
{
    dti_big_free(x->data, (size_t)dti_local_count(x) * dt_dtype_size(x->dtype));
}

static dt_status open_tensors(paged_case *c, dt_dtype dtype)
{
    const paged_options *o = c->options;
    const paged_shape *s = &c->shape;
    const int64_t q[] = { s->sequences, s->tokens, o->heads, o->width };
    const int64_t table[] = { s->sequences, (keys_of(c) + BLOCK - 1) / BLOCK };

    DT_TRY(make(dtype, 4, q, &c->q));
    DT_TRY(make(dtype, 4, q, &c->y));
    DT_TRY(make(DT_I32, 2, q, &c->positions));
    DT_TRY(make(DT_I32, 2, q, &c->sequence));
    DT_TRY(make(DT_I32, 2, table, &c->table));
    for (int64_t i = 0; i < dti_local_count(&c->q); i++)
        dti_store_f32(c->q.data, dtype, i, (float)(i % 7) * 0.125f);
    for (int64_t i = 0; i < s->sequences * s->tokens; i++) {
        ((int32_t *)c->positions.data)[i] = (int32_t)(s->behind + i % s->tokens);
        ((int32_t *)c->sequence.data)[i] = (int32_t)(i / s->tokens);
    }
    c->row_bytes = o->kv * o->width * (int64_t)dt_dtype_size(dtype);
    c->n_blocks = (int64_t)c->machine->bytes / 2 / (BLOCK * c->row_bytes);
    DT_CHECK(dti_local_count(&c->table) <= c->n_blocks, DT_ERR_ARG,
             "%lld sequences of %lld keys do not fit into the %zu MiB that caches rotate over",
             (long long)s->sequences, (long long)keys_of(c), c->machine->bytes >> 20);
    return DT_OK;
}

static dt_status run_case(const paged_options *o, const bench_machine *machine, dt_dtype dtype,
                          const paged_shape *shape, bench_report *report)
{
    paged_case c = { .options = o, .machine = machine, .shape = *shape };
    dt_status st = DT_OK;
    dti_isa isa;

    DT_TRY(dti_isa_parse(o->common.isa == NULL ? "auto" : o->common.isa, &isa));
    DT_TRY(dti_cpu_create(isa, machine->pool, &c.cpu));
    DT_TRY_TO(done, st, open_tensors(&c, dtype));
    DT_TRY_TO(done, st, measure(&c));
    bench_report_row(report, dt_dtype_name(dtype), (double)machine->n_threads,
                     (double)shape->sequences, (double)shape->tokens, (double)shape->behind,
                     bench_median(&c.together) * 1e6, bench_median(&c.blocks) * 1e6,
                     bench_median(&c.ratio),
                     bench_quantile(&c.together, 0) / bench_quantile(&c.blocks, 0));
done:
    release(&c.q);
    release(&c.y);
    release(&c.positions);
    release(&c.sequence);
    release(&c.table);
    dti_cpu_destroy(&c.cpu);
    return st;
}

static dt_status run_threads(const paged_options *o, int n_threads, bench_report *report)
{
    bench_machine machine;
    dt_status st = DT_OK;

    DT_TRY(bench_machine_open(n_threads, (size_t)o->memory << 20, &machine));
    for (size_t i = 0; i < machine.bytes / 2; i++) /* as any dtype: no NaN, nothing denormal */
        ((uint16_t *)(void *)machine.memory)[i] = (uint16_t)(0x3c00 + i * 40503 % 0x180);
    for (size_t t = 0; t < DT_COUNT(dtypes); t++) {
        if (o->dtype != NULL && strcmp(o->dtype, dt_dtype_name(dtypes[t])) != 0) continue;
        for (size_t i = 0; i < DT_COUNT(shapes); i++)
            if (!o->common.quick ||
                shapes[i].sequences * keys_of(&(paged_case){ .shape = shapes[i] }) < 2048)
                DT_TRY_TO(done, st, run_case(o, &machine, dtypes[t], &shapes[i], report));
    }
done:
    bench_machine_close(&machine);
    return st;
}

int main(int argc, char **argv)
{
    paged_options o = { .heads = 32, .kv = 8, .width = 64, .rounds = 40, .memory = 1024 };
    const bench_option own[] = {
        { "--heads", "N", "of queries (32)", BENCH_COUNT, &o.heads },
        { "--kv-heads", "N", "of keys and values (8)", BENCH_COUNT, &o.kv },
        { "--width", "N", "of a head (64)", BENCH_COUNT, &o.width },
        { "--rounds", "N", "samples of which medians are taken (40)", BENCH_COUNT, &o.rounds },
        { "--memory", "MIB", "memory that caches rotate over (1024)", BENCH_COUNT, &o.memory },
        { "--dtype", "NAME", "bf16 or f32 (both)", BENCH_TEXT, &o.dtype },
    };
    bench_report report;
    dt_status st = DT_OK;
    int exit_code = 0;

    if (!bench_parse(argc, argv, "Attention over keys in blocks beside keys that lie together.",
                     own, DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.heads = 4;
        o.kv = 2;
        o.memory = 64;
        o.rounds = 1;
    }
    bench_report_open(&report, "paged", &o.common, columns, DT_COUNT(columns));
    for (int n = 1; st == DT_OK && n <= (int)o.common.threads; n = 2 * n)
        st = run_threads(&o, n, &report);
    return bench_report_close(&report, st);
}
