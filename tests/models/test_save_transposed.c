/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that files hold as [in, out] are saved as they were found, however they were cut. */
#include <dtensor.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "files/checkpoint.h"
#include "files/safetensors.h"
#include "tests/support/dt_test.h"

enum { VOCAB = 13, WIDTH = 10 };

static const char config_text[] =
    "{\"model_type\": \"turned\", \"vocab_size\": 13, \"hidden_size\": 10,"
    " \"num_attention_heads\": 2, \"num_hidden_layers\": 1, \"max_position_embeddings\": 16,"
    " \"tie_word_embeddings\": false, \"torch_dtype\": \"float32\"}";

/* --- an architecture whose head is stored transposed ------------------------------------------ */

typedef struct turned {
    dt_layer *embed, *head;
} turned;

static dt_status turned_read(void *self, const dt_config *config, dt_model_info *info)
{
    static const dt_config_defaults defaults = {
        .vocab = VOCAB, .hidden = WIDTH, .layers = 1, .heads = 2, .positions = 16
    };

    (void)self;
    DT_TRY(dt_config_decoder(config, &defaults, info));
    return DT_OK;
}

static dt_status turned_layers(void *self, const dt_model_info *info, dt_builder *builder)
{
    const dt_extent D = { info->hidden_size, DT_UNIT_ROW, "hidden_size" };
    const dt_extent V = { info->vocab_size, DT_UNIT_ROW, "vocab_size" };
    const dt_layer_row rows[] = {
        { offsetof(turned, embed), "embed", &dt_embedding_kind, V, D, false, "replicate", NULL },
        { offsetof(turned, head), "head", &dt_linear_kind, V, D, false, "colwise", NULL },
    };

    DT_TRY(dt_builder_add(builder, "", rows, (int)DT_COUNT(rows), self));
    dt_builder_spec(builder, "head")->reversed = true;
    return DT_OK;
}

static dt_status turned_prepare(void *self, dt_mesh *mesh, const dt_model_info *info)
{
    (void)self, (void)mesh, (void)info;
    return DT_OK;
}

static dt_tensor *turned_embed(const void *self, dt_tape *t, const dt_model_pass *pass)
{
    return dt_layer_forward(t, ((const turned *)self)->embed, pass->ids);
}

static dt_tensor *turned_block(const void *self, dt_tape *t, const dt_model_pass *pass, int64_t i,
                               const dt_flow *in)
{
    (void)self, (void)t, (void)pass, (void)i;
    return in->x;
}

static dt_tensor *turned_head(const void *self, dt_tape *t, dt_tensor *x)
{
    return dt_layer_forward(t, ((const turned *)self)->head, x);
}

static void turned_release(void *self)
{
    (void)self;
}

static const dt_arch turned_arch = {
    .size = sizeof(dt_arch),
    .model_type = "turned",
    .self_bytes = sizeof(turned),
    .read_config = turned_read,
    .add_layers = turned_layers,
    .prepare = turned_prepare,
    .embed = turned_embed,
    .block = turned_block,
    .head = turned_head,
    .release = turned_release,
};

/* --- there and back --------------------------------------------------------------------------- */

/* Every element says which it is; bf16 has these numbers too. */
static dt_status fill(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg, (void)t;
    for (int64_t i = 0; i < count; i++) ((float *)to)[i] = (float)(first + i);
    return DT_OK;
}

typedef struct saving {
    const char *from, *to;
    const char *style; /* of the head */
    bool half;
} saving;

static dt_status load_and_save(dt_mesh *mesh, const void *arg)
{
    const saving *s = arg;
    const dt_plan_rule rule = { "head", s->style };
    const dt_plan plan = { .rules = &rule, .n_rules = 1, .strict = true };
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_save_options save = DT_SAVE_OPTIONS_INIT;
    dt_model *model = NULL;
    dt_status st;

    load.plan = &plan;
    save.keep_dtype = !s->half;
    save.dtype = DT_BF16;
    DT_TRY(dt_arch_register(dt_mesh_runtime(mesh), &turned_arch));
    DT_TRY(dt_model_load(mesh, s->from, &load, &model));
    st = dt_model_save(model, s->to, &save);
    dt_model_release(&model);
    return st;
}

/* The head of `folder`, as f32. */
static void read_head(const char *folder, float head[VOCAB * WIDTH])
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    const dti_st_entry *e;

    DT_ASSERT_OK(dti_ckpt_open(folder, &ckpt));
    e = dti_ckpt_find(ckpt, "head.weight");
    DT_ASSERT(e != NULL && e->n_axes == 2 && e->shape[0] == WIDTH && e->shape[1] == VOCAB);
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(dti_ckpt_read(ckpt, "head.weight", NULL, NULL, DT_F32, &stage, head));
}

static void check(const char *from, const char *mesh, const char *style, bool half)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    char temporary[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 8];
    float found[VOCAB * WIDTH], wanted[VOCAB * WIDTH];
    const saving s = { from, to, style, half };

    (void)snprintf(to, sizeof to, "%s/saved", dt_test_temp_dir(temporary));
    DT_ASSERT_OK(dt_test_run(&options, mesh, load_and_save, &s));
    read_head(from, wanted);
    read_head(to, found);
    for (int k = 0; k < VOCAB * WIDTH; k++)
        if (found[k] != wanted[k])
            dt_test_fail(__FILE__, __LINE__, "%s on %s: element %d is %g, not %g", style, mesh, k,
                         (double)found[k], (double)wanted[k]);
}

DT_TEST(save, transposed_weights_are_what_the_file_held)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };
    static const char *const styles[] = { "colwise", "rowwise", "replicate" };
    const dti_st_spec specs[] = { { "embed.weight", DT_F32, 2, { VOCAB, WIDTH } },
                                  { "head.weight", DT_F32, 2, { WIDTH, VOCAB } } };
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];

    if (dt_test_processes() > 1) dt_test_skip("each process would make a folder of its own");
    (void)dt_test_temp_dir(folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    dt_test_write_file(folder, "config.json", config_text, sizeof config_text - 1);
    DT_ASSERT_OK(dti_st_write(path, specs, 2, NULL, fill, NULL));
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t i = 0; i < DT_COUNT(styles); i++)
            check(folder, meshes[m], styles[i], i == m % DT_COUNT(styles));
}
