/* SPDX-License-Identifier: Apache-2.0
 *
 * SmolLM3: Llama's block (decoder_block.c), of which every fourth has no positions. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

/* no_rope_layers: 0 for a layer that does not rotate; or every so many-th. Where windows are used
 * and nobody says for which layers, they are for these. */
static dt_status read_positions(dti_decoder *m, const dt_config *config)
{
    const int64_t n = m->info.n_layers;
    int64_t every, rotates;
    dt_config list;

    DT_TRY(dt_config_int(config, "no_rope_layer_interval", 4, 1, DTI_CONFIG_MAX_LAYERS, &every));
    DT_TRY(dt_config_array(config, "no_rope_layers", &list));
    if (dt_config_is_set(&list) && (int64_t)dt_config_count(&list) < n)
        return dt_config_must_be(&list, DT_ERR_FORMAT, "as long as num_hidden_layers, %lld",
                                 (long long)n);
    for (int64_t i = 0; i < n; i++) {
        const dt_config one = dt_config_item(&list, (size_t)i);
        rotates = (i + 1) % every != 0;
        if (dt_config_is_set(&list)) DT_TRY(dt_config_as_int(&one, 0, 1, &rotates));
        m->blocks[i].rope = rotates ? 0 : DTI_NO_ROPE;
        m->blocks[i].slides = !rotates;
    }
    return DT_OK;
}

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta", .theta = 2e6 };
    static const dti_windows windows = { .fallback = 0, .asked = true, .typed = true };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 128256,
                                                               .hidden = 2048,
                                                               .layers = 36,
                                                               .heads = 16,
                                                               .kv_heads = 4,
                                                               .positions = 32768,
                                                               .tied = true,
                                                               .bos = 128000,
                                                               .eos = 128001 },
                                                   .ff = 11008,
                                                   .padding = 128004 + 1,
                                                   .eps = 1e-6,
                                                   .rope = &rope };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    DT_TRY(dt_config_bool(config, "mlp_bias", false, &m->mlp_bias));
    DT_TRY(read_positions(m, config));
    return dti_decoder_windows(m, config, &windows);
}

const dt_arch dti_arch_smollm3 = DTI_DECODER_ARCH("smollm3", "SmolLM3ForCausalLM",
                                                  "SmolLM3DecoderLayer", read_config, DTI_PLAIN);
