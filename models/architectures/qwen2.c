/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen2: Llama's block (decoder_block.c) with biases on queries, keys and values, and
 * windows in the upper layers of some checkpoints. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151936,
                                                               .hidden = 4096,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .kv_heads = 32,
                                                               .positions = 32768 },
                                                   .ff = 22016,
                                                   .eps = 1e-6 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->qkv_bias = true;
    return dti_decoder_read_windows(m, config);
}

const dt_arch dti_arch_qwen2 =
    DTI_DECODER_ARCH("qwen2", "Qwen2ForCausalLM", "Qwen2DecoderLayer", read_config, dti_nemo_qwen);
