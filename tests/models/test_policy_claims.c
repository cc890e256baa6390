/* SPDX-License-Identifier: Apache-2.0
 *
 * What policies claim of ranks ("self_attn.num_heads"), compared with the cut. */
#include <dtensor/models.h>
#include <stdio.h>

#include "tests/support/dt_test.h"

typedef struct scene {
    const char *fixture;
    const dt_policy *policy;
    const char *message; /* of the refusal, or NULL */
} scene;

static dt_status load(dt_mesh *mesh, const scene *s, dt_model **out)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char path[DT_TEST_PATH_BYTES];

    options.policies = &s->policy;
    options.n_policies = 1;
    return dt_model_load(mesh, dt_test_source_path(path, "tests/golden/%s", s->fixture), &options,
                         out);
}

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const scene *s = arg;
    dt_model *model = NULL;

    DT_EXPECT_STATUS(load(mesh, s, &model), DT_ERR_ARG, s->message);
    DT_EXPECT(model == NULL, "no model");
    return DT_OK;
}

/* A claim, found through the policy's `user`. */
typedef struct setting {
    const char *path;
    int64_t whole;
    bool divided; /* by the number of ranks, as Parallelformers' policies do */
} setting;

static dt_status change(const dt_policy *policy, dt_arguments *a, int world_size)
{
    const setting *s = policy->user;

    return dt_arguments_set(a, s->path, s->divided ? s->whole / world_size : s->whole);
}

/* What Parallelformers' own policies say of a rank holds where the cut is even. */
static dt_status claims(const dt_policy *policy, dt_arguments *a, int world_size)
{
    int64_t heads, kv, width, ff;

    (void)policy;
    DT_TRY(dt_arguments_get(a, "num_attention_heads", &heads));
    DT_TRY(dt_arguments_get(a, "num_key_value_heads", &kv));
    DT_TRY(dt_arguments_get(a, "head_dim", &width));
    DT_TRY(dt_arguments_get(a, "intermediate_size", &ff));
    DT_TRY(dt_arguments_set(a, "self_attn.num_heads", heads / world_size));
    DT_TRY(dt_arguments_set(a, "self_attn.num_key_value_heads", kv / world_size));
    DT_TRY(dt_arguments_set(a, "self_attn.embed_dim", heads * width / world_size));
    DT_TRY(dt_arguments_set(a, "self_attn.head_dim", width));
    if (ff % world_size == 0) DT_TRY(dt_arguments_set(a, "mlp.intermediate_size", ff / world_size));
    return DT_OK;
}

static dt_status claims_hold(dt_mesh *mesh, const void *arg)
{
    dt_model *model = NULL;

    DT_TRY(load(mesh, arg, &model));
    dt_model_release(&model);
    return DT_OK;
}

/* Where q, k and v are one weight the output layer counts heads, and nobody kv heads. */
static dt_status fused_claims(const dt_policy *policy, dt_arguments *a, int world_size)
{
    int64_t heads, ff;

    (void)policy;
    DT_TRY(dt_arguments_get(a, "num_attention_heads", &heads));
    DT_TRY(dt_arguments_get(a, "intermediate_size", &ff));
    DT_TRY(dt_arguments_set(a, "self_attn.num_heads", heads / world_size));
    DT_TRY(dt_arguments_set(a, "mlp.intermediate_size", ff / world_size));
    return DT_OK;
}

DT_TEST(policy_claims, claims_about_ranks_are_compared_with_the_cut)
{
    static const dt_policy p = { .size = sizeof p,
                                 .original_layer_class = "Qwen3DecoderLayer",
                                 .replace_arguments = claims };
    static const dt_policy fused = { .size = sizeof fused,
                                     .original_layer_class = "Phi3DecoderLayer",
                                     .replace_arguments = fused_claims };

    dt_test_on_ranks("tp=1", claims_hold, &(scene){ .fixture = "phi3/base", .policy = &fused });
    dt_test_on_ranks("tp=2", claims_hold, &(scene){ .fixture = "phi3/base", .policy = &fused });
    dt_test_on_ranks("tp=1", claims_hold, &(scene){ .fixture = "qwen3/base", .policy = &p });
    dt_test_on_ranks("tp=2", claims_hold, &(scene){ .fixture = "qwen3/base", .policy = &p });
    dt_test_on_ranks("tp=3", refused,
                     &(scene){ .fixture = "qwen3/base",
                               .policy = &p,
                               .message = "leave the argument out: ranks know it" });
}

/* Some blocks have a dense MLP, others experts, and there a router as the one linear layer. */
static void claim_of_experts(const char *fixture, setting said, const char *message)
{
    const dt_policy p = { .size = sizeof p,
                          .name = "mine",
                          .original_layer_class = "Qwen3MoeDecoderLayer",
                          .replace_arguments = change,
                          .user = &said };
    const scene s = { .fixture = fixture, .policy = &p, .message = message };

    dt_test_on_ranks("tp=1", message != NULL ? refused : claims_hold, &s);
    dt_test_on_ranks("tp=2", message != NULL ? refused : claims_hold, &s);
}

DT_TEST(policy_claims, widths_of_experts_and_of_dense_blocks_are_told_apart)
{
    setting dense = { .path = "mlp.intermediate_size", .whole = 50, .divided = true };
    setting experts = { .path = "mlp.experts.intermediate_size", .whole = 32, .divided = true };

    claim_of_experts("qwen3_moe/uneven", dense, NULL);
    claim_of_experts("qwen3_moe/base", experts, NULL);
    dense.whole = 40;
    claim_of_experts("qwen3_moe/uneven", dense, "by the cut of model.layers.1.mlp.down_proj");
    experts.whole = 48;
    claim_of_experts("qwen3_moe/base", experts, "the cut of model.layers.0.mlp.experts.down_proj");
    dense.whole = 48, dense.divided = false; /* as wide as the model, and so the router's inputs */
    claim_of_experts("qwen3_moe/base", dense,
                     "no layer of model.layers.*.mlp tells what intermediate_size is: none of its "
                     "own has its inputs cut");
}
