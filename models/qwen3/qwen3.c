/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3: Llama's block with a norm of every query and key head before the rotation.
 * D model width, Q = heads * head_dim, KV = kv heads * head_dim, E head_dim, F feed-forward width,
 * V vocabulary. */
#include <stdio.h>
#include <string.h>

#include "models/blocks/attention.h"
#include "models/blocks/rope.h"
#include "models/config.h"
#include "models/model.h"

typedef struct qwen3_block {
    dt_layer *norm1, *q, *k, *v, *q_norm, *k_norm, *o;
    dt_layer *norm2, *gate, *up, *down;
    char name[40]; /* "model.layers.3" */
} qwen3_block;

typedef struct qwen3 {
    dt_model_info info;
    dt_attention_options attention;
    dti_rope rope;
    int64_t ff;
    bool attention_bias;
    float eps;
    dt_layer *embed, *norm, *head;
    qwen3_block *blocks; /* [n_layers] */
    dt_tensor *inv_freq;
} qwen3;

/* Full attention in every layer; a config that asks for sliding windows is refused. */
static dt_status check_windows(const dti_json *config, const dt_model_info *info)
{
    const dti_json switched = dti_json_get(config, "use_sliding_window");
    int64_t first;
    dti_json types;
    bool windowed;

    DT_TRY(dti_config_bool(config, "use_sliding_window", false, &windowed));
    DT_TRY(dti_config_int(config, "max_window_layers", 28, 0, DTI_CONFIG_MAX_EXTENT, &first));
    DT_TRY(dti_json_array_or_none(config, "layer_types", &types));
    if (!dti_json_is_set(&types)) {
        if (windowed && first < info->n_layers)
            return dti_json_refuse(&switched, DT_ERR_UNSUPPORTED,
                                   "false: sliding windows of Qwen3 are not supported yet");
        return DT_OK;
    }
    if ((int64_t)dti_json_count(&types) != info->n_layers)
        return dti_json_refuse(&types, DT_ERR_FORMAT, "as long as num_hidden_layers, %lld",
                               (long long)info->n_layers);
    for (int64_t i = 0; i < info->n_layers; i++) {
        const dti_json type = dti_json_at(&types, (size_t)i);
        const char *name;
        DT_TRY(dti_json_as_string(&type, &name));
        if (strcmp(name, "full_attention") != 0)
            return dti_json_refuse(&type, DT_ERR_UNSUPPORTED,
                                   "\"full_attention\": nothing else is supported yet");
    }
    return DT_OK;
}

static dt_status read_config(void *self, const dti_json *config, dt_model_info *info)
{
    static const dti_decoder_defaults defaults = { .vocab = 151936,
                                                   .hidden = 4096,
                                                   .layers = 32,
                                                   .heads = 32,
                                                   .kv_heads = 32,
                                                   .head_dim = 128,
                                                   .positions = 32768 };
    qwen3 *m = self;

    DT_TRY(dti_config_decoder(config, &defaults, info));
    DT_TRY(dti_config_int(config, "intermediate_size", 22016, 1, DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dti_config_bool(config, "attention_bias", false, &m->attention_bias));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-6, &m->eps));
    DT_TRY(dti_config_word(config, "hidden_act", "silu", "silu"));
    DT_TRY(check_windows(config, info));
    DT_TRY(dti_rope_read(config, info, &m->rope));
    m->attention = dti_scaled_attention(info);
    m->info = *info;
    return DT_OK;
}

static dt_status add_layers(void *self, dti_builder *builder)
{
    qwen3 *m = self;
    const dt_axis D = { m->info.hidden_size, DT_UNIT_ROW }, F = { m->ff, DT_UNIT_ROW };
    const dt_axis Q = { m->info.n_heads * m->info.head_dim, DT_UNIT_HEADS };
    const dt_axis KV = { m->info.n_kv_heads * m->info.head_dim, DT_UNIT_KV_HEADS };
    const dt_axis E = { m->info.head_dim, DT_UNIT_ROW };
    const dt_axis V = { m->info.vocab_size, DT_UNIT_ROW }, none = { 0, DT_UNIT_ROW };
    const char *tied = m->info.tied ? "model.embed_tokens" : NULL;
    const bool bias = m->attention_bias;

    builder->eps = m->eps;
    builder->heads = (dt_head_counts){ m->info.n_heads, m->info.n_kv_heads, m->info.head_dim };
    DT_TRY(dti_alloc_array((size_t)m->info.n_layers, sizeof *m->blocks, (void **)&m->blocks));

    /* clang-format off */
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
#define M(field) offsetof(qwen3, field)
#define B(field) offsetof(qwen3_block, field)
    const dti_row model[] = {
/*      field        name in the checkpoint       kind                 out  in    bias   style on "tp"        tied to */
        { M(embed),  "model.embed_tokens",        DT_LAYER_EMBEDDING,  V,   D,    false, "embedding_rowwise", NULL },
        { M(norm),   "model.norm",                DT_LAYER_RMS_NORM,   D,   none, false, "replicate",         NULL },
        { M(head),   "lm_head",                   DT_LAYER_LINEAR,     V,   D,    false, "colwise",           tied },
    };
    const dti_row block[] = {
        { B(norm1),  "input_layernorm",           DT_LAYER_RMS_NORM,   D,   none, false, "replicate",         NULL },
        { B(q),      "self_attn.q_proj",          DT_LAYER_LINEAR,     Q,   D,    bias,  "colwise",           NULL },
        { B(k),      "self_attn.k_proj",          DT_LAYER_LINEAR,     KV,  D,    bias,  "colwise",           NULL },
        { B(v),      "self_attn.v_proj",          DT_LAYER_LINEAR,     KV,  D,    bias,  "colwise",           NULL },
        { B(q_norm), "self_attn.q_norm",          DT_LAYER_RMS_NORM,   E,   none, false, PER_HEAD,            NULL },
        { B(k_norm), "self_attn.k_norm",          DT_LAYER_RMS_NORM,   E,   none, false, PER_HEAD,            NULL },
        { B(o),      "self_attn.o_proj",          DT_LAYER_LINEAR,     D,   Q,    bias,  "rowwise",           NULL },
        { B(norm2),  "post_attention_layernorm",  DT_LAYER_RMS_NORM,   D,   none, false, "replicate",         NULL },
        { B(gate),   "mlp.gate_proj",             DT_LAYER_LINEAR,     F,   D,    false, "colwise",           NULL },
        { B(up),     "mlp.up_proj",               DT_LAYER_LINEAR,     F,   D,    false, "colwise",           NULL },
        { B(down),   "mlp.down_proj",             DT_LAYER_LINEAR,     D,   F,    false, "rowwise",           NULL },
    };
#undef M
#undef B
#undef PER_HEAD
    /* clang-format on */

    DT_TRY(dti_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        qwen3_block *b = &m->blocks[i];
        (void)snprintf(b->name, sizeof b->name, "model.layers.%lld", (long long)i);
        DT_TRY(dti_builder_add(builder, b->name, block, (int)DT_COUNT(block), b));
    }
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    qwen3 *m = self;

    m->info = *info;
    return dti_rope_tensor(&m->rope, m->info.head_dim, mesh, &m->inv_freq);
}

/* x [B, T, D] -> [B, T, D] */
static dt_tensor *block_forward(const qwen3 *m, const qwen3_block *b, dt_tape *t,
                                const dti_pass *pass, dti_kv *kv, dt_tensor *rope, dt_tensor *x)
{
    const int64_t e = m->info.head_dim;

    dt_scope_begin(t, b->name);
    dt_tensor *n = dt_layer_forward(t, b->norm1, x);
    dt_tensor *q = dt_layer_forward(t, b->q_norm, dt_heads(t, dt_layer_forward(t, b->q, n), e));
    dt_tensor *k = dt_layer_forward(t, b->k_norm, dt_heads(t, dt_layer_forward(t, b->k, n), e));
    dt_tensor *v = dt_heads(t, dt_layer_forward(t, b->v, n), e);
    dt_tensor *a = dti_cached_attention(t, dt_rope(t, q, rope), dt_rope(t, k, rope), v, kv,
                                        pass->positions, &m->attention);
    dt_tensor *h = dt_add(t, x, dt_layer_forward(t, b->o, a));

    n = dt_layer_forward(t, b->norm2, h);
    dt_tensor *gate = dt_layer_forward(t, b->gate, n);
    dt_tensor *up = dt_layer_forward(t, b->up, n);
    return dt_scope_end(t, dt_add(t, h, dt_layer_forward(t, b->down, dt_silu_mul(t, gate, up))));
}

static dt_tensor *forward(const void *self, dt_tape *t, const dti_pass *pass)
{
    const qwen3 *m = self;
    dt_tensor *x = dt_layer_forward(t, m->embed, pass->ids);
    dt_tensor *rope = dt_rope_table(t, pass->positions, m->inv_freq, 1.0f, m->info.dtype);

    for (int64_t i = 0; i < m->info.n_layers; i++)
        x = block_forward(m, &m->blocks[i], t, pass, &pass->kv[i], rope, x);
    x = dt_layer_forward(t, m->norm, dti_wanted_rows(t, x, pass->rows));
    return dt_layer_forward(t, m->head, x);
}

static void release(void *self)
{
    qwen3 *m = self;

    dt_tensor_release(&m->inv_freq);
    dti_free(m->blocks);
}

static const char *const ignored[] = { "rotary_emb.inv_freq", NULL };

const dti_arch dti_arch_qwen3 = {
    .model_type = "qwen3",
    .self_bytes = sizeof(qwen3),
    .prefix = "model.",
    .ignored = ignored,
    .read_config = read_config,
    .add_layers = add_layers,
    .prepare = prepare,
    .forward = forward,
    .release = release,
};
