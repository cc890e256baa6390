/* SPDX-License-Identifier: Apache-2.0
 *
 * One GPU: decoding and prefill of models with random weights, beside what the device copies and
 * multiplies in the same run. Kernels one by one: bench_cuda.c. */
#include <dtensor/devices.h>
#include <dtensor/generation.h>
#include <stdio.h>
#include <string.h>

#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "dtensor/device/rates.h"
#include "models/judge/least_work.h"
#include "models/run/state.h"

/* clang-format off */
static const bench_column columns[] = {
    { "what", "what", 10, -1 },
    { "shape", "shape", 14, -1 },
    { "tokens", "tokens", 6, 0 },
    { "us", "us", 10, 1 },
    { "tokens_per_s", "tok/s", 9, 1 },
    { "figure", "GB/s, TFLOP/s", 13, 1 },
    { "limit", "limit", 8, 1 },
    { "ratio", "ratio", 6, 3 },
};

typedef struct gpu_shape {
    const char *name;
    bench_shapes s;
} gpu_shape;

static const gpu_shape shapes[] = {
    { "llama-3.2-1b", { 2048, 16, 32, 8,  64,  8192, 128256, 8192, DT_BF16, "llama", true } },
    { "qwen3-4b",     { 2560, 36, 32, 8, 128,  9728, 151936, 8192, DT_BF16, "qwen3", true } },
    { "llama-3-8b",   { 4096, 32, 32, 8, 128, 14336, 128256, 8192, DT_BF16, "llama", false } },
};
/* clang-format on */
static const gpu_shape tiny = { "tiny", { 64, 2, 4, 2, 16, 128, 96, 256, DT_BF16, "llama", true } };

typedef struct gpu_options {
    bench_common common;
    const char *device, *shape;
    int64_t rounds, context, prompt;
} gpu_options;

typedef struct gpu_job {
    const gpu_options *options;
    bench_report *report;
    dt_mesh *mesh;
    double copy_gbs, tflops; /* the limits */
} gpu_job;

/* --- limits ----------------------------------------------------------------------------------- */

typedef dt_status (*rate_fn)(dti_rates *r);

static dt_status time_rate(const gpu_job *j, dti_rates *r, rate_fn work, double *ns)
{
    bench_samples samples = { .n = 0 };

    for (int64_t i = 0; i <= j->options->rounds; i++) {
        const int64_t start = dti_now_ns();
        DT_TRY(work(r));
        if (i > 0) bench_add(&samples, (double)(dti_now_ns() - start));
    }
    *ns = bench_median(&samples);
    return DT_OK;
}

static dt_status measure_limits(gpu_job *j)
{
    const bool quick = j->options->common.quick;
    const int64_t side = quick ? 64 : 8192, bytes = quick ? (int64_t)1 << 17 : (int64_t)2 << 30;
    dti_rates *r = NULL;
    dt_status st = DT_OK;
    double ns;

    DT_TRY(dti_rates_open(j->mesh, bytes, DT_BF16, side, &r));
    DT_TRY_TO(done, st, time_rate(j, r, dti_rates_copy, &ns));
    j->copy_gbs = dti_rates_copied(r) / ns;
    bench_report_row(j->report, "copy", "", 0.0, ns * 1e-3, 0.0, j->copy_gbs, j->copy_gbs, 1.0);
    DT_TRY_TO(done, st, time_rate(j, r, dti_rates_multiply, &ns));
    j->tflops = dti_rates_operations(r) / ns * 1e-3;
    bench_report_row(j->report, "product", "square", (double)side, ns * 1e-3, 0.0, j->tflops,
                     j->tflops, 1.0);
done:
    dti_rates_close(&r);
    return st;
}

/* --- models ----------------------------------------------------------------------------------- */

static int64_t new_tokens_of(const gpu_options *o)
{
    return o->common.quick ? 4 : 64;
}

static dt_status time_pass(const gpu_job *j, dt_model *m, dt_state *s, int64_t n, double *ns)
{
    static int32_t ids[8192];
    dt_tape *t = NULL;
    dt_status st = DT_OK;
    int64_t start;

    for (int64_t i = 0; i < n; i++) ids[i] = (int32_t)(i % 64);
    DT_TRY(dt_tape_create(dt_mesh_runtime(j->mesh), &t));
    start = dti_now_ns();
    (void)dt_model_forward(t, m, s, ids, n, DT_LOGITS_LAST);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_device_finish(dt_mesh_runtime(j->mesh)));
    *ns = (double)(dti_now_ns() - start);
done:
    dt_tape_release(&t);
    return st;
}

/* Greedy decoding, the choice of the token included. */
static dt_status time_decode(dt_model *m, dt_state *s, int64_t n, double *ns)
{
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    const int32_t first = 1;
    int64_t start;

    o.max_new_tokens = n;
    o.ignore_eos = true;
    start = dti_now_ns();
    DT_TRY(dt_generate(m, s, &first, 1, &o, NULL, NULL));
    *ns = (double)(dti_now_ns() - start) / (double)n;
    return DT_OK;
}

/* Median ns of a token behind the context, which the state holds. */
static dt_status measure_decode(const gpu_job *j, dt_model *m, dt_state *s, double *ns)
{
    const int64_t new_tokens = new_tokens_of(j->options);
    bench_samples samples = { .n = 0 };

    for (int64_t r = 0; r <= j->options->rounds; r++) {
        dt_state_rewind(s, j->options->context);
        DT_TRY(time_decode(m, s, new_tokens, ns));
        if (r > 0) bench_add(&samples, *ns);
    }
    *ns = bench_median(&samples);
    return DT_OK;
}

static dt_status measure_prefill(const gpu_job *j, dt_model *m, dt_state *s, double *ns)
{
    bench_samples samples = { .n = 0 };

    for (int64_t r = 0; r <= j->options->rounds; r++) {
        dt_state_rewind(s, 0);
        DT_TRY(time_pass(j, m, s, j->options->prompt, ns));
        if (r > 0) bench_add(&samples, *ns);
    }
    *ns = bench_median(&samples);
    return DT_OK;
}

static void report_decode(const gpu_job *j, const char *what, const gpu_shape *shape, double bytes,
                          double ns)
{
    bench_report_row(j->report, what, shape->name, (double)j->options->context, ns * 1e-3, 1e9 / ns,
                     bytes / ns, j->copy_gbs, bytes / ns / j->copy_gbs);
}

/* Decoding plays recorded passes; then without. */
static dt_status measure_model(gpu_job *j, const gpu_shape *shape, dt_model *m)
{
    const int64_t prompt = j->options->prompt, context = j->options->context;
    const double bytes = (double)dti_work_token_bytes(m, 0);
    const int64_t longest = prompt > context ? prompt : context;
    dt_state *s = NULL;
    dt_status st = DT_OK;
    double ns, flops;

    DT_TRY(dti_work_prompt(m, prompt, 1, 0, &flops));
    DT_TRY(dt_state_create(m, 1, longest + new_tokens_of(j->options) + 1, &s));
    DT_TRY_TO(done, st, measure_prefill(j, m, s, &ns));
    bench_report_row(j->report, "prefill", shape->name, (double)prompt, ns * 1e-3,
                     (double)prompt / ns * 1e9, flops / ns * 1e-3, j->tflops,
                     flops / ns * 1e-3 / j->tflops);
    dt_state_rewind(s, 0);
    DT_TRY_TO(done, st, time_pass(j, m, s, context, &ns));
    DT_TRY_TO(done, st, measure_decode(j, m, s, &ns));
    report_decode(j, "decode", shape, bytes, ns);
    s->unrecorded = true;
    DT_TRY_TO(done, st, measure_decode(j, m, s, &ns));
    report_decode(j, "unrecorded", shape, bytes, ns);
done:
    dt_state_release(&s);
    return st;
}

static dt_status run_shape(gpu_job *j, const gpu_shape *shape)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    dt_model *m = NULL;
    bench_folder folder;
    dt_status st = DT_OK;

    DT_TRY(bench_config_open(&shape->s, &folder));
    DT_TRY_TO(done, st, dt_model_create_random(j->mesh, folder.path, &options, 1, &m));
    DT_TRY_TO(done, st, measure_model(j, shape, m));
done:
    dt_model_release(&m);
    bench_folder_close(&folder, false);
    return st;
}

static dt_status measure_all(gpu_job *j)
{
    const gpu_options *o = j->options;
    bool found = false;

    DT_TRY(measure_limits(j));
    if (o->common.quick) return run_shape(j, &tiny);
    for (size_t i = 0; i < DT_COUNT(shapes); i++) {
        if (o->shape != NULL && strcmp(o->shape, shapes[i].name) != 0) continue;
        found = true;
        DT_TRY(run_shape(j, &shapes[i]));
    }
    DT_CHECK(found, DT_ERR_ARG, "--shape %s: choose llama-3.2-1b, qwen3-4b or llama-3-8b",
             o->shape);
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    gpu_job *j = arg;
    dt_status st;

    DT_TRY(dt_mesh_create(rt, "tp=1", &j->mesh));
    st = measure_all(j);
    dt_mesh_release(&j->mesh);
    return st;
}

int main(int argc, char **argv)
{
    gpu_options o = { .device = "cuda", .rounds = 5, .context = 1024, .prompt = 2048 };
    const bench_option own[] = {
        { "--device", "NAME", "cuda (default), cuda:1, or cpu", BENCH_TEXT, &o.device },
        { "--shape", "NAME", "llama-3.2-1b, qwen3-4b or llama-3-8b (default: all)", BENCH_TEXT,
          &o.shape },
        { "--prompt", "N", "tokens of the prefill (default: 2048)", BENCH_COUNT, &o.prompt },
        { "--context", "N", "tokens before those decoded (default: 1024)", BENCH_COUNT,
          &o.context },
        { "--rounds", "N", "of which medians are taken (default: 5)", BENCH_COUNT, &o.rounds },
    };
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    gpu_job j = { .options = &o };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "A GPU: decoding and prefill of models with random weights.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (dt_device_check(o.device) != DT_OK) {
        (void)printf("skipped: %s\n", dt_last_error()->message);
        return o.common.quick ? 0 : 2;
    }
    if (o.common.quick) {
        o.rounds = 1;
        o.prompt = 24;
        o.context = 8;
    }
    run.device = o.device;
    j.report = &report;
    bench_report_open(&report, "gpu_models", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, dt_run(&run, on_rank, &j));
}
