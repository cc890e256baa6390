/* SPDX-License-Identifier: Apache-2.0
 *
 * 20 steps of gradient descent with momentum and of AdamW against PyTorch's, of three checkpoints,
 * on meshes of 1 to 4 ranks: losses, norms and parameters; and what is wrong is seen.
 * tools/make_training_golden.py makes the fixtures. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/gradient_golden.h"
#include "tests/support/train_steps.h"

static const char *const fixtures[] = { "llama/uneven", "gemma3/base", "qwen3_moe/base" };

/* The largest distances of a run from PyTorch's: of losses and norms, in f64 there, relative; of
 * parameters, of the largest element of each. */
typedef struct distance {
    double loss, norm, parameter;
    char name[256]; /* of that parameter */
} distance;

/* What a run is, and how far off it may be. A `fault` must put something beyond `most`. */
typedef struct scene {
    const dt_training_golden *golden;
    dt_test_steps training;
    distance most;
} scene;

static dt_status compare(void *arg, const dt_golden_gradient *theirs, const float *ours)
{
    distance *d = arg;
    const double off = dt_golden_gradient_off_f32(theirs, ours);

    if (off <= d->parameter) return DT_OK;
    d->parameter = off;
    (void)snprintf(d->name, sizeof d->name, "%s", theirs->name);
    return DT_OK;
}

static dt_status compare_parameters(const scene *s, dt_layers *layers, distance *d)
{
    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            const dt_param_info info = dt_layer_param_info(layer, p);
            dt_tensor *full = NULL;
            dt_status st;
            if (!dt_layer_owns_param(layer, p)) continue;
            DT_TRY(dt_full_tensor(dt_layer_param(layer, p), &full));
            st = dt_golden_each(&s->golden->parameters, &info, dt_tensor_local(full)->data, compare,
                                d);
            dt_tensor_release(&full);
            DT_TRY(st);
        }
    }
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    const distance *most = &s->most;
    dt_model *model = NULL;
    dt_test_losses got;
    distance d = { 0 };
    dt_status st;

    DT_TRY(dt_test_train_model(mesh, &s->training, &got, &model));
    st = compare_parameters(s, dt_model_layers(model), &d);
    dt_model_release(&model);
    DT_TRY(st);
    for (int i = 0; i < s->training.steps; i++) {
        d.loss = fmax(d.loss, fabs(got.loss[i] / s->golden->loss_f64[i] - 1.0));
        d.norm = fmax(d.norm, fabs(got.norm[i] / s->golden->norm_f64[i] - 1.0));
    }
    if (s->training.fault != DT_FAULT_NONE) {
        DT_EXPECT(d.parameter > 3.0 * most->parameter,
                  "fault %d is not seen: parameters are off by %.3g", (int)s->training.fault,
                  d.parameter);
        return DT_OK;
    }
    DT_EXPECT(d.loss <= most->loss, "a loss is off by %.3g", d.loss);
    DT_EXPECT(d.norm <= most->norm, "a norm is off by %.3g", d.norm);
    DT_EXPECT(d.parameter <= most->parameter, "%s is off by %.3g of its largest", d.name,
              d.parameter);
    return DT_OK;
}

/* AdamW makes a whole step of a gradient that is all rounding, so its parameters are as far off as
 * PyTorch's own f32 is from f64: at most 4.8e-5 here. */
static const distance bounds[] = { { .loss = 1e-5, .norm = 1e-6, .parameter = 1e-5 },
                                   { .loss = 1e-5, .norm = 1e-5, .parameter = 3e-4 } };

/* Of the optimizers, "sgd" and "adamw", those in `which`; of the fixtures the first n. */
enum { SGD = 1, ADAMW = 2 };
static void check(const char *mesh, int which, size_t n, dt_test_steps how)
{
    for (size_t f = 0; f < n; f++)
        for (int w = 0; w < 2; w++) {
            const char *name = w == 0 ? "sgd" : "adamw";
            const int zero = how.optimizer.zero;
            dt_training_golden golden;
            scene s = { .golden = &golden, .training = how, .most = bounds[w] };
            if ((which >> w & 1) == 0) continue;
            DT_ASSERT_OK(dt_training_golden_open(fixtures[f], name, &golden));
            s.training.folder = golden.parameters.folder;
            s.training.tokens = golden.tokens;
            s.training.rows = golden.rows;
            s.training.length = golden.length;
            s.training.lr = golden.lr;
            s.training.steps = DT_TRAINING_STEPS;
            if (how.microbatches == 0) s.training.microbatches = 1;
            s.training.optimizer = dt_test_optimizer(name);
            s.training.optimizer.zero = zero;
            dt_test_on_ranks(mesh, run, &s);
            dt_training_golden_close(&golden);
        }
}

static dt_test_steps zero(int stage)
{
    dt_test_steps t = { 0 };

    t.optimizer.zero = stage < 3 ? stage : 0;
    t.fully_shard = stage == 3 ? "dp" : NULL;
    return t;
}

DT_TEST(training_golden, on_one_rank)
{
    check("tp=1", SGD | ADAMW, 3, (dt_test_steps){ 0 });
}

DT_TEST(training_golden, in_microbatches_and_with_blocks_run_again)
{
    check("tp=1", SGD | ADAMW, 1,
          (dt_test_steps){ .microbatches = 4, .recompute = DT_RECOMPUTED_BLOCKS });
}

DT_TEST(training_golden, with_layers_cut)
{
    check("tp=2", SGD | ADAMW, 3, (dt_test_steps){ 0 });
    check("tp=3", SGD, 3, (dt_test_steps){ 0 });
    check("tp=4", SGD, 1, (dt_test_steps){ 0 });
    check("tp=2", SGD, 1, (dt_test_steps){ .sequence_parallel = true });
}

DT_TEST(training_golden, with_batches_cut)
{
    dt_test_long();
    check("dp=2", SGD | ADAMW, 3, (dt_test_steps){ 0 });
    check("dp=4", SGD, 1, (dt_test_steps){ .microbatches = 2 });
    check("dp=2,tp=2", SGD, 3, (dt_test_steps){ .recompute = DT_RECOMPUTED_BLOCKS });
}

DT_TEST(training_golden, with_state_gradients_and_parameters_cut)
{
    for (int stage = 1; stage <= 3; stage++) {
        check("dp=2", SGD | ADAMW, stage == 3 ? 3 : 1, zero(stage));
        check("dp=4", SGD, 1, zero(stage));
        check("dp=2,tp=2", SGD, 1, zero(stage));
    }
}

/* Of a scaled gradient AdamW makes nearly the same steps: descent without clipping shows it. */
DT_TEST(training_golden, that_are_wrong_are_seen)
{
    dt_test_long();
    check("tp=1", SGD, 3, (dt_test_steps){ .fault = DT_FAULT_SCALED });
    check("dp=2", SGD, 3, (dt_test_steps){ .fault = DT_FAULT_LOST_SUM });
    check("dp=2", ADAMW, 1, (dt_test_steps){ .fault = DT_FAULT_LOST_SUM });
    check("tp=1", SGD | ADAMW, 3, (dt_test_steps){ .fault = DT_FAULT_SWAPPED, .microbatches = 4 });
}
