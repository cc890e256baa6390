/* SPDX-License-Identifier: Apache-2.0
 *
 * A language model without a folder: an architecture in C, values from a key, caches and generation
 * by the functions that checkpoints use. */
#include <dtensor/architectures.h>
#include <dtensor/generation.h>
#include <dtensor/weights.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { LAYERS = 2, WIDTH = 12, HEADS = 3, WORDS = 29, NEW = 9 };

typedef struct tiny_block {
    dt_layer *norm, *attn, *q, *k, *v, *o;
} tiny_block;

typedef struct tiny {
    double theta; /* a plain value, as read_config() would have left it */
    dt_model_info info;
    dt_rotary *rotary;
    dt_layer *embed, *norm, *head;
    tiny_block blocks[LAYERS];
} tiny;

static const dt_model_info info = { .dtype = DT_F32,
                                    .vocab_size = WORDS,
                                    .hidden_size = WIDTH,
                                    .n_layers = LAYERS,
                                    .n_heads = HEADS,
                                    .n_kv_heads = HEADS,
                                    .head_dim = WIDTH / HEADS,
                                    .max_positions = 64,
                                    .bos = -1 };

static dt_status add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent Q = { c->n_heads * c->head_dim, DT_UNIT_HEADS, "heads" };
    const dt_extent KV = { c->n_kv_heads * c->head_dim, DT_UNIT_KV_HEADS, "kv heads" };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" }, none = { 0 };
    tiny *m = self;

    /* clang-format off */
#define M(field) offsetof(tiny, field)
#define B(field) offsetof(tiny_block, field)
    const dt_layer_row model[] = {
        { M(embed), "embed", &dt_embedding_kind, V, D,    false, "embedding_rowwise", NULL },
        { M(norm),  "norm",  &dt_rms_norm_kind,  D, none, false, "replicate",         NULL },
        { M(head),  "head",  &dt_linear_kind,    V, D,    false, "colwise",           NULL },
    };
    const dt_layer_row block[] = {
        { B(norm), "norm",   &dt_rms_norm_kind, D,    none, false, "replicate", NULL },
        { B(attn), "attn",   &dt_point_kind,    none, none, false, "replicate", NULL },
        { B(q),    "attn.q", &dt_linear_kind,   Q,    D,    true,  "colwise",   NULL },
        { B(k),    "attn.k", &dt_linear_kind,   KV,   D,    true,  "colwise",   NULL },
        { B(v),    "attn.v", &dt_linear_kind,   KV,   D,    true,  "colwise",   NULL },
        { B(o),    "attn.o", &dt_linear_kind,   D,    Q,    true,  "rowwise",   NULL },
    };
#undef M
#undef B
    /* clang-format on */

    dt_builder_settings(
        builder,
        &(dt_row_settings){ .heads = { c->n_heads, c->n_kv_heads, c->head_dim }, .eps = 1e-6f });
    DT_TRY(dt_builder_add(builder, "", model, (int)DT_COUNT(model), m));
    for (int i = 0; i < LAYERS; i++)
        DT_TRY(dt_builder_add(builder, i == 0 ? "blocks.0" : "blocks.1", block,
                              (int)DT_COUNT(block), &m->blocks[i]));
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *c)
{
    tiny *m = self;

    m->info = *c;
    DT_TRY(dt_rotary_create(c, m->theta, &m->rotary));
    return dt_rotary_prepare(m->rotary, mesh);
}

static dt_tensor *embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    return dt_layer_forward(t, ((const tiny *)self)->embed, pass->ids);
}

static void tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **out)
{
    const tiny *m = self;

    out[0] = dt_rotary_table(t, m->rotary, pass, m->info.dtype);
}

static dt_tensor *block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in)
{
    const tiny *m = self;
    const tiny_block *b = &m->blocks[i];
    const dt_attention_options options = dt_config_attention(&m->info);
    const int64_t e = m->info.head_dim;
    dt_tensor *n = dt_layer_forward(t, b->norm, in->x);
    dt_tensor *q = dt_rope(t, dt_heads(t, dt_layer_forward(t, b->q, n), e), in->tables[0]);
    dt_tensor *k = dt_rope(t, dt_heads(t, dt_layer_forward(t, b->k, n), e), in->tables[0]);
    dt_tensor *v = dt_heads(t, dt_layer_forward(t, b->v, n), e);
    dt_tensor *a = dt_cached_attention(t, pass, i, q, k, v, &options);

    return dt_add(t, in->x, dt_layer_forward(t, b->o, a));
}

static dt_tensor *head(const void *self, dt_tape *t, dt_tensor *x)
{
    const tiny *m = self;

    return dt_layer_forward(t, m->head, dt_layer_forward(t, m->norm, x));
}

static void release(void *self)
{
    dt_rotary_release(&((tiny *)self)->rotary);
}

static const dt_arch arch = { .size = sizeof(dt_arch),
                              .model_type = "tiny",
                              .self_bytes = sizeof(tiny),
                              .add_layers = add_layers,
                              .prepare = prepare,
                              .embed = embed,
                              .tables = tables,
                              .block = block,
                              .head = head,
                              .release = release };

static const tiny self = { .theta = 100.0 };
static int32_t on_one_rank[NEW];

/* Keys are spread, so that the best word is not the same one each time. */
static const dt_init_rule rules[] = { { "**.weight", DT_INIT_NORMAL, 0.0, 0.7 } };

static dt_status generates(dt_mesh *mesh, const void *arg)
{
    static const int32_t prompt[] = { 3, 14, 15 };
    dt_generate_options o = DT_GENERATE_OPTIONS_INIT;
    int32_t ids[NEW] = { 0 };
    DT_HELD(model) *m = NULL;
    DT_HELD(state) *s = NULL;
    int64_t n = 0;

    (void)arg;
    o.max_new_tokens = NEW;
    DT_TRY(dt_model_create(mesh, &arch, &self, &info, NULL, &m));
    DT_TRY(dt_layers_init(dt_model_layers(m), DT_F32, 5, rules, 1));
    DT_TRY(dt_state_create(m, 1, 32, &s));
    DT_TRY(dt_generate(m, s, prompt, 3, &o, ids, &n));
    DT_EXPECT(n == NEW, "%lld tokens", (long long)n);
    if (dt_mesh_n_ranks(mesh) == 1) memcpy(on_one_rank, ids, sizeof ids);
    DT_EXPECT(memcmp(on_one_rank, ids, sizeof ids) == 0, "other tokens than on one rank");
    for (int i = 1; i < NEW && ids[i] == ids[0]; i++)
        DT_EXPECT(i < NEW - 1, "always token %d", (int)ids[0]);
    return DT_OK;
}

static dt_tensor *block_without_attention(const void *own, dt_tape *t, const dt_model_pass *pass,
                                          int64_t i, const dt_flow *in)
{
    (void)pass;
    return dt_layer_forward(t, ((const tiny *)own)->blocks[i].norm, in->x);
}

static dt_status has_nothing_to_prepare(dt_mesh *mesh, const void *arg)
{
    dt_arch plain = arch;
    dt_model *m = NULL;

    (void)arg;
    plain.prepare = NULL;
    plain.release = NULL;
    plain.tables = NULL;
    plain.block = block_without_attention;
    DT_TRY(dt_model_create(mesh, &plain, &self, &info, NULL, &m));
    dt_model_release(&m);
    return DT_OK;
}

DT_TEST(own_model, what_has_nothing_to_prepare_and_release_leaves_them_out)
{
    dt_test_on_ranks("tp=2", has_nothing_to_prepare, NULL);
}

DT_TEST(own_model, an_architecture_without_a_folder_generates_the_same_on_every_mesh)
{
    dt_test_on_ranks("tp=1", generates, NULL);
    dt_test_on_ranks("tp=2", generates, NULL);
    dt_test_on_ranks("tp=3", generates, NULL);
    dt_test_on_ranks("dp=2,tp=2", generates, NULL);
}

static dt_status refuses(dt_mesh *mesh, const void *arg)
{
    const dt_plan_rule rule = { "blocks.*.attn.o", "colwise" }; /* its input is cut already */
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .source = "mine" };
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_model_info bad = info;
    dt_arch headless = arch;
    dt_model *m = NULL;

    (void)arg;
    headless.head = NULL;
    bad.n_heads = 0;
    DT_EXPECT(dt_model_create(mesh, &headless, &self, &info, NULL, &m) == DT_ERR_ARG, "no head");
    DT_EXPECT(dt_model_create(mesh, &arch, &self, &bad, NULL, &m) == DT_ERR_ARG, "no heads");
    DT_EXPECT(dt_model_create(mesh, &arch, NULL, &info, NULL, &m) == DT_ERR_ARG, "no self");
    o.plan = &plan;
    o.dim = "tp";
    DT_TRY(dt_model_create(mesh, &arch, &self, &info, &o, &m)); /* gathers, which is legal */
    dt_model_release(&m);
    return DT_OK;
}

DT_TEST(own_model, what_is_no_architecture_is_refused)
{
    dt_test_on_ranks("tp=2", refuses, NULL);
}
