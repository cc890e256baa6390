/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama: the table of its layers, then what it computes.
 * D model width, Q = heads * head_dim, KV = kv heads * head_dim, F feed-forward width, V
 * vocabulary. */
#include "models/llama/llama.h"

#include <stdio.h>

#include "models/blocks/attention.h"
#include "models/config.h"

static dt_status read_config(void *self, const dti_json *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = {
        .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .positions = 2048
    };
    llama *m = self;
    llama_config *c = &m->config;

    DT_TRY(dti_config_decoder(config, &defaults, info));
    c->hidden = info->hidden_size;
    DT_TRY(dti_config_int(config, "intermediate_size", 11008, 1, DTI_CONFIG_MAX_EXTENT, &c->ff));
    DT_TRY(dti_config_bool(config, "attention_bias", false, &c->attention_bias));
    DT_TRY(dti_config_bool(config, "mlp_bias", false, &c->mlp_bias));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-6, &c->eps));
    DT_TRY(dti_config_word(config, "hidden_act", "silu", "silu"));
    DT_TRY(dti_rope_read(config, info, &c->rope));
    m->attention = dti_scaled_attention(info);
    m->info = *info;
    return DT_OK;
}

static dt_status add_layers(void *self, dti_builder *builder)
{
    llama *m = self;
    const llama_config *c = &m->config;
    const dt_axis D = { c->hidden, DT_UNIT_ROW }, F = { c->ff, DT_UNIT_ROW };
    const dt_axis Q = { m->info.n_heads * m->info.head_dim, DT_UNIT_HEADS };
    const dt_axis KV = { m->info.n_kv_heads * m->info.head_dim, DT_UNIT_KV_HEADS };
    const dt_axis V = { m->info.vocab_size, DT_UNIT_ROW }, none = { 0, DT_UNIT_ROW };
    const char *tied = m->info.tied ? "model.embed_tokens" : NULL;

    builder->eps = c->eps;
    builder->heads = (dt_head_counts){ m->info.n_heads, m->info.n_kv_heads, m->info.head_dim };
    DT_TRY(dti_alloc_array((size_t)m->info.n_layers, sizeof *m->blocks, (void **)&m->blocks));

    /* clang-format off */
#define M(field) offsetof(llama, field)
#define B(field) offsetof(llama_block, field)
    const dti_row model[] = {
/*      field        name in the checkpoint       kind                 out  in    bias               style on "tp"        tied to */
        { M(embed),  "model.embed_tokens",        DT_LAYER_EMBEDDING,  V,   D,    false,             "embedding_rowwise", NULL },
        { M(norm),   "model.norm",                DT_LAYER_RMS_NORM,   D,   none, false,             "replicate",         NULL },
        { M(head),   "lm_head",                   DT_LAYER_LINEAR,     V,   D,    false,             "colwise",           tied },
    };
    const dti_row block[] = {
        { B(norm1),  "input_layernorm",           DT_LAYER_RMS_NORM,   D,   none, false,             "replicate",         NULL },
        { B(q),      "self_attn.q_proj",          DT_LAYER_LINEAR,     Q,   D,    c->attention_bias, "colwise",           NULL },
        { B(k),      "self_attn.k_proj",          DT_LAYER_LINEAR,     KV,  D,    c->attention_bias, "colwise",           NULL },
        { B(v),      "self_attn.v_proj",          DT_LAYER_LINEAR,     KV,  D,    c->attention_bias, "colwise",           NULL },
        { B(o),      "self_attn.o_proj",          DT_LAYER_LINEAR,     D,   Q,    c->attention_bias, "rowwise",           NULL },
        { B(norm2),  "post_attention_layernorm",  DT_LAYER_RMS_NORM,   D,   none, false,             "replicate",         NULL },
        { B(gate),   "mlp.gate_proj",             DT_LAYER_LINEAR,     F,   D,    c->mlp_bias,       "colwise",           NULL },
        { B(up),     "mlp.up_proj",               DT_LAYER_LINEAR,     F,   D,    c->mlp_bias,       "colwise",           NULL },
        { B(down),   "mlp.down_proj",             DT_LAYER_LINEAR,     D,   F,    c->mlp_bias,       "rowwise",           NULL },
    };
#undef M
#undef B
    /* clang-format on */

    DT_TRY(dti_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        llama_block *b = &m->blocks[i];
        (void)snprintf(b->name, sizeof b->name, "model.layers.%lld", (long long)i);
        DT_TRY(dti_builder_add(builder, b->name, block, (int)DT_COUNT(block), b));
    }
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    llama *m = self;

    m->info = *info;
    return dti_rope_tensor(&m->config.rope, m->info.head_dim, mesh, &m->inv_freq);
}

/* x [B, T, D] -> [B, T, D] */
static dt_tensor *block_forward(const llama *m, const llama_block *b, dt_tape *t,
                                const dti_pass *pass, dti_kv *kv, dt_tensor *rope, dt_tensor *x)
{
    const int64_t e = m->info.head_dim;

    dt_scope_begin(t, b->name);
    dt_tensor *n = dt_layer_forward(t, b->norm1, x);
    dt_tensor *q = dt_rope(t, dt_heads(t, dt_layer_forward(t, b->q, n), e), rope);
    dt_tensor *k = dt_rope(t, dt_heads(t, dt_layer_forward(t, b->k, n), e), rope);
    dt_tensor *v = dt_heads(t, dt_layer_forward(t, b->v, n), e);
    dt_tensor *a = dti_cached_attention(t, q, k, v, kv, pass->positions, &m->attention);
    dt_tensor *h = dt_add(t, x, dt_layer_forward(t, b->o, a));

    n = dt_layer_forward(t, b->norm2, h);
    dt_tensor *gate = dt_layer_forward(t, b->gate, n);
    dt_tensor *up = dt_layer_forward(t, b->up, n);
    return dt_scope_end(t, dt_add(t, h, dt_layer_forward(t, b->down, dt_silu_mul(t, gate, up))));
}

static dt_tensor *forward(const void *self, dt_tape *t, const dti_pass *pass)
{
    const llama *m = self;
    dt_tensor *x = dt_layer_forward(t, m->embed, pass->ids);
    dt_tensor *rope = dt_rope_table(t, pass->positions, m->inv_freq, 1.0f, m->info.dtype);

    for (int64_t i = 0; i < m->info.n_layers; i++)
        x = block_forward(m, &m->blocks[i], t, pass, &pass->kv[i], rope, x);
    x = dt_layer_forward(t, m->norm, dti_wanted_rows(t, x, pass->rows));
    return dt_layer_forward(t, m->head, x);
}

static void release(void *self)
{
    llama *m = self;

    dt_tensor_release(&m->inv_freq);
    dti_free(m->blocks);
}

static const char *const ignored[] = { "rotary_emb.inv_freq", NULL };

const dti_arch dti_arch_llama = {
    .model_type = "llama",
    .self_bytes = sizeof(llama),
    .prefix = "model.",
    .ignored = ignored,
    .read_config = read_config,
    .add_layers = add_layers,
    .prepare = prepare,
    .forward = forward,
    .release = release,
};
