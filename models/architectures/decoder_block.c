/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of Llama and its kin: the table of its layers, then what they compute.
 * D model width, E head width, Q = heads * E, KV = kv heads * E, F feed-forward width, V
 * vocabulary; B sequences of T tokens. */
#include "models/architectures/decoder_block.h"

#include <dtensor/half.h>
#include <stdio.h>

#include "models/architectures/config_keys.h"

static dt_status read_ropes(dti_decoder *m, const dt_config *config,
                            const dti_decoder_defaults *defaults)
{
    m->n_ropes = defaults->local_rope != NULL ? 2 : 1;
    if (m->n_ropes == 1) return dti_rope_read(config, defaults->rope, &m->info, &m->rope[0]);
    return dti_rope_read_kinds(config, defaults->rope, defaults->local_rope, &m->info, m->rope);
}

dt_status dti_decoder_read(dti_decoder *m, const dt_config *config,
                           const dti_decoder_defaults *defaults, dt_model_info *info)
{
    const char *key = defaults->activation_key, *activation = defaults->activation;
    const int64_t most = DTI_CONFIG_MAX_EXTENT;

    DT_TRY(dt_config_decoder(config, &defaults->shared, info));
    DT_TRY(dt_config_int(config, "intermediate_size", defaults->ff, 1, most, &m->ff));
    DT_TRY(dti_config_padding(config, defaults->padding, info->vocab_size, &m->padding));
    DT_TRY(dti_config_eps(config, "rms_norm_eps", defaults->eps, &m->eps));
    DT_TRY(dt_config_activation(config, key != NULL ? key : "hidden_act",
                                activation != NULL ? activation : "silu", &m->activation));
    m->info = *info;
    DT_TRY(read_ropes(m, config, defaults));
    info->max_positions = dti_rope_longest(&m->rope[0], info->max_positions);
    m->info = *info;
    DT_TRY(dti_alloc_array((size_t)info->n_layers, sizeof *m->blocks, (void **)&m->blocks));
    for (int64_t i = 0; i < info->n_layers; i++)
        m->blocks[i] = (dti_block){ .slides = true, .attention = dt_config_attention(info) };
    return DT_OK;
}

dt_status dti_decoder_read_biases(dti_decoder *m, const dt_config *config)
{
    DT_TRY(dt_config_bool(config, "attention_bias", false, &m->qkv_bias));
    m->out_bias = m->qkv_bias;
    return DT_OK;
}

/* A block that slides where there is no window: what says so is refused. */
static dt_status no_window(const dt_config *config, const dt_config *types, int64_t i,
                           const dti_windows *rule)
{
    const dt_config type = dt_config_item(types, (size_t)i);
    const dt_config window = dt_config_member(config, "sliding_window");

    if (rule->needed)
        return dt_config_must_be(&window, DT_ERR_FORMAT, "a number: layer %lld is local",
                                 (long long)i);
    if (!dt_config_is_set(types)) return DT_OK;
    return dt_config_must_be(&type, DT_ERR_FORMAT,
                             "\"full_attention\": there is no window without %sa sliding_window",
                             rule->asked ? "use_sliding_window true and " : "");
}

dt_status dti_decoder_windows(dti_decoder *m, const dt_config *config, const dti_windows *rule)
{
    const dt_config quiet = dt_config_quietly(config);
    bool windowed = true;
    dt_config types;
    int64_t window;

    if (rule->asked) DT_TRY(dt_config_bool(&quiet, "use_sliding_window", false, &windowed));
    DT_TRY(dti_config_window(&quiet, rule->fallback, &window));
    if (rule->typed) DT_TRY(dti_config_layer_types(&quiet, m->info.n_layers, &types));
    if (!windowed) window = 0;
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        dti_block *b = &m->blocks[i];
        if (rule->typed) {
            DT_TRY(dti_config_slides(&types, i, &b->slides));
            if (b->slides && window == 0) DT_TRY(no_window(config, &types, i, rule));
        }
        b->attention.window = b->slides ? window : 0;
        DT_TRY(dti_config_say_window(config, i, b->attention.window));
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

/* Layers of block i: rows of those that the architecture has. Norms have the names that their
 * places give them. */
static dt_status add_block(dti_decoder *m, const dt_model_info *c, dt_builder *builder, int64_t i)
{
    dti_block *b = &m->blocks[i];
    const dt_layer_kind *norm = m->norm_kind != NULL ? m->norm_kind : &dt_rms_norm_kind;
    const int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent E = { c->head_dim, DT_UNIT_ROW, "head_dim" };
    const dt_extent F = { m->ff, DT_UNIT_ROW, "intermediate_size" };
    const dt_extent FF = { 2 * m->ff, DT_UNIT_ROW, "2 * intermediate_size" };
    const dt_extent Q = { q, DT_UNIT_HEADS, "num_attention_heads * head_dim" };
    const dt_extent KV = { kv, DT_UNIT_KV_HEADS, "num_key_value_heads * head_dim" };
    const dt_extent QKV = { q + 2 * kv, DT_UNIT_ROW,
                            "num_attention_heads * head_dim + 2 * num_key_value_heads * head_dim" };
    const bool qb = m->qkv_bias, ob = m->out_bias, mb = m->mlp_bias;
    const bool before = m->norms != DTI_NORMS_BEHIND, behind = m->norms != DTI_NORMS_BEFORE;
    const bool packed = m->packed, dense = !b->sparse, normed = m->head_norms;
    const char *mlp_norm = behind ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    char name[40];

    /* clang-format off */
#define B(field) DTI_BLOCK(field)
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
    const struct { bool there; dt_layer_row row; } rows[] = {
/*      there               field         name in the checkpoint        kind              out   in    bias   style on "tp"     tied to */
        { before,           { B(norm1),     "input_layernorm",            norm,             D,    none, false, "replicate",      NULL } },
        { true,             { B(attn),      "self_attn",                  &dt_point_kind,   none, none, false, "replicate",      NULL } },
        { !packed,          { B(q),         "self_attn.q_proj",           &dt_linear_kind,  Q,    D,    qb,    "colwise",        NULL } },
        { !packed,          { B(k),         "self_attn.k_proj",           &dt_linear_kind,  KV,   D,    qb,    "colwise",        NULL } },
        { !packed,          { B(v),         "self_attn.v_proj",           &dt_linear_kind,  KV,   D,    qb,    "colwise",        NULL } },
        { packed,           { B(qkv),       "self_attn.qkv_proj",         &dt_linear_kind,  QKV,  D,    qb,    "packed_colwise", NULL } },
        { true,             { B(o),         "self_attn.o_proj",           &dt_linear_kind,  D,    Q,    ob,    "rowwise",        NULL } },
        { behind,           { B(out_norm1), "post_attention_layernorm",   norm,             D,    none, false, "replicate",      NULL } },
        { before,           { B(norm2),     mlp_norm,                     norm,             D,    none, false, "replicate",      NULL } },
        { true,             { B(mlp),       "mlp",                        &dt_point_kind,   none, none, false, "replicate",      NULL } },
        { dense && !packed, { B(gate),      "mlp.gate_proj",              &dt_linear_kind,  F,    D,    mb,    "colwise",        NULL } },
        { dense && !packed, { B(up),        "mlp.up_proj",                &dt_linear_kind,  F,    D,    mb,    "colwise",        NULL } },
        { dense && packed,  { B(gate_up),   "mlp.gate_up_proj",           &dt_linear_kind,  FF,   D,    mb,    "packed_colwise", NULL } },
        { dense,            { B(down),      "mlp.down_proj",              &dt_linear_kind,  D,    F,    mb,    "rowwise",        NULL } },
        { behind,           { B(out_norm2), "post_feedforward_layernorm", norm,             D,    none, false, "replicate",      NULL } },
        { normed,           { B(q_norm),    "self_attn.q_norm",           norm,             E,    none, false, PER_HEAD,         NULL } },
        { normed,           { B(k_norm),    "self_attn.k_norm",           norm,             E,    none, false, PER_HEAD,         NULL } },
    };
#undef PER_HEAD
    /* clang-format on */

    (void)snprintf(name, sizeof name, "model.layers.%lld", (long long)i);
    for (size_t k = 0; k < DT_COUNT(rows); k++) {
        if (rows[k].there) DT_TRY(dt_builder_add(builder, name, &rows[k].row, 1, b));
        if (rows[k].row.field == B(mlp) && b->sparse)
            DT_TRY(dti_moe_add_layers(m, name, builder, b));
    }
#undef B
    if (packed) pack(builder, c, m->ff);
    return DT_OK;
}

dt_status dti_decoder_add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    dti_decoder *m = self;
    const dt_layer_kind *norm = m->norm_kind != NULL ? m->norm_kind : &dt_rms_norm_kind;
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" };
    const char *tied = c->tied ? "model.embed_tokens" : NULL;
    const dt_row_settings shared = { { c->n_heads, c->n_kv_heads, c->head_dim }, m->eps };

    /* clang-format off */
#define M(field) offsetof(dti_decoder, field)
    const dt_layer_row model[] = {
/*      field         name in the checkpoint       kind                 out   in    bias   style on "tp"        tied to */
        { M(embed),   "model.embed_tokens",        &dt_embedding_kind,  V,    D,    false, "embedding_rowwise", NULL },
        { M(norm),    "model.norm",                norm,                D,    none, false, "replicate",         NULL },
        { M(head),    "lm_head",                   &dt_linear_kind,     V,    D,    false, "colwise",           tied },
    };
#undef M
    /* clang-format on */

    dt_builder_settings(builder, &shared);
    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    dt_builder_spec(builder, "model.embed_tokens")->padding = m->padding;
    for (int64_t i = 0; i < c->n_layers; i++) DT_TRY(add_block(m, c, builder, i));
    return DT_OK;
}

dt_status dti_decoder_prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    dti_decoder *m = self;

    m->info = *info;
    for (int i = 0; i < m->n_ropes; i++) DT_TRY(dti_rope_prepare(&m->rope[i], mesh));
    return DT_OK;
}

/* x normed, each head by itself where it has heads; as it is where there is no such norm. */
static dt_tensor *normed(dt_tape *t, const dt_layer *norm, dt_tensor *x)
{
    return norm != NULL ? dt_layer_forward(t, norm, x) : x;
}

static dt_tensor *scaled(dt_tape *t, dt_tensor *x, double scale)
{
    return scale != 0.0 && scale != 1.0 ? dt_mul_scalar(t, x, scale) : x;
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
    dt_tensor *rope = b->rope != DTI_NO_ROPE ? at->in->tables[b->rope] : NULL;

    dt_tensor *qkv = m->packed ? dt_layer_forward(t, b->qkv, n) : NULL;
    dt_tensor *q = normed(t, b->q_norm, dt_heads(t, part(t, b->q, n, qkv, 0, Q), e));
    dt_tensor *k = normed(t, b->k_norm, dt_heads(t, part(t, b->k, n, qkv, Q, KV), e));
    dt_tensor *v = dt_heads(t, part(t, b->v, n, qkv, Q + KV, KV), e);
    dt_tensor *a;

    if (b->rope != DTI_NO_ROPE) {
        q = dt_rope(t, q, rope);
        k = dt_rope(t, k, rope);
    }
    a = dt_cached_attention(t, at->pass, at->i, q, k, v, &b->attention);
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

/* A factor as the dtype holds it: of 1152 columns 33.94, in bf16 34. */
static double rounded(double value, dt_dtype dtype)
{
    const float f = (float)value;

    if (dtype == DT_BF16) return (double)dt_bf16_to_f32(dt_f32_to_bf16(f));
    if (dtype == DT_F16) return (double)dt_f16_to_f32(dt_f32_to_f16(f));
    return (double)f;
}

dt_tensor *dti_decoder_embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    const dti_decoder *m = self;
    const double scale =
        m->embed_scale_rounds ? rounded(m->embed_scale, m->info.dtype) : m->embed_scale;

    return scaled(t, dt_layer_forward(t, m->embed, pass->ids), scale);
}

void dti_decoder_tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **tables)
{
    const dti_decoder *m = self;

    for (int i = 0; i < m->n_ropes; i++)
        tables[i] = dti_rope_table(t, &m->rope[i], pass, m->info.dtype);
}

dt_tensor *dti_decoder_block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                             const dt_flow *in)
{
    const dti_decoder *m = self;
    const dti_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *y = dt_layer_block(t, b->attn, normed(t, b->norm1, in->x), attention, &at);
    dt_tensor *h = dt_add(t, in->x, scaled(t, normed(t, b->out_norm1, y), m->residual_scale));

    y = dt_layer_block(t, b->mlp, normed(t, b->norm2, h), feed_forward, &at);
    return dt_add(t, h, scaled(t, normed(t, b->out_norm2, y), m->residual_scale));
}

dt_tensor *dti_decoder_head(const void *self, dt_tape *t, dt_tensor *x)
{
    const dti_decoder *m = self;

    x = dt_layer_forward(t, m->head, dt_layer_forward(t, m->norm, x));
    x = scaled(t, x, m->logit_scale);
    return m->logit_cap > 0.0 ? dt_soft_cap(t, x, m->logit_cap) : x;
}

int64_t dti_decoder_turn(const void *self)
{
    return dti_rope_turn(&((const dti_decoder *)self)->rope[0]);
}

bool dti_decoder_repeats(const void *self)
{
    return dti_rope_repeats(&((const dti_decoder *)self)->rope[0]);
}

void dti_decoder_release(void *self)
{
    dti_decoder *m = self;

    for (int i = 0; i < m->n_ropes; i++) dti_rope_release(&m->rope[i]);
    dti_free(m->blocks);
}

/* Rotations are made by every rank; norms of heads are layers of some of this family. */
const char *const dti_decoder_unlaid[] = { "model.rotary_emb", "model.rotary_emb_local",
                                           "model.layers.*.self_attn.q_norm",
                                           "model.layers.*.self_attn.k_norm", NULL };

/* Frequencies that old files hold as buffers; and what turns images into tokens. */
const char *const dti_decoder_ignored[] = { "rotary_emb.inv_freq", NULL };
const char *const dti_wrapped_ignored[] = { "rotary_emb.inv_freq",          "vision_tower.",
                                            "multi_modal_projector.",       "model.vision_tower.",
                                            "model.multi_modal_projector.", NULL };

/* Base models are stored without the prefix; names of multimodal checkpoints are as before and
 * after Transformers 4.52. */
const dt_spelling dti_decoder_spellings[] = { { "model.", "" }, { NULL, NULL } };
const dt_spelling dti_wrapped_spellings[] = { { "model.", "" },
                                              { "model.", "language_model.model." },
                                              { "model.", "model.language_model." },
                                              { "model.", "language_model." },
                                              { "lm_head.", "language_model.lm_head." },
                                              { "lm_head.", "model.lm_head." },
                                              { NULL, NULL } };
