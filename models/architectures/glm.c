/* SPDX-License-Identifier: Apache-2.0
 *
 * GLM and GLM-4: Llama's block (decoder_block.c) with gate and up in one weight, biases on q, k and
 * v, and neighbouring columns of half a head that rotate. GLM-4-0414 (glm4) has norms behind
 * attention and feed-forward, too. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_glm(void *self, const dt_config *config, dt_model_info *info)
{
    static const int32_t ends[] = { 151329, 151336, 151338 };
    static const dti_rope_keys rope = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .part = 0.5
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151552,
                                                               .hidden = 4096,
                                                               .layers = 40,
                                                               .heads = 32,
                                                               .kv_heads = 2,
                                                               .head_dim = 128,
                                                               .positions = 131072 },
                                                   .ff = 13696,
                                                   .padding = 151329 + 1,
                                                   .eps = 1.5625e-7,
                                                   .rope = &rope };
    const dt_config eos = dt_config_member(config, "eos_token_id");
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    for (size_t i = 0; i < DT_COUNT(ends) && !dt_config_is_set(&eos); i++)
        info->eos[info->n_eos++] = ends[i];
    m->gate_up = true;
    m->turning = DTI_TURNS_PAIRS;
    return dt_config_bool(config, "attention_bias", true, &m->qkv_bias);
}

static dt_status read_glm4(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_names names = { .out_norm1 = "post_self_attn_layernorm",
                                     .norm2 = "post_attention_layernorm",
                                     .out_norm2 = "post_mlp_layernorm" };
    dti_decoder *m = self;

    m->names = &names;
    m->norms = DTI_NORMS_AROUND;
    return read_glm(m, config, info);
}

const dt_arch dti_arch_glm =
    DTI_DECODER_ARCH("glm", "GlmForCausalLM", "GlmDecoderLayer", read_glm, DTI_PLAIN);
const dt_arch dti_arch_glm4 =
    DTI_DECODER_ARCH("glm4", "Glm4ForCausalLM", "Glm4DecoderLayer", read_glm4, DTI_PLAIN);
