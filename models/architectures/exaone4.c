/* SPDX-License-Identifier: Apache-2.0
 *
 * EXAONE 4: Llama's block (decoder_block.c) with norms behind attention and feed-forward and none
 * before, norms of query and key heads, and, where there are windows, full layers without
 * positions. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_windows windows = { .fallback = 4096, .typed = true };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 102400,
                                                               .hidden = 4096,
                                                               .layers = 32,
                                                               .heads = 32,
                                                               .kv_heads = 32,
                                                               .positions = 2048,
                                                               .eos = 2 },
                                                   .ff = 16384,
                                                   .eps = 1e-5 };
    const dt_config quiet = dt_config_quietly(config),
                    types = dt_config_member(config, "layer_types");
    dti_decoder *m = self;
    int64_t window, every = 4;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->norms = DTI_NORMS_BEHIND;
    m->head_norms = true;
    DT_TRY(dti_config_window(&quiet, windows.fallback, &window));
    if (!dt_config_is_set(&types)) /* beside them some files spell it "LLLG" */
        DT_TRY(
            dt_config_int(&quiet, "sliding_window_pattern", 4, 1, DTI_CONFIG_MAX_LAYERS, &every));
    for (int64_t i = 0; i < info->n_layers; i++)
        m->blocks[i].slides = window > 0 && (i + 1) % every != 0;
    DT_TRY(dti_decoder_windows(m, config, &windows));
    for (int64_t i = 0; i < info->n_layers; i++)
        m->blocks[i].rope = window == 0 || m->blocks[i].slides ? 0 : DTI_NO_ROPE;
    return DT_OK;
}

const dt_arch dti_arch_exaone4 = DTI_DECODER_ARCH("exaone4", "Exaone4ForCausalLM",
                                                  "Exaone4DecoderLayer", read_config, DTI_PLAIN);
