/* SPDX-License-Identifier: Apache-2.0
 *
 * GPT-J: decoder_block.c with attention and a feed-forward without a gate side by side, of one
 * layer norm; biases of the feed-forward and of the head; rotary_dim columns of a head rotate, each
 * with its neighbour. */
#include "models/architectures/decoder_block.h"

static const dti_names names = { .embed = "transformer.wte",
                                 .norm = "transformer.ln_f",
                                 .blocks = "transformer.h",
                                 .norm1 = "ln_1",
                                 .attn = "attn",
                                 .q = "attn.q_proj",
                                 .k = "attn.k_proj",
                                 .v = "attn.v_proj",
                                 .o = "attn.out_proj",
                                 .up = "mlp.fc_in",
                                 .down = "mlp.fc_out" };

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dti_rope_keys rope = {
        .theta_key = "rope_theta", .theta = 10000.0, .columns_key = "rotary_dim", .columns = 64
    };
    static const dti_decoder_defaults defaults = { .shared = { .vocab = 50400,
                                                               .hidden = 4096,
                                                               .layers = 28,
                                                               .heads = 16,
                                                               .positions = 2048,
                                                               .bos = 50256,
                                                               .eos = 50256,
                                                               .plain_heads = true,
                                                               .layers_key = "n_layer",
                                                               .heads_key = "n_head",
                                                               .hidden_key = "n_embd",
                                                               .positions_key = "n_positions" },
                                                   .ff_key = "n_inner",
                                                   .padding = DTI_NO_PADDING,
                                                   .eps = 1e-5,
                                                   .eps_key = "layer_norm_epsilon",
                                                   .activation_key = "activation_function",
                                                   .activation = "gelu_new",
                                                   .rope = &rope };
    dti_decoder *m = self;

    m->names = &names;
    DT_TRY(dti_decoder_read(m, config, &defaults, info));
    m->norm_kind = &dt_layer_norm_kind;
    m->turning = DTI_TURNS_PAIRS;
    m->parallel = m->one_norm = m->plain = m->mlp_bias = m->head_bias = true;
    return DT_OK;
}

/* Causal masks that old files hold as buffers. */
static const char *const ignored[] = { ".attn.bias", ".attn.masked_bias", NULL };

/* Base models are stored without the prefix. */
static const dt_spelling spellings[] = { { "transformer.", "" }, { NULL, NULL } };

const dt_arch dti_arch_gptj = DTI_DECODER_ARCH("gptj", "GPTJForCausalLM", "GPTJBlock", read_config,
                                               .blocks = "transformer.h.*", .layers_key = "n_layer",
                                               .spellings = spellings, .ignored = ignored);
