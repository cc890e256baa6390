/* SPDX-License-Identifier: Apache-2.0
 *
 * Checkpoints whose weights compressed-tensors, Transformers, AutoGPTQ and AutoAWQ have packed
 * (tools/make_packed_golden.py): logits are those of the weights that these unpack, on every mesh;
 * saved and loaded again they are the same bits; what such a folder may not say is refused by name.
 */
#include <dtensor/checkpoints.h>
#include <dtensor/model_training.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "tests/support/dt_test.h"

enum { TOKENS = 11 };

typedef struct fixture {
    const char *name;
    double tolerance; /* of the largest logit */
    int n_packed;
    char folder[DT_TEST_PATH_BYTES];
    char saved[DT_TEST_PATH_BYTES + 8]; /* where to save it; "": nowhere */
    const dt_plan *plan;
} fixture;

/* bf16: the reference rounds weights that it unpacks, here they are exact. */
static const fixture fixtures[] = {
    { "llama_int4", 1e-5, 14, "", "", NULL },
    { "llama_int4_zeros", 1e-5, 7, "", "", NULL },
    { "llama_int8_channel", 0.02, 14, "", "", NULL },
    { "llama_w8a8", 1e-5, 10, "", "", NULL },
    { "phi3_int4_zeros", 1e-5, 9, "", "", NULL },
    { "llama_gptq", 1e-5, 14, "", "", NULL },
    { "llama_awq", 1e-5, 11, "", "", NULL },
    { "small_gptq4_auto_gptq", 1e-5, 7, "", "", NULL },
    { "small_gptq8_auto_gptq", 1e-5, 7, "", "", NULL },
    { "small_awq_autoawq", 1e-5, 4, "", "", NULL },
    { "qwen3_moe_int4", 1e-5, 13, "", "", NULL }, /* experts, one block of two */
    { "qwen3_moe_w8a8", 1e-5, 13, "", "", NULL },
    { "qwen3_moe_gptq", 1e-5, 13, "", "", NULL },
    { "mixtral_int4_zeros", 1e-5, 6, "", "", NULL },
    { "mixtral_awq", 1e-5, 6, "", "", NULL },
    { "llama_fp8_tensor", 1e-5, 14, "", "", NULL }, /* from here on: not saved */
    { "llama_fp8_channel", 1e-5, 14, "", "", NULL },
    { "llama_fp8_blocks", 1e-5, 11, "", "", NULL },
    { "small_fp8_transformers", 1e-5, 7, "", "", NULL },
    { "qwen3_moe_fp8_blocks", 1e-5, 13, "", "", NULL },
    { "deepseek_v3_fp8_blocks", 1e-5, 16, "", "", NULL }, /* kv_b_proj is plain from then on */
    { "gpt_oss_mxfp4", 1e-5, 0, "", "", NULL },           /* and all experts are */
};
enum { N_SAVED = 15 };

static fixture find(size_t i)
{
    fixture f = fixtures[i];
    char path[64];

    (void)snprintf(path, sizeof path, "tests/golden/packed/%s", f.name);
    (void)dt_test_source_path(f.folder, path);
    return f;
}

static fixture named(const char *name)
{
    size_t i = 0;

    while (name != NULL && i < DT_COUNT(fixtures) - 1 && strcmp(fixtures[i].name, name) != 0) i++;
    return find(i);
}

/* The prompt of a fixture, and what was made of it. */
static dt_status read_expected(const char *folder, int32_t ids[TOKENS], float **logits, int64_t *n)
{
    char path[DT_TEST_PATH_BYTES + 32];
    int64_t prompt[TOKENS];
    dti_st_file *file = NULL;
    dti_st_stage stage = { 0 };
    const dti_st_entry *e;
    dt_status st = DT_OK;

    (void)snprintf(path, sizeof path, "%s/expected.safetensors", folder);
    DT_TRY(dti_st_open(path, &file));
    DT_TRY_TO(done, st, dti_st_stage_create(0, NULL, &stage));
    e = dti_st_find(file, "prompt");
    DT_TRY_TO(done, st, dti_st_read_slice(file, e, NULL, NULL, DT_I64, &stage, prompt));
    for (int i = 0; i < TOKENS; i++) ids[i] = (int32_t)prompt[i];
    e = dti_st_find(file, "logits_f32");
    *n = e->shape[0] * e->shape[1];
    DT_TRY_TO(done, st, dti_alloc_array((size_t)*n, sizeof **logits, (void **)logits));
    DT_TRY_TO(done, st, dti_st_read_slice(file, e, NULL, NULL, DT_F32, &stage, *logits));
done:
    dti_st_stage_destroy(&stage);
    dti_st_close(&file);
    return st;
}

static dt_status logits_of(dt_model *model, const int32_t *ids, int64_t n, float **out)
{
    dt_state *state = NULL;
    dt_tape *tape = NULL;
    dt_tensor *y, *full = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_model_mesh(model)), &tape));
    DT_TRY_TO(done, st, dt_state_create(model, 1, TOKENS, &state));
    y = dt_model_forward(tape, model, state, ids, TOKENS, DT_LOGITS_ALL);
    DT_TRY_TO(done, st, dt_tape_status(tape));
    DT_TRY_TO(done, st, dt_full_tensor(y, &full));
    DT_TRY_TO(done, st, dti_alloc_array((size_t)n, sizeof **out, (void **)out));
    dti_convert(*out, DT_F32, dt_tensor_local(full)->data, dt_tensor_dtype(full), n);
done:
    dt_tensor_release(&full);
    dt_state_release(&state);
    dt_tape_release(&tape);
    return st;
}

static dt_status load(dt_mesh *mesh, const fixture *f, const char *folder, dt_model **out)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;

    o.plan = f->plan;
    o.keep_dtype = false;
    o.dtype = DT_F32;
    if (dt_mesh_find_dim(mesh, "shard") >= 0) o.fully_shard = "shard";
    return dt_model_load(mesh, folder, &o, out);
}

static int count_packed(dt_layers *layers)
{
    int n = 0;

    for (int i = 0; i < dt_layers_count(layers); i++) {
        const dt_layer_kind *kind = dt_layer_kind_of(dt_layers_at(layers, i));
        n += kind == &dt_linear_packed_kind || kind == &dt_experts_packed_kind;
    }
    return n;
}

/* The folder that was just saved gives the same bits. */
static dt_status again(dt_mesh *mesh, const fixture *f, dt_model *model, const int32_t *ids,
                       const float *want, int64_t n)
{
    dt_model *other = NULL;
    float *got = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_model_save(model, f->saved, NULL));
    DT_TRY(load(mesh, f, f->saved, &other));
    DT_TRY_TO(done, st, logits_of(other, ids, n, &got));
    DT_EXPECT_TO(done, st, memcmp(got, want, (size_t)n * sizeof *got) == 0, "%s: other bits",
                 f->name);
    DT_EXPECT_TO(done, st, count_packed(dt_model_layers(other)) == f->n_packed, "packed layers");
done:
    dti_free(got);
    dt_model_release(&other);
    return st;
}

static dt_status matches(dt_mesh *mesh, const void *arg)
{
    const fixture *f = arg;
    dt_model *model = NULL;
    float *want = NULL, *got = NULL;
    double largest = 0.0, off = 0.0;
    int32_t ids[TOKENS];
    dt_status st = DT_OK;
    int64_t n = 0;

    DT_TRY(read_expected(f->folder, ids, &want, &n));
    DT_TRY_TO(done, st, load(mesh, f, f->folder, &model));
    DT_EXPECT_TO(done, st, count_packed(dt_model_layers(model)) == f->n_packed, "%d are packed",
                 count_packed(dt_model_layers(model)));
    DT_TRY_TO(done, st, logits_of(model, ids, n, &got));
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)want[i]));
        off = fmax(off, fabs((double)got[i] - (double)want[i]));
    }
    DT_EXPECT_TO(done, st, off <= f->tolerance * largest, "%s: off by %g of %g", f->name, off,
                 largest);
    if (f->saved[0] != '\0') DT_TRY_TO(done, st, again(mesh, f, model, ids, got, n));
done:
    dti_free(want);
    dti_free(got);
    dt_model_release(&model);
    return st;
}

DT_TEST(packed_files, logits_match_on_every_mesh)
{
    static const char *const meshes[] = { "tp=1",      "tp=2",    "tp=3",         "tp=4",
                                          "dp=2,tp=2", "shard=7", "shard=3,tp=2", "shard=2,tp=3" };

    for (size_t i = 0; i < DT_COUNT(fixtures); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            const fixture f = find(i);
            dt_test_on_ranks(meshes[m], matches, &f);
        }
}

DT_TEST(packed_files, saved_and_loaded_again_they_give_the_same_bits)
{
    static const char *const meshes[] = { "tp=1", "tp=3", "dp=2,tp=2", "shard=2,tp=2" };

    for (size_t i = 0; i < N_SAVED; i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            char temporary[DT_TEST_PATH_BYTES];
            fixture f = find(i);
            (void)snprintf(f.saved, sizeof f.saved, "%s/saved", dt_test_temp_dir(temporary));
            dt_test_on_ranks(meshes[m], matches, &f);
            dt_test_remove_dir(temporary);
        }
}

/* Whole experts on each rank, on the dim of the rest or on one of their own; there parts of them
 * are cut by "tp" as well. */
DT_TEST(packed_files, experts_cut_as_a_whole_match_too)
{
    static const dt_plan_rule rules[] = {
        { "model.layers.*.mlp.experts.gate_up_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts", "moe_tp_experts" },
    };
    static const dt_plan on_tp = { .rules = rules, .n_rules = 3, .strict = true };
    static const dt_plan on_ep = { .rules = rules, .n_rules = 3, .dim = "ep", .strict = true };
    static const char *const meshes[] = { "tp=2", "tp=4", "ep=2,tp=2", "ep=3,tp=1" };

    for (size_t i = 0; i < DT_COUNT(fixtures); i++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            char temporary[DT_TEST_PATH_BYTES];
            fixture f = find(i);
            if (strstr(f.name, "moe") == NULL && strstr(f.name, "mixtral") == NULL &&
                strstr(f.name, "deepseek") == NULL)
                continue;
            f.plan = meshes[m][0] == 'e' ? &on_ep : &on_tp;
            if (i < N_SAVED && m >= 2)
                (void)snprintf(f.saved, sizeof f.saved, "%s/saved", dt_test_temp_dir(temporary));
            dt_test_on_ranks(meshes[m], matches, &f);
            if (f.saved[0] != '\0') dt_test_remove_dir(temporary);
        }
}

/* Blocks of 32 inputs that ranks share, and whole experts with their biases; the numbers are f32's,
 * bf16's and f16's alike. Saved it is a plain folder, and the same to the bit. */
DT_TEST(packed_files, mxfp4_becomes_plain_weights_wherever_it_is_cut)
{
    static const dt_plan_rule rules[] = {
        { "model.layers.*.mlp.experts.gate_up_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.gate_up_proj_bias", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj", "grouped_gemm" },
        { "model.layers.*.mlp.experts.down_proj_bias", "grouped_gemm" },
        { "model.layers.*.mlp.experts", "ep_dispatch_experts" },
    };
    static const dt_plan on_tp = { .rules = rules, .n_rules = 5, .strict = true };
    static const dt_plan on_ep = { .rules = rules, .n_rules = 5, .dim = "ep", .strict = true };
    static const char *const meshes[] = { "tp=1", "tp=3", "tp=4", "ep=2,tp=2", "ep=3,tp=1" };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (int whole = 0; whole < 2; whole++) {
            char temporary[DT_TEST_PATH_BYTES];
            fixture f = named("gpt_oss_mxfp4");
            f.plan = meshes[m][0] == 'e' ? &on_ep : whole ? &on_tp : NULL;
            (void)snprintf(f.saved, sizeof f.saved, "%s/saved", dt_test_temp_dir(temporary));
            dt_test_on_ranks(meshes[m], matches, &f);
            dt_test_remove_dir(temporary);
        }
}

/* --- what is refused -------------------------------------------------------------------------- */

/* config.json of a fixture with the first `from` as `to`. */
typedef struct change {
    const char *from, *to;
    dt_status code;
    const char *words;
    const char *fixture; /* NULL: llama_int4 */
} change;

static void copy(const char *from, const char *folder, const char *name, const change *c)
{
    char path[DT_TEST_PATH_BYTES + 32];
    void *bytes = NULL;
    char *text, *at;
    int64_t n = 0;

    (void)snprintf(path, sizeof path, "%s/%s", from, name);
    DT_ASSERT_OK(dti_input_read_all(path, 1 << 22, &bytes, &n));
    if (c == NULL) {
        dt_test_write_file(folder, name, bytes, (size_t)n);
        dti_free(bytes);
        return;
    }
    DT_ASSERT_OK(dti_alloc((size_t)n + 1, (void **)&text));
    memcpy(text, bytes, (size_t)n);
    text[n] = '\0';
    at = strstr(text, c->from);
    if (at == NULL) dt_test_fail(__FILE__, __LINE__, "%s is not there", c->from);
    if (at != NULL) {
        char *made = NULL;
        DT_ASSERT_OK(dti_alloc((size_t)n + strlen(c->to) + 1, (void **)&made));
        (void)snprintf(made, (size_t)n + strlen(c->to) + 1, "%.*s%s%s", (int)(at - text), text,
                       c->to, at + strlen(c->from));
        dt_test_write_file(folder, name, made, strlen(made));
        dti_free(made);
    }
    dti_free(text);
    dti_free(bytes);
}

DT_TEST(packed_files, what_a_folder_may_not_say_is_refused_by_name)
{
    static const change changes[] = {
        { "\"num_bits\": 4", "\"num_bits\": 3", DT_ERR_UNSUPPORTED, "num_bits", NULL },
        { "\"num_bits\": 4", "\"num_bits\": 8", DT_ERR_FORMAT, "weight_packed", NULL },
        { "\"num_bits\": 4", "\"num_bits\": \"4\"", DT_ERR_FORMAT, "num_bits", NULL },
        { "\"type\": \"int\"", "\"type\": \"float\"", DT_ERR_UNSUPPORTED, "weights.type", NULL },
        { "\"strategy\": \"group\"", "\"strategy\": \"tensor\"", DT_ERR_UNSUPPORTED, "strategy",
          NULL },
        { "\"strategy\": \"group\"", "\"strategy\": \"channel\"", DT_ERR_FORMAT, "weight_scale",
          NULL },
        { "\"group_size\": 32", "\"group_size\": 64", DT_ERR_FORMAT, "divide the 96 inputs", NULL },
        { "\"group_size\": 32", "\"group_size\": 16", DT_ERR_FORMAT, "weight_scale", NULL },
        { "\"group_size\": 32", "\"group_size\": 12", DT_ERR_UNSUPPORTED, "16 divides", NULL },
        { "\"group_size\": 32", "\"group_size\": null", DT_ERR_FORMAT, "group_size", NULL },
        { "\"group_size\": 32", "\"group_size\": -32", DT_ERR_FORMAT, "group_size", NULL },
        { "\"symmetric\": true", "\"symmetric\": false", DT_ERR_FORMAT, "weight_zero_point", NULL },
        { "\"symmetric\": true", "\"symmetric\": 1", DT_ERR_FORMAT, "symmetric", NULL },
        { "\"symmetric\": true", "\"symmetric\": true, \"actorder\": \"group\"", DT_ERR_UNSUPPORTED,
          "weight_g_idx", NULL },
        { "\"symmetric\": true", "\"symmetric\": true, \"actorder\": \"dynamic\"",
          DT_ERR_UNSUPPORTED, "weight_g_idx", NULL },
        { "\"symmetric\": true", "\"symmetric\": true, \"actorder\": true", DT_ERR_UNSUPPORTED,
          "weight_g_idx", NULL },
        { "\"symmetric\": true", "\"symmetric\": true, \"actorder\": 1", DT_ERR_UNSUPPORTED,
          "actorder", NULL },
        { "\"pack-quantized\"", "\"nvfp4-pack-quantized\"", DT_ERR_UNSUPPORTED, "format", NULL },
        { "\"pack-quantized\"", "\"int-quantized\"", DT_ERR_UNSUPPORTED, "num_bits", NULL },
        { "\"quant_method\": \"compressed-tensors\"", "\"quant_method\": \"hqq\"",
          DT_ERR_UNSUPPORTED, "\"hqq\"", NULL },
        { "\"quantization_status\": \"compressed\"", "\"quantization_status\": \"frozen\"",
          DT_ERR_UNSUPPORTED, "compressed", NULL },
        { "\"lm_head\"", "\"lm_heads\"", DT_ERR_FORMAT, "lm_head.weight_packed", NULL },
        { "\"lm_head\"", "7", DT_ERR_FORMAT, "ignore", NULL },
        { "\"Linear\"", "\"re:(\"", DT_ERR_UNSUPPORTED, "targets", NULL },
        { "\"kv_cache_scheme\"", "\"sparsity_config\": {\"format\": \"24\"}, \"k\"",
          DT_ERR_UNSUPPORTED, "sparsity_config", NULL },
        { "\"bits\": 4", "\"bits\": 3", DT_ERR_UNSUPPORTED, "bits", "llama_gptq" },
        { "\"bits\": 4", "\"bits\": 8", DT_ERR_FORMAT, "qweight", "llama_gptq" },
        { "\"group_size\": 32", "\"group_size\": 16", DT_ERR_FORMAT, "scales", "llama_gptq" },
        { "\"gptq\",\n", "\"marlin\",\n", DT_ERR_UNSUPPORTED, "checkpoint_format", "llama_gptq" },
        { "\"sym\"", "\"dynamic\": {\"-:a\": {}}, \"sym\"", DT_ERR_UNSUPPORTED, "dynamic",
          "llama_gptq" },
        { "\"gemm\"", "\"gemv\"", DT_ERR_UNSUPPORTED, "version", "llama_awq" },
        { "\"zero_point\": true", "\"zero_point\": false", DT_ERR_UNSUPPORTED, "zero_point",
          "llama_awq" },
        { "\"model.layers.1.mlp\"", "\"model.layers.0.mlp\"", DT_ERR_FORMAT, "mlp.gate_proj",
          "llama_awq" },
        { "64\n", "32\n", DT_ERR_FORMAT, "weight_scale_inv", "llama_fp8_blocks" },
        { "      64\n", "      0\n", DT_ERR_FORMAT, "weight_block_size", "llama_fp8_blocks" },
        { "\"strategy\": \"tensor\"", "\"strategy\": \"block\"", DT_ERR_FORMAT, "block_structure",
          "llama_fp8_tensor" },
        { "\"fp8\"", "\"mxfp4\"", DT_ERR_UNSUPPORTED, "which this model has not",
          "llama_fp8_blocks" },
        { "\"intermediate_size\": 32", "\"intermediate_size\": 48", DT_ERR_FORMAT,
          "blocks of 32 divide the 48 inputs of model.layers.0.mlp.experts.down_proj",
          "gpt_oss_mxfp4" },
        { "\"intermediate_size\": 32", "\"intermediate_size\": 64", DT_ERR_FORMAT,
          "gate_up_proj_blocks is [5, 64, 2, 16], but config.json asks for [5, 128, 2, 16]",
          "gpt_oss_mxfp4" },
        { "\"num_local_experts\": 5", "\"num_local_experts\": 4", DT_ERR_FORMAT,
          "is [5, 64], but config.json asks for [4, 64]", "gpt_oss_mxfp4" },
        { "\"lm_head\"", "\"model.layers.*.mlp.experts\"", DT_ERR_FORMAT,
          "experts.gate_up_proj is missing", "gpt_oss_mxfp4" },
        { "\"mxfp4\"", "\"mxfp8\"", DT_ERR_UNSUPPORTED, "here by \"mxfp8\"", "gpt_oss_mxfp4" },
    };

    for (size_t i = 0; i < DT_COUNT(changes); i++) {
        const fixture f = named(changes[i].fixture);
        char temporary[DT_TEST_PATH_BYTES];
        dt_model_info info;
        (void)dt_test_temp_dir(temporary);
        copy(f.folder, temporary, "config.json", &changes[i]);
        copy(f.folder, temporary, "model.safetensors", NULL);
        DT_ASSERT_STATUS(dt_model_inspect(temporary, &info, NULL, NULL), changes[i].code,
                         changes[i].words);
        dt_test_remove_dir(temporary);
    }
}

/* The last bytes of a tensor that are others. */
typedef struct patch {
    const char *fixture, *tensor;
    unsigned char bytes[4];
    dt_status code;
    const char *words;
    char folder[DT_TEST_PATH_BYTES];
    int found;
} patch;

static dt_status refused(dt_mesh *mesh, const void *arg)
{
    const patch *p = arg;
    dt_model *model = NULL;

    const fixture f = named(p->fixture);

    DT_EXPECT_STATUS(load(mesh, &f, p->folder, &model), p->code, p->words);
    return DT_OK;
}

static void hear(void *arg, bool error, const char *tensor, const char *text)
{
    patch *p = arg;

    (void)tensor;
    p->found += error && strstr(text, p->tensor) != NULL;
}

/* What loading refuses is told by verify, which loads nothing. */
static void find_patched(patch *p)
{
    dt_verify_options o = DT_VERIFY_OPTIONS_INIT;
    dt_verified v;

    DT_ASSERT_OK(dt_checkpoint_verify(NULL, p->folder, &o, hear, p, &v));
    DT_ASSERT_EQ_INT(p->found, 0); /* names and shapes are right */
    o.values = true;
    DT_ASSERT_OK(dt_checkpoint_verify(NULL, p->folder, &o, hear, p, &v));
    DT_ASSERT_EQ_INT(p->found, 1);
}

/* A copy of the fixture in p->folder, with other bytes. */
static void make_patched(patch *p)
{
    const fixture f = named(p->fixture);
    char path[DT_TEST_PATH_BYTES + 32];
    dti_ckpt *ckpt = NULL;
    const dti_st_entry *e;
    FILE *file;

    (void)dt_test_temp_dir(p->folder);
    copy(f.folder, p->folder, "config.json", NULL);
    copy(f.folder, p->folder, "model.safetensors", NULL);
    DT_ASSERT_OK(dti_ckpt_open(p->folder, &ckpt));
    e = dti_ckpt_find(ckpt, p->tensor);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", p->folder);
    file = fopen(path, "r+b");
    DT_ASSERT(file != NULL && e != NULL);
    DT_ASSERT(fseek(file, (long)e->end - 4, SEEK_SET) == 0);
    DT_ASSERT(fwrite(p->bytes, 1, 4, file) == 4 && fclose(file) == 0);
    dti_ckpt_close(&ckpt);
}

static void refuse_patched(const patch *given)
{
    patch p = *given;

    make_patched(&p);
    dt_test_on_ranks("tp=1", refused, &p);
    find_patched(&p);
    dt_test_remove_dir(p.folder);
}

DT_TEST(packed_files, values_that_no_weight_has_are_refused)
{
    static const patch patches[] = {
        { "llama_int4",
          "model.layers.1.mlp.down_proj.weight_scale",
          { 0, 0, 0xc0, 0x7f },
          DT_ERR_FORMAT,
          "down_proj.weight_scale",
          "",
          0 },
        { "llama_fp8_blocks",
          "model.layers.0.mlp.down_proj.weight",
          { 1, 2, 3, 0x7f },
          DT_ERR_FORMAT,
          "is no number",
          "",
          0 },
        { "llama_gptq",
          "model.layers.0.mlp.up_proj.g_idx",
          { 0, 0, 0, 0 },
          DT_ERR_UNSUPPORTED,
          "desc_act",
          "",
          0 },
        { "gpt_oss_mxfp4",
          "model.layers.1.mlp.experts.down_proj_scales",
          { 120, 120, 255, 120 },
          DT_ERR_FORMAT,
          "at [4, 62, 0]",
          "",
          0 },
    };

    for (size_t i = 0; i < DT_COUNT(patches); i++) refuse_patched(&patches[i]);
}

static dt_status fits_bf16_alone(dt_mesh *mesh, const void *arg)
{
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_model *model = NULL;

    o.keep_dtype = false;
    o.dtype = DT_F16;
    DT_EXPECT_STATUS(dt_model_load(mesh, arg, &o, &model), DT_ERR_FORMAT,
                     "down_proj_blocks\": block [4, 63, 0] has");
    o.dtype = DT_BF16;
    DT_TRY(dt_model_load(mesh, arg, &o, &model));
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(packed_files, mxfp4_that_f16_does_not_hold_is_refused_there)
{
    patch p = { .fixture = "gpt_oss_mxfp4",
                .tensor = "model.layers.1.mlp.experts.down_proj_scales",
                .bytes = { 120, 120, 120, 145 } };

    make_patched(&p);
    dt_test_on_ranks("tp=1", fits_bf16_alone, p.folder);
    dt_test_remove_dir(p.folder);
}

static dt_status not_done(dt_mesh *mesh, const void *arg)
{
    const fixture int4 = named("llama_int4"), fp8 = named("llama_fp8_blocks");
    dt_load_options o = DT_LOAD_OPTIONS_INIT;
    dt_model *model = NULL;

    o.weights = "int8";
    DT_EXPECT_STATUS(dt_model_load(mesh, int4.folder, &o, &model), DT_ERR_ARG, "packed already");
    DT_TRY(load(mesh, &fp8, fp8.folder, &model));
    DT_EXPECT_STATUS(dt_model_save(model, arg, NULL), DT_ERR_UNSUPPORTED, "8-bit floats");
    dt_model_release(&model);
    return DT_OK;
}

DT_TEST(packed_files, what_is_not_done_is_said)
{
    char temporary[DT_TEST_PATH_BYTES];

    (void)dt_test_temp_dir(temporary);
    dt_test_on_ranks("tp=1", not_done, temporary);
    dt_test_remove_dir(temporary);
}
