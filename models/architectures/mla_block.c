/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention, as DeepSeek-V3 has it. Keys and values of all heads are made of one row c for
 * each token, the latent, and of one row r that turns with its position:
 *
 *   q = [s | t] of a head, k = [K c | r], v = V c, where K and V are a head's rows of kv_b_proj
 *
 * q k = (K^T s) c + t r, and a sum of values is V of the sum of latents. So attention to what is
 * remembered runs over [c | r] as the only key head, whose first columns are the values too: that
 * is all that is remembered, however many heads there are. Ranks have heads of queries, K, V and
 * o_proj, and all of c and r.
 *
 * D model width, H heads, S columns of a head that stand still, R that turn, V of a value, L of the
 * latent, A of what queries are made of. */
#include <math.h>
#include <stdio.h>

#include "models/architectures/config_keys.h"
#include "models/architectures/decoder_block.h"

/* How much scores grow where rotations are stretched. */
static dt_status read_stretch(const dti_decoder *m, const dt_config *config, double *out)
{
    dt_config parameters, old;
    double m_all;

    *out = 1.0;
    if (m->rope[0].type == DTI_ROPE_DEFAULT) return DT_OK;
    DT_TRY(dt_config_object(config, "rope_parameters", &parameters));
    DT_TRY(dt_config_object(config, "rope_scaling", &old));
    if (!dt_config_is_set(&parameters)) parameters = old;
    DT_TRY(dt_config_number_or(&parameters, "mscale_all_dim", 0.0, 0.0, 1e6, &m_all));
    if (m_all > 0.0) *out = pow(dti_rope_stretch(m->rope[0].factor, m_all), 2.0);
    return DT_OK;
}

dt_status dti_mla_read(dti_decoder *m, const dt_config *config, dt_model_info *info)
{
    const dt_config queries = dt_config_member(config, "q_lora_rank");
    const int64_t most = DTI_CONFIG_MAX_EXTENT / 4;
    dti_mla *a = &m->mla;
    bool pairs;
    double stretch;

    if (info->n_kv_heads != info->n_heads)
        return dt_config_refuse(config, "num_key_value_heads", DT_ERR_FORMAT,
                                "num_attention_heads: each head has keys of its own");
    a->turned = m->rope[0].dim;
    DT_TRY(dt_config_int(config, "kv_lora_rank", 512, 1, most, &a->latent));
    if (dt_config_kind_of(&queries) != DT_CONFIG_NULL)
        DT_TRY(dt_config_int(config, "q_lora_rank", 1536, 1, most, &a->queries));
    DT_TRY(dt_config_int(config, "qk_nope_head_dim", 128, 1, most, &a->still));
    DT_TRY(dt_config_int(config, "v_head_dim", 128, 1, most, &a->value));
    DT_TRY(dt_config_bool_or(config, "rope_interleave", true, &pairs));
    if (pairs) m->turning = DTI_TURNS_PAIRS;
    DT_TRY(dti_decoder_read_biases(m, config));
    DT_TRY(read_stretch(m, config, &stretch));
    info->n_kv_heads = 1;
    info->head_dim = a->latent + a->turned;
    info->cached = info->n_layers * info->head_dim; /* values are columns of keys */
    m->info = *info;
    for (int64_t i = 0; i < info->n_layers; i++) {
        m->blocks[i].attention = dt_config_attention(info);
        m->blocks[i].attention.scale = (float)(stretch / sqrt((double)(a->still + a->turned)));
    }
    return DT_OK;
}

/* K and V, which attention computes with in two places. */
static const dt_layer_kind latent_heads = {
    .name = "latent_heads",
    .words = "heads of a latent",
    .like = &dt_linear_kind,
    .params = { { "weight", "oi" } },
    .cost = "2 oi",
    .run_by = "the attention around it",
};

dt_status dti_mla_add_layers(const dti_decoder *m, const char *name, dt_builder *builder,
                             dti_block *b)
{
    const dti_mla *a = &m->mla;
    const int64_t h = m->info.n_heads, qk = a->still + a->turned, kv = a->still + a->value;
    const dt_extent D = { m->info.hidden_size, DT_UNIT_ROW, "hidden_size" }, none = { 0 };
    const dt_extent A = { a->queries, DT_UNIT_ROW, "q_lora_rank" };
    const dt_extent L = { a->latent, DT_UNIT_ROW, "kv_lora_rank" };
    const dt_extent LR = { a->latent + a->turned, DT_UNIT_ROW, "kv_lora_rank + qk_rope_head_dim" };
    const dt_extent Q = { h * qk, DT_UNIT_HEADS,
                          "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)" };
    const dt_extent KV = { h * kv, DT_UNIT_HEADS,
                           "num_attention_heads * (qk_nope_head_dim + v_head_dim)" };
    const dt_extent O = { h * a->value, DT_UNIT_HEADS, "num_attention_heads * v_head_dim" };
    const bool low = a->queries > 0, bias = m->qkv_bias;

    /* clang-format off */
#define B(field) DTI_BLOCK(field)
    const struct { bool there; int64_t head; dt_layer_row row; } rows[] = {
/*      there   columns     field         name in the checkpoint          kind               out   in    bias   style on "tp" tied to */
        { low,  0,        { B(q_a),       "self_attn.q_a_proj",           &dt_linear_kind,   A,    D,    bias,  "replicate",  NULL } },
        { low,  0,        { B(q_a_norm),  "self_attn.q_a_layernorm",      &dt_rms_norm_kind, A,    none, false, "local",      NULL } },
        { low,  qk,       { B(q),         "self_attn.q_b_proj",           &dt_linear_kind,   Q,    A,    false, "colwise",    NULL } },
        { !low, qk,       { B(q),         "self_attn.q_proj",             &dt_linear_kind,   Q,    D,    false, "colwise",    NULL } },
        { true, 0,        { B(kv_a),      "self_attn.kv_a_proj_with_mqa", &dt_linear_kind,   LR,   D,    bias,  "replicate",  NULL } },
        { true, 0,        { B(kv_a_norm), "self_attn.kv_a_layernorm",     &dt_rms_norm_kind, L,    none, false, "local",      NULL } },
        { true, kv,       { B(kv_b),      "self_attn.kv_b_proj",          &latent_heads,     KV,   L,    false, "colwise",    NULL } },
        { true, a->value, { B(o),         "self_attn.o_proj",             &dt_linear_kind,   D,    O,    bias,  "rowwise",    NULL } },
    };
#undef B
    /* clang-format on */

    for (size_t k = 0; k < DT_COUNT(rows); k++) {
        dt_layer_spec *spec;
        if (!rows[k].there) continue;
        DT_TRY(dt_builder_add(builder, name, &rows[k].row, 1, b));
        spec = dt_builder_spec(builder, rows[k].row.name);
        if (rows[k].head > 0) spec->heads = (dt_head_counts){ h, h, rows[k].head };
        if (spec->kind == &dt_rms_norm_kind) spec->eps = 1e-6F; /* whatever rms_norm_eps is */
    }
    return DT_OK;
}

/* x [B, T, H, i] by each head's matrix of w: [H, 1, i, o], or [H, 1, o, i] transposed -> [B, T, H,
 * o]. Sequences are rows like their tokens; a single one stays the axis that "dp" may cut. */
static dt_tensor *by_heads(dt_tape *t, dt_tensor *x, dt_tensor *w, bool transposed)
{
    static const int heads_first[] = { 2, 0, 1, 3 }, and_back[] = { 1, 2, 0, 3 };
    int64_t n[4];

    if (dt_tape_status(t) != DT_OK) return NULL;
    for (int a = 0; a < 4; a++) n[a] = dt_tensor_extent(x, heads_first[a]);
    x = dt_permute(t, x, heads_first);
    if (n[1] > 1) x = dt_reshape(t, x, 4, (int64_t[]){ n[0], 1, n[1] * n[2], n[3] });
    x = dt_matmul(t, x, false, w, transposed);
    if (x == NULL) return NULL;
    n[3] = dt_tensor_extent(x, 3);
    return dt_permute(t, n[1] > 1 ? dt_reshape(t, x, 4, n) : x, and_back);
}

/* What a token's queries, keys and values are made of: s [B, T, H, S] and t [B, T, H, R], turned; c
 * [B, T, L] and r [B, T, 1, R], turned; K and V, [H (S + V), L]. */
typedef struct parts {
    dt_tensor *s, *t, *c, *r, *w;
} parts;

/* Attention to latents that are remembered -> [B, T, H, V]. Columns of K and V are multiplied
 * together, by zeros where only one of them is meant: their weights are read where they lie. */
static dt_tensor *attend_latents(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                                 const parts *p)
{
    const dti_mla *a = &m->mla;
    const dt_attention_options *options = &m->blocks[at->i].attention;
    const int64_t shape[] = { m->info.n_heads, 1, a->still + a->value, a->latent };
    dt_tensor *w = dt_reshape(t, p->w, 4, shape);
    dt_tensor *q = by_heads(t, dt_pad(t, p->s, -1, 0, a->value, 0.0), w, false), *k, *y;

    q = dt_concat(t, 2, (dt_tensor *[]){ q, p->t }, 3);
    k = dt_concat(t, 2, (dt_tensor *[]){ dt_heads(t, p->c, a->latent), p->r }, 3);
    y = dt_cached_attention(t, at->pass, at->i, q, k, k, options);
    y = dt_slice(t, dt_heads(t, y, m->info.head_dim), -1, 0, a->latent);
    return dt_slice(t, by_heads(t, y, w, true), -1, a->still, a->value);
}

/* The same of whole sequences, where nothing is remembered: by keys and values of each head, which
 * are narrower. */
static dt_tensor *attend_heads(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                               const parts *p)
{
    const dti_mla *a = &m->mla;
    const int64_t qk = a->still + a->turned, wide = qk > a->value ? qk : a->value;
    dt_tensor *kv = dt_heads(t, dt_linear(t, p->c, p->w, NULL), a->still + a->value);
    dt_tensor *r = dt_add(t, dt_mul_scalar(t, p->t, 0.0), p->r); /* of each head */
    dt_tensor *q = dt_concat(t, 2, (dt_tensor *[]){ p->s, p->t }, 3), *y;
    dt_tensor *k = dt_concat(t, 2, (dt_tensor *[]){ dt_slice(t, kv, -1, 0, a->still), r }, 3);
    dt_tensor *v = dt_slice(t, kv, -1, a->still, a->value);
    dt_attention_options options = m->blocks[at->i].attention;

    options.n_kv_heads = options.n_heads;
    if (wide > qk) {
        q = dt_pad(t, q, -1, 0, wide - qk, 0.0);
        k = dt_pad(t, k, -1, 0, wide - qk, 0.0);
    }
    if (wide > a->value) v = dt_pad(t, v, -1, 0, wide - a->value, 0.0);
    y = dt_heads(t, dt_cached_attention(t, at->pass, at->i, q, k, v, &options), wide);
    return dt_slice(t, y, -1, 0, a->value);
}

dt_tensor *dti_mla_attention(const dti_decoder *m, const dt_block_context *at, dt_tape *t,
                             dt_tensor *n)
{
    const dti_mla *a = &m->mla;
    const dti_block *b = &m->blocks[at->i];
    const bool whole = at->pass->kv == NULL;
    dt_tensor *table = at->in->tables[0], *x = n, *q, *kv, *y;
    parts p = { .w = dt_layer_use(t, b->kv_b, DT_PARAM_WEIGHT) };

    if (b->q_a != NULL) x = dt_layer_forward(t, b->q_a_norm, dt_layer_forward(t, b->q_a, n));
    q = dt_heads(t, dt_layer_forward(t, b->q, x), a->still + a->turned);
    p.s = dt_slice(t, q, -1, 0, a->still);
    p.t = dti_decoder_turned(m, t, dt_slice(t, q, -1, a->still, a->turned), table);
    kv = dt_layer_forward(t, b->kv_a, n);
    p.c = dt_layer_forward(t, b->kv_a_norm, dt_slice(t, kv, -1, 0, a->latent));
    p.r = dt_heads(t, dt_slice(t, kv, -1, a->latent, a->turned), a->turned);
    p.r = dti_decoder_turned(m, t, p.r, table);
    y = whole ? attend_heads(m, at, t, &p) : attend_latents(m, at, t, &p);
    return dt_layer_forward(t, b->o, dt_unheads(t, y));
}
