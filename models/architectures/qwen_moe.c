/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen2-MoE, Qwen3-MoE and Qwen3-Next: Qwen's block, most of them with a mixture of experts
 * (moe_block.c) in place of the dense feed-forward; of Qwen2's and of Qwen3-Next's beside one
 * expert that every token passes. Qwen3-Next has linear attention (delta_net.c) in most blocks, and
 * gates in the others. */
#include <string.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

/* "num_experts", which Transformers 5 writes as "num_local_experts". */
static dt_status read_experts(const dt_config *config, dti_moe *moe, int64_t n, int64_t n_chosen,
                              int64_t ff, bool normalise)
{
    const dt_config old = dt_config_member(config, "num_experts");
    const char *key = dt_config_is_set(&old) ? "num_experts" : "num_local_experts";
    const int64_t max = DTI_CONFIG_MAX_EXTENT;

    DT_TRY(dti_moe_read(moe, config, key, n, n_chosen));
    DT_TRY(dt_config_say(&old, "%lld", (long long)moe->n_experts));
    moe->ff_key = "moe_intermediate_size";
    moe->both_key = "2 * moe_intermediate_size";
    DT_TRY(dt_config_int(config, moe->ff_key, ff, 1, max / 2, &moe->ff));
    DT_TRY(dt_config_bool(config, "norm_topk_prob", normalise, &moe->normalise));
    return DT_OK;
}

/* Every decoder_sparse_step-th block has experts, but those of mlp_only_layers have not. */
static dt_status read_sparse(const dt_config *config, dti_decoder *m)
{
    const int64_t n = m->info.n_layers;
    dt_config dense;
    int64_t step, layer;

    DT_TRY(dt_config_int(config, "decoder_sparse_step", 1, 1, DTI_CONFIG_MAX_EXTENT, &step));
    for (int64_t i = 0; i < n; i++) m->blocks[i].sparse = (i + 1) % step == 0;
    DT_TRY(dt_config_array(config, "mlp_only_layers", &dense));
    for (size_t i = 0; i < dt_config_count(&dense); i++) {
        const dt_config one = dt_config_item(&dense, i);
        DT_TRY(dt_config_as_int(&one, 0, n - 1, &layer));
        m->blocks[layer].sparse = false;
    }
    return DT_OK;
}

static dt_status read_qwen3(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151936,
                                                               .hidden = 2048,
                                                               .layers = 24,
                                                               .heads = 32,
                                                               .kv_heads = 4,
                                                               .positions = 32768 },
                                                   .ff = 6144,
                                                   .eps = 1e-6 };
    static const dti_windows windows = { .fallback = 4096, .asked = true };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    m->head_norms = true;
    DT_TRY(read_experts(config, &m->moe, 128, 8, 768, false));
    DT_TRY(read_sparse(config, m));
    return dti_decoder_windows(m, config, &windows);
}

/* Windows, where they are used: of every second of the first max_window_layers. */
static dt_status read_qwen2(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151936,
                                                               .hidden = 2048,
                                                               .layers = 24,
                                                               .heads = 16,
                                                               .kv_heads = 16,
                                                               .positions = 32768 },
                                                   .ff = 5632,
                                                   .eps = 1e-6 };
    static const dti_windows windows = { .fallback = 4096, .asked = true, .typed = true };
    const dt_config quiet = dt_config_quietly(config);
    dti_decoder *m = self;
    bool used;
    int64_t most;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dt_config_bool(config, "qkv_bias", true, &m->qkv_bias));
    DT_TRY(read_experts(config, &m->moe, 60, 4, 1408, false));
    DT_TRY(dt_config_int(config, "shared_expert_intermediate_size", 5632, 1, DTI_CONFIG_MAX_EXTENT,
                         &m->moe.shared));
    DT_TRY(read_sparse(config, m));
    DT_TRY(dt_config_bool(&quiet, "use_sliding_window", false, &used));
    DT_TRY(dt_config_int(&quiet, "max_window_layers", 28, 0, DTI_CONFIG_MAX_EXTENT, &most));
    for (int64_t i = 0; i < info->n_layers; i++) {
        m->blocks[i].slides = used && i < most && i % 2 == 0;
        if (!used) DT_TRY(dti_config_say_window(config, i, 0)); /* whatever sliding_window is */
    }
    return used ? dti_decoder_windows(m, config, &windows) : DT_OK;
}

/* "layer_types", or full attention in every full_attention_interval-th block. */
static dt_status read_kinds(const dt_config *config, dti_decoder *m)
{
    const dt_config quiet = dt_config_quietly(config);
    dt_config types;
    int64_t every;

    DT_TRY(dti_config_layer_types(&quiet, m->info.n_layers, &types));
    DT_TRY(dt_config_int(&quiet, "full_attention_interval", 4, 1, DTI_CONFIG_MAX_EXTENT, &every));
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        const dt_config type = dt_config_item(&types, (size_t)i);
        const char *word = (i + 1) % every != 0 ? "linear_attention" : "full_attention";
        if (dt_config_is_set(&types)) DT_TRY(dt_config_as_string(&type, &word));
        m->blocks[i].linear = strcmp(word, "linear_attention") == 0;
        if (!m->blocks[i].linear && strcmp(word, "full_attention") != 0)
            return dt_config_must_be(&type, DT_ERR_UNSUPPORTED,
                                     "\"full_attention\" or \"linear_attention\"");
        DT_TRY(dt_config_say(&type, "%s", word));
    }
    return DT_OK;
}

static dt_status read_next(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .part = 0.25
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151936,
                                                               .hidden = 2048,
                                                               .layers = 48,
                                                               .heads = 16,
                                                               .kv_heads = 2,
                                                               .head_dim = 256,
                                                               .positions = 32768 },
                                                   .ff = 5632,
                                                   .eps = 1e-6,
                                                   .rope = &rope };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    m->norm_kind = &dt_rms_norm_1p_kind;
    m->head_norms = m->gated = true;
    DT_TRY(read_experts(config, &m->moe, 512, 10, 512, true));
    DT_TRY(dt_config_int(config, "shared_expert_intermediate_size", 512, 1, DTI_CONFIG_MAX_EXTENT,
                         &m->moe.shared));
    DT_TRY(read_sparse(config, m));
    DT_TRY(dti_delta_read(m, config));
    DT_TRY(read_kinds(config, m));
    for (int64_t i = 0; i < info->n_layers; i++)
        if (!m->blocks[i].linear) info->cached += 2 * info->n_kv_heads * info->head_dim;
    return DT_OK;
}

const dt_arch dti_arch_qwen2_moe = DTI_DECODER_ARCH("qwen2_moe", "Qwen2MoeForCausalLM",
                                                    "Qwen2MoeDecoderLayer", read_qwen2, DTI_PLAIN);
const dt_arch dti_arch_qwen3_moe = DTI_DECODER_ARCH("qwen3_moe", "Qwen3MoeForCausalLM",
                                                    "Qwen3MoeDecoderLayer", read_qwen3, DTI_PLAIN);

/* What guesses tokens ahead is passed over. */
static const char *const ignored[] = { "rotary_emb.inv_freq", "mtp.", NULL };

const dt_arch dti_arch_qwen3_next = DTI_DECODER_ARCH(
    "qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextDecoderLayer", read_next,
    .blocks = "model.layers.*", .ignored = ignored, .spellings = dti_decoder_spellings);
