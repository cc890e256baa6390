/* SPDX-License-Identifier: Apache-2.0
 *
 * CWM: Llama's block (decoder_block.c) with windows in three of four layers. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta", .theta = 1e6 };
    static const dti_windows windows = { .fallback = 8192, .typed = true, .needed = true };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 128256,
                                                               .hidden = 6144,
                                                               .layers = 64,
                                                               .heads = 48,
                                                               .kv_heads = 8,
                                                               .head_dim = 128,
                                                               .positions = 131072,
                                                               .bos = 128000 },
                                                   .ff = 21504,
                                                   .eps = 1e-5,
                                                   .rope = &rope };
    static const int32_t ends[] = { 128001, 128008, 128009 };
    const dt_config eos = dt_config_member(config, "eos_token_id");
    const dt_config scaling = dt_config_member(config, "rope_scaling"),
                    parameters = dt_config_member(config, "rope_parameters");
    dti_decoder *m = self;

    if (!dt_config_is_set(&scaling) && !dt_config_is_set(&parameters))
        return dt_config_must_be(&parameters, DT_ERR_UNSUPPORTED,
                                 "given: files of this type have it");
    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dt_config_bool(config, "mlp_bias", false, &m->mlp_bias));
    for (int32_t i = 0; !dt_config_is_set(&eos) && i < 3; i++) info->eos[info->n_eos++] = ends[i];
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].slides = i % 4 != 0;
    m->info = *info;
    return dti_decoder_windows(m, config, &windows);
}

const dt_arch dti_arch_cwm =
    DTI_DECODER_ARCH("cwm", "CwmForCausalLM", "CwmDecoderLayer", read_config, DTI_PLAIN);
