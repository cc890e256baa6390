/* SPDX-License-Identifier: Apache-2.0
 *
 * A training step without bytes: the same calls as a real one, on a dry mesh, so that what they
 * count is what a run will. */
#include <dtensor/predict.h>

#include "base/options.h"
#include "dtensor/device/device.h"
#include "models/judge/prediction.h"

/* The dry mesh, and the model on it. */
typedef struct dry_step {
    dt_runtime *rt;
    dt_mesh *mesh;
    dt_model *model;
    dt_gradients *gradients;
    dt_tape *tape;
} dry_step;

static dt_status open_step(dt_runtime *rt, const char *dir, dt_predict_options *o, int rank,
                           dry_step *s)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;

    run.log = rank == 0 ? o->log : NULL; /* said once */
    run.log_arg = o->log_arg;
    DT_TRY(dti_predict_settle(rt, dir, o, &run.n_ranks));
    DT_CHECK(rank >= 0 && rank < run.n_ranks, DT_ERR_ARG, "rank %d of a mesh of %d", rank,
             run.n_ranks);
    DT_CHECK(o->batch <= INT32_MAX / o->sequence, DT_ERR_ARG,
             "a step of %lld sequences of %lld tokens: at most %lld sequences are possible",
             (long long)o->batch, (long long)o->sequence, (long long)(INT32_MAX / o->sequence));
    DT_TRY(dt_runtime_create_dry(&run, rank, rt, &s->rt));
    DT_TRY(dt_mesh_create(s->rt, o->mesh, &s->mesh));
    DT_TRY(dt_model_load(s->mesh, dir, o->load, &s->model));
    DT_TRY(dt_gradients_create(s->rt, &s->gradients));
    DT_TRY(dt_layers_watch(dt_model_layers(s->model), s->gradients));
    DT_TRY(dt_tape_create(s->rt, &s->tape));
    return DT_OK;
}

static void close_step(dry_step *s)
{
    dt_tape_release(&s->tape);
    dt_gradients_release(&s->gradients);
    dt_model_release(&s->model);
    dt_mesh_release(&s->mesh);
    dt_runtime_release_dry(&s->rt);
}

/* What was counted since `before`, which becomes what is counted now. */
static void counted(const dt_tape *t, dt_training_part *before, dt_training_part *out)
{
    const dt_op_work work = dt_tape_work(t);

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter now = dt_tape_comm(t, (dt_comm_kind)k);
        out->comm[k].calls = now.calls - before->comm[k].calls;
        out->comm[k].bytes = now.bytes - before->comm[k].bytes;
        before->comm[k] = now;
    }
    out->work.flops = work.flops - before->work.flops;
    out->work.bytes = work.bytes - before->work.bytes;
    before->work = work;
}

static dt_status run_step(const dry_step *s, int64_t batch, int64_t sequence,
                          const dt_loss_options *how, dt_training_cost *out)
{
    dt_training_part before = { .work = { 0, 0 } };
    dti_device *device;
    dt_tensor *loss;

    dt_tape_record(s->tape, s->gradients);
    loss = dt_model_loss(s->tape, s->model, dt_model_ids(s->tape, s->model, NULL, batch, sequence),
                         dt_model_ids(s->tape, s->model, NULL, batch, sequence), how);
    counted(s->tape, &before, &out->forward);
    out->kept_bytes = dt_tape_kept_bytes(s->tape);
    dt_backward(s->tape, loss, NULL);
    DT_TRY(dt_tape_status(s->tape));
    counted(s->tape, &before, &out->backward);
    DT_TRY(dt_gradients_settle(s->gradients, s->tape));
    counted(s->tape, &before, &out->gradients);
    DT_TRY(dti_device_of(s->rt, &device));
    out->peak_bytes = (int64_t)dti_memory_peak(device->memory);
    out->weight_bytes = dt_model_local_bytes(s->model);
    for (int64_t i = 0; dt_gradients_at(s->gradients, i) != NULL; i++) {
        const dt_tensor *g = dt_gradient(s->gradients, dt_gradients_at(s->gradients, i));
        if (g != NULL)
            out->gradient_bytes +=
                dti_local_count(dt_tensor_local(g)) * (int64_t)dt_dtype_size(dt_tensor_dtype(g));
    }
    return DT_OK;
}

dt_status dt_predict_training(dt_runtime *rt, const char *dir, const dt_predict_options *options,
                              const dt_loss_options *loss, int rank, dt_training_cost *out)
{
    dt_predict_options own = DT_PREDICT_OPTIONS_INIT, *const o = &own;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dry_step s = { NULL };
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = (dt_training_cost){ 0 };
    DT_TRY(dti_options_read("dt_predict_options", "start from DT_PREDICT_OPTIONS_INIT", options, o,
                            sizeof *o));
    if (loss != NULL) how = *loss;
    DT_TRY_TO(done, st, open_step(rt, dir, o, rank, &s));
    st = run_step(&s, o->batch, o->sequence, &how, out);
    out->sequence = o->sequence;
done:
    close_step(&s);
    return st;
}
