/* SPDX-License-Identifier: Apache-2.0
 *
 * Seed-OSS: Llama's block (decoder_block.c) with a key for the bias of what attention gives. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 155136,
                                                               .hidden = 4096,
                                                               .layers = 64,
                                                               .heads = 80,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .positions = 524288,
                                                               .eos = 2 },
                                                   .ff = 27648,
                                                   .padding = 1 + 1,
                                                   .eps = 1e-6 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dt_config_bool(config, "attention_bias", true, &m->qkv_bias));
    DT_TRY(dt_config_bool(config, "attention_out_bias", false, &m->out_bias));
    return dt_config_bool(config, "mlp_bias", false, &m->mlp_bias);
}

const dt_arch dti_arch_seed_oss = DTI_DECODER_ARCH("seed_oss", "SeedOssForCausalLM",
                                                   "SeedOssDecoderLayer", read_config, DTI_PLAIN);
