/* SPDX-License-Identifier: Apache-2.0
 *
 * The reference checkpoints on GPUs, by the measures that hold on the CPU. The simulated device
 * runs a thread at a time, so there are fewer tokens and meshes here than there; a GPU gets all. */
#include <stdlib.h>

#include "tests/support/cuda.h"
#include "tests/support/golden.h"
#include "tests/support/ragged_scene.h"

static void check(const char *fixture, const char *mesh, dt_dtype dtype, int n_greedy)
{
    dt_run_options options = dt_test_cuda_options();
    DT_ENDS(dt_golden_close) dt_golden x;

    DT_ASSERT_OK(dt_golden_open(fixture, &x));
    x.dtype = dtype;
    x.n_greedy = n_greedy;
    dt_golden_check(fixture, mesh, &options, &x);
}

DT_TEST(cuda_golden, llama)
{
    check("llama/uneven", "tp=1", DT_F32, 6);
    check("llama/uneven", "tp=1", DT_BF16, 0);
    check("llama/uneven", "tp=2", DT_F32, 6);
    check("llama/uneven", "tp=4", DT_F32, 2);
}

DT_TEST(cuda_golden, llama_by_recorded_passes_of_two_ranks)
{
    dt_test_cuda_needs_eager(dt_test_cuda_runs());
    DT_ASSERT_EQ_INT(setenv("DTENSOR_CUDA_COMM", "cuda_local_spin", 1), 0);
    check("llama/uneven", "tp=2", DT_F32, 8);
    DT_ASSERT_EQ_INT(unsetenv("DTENSOR_CUDA_COMM"), 0);
}

DT_TEST(cuda_golden, qwen2)
{
    check("qwen2/windows", "tp=1", DT_F32, 6);
}

DT_TEST(cuda_golden, qwen3)
{
    check("qwen3/base", "tp=1", DT_F32, 6);
    check("qwen3/base", "tp=1", DT_BF16, 0);
}

DT_TEST(cuda_golden, gemma3)
{
    check("gemma3/uneven", "tp=1", DT_F32, 6);
    check("gemma3/uneven", "tp=1", DT_BF16, 0);
}

DT_TEST(cuda_golden, phi3)
{
    check("phi3/longrope", "tp=1", DT_F32, 6);
}

DT_TEST(cuda_golden, gpt_neo)
{
    check("gpt_neo/uneven", "tp=1", DT_F32, 6);
    check("gpt_neo/uneven", "tp=2", DT_BF16, 0);
}

DT_TEST(cuda_golden, qwen3_moe)
{
    check("qwen3_moe/uneven", "tp=1", DT_F32, 6);
}

DT_TEST(cuda_golden, olmo2)
{
    check("olmo2/base", "tp=2", DT_F32, 2);
    check("olmo2/base", "tp=1", DT_BF16, 0);
}

DT_TEST(cuda_golden, glm4_moe)
{
    check("glm4_moe/base", "tp=2", DT_F32, 2);
}

DT_TEST(cuda_golden, deepseek_v3)
{
    check("deepseek_v3/base", "tp=2", DT_F32, 2);
}

DT_TEST(cuda_golden, gpt_oss)
{
    check("gpt_oss/uneven", "tp=1", DT_F32, 6);
    check("gpt_oss/uneven", "tp=2", DT_F32, 2);
    check("gpt_oss/base", "tp=1", DT_BF16, 0);
}

/* What its layers carry lies on the device. */
DT_TEST(cuda_golden, qwen3_next)
{
    check("qwen3_next/base", "tp=1", DT_BF16, 0);
    check("qwen3_next/base", "tp=1", DT_F32, 6);
    check("qwen3_next/uneven", "tp=2", DT_F32, 3);
}

DT_TEST(cuda_golden, ministral3)
{
    check("ministral3/base", "tp=1", DT_F32, 6);
}

/* Ranks share the GPU, or have one each. */
DT_TEST(cuda_golden, every_family_on_every_mesh)
{
    static const char *const fixtures[] = { "llama/uneven",   "llama/biases",  "qwen2/base",
                                            "qwen2/dynamic",  "qwen3/uneven",  "gpt_neo/uneven",
                                            "phi3/uneven",    "gemma3/uneven", "qwen3_moe/uneven",
                                            "qwen3_moe/base", "olmo2/base",    "glm4_moe/base",
                                            "ministral3/base" };
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=4", "dp=2,tp=2" };

    if (!dt_test_cuda_is_real(dt_test_cuda_runs()))
        dt_test_skip("skipped: takes minutes on the simulated device");
    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            check(fixtures[f], meshes[m], DT_F32, DT_GOLDEN_GREEDY);
            if (m % 2 == 0) check(fixtures[f], meshes[m], DT_BF16, 0);
        }
}

/* Whatever is read together has the logits that it has alone: by other kernels, which round
 * elsewhere. */
DT_TEST(cuda_golden, ragged_passes)
{
    dt_run_options options = dt_test_cuda_options();

    ragged_check(&(ragged_case){ .fixture = "llama/uneven",
                                 .mesh = "tp=1",
                                 .dtype = DT_F32,
                                 .longest = 64,
                                 .tolerance = 2e-5 },
                 &options);
}
