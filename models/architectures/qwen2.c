/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen2: Llama's block (decoder_block.c) with biases on queries, keys and values, and
 * windows in the upper layers of some checkpoints. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

dt_status dti_qwen_windows(dti_decoder *m, const dt_config *config)
{
    static const dti_windows windows = { .fallback = 4096, .asked = true, .typed = true };
    const dt_config quiet = dt_config_quietly(config);
    int64_t first;

    DT_TRY(dt_config_int(&quiet, "max_window_layers", 28, 0, DTI_CONFIG_MAX_EXTENT, &first));
    for (int64_t i = 0; i < m->info.n_layers; i++) m->blocks[i].slides = i >= first;
    return dti_decoder_windows(m, config, &windows);
}

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
    return dti_qwen_windows(m, config);
}

const dt_arch dti_arch_qwen2 = DTI_DECODER_ARCH("qwen2", "Qwen2ForCausalLM", "Qwen2DecoderLayer",
                                                read_config, DTI_PLAIN, .plans = dti_nemo_qwen);
