/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama: its configuration. The block is models/architectures/decoder_block.c. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = { .vocab = 32000,
                                                 .hidden = 4096,
                                                 .layers = 32,
                                                 .heads = 32,
                                                 .positions = 2048,
                                                 .bos = 1,
                                                 .eos = 2 };
    dti_decoder *m = self;

    DT_TRY(dt_config_decoder(config, &defaults, info));
    DT_TRY(dt_config_int(config, "intermediate_size", 11008, 1, DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dt_config_bool(config, "attention_bias", false, &m->qkv_bias));
    m->out_bias = m->qkv_bias;
    DT_TRY(dt_config_bool(config, "mlp_bias", false, &m->mlp_bias));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-6, &m->eps));
    DT_TRY(dt_config_activation(config, "hidden_act", "silu", &m->activation));
    DT_TRY(dti_rope_read(config, NULL, info, &m->rope));
    return dti_decoder_configure(m, info);
}

const dt_arch dti_arch_llama =
    DTI_DECODER_ARCH("llama", "LlamaForCausalLM", "LlamaDecoderLayer", read_config, dti_nemo_llama);
