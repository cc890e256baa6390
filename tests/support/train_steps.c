/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/train_steps.h"

#include <dtensor/ops.h>
#include <string.h>

#include "base/memory.h"
#include "training/counts.h"

enum { FAULT_STEP = 4 };

dt_optimizer_options dt_test_optimizer(const char *which)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;

    if (strcmp(which, "sgd") != 0) return o;
    o.rule = DT_SGD;
    o.momentum = 0.9;
    o.weight_decay = 0.0;
    o.clip = 0.0;
    return o;
}

/* Number of the window that stands in row `row` of a step. */
static int64_t window_of(const dt_test_steps *t, int step, int64_t row)
{
    const int64_t each = t->rows / t->microbatches;

    if (t->fault == DT_FAULT_SWAPPED && step == FAULT_STEP && row >= t->rows - each)
        row += each;
    else if (t->fault == DT_FAULT_SWAPPED && step == FAULT_STEP + 1 && row < each)
        row -= each;
    return step * t->rows + row;
}

typedef struct trainer {
    const dt_test_steps *t;
    dt_model *model;
    dt_optimizer *optimizer;
    dt_tape *tape;
    int32_t *ids, *targets; /* of a microbatch */
    dt_pipeline *pipeline;  /* NULL: none */
    int step;
} trainer;

/* Targets of a row that do not count, the first ones. */
static int64_t hidden(const dt_test_steps *t, int64_t row)
{
    return t->masked ? row * t->length / t->rows : 0;
}

static double count_valid(const dt_test_steps *t)
{
    int64_t n = t->rows * t->length;

    for (int64_t r = 0; r < t->rows; r++) n -= hidden(t, r);
    return (double)n;
}

/* Microbatch m of the step on a tape: of a stage what it makes of x; below 0 the loss. */
static dt_tensor *forward(trainer *r, dt_tape *tape, int m, int stage, dt_tensor *x)
{
    const dt_test_steps *t = r->t;
    const int64_t each = t->rows / t->microbatches;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids, *targets;

    how.recompute = t->recompute;
    how.n_valid = t->fault == DT_FAULT_MEANS ? 0.0 : count_valid(t);
    for (int64_t i = 0; i < each; i++) {
        const int32_t *from = t->tokens + window_of(t, r->step, m * each + i) * t->length;
        memcpy(r->ids + i * t->length, from, (size_t)t->length * sizeof *from);
        memcpy(r->targets + i * t->length, from + 1, (size_t)t->length * sizeof *from);
        for (int64_t k = 0; k < hidden(t, m * each + i); k++) r->targets[i * t->length + k] = -100;
    }
    ids = dt_model_ids(tape, r->model, r->ids, each, t->length);
    targets = dt_model_ids(tape, r->model, r->targets, each, t->length);
    return stage < 0 ? dt_model_loss(tape, r->model, ids, targets, &how)
                     : dt_model_stage(tape, r->model, stage, x, ids, targets, &how);
}

static dt_tensor *run_stage(void *arg, dt_tape *tape, int stage, int microbatch, dt_tensor *x)
{
    return forward(arg, tape, microbatch, stage, x);
}

static dt_status run_pass(trainer *r, int m, dt_pipeline_result *sum)
{
    const dt_test_steps *t = r->t;
    dt_training_part counted = { .work = { 0, 0 } };
    dt_tensor *mean;
    float value;

    dt_tape_record(r->tape, dt_optimizer_gradients(r->optimizer));
    mean = forward(r, r->tape, m, -1, NULL);
    if (t->fault == DT_FAULT_MEANS) mean = dt_mul_scalar(r->tape, mean, 1.0 / t->microbatches);
    dti_count_since(r->tape, &counted, &sum->forward);
    sum->kept_bytes = dt_tape_kept_bytes(r->tape);
    dt_optimizer_backward(r->optimizer, r->tape, mean, m + 1 == t->microbatches, NULL);
    DT_TRY(dt_tape_status(r->tape));
    DT_TRY(dt_tensor_read(mean, &value, sizeof value));
    sum->loss += (double)value;
    dti_count_since(r->tape, &counted, &sum->backward);
    dt_tape_reset(r->tape);
    return DT_OK;
}

/* The gradient that a fault is in. */
static dt_tensor *find_spoiled(trainer *r)
{
    dt_gradients *g = dt_optimizer_gradients(r->optimizer);
    int64_t count = 0;

    if (r->t->spoiled != NULL)
        return dt_gradient(g,
                           dt_layer_param(dt_layers_find(dt_model_layers(r->model), r->t->spoiled),
                                          r->t->spoiled_param));
    while (dt_gradients_at(g, count) != NULL) count++;
    return dt_gradient(g, dt_gradients_at(g, count / 2));
}

static dt_status spoil(trainer *r)
{
    const bool first = dt_mesh_coord(dt_model_mesh(r->model), 0) == 0;
    const double factor = r->t->fault == DT_FAULT_SCALED ? 2.0 : first ? 1.0 : 0.0;
    dt_tensor *x;
    size_t n = 1;
    float *values;
    dt_status st;

    if (r->t->fault != DT_FAULT_SCALED && r->t->fault != DT_FAULT_LOST_SUM) return DT_OK;
    x = find_spoiled(r);
    if (x == NULL && r->pipeline != NULL) return DT_OK; /* of another stage */
    DT_EXPECT(x != NULL, "there is no gradient to spoil");
    for (int a = 0; a < dt_tensor_local(x)->n_axes; a++) n *= (size_t)dt_tensor_local(x)->shape[a];
    if (n == 0) return DT_OK;
    DT_TRY(dti_alloc_array(n, sizeof *values, (void **)&values));
    st = dt_tensor_read(x, values, n * sizeof *values);
    for (size_t i = 0; i < n; i++) values[i] *= (float)factor;
    if (st == DT_OK) st = dt_tensor_write(x, values, n * sizeof *values);
    dti_free(values);
    return st;
}

static dt_status tell(const trainer *r, dt_test_moment moment)
{
    const dt_test_steps *t = r->t;

    return t->told == NULL ? DT_OK : t->told(t->told_arg, moment, r->step, r->model, r->optimizer);
}

static dt_status run_steps(trainer *r, dt_test_losses *out)
{
    r->step = r->t->first;
    DT_TRY(tell(r, DT_TEST_LOADED));
    for (; r->step < r->t->steps; r->step++) {
        dt_step_report report;
        out->last = (dt_pipeline_result){ 0 };
        for (int m = 0; m < r->t->microbatches && r->pipeline == NULL; m++)
            DT_TRY(run_pass(r, m, &out->last));
        if (r->pipeline != NULL) DT_TRY(dt_pipeline_run(r->pipeline, &out->last));
        out->loss[r->step] = out->last.loss;
        DT_TRY(spoil(r));
        DT_TRY(tell(r, DT_TEST_PASSED));
        DT_TRY(dt_optimizer_step(r->optimizer, r->t->lr, &report));
        out->norm[r->step] = report.norm;
        DT_TRY(tell(r, DT_TEST_STEPPED));
    }
    return DT_OK;
}

dt_status dt_test_plan_stages(int p, const dt_test_steps *t, dt_load_options *load,
                              dt_pipeline_schedule **out)
{
    *out = NULL;
    if (t->schedule == NULL) return DT_OK;
    DT_TRY(dt_pipeline_schedule_create(t->schedule, p, t->stages_per_rank, t->microbatches, out));
    load->n_stages = dt_pipeline_schedule_stages(*out);
    load->stages = t->stages;
    load->stages_turn =
        load->n_stages > p && p > 1 && dt_pipeline_schedule_rank_of(*out, p) == p - 1;
    return DT_OK;
}

static dt_status make_pipeline(trainer *r, dt_mesh *mesh, dt_pipeline_schedule *schedule)
{
    dt_pipeline_options o = DT_PIPELINE_OPTIONS_INIT;

    o.forward = run_stage;
    o.arg = r;
    if (schedule != NULL)
        DT_TRY(dt_pipeline_create(mesh, "pp", schedule, r->optimizer, &o, &r->pipeline));
    return DT_OK;
}

dt_status dt_test_train_model(dt_mesh *mesh, const dt_test_steps *t, dt_test_losses *out,
                              dt_model **model)
{
    const size_t n = (size_t)(t->rows / t->microbatches * t->length);
    const int d = dt_mesh_find_dim(mesh, "pp"), p = d < 0 ? 1 : dt_mesh_dim_size(mesh, d);
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_pipeline_schedule *schedule = NULL;
    trainer r = { .t = t };
    dt_status st = DT_OK;

    *model = NULL;
    *out = (dt_test_losses){ .last = { 0 } };
    DT_TRY(dt_test_plan_stages(p, t, &load, &schedule));
    load.keep_dtype = false;
    load.dtype = t->bf16 ? DT_BF16 : DT_F32;
    load.sequence_parallel = t->sequence_parallel;
    load.fully_shard = t->fully_shard;
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *r.ids, (void **)&r.ids));
    DT_TRY_TO(done, st, dti_alloc_array(n, sizeof *r.targets, (void **)&r.targets));
    if (t->random != 0)
        DT_TRY_TO(done, st, dt_model_create_random(mesh, t->folder, &load, t->random, &r.model));
    else
        DT_TRY_TO(done, st, dt_model_load(mesh, t->folder, &load, &r.model));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &r.tape));
    DT_TRY_TO(done, st, dt_optimizer_create(dt_model_layers(r.model), &t->optimizer, &r.optimizer));
    DT_TRY_TO(done, st, make_pipeline(&r, mesh, schedule));
    DT_TRY_TO(done, st, run_steps(&r, out));
    *model = r.model;
    r.model = NULL;
done:
    dt_pipeline_release(&r.pipeline);
    dt_pipeline_schedule_release(&schedule);
    dt_tape_release(&r.tape);
    dt_optimizer_release(&r.optimizer);
    dt_model_release(&r.model);
    dti_free(r.ids);
    dti_free(r.targets);
    return st;
}
