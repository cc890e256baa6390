/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints made by Transformers: our logits and greedy tokens against its own, on 1 to 4 ranks,
 * by the measures of docs/numerics.md. tools/make_golden.py makes the fixtures. */
#include <stdio.h>
#include <string.h>

#include "tests/support/golden.h"

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

static void check_one(const char *fixture, const char *mesh, const char *isa, const dt_golden *x)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    options.isa = isa;
    dt_golden_check(fixture, mesh, &options, x);
}

/* Fixtures begin to end - 1. */
static void check_some(size_t begin, size_t end, dt_dtype dtype, const char *isa,
                       bool sequence_parallel, bool policies)
{
    for (size_t f = begin; f < end; f++) {
        dt_golden x;
        if (policies && strstr(dt_golden_fixtures[f], "llama/") == NULL &&
            strstr(dt_golden_fixtures[f], "uneven") == NULL)
            continue;
        DT_ASSERT_OK(dt_golden_open(dt_golden_fixtures[f], &x));
        x.dtype = dtype;
        x.sequence_parallel = sequence_parallel;
        if (policies) {
            char name[32];
            (void)snprintf(name, sizeof name, "%.*s", (int)strcspn(dt_golden_fixtures[f], "/"),
                           dt_golden_fixtures[f]);
            DT_ASSERT_OK(dt_policy_find(name, &x.policy));
        }
        /* Other kernels on one rank and on an uneven number: cuts are checked with the best. So
         * are processes that hold several ranks. Tokens are cut by turns. */
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            if ((isa != NULL && m != 0 && m != 2) ||
                (sequence_parallel && !dt_test_is_due(f, m, DT_COUNT(meshes), 2)) ||
                ((dtype != DT_F32 || sequence_parallel) && !dt_test_fits_launch(meshes[m])))
                continue;
            check_one(dt_golden_fixtures[f], meshes[m], isa, &x);
        }
        dt_golden_close(&x);
    }
}

static void check_all(dt_dtype dtype, const char *isa, bool sequence_parallel, bool policies)
{
    check_some(0, DT_GOLDEN_FIXTURES, dtype, isa, sequence_parallel, policies);
}

/* Models in stages, of which some have no more than an embedding or a head. */
static void check_stages(const char *const *names, size_t n, dt_dtype dtype, bool sequence_parallel)
{
    static const char *const staged[] = { "pp=2", "pp=2,tp=2", "pp=3", "pp=4" };

    for (size_t f = 0; f < n; f++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open(names[f], &x));
        x.dtype = dtype;
        x.sequence_parallel = sequence_parallel;
        for (size_t m = 0; m < DT_COUNT(staged); m++)
            if (!sequence_parallel || strstr(staged[m], "tp") != NULL)
                check_one(names[f], staged[m], NULL, &x);
        dt_golden_close(&x);
    }
}

DT_TEST(golden, f32_logits_and_greedy_tokens_match_on_every_mesh)
{
    check_all(DT_F32, NULL, false, false);
}

DT_TEST(golden, bf16_logits_match_on_every_mesh)
{
    check_all(DT_BF16, NULL, false, false);
}

/* Each on two meshes, all in the long tier. */
DT_TEST(golden, what_is_a_table_over_the_same_block_matches)
{
    for (size_t f = DT_GOLDEN_FIXTURES; f < DT_GOLDEN_ALL; f++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open(dt_golden_fixtures[f], &x));
        check_one(dt_golden_fixtures[f], meshes[f % DT_COUNT(meshes)], NULL, &x);
        check_one(dt_golden_fixtures[f], meshes[(f + 2) % DT_COUNT(meshes)], NULL, &x);
        dt_golden_close(&x);
    }
}

DT_TEST(golden, what_is_a_table_matches_in_every_way)
{
    dt_test_long();
    check_some(DT_GOLDEN_FIXTURES, DT_GOLDEN_ALL, DT_F32, NULL, false, false);
    check_some(DT_GOLDEN_FIXTURES, DT_GOLDEN_ALL, DT_BF16, NULL, false, false);
    check_some(DT_GOLDEN_FIXTURES, DT_GOLDEN_ALL, DT_F32, NULL, true, false);
    check_some(DT_GOLDEN_FIXTURES, DT_GOLDEN_ALL, DT_F32, "portable", false, false);
    check_some(DT_GOLDEN_FIXTURES, DT_GOLDEN_ALL, DT_F32, NULL, false, true);
}

/* In bf16 too: test_sequence.c shows that the bits are those of whole tokens. */
DT_TEST(golden, tokens_cut_between_blocks_match_too)
{
    check_all(DT_F32, NULL, true, false);
}

DT_TEST(golden, portable_kernels_match_too)
{
    check_all(DT_F32, "portable", false, false);
    check_all(DT_BF16, "portable", false, false);
}

DT_TEST(golden, policies_of_attention_and_mlp_match_too)
{
    check_all(DT_F32, NULL, false, true);
}

/* Attention and MLP side by side are summed once by the built-in plan; plans that sum each match as
 * well, of both or of one of them, with tokens whole or cut. */
DT_TEST(golden, plans_that_sum_branches_one_by_one_match_too)
{
    static const dt_plan_rule rules[] = {
        { "model.layers.*.self_attn.dense", "rowwise" },
        { "model.layers.*.mlp.fc2", "rowwise" },
        { "model.layers.*.mlp.fc2", "replicate" },
    };
    static const dt_plan plans[] = { { .rules = rules, .n_rules = 2, .strict = true },
                                     { .rules = rules, .n_rules = 1, .strict = true },
                                     { .rules = rules + 1, .n_rules = 1, .strict = true },
                                     { .rules = rules + 2, .n_rules = 1, .strict = true } };

    for (size_t p = 0; p < DT_COUNT(plans); p++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open("phi/base", &x));
        x.plan = &plans[p];
        x.sequence_parallel = p % 2 != 0;
        check_one("phi/base", meshes[1 + p % 3], NULL, &x);
        dt_golden_close(&x);
    }
}

/* The plans of Transformers where ours are others: theirs gather queries, keys and values, so that
 * these are normed whole, and sum experts and the one beside them apart. */
DT_TEST(golden, plans_of_transformers_match_too)
{
    static const dt_plan_rule gathered[] = {
        { "layers.*.self_attn.q_proj", "colwise_gather_output" },
        { "layers.*.self_attn.k_proj", "colwise_gather_output" },
        { "layers.*.self_attn.v_proj", "colwise_gather_output" },
        { "layers.*.self_attn.o_proj", "rowwise_split_input" },
        { "layers.*.mlp.gate_proj", "colwise" },
        { "layers.*.mlp.up_proj", "colwise" },
        { "layers.*.mlp.down_proj", "rowwise" },
    };
    static const dt_plan_rule apart[] = {
        { "layers.*.self_attn.q_proj", "colwise" },
        { "layers.*.self_attn.k_proj", "colwise" },
        { "layers.*.self_attn.v_proj", "colwise" },
        { "layers.*.self_attn.o_proj", "rowwise" },
        { "layers.*.mlp.experts.gate_up_proj", "packed_colwise" },
        { "layers.*.mlp.experts.down_proj", "rowwise" },
        { "layers.*.mlp.experts", "moe_tp_experts" },
        { "layers.*.mlp.shared_experts.gate_proj", "colwise" },
        { "layers.*.mlp.shared_experts.up_proj", "colwise" },
        { "layers.*.mlp.shared_experts.down_proj", "rowwise" },
        { "layers.*.mlp.gate_proj", "colwise" },
        { "layers.*.mlp.up_proj", "colwise" },
        { "layers.*.mlp.down_proj", "rowwise" },
    };
    static const dt_plan_rule latent[] = {
        /* DeepSeek-V2's; V3's has attention whole */
        { "layers.*.self_attn.q_b_proj", "colwise" },
        { "layers.*.self_attn.kv_b_proj", "colwise" },
        { "layers.*.self_attn.kv_a_proj_with_mqa", "mla_kv_a_proj" },
        { "layers.*.self_attn.o_proj", "rowwise" },
    };
    static const dt_plan_rule whole[] = {
        { "layers.*.self_attn.q_proj", "replicate" },
        { "layers.*.self_attn.kv_b_proj", "replicate" },
        { "layers.*.self_attn.o_proj", "replicate" },
    };
    static const dt_plan_rule gathers[] = {
        { "layers.*.self_attn.q_proj", "colwise" },
        { "layers.*.self_attn.k_proj", "colwise" },
        { "layers.*.self_attn.v_proj", "colwise" },
        { "layers.*.self_attn.q_norm", "replicated_with_grad_allreduce" },
        { "layers.*.self_attn.k_norm", "replicated_with_grad_allreduce" },
        { "layers.*.self_attn.o_proj", "rowwise" },
        { "layers.*.mlp.shared_expert.down_proj", "rowwise" },
        { "layers.*.mlp.experts", "moe_tp_experts" },
        { "layers.*.linear_attn.in_proj_qkvz", "colwise_gather_output" },
        { "layers.*.linear_attn.in_proj_ba", "colwise_gather_output" },
        { "layers.*.linear_attn.out_proj", "colwise_gather_output" },
    };
    static const struct {
        const char *fixture;
        dt_plan plan;
    } rows[] = {
        { "olmo2/base", { .rules = gathered, .n_rules = DT_COUNT(gathered), .strict = true } },
        { "olmo3/uneven", { .rules = gathered, .n_rules = DT_COUNT(gathered), .strict = true } },
        { "glm4_moe/base", { .rules = apart, .n_rules = DT_COUNT(apart), .strict = true } },
        { "deepseek_v3/base", { .rules = latent, .n_rules = DT_COUNT(latent), .strict = true } },
        { "deepseek_v3/uneven", { .rules = whole, .n_rules = DT_COUNT(whole), .strict = true } },
        { "qwen3_next/base", { .rules = gathers, .n_rules = DT_COUNT(gathers), .strict = true } },
        { "qwen3_next/uneven", { .rules = gathers, .n_rules = DT_COUNT(gathers), .strict = true } }
    };

    for (size_t f = 0; f < DT_COUNT(rows); f++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open(rows[f].fixture, &x));
        x.plan = &rows[f].plan;
        check_one(rows[f].fixture, meshes[1 + f % 4], NULL, &x);
        dt_golden_close(&x);
    }
}

/* One of each family that computes what no other does; under a launcher too, which runs no long
 * tests. */
DT_TEST(golden, families_with_layers_of_their_own_match)
{
    static const char *const some[] = { "olmo2/base", "ministral3/base", "glm4_moe/base",
                                        "deepseek_v3/base", "qwen3_next/uneven" };

    for (size_t f = 0; f < DT_COUNT(some); f++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open(some[f], &x));
        check_one(some[f], "tp=4", NULL, &x);
        dt_golden_close(&x);
    }
}

/* Expert parallel: whole experts on each rank, on the dim of the rest or on one of their own. */
DT_TEST(golden, experts_cut_as_a_whole_match_too)
{
    static const char *const moe[] = { "qwen3_moe/base", "qwen3_moe/uneven", "qwen2_moe/uneven",
                                       "glm4_moe/uneven" };
    static const dt_plan_rule rules[] = {
        { "model.layers.*.mlp.experts.gate_up_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts", "moe_tp_experts" },
    };
    static const dt_plan on_tp = { .rules = rules, .n_rules = 3, .strict = true };
    static const dt_plan on_ep = { .rules = rules, .n_rules = 3, .dim = "ep", .strict = true };

    for (size_t f = 0; f < DT_COUNT(moe); f++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            dt_golden x;
            DT_ASSERT_OK(dt_golden_open(moe[f], &x));
            x.dtype = bf16 ? DT_BF16 : DT_F32;
            x.plan = &on_tp;
            for (size_t m = 0; m < 4; m++) check_one(moe[f], meshes[m], NULL, &x);
            x.plan = &on_ep;
            check_one(moe[f], "ep=2,tp=2", NULL, &x);
            check_one(moe[f], "ep=3,tp=1", NULL, &x);
            dt_golden_close(&x);
        }
}

/* The same of experts with biases, which are cut with them. */
DT_TEST(golden, experts_with_limits_cut_as_a_whole_match_too)
{
    static const dt_plan_rule rules[] = {
        { "model.layers.*.mlp.experts.gate_up_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.gate_up_proj_bias", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj_bias", "grouped_gemm" },
        { "model.layers.*.mlp.experts", "ep_dispatch_experts" },
        { "model.layers.*.mlp", "local" },
        { "model.layers.*.mlp.router", "local" },
    };
    static const dt_plan whole = { .rules = rules, .n_rules = 5, .dim = "ep", .strict = true };
    static const dt_plan cut = { .rules = rules, .n_rules = 7, .strict = true };

    for (int bf16 = 0; bf16 < 2; bf16++) {
        dt_golden x;
        DT_ASSERT_OK(dt_golden_open("gpt_oss/uneven", &x));
        x.dtype = bf16 ? DT_BF16 : DT_F32;
        for (size_t m = 1; m < 4 && bf16 == 0; m++)
            check_one("gpt_oss/uneven", meshes[m], NULL, &x);
        x.plan = &whole;
        check_one("gpt_oss/uneven", "ep=2,tp=2", NULL, &x);
        check_one("gpt_oss/uneven", "ep=3,tp=1", NULL, &x);
        x.plan = &cut;
        x.sequence_parallel = true;
        check_one("gpt_oss/uneven", meshes[1 + 2 * bf16], NULL, &x);
        dt_golden_close(&x);
    }
}

/* And tokens sent to them, which all ranks have, or which the dim has cut up to there. */
DT_TEST(golden, tokens_sent_to_their_experts_match_too)
{
    static const char *const moe[] = { "qwen3_moe/uneven", "mixtral/uneven" };
    static const dt_plan_rule rules[] = {
        { "model.layers.*.mlp.experts.gate_up_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts", "ep_dispatch_experts" },
        { "model.layers.*.mlp", "local" },
        { "model.layers.*.mlp.gate", "local" },
    };
    static const dt_plan whole = { .rules = rules, .n_rules = 3, .dim = "ep", .strict = true };
    static const dt_plan cut = { .rules = rules, .n_rules = 5, .strict = true };

    for (size_t f = 0; f < DT_COUNT(moe); f++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            dt_golden x;
            DT_ASSERT_OK(dt_golden_open(moe[f], &x));
            x.dtype = bf16 ? DT_BF16 : DT_F32;
            x.plan = &whole;
            check_one(moe[f], "ep=2,tp=2", NULL, &x);
            check_one(moe[f], "ep=3,tp=1", NULL, &x);
            x.plan = &cut;
            x.sequence_parallel = true;
            check_one(moe[f], meshes[1 + 2 * bf16], NULL, &x);
            check_one(moe[f], meshes[2], NULL, &x);
            dt_golden_close(&x);
        }
}

DT_TEST(golden, stages_match_too)
{
    static const char *const some[] = { "llama/uneven",  "qwen2/dynamic", "gpt_neo/base",
                                        "phi3/longrope", "gemma3/uneven", "qwen3_moe/base" };

    check_stages(some, DT_COUNT(some), DT_F32, false);
}

DT_TEST(golden, every_checkpoint_matches_in_stages)
{
    dt_test_long();
    check_stages(dt_golden_fixtures, DT_GOLDEN_ALL, DT_F32, false);
    check_stages(dt_golden_fixtures, DT_GOLDEN_FIXTURES, DT_BF16, false);
    check_stages(dt_golden_fixtures, DT_GOLDEN_ALL, DT_F32, true);
}
