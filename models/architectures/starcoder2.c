/* SPDX-License-Identifier: Apache-2.0
 *
 * StarCoder2: Llama's block (decoder_block.c) with layer norms, biases and a feed-forward without a
 * gate; one window for all layers. */
#include "models/architectures/decoder_block.h"

static const dti_names names = { .up = "mlp.c_fc", .down = "mlp.c_proj" };

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_windows all = { .fallback = 0 };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 49152,
                                                               .hidden = 3072,
                                                               .layers = 30,
                                                               .heads = 24,
                                                               .kv_heads = 2,
                                                               .positions = 4096,
                                                               .tied = true,
                                                               .bos = 50256,
                                                               .eos = 50256 },
                                                   .ff = 12288,
                                                   .eps = 1e-5,
                                                   .eps_key = "norm_epsilon",
                                                   .activation = "gelu_pytorch_tanh" };
    dti_decoder *m = self;

    m->names = &names;
    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->norm_kind = &dt_layer_norm_kind;
    m->plain = true;
    DT_TRY(dt_config_bool(config, "use_bias", true, &m->qkv_bias));
    m->out_bias = m->mlp_bias = m->qkv_bias;
    return dti_decoder_windows(m, config, &all);
}

const dt_arch dti_arch_starcoder2 = DTI_DECODER_ARCH(
    "starcoder2", "Starcoder2ForCausalLM", "Starcoder2DecoderLayer", read_config, DTI_PLAIN);
