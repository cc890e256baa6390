/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3: Llama's block (decoder_block.c) with a norm of every query and key head before the
 * rotation. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151936,
                                                               .hidden = 4096,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .kv_heads = 32,
                                                               .head_dim = 128,
                                                               .positions = 32768 },
                                                   .ff = 22016,
                                                   .eps = 1e-6 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    m->head_norms = true;
    return dti_qwen_windows(m, config);
}

const dt_arch dti_arch_qwen3 = DTI_DECODER_ARCH("qwen3", "Qwen3ForCausalLM", "Qwen3DecoderLayer",
                                                read_config, DTI_PLAIN, .plans = dti_nemo_qwen);
