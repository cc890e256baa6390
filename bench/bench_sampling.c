/* SPDX-License-Identifier: Apache-2.0
 *
 * What sampling a token costs behind the model: from the best logits alone, and from all of them,
 * as steps work that need more than the k best. Both draw the same tokens. */
#include <dtensor/ops.h>
#include <math.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_report.h"
#include "models/generation/text_rules.h"

/* clang-format off */
static const bench_column columns[] = {
    { "mesh", "mesh", 6, -1 },
    { "options", "options", 36, -1 },
    { "vocabulary", "vocabulary", 10, 0 },
    { "all_least_us", "all us", 8, 1 }, /* the quickest round: others use the machine too */
    { "all_us", "median", 8, 1 },
    { "best_least_us", "best us", 8, 1 },
    { "best_us", "median", 8, 1 },
    { "ratio", "ratio", 6, 2 }, /* of the quickest rounds, */
    { "ratio_median", "median", 6, 2 },
    { "fallbacks", "fallbacks", 9, 0 }, /* draws that took all logits after the best */
};
/* clang-format on */

typedef struct sampling_options {
    bench_common common;
    int64_t vocabulary;
    int64_t tokens;
    int64_t rounds;
} sampling_options;

typedef struct sampling_job {
    const sampling_options *options;
    const char *mesh;
    bench_report *report; /* rank 0's */
} sampling_job;

typedef struct subject {
    const char *name;
    double temperature, top_p;
    int64_t top_k;
} subject;

static const subject subjects[] = {
    { "top_k 50", 1, 1, 50 },
    { "temperature 0.8, top_k 50, top_p 0.9", 0.8, 0.9, 50 },
    { "temperature 0.7, top_k 20, top_p 0.8", 0.7, 0.8, 20 },
};

/* Logits about as a model's in bf16: a bell of width 3, of 8 bits each. */
static dt_status make_logits(dt_mesh *mesh, int64_t n, dt_tensor **out)
{
    const dt_placement cut[DT_MAX_DIMS] = { DT_SHARD(2) };
    uint32_t state = 7;
    float *values;
    dt_status st;

    DT_TRY(dti_alloc_array((size_t)n, sizeof *values, (void **)&values));
    for (int64_t i = 0; i < n; i++) {
        float sum = 0;
        for (int k = 0; k < 12; k++) {
            state = state * 1664525u + 1013904223u;
            sum += (float)(state >> 8) * 0x1p-24f - 0.5f;
        }
        values[i] = dti_bf16_to_f32(dti_f32_to_bf16(3 * sum));
    }
    st = dt_distribute(mesh, cut, DT_F32, 3, (int64_t[]){ 1, 1, n },
                       (dt_source){ .full = values, .root = DT_EQUAL_COPIES }, out);
    dti_free(values);
    return st;
}

/* What one way to sample needs. */
typedef struct sampler {
    dt_tape *tape;
    dt_tensor *logits;
    dti_text_rules *rules;
    dti_scores scores;
    int64_t fallbacks;
} sampler;

static dt_status sample(sampler *s, int64_t step, bool best, int64_t *key)
{
    static const int64_t length = 0;
    const dti_history h = { .length = &length };
    bool enough = false;

    dt_tape_reset(s->tape);
    if (best) {
        DT_TRY(dti_scores_take_best(&s->scores, s->tape, s->logits, &s->rules->top, 1, &enough));
        s->fallbacks += !enough;
    }
    if (!enough) DT_TRY(dti_scores_take(&s->scores, s->tape, s->logits));
    DT_TRY(dti_process(s->rules, &h, &s->scores));
    DT_TRY(dti_scores_draw(&s->scores, 3, step, key));
    return DT_OK;
}

static dt_status time_of(dt_runtime *rt, sampler *s, int64_t n, bool best, double *us)
{
    int64_t start, key;

    DT_TRY(sample(s, 0, best, &key)); /* its memory is warm */
    DT_TRY(bench_barrier(rt));
    start = dti_now_ns();
    for (int64_t i = 0; i < n; i++) DT_TRY(sample(s, i, best, &key));
    *us = (double)(dti_now_ns() - start) * 1e-3 / (double)n;
    return DT_OK;
}

static dt_status same_tokens(sampler *s, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t a, b;
        DT_TRY(sample(s, i, true, &a));
        DT_TRY(sample(s, i, false, &b));
        DT_CHECK(a == b, DT_ERR_INTERNAL, "draw %lld differs", (long long)i);
    }
    s->fallbacks = 0;
    return DT_OK;
}

static dt_status measure(dt_runtime *rt, const sampling_job *j, const subject *x, sampler *s)
{
    const sampling_options *o = j->options;
    const dt_model_info info = { .vocab_size = o->vocabulary, .max_positions = 64 };
    dt_generate_options options = DT_GENERATE_OPTIONS_INIT;
    bench_samples all = { 0 }, best = { 0 }, ratio = { 0 };
    dti_text_rules rules;
    dt_status st = DT_OK;

    options.do_sample = true;
    options.temperature = x->temperature;
    options.top_k = x->top_k;
    options.top_p = x->top_p;
    DT_TRY(dti_rules_make(&rules, &info, &options, 8));
    s->rules = &rules;
    DT_CHECK_TO(done, st, rules.top.n > 0, DT_ERR_ARG,
                "--vocabulary %lld: more are needed than top_k, %lld", (long long)o->vocabulary,
                (long long)x->top_k);
    DT_TRY_TO(done, st, same_tokens(s, o->tokens));
    for (int64_t i = 0; i < o->rounds; i++) {
        double a, b;
        DT_TRY_TO(done, st, time_of(rt, s, o->tokens, false, &a));
        DT_TRY_TO(done, st, time_of(rt, s, o->tokens, true, &b));
        bench_add(&all, a);
        bench_add(&best, b);
        bench_add(&ratio, a / b);
    }
    if (dt_runtime_rank(rt) == 0)
        bench_report_row(j->report, j->mesh, x->name, (double)o->vocabulary,
                         bench_quantile(&all, 0), bench_median(&all), bench_quantile(&best, 0),
                         bench_median(&best), bench_quantile(&all, 0) / bench_quantile(&best, 0),
                         bench_median(&ratio), (double)s->fallbacks);
done:
    dti_rules_free(&rules);
    return st;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    const sampling_job *j = arg;
    dt_status st = DT_OK;
    sampler s = { 0 };
    dt_mesh *mesh = NULL;

    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    DT_TRY_TO(done, st, make_logits(mesh, j->options->vocabulary, &s.logits));
    DT_TRY_TO(done, st, dt_tape_create(rt, &s.tape));
    for (size_t i = 0; i < DT_COUNT(subjects); i++)
        DT_TRY_TO(done, st, measure(rt, j, &subjects[i], &s));
done:
    dti_scores_free(&s.scores);
    dt_tape_release(&s.tape);
    dt_tensor_release(&s.logits);
    dt_mesh_release(&mesh);
    return st;
}

static dt_status run(const sampling_options *o, bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        const char *spec = o->common.mesh != NULL ? o->common.mesh : meshes[i];
        sampling_job j = { .options = o, .mesh = spec, .report = report };
        bench_case c;

        if (o->common.mesh != NULL && i > 0) break;
        DT_TRY(bench_case_of(&o->common, spec, &c));
        DT_TRY(bench_run(&o->common, &c, on_rank, &j));
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    sampling_options o = { .vocabulary = 128256, .tokens = 20, .rounds = 101 };
    const bench_option own[] = {
        { "--vocabulary", "N", "logits of a token (default: 128256)", BENCH_COUNT, &o.vocabulary },
        { "--tokens", "N", "in one round (default: 20)", BENCH_COUNT, &o.tokens },
        { "--rounds", "N", "of which medians are taken (default: 101, most: 256)", BENCH_COUNT,
          &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "What sampling a token costs behind the model.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.vocabulary = 1000;
        o.tokens = 3;
        o.rounds = 3;
    }
    bench_report_open(&report, "sampling", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
