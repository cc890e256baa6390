/* SPDX-License-Identifier: Apache-2.0
 *
 * What config.json says of a Gemma 3. attn_logit_softcapping is there as in Gemma 2, but Gemma 3
 * norms its queries and keys instead, and Transformers does not use it either. */
#include <math.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/gemma3.h"

/* The parameters of one kind of layers: nested in rope_parameters (Transformers 5), or rope_scaling
 * (4), which speaks of the global layers. */
static dt_status read_ropes(gemma3 *m, const dt_config *config)
{
    static const dti_rope_keys of_global = { .theta_key = "rope_theta", .theta = 1e6 };
    static const dti_rope_keys of_local = { .theta_key = "rope_local_base_freq",
                                            .theta = 1e4,
                                            .of = "sliding_attention" };
    dt_config all, scaling, global, local;

    DT_TRY(dt_config_object(config, "rope_parameters", &all));
    DT_TRY(dt_config_object(config, "rope_scaling", &scaling));
    DT_TRY(dt_config_object(&all, "full_attention", &global));
    DT_TRY(dt_config_object(&all, "sliding_attention", &local));
    if (dt_config_count(&all) > 0 && !dt_config_is_set(&global) && !dt_config_is_set(&local))
        return dt_config_must_be(&all, DT_ERR_FORMAT,
                                 "made of \"full_attention\" and \"sliding_attention\"");
    if (dt_config_is_set(&scaling) && dt_config_is_set(&global))
        return dt_config_must_be(&scaling, DT_ERR_FORMAT,
                                 "absent where rope_parameters stands: both say the same thing");
    if (!dt_config_is_set(&global)) global = scaling;
    DT_TRY(dti_rope_read_parameters(config, &global, &of_global, &m->info, &m->global));
    return dti_rope_read_parameters(config, &local, &of_local, &m->info, &m->local);
}

/* layer_types, or every sliding_window_pattern-th layer global and the others local. */
static dt_status read_blocks(gemma3 *m, const dt_config *config)
{
    const dt_config quiet = dt_config_quietly(config);
    int64_t window, pattern;
    double scalar;
    dt_config types;

    DT_TRY(dti_config_window(&quiet, 4096, &window));
    DT_TRY(
        dt_config_int_or(&quiet, "sliding_window_pattern", 6, 1, DTI_CONFIG_MAX_LAYERS, &pattern));
    DT_TRY(dt_config_number(config, "query_pre_attn_scalar", 256.0, 1e-6, 1e9, &scalar));
    DT_TRY(dti_config_layer_types(&quiet, m->info.n_layers, &types));
    DT_TRY(dti_alloc_array((size_t)m->info.n_layers, sizeof *m->blocks, (void **)&m->blocks));
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        gemma3_block *b = &m->blocks[i];
        b->local = (i + 1) % pattern != 0;
        DT_TRY(dti_config_slides(&types, i, &b->local));
        if (b->local && window == 0) {
            const dt_config v = dt_config_member(config, "sliding_window");
            return dt_config_must_be(&v, DT_ERR_FORMAT, "a number: layer %lld is local",
                                     (long long)i);
        }
        b->attention = (dt_attention_options){ .n_heads = m->info.n_heads,
                                               .n_kv_heads = m->info.n_kv_heads,
                                               .window = b->local ? window : 0,
                                               .scale = (float)(1.0 / sqrt(scalar)) };
        DT_TRY(dti_config_say_window(config, i, b->attention.window));
    }
    return DT_OK;
}

dt_status dti_gemma3_read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = { .vocab = 262208,
                                                 .hidden = 2304,
                                                 .layers = 26,
                                                 .heads = 8,
                                                 .kv_heads = 4,
                                                 .head_dim = 256,
                                                 .positions = 131072,
                                                 .tied = true,
                                                 .bos = 2,
                                                 .eos = 1 };
    const dt_config both_ways = dt_config_member(config, "use_bidirectional_attention");
    gemma3 *m = self;
    bool bidirectional;

    DT_TRY(dt_config_decoder(config, &defaults, info));
    DT_TRY(dt_config_int(config, "intermediate_size", 9216, 1, DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dti_config_padding(config, 0 + 1, info->vocab_size, &m->padding));
    DT_TRY(dt_config_bool(config, "attention_bias", false, &m->attention_bias));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-6, &m->eps));
    DT_TRY(dt_config_activation(config, "hidden_activation", "gelu_pytorch_tanh", &m->activation));
    DT_TRY(dt_config_number_or(config, "final_logit_softcapping", 0.0, 1e-6, 1e9, &m->logit_cap));
    DT_TRY(dt_config_bool_or(config, "use_bidirectional_attention", false, &bidirectional));
    if (bidirectional)
        return dt_config_must_be(&both_ways, DT_ERR_UNSUPPORTED,
                                 "false: attention to later tokens, as in models that make "
                                 "embeddings, is not supported");
    m->info = *info;
    DT_TRY(read_ropes(m, config));
    info->max_positions = dti_rope_longest(&m->global, info->max_positions);
    m->info = *info;
    return read_blocks(m, config);
}
