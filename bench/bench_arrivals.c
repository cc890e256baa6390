/* SPDX-License-Identifier: Apache-2.0
 *
 * Texts that go on while long prompts come, one behind the other: what a step takes of those who
 * wait for a token, and how fast prompts are read. Bounds of the slowdown by turns in one run; 0 is
 * none but latency_s. */
#include <dtensor/engine.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"

enum { PROMPT = 16, N_BOUNDS = 2 };

static const double bounds[N_BOUNDS] = { 0, 2.5 };

/* clang-format off */
static const bench_column columns[] = {
    { "slowdown", "slowdown", 8, 1 },
    { "step_ms", "ms/step", 8, 1 },
    { "step_ms_p99", "p99", 8, 1 },
    { "p99_to_median", "ratio", 6, 2 },
    { "alone_ms", "alone", 8, 1 },  /* with no prompt beside */
    { "prompt_tokens_per_s", "prompt tok/s", 12, 1 },
    { "tokens_per_s", "tok/s", 8, 2 },
    { "others_percent", "others %", 8, 1 },
};
/* clang-format on */

typedef struct arrivals {
    bench_common common;
    int64_t layers, texts, prompt, tokens, rounds;
} arrivals;

typedef struct arrivals_job {
    const arrivals *options;
    int32_t *ids; /* [prompt], of a rank */
    int64_t vocab;
    bench_report *report;
} arrivals_job;

typedef struct figures {
    bench_samples steps, alone, prompts, tokens, others;
} figures;

static dt_status submit(dt_engine *e, const arrivals_job *j, int64_t n, int64_t n_new)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    dt_engine_request r = DT_ENGINE_REQUEST_INIT;
    const dt_ids prompt = { j->ids, n };
    int64_t number;

    o.max_new_tokens = n_new;
    o.ignore_eos = true;
    r.options = &o;
    r.prompts = &prompt;
    r.n_prompts = 1;
    DT_TRY(dt_engine_submit(e, &r, &number));
    return DT_OK;
}

/* Until all texts have made their tokens; a prompt is always there to be read, but in the first
 * quarter. */
static dt_status run_texts(dt_engine *e, arrivals_job *j, figures *f)
{
    const arrivals *o = j->options;
    const int64_t began = dti_now_ns();
    const dt_engine_event *events;
    dt_engine_counts c;
    int64_t n_events, waits = 0, n_long = 0, made = 0;

    for (int64_t i = 0; i < o->texts; i++) DT_TRY(submit(e, j, PROMPT, o->tokens));
    while (made < o->tokens) {
        const int64_t before = dti_now_ns();
        int64_t of_texts = 0;
        double ms;
        if (made > o->tokens / 4 && waits == 0) {
            j->ids[0] = (int32_t)(++n_long % j->vocab); /* nobody has read it */
            DT_TRY(submit(e, j, o->prompt, 1));
            waits = 1;
        }
        DT_TRY(dt_engine_step(e, &events, &n_events));
        ms = (double)(dti_now_ns() - before) * 1e-6;
        for (int64_t i = 0; i < n_events; i++) {
            of_texts += events[i].kind == DT_ENGINE_TOKEN && events[i].request <= o->texts;
            waits -= events[i].kind == DT_ENGINE_END && events[i].request > o->texts;
        }
        if (of_texts == 0) continue;
        made++;
        bench_add(made > o->tokens / 4 + 1 ? &f->steps : &f->alone, ms);
    }
    DT_TRY(dt_engine_count(e, &c));
    bench_add(&f->prompts,
              (double)(c.rows - made * o->texts) * 1e9 / (double)(dti_now_ns() - began));
    bench_add(&f->tokens, (double)(made * o->texts) * 1e9 / (double)(dti_now_ns() - began));
    return DT_OK;
}

static dt_status measure(arrivals_job *j, dt_model *m, double slowdown, figures *f)
{
    const arrivals *a = j->options;
    dt_engine_options o = DT_ENGINE_OPTIONS_INIT;
    dt_engine *e = NULL;
    dt_status st;

    o.slowdown = slowdown;
    o.max_texts = a->texts + 1;
    o.pool_tokens = (a->texts + 2) * (a->prompt + PROMPT + a->tokens + 256);
    DT_TRY(dt_engine_create(m, &o, &e));
    st = run_texts(e, j, f);
    dt_engine_release(&e);
    DT_TRY(st);
    return DT_OK;
}

static dt_status measure_all(dt_runtime *rt, arrivals_job *j, dt_model *m, figures *f)
{
    bench_rounds rounds;

    bench_rounds_open(&rounds, j->options->rounds);
    for (int64_t i = 0; i < j->options->rounds; i++)
        for (int b = 0; b < N_BOUNDS; b++) {
            double busy = 0;
            bench_round_begin(&rounds);
            DT_TRY(measure(j, m, bounds[b], &f[b]));
            (void)bench_round_end(&rounds, &busy);
            bench_add(&f[b].others, busy);
        }
    for (int b = 0; b < N_BOUNDS && dt_runtime_rank(rt) == 0; b++) {
        const double median = bench_median(&f[b].steps), p99 = bench_quantile(&f[b].steps, 0.99);
        bench_report_row(j->report, bounds[b], median, p99, p99 / median, bench_median(&f[b].alone),
                         bench_median(&f[b].prompts), bench_median(&f[b].tokens),
                         100 * bench_median(&f[b].others));
    }
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, dt_model *m, void *arg)
{
    arrivals_job j = *(const arrivals_job *)arg;
    dt_status st = DT_OK;
    figures *f = NULL;

    DT_TRY_TO(done, st, dti_alloc_array(N_BOUNDS, sizeof *f, (void **)&f));
    DT_TRY_TO(done, st,
              dti_alloc_array((size_t)j.options->prompt + PROMPT, sizeof *j.ids, (void **)&j.ids));
    for (int64_t i = 0; i < j.options->prompt + PROMPT; i++)
        j.ids[i] = (int32_t)((3 + 7 * i) % j.vocab);
    DT_TRY_TO(done, st, measure_all(rt, &j, m, f));
done:
    dti_free(j.ids);
    dti_free(f);
    return st;
}

static dt_status run(const arrivals *o, bench_report *report)
{
    bench_shapes shapes = o->common.quick ? bench_llama_tiny : bench_llama_1b;
    arrivals_job j = { .options = o, .report = report };

    if (o->layers > 0) shapes.layers = o->layers;
    shapes.dtype = DT_BF16;
    j.vocab = shapes.vocab;
    bench_report_fact(report, "model",
                      "llama, %lld layers, bf16; %lld texts of %lld tokens, prompts of %lld beside",
                      (long long)shapes.layers, (long long)o->texts, (long long)o->tokens,
                      (long long)o->prompt);
    DT_TRY(bench_on_model(&o->common, &shapes, on_rank, &j));
    return DT_OK;
}

int main(int argc, char **argv)
{
    arrivals o = { .prompt = 4000, .tokens = 200, .texts = 8, .rounds = 1 };
    const bench_option own[] = {
        { "--layers", "N", "of the model (default: 16)", BENCH_COUNT, &o.layers },
        { "--texts", "N", "that go on (default: 8)", BENCH_COUNT, &o.texts },
        { "--prompt", "N", "tokens of a prompt that comes (default: 4000)", BENCH_COUNT,
          &o.prompt },
        { "--tokens", "N", "made of each text (default: 200)", BENCH_COUNT, &o.tokens },
        { "--rounds", "N", "of which medians are taken (default: 1)", BENCH_COUNT, &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Texts that go on while long prompts come, one behind the other.",
                     own, DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.mesh == NULL) o.common.mesh = "tp=1";
    if (o.common.quick) {
        o.tokens = 16;
        o.prompt = 64;
        o.texts = 2;
    }
    bench_report_open(&report, "arrivals", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
