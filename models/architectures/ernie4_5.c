/* SPDX-License-Identifier: Apache-2.0
 *
 * ERNIE 4.5 without experts: Llama's block (decoder_block.c), whose neighbouring columns rotate in
 * f32. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta", .theta = 500000.0 };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 103424,
                                                               .hidden = 1024,
                                                               .layers = 18,
                                                               .heads = 16,
                                                               .kv_heads = 2,
                                                               .head_dim = 128,
                                                               .positions = 131072,
                                                               .tied = true,
                                                               .bos = 1,
                                                               .eos = 2 },
                                                   .ff = 3072,
                                                   .padding = 0 + 1,
                                                   .eps = 1e-5,
                                                   .rope = &rope };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dt_config_bool_or(config, "use_bias", false, &m->qkv_bias));
    m->out_bias = m->mlp_bias = m->qkv_bias;
    m->turning = DTI_TURNS_PAIRS | DTI_TURNS_WIDE | DTI_TURNS_BY_F32;
    return DT_OK;
}

const dt_arch dti_arch_ernie4_5 = DTI_DECODER_ARCH("ernie4_5", "Ernie4_5ForCausalLM",
                                                   "Ernie4_5DecoderLayer", read_config, DTI_PLAIN);
