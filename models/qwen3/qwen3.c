/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3: Llama's block (models/blocks/decoder.c) with a norm of every query and key head before the
 * rotation. */
#include <string.h>

#include "models/blocks/attention.h"
#include "models/blocks/decoder.h"
#include "models/config.h"

/* Full attention in every layer; a config that asks for sliding windows is refused. */
static dt_status check_windows(const dti_json *config, const dt_model_info *info)
{
    const dti_json switched = dti_json_get(config, "use_sliding_window");
    int64_t first;
    dti_json types;
    bool windowed;

    DT_TRY(dti_config_bool(config, "use_sliding_window", false, &windowed));
    DT_TRY(dti_config_int(config, "max_window_layers", 28, 0, DTI_CONFIG_MAX_EXTENT, &first));
    DT_TRY(dti_json_array_or_none(config, "layer_types", &types));
    if (!dti_json_is_set(&types)) {
        if (windowed && first < info->n_layers)
            return dti_json_refuse(&switched, DT_ERR_UNSUPPORTED,
                                   "false: sliding windows of Qwen3 are not supported yet");
        return DT_OK;
    }
    if ((int64_t)dti_json_count(&types) != info->n_layers)
        return dti_json_refuse(&types, DT_ERR_FORMAT, "as long as num_hidden_layers, %lld",
                               (long long)info->n_layers);
    for (int64_t i = 0; i < info->n_layers; i++) {
        const dti_json type = dti_json_at(&types, (size_t)i);
        const char *name;
        DT_TRY(dti_json_as_string(&type, &name));
        if (strcmp(name, "full_attention") != 0)
            return dti_json_refuse(&type, DT_ERR_UNSUPPORTED,
                                   "\"full_attention\": nothing else is supported yet");
    }
    return DT_OK;
}

static dt_status read_config(void *self, const dti_json *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .vocab = 151936,
                                                   .hidden = 4096,
                                                   .layers = 32,
                                                   .heads = 32,
                                                   .kv_heads = 32,
                                                   .head_dim = 128,
                                                   .positions = 32768 };
    dti_decoder *m = self;

    DT_TRY(dti_config_decoder(config, &defaults, info));
    DT_TRY(dti_config_int(config, "intermediate_size", 22016, 1, DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dti_config_bool(config, "attention_bias", false, &m->attention_bias));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-6, &m->eps));
    DT_TRY(dti_config_word(config, "hidden_act", "silu", "silu"));
    DT_TRY(check_windows(config, info));
    DT_TRY(dti_rope_read(config, info, &m->rope));
    m->attention = dti_scaled_attention(info);
    m->info = *info;
    return DT_OK;
}

static dt_status add_layers(void *self, dti_builder *builder)
{
    const dti_decoder *m = self;
    const dti_extent E = { m->info.head_dim, DT_UNIT_ROW, "head_dim" }, none = { 0 };
    /* clang-format off */
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
    const dti_row norms[] = {
/*      field                name in the checkpoint  kind               out  in    bias   style on "tp"  tied to */
        { DTI_BLOCK(q_norm), "self_attn.q_norm",     DT_LAYER_RMS_NORM, E,   none, false, PER_HEAD,      NULL },
        { DTI_BLOCK(k_norm), "self_attn.k_norm",     DT_LAYER_RMS_NORM, E,   none, false, PER_HEAD,      NULL },
    };
#undef PER_HEAD
    /* clang-format on */

    return dti_decoder_add_layers(self, builder, norms, (int)DT_COUNT(norms));
}

const dti_arch dti_arch_qwen3 = {
    .model_type = "qwen3",
    .class_name = "Qwen3ForCausalLM",
    .self_bytes = sizeof(dti_decoder),
    .prefix = "model.",
    .ignored = dti_decoder_ignored,
    .read_config = read_config,
    .add_layers = add_layers,
    .prepare = dti_decoder_prepare,
    .forward = dti_decoder_forward,
    .release = dti_decoder_release,
};
