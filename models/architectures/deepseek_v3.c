/* SPDX-License-Identifier: Apache-2.0
 *
 * DeepSeek-V3 and R1: Llama's block (decoder_block.c) with latent attention (mla_block.c)
 * and, behind the first layers, a mixture of experts in groups (moe_block.c). What files have of
 * layers that guess tokens ahead is passed over. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta",
                                        .theta = 10000.0,
                                        .columns_key = "qk_rope_head_dim",
                                        .columns = 64,
                                        .apart = true };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 129280,
                                                               .hidden = 7168,
                                                               .layers = 61,
                                                               .heads = 128,
                                                               .head_dim = 64,
                                                               .positions = 4096,
                                                               .eos = 1 },
                                                   .ff = 18432,
                                                   .eps = 1e-6,
                                                   .rope = &rope };
    static const dti_moe_defaults moe = { .n_experts = 256,
                                          .n_chosen = 8,
                                          .ff = 2048,
                                          .n_groups = 8,
                                          .n_chosen_groups = 4,
                                          .dense = 3,
                                          .scale = 2.5 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_mla_read(m, config, info));
    return dti_moe_read_corrected(m, config, &moe);
}

static const char *const ignored[] = { "rotary_emb.inv_freq", "model.layers.61.", NULL };

const dt_arch dti_arch_deepseek_v3 = DTI_DECODER_ARCH(
    "deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3DecoderLayer", read_config,
    .blocks = "model.layers.*", .ignored = ignored, .spellings = dti_decoder_spellings);
