/* SPDX-License-Identifier: Apache-2.0
 *
 * Forward and backward of some sequences through a small Llama, as a step of training runs them,
 * with --adamw the update of the parameters too, beside the peak of multiply-adds, measured right
 * before and after each step with as many threads. Counted are the operations of the model alone: 6
 * for each token and parameter that is multiplied (of the embedding rows are looked up), and three
 * times attention's; nothing of what is computed again. */
#include <dtensor/model_training.h>
#include <dtensor/optimizers.h>
#include <dtensor/weights.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "bench/support/profile.h"
#include "models/judge/least_work.h"

static const bench_shapes llama_26m = {
    512, 6, 8, 4, 64, 1408, 8192, 1024, DT_F32, "llama", false
};

static const bench_column columns[] = {
    { "dtype", "dtype", 5, -1 },
    { "mesh", "mesh", 6, -1 },
    { "threads_per_rank", "threads", 7, 0 },
    { "step_ms", "ms/step", 8, 1 },
    { "forward_ms", "forward", 8, 1 },
    { "backward_ms", "backward", 8, 1 },
    { "update_ms", "update", 8, 1 }, /* sums of gradients, norm, AdamW, gathers */
    { "tokens_per_s", "tok/s", 8, 1 },
    { "gflops", "GFLOP/s", 8, 1 },
    { "peak_gflops", "FMA peak", 9, 1 }, /* f32, or vdpbf16ps */
    { "ratio", "ratio", 6, 3 },
    { "ratio_least", "least", 6, 3 },
    { "ratio_most", "most", 6, 3 },
    { "others_percent", "others %", 8, 1 },
    { "received_mb", "MB recvd", 8, 2 }, /* by rank 0, of collectives */
    { "kept_mib", "kept MiB", 8, 1 },    /* by rank 0, from forward to backward */
    { "tensors_mib", "peak MiB", 8, 1 }, /* of rank 0's tensors, weights and gradients included */
};

typedef struct train_options {
    bench_common common;
    bench_shapes shapes;
    const char *dtype;     /* NULL: f32, then bf16 */
    const char *recompute; /* NULL: none */
    bool sequence_parallel, profile, adamw;
    int64_t zero; /* of AdamW; 3: fully sharded */
    int64_t batch, tokens, chunk, rounds;
    dt_loss_options loss; /* from here on: of the fields above */
    bool thrifty;
} train_options;

typedef struct train_job {
    const train_options *options;
    const char *mesh, *folder;
    dt_dtype dtype;
    const bench_machine *limits;
    int32_t *ids, *targets;
    double flops; /* from here on: written by rank 0 */
    int64_t received_bytes, kept_bytes, peak_bytes;
    bench_rounds rounds;
    bench_samples seconds, forward, update, peak, ratio, others;
    bench_profile profile;
} train_job;

/* What a rank has for its steps. */
typedef struct trainer {
    dt_runtime *rt;
    dt_mesh *mesh;
    dt_model *model;
    dt_gradients *gradients; /* the optimizer's, if there is one */
    dt_optimizer *optimizer;
    dt_tape *tape;
    bool root;
    double seconds, forward, update; /* of the last step */
} trainer;

static dt_status step(train_job *j, trainer *r, bool count)
{
    const train_options *o = j->options;
    dt_tensor *ids, *targets, *loss;
    int64_t start, middle, late;

    dt_tape_reset(r->tape);
    DT_TRY(bench_barrier(r->rt));
    start = dti_now_ns();
    dt_gradients_clear(r->gradients);
    dt_tape_record(r->tape, r->gradients);
    dt_tape_set_thrifty(r->tape, o->thrifty);
    ids = dt_model_ids(r->tape, r->model, j->ids, o->batch, o->tokens);
    targets = dt_model_ids(r->tape, r->model, j->targets, o->batch, o->tokens);
    loss = dt_model_loss(r->tape, r->model, ids, targets, &o->loss);
    middle = dti_now_ns();
    if (count) j->kept_bytes = dt_tape_kept_bytes(r->tape);
    if (r->root) bench_profile_turn(&j->profile);
    if (r->optimizer != NULL)
        dt_optimizer_backward(r->optimizer, r->tape, loss, true, NULL);
    else
        dt_backward(r->tape, loss, NULL);
    DT_TRY(dt_tape_status(r->tape));
    late = dti_now_ns();
    if (r->optimizer != NULL)
        DT_TRY(dt_optimizer_step(r->optimizer, 1e-4, NULL));
    else
        DT_TRY(dt_gradients_settle(r->gradients, r->tape));
    r->update = (double)(dti_now_ns() - late) * 1e-9;
    DT_TRY(bench_barrier(r->rt)); /* the slowest rank counts */
    r->seconds = (double)(dti_now_ns() - start) * 1e-9;
    r->forward = (double)(middle - start) * 1e-9;
    return DT_OK;
}

static void count_round(train_job *j, const trainer *r, double peak)
{
    double others;
    const bench_verdict verdict = bench_round_end(&j->rounds, &others);

    if (verdict == BENCH_DROP_IT) return;
    if (verdict == BENCH_DROP_EARLIER)
        j->seconds.n = j->forward.n = j->update.n = j->peak.n = j->ratio.n = j->others.n = 0;
    bench_add(&j->seconds, r->seconds);
    bench_add(&j->forward, r->forward);
    bench_add(&j->update, r->update);
    bench_add(&j->peak, peak);
    bench_add(&j->ratio, j->flops * 1e-9 / r->seconds / peak);
    bench_add(&j->others, others);
}

static dt_status measure(train_job *j, trainer *r)
{
    const bool bf16 = j->dtype == DT_BF16 && dti_isa_detect() >= DTI_ISA_AVX512_BF16;
    double (*peak)(const bench_machine *) = bf16 ? bench_bf16_gflops : bench_f32_gflops;
    double before = 0.0, after = 0.0;

    DT_TRY(step(j, r, r->root)); /* caches of decisions, primitives and blocks fill */
    DT_TRY(step(j, r, false));
    while (j->rounds.more) {
        if (r->root) bench_round_begin(&j->rounds);
        DT_TRY(bench_alone(r->rt, peak, j->limits, &before));
        if (r->root && j->options->profile) DT_TRY(bench_profile_begin(&j->profile, r->rt));
        DT_TRY(step(j, r, false));
        if (r->root) bench_profile_end(&j->profile, r->seconds);
        DT_TRY(bench_alone(r->rt, peak, j->limits, &after));
        if (r->root) count_round(j, r, (before + after) / 2);
        DT_TRY(bench_barrier(r->rt));
    }
    return DT_OK;
}

/* What the last step received, and the most that there was. */
static dt_status count_bytes(train_job *j, const trainer *r)
{
    dti_device *device;

    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        j->received_bytes += dt_tape_comm(r->tape, (dt_comm_kind)k).bytes;
    DT_TRY(dti_device_of(r->rt, &device));
    j->peak_bytes = (int64_t)dti_memory_peak(device->memory);
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    train_job *j = arg;
    const train_options *o = j->options;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_optimizer_options adamw = DT_OPTIMIZER_OPTIONS_INIT;
    trainer r = { .rt = rt, .root = dt_runtime_rank(rt) == 0 };
    dt_status st = DT_OK;

    load.keep_dtype = false;
    load.dtype = j->dtype;
    load.sequence_parallel = o->sequence_parallel;
    load.fully_shard = o->zero == 3 ? "dp" : NULL;
    adamw.zero = o->zero < 3 ? (int)o->zero : 0;
    DT_TRY(dt_mesh_create(rt, j->mesh, &r.mesh));
    DT_TRY_TO(done, st, dt_model_create_random(r.mesh, j->folder, &load, 1, &r.model));
    if (r.root) {
        DT_TRY_TO(done, st, dti_work_prompt(r.model, o->tokens, o->tokens, 0, &j->flops));
        j->flops *= 3.0 * (double)o->batch;
    }
    if (o->adamw) {
        DT_TRY_TO(done, st, dt_optimizer_create(dt_model_layers(r.model), &adamw, &r.optimizer));
        r.gradients = dt_optimizer_gradients(r.optimizer);
    } else {
        DT_TRY_TO(done, st, dt_gradients_create(rt, &r.gradients));
        DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(r.model), r.gradients));
    }
    DT_TRY_TO(done, st, dt_tape_create(rt, &r.tape));
    DT_TRY_TO(done, st, measure(j, &r));
    if (r.root) DT_TRY_TO(done, st, count_bytes(j, &r));
done:
    dt_tape_release(&r.tape);
    if (r.optimizer == NULL) dt_gradients_release(&r.gradients);
    dt_optimizer_release(&r.optimizer);
    dt_model_release(&r.model);
    dt_mesh_release(&r.mesh);
    return st;
}

static dt_status make_tokens(train_job *j)
{
    const int64_t n = j->options->batch * j->options->tokens;

    DT_TRY(dti_alloc_array((size_t)(2 * n), sizeof *j->ids, (void **)&j->ids));
    j->targets = j->ids + n;
    for (int64_t i = 0; i < n; i++) {
        j->ids[i] = (int32_t)(i * 7919 % j->options->shapes.vocab);
        j->targets[i] = (int32_t)((i + 1) * 7919 % j->options->shapes.vocab);
    }
    return DT_OK;
}

static dt_status run_case(const train_options *o, const char *folder, dt_dtype dtype,
                          const bench_case *c, bench_report *report)
{
    train_job j = { .options = o, .mesh = c->mesh, .folder = folder, .dtype = dtype };
    bench_machine limits = { 0 };
    dt_status st = DT_OK;
    double seconds, forward, update;

    bench_rounds_open(&j.rounds, o->rounds);
    DT_TRY(make_tokens(&j));
    DT_TRY_TO(done, st, bench_limits_open(bench_case_width(c), 1, &limits));
    j.limits = &limits;
    DT_TRY_TO(done, st, bench_run(&o->common, c, on_rank, &j));
    seconds = bench_median(&j.seconds);
    forward = bench_median(&j.forward);
    update = bench_median(&j.update);
    bench_report_row(report, dt_dtype_name(dtype), c->mesh, (double)c->threads, seconds * 1e3,
                     forward * 1e3, (seconds - forward - update) * 1e3, update * 1e3,
                     (double)(o->batch * o->tokens) / seconds, j.flops * 1e-9 / seconds,
                     bench_median(&j.peak), bench_median(&j.ratio), bench_quantile(&j.ratio, 0),
                     bench_quantile(&j.ratio, 1), 100 * bench_median(&j.others),
                     (double)j.received_bytes * 1e-6, (double)j.kept_bytes / (1 << 20),
                     (double)j.peak_bytes / (1 << 20));
    if (o->profile) bench_profile_report(&j.profile, dt_dtype_name(dtype), c->mesh, report);
done:
    bench_machine_close(&limits);
    dti_free(j.ids);
    return st;
}

static dt_status run_dtype(const train_options *o, const char *folder, dt_dtype dtype,
                           bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2" };
    const size_t n = o->common.mesh != NULL ? 1 : DT_COUNT(meshes);
    bench_case c;

    if (o->dtype != NULL && strcmp(o->dtype, dt_dtype_name(dtype)) != 0) return DT_OK;
    for (size_t i = 0; i < n; i++) {
        const char *mesh = o->common.mesh != NULL ? o->common.mesh : meshes[i];
        DT_TRY(bench_case_of(&o->common, mesh, &c));
        DT_TRY(run_case(o, folder, dtype, &c, report));
    }
    return DT_OK;
}

static dt_status read_words(train_options *o)
{
    const char *r = o->recompute != NULL ? o->recompute : "none";

    DT_CHECK(o->dtype == NULL || strcmp(o->dtype, "f32") == 0 || strcmp(o->dtype, "bf16") == 0,
             DT_ERR_ARG, "--dtype \"%s\": f32 or bf16", o->dtype);
    DT_CHECK(o->zero <= 3 && (o->zero == 0 || o->adamw), DT_ERR_ARG,
             "--zero %lld: 0 to 3, with --adamw", (long long)o->zero);
    DT_CHECK(strcmp(r, "none") == 0 || strcmp(r, "cheap") == 0 || strcmp(r, "blocks") == 0,
             DT_ERR_ARG, "--recompute \"%s\": none, cheap or blocks", r);
    o->loss = (dt_loss_options)DT_LOSS_OPTIONS_INIT;
    o->loss.chunk = o->chunk;
    o->loss.recompute = strcmp(r, "blocks") == 0 ? DT_RECOMPUTED_BLOCKS : DT_RECOMPUTED_NOTHING;
    o->thrifty = strcmp(r, "cheap") == 0;
    return DT_OK;
}

static dt_status run(train_options *o, bench_report *report)
{
    dt_status st = DT_OK;
    bench_folder folder;

    DT_TRY(read_words(o));
    DT_TRY(bench_config_open(&o->shapes, &folder));
    bench_report_fact(report, "model",
                      "llama, %lld layers of %lld, vocabulary %lld; %lld x %lld tokens",
                      (long long)o->shapes.layers, (long long)o->shapes.hidden,
                      (long long)o->shapes.vocab, (long long)o->batch, (long long)o->tokens);
    bench_report_fact(report, "again", "%s%s", o->recompute != NULL ? o->recompute : "none",
                      o->chunk > 0 ? ", and the head chunk by chunk" : "");
    if (o->adamw) bench_report_fact(report, "optimizer", "AdamW, zero %lld", (long long)o->zero);
    if (o->sequence_parallel) bench_report_fact(report, "tokens", "cut over ranks between blocks");
    DT_TRY_TO(done, st, run_dtype(o, folder.path, DT_F32, report));
    DT_TRY_TO(done, st, run_dtype(o, folder.path, DT_BF16, report));
done:
    bench_folder_close(&folder, false);
    return st;
}

int main(int argc, char **argv)
{
    train_options o = { .shapes = llama_26m, .batch = 4, .tokens = 256, .rounds = 7 };
    const bench_option own[] = {
        { "--dtype", "NAME", "f32 or bf16 (default: both)", BENCH_TEXT, &o.dtype },
        { "--batch", "N", "sequences of a step (default: 4)", BENCH_COUNT, &o.batch },
        { "--tokens", "N", "of each of them (default: 256)", BENCH_COUNT, &o.tokens },
        { "--recompute", "WHAT", "none, cheap or blocks (default: none)", BENCH_TEXT,
          &o.recompute },
        { "--chunk", "N", "tokens whose logits exist at a time (default: all)", BENCH_COUNT,
          &o.chunk },
        { "--sequence-parallel", NULL, "tokens cut over ranks between blocks", BENCH_FLAG,
          &o.sequence_parallel },
        { "--adamw", NULL, "a whole step: gradients summed, clipped, AdamW", BENCH_FLAG, &o.adamw },
        { "--zero", "N", "AdamW's state cut over dp; 3: parameters too (default: 0)", BENCH_COUNT,
          &o.zero },
        { "--profile", NULL, "time by operator, below each row", BENCH_FLAG, &o.profile },
        { "--rounds", "N", "of which medians are taken (default: 7)", BENCH_COUNT, &o.rounds },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv,
                     "Forward and backward through a Llama, against the machine's peak of "
                     "multiply-adds.",
                     own, DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.shapes = bench_llama_tiny;
        o.batch = 2;
        o.tokens = 32;
        o.rounds = 1;
    }
    bench_report_open(&report, "train", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
