/* SPDX-License-Identifier: Apache-2.0
 *
 * Architectures from outside the library: who sees them, and what goes wrong is said. */
#include <dtensor.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

/* --- a toy: every token is looked up and scored ----------------------------------------------- */

typedef struct toy {
    dt_model_info info;
    int64_t fault; /* which step fails */
    dt_layer *embed, *head;
} toy;

enum {
    NO_FAULT,
    FAULT_LAYERS,
    FAULT_PREPARE,
    FAULT_EMBED,
    FAULT_LAYER,
    FAULT_ROTARY,
    FAULT_KEY,
    FAULT_ROW,
    FAULT_HEAD,
    FAULT_BLOCK,
    FAULT_SCOPE,
    FAULT_NULL,
    FAULT_END,
    FAULT_FLAT
};

static dt_status toy_read(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = {
        .vocab = 12, .hidden = 8, .layers = 2, .heads = 2, .positions = 16, .bos = 3, .eos = 5
    };
    const dt_config loud = dt_config_member(config, "loud");
    bool is_loud = false;
    toy *m = self;
    const char *kind;

    if (dt_config_is_set(&loud)) DT_TRY(dt_config_as_bool(&loud, &is_loud));
    if (is_loud) return dt_fail(DT_ERR_ARG, "the toy is loud");
    DT_TRY(dt_config_decoder(config, &defaults, info));
    DT_TRY(dt_config_int(config, "fault", NO_FAULT, NO_FAULT, FAULT_FLAT, &m->fault));
    if (m->fault == FAULT_KEY) DT_TRY(dt_config_int(config, NULL, 0, 0, 1, &m->fault));
    DT_TRY(dt_config_string(config, "kind", "plain", &kind));
    if (strcmp(kind, "plain") != 0)
        return dt_config_refuse(config, "kind", DT_ERR_UNSUPPORTED, "\"plain\"");
    return DT_OK;
}

static dt_status toy_layers(void *self, const dt_model_info *info, dt_builder *builder)
{
    toy *m = self;
    const dt_extent D = { info->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent V = { info->vocab_size, DT_UNIT_ROW, "vocab_size" };
    const char *head = m->fault == FAULT_ROW ? NULL : "head";
    const dt_layer_row rows[] = {
        { offsetof(toy, embed), "embed", &dt_embedding_kind, V, D, false, "embedding_rowwise",
          NULL },
        { offsetof(toy, head), head, &dt_linear_kind, V, D, false, "colwise",
          info->tied ? "embed" : NULL },
    };

    if (m->fault == FAULT_LAYERS) return dt_fail(DT_ERR_ARG, "the toy has no layers today");
    DT_TRY(dt_builder_add(builder, "", rows, (int)DT_COUNT(rows), m));
    return DT_OK;
}

static dt_status toy_prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    toy *m = self;

    (void)mesh;
    m->info = *info;
    if (m->fault == FAULT_PREPARE) return dt_fail(DT_ERR_ARG, "the toy is not prepared");
    return DT_OK;
}

static dt_tensor *toy_embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    const toy *m = self;
    dt_tensor *x = dt_layer_forward(t, m->embed, pass->ids);

    if (m->fault == FAULT_EMBED) return dt_tape_fail(t, DT_ERR_ARG, "the toy goes no further");
    return m->fault == FAULT_FLAT ? pass->ids : x;
}

static void toy_tables(const void *self, dt_tape *t, const dt_model_pass *pass, dt_tensor **tables)
{
    const toy *m = self;

    tables[0] = pass->positions;
    if (m->fault == FAULT_ROTARY) tables[1] = dt_rotary_table(t, NULL, pass, DT_F32);
}

/* x twice, so that the blocks are seen in the logits. */
static dt_tensor *toy_block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                            const dt_flow *in)
{
    const toy *m = self;

    if (in->tables[0] != pass->positions || in->tables[1] != NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "the tables are not those that were made");
    if (m->fault == FAULT_LAYER) {
        const dt_attention_options options = dt_config_attention(&m->info);
        dt_tensor *q = dt_heads(t, in->x, m->info.head_dim);
        return dt_cached_attention(t, pass, m->info.n_layers, q, q, q, &options);
    }
    if (i == 0) return in->x; /* it has nothing to add */
    if (m->fault == FAULT_BLOCK) return dt_layer_forward(t, m->head, in->x);
    if (m->fault == FAULT_NULL) return NULL;
    if (m->fault == FAULT_SCOPE) dt_scope_begin(t, "inner");
    if (m->fault == FAULT_END) return dt_scope_end(t, in->x);
    return dt_add(t, in->x, in->x);
}

static dt_tensor *toy_head(const void *self, dt_tape *t, dt_tensor *x)
{
    const toy *m = self;

    return m->fault == FAULT_HEAD ? x : dt_layer_forward(t, m->head, x);
}

static void toy_release(void *self)
{
    (void)self;
}

static const dt_arch toy_arch = {
    .size = sizeof(dt_arch),
    .model_type = "toy",
    .self_bytes = sizeof(toy),
    .read_config = toy_read,
    .add_layers = toy_layers,
    .prepare = toy_prepare,
    .embed = toy_embed,
    .tables = toy_tables,
    .block = toy_block,
    .head = toy_head,
    .release = toy_release,
};

/* --- who sees it ------------------------------------------------------------------------------ */

/* A dry runtime of one rank; with the toy or without. */
static dt_runtime *make_runtime(bool with_toy)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    dt_runtime *rt = NULL;

    options.n_ranks = 3;
    DT_ASSERT_OK(dt_runtime_create_dry(&options, 0, NULL, &rt));
    if (with_toy) DT_ASSERT_OK(dt_arch_register(rt, &toy_arch));
    return rt;
}

static dt_status load_and_run(dt_runtime *rt, const char *folder)
{
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(model) *model = NULL;
    DT_HELD(state) *state = NULL;
    DT_HELD(tape) *tape = NULL;

    DT_TRY(dt_mesh_create(rt, "tp=3", &mesh));
    DT_TRY(dt_model_check(mesh, folder, NULL));
    DT_TRY(dt_model_load(mesh, folder, NULL, &model));
    DT_TRY(dt_state_create(model, 1, 8, &state));
    DT_TRY(dt_tape_create(rt, &tape));
    (void)dt_model_forward(tape, model, state, NULL, 4, DT_LOGITS_LAST);
    DT_TRY(dt_tape_status(tape));
    return DT_OK;
}

static void write_config(char folder[DT_TEST_PATH_BYTES], const char *text)
{
    (void)dt_test_temp_dir(folder);
    dt_test_write_file(folder, "config.json", text, strlen(text));
}

DT_TEST(architectures, a_runtime_knows_its_own_and_no_other_ones)
{
    DT_ENDS(dt_runtime_release_dry)
    dt_runtime *without = make_runtime(false), *with = make_runtime(true), *like = NULL;
    dt_run_options options = DT_RUN_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES];
    dt_model_info info;

    write_config(folder, "{\"model_type\": \"toy\", \"tie_word_embeddings\": true}");
    DT_ASSERT_OK(load_and_run(with, folder));
    DT_ASSERT_STATUS(load_and_run(without, folder), DT_ERR_UNSUPPORTED, "which is not supported");
    DT_ASSERT(strstr(dt_last_error()->message, ", \"toy\"") == NULL);
    DT_ASSERT_STATUS(dt_model_inspect(folder, &info, NULL, NULL), DT_ERR_UNSUPPORTED, "toy");
    /* there are no weights, which is found after the architecture was */
    DT_ASSERT_STATUS(dt_model_inspect_with(with, folder, &info, NULL, NULL), DT_ERR_FORMAT,
                     "has neither model.safetensors");
    options.n_ranks = 3;
    DT_ASSERT_OK(dt_runtime_create_dry(&options, 1, with, &like));
    DT_ASSERT_OK(load_and_run(like, folder));
}

DT_TEST(architectures, unknown_ones_are_told_what_there_is)
{
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = make_runtime(true);
    char folder[DT_TEST_PATH_BYTES];

    write_config(folder, "{\"model_type\": \"toys\"}");
    DT_ASSERT_STATUS(load_and_run(rt, folder), DT_ERR_UNSUPPORTED, "add one to \"toy\", \"llama\"");
}

/* By the keys of its config.json, and of their text part. */
DT_TEST(architectures, unknown_ones_are_told_the_nearest)
{
    static const struct {
        const char *text, *said;
    } rows[] = {
        { "{\"model_type\": \"x\", \"hidden_size\": 8, \"num_attention_heads\": 2, "
          "\"rms_norm_eps\": 1e-6, \"wheels\": 4, \"doors\": [2]}",
          "nearest to \"llama\", which does not know wheels, doors; docs/adding_a_model.md" },
        { "{\"model_type\": \"x\", \"n_embd\": 8, \"n_head\": 2, \"n_layer\": 2}",
          "nearest to \"gpt2\", which knows them all" },
        { "{\"model_type\": \"x\", \"text_config\": {\"hidden_size\": 8, \"head_dim\": 4, "
          "\"num_attention_heads\": 2, \"embedding_multiplier\": 3, \"eyes\": 1}}",
          "nearest to \"granite\", which does not know eyes" },
        { "{\"model_type\": \"x\", \"vocab_size\": 0}", "\"mistral\"" },
    };
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = make_runtime(false);
    char folder[DT_TEST_PATH_BYTES];

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        write_config(folder, rows[i].text);
        DT_ASSERT_STATUS(load_and_run(rt, folder), DT_ERR_UNSUPPORTED, rows[i].said);
        DT_ASSERT(strstr(dt_last_error()->message, "docs/adding_a_model.md") != NULL);
    }
}

/* --- what goes wrong -------------------------------------------------------------------------- */

DT_TEST(architectures, faults_of_its_functions_are_reported_as_they_are)
{
    static const struct {
        const char *config;
        const char *said;
    } rows[] = {
        { "\"fault\": 1", "the toy has no layers today" },
        { "\"fault\": 2", "the toy is not prepared" },
        { "\"fault\": 3", "the toy goes no further" },
        { "\"fault\": 4", "dt_cached_attention: layer 2 of a model of 2" },
        { "\"fault\": 5", "dt_rotary_table: rotary is NULL" },
        { "\"fault\": 6", "config, key or out is NULL" },
        { "\"fault\": 7", "row 1 of \"\": a layer needs a name" },
        { "\"fault\": 8", "toy: head() returned [1, 8, 8], must be [1, 8, 12]: batch, tokens, "
                          "vocab_size" },
        { "\"fault\": 9", "block 1: block() returned [1, 8, 12], must be [1, 8, 8]: batch, "
                          "tokens, hidden_size" },
        { "\"fault\": 10", "block 1: block() left 1 scope open, \"inner\"" },
        { "\"fault\": 11", "block 1: block() returned NULL without an error" },
        { "\"fault\": 12", "block() ended 1 scope that it did not begin" },
        { "\"fault\": 13", "toy: embed() returned [1, 8], must be [1, 8, 8]" },
        { "\"fault\": 14", "fault is 14, must be an integer from 0 to 13" },
        { "\"kind\": \"wild\"", "kind is the string \"wild\", must be \"plain\"" },
        { "\"kind\": 7", "kind is 7" },
        { "\"loud\": true", "the toy is loud" },
        { "\"loud\": 1", "loud is 1, must be true or false" },
        { "\"quantization_config\": {}", "quantised" },
    };
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = make_runtime(true);

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        char folder[DT_TEST_PATH_BYTES], text[128];
        dt_status st;
        (void)snprintf(text, sizeof text, "{\"model_type\": \"toy\", %s}", rows[i].config);
        write_config(folder, text);
        st = load_and_run(rt, folder);
        DT_ASSERT(st != DT_OK);
        DT_ASSERT_STATUS(st, st, rows[i].said);
    }
}

DT_TEST(architectures, registering_refuses_what_could_not_be_used)
{
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = make_runtime(true);
    dt_arch a = toy_arch;

    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "\"toy\" is there already");
    a.model_type = "llama";
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "\"llama\" is there already");
    a.model_type = "";
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "needs a model_type");
    a.model_type = "a_name_that_does_not_fit_in_32_bytes";
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "at most 31 fit");
    a.model_type = "other";
    a.block = NULL;
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "block is NULL");
    a = toy_arch;
    a.model_type = "other";
    a.self_bytes = 0;
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "self_bytes is 0");
    a.self_bytes = sizeof(toy);
    a.block_class = "ToyLayer";
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "block_class without blocks");
    a.block_class = NULL;
    a.blocks = "model.layers";
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "with one * for their number");
    a.blocks = NULL;
    a.size = 3;
    DT_ASSERT_STATUS(dt_arch_register(rt, &a), DT_ERR_ARG, "sizeof(dt_arch)");
    DT_ASSERT_STATUS(dt_arch_register(rt, NULL), DT_ERR_ARG, "arch is NULL");
    DT_ASSERT_STATUS(dt_arch_register(NULL, &toy_arch), DT_ERR_ARG, "rt or arch");
    a = toy_arch;
    a.model_type = "other";
    a.prepare = NULL; /* nothing to do */
    a.release = NULL;
    DT_ASSERT_OK(dt_arch_register(rt, &a));
}
