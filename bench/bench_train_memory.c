/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of training holds on the first rank of a mesh: dry steps of Llama-3.2-1B, which count
 * what a run would take and compute nothing (tests/models/test_gradient_steps.c compares them with
 * runs). */
#include <dtensor/model_training.h>
#include <dtensor/weights.h>
#include <stdio.h>
#include <string.h>

#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "dtensor/device/device.h"

enum { STEPS = 3 };

static const bench_column columns[] = {
    { "mesh", "mesh", 6, -1 },
    { "recompute", "recompute", 9, -1 },
    { "weights_gib", "weights", 8, 2 },
    { "gradients_gib", "gradients", 9, 2 }, /* f32 */
    { "kept_gib", "kept", 8, 2 },           /* from forward to backward */
    { "peak_gib", "peak", 8, 2 },           /* of all tensors at once */
    { "held_gib", "from system", 11, 2 },   /* what the pool keeps idle included */
};

typedef struct memory_options {
    bench_common common;
    const char *dtype, *folder;
    int64_t batch, tokens, chunk;
    bool sequence_parallel;
} memory_options;

/* Ways to keep less. */
static const struct {
    const char *name;
    bool thrifty;
    dt_recomputed recompute;
} ways[] = { { "none", false, DT_RECOMPUTED_NOTHING },
             { "cheap", true, DT_RECOMPUTED_NOTHING },
             { "blocks", false, DT_RECOMPUTED_BLOCKS } };

typedef struct held_bytes {
    int64_t weights, gradients, kept, peak, held;
} held_bytes;

static dt_status step(const memory_options *o, int way, dt_tape *t, dt_model *m, dt_gradients *g,
                      held_bytes *out)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *loss;

    how.recompute = ways[way].recompute;
    how.chunk = o->chunk;
    dt_tape_reset(t);
    dt_gradients_clear(g);
    dt_tape_record(t, g);
    dt_tape_set_thrifty(t, ways[way].thrifty);
    ids = dt_model_ids(t, m, NULL, o->batch, o->tokens);
    loss = dt_model_loss(t, m, ids, ids, &how);
    out->kept = dt_tape_kept_bytes(t);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    return DT_OK;
}

/* Gradients of the rank's pieces: f32, each once. */
static int64_t gradient_bytes(const dt_gradients *g)
{
    int64_t bytes = 0;
    dt_tensor *x;

    for (int64_t i = 0; (x = dt_gradients_at(g, i)) != NULL; i++) {
        const dt_tensor *dx = dt_gradient(g, x);
        if (dx == NULL) continue;
        bytes += dti_local_count(dt_tensor_local(dx)) * (int64_t)sizeof(float);
    }
    return bytes;
}

static dt_status measure(const memory_options *o, int way, dt_mesh *mesh, held_bytes *out)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_gradients *g = NULL;
    dti_device *device;
    dt_model *m = NULL;
    dt_tape *t = NULL;
    dt_status st = DT_OK;

    load.keep_dtype = false;
    load.dtype = strcmp(o->dtype, "f32") == 0 ? DT_F32 : DT_BF16;
    load.sequence_parallel = o->sequence_parallel;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dt_model_load(mesh, o->folder, &load, &m));
    out->weights = dt_layers_local_bytes(dt_model_layers(m));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(m), g));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < STEPS; i++) DT_TRY_TO(done, st, step(o, way, t, m, g, out));
    out->gradients = gradient_bytes(g);
    out->peak = (int64_t)dti_memory_peak(device->memory);
    out->held = (int64_t)dti_memory_held(device->memory);
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    dt_model_release(&m);
    return st;
}

static dt_status run_case(const memory_options *o, const char *words, int way, bench_report *report)
{
    const double gib = 1.0 / (1 << 30);
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt = NULL;
    dt_mesh *mesh = NULL;
    dt_status st = DT_OK;
    held_bytes of = { 0 };
    bench_case c;

    DT_TRY(bench_case_of(&o->common, words, &c));
    options.n_ranks = c.n_ranks;
    DT_TRY(dt_runtime_create_dry(&options, 0, NULL, &rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, words, &mesh));
    DT_TRY_TO(done, st, measure(o, way, mesh, &of));
    bench_report_row(report, words, ways[way].name, gib * (double)of.weights,
                     gib * (double)of.gradients, gib * (double)of.kept, gib * (double)of.peak,
                     gib * (double)of.held);
done:
    dt_mesh_release(&mesh);
    dt_runtime_release_dry(&rt);
    return st;
}

static dt_status run(memory_options *o, bench_report *report)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=4" };
    dt_status st = DT_OK;
    bench_folder folder;

    DT_CHECK(strcmp(o->dtype, "f32") == 0 || strcmp(o->dtype, "bf16") == 0, DT_ERR_ARG,
             "--dtype \"%s\": f32 or bf16", o->dtype);
    DT_TRY(bench_config_open(o->common.quick ? &bench_llama_tiny : &bench_llama_1b, &folder));
    o->folder = folder.path;
    bench_report_fact(report, "step", "%lld x %lld tokens, %s%s", (long long)o->batch,
                      (long long)o->tokens, o->dtype,
                      o->sequence_parallel ? ", tokens cut over ranks between blocks" : "");
    if (o->chunk > 0)
        bench_report_fact(report, "head", "%lld tokens of each sequence at a time",
                          (long long)o->chunk);
    for (size_t i = 0; i < (o->common.mesh != NULL ? 1 : DT_COUNT(meshes)); i++)
        for (int way = 0; way < (int)DT_COUNT(ways); way++)
            DT_TRY_TO(
                done, st,
                run_case(o, o->common.mesh != NULL ? o->common.mesh : meshes[i], way, report));
done:
    bench_folder_close(&folder, false);
    return st;
}

int main(int argc, char **argv)
{
    memory_options o = { .dtype = "bf16", .batch = 4, .tokens = 2048 };
    const bench_option own[] = {
        { "--dtype", "NAME", "f32 or bf16 (default: bf16)", BENCH_TEXT, &o.dtype },
        { "--batch", "N", "sequences of a step (default: 4)", BENCH_COUNT, &o.batch },
        { "--tokens", "N", "of each of them (default: 2048)", BENCH_COUNT, &o.tokens },
        { "--chunk", "N", "tokens whose logits exist at a time (default: all)", BENCH_COUNT,
          &o.chunk },
        { "--sequence-parallel", NULL, "tokens cut over ranks between blocks", BENCH_FLAG,
          &o.sequence_parallel },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "What a step of training Llama-3.2-1B holds, by dry steps.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) o.tokens = 32;
    bench_report_open(&report, "train_memory", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
