/* SPDX-License-Identifier: Apache-2.0
 *
 * Phi-3: Llama's block with queries, keys and values in one matrix and gate and up in another. Each
 * is cut block by block, so that a rank holds its heads of q, k and v and its columns of gate and
 * up; Transformers gathers both instead. D model width, E head width, Q = heads * E, KV = kv heads
 * * E, F feed-forward width, V vocabulary; B sequences of T tokens. */
#include <stdio.h>

#include "models/architectures/builder.h"
#include "models/architectures/config_keys.h"
#include "models/architectures/rotary.h"

typedef struct phi3_block {
    dt_layer *norm1, *attn, *qkv, *o;
    dt_layer *norm2, *mlp, *gate_up, *down;
} phi3_block;

typedef struct phi3 {
    dt_model_info info;
    int64_t ff;
    const dt_activation *activation;
    float eps;
    dt_attention_options attention;
    dti_rope rope;

    dt_layer *embed, *norm, *head;
    phi3_block *blocks; /* [n_layers] */
} phi3;

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = { .vocab = 32064,
                                                 .hidden = 3072,
                                                 .layers = 32,
                                                 .heads = 32,
                                                 .positions = 4096,
                                                 .bos = 1,
                                                 .eos = 32000 };
    static const dti_rope_keys rotary = {
        .theta_key = "rope_theta", .theta = 10000.0, .partial = true, .original = 4096
    };
    phi3 *m = self;

    DT_TRY(dt_config_decoder(config, &defaults, info));
    DT_TRY(dt_config_int(config, "intermediate_size", 8192, 1, DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", 1e-5, &m->eps));
    DT_TRY(dt_config_activation(config, "hidden_act", "silu", &m->activation));
    DT_TRY(dti_rope_read(config, &rotary, info, &m->rope));
    m->attention = dt_config_attention(info);
    DT_TRY(dti_config_window(config, 0, &m->attention.window));
    return dti_alloc_array((size_t)info->n_layers, sizeof *m->blocks, (void **)&m->blocks);
}

/* What rows do not say: the blocks that outputs are made of. */
static void pack(dt_builder *builder, const dt_model_info *c, int64_t ff)
{
    const dt_axis q = { c->n_heads * c->head_dim, DT_UNIT_HEADS };
    const dt_axis kv = { c->n_kv_heads * c->head_dim, DT_UNIT_KV_HEADS };
    const dt_axis half = { ff, DT_UNIT_ROW };

    dt_builder_spec(builder, "self_attn.qkv_proj")->blocks[0] =
        (dt_axis_blocks){ 3, { q, kv, kv } };
    dt_builder_spec(builder, "mlp.gate_up_proj")->blocks[0] = (dt_axis_blocks){ 2, { half, half } };
}

static dt_status add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    phi3 *m = self;
    const int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent Q = { q, DT_UNIT_HEADS, "num_attention_heads * head_dim" };
    const dt_extent QKV = { q + 2 * kv, DT_UNIT_ROW,
                            "num_attention_heads * head_dim + 2 * num_key_value_heads * head_dim" };
    const dt_extent F = { m->ff, DT_UNIT_ROW, "intermediate_size" };
    const dt_extent FF = { 2 * m->ff, DT_UNIT_ROW, "2 * intermediate_size" };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" }, none = { 0 };
    const char *tied = c->tied ? "model.embed_tokens" : NULL;

    /* clang-format off */
#define M(field) offsetof(phi3, field)
#define B(field) offsetof(phi3_block, field)
    const dt_layer_row model[] = {
/*      field          name in the checkpoint       kind                 out   in    bias   style on "tp"        tied to */
        { M(embed),    "model.embed_tokens",        &dt_embedding_kind,  V,    D,    false, "embedding_rowwise", NULL },
        { M(norm),     "model.norm",                &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { M(head),     "lm_head",                   &dt_linear_kind,     V,    D,    false, "colwise",           tied },
    };
    const dt_layer_row block[] = {
        { B(norm1),    "input_layernorm",           &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { B(attn),     "self_attn",                 &dt_point_kind,      none, none, false, "replicate",         NULL },
        { B(qkv),      "self_attn.qkv_proj",        &dt_linear_kind,     QKV,  D,    false, "packed_colwise",    NULL },
        { B(o),        "self_attn.o_proj",          &dt_linear_kind,     D,    Q,    false, "rowwise",           NULL },
        { B(norm2),    "post_attention_layernorm",  &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { B(mlp),      "mlp",                       &dt_point_kind,      none, none, false, "replicate",         NULL },
        { B(gate_up),  "mlp.gate_up_proj",          &dt_linear_kind,     FF,   D,    false, "packed_colwise",    NULL },
        { B(down),     "mlp.down_proj",             &dt_linear_kind,     D,    F,    false, "rowwise",           NULL },
    };
#undef M
#undef B
    /* clang-format on */

    dt_builder_settings(
        builder,
        &(dt_row_settings){ .heads = { c->n_heads, c->n_kv_heads, c->head_dim }, .eps = m->eps });
    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    for (int64_t i = 0; i < c->n_layers; i++) {
        phi3_block *b = &m->blocks[i];
        char name[40];
        (void)snprintf(name, sizeof name, "model.layers.%lld", (long long)i);
        DT_TRY(dt_builder_add(builder, name, block, (int)DT_COUNT(block), b));
        pack(builder, c, m->ff);
    }
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    phi3 *m = self;

    m->info = *info;
    return dti_rope_prepare(&m->rope, mesh);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *attention(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const phi3 *m = at->self;
    const phi3_block *b = &m->blocks[at->i];
    dt_tensor *rope = at->in->tables[0];
    const int64_t e = m->info.head_dim, Q = m->info.n_heads * e, KV = m->info.n_kv_heads * e;

    dt_tensor *qkv = dt_layer_forward(t, b->qkv, n);
    dt_tensor *q = dt_heads(t, dt_slice(t, qkv, -1, 0, Q), e);
    dt_tensor *k = dt_heads(t, dt_slice(t, qkv, -1, Q, KV), e);
    dt_tensor *v = dt_heads(t, dt_slice(t, qkv, -1, Q + KV, KV), e);
    dt_tensor *a = dt_cached_attention(t, at->pass, at->i, dt_rope(t, q, rope), dt_rope(t, k, rope),
                                       v, &m->attention);
    return dt_layer_forward(t, b->o, a);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *feed_forward(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const phi3 *m = at->self;
    const phi3_block *b = &m->blocks[at->i];
    dt_tensor *both = dt_layer_forward(t, b->gate_up, n);
    dt_tensor *gate = dt_slice(t, both, -1, 0, m->ff), *up = dt_slice(t, both, -1, m->ff, m->ff);
    return dt_layer_forward(t, b->down, dt_activate_mul(t, m->activation, gate, up));
}

static dt_tensor *embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    return dt_layer_forward(t, ((const phi3 *)self)->embed, pass->ids);
}

static void tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **out)
{
    const phi3 *m = self;

    out[0] = dti_rope_table(t, &m->rope, pass, m->info.dtype);
}

static dt_tensor *block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in)
{
    const phi3 *m = self;
    const phi3_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *n = dt_layer_forward(t, b->norm1, in->x);
    dt_tensor *h = dt_add(t, in->x, dt_layer_block(t, b->attn, n, attention, &at));

    n = dt_layer_forward(t, b->norm2, h);
    return dt_add(t, h, dt_layer_block(t, b->mlp, n, feed_forward, &at));
}

static dt_tensor *head(const void *self, dt_tape *t, dt_tensor *x)
{
    const phi3 *m = self;

    return dt_layer_forward(t, m->head, dt_layer_forward(t, m->norm, x));
}

static int64_t turn(const void *self)
{
    return dti_rope_turn(&((const phi3 *)self)->rope);
}

static bool repeats(const void *self)
{
    return dti_rope_repeats(&((const phi3 *)self)->rope);
}

static void release(void *self)
{
    phi3 *m = self;

    dti_rope_release(&m->rope);
    dti_free(m->blocks);
}

/* Base models are stored without the prefix; frequencies that old files hold as buffers. */
static const dt_spelling spellings[] = { { "model.", "" }, { NULL, NULL } };
static const char *const ignored[] = { "rotary_emb.inv_freq", NULL };

const dt_arch dti_arch_phi3 = {
    .size = sizeof(dt_arch),
    .model_type = "phi3",
    .class_name = "Phi3ForCausalLM",
    .spellings = spellings,
    .ignored = ignored,
    .self_bytes = sizeof(phi3),
    .read_config = read_config,
    .add_layers = add_layers,
    .prepare = prepare,
    .embed = embed,
    .tables = tables,
    .block = block,
    .head = head,
    .release = release,
    .block_class = "Phi3DecoderLayer",
    .blocks = "model.layers.*",
    .turn = turn,
    .repeats = repeats,
};
