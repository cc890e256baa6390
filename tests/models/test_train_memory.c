/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of training holds, and that a warm one takes nothing from the system. */
#include <dtensor.h>
#include <stdio.h>

#include "dtensor/device/device.h"
#include "tests/support/golden.h"

enum { ROWS = 2, TOKENS = 8, STEPS = 4 };

typedef struct scene {
    dt_dtype dtype;
    bool thrifty, sequence_parallel;
    dt_recomputed recompute;
    int64_t chunk;
} scene;

/* Bytes of one rank. */
typedef struct holds {
    int64_t weights, kept, peak, held[STEPS];
} holds;

static dt_status step(dt_tape *t, dt_model *m, dt_gradients *g, const scene *s, int64_t *kept)
{
    dt_loss_options how = DT_LOSS_OPTIONS_INIT;
    int32_t ids[ROWS * TOKENS];
    dt_tensor *loss;

    for (int i = 0; i < ROWS * TOKENS; i++) ids[i] = i;
    how.recompute = s->recompute;
    how.chunk = s->chunk;
    dt_tape_reset(t);
    dt_gradients_clear(g);
    dt_tape_record(t, g);
    dt_tape_set_thrifty(t, s->thrifty);
    loss = dt_model_loss(t, m, dt_model_ids(t, m, ids, ROWS, TOKENS),
                         dt_model_ids(t, m, ids, ROWS, TOKENS), &how);
    *kept = dt_tape_kept_bytes(t);
    dt_backward(t, loss, NULL);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_gradients_settle(g, t));
    return DT_OK;
}

static dt_status measure(dt_mesh *mesh, const scene *s, holds *out)
{
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    DT_HELD(model) *m = NULL;
    DT_HELD(gradients) *g = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    dti_device *device;

    load.keep_dtype = false;
    load.dtype = s->dtype;
    load.sequence_parallel = s->sequence_parallel;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dt_model_load(mesh, dt_test_source_path(folder, "tests/golden/llama/tied"), &load, &m));
    out->weights = dt_layers_local_bytes(dt_model_layers(m));
    DT_TRY(dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY(dt_layers_watch(dt_model_layers(m), g));
    for (int i = 0; i < STEPS; i++) {
        DT_TRY(step(t, m, g, s, &out->kept));
        out->held[i] = (int64_t)dti_memory_held(device->memory);
    }
    out->peak = (int64_t)dti_memory_peak(device->memory);
    return DT_OK;
}

static dt_status repeat(dt_mesh *mesh, const void *arg)
{
    holds of;

    DT_TRY(measure(mesh, arg, &of));
    DT_EXPECT(of.peak > of.weights + of.kept && of.weights > 0 && of.kept > 0,
              "%lld bytes of weights, %lld kept, %lld at most", (long long)of.weights,
              (long long)of.kept, (long long)of.peak);
    for (int i = 2; i < STEPS; i++)
        DT_EXPECT(of.held[i] == of.held[1], "step %d takes %lld bytes", i,
                  (long long)(of.held[i] - of.held[i - 1]));
    return DT_OK;
}

DT_TEST(train_memory, a_warm_step_takes_nothing)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3" };
    static const scene scenes[] = {
        { .dtype = DT_F32 },
        { .dtype = DT_BF16 },
        { .dtype = DT_BF16, .thrifty = true, .sequence_parallel = true },
        { .dtype = DT_F32, .recompute = DT_RECOMPUTED_BLOCKS },
        { .dtype = DT_BF16, .recompute = DT_RECOMPUTED_BLOCKS, .chunk = 4 },
        { .dtype = DT_BF16, .sequence_parallel = true, .chunk = 4 },
    };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t s = 0; s < DT_COUNT(scenes); s++)
            dt_test_on_ranks(meshes[m], repeat, &scenes[s]);
}

/* Of each block its input alone: everything else is kept of the head and the embedding. */
static dt_status blocks(dt_mesh *mesh, const void *arg)
{
    const scene all = { .dtype = DT_F32 }, cheap = { .dtype = DT_F32, .thrifty = true };
    const scene least = { .dtype = DT_F32, .recompute = DT_RECOMPUTED_BLOCKS };
    holds of_all, of_cheap, of_least;

    (void)arg;
    DT_TRY(measure(mesh, &all, &of_all));
    DT_TRY(measure(mesh, &cheap, &of_cheap));
    DT_TRY(measure(mesh, &least, &of_least));
    DT_EXPECT(of_least.kept < of_cheap.kept && of_cheap.kept < of_all.kept,
              "%lld, %lld and %lld bytes", (long long)of_least.kept, (long long)of_cheap.kept,
              (long long)of_all.kept);
    return DT_OK;
}

DT_TEST(train_memory, what_is_computed_again_is_not_kept)
{
    dt_test_on_ranks("tp=1", blocks, NULL);
    dt_test_on_ranks("tp=2", blocks, NULL);
}
