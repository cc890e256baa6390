/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma 3, its text part: norms before and after attention and feed-forward whose weights are 1 +
 * what is stored, norms of query and key heads, local layers with a window and a rotation of their
 * own between global ones, a scaled embedding that the head shares. D model width, E head width,
 * Q = heads * E, KV = kv heads * E, F feed-forward width, V vocabulary; B sequences of T tokens. */
#include "models/architectures/gemma3.h"

#include <dtensor/half.h>
#include <math.h>
#include <stdio.h>

#include "models/architectures/named_plans.h"

static dt_status add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    gemma3 *m = self;
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent E = { c->head_dim, DT_UNIT_ROW, "head_dim" }, none = { 0 };
    const dt_extent F = { m->ff, DT_UNIT_ROW, "intermediate_size" };
    const dt_extent Q = { c->n_heads * c->head_dim, DT_UNIT_HEADS,
                          "num_attention_heads * head_dim" };
    const dt_extent KV = { c->n_kv_heads * c->head_dim, DT_UNIT_KV_HEADS,
                           "num_key_value_heads * head_dim" };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" };
    const char *tied = c->tied ? "model.embed_tokens" : NULL;
    const bool ab = m->attention_bias;

    dt_builder_settings(
        builder,
        &(dt_row_settings){ .heads = { c->n_heads, c->n_kv_heads, c->head_dim }, .eps = m->eps });

    /* clang-format off */
#define M(field) offsetof(gemma3, field)
#define B(field) offsetof(gemma3_block, field)
#define PER_HEAD "replicated_with_grad_allreduce" /* each rank norms the heads it holds */
    const dt_layer_row model[] = {
/*      field              name in the checkpoint         kind                  out  in    bias   style on "tp"        tied to */
        { M(embed),         "model.embed_tokens",         &dt_embedding_kind,   V,   D,    false, "embedding_rowwise", NULL },
        { M(norm),          "model.norm",                 &dt_rms_norm_1p_kind, D,   none, false, "replicate",         NULL },
        { M(head),          "lm_head",                    &dt_linear_kind,      V,   D,    false, "colwise",           tied },
    };
    const dt_layer_row block[] = {
        { B(attn_norm),     "input_layernorm",            &dt_rms_norm_1p_kind, D,   none, false, "replicate",         NULL },
        { B(attn),          "self_attn",                  &dt_point_kind,       none, none, false, "replicate",        NULL },
        { B(q),             "self_attn.q_proj",           &dt_linear_kind,      Q,   D,    ab,    "colwise",           NULL },
        { B(k),             "self_attn.k_proj",           &dt_linear_kind,      KV,  D,    ab,    "colwise",           NULL },
        { B(v),             "self_attn.v_proj",           &dt_linear_kind,      KV,  D,    ab,    "colwise",           NULL },
        { B(q_norm),        "self_attn.q_norm",           &dt_rms_norm_1p_kind, E,   none, false, PER_HEAD,            NULL },
        { B(k_norm),        "self_attn.k_norm",           &dt_rms_norm_1p_kind, E,   none, false, PER_HEAD,            NULL },
        { B(o),             "self_attn.o_proj",           &dt_linear_kind,      D,   Q,    ab,    "rowwise",           NULL },
        { B(attn_out_norm), "post_attention_layernorm",   &dt_rms_norm_1p_kind, D,   none, false, "replicate",         NULL },
        { B(mlp_norm),      "pre_feedforward_layernorm",  &dt_rms_norm_1p_kind, D,   none, false, "replicate",         NULL },
        { B(mlp),           "mlp",                        &dt_point_kind,       none, none, false, "replicate",        NULL },
        { B(gate),          "mlp.gate_proj",              &dt_linear_kind,      F,   D,    false, "colwise",           NULL },
        { B(up),            "mlp.up_proj",                &dt_linear_kind,      F,   D,    false, "colwise",           NULL },
        { B(down),          "mlp.down_proj",              &dt_linear_kind,      D,   F,    false, "rowwise",           NULL },
        { B(mlp_out_norm),  "post_feedforward_layernorm", &dt_rms_norm_1p_kind, D,   none, false, "replicate",         NULL },
    };
#undef M
#undef B
#undef PER_HEAD
    /* clang-format on */

    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    dt_builder_spec(builder, "model.embed_tokens")->padding = m->padding;
    for (int64_t i = 0; i < c->n_layers; i++) {
        gemma3_block *b = &m->blocks[i];
        char name[40];
        (void)snprintf(name, sizeof name, "model.layers.%lld", (long long)i);
        DT_TRY(dt_builder_add(builder, name, block, (int)DT_COUNT(block), b));
    }
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    gemma3 *m = self;

    m->info = *info;
    DT_TRY(dti_rope_prepare(&m->global, mesh));
    return dti_rope_prepare(&m->local, mesh);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *attention(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const gemma3 *m = at->self;
    const gemma3_block *b = &m->blocks[at->i];
    const int64_t e = m->info.head_dim;
    dt_tensor *rope = at->in->tables[b->local ? 1 : 0];

    dt_tensor *q = dt_layer_forward(t, b->q_norm, dt_heads(t, dt_layer_forward(t, b->q, n), e));
    dt_tensor *k = dt_layer_forward(t, b->k_norm, dt_heads(t, dt_layer_forward(t, b->k, n), e));
    dt_tensor *v = dt_heads(t, dt_layer_forward(t, b->v, n), e);
    dt_tensor *a = dt_cached_attention(t, at->pass, at->i, dt_rope(t, q, rope), dt_rope(t, k, rope),
                                       v, &b->attention);
    return dt_layer_forward(t, b->o, a);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *feed_forward(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const gemma3 *m = at->self;
    const gemma3_block *b = &m->blocks[at->i];
    dt_tensor *gate = dt_layer_forward(t, b->gate, n);
    dt_tensor *up = dt_layer_forward(t, b->up, n);
    return dt_layer_forward(t, b->down, dt_activate_mul(t, m->activation, gate, up));
}

/* The embedding's factor as the dtype holds it: of 1152 columns 33.94, in bf16 34. */
static double embedding_scale(const dt_model_info *info)
{
    const float scale = (float)sqrt((double)info->hidden_size);

    if (info->dtype == DT_BF16) return (double)dt_bf16_to_f32(dt_f32_to_bf16(scale));
    if (info->dtype == DT_F16) return (double)dt_f16_to_f32(dt_f32_to_f16(scale));
    return (double)scale;
}

static dt_tensor *embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    const gemma3 *m = self;

    return dt_mul_scalar(t, dt_layer_forward(t, m->embed, pass->ids), embedding_scale(&m->info));
}

/* Rotations of global blocks and of local ones. */
static void tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **out)
{
    const gemma3 *m = self;

    out[0] = dti_rope_table(t, &m->global, pass, m->info.dtype);
    out[1] = dti_rope_table(t, &m->local, pass, m->info.dtype);
}

static dt_tensor *block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in)
{
    const gemma3 *m = self;
    const gemma3_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *n = dt_layer_forward(t, b->attn_norm, in->x);
    dt_tensor *y = dt_layer_block(t, b->attn, n, attention, &at);
    dt_tensor *h = dt_add(t, in->x, dt_layer_forward(t, b->attn_out_norm, y));

    y = dt_layer_block(t, b->mlp, dt_layer_forward(t, b->mlp_norm, h), feed_forward, &at);
    return dt_add(t, h, dt_layer_forward(t, b->mlp_out_norm, y));
}

static dt_tensor *head(const void *self, dt_tape *t, dt_tensor *x)
{
    const gemma3 *m = self;

    x = dt_layer_forward(t, m->head, dt_layer_forward(t, m->norm, x));
    return m->logit_cap > 0.0 ? dt_soft_cap(t, x, m->logit_cap) : x;
}

static int64_t turn(const void *self)
{
    return dti_rope_turn(&((const gemma3 *)self)->global);
}

static bool repeats(const void *self)
{
    return dti_rope_repeats(&((const gemma3 *)self)->global);
}

static void release(void *self)
{
    gemma3 *m = self;

    dti_rope_release(&m->global);
    dti_rope_release(&m->local);
    dti_free(m->blocks);
}

/* Old buffers, and what turns images into tokens. */
static const char *const ignored[] = { "rotary_emb.inv_freq",          "vision_tower.",
                                       "multi_modal_projector.",       "model.vision_tower.",
                                       "model.multi_modal_projector.", NULL };

/* Names of multimodal checkpoints, before and after Transformers 4.52. */
static const dt_spelling spellings[] = { { "model.", "" },
                                         { "model.", "language_model.model." },
                                         { "model.", "model.language_model." },
                                         { "model.", "language_model." },
                                         { "lm_head.", "language_model.lm_head." },
                                         { "lm_head.", "model.lm_head." },
                                         { NULL, NULL } };

/* Rotations are made by every rank. */
static const char *const unlaid[] = { "model.rotary_emb", "model.rotary_emb_local", NULL };

#define GEMMA3(type, class, text, plans_)                                                    \
    {                                                                                        \
        .size = sizeof(dt_arch), .model_type = (type), .class_name = (class),                \
        .text_config = (text), .self_bytes = sizeof(gemma3), .spellings = spellings,         \
        .ignored = ignored, .read_config = dti_gemma3_read_config, .add_layers = add_layers, \
        .prepare = prepare, .embed = embed, .tables = tables, .block = block, .head = head,  \
        .release = release, .block_class = "Gemma3DecoderLayer", .blocks = "model.layers.*", \
        .turn = turn, .repeats = repeats, .plans = (plans_), .unlaid = unlaid                \
    }

const dt_arch dti_arch_gemma3_text =
    GEMMA3("gemma3_text", "Gemma3ForCausalLM", NULL, dti_nemo_gemma3_text);
const dt_arch dti_arch_gemma3 =
    GEMMA3("gemma3", "Gemma3ForConditionalGeneration", "text_config", dti_nemo_gemma3);
