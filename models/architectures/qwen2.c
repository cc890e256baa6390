/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen2: Llama's block (decoder_block.c) with biases on queries, keys and values, and
 * windows in the upper layers of some checkpoints. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = { .vocab = 151936,
                                                 .hidden = 4096,
                                                 .layers = 32,
                                                 .heads = 32,
                                                 .kv_heads = 32,
                                                 .positions = 32768 };
    dti_decoder *m = self;

    DT_TRY(dt_config_decoder(config, &defaults, info));
    DT_TRY(dt_config_int(config, "intermediate_size", 22016, 1, DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-6, &m->eps));
    DT_TRY(dt_config_activation(config, "hidden_act", "silu", &m->activation));
    DT_TRY(dti_rope_read(config, NULL, info, &m->rope));
    m->qkv_bias = true;
    DT_TRY(dti_decoder_configure(m, info));
    return dti_decoder_read_windows(m, config);
}

const dt_arch dti_arch_qwen2 =
    DTI_DECODER_ARCH("qwen2", "Qwen2ForCausalLM", "Qwen2DecoderLayer", read_config, dti_nemo_qwen);
