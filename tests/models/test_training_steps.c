/* SPDX-License-Identifier: Apache-2.0
 *
 * A whole step of training, optimizer included: what the dry run says of it, by part and by mesh
 * dim, against what a run counts and holds. */
#include <dtensor/predict.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"

enum { ROWS = 4, TOKENS = 8 };

typedef struct training_case {
    const char *mesh;
    const char *folder;
    dt_optimizer_options optimizer;
    int64_t microbatches;
    const char *fully_shard; /* or NULL */
    const char *offload;     /* of the parameters, or NULL */
    bool bf16;
} training_case;

static void add_comm(const dt_tape *t, dt_comm_counter *sum)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter now = dt_tape_comm(t, (dt_comm_kind)k);
        sum[k].calls += now.calls;
        sum[k].bytes += now.bytes;
    }
}

static dt_status same(const dt_comm_counter *want, const dt_comm_counter *is, const char *what)
{
    for (int k = 0; k < DT_N_COMM_KINDS; k++)
        DT_EXPECT(want[k].calls == is[k].calls && want[k].bytes == is[k].bytes,
                  "%s: %s predicted %lld x %lld bytes, counted %lld x %lld", what,
                  dt_comm_kind_name((dt_comm_kind)k), (long long)want[k].calls,
                  (long long)want[k].bytes, (long long)is[k].calls, (long long)is[k].bytes);
    return DT_OK;
}

/* What a run of one step counts. */
static dt_status run_step(const training_case *c, dt_model *model, dt_tape *t,
                          dt_optimizer *optimizer, dt_training_cost *is)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS];
    dt_comm_counter forward[DT_N_COMM_KINDS], both[DT_N_COMM_KINDS];
    const int64_t rows = ROWS / c->microbatches;
    dt_tensor *loss;

    for (int i = 0; i < ROWS * TOKENS; i++) ids[i] = 3 + 5 * i % 17;
    how.n_valid = ROWS * TOKENS;
    for (int64_t m = 0; m < c->microbatches; m++) {
        dt_tape_reset(t);
        dt_tape_record(t, dt_optimizer_gradients(optimizer));
        loss =
            dt_model_loss(t, model, dt_model_ids(t, model, ids + m * rows * TOKENS, rows, TOKENS),
                          dt_model_ids(t, model, ids + m * rows * TOKENS, rows, TOKENS), &how);
        for (int k = 0; k < DT_N_COMM_KINDS; k++) forward[k] = dt_tape_comm(t, (dt_comm_kind)k);
        add_comm(t, is->forward.comm);
        is->kept_bytes = dt_tape_kept_bytes(t);
        dt_optimizer_backward(optimizer, t, loss, m + 1 == c->microbatches, NULL);
        DT_TRY(dt_tape_status(t));
        for (int k = 0; k < DT_N_COMM_KINDS; k++) {
            both[k] = dt_tape_comm(t, (dt_comm_kind)k);
            is->backward.comm[k].calls += both[k].calls - forward[k].calls;
            is->backward.comm[k].bytes += both[k].bytes - forward[k].bytes;
        }
        is->forward.work.flops += dt_tape_work(t).flops; /* backward's as well */
    }
    dt_tape_reset(t);
    DT_TRY(dt_optimizer_step(optimizer, 1e-3, NULL));
    add_comm(dt_optimizer_tape(optimizer), is->update.comm);
    is->update.work = dt_tape_work(dt_optimizer_tape(optimizer));
    is->state_bytes = dt_optimizer_state_bytes(optimizer);
    is->weight_bytes = dt_model_local_bytes(model);
    return DT_OK;
}

/* By mesh dims there is as much as by parts. */
static dt_status check_traffic(const dt_training_cost *c)
{
    dt_comm_counter parts[DT_N_COMM_KINDS], dims[DT_N_COMM_KINDS] = { { 0, 0 } };

    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        parts[k].calls =
            c->forward.comm[k].calls + c->backward.comm[k].calls + c->update.comm[k].calls;
        parts[k].bytes =
            c->forward.comm[k].bytes + c->backward.comm[k].bytes + c->update.comm[k].bytes;
    }
    for (int i = 0; i < c->n_traffic; i++) {
        dims[c->traffic[i].kind].calls += c->traffic[i].count.calls;
        dims[c->traffic[i].kind].bytes += c->traffic[i].count.bytes;
        DT_EXPECT(c->traffic[i].dims != 0, "no dim");
    }
    DT_TRY(same(parts, dims, "by mesh dims"));
    return DT_OK;
}

static dt_status check_case(dt_mesh *mesh, const void *arg)
{
    const training_case *c = arg;
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_training_cost want, is = { 0 };
    DT_HELD(model) *model = NULL;
    DT_HELD(optimizer) *optimizer = NULL;
    DT_HELD(tape) *t = NULL;
    dti_device *device;

    load.keep_dtype = false;
    load.dtype = c->bf16 ? DT_BF16 : DT_F32;
    load.fully_shard = c->fully_shard;
    load.offload = c->offload;
    o.mesh = c->mesh;
    o.batch = ROWS;
    o.sequence = TOKENS;
    o.load = &load;
    step.optimizer = &c->optimizer;
    step.microbatches = c->microbatches;
    DT_TRY(dt_predict_training(rt, c->folder, &o, &step, dt_runtime_rank(rt), &want));
    DT_TRY(dt_model_load(mesh, c->folder, &load, &model));
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_optimizer_create(dt_model_layers(model), &c->optimizer, &optimizer));
    /* what the first step gathers, the second one begins ahead */
    for (int i = c->fully_shard == NULL; i < 2; i++) {
        is = (dt_training_cost){ 0 };
        DT_TRY(run_step(c, model, t, optimizer, &is));
    }
    DT_TRY(dti_device_of(rt, &device));
    is.peak_bytes = (int64_t)dti_memory_peak(device->memory);
    DT_TRY(same(want.forward.comm, is.forward.comm, "forward"));
    DT_TRY(same(want.backward.comm, is.backward.comm, "backward"));
    DT_TRY(same(want.update.comm, is.update.comm, "update"));
    DT_TRY(check_traffic(&want));
    DT_EXPECT(want.kept_bytes == is.kept_bytes, "kept %lld, not %lld", (long long)is.kept_bytes,
              (long long)want.kept_bytes);
    DT_EXPECT(want.weight_bytes == is.weight_bytes, "weights");
    DT_EXPECT(want.state_bytes == is.state_bytes, "state %lld, not %lld", (long long)is.state_bytes,
              (long long)want.state_bytes);
    DT_EXPECT(is.peak_bytes == want.peak_bytes, "%s: at most %lld, not %lld", c->mesh,
              (long long)is.peak_bytes, (long long)want.peak_bytes);
    DT_EXPECT(want.forward.work.flops + want.backward.work.flops == is.forward.work.flops &&
                  want.update.work.flops == is.update.work.flops,
              "operations");
    return DT_OK;
}

static void check_grid(dt_optimizer_rule rule, bool bf16)
{
    static const char *const meshes[] = { "tp=1", "dp=2", "tp=2", "dp=4", "dp=2,tp=2" };
    char folder[DT_TEST_PATH_BYTES], dir[DT_TEST_PATH_BYTES];

    (void)dt_test_source_path(folder, "tests/golden/llama/tied");
    (void)dt_test_temp_dir(dir);
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (int zero = 0; zero <= (strstr(meshes[m], "dp") != NULL ? 3 : 2); zero++) {
            training_case c = { .mesh = meshes[m],
                                .folder = folder,
                                .optimizer = DT_OPTIMIZER_OPTIONS_INIT,
                                .microbatches = m != 3 ? 1 + zero % 2 : 1,
                                .bf16 = bf16 };
            c.optimizer.rule = rule;
            c.optimizer.momentum = rule == DT_SGD ? 0.9 : 0;
            c.optimizer.zero = zero < 3 ? zero : 2; /* the third stage is a style of layers */
            c.fully_shard = zero == 3 ? "dp" : NULL;
            dt_test_on_ranks(meshes[m], check_case, &c);
            c.offload = dir;
            if (zero == 3) dt_test_on_ranks(meshes[m], check_case, &c);
        }
}

DT_TEST(training_steps, of_adamw_are_what_the_dry_run_says)
{
    check_grid(DT_ADAMW, false);
}

DT_TEST(training_steps, of_descent_and_with_masters_are_predicted_too)
{
    check_grid(DT_SGD, true);
}

DT_TEST(training_steps, options_of_a_step_are_judged)
{
    char folder[DT_TEST_PATH_BYTES];
    dt_optimizer_options optimizer = DT_OPTIMIZER_OPTIONS_INIT;
    dt_step_options step = DT_STEP_OPTIONS_INIT;
    dt_predict_options o = DT_PREDICT_OPTIONS_INIT;
    dt_training_cost cost;

    (void)dt_test_source_path(folder, "tests/golden/llama/tied");
    o.batch = 3;
    step.microbatches = 2;
    DT_ASSERT_STATUS(dt_predict_training(NULL, folder, &o, &step, 0, &cost), DT_ERR_ARG,
                     "3 sequences cannot be divided into 2 microbatches");
    step.microbatches = 0;
    DT_ASSERT_STATUS(dt_predict_training(NULL, folder, &o, &step, 0, &cost), DT_ERR_ARG,
                     "0 microbatches");
    step.microbatches = 1;
    step.optimizer = &optimizer;
    optimizer.zero = 7;
    DT_ASSERT_STATUS(dt_predict_training(NULL, folder, &o, &step, 0, &cost), DT_ERR_ARG, "zero");
}
