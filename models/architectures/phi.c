/* SPDX-License-Identifier: Apache-2.0
 *
 * Phi (1, 1.5, 2): decoder_block.c with attention and a feed-forward without a gate side by side,
 * of one layer norm; biases everywhere, also of the head; a part of each head rotates. */
#include "models/architectures/decoder_block.h"

static const dti_names names = { .norm = "model.final_layernorm",
                                 .o = "self_attn.dense",
                                 .q_norm = "self_attn.q_layernorm",
                                 .k_norm = "self_attn.k_layernorm",
                                 .up = "mlp.fc1",
                                 .down = "mlp.fc2" };

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .part = 0.5
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 51200,
                                                               .hidden = 2048,
                                                               .layers = 24,
                                                               .heads = 32,
                                                               .positions = 2048,
                                                               .bos = 1,
                                                               .eos = 2 },
                                                   .ff = 8192,
                                                   .eps = 1e-5,
                                                   .eps_key = "layer_norm_eps",
                                                   .activation = "gelu_new",
                                                   .rope = &rope };
    dti_decoder *m = self;

    m->names = &names;
    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->norm_kind = &dt_layer_norm_kind;
    m->parallel = m->one_norm = m->plain = true;
    m->qkv_bias = m->out_bias = m->mlp_bias = m->head_bias = true;
    return dt_config_bool(config, "qk_layernorm", false, &m->head_norms);
}

const dt_arch dti_arch_phi =
    DTI_DECODER_ARCH("phi", "PhiForCausalLM", "PhiDecoderLayer", read_config, DTI_PLAIN);
