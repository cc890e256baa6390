/* SPDX-License-Identifier: Apache-2.0
 *
 * How many kernels a pass over one token starts, with rows fused and without, and that its logits
 * have the same bits. */
#include <dtensor/factories.h>
#include <dtensor/generation.h>
#include <dtensor/ops.h>
#include <stdio.h>

#include "base/memory.h"
#include "dtensor/ops/fusion.h"
#include "mesh/gpu.h"
#include "models/run/step.h"
#include "tests/support/cuda.h"

enum { N_PROMPT = 3, N_STEPS = 3 };

typedef struct launch_case {
    const char *fixture;
    dt_dtype dtype;
    int fewer;   /* kernels of a layer that fusing saves */
    int besides; /* those beyond layers: positions are added to GPT-Neo's embedding */
} launch_case;

/* A prompt, then tokens one by one: the kernels of the last pass, which is the one that is recorded
 * and finds its memory there, and its logits. */
static dt_status step(dt_model *m, bool fused, int64_t *n_kernels, float *logits)
{
    static const int32_t ids[] = { 3, 1, 4, 1, 5, 9 };
    dt_runtime *rt = dt_mesh_runtime(dt_model_mesh(m));
    const dti_cuda_place *gpu = dti_runtime_gpu(rt);
    DT_HELD(tape) *t = NULL;
    DT_HELD(state) *s = NULL;
    DT_HELD(tensor) *full = NULL;
    dt_tensor *y;
    dti_device *device;

    DT_TRY(dti_device_of(rt, &device));
    dti_fusion_set(device, fused);
    DT_TRY(dt_tape_create(rt, &t));
    DT_TRY(dt_state_create(m, 1, N_PROMPT + N_STEPS, &s));
    y = dt_model_forward(t, m, s, ids, N_PROMPT, DT_LOGITS_LAST);
    for (int i = 0; i < N_STEPS; i++) {
        *n_kernels = gpu->module->launches(gpu->cuda);
        y = dt_model_forward(t, m, s, ids + N_PROMPT + i, 1, DT_LOGITS_LAST);
    }
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_state_is_recorded(s), "the pass was not recorded");
    *n_kernels = gpu->module->launches(gpu->cuda) - *n_kernels;
    DT_TRY(dt_full_tensor(y, &full));
    DT_TRY(dt_tensor_read(
        full, logits, (size_t)dt_tensor_extent(full, 2) * dt_dtype_size(dt_tensor_dtype(full))));
    return DT_OK;
}

static dt_status compare(dt_model *m, const launch_case *c, float *fused, float *apart)
{
    const size_t bytes = (size_t)dt_model_info_of(m)->vocab_size * sizeof *fused;
    int64_t few, many;

    DT_TRY(step(m, true, &few, fused));
    DT_TRY(step(m, false, &many, apart));
    DT_EXPECT(many - few == c->fewer * dt_model_info_of(m)->n_layers + c->besides,
              "%s: %lld kernels for %lld layers, %lld when each operator has its own", c->fixture,
              (long long)few, (long long)dt_model_info_of(m)->n_layers, (long long)many);
    DT_EXPECT(memcmp(fused, apart, bytes) == 0, "%s: other bits", c->fixture);
    return DT_OK;
}

static dt_status count(dt_mesh *mesh, const void *arg)
{
    char path[DT_TEST_PATH_BYTES];
    const launch_case *c = arg;
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    DT_HELD(model) *m = NULL;
    DT_FREED float *fused = NULL, *apart = NULL;
    size_t vocab;

    options.keep_dtype = false;
    options.dtype = c->dtype;
    DT_TRY(dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", c->fixture), &options,
                         &m));
    vocab = (size_t)dt_model_info_of(m)->vocab_size;
    DT_TRY(dti_alloc_array(vocab, sizeof *fused, (void **)&fused)); /* zeros */
    DT_TRY(dti_alloc_array(vocab, sizeof *apart, (void **)&apart));
    DT_TRY(compare(m, c, fused, apart));
    return DT_OK;
}

DT_TEST(cuda_launches, fused_steps_start_fewer_kernels)
{
    static const launch_case cases[] = {
        { "llama/uneven", DT_F32, 5, 0 }, { "llama/uneven", DT_BF16, 5, 0 },
        { "qwen3/base", DT_F32, 7, 0 },   { "qwen3/base", DT_F16, 7, 0 },
        { "gemma3/base", DT_F32, 7, 0 },  { "gpt_neo/base", DT_F32, 3, 1 },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) dt_test_on_gpus("tp=1", count, &cases[i]);
}

/* A sum and its norm: *arg is how many kernels they are to be. */
static dt_status sum_and_norm(dt_mesh *mesh, const void *arg)
{
    const dti_cuda_place *gpu = dti_runtime_gpu(dt_mesh_runtime(mesh));
    const dt_placement whole = DT_REPLICATE;
    const int64_t n = 8;
    int64_t launches;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;

    DT_TRY(dt_ones(mesh, &whole, DT_F32, 1, &n, &x));
    launches = gpu->module->launches(gpu->cuda);
    (void)dt_rms_norm(t, dt_add(t, x, x), x, 1e-5f);
    DT_TRY(dt_tape_status(t));
    launches = gpu->module->launches(gpu->cuda) - launches;
    DT_EXPECT(launches == *(const int *)arg, "%lld kernels", (long long)launches);
    return DT_OK;
}

DT_TEST(cuda_launches, the_environment_chooses)
{
    dt_run_options options = dt_test_cuda_options();

    DT_ASSERT_OK(dt_test_run(&options, "tp=1", sum_and_norm, &(int){ 1 }));
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_FUSE", "0", 1), 0);
    DT_ASSERT_OK(dt_test_run(&options, "tp=1", sum_and_norm, &(int){ 2 }));
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_FUSE", "yes", 1), 0);
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=1", sum_and_norm, &(int){ 1 }), DT_ERR_ARG,
                     "DTENSOR_CUDA_FUSE is \"yes\"");
}
