/* SPDX-License-Identifier: Apache-2.0
 *
 * An architecture of one's own, registered from outside the library: the block of Llama written
 * with nothing but public functions. It loads the weights of the demo checkpoint under the
 * model_type "my_llama" and must give the logits of the built-in "llama", bit for bit, on one rank
 * and on two. docs/adding_a_model.md explains it step by step.
 * D model width, E head width, F feed-forward width, V vocabulary; B sequences of T tokens. */
#include <dtensor.h>
#include <dtensor/architectures.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* --- what it is made of ----------------------------------------------------------------------- */

typedef struct my_block {
    dt_layer *norm1, *attn, *q, *k, *v, *o;
    dt_layer *norm2, *mlp, *gate, *up, *down;
} my_block;

typedef struct my_llama {
    dt_model_info info;
    int64_t ff;
    double eps;
    dt_rotary *rotary;
    dt_layer *embed, *norm, *head;
    my_block *blocks; /* [n_layers] */
} my_llama;

static dt_status read_config(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = {
        .vocab = 32000, .hidden = 4096, .layers = 32, .heads = 32, .positions = 2048
    };
    my_llama *m = self;
    const char *act;

    DT_TRY(dt_config_decoder(config, &defaults, info));
    DT_TRY(dt_config_int(config, "intermediate_size", 11008, 1, 1 << 30, &m->ff));
    DT_TRY(dt_config_number(config, "rms_norm_eps", 1e-6, 0, 1, &m->eps));
    DT_TRY(dt_config_string(config, "hidden_act", "silu", &act));
    if (strcmp(act, "silu") != 0)
        return dt_config_refuse(config, "hidden_act", DT_ERR_UNSUPPORTED, "\"silu\"");
    return dt_rotary_read(config, info, &m->rotary);
}

/* --- its layers ------------------------------------------------------------------------------- */

static dt_status add_layers(void *self, const dt_model_info *c, dt_builder *builder)
{
    my_llama *m = self;
    const dt_extent D = { c->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent F = { m->ff, DT_UNIT_ROW, "intermediate_size" };
    const dt_extent Q = { c->n_heads * c->head_dim, DT_UNIT_HEADS,
                          "num_attention_heads * head_dim" };
    const dt_extent KV = { c->n_kv_heads * c->head_dim, DT_UNIT_KV_HEADS,
                           "num_key_value_heads * head_dim" };
    const dt_extent V = { c->vocab_size, DT_UNIT_ROW, "vocab_size" }, none = { 0 };
    const char *tied = c->tied ? "model.embed_tokens" : NULL;

    /* clang-format off */
#define M(field) offsetof(my_llama, field)
#define B(field) offsetof(my_block, field)
    const dt_layer_row model[] = {
/*      field        name in the checkpoint       kind                 out   in    bias   style on "tp"        tied to */
        { M(embed),  "model.embed_tokens",        &dt_embedding_kind,  V,    D,    false, "embedding_rowwise", NULL },
        { M(norm),   "model.norm",                &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { M(head),   "lm_head",                   &dt_linear_kind,     V,    D,    false, "colwise",           tied },
    };
    const dt_layer_row block[] = {
        { B(norm1),  "input_layernorm",           &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { B(attn),   "self_attn",                 &dt_point_kind,      none, none, false, "replicate",         NULL },
        { B(q),      "self_attn.q_proj",          &dt_linear_kind,     Q,    D,    false, "colwise",           NULL },
        { B(k),      "self_attn.k_proj",          &dt_linear_kind,     KV,   D,    false, "colwise",           NULL },
        { B(v),      "self_attn.v_proj",          &dt_linear_kind,     KV,   D,    false, "colwise",           NULL },
        { B(o),      "self_attn.o_proj",          &dt_linear_kind,     D,    Q,    false, "rowwise",           NULL },
        { B(norm2),  "post_attention_layernorm",  &dt_rms_norm_kind,   D,    none, false, "replicate",         NULL },
        { B(mlp),    "mlp",                       &dt_point_kind,      none, none, false, "replicate",         NULL },
        { B(gate),   "mlp.gate_proj",             &dt_linear_kind,     F,    D,    false, "colwise",           NULL },
        { B(up),     "mlp.up_proj",               &dt_linear_kind,     F,    D,    false, "colwise",           NULL },
        { B(down),   "mlp.down_proj",             &dt_linear_kind,     D,    F,    false, "rowwise",           NULL },
    };
#undef M
#undef B
    /* clang-format on */

    m->blocks = calloc((size_t)c->n_layers, sizeof *m->blocks);
    DT_CHECK(m->blocks != NULL, DT_ERR_MEMORY, "my_llama: no room for its blocks");
    dt_builder_settings(builder,
                        &(dt_row_settings){ .heads = { c->n_heads, c->n_kv_heads, c->head_dim },
                                            .eps = (float)m->eps });
    DT_TRY(dt_builder_add(builder, "", model, (int)(sizeof model / sizeof *model), m));
    for (int64_t i = 0; i < c->n_layers; i++) {
        my_block *b = &m->blocks[i];
        char name[40];
        (void)snprintf(name, sizeof name, "model.layers.%lld", (long long)i);
        DT_TRY(dt_builder_add(builder, name, block, (int)(sizeof block / sizeof *block), b));
    }
    return DT_OK;
}

static dt_status prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    my_llama *m = self;

    m->info = *info;
    return dt_rotary_prepare(m->rotary, mesh);
}

/* --- what they compute ------------------------------------------------------------------------ */

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *attention(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const my_llama *m = at->self;
    const my_block *b = &m->blocks[at->i];
    const dt_attention_options options = dt_config_attention(&m->info);
    const int64_t e = m->info.head_dim;
    dt_tensor *rope = at->in->tables[0];

    dt_tensor *q = dt_rope(t, dt_heads(t, dt_layer_forward(t, b->q, n), e), rope);
    dt_tensor *k = dt_rope(t, dt_heads(t, dt_layer_forward(t, b->k, n), e), rope);
    dt_tensor *v = dt_heads(t, dt_layer_forward(t, b->v, n), e);
    dt_tensor *a = dt_cached_attention(t, at->pass, at->i, q, k, v, &options);
    return dt_layer_forward(t, b->o, a);
}

/* n [B, T, D] -> [B, T, D] */
static dt_tensor *feed_forward(const void *context, dt_tape *t, dt_tensor *n)
{
    const dt_block_context *at = context;
    const my_block *b = &((const my_llama *)at->self)->blocks[at->i];
    dt_tensor *gate = dt_silu(t, dt_layer_forward(t, b->gate, n));
    dt_tensor *y = dt_mul(t, gate, dt_layer_forward(t, b->up, n));
    return dt_layer_forward(t, b->down, y);
}

static dt_tensor *embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    return dt_layer_forward(t, ((const my_llama *)self)->embed, pass->ids);
}

static void tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **out)
{
    const my_llama *m = self;

    out[0] = dt_rotary_table(t, m->rotary, pass, m->info.dtype);
}

static dt_tensor *block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                        const dt_flow *in)
{
    const my_llama *m = self;
    const my_block *b = &m->blocks[i];
    const dt_block_context at = { self, pass, i, in };
    dt_tensor *n = dt_layer_forward(t, b->norm1, in->x);
    dt_tensor *h = dt_add(t, in->x, dt_layer_block(t, b->attn, n, attention, &at));

    n = dt_layer_forward(t, b->norm2, h);
    return dt_add(t, h, dt_layer_block(t, b->mlp, n, feed_forward, &at));
}

static dt_tensor *head(const void *self, dt_tape *t, dt_tensor *x)
{
    const my_llama *m = self;

    return dt_layer_forward(t, m->head, dt_layer_forward(t, m->norm, x));
}

static void release(void *self)
{
    my_llama *m = self;

    dt_rotary_release(&m->rotary);
    free(m->blocks);
}

static const dt_arch my_arch = {
    .size = sizeof(dt_arch),
    .model_type = "my_llama",
    .class_name = "LlamaForCausalLM",
    .self_bytes = sizeof(my_llama),
    .read_config = read_config,
    .add_layers = add_layers,
    .prepare = prepare,
    .embed = embed,
    .tables = tables,
    .block = block,
    .head = head,
    .release = release,
    .blocks = "model.layers.*",
};

/* Compiled with -shared -fPIC this file is a module as well, for a command that knows nothing of
 * it: dtensor generate --load ./10_own_architecture.so --model DIR. */
static dt_status add_mine(dt_runtime *rt)
{
    return dt_arch_register(rt, &my_arch);
}

DT_MODULE(add_mine)

/* --- is it equal to the built-in one? --------------------------------------------------------- */

enum { N_TOKENS = 7, MOST = 1 << 16 };

typedef struct job {
    const char *folder; /* model_type "llama" */
    const char *mine;   /* the same with model_type "my_llama" */
} job;

/* Logits of a few tokens, gathered: [N_TOKENS, V]. */
static dt_status logits_of(dt_mesh *mesh, const char *folder, float *to, int64_t *n)
{
    static const int32_t ids[N_TOKENS] = { 1, 20, 300, 4, 50, 60, 7 };
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    dt_tensor *y = NULL, *full = NULL;
    dt_state *state = NULL;
    dt_model *model = NULL;
    dt_tape *tape = NULL;
    dt_status st = DT_OK;

    options.keep_dtype = false; /* f32 */
    DT_TRY_TO(done, st, dt_model_load(mesh, folder, &options, &model));
    DT_TRY_TO(done, st, dt_state_create(model, 1, N_TOKENS, &state));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &tape));
    y = dt_model_forward(tape, model, state, ids, N_TOKENS, DT_LOGITS_ALL);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    *n = N_TOKENS * dt_model_info_of(model)->vocab_size;
    DT_CHECK_TO(done, st, *n <= MOST, DT_ERR_ARG, "a vocabulary of more than %d", MOST / N_TOKENS);
    memcpy(to, dt_tensor_local(full)->data, (size_t)*n * sizeof *to);
done:
    dt_tensor_release(&full);
    dt_tape_release(&tape);
    dt_state_release(&state);
    dt_model_release(&model);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const job *j = arg;
    float *theirs = calloc(MOST, sizeof *theirs), *mine = calloc(MOST, sizeof *mine);
    dt_mesh *mesh = NULL;
    int64_t n = 0, n_mine = 0;
    dt_status st = DT_OK;
    char spec[16];

    (void)snprintf(spec, sizeof spec, "tp=%d", dt_runtime_size(rt));
    DT_CHECK_TO(done, st, theirs != NULL && mine != NULL, DT_ERR_MEMORY, "no room for logits");
    DT_TRY_TO(done, st, add_mine(rt));
    DT_TRY_TO(done, st, dt_mesh_create(rt, spec, &mesh));
    DT_TRY_TO(done, st, logits_of(mesh, j->folder, theirs, &n));
    DT_TRY_TO(done, st, logits_of(mesh, j->mine, mine, &n_mine));
    DT_CHECK_TO(done, st, n == n_mine && memcmp(theirs, mine, (size_t)n * sizeof *mine) == 0,
                DT_ERR_INTERNAL, "the logits of my_llama are not those of llama");
    if (dt_runtime_rank(rt) == 0)
        printf("%s: %lld logits of my_llama are equal, bit for bit, to those of llama\n", spec,
               (long long)n);
done:
    dt_mesh_release(&mesh);
    free(theirs);
    free(mine);
    return st;
}

/* config.json with another model_type, and a link to the weights. */
static bool make_folder(const char *from, const char *to)
{
    static const char was[] = "\"model_type\": \"llama\"";
    char path[1024], target[1024], config[16384], *at;
    size_t n;
    FILE *f;

    (void)snprintf(path, sizeof path, "%s/config.json", from);
    if ((f = fopen(path, "rb")) == NULL) return false;
    n = fread(config, 1, sizeof config - 1, f);
    (void)fclose(f);
    config[n] = '\0';
    if ((at = strstr(config, was)) == NULL) return false;
    (void)snprintf(path, sizeof path, "%s/config.json", to);
    if ((f = fopen(path, "wb")) == NULL) return false;
    (void)fprintf(f, "%.*s\"model_type\": \"my_llama\"%s", (int)(at - config), config,
                  at + sizeof was - 1);
    if (fclose(f) != 0) return false;
    (void)snprintf(target, sizeof target, "%s/model.safetensors", from);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", to);
    return symlink(target, path) == 0;
}

static void remove_folder(const char *folder)
{
    static const char *const files[] = { "config.json", "model.safetensors" };
    char path[1024];

    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        (void)unlink(path);
    }
    (void)rmdir(folder);
}

int main(int argc, char **argv)
{
    char mine[] = "/tmp/my_llama.XXXXXX", folder[1024];
    job j = { .folder = folder, .mine = mine };
    dt_status st = DT_OK;

    if (realpath(argc > 1 ? argv[1] : "examples/checkpoint", folder) == NULL ||
        mkdtemp(mine) == NULL)
        return perror("examples/checkpoint"), 1;
    if (!make_folder(folder, mine)) st = DT_ERR_IO;
    for (int n = 1; n <= 2 && st == DT_OK; n++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = n;
        st = dt_run(&options, rank_main, &j);
    }
    remove_folder(mine);
    if (st != DT_OK)
        (void)fprintf(stderr, "%s: %s\n", dt_status_name(st), dt_last_error()->message);
    return st == DT_OK ? 0 : 1;
}
