/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of every parameter of reference checkpoints on GPUs against Transformers', by the
 * measure that holds on the CPU (tests/models/test_gradients.c), all by kernels there. The
 * simulated device runs a thread at a time, so there are fewer checkpoints and meshes here. */
#include "tests/support/cuda.h"
#include "tests/support/gradient_golden.h"

static void check(const char *fixture, const char *mesh, dt_dtype dtype, double factor)
{
    const dt_run_options gpus = dt_test_cuda_options();
    const dt_gradient_scene how = { .dtype = dtype, .factor = factor };

    dt_gradient_golden_check(fixture, "short", (const char *const[]){ mesh, NULL }, &gpus, &how);
}

DT_TEST(cuda_gradients, of_every_parameter_match_on_one_rank_and_two)
{
    check("llama/biases", "tp=1", DT_F32, 1.0);
    check("llama/biases", "tp=2", DT_F32, 1.0);
    check("llama/biases", "tp=1", DT_BF16, 1.0);
    check("qwen3/uneven", "tp=2", DT_F32, 1.0);
}

DT_TEST(cuda_gradients, of_experts_match_too)
{
    check("qwen3_moe/base", "tp=1", DT_F32, 1.0);
    check("qwen3_moe/uneven", "tp=2", DT_F32, 1.0);
    check("qwen3_moe/base", "tp=2", DT_BF16, 1.0);
}

DT_TEST(cuda_gradients, that_are_wrong_are_seen)
{
    check("llama/biases", "tp=1", DT_F32, 2.0);
}
