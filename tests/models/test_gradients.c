/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of every parameter of every golden checkpoint against Transformers' own, on 1 to 4
 * ranks. tools/make_gradient_golden.py makes the fixtures. */
#include <math.h>

#include "tests/support/golden.h"
#include "tests/support/gradient_golden.h"

static void check_all(const char *const *meshes, const dt_gradient_scene *how)
{
    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        for (int w = 0; w < 2; w++)
            dt_gradient_golden_check(dt_golden_fixtures[f], w == 0 ? "short" : "long", meshes, NULL,
                                     how);
}

/* On one of the n meshes, by turns of checkpoints and texts. */
static void check_by_turns(const char *const *meshes, size_t n, const dt_gradient_scene *how)
{
    for (size_t f = 0; f < DT_GOLDEN_FIXTURES; f++)
        for (size_t w = 0; w < 2; w++)
            for (size_t m = 0; m < n; m++) {
                const char *const one[] = { meshes[m], NULL };
                if (dt_test_is_due(f + w, m, n, 1))
                    dt_gradient_golden_check(dt_golden_fixtures[f], w == 0 ? "short" : "long", one,
                                             NULL, how);
            }
}

DT_TEST(golden_gradients, of_f32_match_on_every_mesh)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2", NULL };

    check_all(meshes, &(dt_gradient_scene){ .dtype = DT_F32, .factor = 1.0 });
}

/* Tables over the block of others: those that have a gradient golden. */
DT_TEST(golden_gradients, of_tables_over_the_same_block_match)
{
    static const char *const some[] = { "granite/base",   "granite/uneven",  "mistral/uneven",
                                        "mistral/base",   "exaone4/base",    "gemma2/uneven",
                                        "olmo2/base",     "glm4_moe/base",   "deepseek_v3/uneven",
                                        "gpt_oss/uneven", "qwen3_next/small" };
    static const char *const whole[] = { "tp=1", "tp=3", NULL }, *const cut[] = { "tp=2", NULL };

    for (size_t f = 0; f < DT_COUNT(some); f++)
        for (int w = 0; w < 2; w++) {
            const char *text = w == 0 ? "short" : "long";
            dt_gradient_golden_check(some[f], text, whole, NULL,
                                     &(dt_gradient_scene){ .dtype = DT_F32, .factor = 1.0 });
            dt_gradient_golden_check(
                some[f], text, cut, NULL,
                &(dt_gradient_scene){ .dtype = DT_F32, .factor = 1.0, .sequence_parallel = true });
        }
}

DT_TEST(golden_gradients, with_tokens_cut_between_blocks_match_too)
{
    static const char *const meshes[] = { "tp=2", "tp=3" };

    check_by_turns(
        meshes, DT_COUNT(meshes),
        &(dt_gradient_scene){ .dtype = DT_F32, .factor = 1.0, .sequence_parallel = true });
}

/* 9 and 33 tokens: three ranks cut them evenly, two do not. */
DT_TEST(golden_gradients, with_tokens_cut_and_the_head_in_chunks_match_too)
{
    static const char *const meshes[] = { "tp=2", "tp=3", "dp=2,tp=3" };

    check_by_turns(meshes, DT_COUNT(meshes),
                   &(dt_gradient_scene){
                       .dtype = DT_F32, .factor = 1.0, .sequence_parallel = true, .chunk = 6 });
}

DT_TEST(golden_gradients, with_blocks_run_again_and_the_head_in_chunks_match_too)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", NULL };

    dt_test_long();
    check_all(meshes,
              &(dt_gradient_scene){
                  .dtype = DT_F32, .factor = 1.0, .recompute = DT_RECOMPUTED_BLOCKS, .chunk = 7 });
    check_all(meshes, &(dt_gradient_scene){
                          .dtype = DT_F32, .factor = 1.0, .recompute = DT_RECOMPUTED_CHEAP });
}

DT_TEST(golden_gradients, that_are_wrong_are_seen)
{
    static const char *const meshes[] = { "tp=1", NULL };

    check_all(meshes, &(dt_gradient_scene){ .dtype = DT_F32, .factor = 2.0 });
    check_all(meshes, &(dt_gradient_scene){ .dtype = DT_F32, .factor = 0.5 });
}

DT_TEST(golden_gradients, of_bf16_match)
{
    static const char *const meshes[] = { "tp=1", "tp=2", NULL };

    double total[2] = { 0 };

    check_all(meshes, &(dt_gradient_scene){ .dtype = DT_BF16, .factor = 1.0, .total = total });
    DT_ASSERT(dt_test_processes() > 1 || sqrt(total[0] / total[1]) <= 1.1);
}
