/* SPDX-License-Identifier: Apache-2.0
 *
 * Phi-3: Llama's block (decoder_block.c) with queries, keys and values in one matrix and gate and
 * up in another. Each is cut block by block, so that a rank holds its heads of q, k and v and its
 * columns of gate and up; Transformers gathers both instead. */
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rotary = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .original = 4096
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 32064,
                                                               .hidden = 3072,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .positions = 4096,
                                                               .bos = 1,
                                                               .eos = 32000 },
                                                   .ff = 8192,
                                                   .padding = 32000 + 1,
                                                   .eps = 1e-5,
                                                   .rope = &rotary };
    static const dti_windows windows = { .fallback = 0 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->qkv = DTI_QKV_BLOCKS;
    m->gate_up = true;
    return dti_decoder_windows(m, config, &windows);
}

const dt_arch dti_arch_phi3 =
    DTI_DECODER_ARCH("phi3", "Phi3ForCausalLM", "Phi3DecoderLayer", read_config, DTI_PLAIN);
