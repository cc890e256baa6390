/* SPDX-License-Identifier: Apache-2.0
 *
 * A step: microbatches forward and backward, then the optimizer. */
#include <dtensor/timeline.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "cli/expert_report.h"
#include "cli/train.h"

enum { IGNORED = -100 };

/* Microbatch m, rows of the step's batch, forward: its part of the loss, or what a stage makes of
 * x; `stage` below 0: the model has none. */
static dt_tensor *forward(const cli_trainer *t, dt_tape *tape, int64_t m, int stage, dt_tensor *x)
{
    const cli_training *plan = t->run->plan;
    const dt_batch *b = &t->batch;
    const int64_t rows = plan->batch / plan->pipeline.microbatches, at = m * rows * b->tokens;
    dt_loss_options how = plan->loss;
    dt_tensor *ids, *targets;

    how.n_valid = (double)dti_max(b->n_valid, 1);
    if (b->starts != NULL) how.starts = b->starts + at;
    ids = dt_model_ids(tape, t->model, b->ids + at, rows, b->tokens);
    targets = dt_model_ids(tape, t->model, b->targets + at, rows, b->tokens);
    return stage < 0 ? dt_model_loss(tape, t->model, ids, targets, &how)
                     : dt_model_stage(tape, t->model, stage, x, ids, targets, &how);
}

static dt_tensor *run_stage(void *arg, dt_tape *tape, int stage, int microbatch, dt_tensor *x)
{
    return forward(arg, tape, microbatch, stage, x);
}

dt_status cli_train_pipeline(cli_trainer *t)
{
    dt_pipeline_options o = DT_PIPELINE_OPTIONS_INIT;

    if (t->run->plan->pipeline.schedule == NULL) return DT_OK;
    o.forward = run_stage;
    o.arg = t;
    DT_TRY(dt_pipeline_create(t->mesh, "pp", t->run->plan->pipeline.schedule, t->optimizer, &o,
                              &t->pipeline));
    return DT_OK;
}

/* One microbatch forward and backward. Its part of the loss is added. */
static dt_status pass(cli_trainer *t, int64_t m, double *loss)
{
    const cli_training *plan = t->run->plan;
    dt_runtime *rt = dt_mesh_runtime(t->mesh);
    dt_tensor *part;
    float value = 0;

    dt_timeline_begin(rt, "forward");
    dt_tape_record(t->tape, dt_optimizer_gradients(t->optimizer));
    part = forward(t, t->tape, m, -1, NULL);
    dt_timeline_end(rt);
    dt_timeline_begin(rt, "backward");
    dt_optimizer_backward(t->optimizer, t->tape, part, m + 1 == plan->pipeline.microbatches, NULL);
    dt_timeline_end(rt);
    DT_TRY(dt_tape_status(t->tape));
    DT_TRY(dt_tensor_read(part, &value, sizeof value));
    *loss += (double)value;
    dt_tape_reset(t->tape);
    return DT_OK;
}

static dt_status run_passes(cli_trainer *t, double *loss)
{
    dt_pipeline_result result;

    if (t->pipeline == NULL) {
        for (int64_t m = 0; m < t->run->plan->pipeline.microbatches; m++) DT_TRY(pass(t, m, loss));
        return DT_OK;
    }
    DT_TRY(dt_pipeline_run(t->pipeline, &result));
    *loss = result.loss;
    return DT_OK;
}

/* What is no number mostly comes of a step before that was too large. */
static dt_status optimize(cli_trainer *t, const cli_metric *metric, dt_step_report *report)
{
    const dt_status st = dt_optimizer_step(t->optimizer, metric->lr, report);

    if (st == DT_ERR_ARG && metric->step > t->begun_at + 1)
        dti_error_prefix("the step before had a norm of %g and a learning rate of %g; too large a "
                         "rate is the usual cause (--lr, --warmup)",
                         t->norm, dt_schedule_at(&t->run->plan->schedule, t->at.step - 1));
    DT_TRY(st);
    t->norm = report->norm;
    return DT_OK;
}

/* Said of the first one: such a step is mostly of data that are made otherwise than was meant. */
static void warn_of_none(const cli_trainer *t)
{
    char line[DT_ERROR_MESSAGE_BYTES];

    if (!t->speaks || t->warned) return;
    (void)snprintf(line, sizeof line,
                   "step %" PRId64 ": none of the %" PRId64 " tokens of its sequences is learned "
                   "(--data: all are masked); it leaves the parameters as they are",
                   t->at.step + 1, t->batch.rows * t->batch.tokens);
    cli_warn(t->run->session->console, line);
}

/* Passes and the optimizer; a step without a target has no loss, and learns nothing. */
static dt_status learn(cli_trainer *t, cli_metric *metric)
{
    dt_runtime *rt = dt_mesh_runtime(t->mesh);
    dt_step_report report;
    dt_expert_load worst;

    DT_TRY(run_passes(t, &metric->loss));
    DT_TRY(cli_loads_sum(t->model, &worst));
    if (worst.n_experts > 0) metric->imbalance = worst.imbalance;
    dt_timeline_begin(rt, "optimizer");
    DT_TRY(optimize(t, metric, &report));
    DT_TRY(dt_device_finish(rt));
    dt_timeline_end(rt);
    metric->grad_norm = report.norm;
    metric->clip = report.clip_factor;
    metric->skipped = report.skipped;
    t->has_learned = true;
    return DT_OK;
}

dt_status cli_train_step(cli_trainer *t, cli_metric *metric)
{
    const cli_training *plan = t->run->plan;
    dt_runtime *rt = dt_mesh_runtime(t->mesh);
    const int64_t begin = cli_now_ns();

    *metric = (cli_metric){ .step = t->at.step + 1, .validation_loss = NAN, .imbalance = NAN };
    metric->lr = dt_schedule_at(&plan->schedule, t->at.step);
    dt_timeline_begin(rt, "data");
    DT_TRY(dt_data_rows(t->data, t->at.samples, plan->batch, &t->batch));
    dt_timeline_end(rt);
    if (t->batch.n_valid > 0) {
        DT_TRY(learn(t, metric));
    } else {
        metric->loss = NAN;
        metric->clip = 1;
        warn_of_none(t);
        t->warned = true;
    }
    t->at.step++;
    t->at.samples += plan->batch;
    t->at.tokens += plan->batch * plan->sequence;
    metric->tokens = t->at.tokens;
    metric->seconds = (double)(cli_now_ns() - begin) * 1e-9;
    return DT_OK;
}

/* --- validation ------------------------------------------------------------------------------- */

/* The sum of the losses of rows' targets. Rows that are missing to a batch count for nothing. */
static dt_status sum_rows(cli_trainer *t, const dt_batch *b, int32_t *room, double *sum)
{
    const int64_t rows = t->run->plan->batch / t->run->plan->pipeline.microbatches;
    const size_t given = (size_t)(b->rows * b->tokens), all = (size_t)(rows * b->tokens);
    int32_t *ids = room, *targets = ids + all, *starts = targets + all;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *loss;
    float value;

    memset(ids, 0, all * sizeof *ids);
    memcpy(ids, b->ids, given * sizeof *ids);
    memcpy(targets, b->targets, given * sizeof *targets);
    for (size_t i = given; i < all; i++) targets[i] = IGNORED;
    memset(starts, 0, all * sizeof *starts);
    if (b->starts != NULL) memcpy(starts, b->starts, given * sizeof *starts);
    how.starts = b->starts != NULL ? starts : NULL;
    how.chunk = t->run->plan->loss.chunk;
    how.n_valid = 1;
    dt_tape_reset(t->tape);
    loss = dt_model_loss(t->tape, t->model, dt_model_ids(t->tape, t->model, ids, rows, b->tokens),
                         dt_model_ids(t->tape, t->model, targets, rows, b->tokens), &how);
    DT_TRY(dt_tape_status(t->tape));
    DT_TRY(dt_tensor_read(loss, &value, sizeof value));
    dt_tape_reset(t->tape);
    *sum += (double)value;
    return DT_OK;
}

dt_status cli_train_validate(cli_trainer *t, double *loss)
{
    const cli_training *plan = t->run->plan;
    const int64_t n = dt_data_samples_per_epoch(t->validation);
    const int64_t rows = plan->batch / plan->pipeline.microbatches;
    dt_status st = DT_OK;
    double sum = 0, count = 0;
    int32_t *room = NULL;
    dt_batch b;

    DT_TRY(dti_alloc_array((size_t)(3 * rows * plan->sequence), sizeof *room, (void **)&room));
    for (int64_t i = 0; i < n; i += rows) {
        DT_TRY_TO(done, st, dt_data_rows(t->validation, i, dti_min(rows, n - i), &b));
        DT_TRY_TO(done, st, sum_rows(t, &b, room, &sum));
        count += (double)b.n_valid;
    }
    *loss = sum / count;
    if (count == 0 && t->speaks)
        cli_warn(t->run->session->console,
                 "--validate: none of its tokens counts, all are masked: there is no loss");
done:
    dti_free(room);
    return st;
}

/* --- how fast it could be --------------------------------------------------------------------- */

enum { ROUNDS = 3, MOST_ROWS = 512 };

/* Of a token: each weight multiplies once forward and twice backward, two operations each time;
 * attention the same, as if every token saw all others. */
dt_status cli_train_measure(cli_trainer *t)
{
    const cli_training *plan = t->run->plan;
    const dt_model_info *info = dt_model_info_of(t->model);
    const int64_t rows = dti_min(plan->sequence, MOST_ROWS);
    double weights = 0, bytes, products = 0, flops, best = INFINITY;
    dt_limits *limits = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_limits_open(t->model, t->run->session->args->folder, rows, &limits));
    DT_TRY_TO(done, st, dt_limits_count(limits, rows, &bytes, &products, &flops));
    DT_TRY_TO(done, st, dt_limits_weights(limits, &weights));
    for (int i = 0; i <= ROUNDS; i++) {
        int64_t begin;
        DT_TRY_TO(done, st, dt_barrier(t->mesh, NULL));
        begin = cli_now_ns();
        DT_TRY_TO(done, st, dt_limits_multiply(limits));
        DT_TRY_TO(done, st, dt_barrier(t->mesh, NULL));
        if (i > 0) best = fmin(best, (double)(cli_now_ns() - begin) * 1e-9);
    }
    if (!t->speaks) goto done;
    t->run->weights = weights;
    t->run->flops_of_token = 6 * weights + 12.0 * (double)(info->n_layers * info->n_heads *
                                                           info->head_dim * plan->sequence);
    t->run->peak = products / best;
done:
    dt_limits_close(&limits);
    return st;
}
