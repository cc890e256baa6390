/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama: its configuration. The block is models/architectures/decoder_block.c. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 32000,
                                                               .hidden = 4096,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .positions = 2048,
                                                               .bos = 1,
                                                               .eos = 2 },
                                                   .ff = 11008,
                                                   .eps = 1e-6 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    DT_TRY(dt_config_bool(config, "mlp_bias", false, &m->mlp_bias));
    return DT_OK;
}

const dt_arch dti_arch_llama = DTI_DECODER_ARCH("llama", "LlamaForCausalLM", "LlamaDecoderLayer",
                                                read_config, DTI_PLAIN, .plans = dti_nemo_llama);
