/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of Llama and its kin: the table of its layers, then what they compute.
 * D model width, E head width, Q = heads * E, KV = kv heads * E, F feed-forward width, V
 * vocabulary; B sequences of T tokens. */
#include "models/architectures/decoder_block.h"

#include <stdio.h>

#include "models/architectures/config_keys.h"

dt_status dti_decoder_read(dti_decoder *m, const dt_config *config,
                           const dti_decoder_defaults *defaults, dt_model_info *info)
{
    const int64_t most = DTI_CONFIG_MAX_EXTENT;

    DT_TRY(dt_config_decoder(config, &defaults->shared, info));
    DT_TRY(dt_config_int(config, "intermediate_size", defaults->ff, 1, most, &m->ff));
    DT_TRY(dti_config_padding(config, defaults->padding, info->vocab_size, &m->padding));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", defaults->eps, &m->eps));
    DT_TRY(dt_config_activation(config, "hidden_act", "silu", &m->activation));
    DT_TRY(dti_rope_read(config, defaults->rope, info, &m->rope));
    info->max_positions = dti_rope_longest(&m->rope, info->max_positions);
    m->info = *info;
    DT_TRY(dti_alloc_array((size_t)info->n_layers, sizeof *m->blocks, (void **)&m->blocks));
    for (int64_t i = 0; i < info->n_layers; i++) m->blocks[i].attention = dt_config_attention(info);
    return DT_OK;
}

dt_status dti_decoder_read_biases(dti_decoder *m, const dt_config *config)
{
    DT_TRY(dt_config_bool(config, "attention_bias", false, &m->qkv_bias));
    m->out_bias = m->qkv_bias;
    return DT_OK;
}

dt_status dti_decoder_read_windows(dti_decoder *m, const dt_config *config)
{
    int64_t window, first;
    const dt_config quiet = dt_config_quietly(config);
    dt_config types;
    bool windowed;

    DT_TRY(dt_config_bool(&quiet, "use_sliding_window", false, &windowed));
    DT_TRY(dti_config_window(&quiet, 4096, &window));
    DT_TRY(dt_config_int(&quiet, "max_window_layers", 28, 0, DTI_CONFIG_MAX_EXTENT, &first));
    DT_TRY(dti_config_layer_types(&quiet, m->info.n_layers, &types));
    if (!windowed) window = 0;
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        const dt_config type = dt_config_item(&types, (size_t)i);
        bool slides = window > 0 && i >= first;
        DT_TRY(dti_config_slides(&types, i, &slides));
        if (slides && window == 0)
            return dt_config_must_be(&type, DT_ERR_FORMAT,
                                     "\"full_attention\": there is no window without "
                                     "use_sliding_window true and a sliding_window");
        m->blocks[i].attention.window = slides ? window : 0;
        DT_TRY(dti_config_say_window(config, i, m->blocks[i].attention.window));
    }
    return DT_OK;
}

/* What rows of packed layers do not say: the blocks that their outputs are made of. */
static void pack(dt_builder *builder, const dt_model_info *c, int64_t ff)
{
    const dt_axis q = { c->n_heads * c->head_dim, DT_UNIT_HEADS };
    const dt_axis kv = { c->n_kv_heads * c->head_dim, DT_UNIT_KV_HEADS };
    const dt_axis half = { ff, DT_UNIT_ROW };

    dt_builder_spec(builder, "self_attn.qkv_proj")->blocks[0] =
        (dt_axis_blocks){ 3, { q, kv, kv } };
    dt_builder_spec(builder, "mlp.gate_up_proj")->blocks[0] = (dt_axis_blocks){ 2, { half, half } };
}

dt_status dti_decoder_add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    dti_decoder *m = self;
    const int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent E = { c->head_dim, DT_UNIT_ROW, "head_dim" };
    const dt_extent F = { m->ff, DT_UNIT_ROW, "intermediate_size" };
    const dt_extent FF = { 2 * m->ff, DT_UNIT_ROW, "2 * intermediate_size" };
    const dt_extent Q = { q, DT_UNIT_HEADS, "num_attention_heads * head_dim" };
    const dt_extent KV = { kv, DT_UNIT_KV_HEADS, "num_key_value_heads * head_dim" };
    const dt_extent QKV = { q + 2 * kv, DT_UNIT_ROW,
                            "num_attention_heads * head_dim + 2 * num_key_value_heads * head_dim" };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" }, none = { 0 };
    const char *tied = c->tied ? "model.embed_tokens" : NULL;
    const dt_row_settings shared = { { c->n_heads, c->n_kv_heads, c->head_dim }, m->eps };
    const bool qb = m->qkv_bias, ob = m->out_bias, mb = m->mlp_bias;

    /* clang-format off */
#define M(field) offsetof(dti_decoder, field)
#define B(field) DTI_BLOCK(field)
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
    const dt_layer_row model[] = {
/*      field         name in the checkpoint       kind                 out   in    bias   style on "tp"        tied to */
        { M(embed),   "model.embed_tokens",        &dt_embedding_kind,  V,    D,    false, "embedding_rowwise", NULL },
        { M(norm),    "model.norm",                &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { M(head),    "lm_head",                   &dt_linear_kind,     V,    D,    false, "colwise",           tied },
    };
    const dt_layer_row before[] = {
        { B(norm1),   "input_layernorm",           &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { B(attn),    "self_attn",                 &dt_point_kind,      none, none, false, "replicate",         NULL },
    };
    const dt_layer_row q_k_v[] = {
        { B(q),       "self_attn.q_proj",          &dt_linear_kind,     Q,    D,    qb,    "colwise",           NULL },
        { B(k),       "self_attn.k_proj",          &dt_linear_kind,     KV,   D,    qb,    "colwise",           NULL },
        { B(v),       "self_attn.v_proj",          &dt_linear_kind,     KV,   D,    qb,    "colwise",           NULL },
    };
    const dt_layer_row qkv[] = {
        { B(qkv),     "self_attn.qkv_proj",        &dt_linear_kind,     QKV,  D,    qb,    "packed_colwise",    NULL },
    };
    const dt_layer_row between[] = {
        { B(o),       "self_attn.o_proj",          &dt_linear_kind,     D,    Q,    ob,    "rowwise",           NULL },
        { B(norm2),   "post_attention_layernorm",  &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { B(mlp),     "mlp",                       &dt_point_kind,      none, none, false, "replicate",         NULL },
    };
    const dt_layer_row gate_and_up[] = {
        { B(gate),    "mlp.gate_proj",             &dt_linear_kind,     F,    D,    mb,    "colwise",           NULL },
        { B(up),      "mlp.up_proj",               &dt_linear_kind,     F,    D,    mb,    "colwise",           NULL },
    };
    const dt_layer_row gate_up[] = {
        { B(gate_up), "mlp.gate_up_proj",          &dt_linear_kind,     FF,   D,    mb,    "packed_colwise",    NULL },
    };
    const dt_layer_row down[] = {
        { B(down),    "mlp.down_proj",             &dt_linear_kind,     D,    F,    mb,    "rowwise",           NULL },
    };
    const dt_layer_row head_norms[] = {
        { B(q_norm),  "self_attn.q_norm",          &dt_rms_norm_kind,   E,    none, false, PER_HEAD,            NULL },
        { B(k_norm),  "self_attn.k_norm",          &dt_rms_norm_kind,   E,    none, false, PER_HEAD,            NULL },
    };
#undef M
#undef B
#undef PER_HEAD
#define ADD(rows) dt_builder_add(builder, name, rows, (int)DT_COUNT(rows), b)
    /* clang-format on */

    dt_builder_settings(builder, &shared);
    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    dt_builder_spec(builder, "model.embed_tokens")->padding = m->padding;
    for (int64_t i = 0; i < c->n_layers; i++) {
        dti_block *b = &m->blocks[i];
        char name[40];
        (void)snprintf(name, sizeof name, "model.layers.%lld", (long long)i);
        DT_TRY(ADD(before));
        DT_TRY(m->packed ? ADD(qkv) : ADD(q_k_v));
        DT_TRY(ADD(between));
        if (b->sparse) DT_TRY(dti_moe_add_layers(m, name, builder, b));
        if (!b->sparse) DT_TRY(m->packed ? ADD(gate_up) : ADD(gate_and_up));
        if (!b->sparse) DT_TRY(ADD(down));
        if (m->head_norms) DT_TRY(ADD(head_norms));
        if (m->packed) pack(builder, c, m->ff);
    }
#undef ADD
    return DT_OK;
}

dt_status dti_decoder_prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    dti_decoder *m = self;

    m->info = *info;
    return dti_rope_prepare(&m->rope, mesh);
}

/* x [B, T, H, E], each head normed by itself; x as it is where the block has no such norm. */
static dt_tensor *norm_heads(dt_tape *t, const dt_layer *norm, dt_tensor *x)
{
    return norm != NULL ? dt_layer_forward(t, norm, x) : x;
}

/* What `layer` makes of n; where it is packed with others, `size` columns of what they all made. */
static dt_tensor *part(dt_tape *t, const dt_layer *layer, dt_tensor *n, dt_tensor *packed,
                       int64_t begin, int64_t size)
{
    return layer != NULL ? dt_layer_forward(t, layer, n) : dt_slice(t, packed, -1, begin, size);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *attention(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const dti_decoder *m = at->self;
    const dti_block *b = &m->blocks[at->i];
    const int64_t e = m->info.head_dim, Q = m->info.n_heads * e, KV = m->info.n_kv_heads * e;
    dt_tensor *rope = at->in->tables[0];

    dt_tensor *qkv = m->packed ? dt_layer_forward(t, b->qkv, n) : NULL;
    dt_tensor *q = norm_heads(t, b->q_norm, dt_heads(t, part(t, b->q, n, qkv, 0, Q), e));
    dt_tensor *k = norm_heads(t, b->k_norm, dt_heads(t, part(t, b->k, n, qkv, Q, KV), e));
    dt_tensor *v = dt_heads(t, part(t, b->v, n, qkv, Q + KV, KV), e);
    dt_tensor *a = dt_cached_attention(t, at->pass, at->i, dt_rope(t, q, rope), dt_rope(t, k, rope),
                                       v, &b->attention);
    return dt_layer_forward(t, b->o, a);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *gated(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n)
{
    dt_tensor *both = m->packed ? dt_layer_forward(t, b->gate_up, n) : NULL;
    dt_tensor *gate = part(t, b->gate, n, both, 0, m->ff);
    dt_tensor *up = part(t, b->up, n, both, m->ff, m->ff);

    return dt_layer_forward(t, b->down, dt_activate_mul(t, m->activation, gate, up));
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *feed_forward(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const dti_decoder *m = at->self;
    const dti_block *b = &m->blocks[at->i];

    return b->sparse ? dti_moe_forward(m, b, t, n) : gated(m, b, t, n);
}

dt_tensor *dti_decoder_embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    return dt_layer_forward(t, ((const dti_decoder *)self)->embed, pass->ids);
}

void dti_decoder_tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **tables)
{
    const dti_decoder *m = self;

    tables[0] = dti_rope_table(t, &m->rope, pass, m->info.dtype);
}

dt_tensor *dti_decoder_block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                             const dt_flow *in)
{
    const dti_decoder *m = self;
    const dti_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *n = dt_layer_forward(t, b->norm1, in->x);
    dt_tensor *h = dt_add(t, in->x, dt_layer_block(t, b->attn, n, attention, &at));

    n = dt_layer_forward(t, b->norm2, h);
    return dt_add(t, h, dt_layer_block(t, b->mlp, n, feed_forward, &at));
}

dt_tensor *dti_decoder_head(const void *self, dt_tape *t, dt_tensor *x)
{
    const dti_decoder *m = self;

    return dt_layer_forward(t, m->head, dt_layer_forward(t, m->norm, x));
}

int64_t dti_decoder_turn(const void *self)
{
    return dti_rope_turn(&((const dti_decoder *)self)->rope);
}

bool dti_decoder_repeats(const void *self)
{
    return dti_rope_repeats(&((const dti_decoder *)self)->rope);
}

void dti_decoder_release(void *self)
{
    dti_decoder *m = self;

    dti_rope_release(&m->rope);
    dti_free(m->blocks);
}

/* Rotations are made by every rank; norms of heads are layers of some of this family. */
const char *const dti_decoder_unlaid[] = { "model.rotary_emb", "model.layers.*.self_attn.q_norm",
                                           "model.layers.*.self_attn.k_norm", NULL };

/* Frequencies that old files hold as buffers. */
const char *const dti_decoder_ignored[] = { "rotary_emb.inv_freq", NULL };

/* Base models are stored without the prefix. */
const dt_spelling dti_decoder_spellings[] = { { "model.", "" }, { NULL, NULL } };
