/* SPDX-License-Identifier: Apache-2.0
 *
 * Each kernel of a decode step and of a prompt of a Llama on a GPU, beside what the GPU can do at
 * most, measured in the same run: copying memory, and one large product. */
#include <math.h>
#include <string.h>

#include "bench/support/bench_gpu.h"
#include "bench/support/bench_report.h"
#include "dtensor/kernels/attrs.h"

static const bench_column columns[] = {
    { "kernel", "kernel", 12, -1 },
    { "of", "of", 16, -1 },
    { "tokens", "tokens", 6, 0 },
    { "us", "us", 9, 2 },
    { "gbs", "GB/s", 8, 1 },
    { "copy_gbs", "copy", 8, 1 },
    { "copy_ratio", "ratio", 6, 3 },
    { "tflops", "TFLOP/s", 8, 2 }, /* products and attention alone, as the next two */
    { "product_tflops", "product", 8, 2 },
    { "product_ratio", "ratio", 6, 3 },
};

typedef struct cuda_options {
    bench_common common;
    int64_t tokens, context, rounds, device;
    const char *module;
} cuda_options;

/* Sizes of a model. */
typedef struct model_sizes {
    int64_t width, heads, kv_heads, head, inner, vocabulary, context;
} model_sizes;

static const model_sizes llama_8b = { 4096, 32, 8, 128, 14336, 128256, 0 };
static const model_sizes tiny = { 64, 4, 2, 16, 96, 128, 0 };

typedef struct limits {
    double copy_gbs, product_tflops;
} limits;

static const dti_dtype_attr bf16_attr = { DT_BF16 };
static const dti_norm_attr norm_attr = { 1e-5f };

/* --- operands --------------------------------------------------------------------------------- */

static bench_operand floats(int n_axes, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (bench_operand){ BENCH_FLOATS,
                            { .dtype = DT_BF16, .n_axes = n_axes, .shape = { a, b, c, d } } };
}

static bench_operand whole(bench_kind_of kind, int64_t tokens)
{
    return (bench_operand){ kind, { .dtype = DT_I32, .n_axes = 2, .shape = { 1, tokens } } };
}

/* x [n, i] w [o, i]^T */
static bench_kernel product(const char *of, int64_t n, int64_t i, int64_t o)
{
    return (bench_kernel){ .row = "linear",
                           .of = of,
                           .n_in = 2,
                           .in = { floats(2, n, i, 0, 0), floats(2, o, i, 0, 0) },
                           .out = floats(2, n, o, 0, 0).local,
                           .attr = &bf16_attr,
                           .flop = 2.0 * (double)n * (double)i * (double)o };
}

/* --- limits ----------------------------------------------------------------------------------- */

/* Bytes read and written by a copy of 256 MiB; operations of a product of 8192 cubed. */
static dt_status measure_limits(const bench_gpu *g, bool quick, limits *out)
{
    const int64_t n = quick ? 4096 : (int64_t)128 << 20, side = quick ? 64 : 8192;
    const dti_slice_attr attr = { 0, 0, n };
    const bench_kernel copy = { .row = "slice",
                                .n_in = 1,
                                .in = { floats(1, n, 0, 0, 0) },
                                .out = floats(1, n, 0, 0, 0).local,
                                .attr = &attr };
    const bench_kernel large = product("", side, side, side);
    double seconds;

    DT_TRY(bench_gpu_time(g, &copy, &seconds));
    out->copy_gbs = bench_gpu_bytes(&copy) * 1e-9 / seconds;
    DT_TRY(bench_gpu_time(g, &large, &seconds));
    out->product_tflops = large.flop * 1e-12 / seconds;
    return DT_OK;
}

/* --- kernels ---------------------------------------------------------------------------------- */

enum { MAX_KERNELS = 16, SAMPLED = 164 /* logits that sampling with top_k 50 looks at */ };

/* One operand and a result like it, or two operands. */
static bench_kernel elements(const char *row, const char *of, int n_in, int64_t n, int64_t width)
{
    return (bench_kernel){ .row = row,
                           .of = of,
                           .n_in = n_in,
                           .in = { floats(2, n, width, 0, 0), floats(2, n, width, 0, 0) },
                           .out = floats(2, n, width, 0, 0).local };
}

/* Causal attention of n tokens at the end of the context. */
static bench_kernel attention(const model_sizes *s, int64_t n, const dti_attention_attr *attr)
{
    const double pairs = (double)n * ((double)s->context - ((double)n - 1.0) / 2.0);

    return (bench_kernel){
        .row = "attention",
        .of = "a layer",
        .n_in = 4,
        .in = { floats(4, 1, n, s->heads, s->head), floats(4, 1, s->context, s->kv_heads, s->head),
                floats(4, 1, s->context, s->kv_heads, s->head), whole(BENCH_POSITIONS, n) },
        .out = floats(4, 1, n, s->heads, s->head).local,
        .attr = attr,
        .flop = 4.0 * pairs * (double)(s->heads * s->head)
    };
}

static bench_kernel norm(const model_sizes *s, int64_t n)
{
    bench_kernel k = elements("rms_norm", "hidden", 2, n, s->width);

    k.in[1] = floats(1, s->width, 0, 0, 0);
    k.attr = &norm_attr;
    return k;
}

/* Rows are read from a table, or written to a cache, of which nothing else is touched. */
static bench_kernel embedding(const model_sizes *s, int64_t n)
{
    return (bench_kernel){ .row = "embedding",
                           .of = "hidden",
                           .n_in = 2,
                           .in = { whole(BENCH_IDS, n), floats(2, s->vocabulary, s->width, 0, 0) },
                           .out = floats(3, 1, n, s->width, 0).local,
                           .bytes = 4.0 * (double)n * (double)s->width };
}

static bench_kernel cache(const model_sizes *s, int64_t n)
{
    return (bench_kernel){ .row = "kv_write",
                           .of = "keys",
                           .n_in = 3,
                           .in = { floats(4, 1, n, s->kv_heads, s->head), whole(BENCH_POSITIONS, n),
                                   floats(4, 1, s->context, s->kv_heads, s->head) },
                           .out = floats(4, 1, s->context, s->kv_heads, s->head).local,
                           .in_place = 3,
                           .bytes = 4.0 * (double)n * (double)(s->kv_heads * s->head) };
}

static bench_kernel rotation(const model_sizes *s, int64_t n)
{
    return (
        bench_kernel){ .row = "rope",
                       .of = "queries",
                       .n_in = 2,
                       .in = { floats(4, 1, n, s->heads, s->head), floats(3, 1, n, s->head, 0) },
                       .out = floats(4, 1, n, s->heads, s->head).local };
}

static int kernels_of(const model_sizes *s, int64_t n, const dti_attention_attr *attr,
                      bench_kernel *k)
{
    const int64_t queries = s->heads * s->head, keys = s->kv_heads * s->head;
    int at = 0;

    k[at++] = embedding(s, n);
    k[at++] = norm(s, n);
    k[at++] = product("queries", n, s->width, queries);
    k[at++] = product("keys", n, s->width, keys);
    k[at++] = rotation(s, n);
    k[at++] = cache(s, n);
    k[at++] = attention(s, n, attr);
    k[at++] = product("output", n, queries, s->width);
    k[at++] = elements("add", "hidden", 2, n, s->width);
    k[at++] = product("gate, up", n, s->width, s->inner);
    k[at++] = elements("silu_mul", "inner", 2, n, s->inner);
    k[at++] = product("down", n, s->inner, s->width);
    if (n > 1) return at; /* of a prompt the last token alone needs logits, as a step does */
    k[at++] = product("logits", 1, s->width, s->vocabulary);
    k[at] = elements("argmax_key", "logits", 1, 1, s->vocabulary);
    k[at++].out = (dt_local){ .dtype = DT_I64, .n_axes = 1, .shape = { 1 } };
    k[at] = elements("top_k_keys", "logits", 1, 1, s->vocabulary);
    k[at++].out = (dt_local){ .dtype = DT_I64, .n_axes = 2, .shape = { 1, SAMPLED } };
    return at;
}

static dt_status run_tokens(const bench_gpu *g, const model_sizes *s, int64_t n, limits most,
                            bench_report *report)
{
    const dti_attention_attr attr = { .n_heads = s->heads,
                                      .n_kv_heads = s->kv_heads,
                                      .scale = 1.0f / sqrtf((float)s->head) };
    bench_kernel kernels[MAX_KERNELS];
    const int n_kernels = kernels_of(s, n, &attr, kernels);

    for (int i = 0; i < n_kernels; i++) {
        const bench_kernel *k = &kernels[i];
        const bool multiplies = k->flop > 0.0;
        double seconds, gbs, tflops;
        DT_TRY(bench_gpu_time(g, k, &seconds));
        gbs = bench_gpu_bytes(k) * 1e-9 / seconds;
        tflops = k->flop * 1e-12 / seconds;
        bench_report_row(report, k->row, k->of, (double)n, seconds * 1e6, gbs, most.copy_gbs,
                         gbs / most.copy_gbs, multiplies ? tflops : NAN,
                         multiplies ? most.product_tflops : NAN,
                         multiplies ? tflops / most.product_tflops : NAN);
    }
    return DT_OK;
}

static dt_status run(const cuda_options *o, bench_gpu *g, bench_report *report)
{
    model_sizes sizes = o->common.quick ? tiny : llama_8b;
    limits found;

    DT_CHECK(o->tokens <= o->context, DT_ERR_ARG, "%lld tokens do not fit into a context of %lld",
             (long long)o->tokens, (long long)o->context);
    sizes.context = o->context;
    g->rounds = o->rounds;
    g->launches = o->common.quick ? 1 : 64;
    g->n_ids = sizes.vocabulary;
    g->context = sizes.context;
    bench_report_fact(report, "gpu", "%s, %d multiprocessors, %zu MiB", g->about.name,
                      g->about.n_sms, g->about.bytes >> 20);
    for (int64_t n = 1; n <= o->tokens; n = n == 1 && o->tokens > 1 ? o->tokens : n + o->tokens) {
        DT_TRY(measure_limits(g, o->common.quick, &found));
        DT_TRY(run_tokens(g, &sizes, n, found, report));
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    cuda_options o = { .tokens = 2048, .context = 4096, .rounds = 5, .device = 1 };
    const bench_option own[] = {
        { "--tokens", "N", "of the prompt (2048)", BENCH_COUNT, &o.tokens },
        { "--context", "N", "rows of the KV cache (4096)", BENCH_COUNT, &o.context },
        { "--gpu", "N", "which one, from 1 (1)", BENCH_COUNT, &o.device },
        { "--rounds", "N", "samples of which medians are taken (5)", BENCH_COUNT, &o.rounds },
        { "--module", "FILE", "the CUDA module (searched for)", BENCH_TEXT, &o.module },
    };
    bench_gpu gpu = { 0 };
    bench_report report;
    dt_status st;
    int exit_code = 0;

    if (!bench_parse(argc, argv, "Kernels on a GPU beside its limits.", own, DT_COUNT(own),
                     &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.tokens = 8;
        o.context = 16;
        o.rounds = 1;
    }
    bench_report_open(&report, "cuda", &o.common, columns, DT_COUNT(columns));
    st = bench_gpu_open(o.module, (int)o.device - 1, &gpu);
    if (st == DT_ERR_UNSUPPORTED) { /* not this machine's fault */
        bench_report_fact(&report, "skipped", "%s", dt_last_error()->message);
        st = DT_OK;
    } else if (st == DT_OK) {
        st = run(&o, &gpu, &report);
    }
    bench_gpu_close(&gpu);
    return bench_report_close(&report, st);
}
