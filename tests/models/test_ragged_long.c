/* SPDX-License-Identifier: Apache-2.0
 *
 * Every fixture by ragged passes, on every instruction set, in every dtype, on meshes that divide
 * and that do not. */
#include <string.h>

#include "dtensor/kernels/cpu/cpu.h"
#include "tests/support/golden.h"
#include "tests/support/ragged_scene.h"

/* Windows of all layers, and models without positions beyond their own. */
static ragged_case case_of(const char *fixture)
{
    static const char *const windows[] = { "phi3/base", "mistral/uneven", "mixtral/uneven",
                                           "starcoder2/base" };
    static const char *const learned[] = { "gpt_neo/", "gpt2/", "gpt_bigcode/" };
    ragged_case c = { .fixture = fixture };

    for (size_t i = 0; i < DT_COUNT(windows); i++)
        if (strcmp(fixture, windows[i]) == 0) c.window = 8;
    for (size_t i = 0; i < DT_COUNT(learned); i++)
        if (strncmp(fixture, learned[i], strlen(learned[i])) == 0) c.longest = 64;
    return c;
}

/* Positions that turn otherwise beyond a length. */
static bool is_refused(const char *fixture)
{
    return strstr(fixture, "dynamic") != NULL || strstr(fixture, "longrope") != NULL;
}

static void every_fixture(const char *mesh, dt_dtype dtype)
{
    for (size_t f = 0; f < DT_GOLDEN_ALL; f++) {
        ragged_case c = case_of(dt_golden_fixtures[f]);
        c.mesh = mesh;
        c.dtype = dtype;
        if (!is_refused(c.fixture)) ragged_check(&c, NULL);
    }
}

/* clang-format off */
DT_TEST(ragged_long, one_rank)        { every_fixture("tp=1", DT_F32); }
DT_TEST(ragged_long, tp_2)            { every_fixture("tp=2", DT_BF16); }
DT_TEST(ragged_long, tp_3)            { every_fixture("tp=3", DT_F32); }
DT_TEST(ragged_long, tp_4)            { every_fixture("tp=4", DT_BF16); }
DT_TEST(ragged_long, pp_2)            { every_fixture("pp=2", DT_BF16); }
DT_TEST(ragged_long, dp_2)            { every_fixture("dp=2", DT_BF16); }
DT_TEST(ragged_long, dp_2_tp_2)       { every_fixture("dp=2,tp=2", DT_F32); }
DT_TEST(ragged_long, pp_2_tp_2)       { every_fixture("pp=2,tp=2", DT_BF16); }
DT_TEST(ragged_long, dp_shard_2)      { every_fixture("dp_shard=2", DT_F32); }
/* clang-format on */

DT_TEST(ragged_long, every_instruction_set_and_dtype)
{
    for (size_t f = 0; f < DT_GOLDEN_ALL; f++)
        for (int isa = 0; isa <= (int)dti_isa_detect() && !is_refused(dt_golden_fixtures[f]); isa++)
            for (int dtype = DT_F32; dtype <= DT_F16; dtype++) {
                ragged_case c = case_of(dt_golden_fixtures[f]);
                c.mesh = "tp=1";
                c.isa = dti_isa_name((dti_isa)isa);
                c.dtype = (dt_dtype)dtype;
                ragged_check(&c, NULL);
            }
}

DT_TEST(ragged_long, packed_weights)
{
    static const char *const fixtures[] = { "llama/tied", "qwen3/base", "mixtral/base",
                                            "gemma2/base" };
    static const char *const weights[] = { "int8", "int4" };

    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t w = 0; w < DT_COUNT(weights); w++)
            for (int tp = 1; tp <= 2; tp++) {
                ragged_case c = case_of(fixtures[f]);
                c.mesh = tp == 1 ? "tp=1" : "tp=2";
                c.weights = weights[w];
                c.dtype = DT_BF16;
                ragged_check(&c, NULL);
            }
}
