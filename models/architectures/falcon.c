/* SPDX-License-Identifier: Apache-2.0
 *
 * Falcon: decoder_block.c with layer norms, a feed-forward without a gate, and queries, keys and
 * values in one weight. The new decoder (40B, 180B, 11B) has groups of query heads with their
 * key-value head, and attention and feed-forward side by side, of a norm each or of one; the first
 * one (7B) one key-value head or as many as heads, side by side of one norm or one after the
 * other. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

#define NAMES(...)                                                            \
    {                                                                         \
        .embed = "transformer.word_embeddings", .norm = "transformer.ln_f",   \
        .blocks = "transformer.h", .attn = "self_attention",                  \
        .qkv = "self_attention.query_key_value", .o = "self_attention.dense", \
        .up = "mlp.dense_h_to_4h", .down = "mlp.dense_4h_to_h", __VA_ARGS__   \
    }

#define FALCON(plain, kv, qkv)                                                                 \
    {                                                                                          \
        .shared = { .vocab = 65024,                                                            \
                    .hidden = 4544,                                                            \
                    .layers = 32,                                                              \
                    .heads = 71,                                                               \
                    .kv_heads = (kv),                                                          \
                    .positions = 2048,                                                         \
                    .tied = true,                                                              \
                    .bos = 11,                                                                 \
                    .eos = 11,                                                                 \
                    .plain_heads = (plain),                                                    \
                    .kv_heads_key = "num_kv_heads" },                                          \
        .ff_key = "ffn_hidden_size", .qkv_key = (qkv), .padding = DTI_NO_PADDING, .eps = 1e-5, \
        .eps_key = "layer_norm_epsilon", .activation_key = "activation", .activation = "gelu"  \
    }

/* How many norms branches side by side have: null is two in the new decoder. */
static dt_status read_norms(dti_decoder *m, const dt_config *config, bool is_new)
{
    static const dti_names first = NAMES(.norm1 = NULL),
                           apart = NAMES(.norm1 = "ln_attn", .norm2 = "ln_mlp");
    int64_t n;

    DT_TRY(dt_config_bool_or(config, "parallel_attn", true, &m->parallel));
    if (is_new && !m->parallel)
        return dt_config_refuse(config, "parallel_attn", DT_ERR_UNSUPPORTED,
                                "true with new_decoder_architecture");
    DT_TRY(dt_config_int_or(config, "num_ln_in_parallel_attn", is_new ? 2 : 1, 1, 2, &n));
    if (!is_new && n == 2)
        return dt_config_refuse(config, "num_ln_in_parallel_attn", DT_ERR_UNSUPPORTED,
                                "1 without new_decoder_architecture");
    m->one_norm = m->parallel && n == 1;
    m->names = is_new && n == 2 ? &apart : &first;
    return DT_OK;
}

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults groups = FALCON(
                                          false, 0,
                                          "(num_attention_heads + 2 * num_kv_heads) * head_dim"),
                                      one = FALCON(true, 1, "hidden_size + 2 * head_dim"),
                                      each = FALCON(true, 0, "3 * hidden_size");
    dti_decoder *m = self;
    bool is_new, multi_query, alibi, bias;

    DT_TRY(dt_config_bool_or(config, "alibi", false, &alibi));
    if (alibi)
        return dt_config_refuse(config, "alibi", DT_ERR_UNSUPPORTED,
                                "false: biases of scores by distance (falcon-rw) are not computed");
    DT_TRY(dt_config_bool_or(config, "new_decoder_architecture", false, &is_new));
    DT_TRY(dt_config_bool_or(config, "multi_query", true, &multi_query));
    DT_TRY(read_norms(m, config, is_new));
    DT_TRY(dti_decoder_read(m, config, is_new ? &groups : multi_query ? &one : &each, info));
    m->norm_kind = &dt_layer_norm_kind;
    m->qkv = multi_query && !is_new ? DTI_QKV_BLOCKS : DTI_QKV_GROUPS;
    m->plain = true;
    DT_TRY(dt_config_bool_or(config, "bias", false, &bias));
    m->qkv_bias = m->out_bias = m->mlp_bias = bias;
    return DT_OK;
}

static const char *const ignored[] = { "rotary_emb.inv_freq", NULL };

/* Base models are stored without the prefix. */
static const dt_spelling spellings[] = { { "transformer.", "" }, { NULL, NULL } };

const dt_arch dti_arch_falcon =
    DTI_DECODER_ARCH("falcon", "FalconForCausalLM", "FalconDecoderLayer", read_config,
                     .blocks = "transformer.h.*", .spellings = spellings, .ignored = ignored);
