/* SPDX-License-Identifier: Apache-2.0
 *
 * GPT-2, and GPT-BigCode (StarCoder): decoder_block.c with layer norms, learned positions, biases
 * everywhere, a feed-forward without a gate, and q | k | v in one weight. GPT-2's files hold
 * weights [in, out]; GPT-BigCode has one key-value head, or the three of each head together. */
#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

static const dti_names names = { .embed = "transformer.wte",
                                 .positions = "transformer.wpe",
                                 .norm = "transformer.ln_f",
                                 .blocks = "transformer.h",
                                 .norm1 = "ln_1",
                                 .attn = "attn",
                                 .qkv = "attn.c_attn",
                                 .o = "attn.c_proj",
                                 .norm2 = "ln_2",
                                 .up = "mlp.c_fc",
                                 .down = "mlp.c_proj" };

#define GPT2(kv, qkv, act)                                                             \
    {                                                                                  \
        .shared = { .vocab = 50257,                                                    \
                    .hidden = 768,                                                     \
                    .layers = 12,                                                      \
                    .heads = 12,                                                       \
                    .kv_heads = (kv),                                                  \
                    .positions = 1024,                                                 \
                    .tied = true,                                                      \
                    .bos = 50256,                                                      \
                    .eos = 50256,                                                      \
                    .plain_heads = true,                                               \
                    .layers_key = "n_layer",                                           \
                    .heads_key = "n_head",                                             \
                    .hidden_key = "n_embd",                                            \
                    .positions_key = "n_positions" },                                  \
        .ff_key = "n_inner", .qkv_key = (qkv), .padding = DTI_NO_PADDING, .eps = 1e-5, \
        .eps_key = "layer_norm_epsilon", .activation_key = "activation_function",      \
        .activation = (act), .learned = true                                           \
    }

static dt_status read_shared(dti_decoder *m, const dt_config *config,
                             const dti_decoder_defaults *defaults, dt_model_info *info)
{
    bool crossed, scaled;

    m->names = &names;
    DT_TRY(dti_decoder_read(m, config, defaults, info));
    m->norm_kind = &dt_layer_norm_kind;
    m->plain = m->qkv_bias = m->out_bias = m->mlp_bias = true;
    m->qkv = DTI_QKV_BLOCKS;
    DT_TRY(dt_config_bool(config, "add_cross_attention", false, &crossed));
    if (crossed)
        return dt_config_refuse(config, "add_cross_attention", DT_ERR_UNSUPPORTED,
                                "false: there is no encoder to attend to");
    DT_TRY(dt_config_bool(config, "scale_attn_weights", true, &scaled));
    for (int64_t i = 0; i < info->n_layers && !scaled; i++) m->blocks[i].attention.scale = 1.0f;
    return DT_OK;
}

static dt_status read_gpt2(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = GPT2(0, "3 * n_embd", "gelu_new");
    dti_decoder *m = self;
    bool by_layer;

    DT_TRY(read_shared(m, config, &defaults, info));
    m->reversed = true;
    DT_TRY(dt_config_bool(config, "scale_attn_by_inverse_layer_idx", false, &by_layer));
    for (int64_t i = 0; i < info->n_layers && by_layer; i++)
        m->blocks[i].attention.scale /= (float)(i + 1);
    return DT_OK;
}

static dt_status read_bigcode(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_decoder_defaults one = GPT2(1, "n_embd + 2 * head_dim", "gelu_pytorch_tanh"),
                                      each = GPT2(0, "3 * n_embd", "gelu_pytorch_tanh");
    dti_decoder *m = self;
    bool multi_query;

    DT_TRY(dt_config_bool(config, "multi_query", true, &multi_query));
    DT_TRY(read_shared(m, config, multi_query ? &one : &each, info));
    if (!multi_query) m->qkv = DTI_QKV_GROUPS;
    return DT_OK;
}

/* Causal masks that old files hold as buffers. */
static const char *const ignored[] = { ".attn.bias", ".attn.masked_bias", NULL };

/* Base models are stored without the prefix. */
static const dt_spelling spellings[] = { { "transformer.", "" }, { NULL, NULL } };

#define GPT2_FILES \
    .blocks = "transformer.h.*", .layers_key = "n_layer", .spellings = spellings, .ignored = ignored

const dt_arch dti_arch_gpt2 =
    DTI_DECODER_ARCH("gpt2", "GPT2LMHeadModel", "GPT2Block", read_gpt2, GPT2_FILES);
const dt_arch dti_arch_gpt_bigcode = DTI_DECODER_ARCH("gpt_bigcode", "GPTBigCodeForCausalLM",
                                                      "GPTBigCodeBlock", read_bigcode, GPT2_FILES);
