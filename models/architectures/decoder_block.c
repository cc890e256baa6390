/* SPDX-License-Identifier: Apache-2.0
 *
 * The decoder of Llama, of GPT-2 and of their kin: the table of its layers, then what they compute.
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

static const char *or_else(const char *own, const char *common)
{
    return own != NULL ? own : common;
}

static dt_status read_width(dti_decoder *m, const dt_config *config, int64_t hidden)
{
    const char *key = or_else(m->from->ff_key, "intermediate_size");
    const int64_t most = DTI_CONFIG_MAX_EXTENT;

    if (m->from->ff > 0) return dt_config_int(config, key, m->from->ff, 1, most, &m->ff);
    return dt_config_int_or(config, key, 4 * hidden, 1, most, &m->ff);
}

dt_status dti_decoder_read(dti_decoder *m, const dt_config *config,
                           const dti_decoder_defaults *defaults, dt_model_info *info)
{
    static const dti_names llama = { 0 };

    m->from = defaults;
    if (m->names == NULL) m->names = &llama;
    DT_TRY(dt_config_decoder(config, &defaults->shared, info));
    DT_TRY(read_width(m, config, info->hidden_size));
    if (defaults->padding != DTI_NO_PADDING)
        DT_TRY(dti_config_padding(config, defaults->padding, info->vocab_size, &m->padding));
    DT_TRY(
        dti_config_eps(config, or_else(defaults->eps_key, "rms_norm_eps"), defaults->eps, &m->eps));
    DT_TRY(dt_config_activation(config, or_else(defaults->activation_key, "hidden_act"),
                                or_else(defaults->activation, "silu"), &m->activation));
    m->info = *info;
    if (!defaults->learned) DT_TRY(read_ropes(m, config, defaults));
    info->max_positions = dti_rope_longest(&m->rope[0], info->max_positions);
    m->info = *info;
    DT_TRY(dti_alloc_array((size_t)info->n_layers, sizeof *m->blocks, (void **)&m->blocks));
    for (int64_t i = 0; i < info->n_layers; i++)
        m->blocks[i] = (dti_block){ .slides = true,
                                    .rope = defaults->learned ? DTI_NO_ROPE : 0,
                                    .attention = dt_config_attention(info) };
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

/* What rows of packed layers do not say: the blocks that their outputs are made of; or that they
 * are a group's queries, its key and its value, which stay together, as what they give does. */
static void pack(const dti_decoder *m, const dt_model_info *c, dt_builder *builder, const char *qkv,
                 const char *o)
{
    const int64_t kv = c->n_kv_heads, group = c->n_heads / kv, e = c->head_dim;
    const dt_axis Q = { c->n_heads * e, DT_UNIT_HEADS }, KV = { kv * e, DT_UNIT_KV_HEADS };
    const dt_axis half = { m->ff, DT_UNIT_ROW };

    if (m->qkv == DTI_QKV_BLOCKS)
        dt_builder_spec(builder, qkv)->blocks[0] = (dt_axis_blocks){ 3, { Q, KV, KV } };
    if (m->qkv == DTI_QKV_GROUPS) {
        dt_builder_spec(builder, qkv)->heads = (dt_head_counts){ kv, kv, (group + 2) * e };
        dt_builder_spec(builder, o)->heads = (dt_head_counts){ kv, kv, group * e };
    }
    if (m->gate_up)
        dt_builder_spec(builder, "mlp.gate_up_proj")->blocks[0] =
            (dt_axis_blocks){ 2, { half, half } };
}

/* The extents of a block's weights. */
typedef struct extents {
    dt_extent D, E, H, F, FF, Q, QG, KV, QKV, none;
} extents;

static extents extents_of(const dti_decoder *m, const dt_model_info *c)
{
    const dti_decoder_defaults *from = m->from;
    const int64_t q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    const char *D = or_else(from->shared.hidden_key, "hidden_size");
    const bool plain = from->shared.plain_heads;

    return (extents){
        .D = { c->hidden_size, DT_UNIT_ROW, D },
        .E = { c->head_dim, DT_UNIT_ROW, "head_dim" },
        .H = { c->n_heads, DT_UNIT_ROW, "num_attention_heads" },
        .F = { m->ff, DT_UNIT_ROW, or_else(from->ff_key, "intermediate_size") },
        .FF = { 2 * m->ff, DT_UNIT_ROW, "2 * intermediate_size" },
        .Q = { q, DT_UNIT_HEADS, plain ? D : "num_attention_heads * head_dim" },
        .QG = { 2 * q, DT_UNIT_HEADS, "2 * num_attention_heads * head_dim" },
        .KV = { kv, DT_UNIT_KV_HEADS, plain ? D : "num_key_value_heads * head_dim" },
        .QKV = { q + 2 * kv, m->qkv == DTI_QKV_GROUPS ? DT_UNIT_HEADS : DT_UNIT_ROW,
                 or_else(from->qkv_key, "num_attention_heads * head_dim + 2 * "
                                        "num_key_value_heads * head_dim") },
    };
}

/* Layers of block i: rows of those that the architecture has. Norms have the names that their
 * places give them. Of branches side by side nothing moves but what goes in and their sum. */
static dt_status add_block(dti_decoder *m, const dt_model_info *c, dt_builder *builder, int64_t i)
{
    dti_block *b = &m->blocks[i];
    const dti_names *n = m->names;
    const extents x = extents_of(m, c);
    const dt_layer_kind *norm = m->norm_kind != NULL ? m->norm_kind : &dt_rms_norm_kind;
    const dt_layer_kind *qk_norm = m->row_norms ? &dti_row_norm_kind : norm;
    const dt_extent QN = m->row_norms ? x.Q : x.E, KN = m->row_norms ? x.KV : x.E;
    const dt_layer_kind *point = b->linear  ? &dti_delta_kind
                                 : m->sinks ? &dti_sinks_kind
                                            : &dt_point_kind;
    const dt_extent heads = b->linear ? dti_delta_heads(m) : m->sinks ? x.H : x.none;
    const bool qb = m->qkv_bias, ob = m->out_bias, mb = m->mlp_bias;
    const bool nb = norm == &dt_layer_norm_kind, side = m->parallel;
    const bool before = m->norms != DTI_NORMS_BEHIND, behind = m->norms != DTI_NORMS_BEFORE;
    const bool latent = m->mla.latent > 0, plain = !latent && !b->linear;
    const bool one = m->qkv != DTI_QKV_APART, own = !one && plain;
    const bool dense = !b->sparse, normed = m->head_norms && plain;
    const bool up = dense && !m->gate_up, shares = b->sparse && m->moe.shared > 0;
    const char *mlp_norm = behind ? "pre_feedforward_layernorm" : "post_attention_layernorm";
    const char *mlp_style = shares ? "gather" : side ? "local" : "replicate";
    const char *whole = side ? "local" : "replicate", *sum = side ? "local_rowwise" : "rowwise";
    const char *qkv = or_else(n->qkv, "self_attn.qkv_proj");
    const char *attn = b->linear ? "linear_attn" : or_else(n->attn, "self_attn");
    const char *qkv_style = m->qkv == DTI_QKV_BLOCKS ? "packed_colwise" : "colwise";
    char name[40];

    /* clang-format off */
#define B(field) DTI_BLOCK(field)
#define OR(field, llama) or_else(n->field, llama)
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
    const struct { bool there; dt_layer_row row; } rows[] = {
/*      there               field         name in the checkpoint                  kind              out     in      bias   style on "tp"     tied to */
        { side,             { B(branches),  "branches",                             &dt_point_kind,   x.none, x.none, false, "gather",         NULL } },
        { before,           { B(norm1),     OR(norm1, "input_layernorm"),           norm,             x.D,    x.none, nb,    whole,            NULL } },
        { true,             { B(attn),      attn,                                   point,            heads,  x.none, false, whole,            NULL } },
        { own,              { B(q),         OR(q, "self_attn.q_proj"),              &dt_linear_kind,  m->gated ? x.QG : x.Q, x.D, qb, "colwise", NULL } },
        { own,              { B(k),         OR(k, "self_attn.k_proj"),              &dt_linear_kind,  x.KV,   x.D,    qb,    "colwise",        NULL } },
        { own,              { B(v),         OR(v, "self_attn.v_proj"),              &dt_linear_kind,  x.KV,   x.D,    qb,    "colwise",        NULL } },
        { one,              { B(qkv),       qkv,                                    &dt_linear_kind,  x.QKV,  x.D,    qb,    qkv_style,        NULL } },
        { plain,            { B(o),         OR(o, "self_attn.o_proj"),              &dt_linear_kind,  x.D,    x.Q,    ob,    sum,              NULL } },
        { behind,           { B(out_norm1), OR(out_norm1, "post_attention_layernorm"), norm,             x.D,    x.none, nb,    whole,            NULL } },
        { before && !m->one_norm, { B(norm2), OR(norm2, mlp_norm),                  norm,             x.D,    x.none, nb,    whole,            NULL } },
        { true,             { B(mlp),       OR(mlp, "mlp"),                         &dt_point_kind,   x.none, x.none, false, mlp_style,            NULL } },
        { up && !m->plain,  { B(gate),      OR(gate, "mlp.gate_proj"),              &dt_linear_kind,  x.F,    x.D,    mb,    "colwise",        NULL } },
        { up,               { B(up),        OR(up, "mlp.up_proj"),                  &dt_linear_kind,  x.F,    x.D,    mb,    "colwise",        NULL } },
        { dense && m->gate_up, { B(gate_up), "mlp.gate_up_proj",                    &dt_linear_kind,  x.FF,   x.D,    mb,    "packed_colwise", NULL } },
        { dense,            { B(down),      OR(down, "mlp.down_proj"),              &dt_linear_kind,  x.D,    x.F,    mb,    sum,              NULL } },
        { behind,           { B(out_norm2), OR(out_norm2, "post_feedforward_layernorm"), norm,             x.D,    x.none, nb,    whole,            NULL } },
        { normed,           { B(q_norm),    OR(q_norm, "self_attn.q_norm"),         qk_norm,          QN,     x.none, nb,    PER_HEAD,         NULL } },
        { normed,           { B(k_norm),    OR(k_norm, "self_attn.k_norm"),         qk_norm,          KN,     x.none, nb,    PER_HEAD,         NULL } },
    };
#undef PER_HEAD
#undef OR
    /* clang-format on */

    (void)snprintf(name, sizeof name, "%s.%lld", or_else(n->blocks, "model.layers"), (long long)i);
    for (size_t k = 0; k < DT_COUNT(rows); k++) {
        const dt_layer_row *row = &rows[k].row;
        if (!rows[k].there) continue;
        DT_TRY(dt_builder_add(builder, name, row, 1, b));
        dt_builder_spec(builder, row->name)->reversed = m->reversed && row->kind == &dt_linear_kind;
        if (row->field == B(q) && m->gated)
            dt_builder_spec(builder, row->name)->heads.head_dim = 2 * c->head_dim;
        if (row->field == B(attn) && b->linear) DT_TRY(dti_delta_add_layers(m, name, builder, b));
        if (row->field == B(attn) && latent) DT_TRY(dti_mla_add_layers(m, name, builder, b));
        if (row->field == B(mlp) && b->sparse)
            DT_TRY((m->moe.limit > 0 ? dti_clamped_add_layers : dti_moe_add_layers)(m, name,
                                                                                    builder, b));
    }
#undef B
    pack(m, c, builder, qkv, or_else(n->o, "self_attn.o_proj"));
    return DT_OK;
}

dt_status dti_decoder_add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    dti_decoder *m = self;
    const dti_names *n = m->names;
    const dt_layer_kind *norm = m->norm_kind != NULL ? m->norm_kind : &dt_rms_norm_kind;
    const extents x = extents_of(m, c);
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" };
    const dt_extent P = { c->max_positions, DT_UNIT_ROW,
                          or_else(m->from->shared.positions_key, "max_position_embeddings") };
    const char *embed = or_else(n->embed, "model.embed_tokens"), *tied = c->tied ? embed : NULL;
    const bool nb = norm == &dt_layer_norm_kind;
    const dt_row_settings shared = { { c->n_heads, c->n_kv_heads, c->head_dim }, m->eps };

    /* clang-format off */
#define M(field) offsetof(dti_decoder, field)
    const dt_layer_row model[] = {
/*      field           name in the checkpoint          kind                 out  in      bias          style on "tp"        tied to */
        { M(embed),     embed,                          &dt_embedding_kind,  V,   x.D,    false,        "embedding_rowwise", NULL },
        { M(norm),      or_else(n->norm, "model.norm"), norm,                x.D, x.none, nb,           "replicate",         NULL },
        { M(head),      or_else(n->head, "lm_head"),    &dt_linear_kind,     V,   x.D,    m->head_bias, "colwise",           tied },
        { M(positions), n->positions,                   &dt_embedding_kind,  P,   x.D,    false,        "replicate",         NULL },
    };
#undef M
    /* clang-format on */

    dt_builder_settings(builder, &shared);
    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model) - !m->from->learned, m));
    dt_builder_spec(builder, embed)->padding = m->padding;
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

/* x normed; as it is where there is no such norm. */
static dt_tensor *normed(dt_tape *t, const dt_layer *norm, dt_tensor *x)
{
    return norm != NULL ? dt_layer_forward(t, norm, x) : x;
}

/* Heads normed, each by itself or all of a token's together. */
static dt_tensor *normed_heads(const dti_decoder *m, dt_tape *t, const dt_layer *norm, dt_tensor *x)
{
    if (!m->row_norms) return normed(t, norm, x);
    return dt_heads(t, normed(t, norm, dt_unheads(t, x)), m->info.head_dim);
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

/* What queries, keys and values are made of that lie in one weight; NULL: each has its own. Of
 * groups the heads [B, T, KV, (group + 2) E]. */
static dt_tensor *packed_heads(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n)
{
    const int64_t group = m->info.n_heads / m->info.n_kv_heads;
    dt_tensor *all = b->qkv != NULL ? dt_layer_forward(t, b->qkv, n) : NULL;

    return m->qkv == DTI_QKV_GROUPS ? dt_heads(t, all, (group + 2) * m->info.head_dim) : all;
}

/* Heads [B, T, H, E] of `layer`, or `size` columns of what all are made of. */
static dt_tensor *heads_of(const dti_decoder *m, dt_tape *t, const dt_layer *layer, dt_tensor *n,
                           dt_tensor *all, int64_t begin, int64_t size)
{
    const int64_t e = m->info.head_dim;
    dt_tensor *x = part(t, layer, n, all, begin, size);

    if (m->qkv == DTI_QKV_GROUPS && size == e) return x;
    return dt_heads(t, m->qkv == DTI_QKV_GROUPS ? dt_unheads(t, x) : x, e);
}

/* Columns 0, 2, 4, ..., then 1, 3, 5, ... of x [B, T, H, E]: neighbours become halves. Scores are
 * sums over columns, so queries and keys may stay like this. */
static dt_tensor *pairs_apart(dt_tape *t, dt_tensor *x)
{
    static const int axes[] = { 0, 1, 2, 4, 3 };
    int64_t shape[5];

    if (dt_tape_status(t) != DT_OK) return NULL;
    for (int a = 0; a < 4; a++) shape[a] = dt_tensor_extent(x, a);
    shape[3] /= 2;
    shape[4] = 2;
    x = dt_permute(t, dt_reshape(t, x, 5, shape), axes);
    shape[3] *= 2;
    return dt_reshape(t, x, 4, shape);
}

dt_tensor *dti_decoder_turned(const dti_decoder *m, dt_tape *t, dt_tensor *x, dt_tensor *table)
{
    const bool pairs = (m->turning & DTI_TURNS_PAIRS) != 0;
    dt_tensor *rest = NULL;
    int64_t e, r;

    if (m->turning == DTI_TURNS_HALVES) return dt_rope(t, x, table);
    if (dt_tape_status(t) != DT_OK) return NULL;
    e = dt_tensor_extent(x, 3);
    r = dt_tensor_extent(table, 2);
    if (pairs && r < e) {
        rest = dt_slice(t, x, -1, r, e - r);
        x = dt_slice(t, x, -1, 0, r);
    }
    if (pairs) x = pairs_apart(t, x);
    if (m->turning & DTI_TURNS_WIDE)
        x = dt_cast(t, dt_rope(t, dt_cast(t, x, DT_F32), table), m->info.dtype);
    else
        x = dt_rope(t, x, table);
    return rest != NULL ? dt_concat(t, 2, (dt_tensor *[]){ x, rest }, 3) : x;
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *heads_attention(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                                  dt_tensor *n)
{
    const dti_block *b = &m->blocks[at->i];
    const int64_t groups = m->qkv == DTI_QKV_GROUPS ? m->info.n_kv_heads : 1; /* sliced as one */
    const int64_t e = m->info.head_dim, Q = m->info.n_heads * e / groups;
    const int64_t KV = m->info.n_kv_heads * e / groups;
    dt_attention_options options = b->attention;
    dt_tensor *rope = b->rope != DTI_NO_ROPE ? at->in->tables[b->rope] : NULL;

    dt_tensor *all =
        m->gated ? dt_heads(t, dt_layer_forward(t, b->q, n), 2 * e) : packed_heads(m, b, t, n);
    dt_tensor *q = m->gated ? dt_slice(t, all, -1, 0, e) : heads_of(m, t, b->q, n, all, 0, Q);
    dt_tensor *k = normed_heads(m, t, b->k_norm, heads_of(m, t, b->k, n, all, Q, KV));
    dt_tensor *v = heads_of(m, t, b->v, n, all, Q + KV, KV);
    dt_tensor *a;

    q = normed_heads(m, t, b->q_norm, q);
    if (b->rope != DTI_NO_ROPE) {
        q = dti_decoder_turned(m, t, q, rope);
        k = dti_decoder_turned(m, t, k, rope);
    }
    if (m->rope[0].query_factors != NULL) q = dt_mul(t, q, at->in->tables[DTI_MAX_ROPES]);
    if (m->sinks) options.sinks = dt_layer_use(t, b->attn, 0);
    a = dt_cached_attention(t, at->pass, at->i, q, k, v, &options);
    if (m->gated) a = dt_mul(t, a, dt_sigmoid(t, dt_unheads(t, dt_slice(t, all, -1, e, e))));
    return dt_layer_forward(t, b->o, a);
}

/* The same of whichever kind. */
static dt_tensor *attention(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const dti_decoder *m = at->self;

    if (m->blocks[at->i].linear) return dti_delta_attention(m, at, t, n);
    return m->mla.latent > 0 ? dti_mla_attention(m, at, t, n) : heads_attention(m, at, t, n);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *gated(const dti_decoder *m, const dti_block *b, dt_tape *t, dt_tensor *n)
{
    dt_tensor *both = m->gate_up ? dt_layer_forward(t, b->gate_up, n) : NULL;
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

    if (b->sparse && m->moe.limit > 0) return dti_clamped_forward(m, b, t, n);
    if (b->sparse) return dti_moe_forward(m, b, t, n);
    if (!m->plain) return gated(m, b, t, n);
    n = dt_activate(t, m->activation, dt_layer_forward(t, b->up, n));
    return dt_layer_forward(t, b->down, n);
}

dt_tensor *dti_decoder_join(dt_tape *t, const dt_layer *point, dt_tensor *a, dt_tensor *b)
{
    if (dt_tape_status(t) == DT_OK && dt_tensor_layout(a) != dt_tensor_layout(b)) {
        a = dt_layer_leave(t, point, a);
        b = dt_layer_leave(t, point, b);
    }
    return dt_add(t, a, b);
}

/* x [B, T, D] -> [B, T, D]: attention and feed-forward of the same x. */
static dt_tensor *branches(const void *context, dt_tape *t, dt_tensor *x)
{
    const dt_block_context *at = context;
    const dti_decoder *m = at->self;
    const dti_block *b = &m->blocks[at->i];
    dt_tensor *n = dt_layer_forward(t, b->norm1, x);
    dt_tensor *a = dt_layer_block(t, b->attn, n, attention, at);

    if (b->norm2 != NULL) n = dt_layer_forward(t, b->norm2, x);
    return dti_decoder_join(t, b->branches, a, dt_layer_block(t, b->mlp, n, feed_forward, at));
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

    dt_tensor *x = scaled(t, dt_layer_forward(t, m->embed, pass->ids), scale);

    if (m->positions == NULL) return x;
    return dt_add(t, x, dt_layer_forward(t, m->positions, pass->positions));
}

void dti_decoder_tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **tables)
{
    const dti_decoder *m = self;

    const bool wide = (m->turning & DTI_TURNS_WIDE) != 0;
    const dt_dtype dtype = m->turning & DTI_TURNS_BY_F32 ? DT_F32 : m->info.dtype;

    for (int i = 0; i < m->n_ropes; i++) {
        tables[i] = dti_rope_table(t, &m->rope[i], pass, dtype);
        if (wide) tables[i] = dt_cast(t, tables[i], DT_F32);
    }
    tables[DTI_MAX_ROPES] = dti_rope_query_factors(t, &m->rope[0], pass, m->info.dtype);
}

dt_tensor *dti_decoder_block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                             const dt_flow *in)
{
    const dti_decoder *m = self;
    const dti_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *y, *h;

    if (m->parallel) return dt_add(t, in->x, dt_layer_block(t, b->branches, in->x, branches, &at));
    y = dt_layer_block(t, b->attn, normed(t, b->norm1, in->x), attention, &at);
    h = dt_add(t, in->x, scaled(t, normed(t, b->out_norm1, y), m->residual_scale));
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
