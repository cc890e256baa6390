/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtral: Mistral's block with a mixture of experts in each layer, whose names in files are its
 * own. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rope_theta", .theta = 1e6 };
    static const dti_windows all = { .fallback = 0 };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 32000,
                                                               .hidden = 4096,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .kv_heads = 8,
                                                               .positions = 131072,
                                                               .bos = 1,
                                                               .eos = 2 },
                                                   .ff = 14336,
                                                   .eps = 1e-5,
                                                   .rope = &rope };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_moe_read(&m->moe, config, "num_local_experts", 8, 2));
    m->moe.ff = m->ff;
    m->moe.ff_key = "intermediate_size";
    m->moe.both_key = "2 * intermediate_size";
    m->moe.normalise = true;
    m->moe.parts[0] = "w1";
    m->moe.parts[1] = "w3";
    m->moe.parts[2] = "w2";
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].sparse = true;
    return dti_decoder_windows(m, config, &all);
}

static const dt_spelling spellings[] = { { "model.", "" },
                                         { ".mlp.", ".block_sparse_moe." },
                                         { NULL, NULL } };

const dt_arch dti_arch_mixtral =
    DTI_DECODER_ARCH("mixtral", "MixtralForCausalLM", "MixtralDecoderLayer", read_config,
                     DTI_LAYERS, .spellings = spellings);
