/* SPDX-License-Identifier: Apache-2.0
 *
 * StableLM: Llama's block (decoder_block.c) with layer norms; a part of each head rotates. With
 * use_parallel_residual attention and feed-forward are side by side, of one norm. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .part = 0.25
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 50304,
                                                               .hidden = 2560,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .kv_heads = 32,
                                                               .positions = 4096 },
                                                   .ff = 6912,
                                                   .eps = 1e-5,
                                                   .eps_key = "layer_norm_eps",
                                                   .rope = &rope };
    dti_decoder *m = self;
    bool head_norms;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->norm_kind = &dt_layer_norm_kind;
    DT_TRY(dt_config_bool(config, "use_qkv_bias", false, &m->qkv_bias));
    DT_TRY(dt_config_bool(config, "use_parallel_residual", false, &m->parallel));
    m->one_norm = m->parallel;
    DT_TRY(dt_config_bool(config, "qk_layernorm", false, &head_norms));
    if (head_norms)
        return dt_config_refuse(config, "qk_layernorm", DT_ERR_UNSUPPORTED,
                                "false: a norm for each head by itself is not supported");
    return DT_OK;
}

const dt_arch dti_arch_stablelm = DTI_DECODER_ARCH("stablelm", "StableLmForCausalLM",
                                                   "StableLmDecoderLayer", read_config, DTI_PLAIN);
