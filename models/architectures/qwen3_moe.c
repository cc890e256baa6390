/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3-MoE: Qwen3's block, most of them with a mixture of experts (moe_block.c) in place
 * of the dense feed-forward. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

/* "num_experts", which Transformers 5 writes as "num_local_experts". */
static dt_status read_experts(const dt_config *config, dti_moe *moe)
{
    const dt_config old = dt_config_member(config, "num_experts");
    const char *key = dt_config_is_set(&old) ? "num_experts" : "num_local_experts";
    const dt_config quiet = dt_config_quietly(config);
    const int64_t max = DTI_CONFIG_MAX_EXTENT;

    DT_TRY(dt_config_int(&quiet, key, 128, 1, 65536, &moe->n_experts));
    DT_TRY(dt_config_say(&old, "%lld", (long long)moe->n_experts));
    DT_TRY(dt_config_int(config, "num_experts_per_tok", 8, 1, 65536, &moe->n_chosen));
    if (moe->n_chosen > moe->n_experts) {
        const dt_config chosen = dt_config_member(config, "num_experts_per_tok");
        return dt_config_must_be(&chosen, DT_ERR_FORMAT, "at most %s, %lld", key,
                                 (long long)moe->n_experts);
    }
    DT_TRY(dt_config_int(config, "moe_intermediate_size", 768, 1, max / 2, &moe->ff));
    DT_TRY(dt_config_bool(config, "norm_topk_prob", false, &moe->normalise));
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

/* A window, if there is one, holds for every layer. */
static dt_status read_window(const dt_config *config, dti_decoder *m)
{
    const dt_config quiet = dt_config_quietly(config);
    int64_t window;
    bool windowed;

    DT_TRY(dt_config_bool(&quiet, "use_sliding_window", false, &windowed));
    DT_TRY(dti_config_window(&quiet, 4096, &window));
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        m->blocks[i].attention.window = windowed ? window : 0;
        DT_TRY(dti_config_say_window(config, i, m->blocks[i].attention.window));
    }
    return DT_OK;
}

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 151936,
                                                               .hidden = 2048,
                                                               .layers = 24,
                                                               .heads = 32,
                                                               .kv_heads = 4,
                                                               .positions = 32768 },
                                                   .ff = 6144,
                                                   .eps = 1e-6 };
    dti_decoder *m = self;

    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    DT_TRY(dti_decoder_read_biases(m, config));
    m->head_norms = true;
    DT_TRY(dti_config_word(config, "hidden_act", "silu", "silu")); /* the experts' own */
    DT_TRY(read_experts(config, &m->moe));
    DT_TRY(read_sparse(config, m));
    return read_window(config, m);
}

const dt_arch dti_arch_qwen3_moe =
    DTI_DECODER_ARCH("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeDecoderLayer", read_config, NULL);
