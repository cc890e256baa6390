/* SPDX-License-Identifier: Apache-2.0
 *
 * A training step without bytes: the same calls as a real one, on a dry mesh, so that what they
 * count is what a run will. */
#include <dtensor/predict.h>

#include "base/numbers.h"
#include "base/options.h"
#include "dtensor/device/device.h"
#include "models/judge/prediction.h"
#include "parallel_styles/changes.h"
#include "training/counts.h"

/* The dry mesh, and the model on it. */
typedef struct dry_step {
    dt_runtime *rt;
    dt_mesh *mesh;
    dt_model *model;
    dt_optimizer *optimizer; /* or NULL */
    dt_gradients *own;       /* without one */
    dt_tape *tape;
    dt_pipeline *pipeline; /* or NULL */
    const dt_predict_options *options;
    const dt_step_options *step;
} dry_step;

static dt_status open_step(dt_runtime *rt, const char *dir, dt_predict_options *o, int rank,
                           const dt_optimizer_options *optimizer, dry_step *s)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;

    run.log = rank == 0 ? o->log : NULL; /* said once */
    run.log_arg = o->log_arg;
    run.device = o->device;
    DT_TRY(dti_predict_settle(rt, dir, o, &run.n_ranks));
    DT_CHECK(rank >= 0 && rank < run.n_ranks, DT_ERR_ARG, "rank %d of a mesh of %d", rank,
             run.n_ranks);
    DT_CHECK(o->batch <= INT32_MAX / o->sequence, DT_ERR_ARG,
             "a step of %lld sequences of %lld tokens: at most %lld sequences are possible",
             (long long)o->batch, (long long)o->sequence, (long long)(INT32_MAX / o->sequence));
    DT_TRY(dt_runtime_create_dry(&run, rank, rt, &s->rt));
    DT_TRY(dt_mesh_create(s->rt, o->mesh, &s->mesh));
    DT_TRY(dt_model_load(s->mesh, dir, o->load, &s->model));
    DT_TRY(dt_tape_create(s->rt, &s->tape));
    if (optimizer != NULL) {
        DT_TRY(dt_optimizer_create(dt_model_layers(s->model), optimizer, &s->optimizer));
    } else {
        DT_TRY(dt_gradients_create(s->rt, &s->own));
        DT_TRY(dt_layers_watch(dt_model_layers(s->model), s->own));
    }
    return DT_OK;
}

static void close_step(dry_step *s)
{
    dt_pipeline_release(&s->pipeline);
    dt_tape_release(&s->tape);
    dt_gradients_release(&s->own);
    dt_optimizer_release(&s->optimizer);
    dt_model_release(&s->model);
    dt_mesh_release(&s->mesh);
    dt_runtime_release_dry(&s->rt);
}

static void add_traffic(dt_training_cost *c, uint32_t dims, dt_comm_kind kind,
                        const dt_comm_counter *count, int64_t most)
{
    int at = 0;

    while (at < c->n_traffic && (c->traffic[at].kind != kind || c->traffic[at].dims != dims)) at++;
    if (at == DT_MAX_DIMS_TRAFFIC) at--;
    if (at == c->n_traffic)
        c->traffic[c->n_traffic++] = (dt_dims_traffic){ dims, kind, { 0, 0 }, 0 };
    c->traffic[at].count.calls += count->calls;
    c->traffic[at].count.bytes += count->bytes;
    c->traffic[at].most_bytes += most;
}

/* Listens to moves for the whole step. */
static void hear_move(void *arg, const dti_move_step *step, const int64_t *shape, dt_comm_kind kind,
                      const dt_comm_counter *count)
{
    (void)shape;
    add_traffic(arg, step->dims, kind, count, dti_max(step->most, count->bytes));
}

/* What was counted and was no move: the norm, which all ranks add up; from stage to stage messages,
 * and gradients of weights that two of them share. */
static void add_rest(dt_training_cost *c, const dt_mesh *mesh, const dti_stages *stages)
{
    const dt_training_part *const parts[] = { &c->forward, &c->backward, &c->gradients,
                                              &c->update };
    const uint32_t all = (1u << dt_mesh_n_dims(mesh)) - 1;

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        dt_comm_counter rest = { 0, 0 };
        for (size_t i = 0; i < DT_COUNT(parts); i++) {
            rest.calls += parts[i]->comm[k].calls;
            rest.bytes += parts[i]->comm[k].bytes;
        }
        for (int i = 0; i < c->n_traffic; i++) {
            if (c->traffic[i].kind != (dt_comm_kind)k) continue;
            rest.calls -= c->traffic[i].count.calls;
            rest.bytes -= c->traffic[i].count.bytes;
        }
        if (rest.calls > 0)
            add_traffic(c, k == DT_COMM_ALL_REDUCE || stages->dim < 0 ? all : 1u << stages->dim,
                        (dt_comm_kind)k, &rest, rest.bytes);
    }
}

/* --- stages ----------------------------------------------------------------------------------- */

static dt_loss_options loss_of(const dry_step *s)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;

    if (s->step->loss != NULL) how = *s->step->loss;
    if (s->optimizer != NULL) how.n_valid = 1; /* it is counted before, by the host */
    return how;
}

static dt_tensor *run_stage(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    const dry_step *s = arg;
    const dt_loss_options how = loss_of(s);
    const int64_t rows = s->options->batch / s->step->microbatches, n = s->options->sequence;

    (void)microbatch;
    return dt_model_stage(t, s->model, stage, x, dt_model_ids(t, s->model, NULL, rows, n),
                          dt_model_ids(t, s->model, NULL, rows, n), &how);
}

static dt_tensor_kind input_of(void *arg, int stage)
{
    const dry_step *s = arg;

    (void)stage;
    return dt_model_stage_input(s->model, s->options->batch / s->step->microbatches,
                                s->options->sequence);
}

static dt_status open_pipeline(dry_step *s)
{
    dt_pipeline_options o = DT_PIPELINE_OPTIONS_INIT;

    if (s->step->schedule == NULL) return DT_OK;
    DT_CHECK(s->optimizer != NULL, DT_ERR_ARG, "a pipeline is predicted with an optimizer");
    o.forward = run_stage;
    o.input = input_of;
    o.arg = s;
    DT_TRY(dt_pipeline_create(s->mesh,
                              s->options->load != NULL ? s->options->load->stage_dim : "pp",
                              s->step->schedule, s->optimizer, &o, &s->pipeline));
    return DT_OK;
}

static dt_status run_pipeline(const dry_step *s, dt_training_cost *out)
{
    dt_pipeline_result r;

    DT_TRY(dt_pipeline_run(s->pipeline, &r));
    out->forward = r.forward;
    out->backward = r.backward;
    out->kept_bytes = r.kept_bytes;
    return DT_OK;
}

static void hear_tensor(void *arg, const dt_layout *layout, const int64_t *shape)
{
    (void)arg;
    (void)layout;
    (void)shape;
}

/* Forward and backward of one microbatch. */
static dt_status run_pass(const dry_step *s, int64_t rows, int64_t sequence,
                          const dt_loss_options *how, bool last, dt_training_cost *out)
{
    dt_training_part before = { .work = { 0, 0 } };
    dt_gradients *g = s->optimizer != NULL ? dt_optimizer_gradients(s->optimizer) : s->own;
    dt_tensor *loss;

    dt_tape_reset(s->tape);
    dt_tape_record(s->tape, g);
    loss = dt_model_loss(s->tape, s->model, dt_model_ids(s->tape, s->model, NULL, rows, sequence),
                         dt_model_ids(s->tape, s->model, NULL, rows, sequence), how);
    dti_count_since(s->tape, &before, &out->forward);
    out->kept_bytes = dt_tape_kept_bytes(s->tape);
    if (s->optimizer != NULL)
        dt_optimizer_backward(s->optimizer, s->tape, loss, last, NULL);
    else
        dt_backward(s->tape, loss, NULL);
    dti_count_since(s->tape, &before, &out->backward);
    DT_TRY(dt_tape_status(s->tape));
    if (s->optimizer != NULL || !last) return DT_OK;
    DT_TRY(dt_gradients_settle(g, s->tape));
    dti_count_since(s->tape, &before, &out->gradients);
    return DT_OK;
}

/* As they lie now. */
static int64_t gradient_bytes(const dt_gradients *g)
{
    int64_t bytes = 0;

    for (int64_t i = 0; dt_gradients_at(g, i) != NULL; i++) {
        const dt_tensor *x = dt_gradient(g, dt_gradients_at(g, i));
        if (x != NULL)
            bytes +=
                dti_local_count(dt_tensor_local(x)) * (int64_t)dt_dtype_size(dt_tensor_dtype(x));
    }
    return bytes;
}

static dt_status run_step(const dry_step *s, const dt_predict_options *o,
                          const dt_step_options *step, dt_training_cost *out)
{
    const dt_loss_options how = loss_of(s);
    const int64_t rows = o->batch / step->microbatches;

    if (s->pipeline != NULL) DT_TRY(run_pipeline(s, out));
    for (int64_t m = 0; m < step->microbatches && s->pipeline == NULL; m++)
        DT_TRY(run_pass(s, rows, o->sequence, &how, m + 1 == step->microbatches, out));
    if (s->optimizer == NULL) {
        out->gradient_bytes = gradient_bytes(s->own);
        return DT_OK;
    }
    out->gradient_bytes = gradient_bytes(dt_optimizer_gradients(s->optimizer));
    dt_tape_reset(s->tape);
    DT_TRY(dt_optimizer_step(s->optimizer, 0.0, NULL));
    dti_count_since(dt_optimizer_tape(s->optimizer), &(dt_training_part){ .work = { 0, 0 } },
                    &out->update);
    out->state_bytes = dt_optimizer_state_bytes(s->optimizer);
    return DT_OK;
}

/* A meter asks the caller. */
static double ask(void *arg, const char *kernel, dt_dtype dtype, const dt_op_work *work,
                  double seconds)
{
    const dt_step_options *step = arg;

    (void)seconds;
    return step->seconds(step->seconds_arg, kernel, dtype, work);
}

static dt_status measure_step(const dry_step *s, const dt_predict_options *o,
                              const dt_step_options *step, dt_training_cost *out)
{
    dti_observer observer = { hear_move, hear_tensor, out };
    dti_device *device;
    dt_status st;

    DT_TRY(dti_device_of(s->rt, &device));
    device->observer = &observer;
    st = run_step(s, o, step, out);
    device->observer = NULL;
    DT_TRY(st);
    add_rest(out, s->mesh, &s->model->stages);
    out->peak_bytes = (int64_t)dti_memory_peak(device->memory);
    out->weight_bytes = dt_model_local_bytes(s->model);
    out->sequence = o->sequence;
    return DT_OK;
}

dt_status dt_predict_training(dt_runtime *rt, const char *dir, const dt_predict_options *options,
                              const dt_step_options *step, int rank, dt_training_cost *out)
{
    dt_predict_options own = DT_PREDICT_OPTIONS_INIT, *const o = &own;
    dt_step_options how = DT_STEP_OPTIONS_INIT;
    const dti_meter meter = { ask, &how };
    dry_step s = { NULL };
    dti_device *device;
    dt_status st = DT_OK;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = (dt_training_cost){ 0 };
    DT_TRY(dti_options_read("dt_predict_options", "start from DT_PREDICT_OPTIONS_INIT", options, o,
                            sizeof *o));
    DT_TRY(dti_options_read("dt_step_options", "start from DT_STEP_OPTIONS_INIT", step, &how,
                            sizeof how));
    DT_CHECK(how.microbatches >= 1 && o->batch % how.microbatches == 0, DT_ERR_ARG,
             "a batch of %lld sequences cannot be divided into %lld microbatches",
             (long long)o->batch, (long long)how.microbatches);
    s.options = o;
    s.step = &how;
    DT_TRY_TO(done, st, open_step(rt, dir, o, rank, how.optimizer, &s));
    DT_TRY_TO(done, st, dti_device_of(s.rt, &device));
    if (how.seconds != NULL) device->meter = &meter;
    DT_TRY_TO(done, st, open_pipeline(&s));
    if (dti_layers_gather(dt_model_layers(s.model))) { /* ahead of its turn, from the second on */
        dt_training_cost first = { 0 };
        DT_TRY_TO(done, st, run_step(&s, o, &how, &first));
        dt_gradients_clear(s.own);
    }
    st = measure_step(&s, o, &how, out);
done:
    close_step(&s);
    return st;
}
