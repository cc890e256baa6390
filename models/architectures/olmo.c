/* SPDX-License-Identifier: Apache-2.0
 *
 * OLMo 2 and 3: Llama's block (decoder_block.c) with norms behind attention and feed-forward and
 * none before, which round once; queries and keys are normed over all of a token's heads together,
 * and halves rotate in f32. OLMo 3 has windows in three of four layers, which may rotate otherwise
 * than full ones. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

#define OLMO                       \
    .shared = { .vocab = 50304,    \
                .hidden = 4096,    \
                .layers = 32,      \
                .heads = 32,       \
                .positions = 2048, \
                .eos = 50279 },    \
    .ff = 11008, .padding = 1 + 1, .eps = 1e-5

static dt_status read_shared(dti_decoder *m, const dt_config *config,
                             const dti_decoder_defaults *defaults, dt_model_info *info)
{
    DT_TRY(dti_decoder_read(m, config, defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    m->norm_kind = &dt_rms_norm_once_kind;
    m->norms = DTI_NORMS_BEHIND;
    m->head_norms = m->row_norms = true;
    m->turning = DTI_TURNS_WIDE | DTI_TURNS_BY_F32;
    return DT_OK;
}

static dt_status read_2(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { OLMO };

    return read_shared(self, config, &defaults, info);
}

static dt_status read_3(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys full = { .theta_key = "rope_theta", .theta = 5e5 };
    static const dti_rope_keys sliding = { .theta_key = "rope_theta",
                                           .theta = 5e5,
                                           .of = "sliding_attention" };
    static const dti_decoder_defaults defaults = { OLMO, .rope = &full, .local_rope = &sliding };
    static const dti_windows windows = { .fallback = 4096, .typed = true, .needed = true };
    dti_decoder *m = self;

    DT_TRY(read_shared(m, config, &defaults, info));
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].slides = (i + 1) % 4 != 0;
    DT_TRY(dti_decoder_windows(m, config, &windows));
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].rope = m->blocks[i].slides ? 1 : 0;
    return DT_OK;
}

const dt_arch dti_arch_olmo2 =
    DTI_DECODER_ARCH("olmo2", "Olmo2ForCausalLM", "Olmo2DecoderLayer", read_2, DTI_PLAIN);
const dt_arch dti_arch_olmo3 =
    DTI_DECODER_ARCH("olmo3", "Olmo3ForCausalLM", "Olmo3DecoderLayer", read_3, DTI_PLAIN);
