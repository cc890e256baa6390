/* SPDX-License-Identifier: Apache-2.0
 *
 * Many texts made together: new tokens per second, prompts included, of an engine and of
 * dt_generate_batch() with as many texts, by turns in one run. The first row is the base of the
 * speed-ups. Beside them what a step takes while prompts are read and after. */
#include <dtensor/engine.h>
#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"

enum { MOST_TEXTS = 64 };

/* clang-format off */
static const bench_column columns[] = {
    { "texts", "texts", 5, 0 },
    { "engine_tokens_per_s", "engine tok/s", 12, 2 },
    { "speed_up", "speed-up", 8, 2 },
    { "batch_tokens_per_s", "batch tok/s", 11, 2 },
    { "to_batch", "to batch", 8, 2 },
    { "step_ms", "ms/step", 8, 1 },
    { "step_ms_p99", "p99", 8, 1 },
    { "others_percent", "others %", 8, 1 },
};
/* clang-format on */

typedef struct engine_bench {
    bench_common common;
    int64_t layers, prompt, tokens, rounds, most;
} engine_bench;

typedef struct engine_job {
    const engine_bench *options;
    int32_t *ids; /* [MOST_TEXTS, prompt] */
    dt_ids prompts[MOST_TEXTS];
    bench_report *report;
    double base;
} engine_job;

static dt_generate_options options_of(const engine_job *j)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    o.max_new_tokens = j->options->tokens;
    o.ignore_eos = true;
    return o;
}

/* Texts come all at once, one request each. *steps: what steps took that made a token of each. */
static dt_status make_together(dt_model *m, const engine_job *j, int64_t n, double *seconds,
                               bench_samples *steps)
{
    const dt_generate_options options = options_of(j);
    const int64_t blocks = (j->options->prompt + j->options->tokens) / 128 + 2;
    dt_engine_options o = DT_ENGINE_OPTIONS_INIT;
    dt_engine_request r = DT_ENGINE_REQUEST_INIT;
    const dt_engine_event *events;
    dt_engine *e = NULL;
    dt_status st = DT_OK;
    int64_t number, n_events, began = 0;

    o.pool_tokens = n * blocks * 128;
    o.max_texts = n;
    o.max_rows = 512 > n ? 512 : n;
    r.options = &options;
    r.n_prompts = 1;
    DT_TRY(dt_engine_create(m, &o, &e));
    began = dti_now_ns();
    for (int64_t i = 0; i < n; i++) {
        r.prompts = &j->prompts[i];
        DT_TRY_TO(done, st, dt_engine_submit(e, &r, &number));
    }
    while (dt_engine_is_busy(e)) {
        const int64_t before = dti_now_ns();
        DT_TRY_TO(done, st, dt_engine_step(e, &events, &n_events));
        if (n_events > 0) bench_add(steps, (double)(dti_now_ns() - before) * 1e-6);
    }
    *seconds = (double)(dti_now_ns() - began) * 1e-9;
done:
    dt_engine_release(&e);
    return st;
}

static dt_status make_batch(dt_model *m, const engine_job *j, int64_t n, double *seconds)
{
    const dt_generate_options options = options_of(j);
    const int64_t began = dti_now_ns();
    dt_generated *g = NULL;

    DT_TRY(dt_generate_batch(m, j->prompts, n, &options, &g));
    *seconds = (double)(dti_now_ns() - began) * 1e-9;
    dt_generated_release(&g);
    return DT_OK;
}

static dt_status measure(dt_runtime *rt, engine_job *j, dt_model *m, int64_t n)
{
    const double tokens = (double)(n * j->options->tokens);
    bench_samples together = { 0 }, batch = { 0 }, others = { 0 };
    static const bench_samples none;
    bench_samples steps = none;
    bench_rounds rounds;

    bench_rounds_open(&rounds, j->options->rounds);
    for (int64_t i = 0; i < j->options->rounds; i++) {
        double a, b, busy = 0;
        bench_round_begin(&rounds);
        DT_TRY(make_together(m, j, n, &a, &steps));
        DT_TRY(make_batch(m, j, n, &b));
        (void)bench_round_end(&rounds, &busy);
        bench_add(&together, a);
        bench_add(&batch, b);
        bench_add(&others, busy);
    }
    if (dt_runtime_rank(rt) != 0) return DT_OK;
    if (j->base == 0) j->base = tokens / bench_median(&together);
    bench_report_row(j->report, (double)n, tokens / bench_median(&together),
                     tokens / bench_median(&together) / j->base, tokens / bench_median(&batch),
                     bench_median(&batch) / bench_median(&together), bench_median(&steps),
                     bench_quantile(&steps, 0.99), 100 * bench_median(&others));
    return DT_OK;
}

static dt_status measure_all(dt_runtime *rt, dt_model *m, void *arg)
{
    static const int64_t counts[] = { 1, 4, 8, 16, 32, 64 };
    engine_job *j = arg;

    for (size_t i = 0; i < DT_COUNT(counts) && counts[i] <= j->options->most; i++)
        DT_TRY(measure(rt, j, m, counts[i]));
    return DT_OK;
}

/* Prompts that have nothing in common. */
static dt_status make_prompts(engine_job *j, int64_t vocab)
{
    const int64_t n = j->options->prompt;

    DT_TRY(dti_alloc_array((size_t)(MOST_TEXTS * n), sizeof *j->ids, (void **)&j->ids));
    for (int64_t i = 0; i < MOST_TEXTS; i++) {
        for (int64_t t = 0; t < n; t++)
            j->ids[i * n + t] = (int32_t)((3 + 7 * t + 131 * i + t * i) % vocab);
        j->prompts[i] = (dt_ids){ j->ids + i * n, n };
    }
    return DT_OK;
}

static dt_status run(const engine_bench *o, bench_report *report)
{
    bench_shapes shapes = o->common.quick ? bench_llama_tiny : bench_llama_1b;
    engine_job j = { .options = o, .report = report };
    dt_status st = DT_OK;

    if (o->layers > 0) shapes.layers = o->layers;
    shapes.dtype = DT_BF16;
    bench_report_fact(report, "model", "llama, %lld layers, bf16; prompts of %lld, %lld new tokens",
                      (long long)shapes.layers, (long long)o->prompt, (long long)o->tokens);
    DT_TRY_TO(done, st, make_prompts(&j, shapes.vocab));
    DT_TRY_TO(done, st, bench_on_model(&o->common, &shapes, measure_all, &j));
done:
    dti_free(j.ids);
    return st;
}

int main(int argc, char **argv)
{
    engine_bench o = { .prompt = 128, .tokens = 128, .rounds = 3, .most = 32 };
    const bench_option own[] = {
        { "--layers", "N", "of the model (default: 16)", BENCH_COUNT, &o.layers },
        { "--prompt", "N", "tokens of a prompt (default: 128)", BENCH_COUNT, &o.prompt },
        { "--tokens", "N", "made of each (default: 128)", BENCH_COUNT, &o.tokens },
        { "--rounds", "N", "of which medians are taken (default: 3)", BENCH_COUNT, &o.rounds },
        { "--most", "N", "texts together at most, up to 64 (default: 32)", BENCH_COUNT, &o.most },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv,
                     "Texts made together by an engine, against one and against a batch.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.mesh == NULL) o.common.mesh = "tp=1";
    if (o.common.quick) {
        o.rounds = 1;
        o.tokens = o.prompt = 8;
        o.most = 4;
    }
    bench_report_open(&report, "engine", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
