/* SPDX-License-Identifier: Apache-2.0
 *
 * Granite: Llama's block (decoder_block.c) with four multipliers. */
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
    double scores, logits;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    DT_TRY(dt_config_bool(config, "mlp_bias", false, &m->mlp_bias));
    DT_TRY(dt_config_number(config, "embedding_multiplier", 1.0, 1e-9, 1e9, &m->embed_scale));
    DT_TRY(dt_config_number(config, "residual_multiplier", 1.0, 1e-9, 1e9, &m->residual_scale));
    DT_TRY(dt_config_number(config, "attention_multiplier", 1.0, 1e-9, 1e9, &scores));
    DT_TRY(dt_config_number(config, "logits_scaling", 1.0, 1e-9, 1e9, &logits));
    m->logit_scale = 1.0 / logits;
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].attention.scale = (float)scores;
    return DT_OK;
}

const dt_arch dti_arch_granite = DTI_DECODER_ARCH("granite", "GraniteForCausalLM",
                                                  "GraniteDecoderLayer", read_config, DTI_PLAIN);
