/* SPDX-License-Identifier: Apache-2.0
 *
 * Command R (cohere) and R7B, A (cohere2): Llama's layers (decoder_block.c) with attention and
 * feed-forward side by side, of one layer norm without a bias; neighbouring columns rotate in f32;
 * logits are scaled. Of Cohere 2 layers with a window rotate, full ones have no positions. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_shared(dti_decoder *m, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 256000,
                                                               .hidden = 8192,
                                                               .layers = 40,
                                                               .heads = 64,
                                                               .positions = 8192,
                                                               .tied = true,
                                                               .bos = 5,
                                                               .eos = 255001 },
                                                   .ff = 22528,
                                                   .padding = 0 + 1,
                                                   .eps = 1e-5,
                                                   .eps_key = "layer_norm_eps" };

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    m->norm_kind = &dti_plain_layer_norm_kind;
    m->parallel = m->one_norm = true;
    m->turning = DTI_TURNS_PAIRS | DTI_TURNS_WIDE;
    return dt_config_number(config, "logit_scale", 0.0625, 1e-9, 1e9, &m->logit_scale);
}

static dt_status read_cohere(void *self, const dt_config *config, dt_model_info *info)
{
    bool head_norms;

    DT_TRY(read_shared(self, config, info));
    DT_TRY(dt_config_bool(config, "use_qk_norm", false, &head_norms));
    if (head_norms)
        return dt_config_refuse(config, "use_qk_norm", DT_ERR_UNSUPPORTED,
                                "false: a norm for each head by itself is not supported");
    return DT_OK;
}

static dt_status read_cohere2(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_windows windows = { .fallback = 4096, .typed = true };
    const dt_config quiet = dt_config_quietly(config);
    dti_decoder *m = self;
    int64_t every;

    DT_TRY(read_shared(m, config, info));
    DT_TRY(dt_config_int_or(&quiet, "sliding_window_pattern", 4, 1, DTI_CONFIG_MAX_LAYERS, &every));
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].slides = (i + 1) % every != 0;
    DT_TRY(dti_decoder_windows(m, config, &windows));
    for (int64_t i = 0; i < info->n_layers; i++)
        m->blocks[i].rope = m->blocks[i].attention.window > 0 ? 0 : DTI_NO_ROPE;
    return DT_OK;
}

const dt_arch dti_arch_cohere =
    DTI_DECODER_ARCH("cohere", "CohereForCausalLM", "CohereDecoderLayer", read_cohere, DTI_PLAIN);
const dt_arch dti_arch_cohere2 = DTI_DECODER_ARCH("cohere2", "Cohere2ForCausalLM",
                                                  "Cohere2DecoderLayer", read_cohere2, DTI_PLAIN);
