/* SPDX-License-Identifier: Apache-2.0
 *
 * The library's own policies, one per class of block. They say of attention and MLP what the
 * built-in plans say; a test compares the two. */
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "models/policies/policies.h"

/* Llama and its kin: biases, where a configuration has them, go with their weights. */
static const dt_policy_layer decoder_qkv[] = {
    { .weight = "self_attn.q_proj.weight" },
    { .weight = "self_attn.k_proj.weight" },
    { .weight = "self_attn.v_proj.weight" },
};
/* Queries of two products or of one; keys and values of the second of theirs. */
static const dt_policy_layer latent_qkv[] = {
    { .weight = "self_attn.q_b_proj.weight", .ignore_checker = true },
    { .weight = "self_attn.q_proj.weight", .ignore_checker = true },
    { .weight = "self_attn.kv_b_proj.weight" },
};
/* Of full attention or of linear. */
static const dt_policy_layer next_qkv[] = {
    { .weight = "self_attn.q_proj.weight", .ignore_checker = true },
    { .weight = "self_attn.k_proj.weight", .ignore_checker = true },
    { .weight = "self_attn.v_proj.weight", .ignore_checker = true },
    { .weight = "linear_attn.in_proj_qkvz.weight", .ignore_checker = true },
    { .weight = "linear_attn.in_proj_ba.weight", .ignore_checker = true },
};
static const dt_policy_layer next_out[] = {
    { .weight = "self_attn.o_proj.weight", .ignore_checker = true },
    { .weight = "linear_attn.out_proj.weight", .ignore_checker = true },
};
static const dt_policy_layer decoder_out[] = { { .weight = "self_attn.o_proj.weight" } };
static const dt_policy_layer decoder_in[] = {
    { .weight = "mlp.gate_proj.weight" },
    { .weight = "mlp.up_proj.weight" },
};
static const dt_policy_layer decoder_down[] = { { .weight = "mlp.down_proj.weight" } };

/* Blocks with experts have no MLP of this kind; experts keep the style of the built-in plan. */
static const dt_policy_layer dense_in[] = {
    { .weight = "mlp.gate_proj.weight", .ignore_checker = true },
    { .weight = "mlp.up_proj.weight", .ignore_checker = true },
};
static const dt_policy_layer dense_down[] = {
    { .weight = "mlp.down_proj.weight", .ignore_checker = true },
};

/* Phi3 fuses q|k|v and gate|up. */
static const dt_policy_layer phi3_qkv[] = { { .weight = "self_attn.qkv_proj.weight",
                                              .n_fused = 3 } };
static const dt_policy_layer phi3_in[] = { { .weight = "mlp.gate_up_proj.weight", .n_fused = 2 } };

static const dt_policy_layer gpt_neo_qkv[] = {
    { .weight = "attn.attention.q_proj.weight" },
    { .weight = "attn.attention.k_proj.weight" },
    { .weight = "attn.attention.v_proj.weight" },
};
static const dt_policy_layer gpt_neo_out[] = {
    { .weight = "attn.attention.out_proj.weight", .bias = "attn.attention.out_proj.bias" },
};
static const dt_policy_layer gpt_neo_in[] = {
    { .weight = "mlp.c_fc.weight", .bias = "mlp.c_fc.bias" },
};
static const dt_policy_layer gpt_neo_down[] = {
    { .weight = "mlp.c_proj.weight", .bias = "mlp.c_proj.bias" },
};

/* GPT-2's weights are stored [in, out]; q|k|v of GPT-BigCode and Falcon are three areas or, where
 * each head or group has its three together, one. */
static const dt_policy_layer gpt2_qkv[] = {
    { .weight = "attn.c_attn.weight", .n_fused = 3, .reversed = true }
};
static const dt_policy_layer gpt2_out[] = { { .weight = "attn.c_proj.weight", .reversed = true } };
static const dt_policy_layer gpt2_in[] = { { .weight = "mlp.c_fc.weight", .reversed = true } };
static const dt_policy_layer gpt2_down[] = { { .weight = "mlp.c_proj.weight", .reversed = true } };
static const dt_policy_layer bigcode_qkv[] = { { .weight = "attn.c_attn.weight",
                                                 .ignore_checker = true } };
static const dt_policy_layer bigcode_out[] = { { .weight = "attn.c_proj.weight" } };
static const dt_policy_layer c_fc[] = { { .weight = "mlp.c_fc.weight" } };
static const dt_policy_layer c_proj[] = { { .weight = "mlp.c_proj.weight" } };
static const dt_policy_layer neox_qkv[] = { { .weight = "attention.query_key_value.weight" } };
static const dt_policy_layer neox_out[] = { { .weight = "attention.dense.weight" } };
static const dt_policy_layer falcon_qkv[] = { { .weight = "self_attention.query_key_value.weight",
                                                .ignore_checker = true } };
static const dt_policy_layer falcon_out[] = { { .weight = "self_attention.dense.weight" } };
static const dt_policy_layer to_4h[] = { { .weight = "mlp.dense_h_to_4h.weight" } };
static const dt_policy_layer from_4h[] = { { .weight = "mlp.dense_4h_to_h.weight" } };
static const dt_policy_layer phi_out[] = { { .weight = "self_attn.dense.weight" } };
static const dt_policy_layer fc1[] = { { .weight = "mlp.fc1.weight" } };
static const dt_policy_layer fc2[] = { { .weight = "mlp.fc2.weight" } };

static const dt_policy_layer gptj_qkv[] = {
    { .weight = "attn.q_proj.weight" },
    { .weight = "attn.k_proj.weight" },
    { .weight = "attn.v_proj.weight" },
};
static const dt_policy_layer gptj_out[] = { { .weight = "attn.out_proj.weight" } };
static const dt_policy_layer fc_in[] = { { .weight = "mlp.fc_in.weight" } };
static const dt_policy_layer fc_out[] = { { .weight = "mlp.fc_out.weight" } };

#define POLICY(class, qkv, out, in, down)                                            \
    {                                                                                \
        .size = sizeof(dt_policy), .name = (class), .original_layer_class = (class), \
        .attn_qkv = { DT_POLICY_LIST(qkv) }, .attn_out = { DT_POLICY_LIST(out) },    \
        .mlp_in = { DT_POLICY_LIST(in) }, .mlp_out = {                               \
            DT_POLICY_LIST(down)                                                     \
        }                                                                            \
    }
#define DECODER(class) POLICY(class, decoder_qkv, decoder_out, decoder_in, decoder_down)

static const struct {
    const char *model_type;
    const char *model_class;
    dt_policy policy;
} policies[] = {
    { "llama", "LlamaForCausalLM", DECODER("LlamaDecoderLayer") },
    { "qwen2", "Qwen2ForCausalLM", DECODER("Qwen2DecoderLayer") },
    { "qwen3", "Qwen3ForCausalLM", DECODER("Qwen3DecoderLayer") },
    { "qwen3_moe", "Qwen3MoeForCausalLM",
      POLICY("Qwen3MoeDecoderLayer", decoder_qkv, decoder_out, dense_in, dense_down) },
    { "qwen3_next", "Qwen3NextForCausalLM",
      POLICY("Qwen3NextDecoderLayer", next_qkv, next_out, dense_in, dense_down) },
    { "gemma3_text", "Gemma3ForCausalLM", DECODER("Gemma3DecoderLayer") },
    { "gemma3", "Gemma3ForConditionalGeneration", DECODER("Gemma3DecoderLayer") },
    { "mistral", "MistralForCausalLM", DECODER("MistralDecoderLayer") },
    { "mistral3", "Mistral3ForConditionalGeneration", DECODER("MistralDecoderLayer") },
    { "ministral", "MinistralForCausalLM", DECODER("MinistralDecoderLayer") },
    { "ministral3", "Ministral3ForCausalLM", DECODER("Ministral3DecoderLayer") },
    { "mixtral", "MixtralForCausalLM",
      POLICY("MixtralDecoderLayer", decoder_qkv, decoder_out, dense_in, dense_down) },
    { "smollm3", "SmolLM3ForCausalLM", DECODER("SmolLM3DecoderLayer") },
    { "granite", "GraniteForCausalLM", DECODER("GraniteDecoderLayer") },
    { "seed_oss", "SeedOssForCausalLM", DECODER("SeedOssDecoderLayer") },
    { "exaone4", "Exaone4ForCausalLM", DECODER("Exaone4DecoderLayer") },
    { "cwm", "CwmForCausalLM", DECODER("CwmDecoderLayer") },
    { "gemma", "GemmaForCausalLM", DECODER("GemmaDecoderLayer") },
    { "gemma2", "Gemma2ForCausalLM", DECODER("Gemma2DecoderLayer") },
    { "phi3", "Phi3ForCausalLM",
      POLICY("Phi3DecoderLayer", phi3_qkv, decoder_out, phi3_in, decoder_down) },
    { "gpt2", "GPT2LMHeadModel", POLICY("GPT2Block", gpt2_qkv, gpt2_out, gpt2_in, gpt2_down) },
    { "gpt_bigcode", "GPTBigCodeForCausalLM",
      POLICY("GPTBigCodeBlock", bigcode_qkv, bigcode_out, c_fc, c_proj) },
    { "gpt_neox", "GPTNeoXForCausalLM",
      POLICY("GPTNeoXLayer", neox_qkv, neox_out, to_4h, from_4h) },
    { "falcon", "FalconForCausalLM",
      POLICY("FalconDecoderLayer", falcon_qkv, falcon_out, to_4h, from_4h) },
    { "phi", "PhiForCausalLM", POLICY("PhiDecoderLayer", decoder_qkv, phi_out, fc1, fc2) },
    { "starcoder2", "Starcoder2ForCausalLM",
      POLICY("Starcoder2DecoderLayer", decoder_qkv, decoder_out, c_fc, c_proj) },
    { "stablelm", "StableLmForCausalLM", DECODER("StableLmDecoderLayer") },
    { "qwen2_moe", "Qwen2MoeForCausalLM",
      POLICY("Qwen2MoeDecoderLayer", decoder_qkv, decoder_out, dense_in, dense_down) },
    { "glm", "GlmForCausalLM",
      POLICY("GlmDecoderLayer", decoder_qkv, decoder_out, phi3_in, decoder_down) },
    { "glm4", "Glm4ForCausalLM",
      POLICY("Glm4DecoderLayer", decoder_qkv, decoder_out, phi3_in, decoder_down) },
    { "gptj", "GPTJForCausalLM", POLICY("GPTJBlock", gptj_qkv, gptj_out, fc_in, fc_out) },
    { "cohere", "CohereForCausalLM", DECODER("CohereDecoderLayer") },
    { "cohere2", "Cohere2ForCausalLM", DECODER("Cohere2DecoderLayer") },
    { "ernie4_5", "Ernie4_5ForCausalLM", DECODER("Ernie4_5DecoderLayer") },
    { "glm4_moe", "Glm4MoeForCausalLM",
      POLICY("Glm4MoeDecoderLayer", decoder_qkv, decoder_out, dense_in, dense_down) },
    { "deepseek_v3", "DeepseekV3ForCausalLM",
      POLICY("DeepseekV3DecoderLayer", latent_qkv, decoder_out, dense_in, dense_down) },
    { "olmo2", "Olmo2ForCausalLM", DECODER("Olmo2DecoderLayer") },
    { "olmo3", "Olmo3ForCausalLM", DECODER("Olmo3DecoderLayer") },
    { "gpt_oss", "GptOssForCausalLM",
      POLICY("GptOssDecoderLayer", decoder_qkv, decoder_out, dense_in, dense_down) },
    { "gpt_neo", "GPTNeoForCausalLM",
      POLICY("GPTNeoBlock", gpt_neo_qkv, gpt_neo_out, gpt_neo_in, gpt_neo_down) },
};

dt_status dt_policy_find(const char *name, const dt_policy **out)
{
    char names[2048] = "", shown[DTI_SHOWN_BYTES];
    size_t used = 0;

    DT_CHECK(name != NULL && out != NULL, DT_ERR_ARG, "name or out is NULL");
    *out = NULL;
    for (size_t i = 0; i < DT_COUNT(policies); i++) {
        const dt_policy *p = &policies[i].policy;
        if (strcmp(name, policies[i].model_type) == 0 ||
            strcmp(name, policies[i].model_class) == 0 ||
            strcmp(name, p->original_layer_class) == 0) {
            *out = p;
            return DT_OK;
        }
        if (used < sizeof names)
            used +=
                (size_t)snprintf(names + used, sizeof names - used, "%s%s (%s)", i > 0 ? ", " : "",
                                 policies[i].model_type, p->original_layer_class);
    }
    DT_FAIL(DT_ERR_ARG, "no policy is known for \"%s\"; there are: %s",
            dti_printable(name, shown, sizeof shown), names);
}
