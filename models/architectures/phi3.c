/* SPDX-License-Identifier: Apache-2.0
 *
 * Phi-3: Llama's block (decoder_block.c) with queries, keys and values in one matrix and gate and
 * up in another. Each is cut block by block, so that a rank holds its heads of q, k and v and its
 * columns of gate and up; Transformers gathers both instead. */
#include "models/architectures/config_keys.h"
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
    dti_decoder *m = self;
    const dt_config quiet = dt_config_quietly(config);
    int64_t window;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_config_window(&quiet, 0, &window));
    m->packed = true;
    for (int64_t i = 0; i < info->n_layers; i++) {
        m->blocks[i].attention.window = window;
        DT_TRY(dti_config_say_window(config, i, window));
    }
    return DT_OK;
}

const dt_arch dti_arch_phi3 =
    DTI_DECODER_ARCH("phi3", "Phi3ForCausalLM", "Phi3DecoderLayer", read_config, NULL);
