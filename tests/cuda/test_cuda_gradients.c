/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of every parameter of reference checkpoints on GPUs against Transformers', by the
 * measure that holds on the CPU (tests/models/test_gradients.c). The simulated device runs a thread
 * at a time, so there are fewer checkpoints and meshes here than there. */
#include <dtensor/model_training.h>
#include <math.h>
#include <stdio.h>

#include "base/memory.h"
#include "tests/support/cuda.h"
#include "tests/support/gradient_golden.h"

typedef struct scene {
    const char *fixture;
    const dt_gradient_golden *golden;
    dt_dtype dtype;
    double factor; /* of the gradients, before they are compared: 1, or what must be seen */
    double bound;
} scene;

/* How far the gradient of a parameter is off, as a part of the largest or of bf16's own. */
static dt_status measure(const scene *s, const dt_layer *layer, int p, dt_tensor *gradient,
                         double *off)
{
    const dt_param_info info = dt_layer_param_info(layer, p);
    const dt_golden_gradient *theirs;
    dt_tensor *full = NULL;
    float *ours = NULL;
    char name[256];
    dt_status st = DT_OK;

    (void)snprintf(name, sizeof name, "%s.%s", info.layer, info.name);
    theirs = dt_gradient_golden_find(s->golden, name);
    DT_EXPECT(theirs != NULL && gradient != NULL, "%s: no gradient of %s", s->fixture, name);
    DT_TRY(dt_full_tensor(gradient, &full));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)theirs->n, sizeof *ours, (void **)&ours));
    DT_TRY_TO(done, st, dt_tensor_read(full, ours, (size_t)theirs->n * sizeof *ours));
    for (int64_t i = 0; i < theirs->n; i++) ours[i] *= (float)s->factor;
    *off = s->dtype == DT_F32 ? dt_golden_gradient_off_f32(theirs, ours)
                              : dt_golden_gradient_off_bf16(theirs, ours);
done:
    dti_free(ours);
    dt_tensor_release(&full);
    return st;
}

static dt_status compare(const scene *s, dt_layers *layers, const dt_gradients *g)
{
    double worst = 0.0, off = 0.0;
    int n = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer *layer = dt_layers_at(layers, i);
        for (int p = 0; p < dt_layer_n_params(layer); p++) {
            if (!dt_layer_owns_param(layer, p)) continue;
            DT_TRY(measure(s, layer, p, dt_gradient(g, dt_layer_param(layer, p)), &off));
            worst = off <= worst ? worst : off;
            n++;
        }
    }
    DT_EXPECT((size_t)n == s->golden->n_gradients, "%s: %d gradients, not %zu", s->fixture, n,
              s->golden->n_gradients);
    if (s->factor != 1.0)
        DT_EXPECT(worst > 0.4, "%s: a factor of %g is not seen", s->fixture, s->factor);
    else
        DT_EXPECT(worst <= s->bound, "%s: off by %.3g, %.3g is allowed", s->fixture, worst,
                  s->bound);
    return DT_OK;
}

static dt_status run(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    const dt_gradient_golden *golden = s->golden;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    dt_gradients *g = NULL;
    dt_model *model = NULL;
    dt_tensor *ids, *targets, *loss;
    dt_tape *t = NULL;
    float value = 0.0f;
    dt_status st = DT_OK;

    load.keep_dtype = false;
    load.dtype = s->dtype;
    DT_TRY(dt_model_load(mesh, golden->folder, &load, &model));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_layers_watch(dt_model_layers(model), g));
    dt_tape_record(t, g);
    ids = dt_model_ids(t, model, golden->tokens, golden->rows, golden->length);
    targets = dt_model_ids(t, model, golden->targets, golden->rows, golden->length);
    loss = dt_model_loss(t, model, ids, targets, &how);
    dt_backward(t, loss, NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_gradients_settle(g, t));
    DT_TRY_TO(done, st, dt_tensor_read(loss, &value, sizeof value));
    if (s->dtype == DT_F32)
        DT_EXPECT_TO(done, st, fabs((double)value - golden->loss_f32) <= 2e-6 * golden->loss_f32,
                     "%s: loss %.9g, not %.9g", s->fixture, (double)value, golden->loss_f32);
    DT_TRY_TO(done, st, compare(s, dt_model_layers(model), g));
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    dt_model_release(&model);
    return st;
}

static void check(const char *fixture, const char *mesh, dt_dtype dtype, double factor)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    dt_gradient_golden golden;
    scene s = { fixture, &golden, dtype, factor, dtype == DT_F32 ? 3e-5 : 3.0 };

    (void)dt_test_cuda_runs();
    options.device = "cuda";
    options.timeout_ms = 120000;
    DT_ASSERT_OK(dt_gradient_golden_open(fixture, "short", &golden));
    DT_ASSERT_OK(dt_test_run(&options, mesh, run, &s));
    dt_gradient_golden_close(&golden);
}

DT_TEST(cuda_gradients, of_every_parameter_match_on_one_rank_and_two)
{
    check("llama/biases", "tp=1", DT_F32, 1.0);
    check("llama/biases", "tp=2", DT_F32, 1.0);
    check("llama/biases", "tp=1", DT_BF16, 1.0);
    check("qwen3/uneven", "tp=2", DT_F32, 1.0);
}

DT_TEST(cuda_gradients, that_are_wrong_are_seen)
{
    check("llama/biases", "tp=1", DT_F32, 2.0);
}
