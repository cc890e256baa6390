/* SPDX-License-Identifier: Apache-2.0
 *
 * GPT-NeoX (Pythia): decoder_block.c with layer norms, a feed-forward without a gate, and query,
 * key and value of a head together in one weight. Attention and feed-forward are side by side, of a
 * norm each, unless use_parallel_residual is false; a part of each head rotates. */
#include "models/architectures/decoder_block.h"

static const dti_names names = { .embed = "gpt_neox.embed_in",
                                 .norm = "gpt_neox.final_layer_norm",
                                 .blocks = "gpt_neox.layers",
                                 .attn = "attention",
                                 .qkv = "attention.query_key_value",
                                 .o = "attention.dense",
                                 .up = "mlp.dense_h_to_4h",
                                 .down = "mlp.dense_4h_to_h" };

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = { .theta_key = "rotary_emb_base",
                                        .theta = 10000.0,
                                        .partial = true,
                                        .part_key = "rotary_pct",
                                        .part = 0.25 };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 50432,
                                                               .hidden = 6144,
                                                               .layers = 44,
                                                               .heads = 64,
                                                               .positions = 2048,
                                                               .bos = 0,
                                                               .eos = 2,
                                                               .plain_heads = true },
                                                   .ff = 24576,
                                                   .qkv_key = "3 * hidden_size",
                                                   .padding = DTI_NO_PADDING,
                                                   .eps = 1e-5,
                                                   .eps_key = "layer_norm_eps",
                                                   .activation = "gelu",
                                                   .rope = &rope };
    dti_decoder *m = self;

    m->names = &names;
    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->norm_kind = &dt_layer_norm_kind;
    m->qkv = DTI_QKV_GROUPS;
    m->plain = m->mlp_bias = true;
    DT_TRY(dt_config_bool(config, "attention_bias", true, &m->qkv_bias));
    m->out_bias = m->qkv_bias;
    return dt_config_bool(config, "use_parallel_residual", true, &m->parallel);
}

/* Masks and frequencies that old files hold as buffers. */
static const char *const ignored[] = { ".attention.bias", ".attention.masked_bias",
                                       "rotary_emb.inv_freq", NULL };

/* Base models are stored without the prefix; files have the head's first name. */
static const dt_spelling spellings[] = { { "gpt_neox.", "" },
                                         { "lm_head.", "embed_out." },
                                         { NULL, NULL } };

const dt_arch dti_arch_gpt_neox =
    DTI_DECODER_ARCH("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXLayer", read_config,
                     .blocks = "gpt_neox.layers.*", .spellings = spellings, .ignored = ignored);
