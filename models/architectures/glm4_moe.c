/* SPDX-License-Identifier: Apache-2.0
 *
 * GLM-4.5 and what followed: Llama's block (decoder_block.c), of which half a head rotates and
 * heads may be normed, with DeepSeek-V3's mixture of experts (moe_block.c) behind the first layers.
 * What files have of layers that guess tokens ahead is passed over. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .part = 0.5
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151552,
                                                               .hidden = 4096,
                                                               .layers = 46,
                                                               .heads = 96,
                                                               .kv_heads = 8,
                                                               .positions = 131072 },
                                                   .ff = 10944,
                                                   .eps = 1e-5,
                                                   .rope = &rope };
    static const dti_moe_defaults moe = { .n_experts = 128,
                                          .n_chosen = 8,
                                          .ff = 1408,
                                          .n_groups = 1,
                                          .n_chosen_groups = 1,
                                          .dense = 1,
                                          .scale = 1.0 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dt_config_bool(config, "attention_bias", false, &m->qkv_bias));
    DT_TRY(dt_config_bool(config, "use_qk_norm", false, &m->head_norms));
    return dti_moe_read_corrected(m, config, &moe);
}

static const char *const ignored[] = { "rotary_emb.inv_freq", "model.layers.46.",
                                       "model.layers.92.", NULL };

const dt_arch dti_arch_glm4_moe = DTI_DECODER_ARCH(
    "glm4_moe", "Glm4MoeForCausalLM", "Glm4MoeDecoderLayer", read_config,
    .blocks = "model.layers.*", .ignored = ignored, .spellings = dti_decoder_spellings);
