/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma and what followed, the text part: the block of decoder_block.c with norms whose weights are
 * 1 + what is stored, gated GELU and a scaled embedding that the head shares. From Gemma 2 on norms
 * stand around attention and feed-forward, local layers with a window between global ones, and
 * logits are capped; Gemma 2 caps scores, too. Gemma 3 norms queries and keys instead, and local
 * layers rotate by a base of their own: attn_logit_softcapping is there as in Gemma 2, but
 * Transformers does not use it either. */
#include <math.h>
#include <string.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

/* What all of them share. */
static dt_status read_gemma(dti_decoder *m, const dt_config *config,
                            const dti_decoder_defaults *defaults, dt_model_info *info)
{
    const dt_config both_ways = dt_config_member(config, "use_bidirectional_attention");
    bool bidirectional;

    DT_TRY(dti_decoder_read(m, config, defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    DT_TRY(dt_config_bool_or(config, "use_bidirectional_attention", false, &bidirectional));
    if (bidirectional)
        return dt_config_must_be(&both_ways, DT_ERR_UNSUPPORTED,
                                 "false: attention to later tokens, as in models that make "
                                 "embeddings, is not supported");
    m->norm_kind = &dt_rms_norm_1p_kind;
    m->embed_scale = sqrt((double)info->hidden_size);
    m->embed_scale_rounds = true;
    return DT_OK;
}

/* layer_types, or every pattern-th layer global; caps where keys are absent, 0 for none. */
static dt_status read_local(dti_decoder *m, const dt_config *config, int64_t pattern,
                            double score_cap, double logit_cap)
{
    static const dti_windows windows = { .fallback = 4096, .typed = true, .needed = true };
    const dt_config scores = dt_config_member(config, "attn_logit_softcapping"),
                    logits = dt_config_member(config, "final_logit_softcapping");
    double scalar;

    m->norms = DTI_NORMS_AROUND;
    DT_TRY(dt_config_number(config, "query_pre_attn_scalar", 256.0, 1e-6, 1e9, &scalar));
    if (dt_config_kind_of(&scores) == DT_CONFIG_NULL) score_cap = 0.0;
    if (dt_config_kind_of(&logits) == DT_CONFIG_NULL) logit_cap = 0.0;
    DT_TRY(dt_config_number_or(config, "final_logit_softcapping", logit_cap, 1e-6, 1e9,
                               &m->logit_cap));
    if (!m->head_norms)
        DT_TRY(dt_config_number_or(config, "attn_logit_softcapping", score_cap, 1e-6, 1e9,
                                   &score_cap));
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        dti_block *b = &m->blocks[i];
        b->slides = (i + 1) % pattern != 0;
        b->attention.scale = (float)(1.0 / sqrt(scalar));
        b->attention.soft_cap = (float)score_cap;
    }
    return dti_decoder_windows(m, config, &windows);
}

#define GEMMA(vocab_, hidden_, layers_, heads_, kv, positions_) \
    .shared = { .vocab = (vocab_),                              \
                .hidden = (hidden_),                            \
                .layers = (layers_),                            \
                .heads = (heads_),                              \
                .kv_heads = (kv),                               \
                .head_dim = 256,                                \
                .positions = (positions_),                      \
                .tied = true,                                   \
                .bos = 2,                                       \
                .eos = 1 },                                     \
    .padding = 0 + 1, .eps = 1e-6, .activation = "gelu_pytorch_tanh"

static dt_status read_1(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { GEMMA(256000, 3072, 28, 16, 16, 8192),
                                                   .ff = 24576 };
    dti_decoder *m = self;

    DT_TRY(read_gemma(m, config, &defaults, info));
    if (strcmp(m->activation->name, "gelu") == 0) /* the first files mean its other form */
        m->activation = dt_activation_find("gelu_pytorch_tanh");
    return DT_OK;
}

static dt_status read_2(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { GEMMA(256000, 2304, 26, 8, 4, 8192), .ff = 9216,
                                                   .activation_key = "hidden_activation" };

    DT_TRY(read_gemma(self, config, &defaults, info));
    return read_local(self, config, 2, 50.0, 30.0);
}

static dt_status read_3(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys global = { .theta_key = "rope_theta", .theta = 1e6 };
    static const dti_rope_keys local = { .theta_key = "rope_local_base_freq",
                                         .theta = 1e4,
                                         .of = "sliding_attention" };
    static const dti_decoder_defaults defaults = { GEMMA(262208, 2304, 26, 8, 4, 131072),
                                                   .ff = 9216,
                                                   .activation_key = "hidden_activation",
                                                   .rope = &global, .local_rope = &local };
    const dt_config quiet = dt_config_quietly(config);
    dti_decoder *m = self;
    int64_t pattern;

    DT_TRY(read_gemma(m, config, &defaults, info));
    m->head_norms = true;
    DT_TRY(
        dt_config_int_or(&quiet, "sliding_window_pattern", 6, 1, DTI_CONFIG_MAX_LAYERS, &pattern));
    DT_TRY(read_local(m, config, pattern, 0.0, 0.0));
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].rope = m->blocks[i].slides ? 1 : 0;
    return DT_OK;
}

const dt_arch dti_arch_gemma =
    DTI_DECODER_ARCH("gemma", "GemmaForCausalLM", "GemmaDecoderLayer", read_1, DTI_PLAIN);
const dt_arch dti_arch_gemma2 =
    DTI_DECODER_ARCH("gemma2", "Gemma2ForCausalLM", "Gemma2DecoderLayer", read_2, DTI_PLAIN);
const dt_arch dti_arch_gemma3_text =
    DTI_DECODER_ARCH("gemma3_text", "Gemma3ForCausalLM", "Gemma3DecoderLayer", read_3, DTI_WRAPPED,
                     .plans = dti_nemo_gemma3_text);
const dt_arch dti_arch_gemma3 =
    DTI_DECODER_ARCH("gemma3", "Gemma3ForConditionalGeneration", "Gemma3DecoderLayer", read_3,
                     DTI_WRAPPED, .text_config = "text_config", .plans = dti_nemo_gemma3);
