/* SPDX-License-Identifier: Apache-2.0
 *
 * A forward pass of a whole prompt: bound by arithmetic, so the limit is the peak of multiply-adds,
 * measured right before and after each pass with as many threads. The first row is the base of the
 * speed-ups. */
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "models/judge/least_work.h"
#include "models/judge/prediction.h"

/* clang-format off */
static const bench_column columns[] = {
    { "dtype", "dtype", 5, -1 },
    { "mesh", "mesh", 6, -1 },
    { "threads_per_rank", "threads", 7, 0 },
    { "pass_ms", "ms/pass", 9, 1 },
    { "tokens_per_s", "tok/s", 8, 1 },
    { "speed_up", "speed-up", 8, 2 },
    { "gflop", "GFLOP", 7, 1 },
    { "gflops", "GFLOP/s", 8, 1 },
    { "peak_gflops", "FMA peak", 9, 1 }, /* f32, or vdpbf16ps */
    { "ratio", "ratio", 6, 3 },
    { "ratio_least", "least", 6, 3 },
    { "ratio_most", "most", 6, 3 },
    { "tile_gflops", "tile peak", 9, 1 },
    { "tile_ratio", "ratio", 6, 3 },
    { "others_percent", "others %", 8, 1 },
    { "received_mb", "MB recvd", 8, 2 },       /* by rank 0, of collectives */
    { "temporary_mib", "temp MiB", 8, 1 }, /* of rank 0, without the scratch of kernels */
};
/* clang-format on */

typedef struct prefill_options {
    bench_common common;
    const char *model;
    const char *weights;
    const char *dtype; /* NULL: f32, then bf16 */
    bool keep;
    bool sequence_parallel;
    int64_t layers;
    int64_t tokens;
    int64_t rounds;
} prefill_options;

typedef struct prefill_job {
    const prefill_options *options;
    const char *mesh;
    const char *folder;
    dt_dtype dtype;
    const bench_machine *limits;
    int32_t *ids;
    double flops; /* from here on: written by rank 0 */
    int64_t received_bytes, temporary_bytes;
    bench_rounds rounds;
    bench_samples seconds, peak, tiles, ratio, tile_ratio, others;
} prefill_job;

static dt_status pass(dt_runtime *rt, const prefill_job *j, dt_tape *t, dt_model *m, dt_state *s,
                      double *seconds)
{
    int64_t start;

    dt_tape_reset(t);
    dt_state_rewind(s, 0);
    DT_TRY(bench_barrier(rt));
    start = dti_now_ns();
    (void)dt_model_forward(t, m, s, j->ids, j->options->tokens, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(t));
    DT_TRY(bench_barrier(rt)); /* the slowest rank counts */
    *seconds = (double)(dti_now_ns() - start) * 1e-9;
    return DT_OK;
}

static void count_round(prefill_job *j, double seconds, double peak, double tiles)
{
    const double gflops = j->flops * 1e-9 / seconds;
    double others;
    const bench_verdict verdict = bench_round_end(&j->rounds, &others);

    if (verdict == BENCH_DROP_IT) return;
    if (verdict == BENCH_DROP_EARLIER)
        j->seconds.n = j->peak.n = j->tiles.n = j->ratio.n = j->tile_ratio.n = j->others.n = 0;
    bench_add(&j->seconds, seconds);
    bench_add(&j->peak, peak);
    bench_add(&j->ratio, gflops / peak);
    bench_add(&j->others, others);
    if (tiles == 0.0) return;
    bench_add(&j->tiles, tiles);
    bench_add(&j->tile_ratio, gflops / tiles);
}

static dt_status measure(dt_runtime *rt, prefill_job *j, dt_tape *t, dt_model *m, dt_state *s)
{
    const bool bf16 = j->dtype == DT_BF16 && dti_isa_detect() >= DTI_ISA_AVX512_BF16;
    const bool root = dt_runtime_rank(rt) == 0;
    double (*peak)(const bench_machine *) = bf16 ? bench_bf16_gflops : bench_f32_gflops;
    double seconds, before[2] = { 0 }, after[2] = { 0 };

    DT_TRY(pass(rt, j, t, m, s, &seconds)); /* caches of decisions, primitives and blocks fill */
    while (j->rounds.more) {
        if (root) bench_round_begin(&j->rounds);
        DT_TRY(bench_alone(rt, peak, j->limits, &before[0]));
        if (bf16) DT_TRY(bench_alone(rt, bench_amx_gflops, j->limits, &before[1]));
        DT_TRY(pass(rt, j, t, m, s, &seconds));
        DT_TRY(bench_alone(rt, peak, j->limits, &after[0]));
        if (bf16) DT_TRY(bench_alone(rt, bench_amx_gflops, j->limits, &after[1]));
        if (root) count_round(j, seconds, (before[0] + after[0]) / 2, (before[1] + after[1]) / 2);
        DT_TRY(bench_barrier(rt));
    }
    return DT_OK;
}

/* What the last pass received, and what all of them took for temporaries. */
static dt_status count_bytes(prefill_job *j, const dt_tape *t, const dt_model *m, const dt_state *s)
{
    int64_t held;

    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        j->received_bytes += dt_tape_comm(t, (dt_comm_kind)k).bytes;
    DT_TRY(dti_held_bytes(dt_tape_runtime(t), &held));
    j->temporary_bytes = held - dt_model_local_bytes(m) - dti_state_bytes(s);
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    prefill_job *j = arg;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_status st = DT_OK;
    dt_mesh *mesh = NULL;
    dt_model *m = NULL;
    dt_state *s = NULL;
    dt_tape *t = NULL;

    load.keep_dtype = false;
    load.dtype = j->dtype;
    load.sequence_parallel = j->options->sequence_parallel;
    load.weights = j->options->weights;
    DT_TRY(dt_mesh_create(rt, j->mesh, &mesh));
    DT_TRY_TO(done, st, dt_model_load(mesh, j->folder, &load, &m));
    if (dt_runtime_rank(rt) == 0)
        DT_TRY_TO(done, st, dti_work_prompt(m, j->options->tokens, 1, 0, &j->flops));
    DT_TRY_TO(done, st, dt_state_create(m, 1, j->options->tokens, &s));
    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, measure(rt, j, t, m, s));
    if (dt_runtime_rank(rt) == 0) DT_TRY_TO(done, st, count_bytes(j, t, m, s));
done:
    dt_tape_release(&t);
    dt_state_release(&s);
    dt_model_release(&m);
    dt_mesh_release(&mesh);
    return st;
}

/* `first` is the seconds of the row that speed-ups are relative to; 0 makes this row that one. */
static dt_status run_case(const prefill_options *o, const char *folder, dt_dtype dtype,
                          const bench_case *c, double *first, bench_report *report)
{
    prefill_job j = { .options = o, .mesh = c->mesh, .folder = folder, .dtype = dtype };
    bench_machine limits = { 0 };
    dt_status st = DT_OK;
    double seconds;

    bench_rounds_open(&j.rounds, o->rounds);
    DT_TRY(dti_alloc_array((size_t)o->tokens, sizeof *j.ids, (void **)&j.ids));
    for (int64_t i = 0; i < o->tokens; i++) j.ids[i] = (int32_t)(i * 7 % 251);
    DT_TRY_TO(done, st, bench_limits_open(bench_case_width(c), 1, &limits));
    j.limits = &limits;
    DT_TRY_TO(done, st, bench_run(&o->common, c, on_rank, &j));
    seconds = bench_median(&j.seconds);
    if (*first == 0.0) *first = seconds;
    bench_report_row(report, dt_dtype_name(dtype), c->mesh, (double)c->threads, seconds * 1e3,
                     (double)o->tokens / seconds, *first / seconds, j.flops * 1e-9,
                     j.flops * 1e-9 / seconds, bench_median(&j.peak), bench_median(&j.ratio),
                     bench_quantile(&j.ratio, 0), bench_quantile(&j.ratio, 1),
                     bench_median(&j.tiles), bench_median(&j.tile_ratio),
                     100 * bench_median(&j.others), (double)j.received_bytes * 1e-6,
                     (double)j.temporary_bytes / (1 << 20));
done:
    bench_machine_close(&limits);
    dti_free(j.ids);
    return st;
}

/* The table of Transformers' guide: one rank, then more; and one rank with all threads. */
static dt_status run_dtype(const prefill_options *o, const char *folder, dt_dtype dtype,
                           bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=4" };
    bench_case c;
    double first = 0.0;

    if (o->common.mesh != NULL) {
        DT_TRY(bench_case_of(&o->common, o->common.mesh, &c));
        DT_TRY(run_case(o, folder, dtype, &c, &first, report));
        return DT_OK;
    }
    if (o->common.threads > 1)
        DT_TRY(run_case(o, folder, dtype, &(bench_case){ "tp=1", 1, 1 }, &first, report));
    for (size_t i = 0; i < DT_COUNT(meshes); i++) {
        DT_TRY(bench_case_of(&o->common, meshes[i], &c));
        DT_TRY(run_case(o, folder, dtype, &c, &first, report));
    }
    return DT_OK;
}

static dt_status choose_dtypes(const prefill_options *o, bool *f32, bool *bf16)
{
    *f32 = o->dtype == NULL || strcmp(o->dtype, "f32") == 0;
    *bf16 = o->dtype == NULL || strcmp(o->dtype, "bf16") == 0;
    DT_CHECK(*f32 || *bf16, DT_ERR_ARG, "--dtype \"%s\": f32 or bf16", o->dtype);
    return DT_OK;
}

static dt_status run(const prefill_options *o, bench_report *report)
{
    bench_shapes shapes = o->common.quick ? bench_llama_tiny : bench_llama_1b;
    dt_status st = DT_OK;
    dt_model_info info;
    bench_folder folder;
    bool f32, bf16;
    int64_t bytes;

    DT_TRY(choose_dtypes(o, &f32, &bf16));
    if (!o->common.quick) { /* the vocabulary costs memory here and no time */
        shapes.layers = o->layers;
        shapes.vocab = 32000;
    }
    DT_TRY(bench_folder_open(o->model, &shapes, &folder));
    DT_TRY_TO(done, st, dt_model_inspect(folder.path, &info, NULL, &bytes));
    bench_report_fact(report, "model", "%s, %lld layers, %.3f GB on disk; %lld tokens",
                      info.model_type, (long long)info.n_layers, (double)bytes * 1e-9,
                      (long long)o->tokens);
    if (o->sequence_parallel) bench_report_fact(report, "tokens", "cut over ranks between blocks");
    if (f32) DT_TRY_TO(done, st, run_dtype(o, folder.path, DT_F32, report));
    if (bf16) DT_TRY_TO(done, st, run_dtype(o, folder.path, DT_BF16, report));
done:
    bench_folder_close(&folder, o->keep);
    return st;
}

int main(int argc, char **argv)
{
    prefill_options o = { .layers = 6, .tokens = 512, .rounds = 7 };
    const bench_option own[] = {
        { "--model", "DIR", "a Hugging Face folder instead of random weights", BENCH_TEXT,
          &o.model },
        { "--weights", "HOW", "packed when they are loaded: int8, int4,group=64, ...", BENCH_TEXT,
          &o.weights },
        { "--keep", NULL, "leave the random checkpoint on the disk and print where", BENCH_FLAG,
          &o.keep },
        { "--dtype", "NAME", "f32 or bf16 (default: both)", BENCH_TEXT, &o.dtype },
        { "--sequence-parallel", NULL, "tokens cut over ranks between blocks", BENCH_FLAG,
          &o.sequence_parallel },
        { "--layers", "N", "of the random checkpoint (default: 6)", BENCH_COUNT, &o.layers },
        { "--tokens", "N", "of the prompt (default: 512)", BENCH_COUNT, &o.tokens },
        { "--rounds", "N", "of which medians are taken (default: 7)", BENCH_COUNT, &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv,
                     "One pass of a prompt through a Llama, against the machine's peak of "
                     "multiply-adds.",
                     own, DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.tokens = 64;
        o.rounds = 1;
    }
    bench_report_open(&report, "prefill", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
