/* SPDX-License-Identifier: Apache-2.0
 *
 * Mistral and what followed: Llama's block (decoder_block.c) with windows, of all layers (mistral)
 * or by layer_types (ministral), or with queries that grow with their positions (ministral3).
 * mistral3 is the text part of models that see images: one of these. */
#include <string.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static const dti_decoder_defaults first = { .shared = { .vocab = 32000,
                                                        .hidden = 4096,
                                                        .layers = 32,
                                                        .heads = 32,
                                                        .kv_heads = 8,
                                                        .positions = 131072,
                                                        .bos = 1,
                                                        .eos = 2 },
                                            .ff = 14336,
                                            .eps = 1e-6 };

static dt_status read_mistral(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_windows all = { .fallback = 4096 };

    DT_TRY(dti_decoder_read(self, config, &first, info));
    return dti_decoder_windows(self, config, &all);
}

static dt_status read_ministral(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_windows typed = { .fallback = 4096, .typed = true };

    DT_TRY(dti_decoder_read(self, config, &first, info));
    return dti_decoder_windows(self, config, &typed);
}

static dt_status read_ministral3(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta", .theta = 1e6, .grows = true };
    static const dti_windows all = { .fallback = 0 };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 131072,
                                                               .hidden = 4096,
                                                               .layers = 34,
                                                               .heads = 32,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .positions = 262144,
                                                               .bos = 1,
                                                               .eos = 2 },
                                                   .ff = 14336,
                                                   .padding = 11 + 1,
                                                   .eps = 1e-5,
                                                   .rope = &rope };

    DT_TRY(dti_decoder_read(self, config, &defaults, info));
    return dti_decoder_windows(self, config, &all);
}

static dt_status read_text(void *self, const dt_config *config, dt_model_info *info)
{
    static const struct {
        const char *type;
        dt_status (*read)(void *self, const dt_config *config, dt_model_info *info);
    } types[] = { { "mistral", read_mistral },
                  { "ministral", read_ministral },
                  { "ministral3", read_ministral3 } };
    const char *type;

    DT_TRY(dt_config_string(config, "model_type", "mistral", &type));
    for (size_t i = 0; i < DT_COUNT(types); i++) {
        if (strcmp(type, types[i].type) != 0) continue;
        DT_TRY(types[i].read(self, config, info));
        info->tied = true; /* unless the root says otherwise: a head of its own is used anyway */
        return DT_OK;
    }
    return dt_config_refuse(config, "model_type", DT_ERR_UNSUPPORTED,
                            "\"mistral\", \"ministral\" or \"ministral3\"");
}

const dt_arch dti_arch_mistral = DTI_DECODER_ARCH("mistral", "MistralForCausalLM",
                                                  "MistralDecoderLayer", read_mistral, DTI_PLAIN);
const dt_arch dti_arch_ministral = DTI_DECODER_ARCH(
    "ministral", "MinistralForCausalLM", "MinistralDecoderLayer", read_ministral, DTI_PLAIN);
const dt_arch dti_arch_ministral3 = DTI_DECODER_ARCH(
    "ministral3", "Ministral3ForCausalLM", "Ministral3DecoderLayer", read_ministral3, DTI_PLAIN);
const dt_arch dti_arch_mistral3 =
    DTI_DECODER_ARCH("mistral3", "Mistral3ForConditionalGeneration", "MistralDecoderLayer",
                     read_text, DTI_WRAPPED, .text_config = "text_config");
