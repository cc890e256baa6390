/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding one token after the other: every weight is read once per token, so the limit is the
 * memory's read bandwidth, measured right before and after each run of tokens. */
#include <dtensor/generation.h>

#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "models/judge/least_work.h"

enum { PROMPT = 8, MAX_RANKS = 64 };

/* clang-format off */
static const bench_column columns[] = {
    { "mesh", "mesh", 6, -1 },
    { "threads_per_rank", "threads", 7, 0 },
    { "tokens", "tokens", 6, 0 },
    { "token_ms", "ms/token", 8, 2 },
    { "tokens_per_s", "tok/s", 7, 2 },
    { "weight_bytes", "weight bytes", 12, 0 },
    { "weight_gbs", "GB/s", 7, 2 },
    { "limit_bytes", "limit over bytes", 16, 0 },
    { "limit_gbs", "read GB/s", 9, 2 },
    { "ratio", "ratio", 6, 3 },
    { "ratio_least", "least", 6, 3 },
    { "ratio_most", "most", 6, 3 },
    { "others_percent", "others %", 8, 1 },
};
/* clang-format on */

typedef struct decode_options {
    bench_common common;
    const char *model;
    const char *weights;
    bool keep;
    int64_t layers;
    int64_t tokens;
    int64_t rounds;
} decode_options;

typedef struct decode_job {
    const decode_options *options;
    const char *mesh;
    const char *folder;
    const bench_machine *limits;
    int64_t rank_bytes[MAX_RANKS]; /* each rank writes its own */
    bench_rounds rounds;           /* from here on: written by rank 0 */
    bench_samples seconds, limit, ratio, others;
} decode_job;

/* A state that has seen the prompt again: every round decodes at the same positions. */
static dt_status restart(dt_model *m, dt_state *s)
{
    static const int32_t prompt[PROMPT] = { 1, 5, 9, 13, 17, 21, 25, 29 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;

    dt_state_rewind(s, 0);
    o.max_new_tokens = 1;
    o.ignore_eos = true;
    DT_TRY(dt_generate(m, s, prompt, PROMPT, &o, NULL, NULL));
    return DT_OK;
}

static dt_status decode(dt_runtime *rt, dt_model *m, dt_state *s, int64_t tokens, double *seconds)
{
    const int32_t first = 3;
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    int64_t start;

    o.max_new_tokens = tokens;
    o.ignore_eos = true;
    DT_TRY(bench_barrier(rt));
    start = dti_now_ns();
    DT_TRY(dt_generate(m, s, &first, 1, &o, NULL, NULL));
    *seconds = (double)(dti_now_ns() - start) * 1e-9;
    return DT_OK;
}

static int64_t all_bytes(const decode_job *j, int n_ranks)
{
    int64_t bytes = 0;

    for (int r = 0; r < n_ranks && r < MAX_RANKS; r++) bytes += j->rank_bytes[r];
    return bytes;
}

static void count_round(decode_job *j, double seconds, double limit)
{
    const double gbs = (double)all_bytes(j, MAX_RANKS) * 1e-9 / seconds;
    double others;
    const bench_verdict verdict = bench_round_end(&j->rounds, &others);

    if (verdict == BENCH_DROP_IT) return;
    if (verdict == BENCH_DROP_EARLIER) j->seconds.n = j->limit.n = j->ratio.n = j->others.n = 0;
    bench_add(&j->seconds, seconds);
    bench_add(&j->limit, limit);
    bench_add(&j->ratio, gbs / limit);
    bench_add(&j->others, others);
}

static dt_status measure(dt_runtime *rt, decode_job *j, dt_model *m, dt_state *s)
{
    const decode_options *o = j->options;
    const bool root = dt_runtime_rank(rt) == 0;
    double seconds, before = 0, after = 0;

    DT_TRY(restart(m, s));
    DT_TRY(decode(rt, m, s, 2, &seconds)); /* caches of decisions and blocks fill */
    while (j->rounds.more) {
        DT_TRY(restart(m, s));
        if (root) bench_round_begin(&j->rounds);
        DT_TRY(bench_alone(rt, bench_read_gbs, j->limits, &before));
        DT_TRY(decode(rt, m, s, o->tokens, &seconds));
        DT_TRY(bench_alone(rt, bench_read_gbs, j->limits, &after));
        if (root) count_round(j, seconds / (double)o->tokens, (before + after) / 2);
        DT_TRY(bench_barrier(rt));
    }
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    decode_job *j = arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;
    dt_model *m = NULL;
    dt_state *s = NULL;
    int64_t chosen = 0;

    load.weights = j->options->weights;
    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    DT_TRY_TO(done, st, dt_model_load(mesh, j->folder, &load, &m));
    DT_TRY_TO(done, st, dti_work_experts(j->folder, &chosen));
    j->rank_bytes[dt_runtime_rank(rt) % MAX_RANKS] = dti_work_token_bytes(m, chosen);
    DT_TRY_TO(done, st, dt_state_create(m, 1, PROMPT + j->options->tokens + 2, &s));
    DT_TRY_TO(done, st, measure(rt, j, m, s));
done:
    dt_state_release(&s);
    dt_model_release(&m);
    dt_mesh_release(&mesh);
    return st;
}

static dt_status run_case(const decode_options *o, const char *folder, size_t limit_bytes,
                          const char *spec, bench_report *report)
{
    decode_job j = { .options = o, .mesh = spec, .folder = folder };
    bench_machine limits = { 0 };
    dt_status st = DT_OK;
    bench_case c;
    double bytes, seconds;

    bench_rounds_open(&j.rounds, o->rounds);
    DT_TRY(bench_case_of(&o->common, spec, &c));
    DT_TRY(bench_limits_open(bench_case_width(&c), limit_bytes, &limits));
    j.limits = &limits;
    DT_TRY_TO(done, st, bench_run(&o->common, &c, on_rank, &j));
    bytes = (double)all_bytes(&j, c.n_ranks);
    seconds = bench_median(&j.seconds);
    bench_report_row(report, spec, (double)c.threads, (double)o->tokens, seconds * 1e3, 1 / seconds,
                     bytes, bytes * 1e-9 / seconds, (double)limits.bytes, bench_median(&j.limit),
                     bench_median(&j.ratio), bench_quantile(&j.ratio, 0),
                     bench_quantile(&j.ratio, 1), 100 * bench_median(&j.others));
done:
    bench_machine_close(&limits);
    return st;
}

/* The read limit is measured over as many bytes as a token reads, so that caches help both alike.
 */
static dt_status run(const decode_options *o, bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };
    bench_shapes shapes = o->common.quick ? bench_llama_tiny : bench_llama_1b;
    dt_status st = DT_OK;
    dt_model_info info;
    bench_folder folder;
    int64_t bytes;

    if (o->layers > 0) shapes.layers = o->layers;
    DT_TRY(bench_folder_open(o->model, &shapes, &folder));
    DT_TRY_TO(done, st, dt_model_inspect(folder.path, &info, NULL, &bytes));
    bench_report_fact(report, "model", "%s, %lld layers, %s, %.3f GB", info.model_type,
                      (long long)info.n_layers, dt_dtype_name(info.dtype), (double)bytes * 1e-9);
    if (o->common.mesh != NULL)
        DT_TRY_TO(done, st, run_case(o, folder.path, (size_t)bytes, o->common.mesh, report));
    for (size_t i = 0; o->common.mesh == NULL && i < DT_COUNT(meshes); i++)
        DT_TRY_TO(done, st, run_case(o, folder.path, (size_t)bytes, meshes[i], report));
done:
    bench_folder_close(&folder, o->keep);
    return st;
}

int main(int argc, char **argv)
{
    decode_options o = { .tokens = 16, .rounds = 7 };
    const bench_option own[] = {
        { "--model", "DIR", "a Hugging Face folder instead of random weights", BENCH_TEXT,
          &o.model },
        { "--weights", "HOW", "packed when they are loaded: int8, int4,group=64, ...", BENCH_TEXT,
          &o.weights },
        { "--keep", NULL, "leave the random checkpoint on the disk and print where", BENCH_FLAG,
          &o.keep },
        { "--layers", "N", "of the random checkpoint (default: 16, 2.47 GB)", BENCH_COUNT,
          &o.layers },
        { "--tokens", "N", "decoded in one round (default: 16)", BENCH_COUNT, &o.tokens },
        { "--rounds", "N", "of which medians are taken (default: 7)", BENCH_COUNT, &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv,
                     "Tokens per second of a Llama in bf16, against the memory's read bandwidth.",
                     own, DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) o.rounds = 1;
    bench_report_open(&report, "decode", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
