/* SPDX-License-Identifier: Apache-2.0
 *
 * GPT-Neo: LayerNorm, learned positions, biases, layers that alternate between global attention and
 * a local window, no scaling of scores. D model width (heads * head_dim), F feed-forward width, V
 * vocabulary, P positions. */
#include <stdio.h>
#include <string.h>

#include "models/architectures/builder.h"
#include "models/architectures/config_keys.h"

typedef struct gpt_neo_block {
    dt_layer *ln_1, *attn, *q, *k, *v, *out;
    dt_layer *ln_2, *mlp, *c_fc, *c_proj;
    dt_attention_options attention; /* window 0: global */
} gpt_neo_block;

typedef struct gpt_neo {
    dt_model_info info;
    int64_t ff;
    const dt_activation *activation;
    float eps;
    dt_layer *wte, *wpe, *ln_f, *head;
    gpt_neo_block *blocks; /* [n_layers] */
} gpt_neo;

static dt_status read_window(const dt_config *name, int64_t window, int64_t *out)
{
    const char *kind;

    DT_TRY(dt_config_as_string(name, &kind));
    if (strcmp(kind, "global") == 0)
        *out = 0;
    else if (strcmp(kind, "local") == 0)
        *out = window;
    else
        return dt_config_must_be(name, DT_ERR_FORMAT, "\"global\" or \"local\"");
    return DT_OK;
}

/* One group of attention_types, [["global", "local"], 6]: its names, so many times over. */
static dt_status read_group(gpt_neo *m, const dt_config *group, int64_t window, int64_t *n)
{
    const dt_config names = dt_config_item(group, 0), count = dt_config_item(group, 1);
    int64_t times;

    DT_TRY(dt_config_as_array(&names));
    DT_TRY(dt_config_as_int(&count, 0, DTI_CONFIG_MAX_LAYERS, &times));
    for (int64_t r = 0; r < times; r++)
        for (size_t k = 0; k < dt_config_count(&names); k++, ++*n) {
            const dt_config name = dt_config_item(&names, k);
            if (*n >= m->info.n_layers)
                return dt_config_must_be(group, DT_ERR_FORMAT,
                                         "within num_layers, %lld: the list "
                                         "names more",
                                         (long long)m->info.n_layers);
            DT_TRY(read_window(&name, window, &m->blocks[*n].attention.window));
        }
    return DT_OK;
}

/* attention_layers ["global", "local", ...], one per layer. */
static dt_status read_flat(gpt_neo *m, const dt_config *layers, int64_t window)
{
    if ((int64_t)dt_config_count(layers) != m->info.n_layers)
        return dt_config_must_be(layers, DT_ERR_FORMAT, "as long as num_layers, %lld",
                                 (long long)m->info.n_layers);
    for (int64_t i = 0; i < m->info.n_layers; i++) {
        const dt_config name = dt_config_item(layers, (size_t)i);
        DT_TRY(read_window(&name, window, &m->blocks[i].attention.window));
    }
    return DT_OK;
}

/* attention_layers wins; then attention_types [[["global", "local"], 6], ...]; with neither the
 * reference has twelve pairs, which fit 24 layers only. */
static dt_status read_windows(gpt_neo *m, const dt_config *config, int64_t window)
{
    dt_config types, flat;
    int64_t n = 0;

    flat = dt_config_member(config, "attention_layers");
    if (dt_config_kind_of(&flat) != DT_CONFIG_ABSENT) {
        DT_TRY(dt_config_as_array(&flat));
        return read_flat(m, &flat, window);
    }
    DT_TRY(dt_config_array(config, "attention_types", &types));
    if (!dt_config_is_set(&types)) {
        if (m->info.n_layers != 24)
            return dt_config_must_be(
                &types, DT_ERR_FORMAT,
                "there for %lld layers: without it GPT-Neo has 24 that alternate",
                (long long)m->info.n_layers);
        for (; n < m->info.n_layers; n++) m->blocks[n].attention.window = n % 2 == 0 ? 0 : window;
        return DT_OK;
    }
    for (size_t i = 0; i < dt_config_count(&types); i++) {
        const dt_config group = dt_config_item(&types, i);
        DT_TRY(read_group(m, &group, window, &n));
    }
    if (n != m->info.n_layers)
        return dt_config_must_be(&types, DT_ERR_FORMAT,
                                 "a list that names num_layers, %lld, layers: it "
                                 "names %lld",
                                 (long long)m->info.n_layers, (long long)n);
    return DT_OK;
}

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = { .vocab = 50257,
                                                 .hidden = 2048,
                                                 .layers = 24,
                                                 .heads = 16,
                                                 .positions = 2048,
                                                 .tied = true,
                                                 .bos = 50256,
                                                 .eos = 50256,
                                                 .layers_key = "num_layers",
                                                 .heads_key = "num_heads",
                                                 .plain_heads = true };
    const dt_config quiet = dt_config_quietly(config);
    gpt_neo *m = self;
    int64_t window;

    DT_TRY(dt_config_decoder(config, &defaults, info));
    m->info = *info;
    DT_CHECK(info->n_kv_heads == info->n_heads &&
                 info->head_dim * info->n_heads == info->hidden_size,
             DT_ERR_FORMAT, "GPT-Neo: %lld heads of %lld do not make hidden_size %lld",
             (long long)info->n_heads, (long long)info->head_dim, (long long)info->hidden_size);
    DT_TRY(dt_config_int_or(config, "intermediate_size", 4 * info->hidden_size, 1,
                            DTI_CONFIG_MAX_EXTENT, &m->ff));
    DT_TRY(dt_config_int(&quiet, "window_size", 256, 1, DTI_CONFIG_MAX_EXTENT, &window));
    DT_TRY(dti_config_eps(config, "layer_norm_epsilon", 1e-5, &m->eps));
    DT_TRY(dt_config_activation(config, "activation_function", "gelu_new", &m->activation));
    DT_TRY(dti_alloc_array((size_t)info->n_layers, sizeof *m->blocks, (void **)&m->blocks));
    DT_TRY(read_windows(m, &quiet, window));
    for (int64_t i = 0; i < info->n_layers; i++) {
        dt_attention_options *a = &m->blocks[i].attention;
        a->n_heads = a->n_kv_heads = info->n_heads;
        a->scale = 1.0f;
        DT_TRY(dti_config_say_window(config, i, a->window));
    }
    return DT_OK;
}

static dt_status add_layers(void *self, const dt_model_info *info, dt_builder *builder)
{
    gpt_neo *m = self;
    const dt_extent D = { info->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent F = { m->ff, DT_UNIT_ROW, "intermediate_size" }, none = { 0 };
    const dt_extent Q = { info->hidden_size, DT_UNIT_HEADS, "hidden_size" };
    const dt_extent KV = { info->hidden_size, DT_UNIT_KV_HEADS, "hidden_size" };
    const dt_extent V = { info->vocab_size, DT_UNIT_ROW, "vocab_size" };
    const dt_extent P = { info->max_positions, DT_UNIT_ROW, "max_position_embeddings" };
    const char *tied = info->tied ? "transformer.wte" : NULL;

    dt_builder_settings(
        builder, &(dt_row_settings){ .heads = { info->n_heads, info->n_kv_heads, info->head_dim },
                                     .eps = m->eps });

    /* clang-format off */
#define M(field) offsetof(gpt_neo, field)
#define B(field) offsetof(gpt_neo_block, field)
    const dt_layer_row model[] = {
/*      field        name in the checkpoint       kind                 out  in    bias   style on "tp"        tied to */
        { M(wte),    "transformer.wte",           &dt_embedding_kind,  V,   D,    false, "embedding_rowwise", NULL },
        { M(wpe),    "transformer.wpe",           &dt_embedding_kind,  P,   D,    false, "replicate",         NULL },
        { M(ln_f),   "transformer.ln_f",          &dt_layer_norm_kind, D,   none, true,  "replicate",         NULL },
        { M(head),   "lm_head",                   &dt_linear_kind,     V,   D,    false, "colwise",           tied },
    };
    const dt_layer_row block[] = {
        { B(ln_1),   "ln_1",                      &dt_layer_norm_kind, D,   none, true,  "replicate",         NULL },
        { B(attn),   "attn",                      &dt_point_kind,      none, none, false, "replicate",         NULL },
        { B(q),      "attn.attention.q_proj",     &dt_linear_kind,     Q,   D,    false, "colwise",           NULL },
        { B(k),      "attn.attention.k_proj",     &dt_linear_kind,     KV,  D,    false, "colwise",           NULL },
        { B(v),      "attn.attention.v_proj",     &dt_linear_kind,     KV,  D,    false, "colwise",           NULL },
        { B(out),    "attn.attention.out_proj",   &dt_linear_kind,     D,   Q,    true,  "rowwise",           NULL },
        { B(ln_2),   "ln_2",                      &dt_layer_norm_kind, D,   none, true,  "replicate",         NULL },
        { B(mlp),    "mlp",                       &dt_point_kind,      none, none, false, "replicate",         NULL },
        { B(c_fc),   "mlp.c_fc",                  &dt_linear_kind,     F,   D,    true,  "colwise",           NULL },
        { B(c_proj), "mlp.c_proj",                &dt_linear_kind,     D,   F,    true,  "rowwise",           NULL },
    };
#undef M
#undef B
    /* clang-format on */

    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    for (int64_t i = 0; i < info->n_layers; i++) {
        gpt_neo_block *b = &m->blocks[i];
        char name[40];
        (void)snprintf(name, sizeof name, "transformer.h.%lld", (long long)i);
        DT_TRY(dt_builder_add(builder, name, block, (int)DT_COUNT(block), b));
    }
    return DT_OK;
}

static bool repeats(const void *self)
{
    (void)self;
    return true; /* positions are rows of a table */
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    (void)mesh;
    ((gpt_neo *)self)->info = *info;
    return DT_OK;
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *attention(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const gpt_neo *m = at->self;
    const gpt_neo_block *b = &m->blocks[at->i];
    const int64_t e = m->info.head_dim;

    dt_tensor *q = dt_heads(t, dt_layer_forward(t, b->q, n), e);
    dt_tensor *k = dt_heads(t, dt_layer_forward(t, b->k, n), e);
    dt_tensor *v = dt_heads(t, dt_layer_forward(t, b->v, n), e);
    dt_tensor *a = dt_cached_attention(t, at->pass, at->i, q, k, v, &b->attention);
    return dt_layer_forward(t, b->out, a);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *feed_forward(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const gpt_neo *m = at->self;
    const gpt_neo_block *b = &m->blocks[at->i];

    n = dt_activate(t, m->activation, dt_layer_forward(t, b->c_fc, n));
    return dt_layer_forward(t, b->c_proj, n);
}

static dt_tensor *embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    const gpt_neo *m = self;

    return dt_add(t, dt_layer_forward(t, m->wte, pass->ids),
                  dt_layer_forward(t, m->wpe, pass->positions));
}

static dt_tensor *block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in)
{
    const gpt_neo *m = self;
    const gpt_neo_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *n = dt_layer_forward(t, b->ln_1, in->x);
    dt_tensor *h = dt_add(t, dt_layer_block(t, b->attn, n, attention, &at), in->x);

    n = dt_layer_forward(t, b->ln_2, h);
    return dt_add(t, h, dt_layer_block(t, b->mlp, n, feed_forward, &at));
}

static dt_tensor *head(const void *self, dt_tape *t, dt_tensor *x)
{
    const gpt_neo *m = self;

    return dt_layer_forward(t, m->head, dt_layer_forward(t, m->ln_f, x));
}

static void release(void *self)
{
    dti_free(((gpt_neo *)self)->blocks);
}

/* Causal masks that old files hold as buffers. */
static const char *const ignored[] = { "attn.attention.bias", "attn.attention.masked_bias", NULL };

/* Base models are stored without the prefix. */
static const dt_spelling spellings[] = { { "transformer.", "" }, { NULL, NULL } };

const dt_arch dti_arch_gpt_neo = {
    .size = sizeof(dt_arch),
    .model_type = "gpt_neo",
    .class_name = "GPTNeoForCausalLM",
    .self_bytes = sizeof(gpt_neo),
    .layers_key = "num_layers",
    .spellings = spellings,
    .ignored = ignored,
    .read_config = read_config,
    .add_layers = add_layers,
    .prepare = prepare,
    .embed = embed,
    .block = block,
    .head = head,
    .repeats = repeats,
    .release = release,
    .block_class = "GPTNeoBlock",
    .blocks = "transformer.h.*",
};
