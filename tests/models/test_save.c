/* SPDX-License-Identifier: Apache-2.0
 *
 * Saved folders: every tensor has the bits that were loaded, on every mesh and however it was cut;
 * files, index and errors. */
#include <dtensor/models.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "files/checkpoint.h"
#include "files/json.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

static const char *const fixtures[] = { "llama/uneven",  "llama/tied",       "llama/sharded",
                                        "qwen3/uneven",  "gpt_neo/uneven",   "gemma3/uneven",
                                        "phi3/uneven",   "qwen3_moe/uneven", "glm4_moe/uneven",
                                        "gpt_oss/uneven" };
static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4", "dp=2,tp=2" };

typedef struct saving {
    char from[DT_TEST_PATH_BYTES], to[DT_TEST_PATH_BYTES + 8];
    const dt_plan *plan;
    const char *fully_shard;
    dt_save_options options;
} saving;

static void begin(saving *s, const char *fixture, char temporary[DT_TEST_PATH_BYTES])
{
    *s = (saving){ .options = DT_SAVE_OPTIONS_INIT };
    (void)dt_test_source_path(s->from, "tests/golden/%s", fixture);
    (void)dt_test_temp_dir(temporary);
    (void)snprintf(s->to, sizeof s->to, "%s/saved", temporary);
}

static dt_status load_and_save(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const saving *s = arg;
    dt_model *model;
    dt_status st;

    options.plan = s->plan;
    options.fully_shard = s->fully_shard;
    DT_TRY(dt_model_load(mesh, s->from, &options, &model));
    st = dt_model_save(model, s->to, &s->options);
    dt_model_release(&model);
    return st;
}

static void save(const char *mesh, const saving *s)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    DT_ASSERT_OK(dt_test_run(&options, mesh, load_and_save, s));
}

/* One tensor of both checkpoints, as `dtype`, bit by bit. */
static void compare_tensor(const dti_ckpt *a, const dti_ckpt *b, const dti_st_entry *e,
                           dt_dtype dtype)
{
    const dti_st_entry *other = dti_ckpt_find(b, e->name);
    size_t bytes = dt_dtype_size(dtype);
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    DT_FREED void *y = NULL, *x = NULL;

    if (other == NULL) dt_test_fail(__FILE__, __LINE__, "%s is missing", e->name);
    DT_ASSERT(other->dtype == dtype && other->n_axes == e->n_axes);
    for (int i = 0; i < e->n_axes; i++) {
        DT_ASSERT_EQ_INT(other->shape[i], e->shape[i]);
        bytes *= (size_t)e->shape[i];
    }
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(dti_alloc(bytes, &x));
    DT_ASSERT_OK(dti_alloc(bytes, &y));
    DT_ASSERT_OK(dti_ckpt_read(a, e->name, NULL, NULL, dtype, &stage, x));
    DT_ASSERT_OK(dti_ckpt_read(b, e->name, NULL, NULL, dtype, &stage, y));
    if (memcmp(x, y, bytes) != 0) dt_test_fail(__FILE__, __LINE__, "%s differs", e->name);
}

/* All tensors of the fixture are in the saved folder, and nothing else. DT_N_DTYPES: as they are */
static void compare(const saving *s, dt_dtype dtype)
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *b = NULL, *a = NULL;

    DT_ASSERT_OK(dti_ckpt_open(s->from, &a));
    DT_ASSERT_OK(dti_ckpt_open(s->to, &b));
    DT_ASSERT_EQ_INT(dti_ckpt_count(a), dti_ckpt_count(b));
    for (size_t i = 0; i < dti_ckpt_count(a); i++) {
        const dti_st_entry *e = dti_ckpt_at(a, i);
        compare_tensor(a, b, e, dtype == DT_N_DTYPES ? e->dtype : dtype);
    }
}

static bool same_file(const saving *s, const char *name)
{
    char paths[2][DT_TEST_PATH_BYTES + 64], data[2][8192] = { "", "" };
    size_t n[2] = { 0, 1 };

    (void)snprintf(paths[0], sizeof paths[0], "%s/%s", s->from, name);
    (void)snprintf(paths[1], sizeof paths[1], "%s/%s", s->to, name);
    for (int i = 0; i < 2; i++) {
        FILE *f = fopen(paths[i], "rb");
        if (f == NULL) return false;
        n[i] = fread(data[i], 1, sizeof data[i], f);
        (void)fclose(f);
    }
    return n[0] == n[1] && n[0] > 0 && memcmp(data[0], data[1], n[0]) == 0;
}

DT_TEST(save, every_tensor_keeps_its_bits_on_every_mesh)
{
    for (size_t f = 0; f < DT_COUNT(fixtures); f++)
        for (size_t m = 0; m < DT_COUNT(meshes); m++) {
            char temporary[DT_TEST_PATH_BYTES];
            saving s;
            begin(&s, fixtures[f], temporary);
            save(meshes[m], &s);
            compare(&s, DT_N_DTYPES);
            DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ".safetensors"), 1);
            DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ".tmp"), 0);
            DT_ASSERT(same_file(&s, "config.json"));
            DT_ASSERT(same_file(&s, "generation_config.json"));
        }
}

/* Cuts of one axis by several dims lie in an order of their own. */
DT_TEST(save, fully_sharded_models_give_the_same_files)
{
    for (size_t f = 0; f < DT_COUNT(fixtures); f++) {
        char temporary[DT_TEST_PATH_BYTES];
        saving s;
        begin(&s, fixtures[f], temporary);
        s.fully_shard = "dp,dp_shard";
        save(f % 2 == 0 ? "dp=2,dp_shard=2,tp=2" : "dp=2,tp=2,dp_shard=3", &s);
        compare(&s, DT_N_DTYPES);
    }
}

/* Rows, columns, whole: each way of lying goes through another path. */
DT_TEST(save, any_plan_gives_the_same_files)
{
    static const dt_plan_rule rules[] = {
        { "model.embed_tokens", "replicate" },
        { "lm_head", "colwise_gather_output" },
        { "model.layers.*.mlp.gate_proj", "colwise_gather_output" },
        { "model.layers.*.mlp.up_proj", "colwise_gather_output" },
        { "model.layers.*.mlp.down_proj", "rowwise_split_input" },
        { "model.layers.*.self_attn.q_proj", "replicate" },
        { "model.layers.*.self_attn.k_proj", "replicate" },
        { "model.layers.*.self_attn.v_proj", "replicate" },
        { "model.layers.*.self_attn.o_proj", "replicate" },
    };
    const dt_plan plan = { .rules = rules, .n_rules = (int)DT_COUNT(rules) };
    char temporary[DT_TEST_PATH_BYTES];
    saving s;

    begin(&s, "llama/uneven", temporary);
    s.plan = &plan;
    save("tp=3", &s);
    compare(&s, DT_N_DTYPES);
}

static int64_t bytes_of_all(const char *folder, size_t *n)
{
    int64_t all = 0;
    dti_ckpt *ckpt;

    DT_ASSERT_OK(dti_ckpt_open(folder, &ckpt));
    *n = dti_ckpt_count(ckpt);
    for (size_t i = 0; i < *n; i++) {
        const dti_st_entry *e = dti_ckpt_at(ckpt, i);
        int64_t bytes = (int64_t)dt_dtype_size(e->dtype);
        for (int a = 0; a < e->n_axes; a++) bytes *= e->shape[a];
        all += bytes;
    }
    dti_ckpt_close(&ckpt);
    return all;
}

/* What is just as large as a file may be is one file, a byte more two; a tensor that is larger has
 * one of its own, and none is empty. */
DT_TEST(save, files_are_filled_to_the_last_byte)
{
    for (int less = 0; less < 3; less++) {
        char temporary[DT_TEST_PATH_BYTES];
        int64_t all;
        saving s;
        size_t n;

        begin(&s, "llama/uneven", temporary);
        all = bytes_of_all(s.from, &n);
        s.options.max_file_bytes = less < 2 ? all - less : 1;
        save("tp=2", &s);
        compare(&s, DT_N_DTYPES);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ".safetensors"),
                         less == 0   ? 1
                         : less == 1 ? 3
                                     : (int64_t)n + 1); /* and the index */
    }
}

DT_TEST(save, large_models_are_several_files_with_an_index)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) {
        char temporary[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 64];
        dti_json_doc doc = { 0 };
        dti_json metadata;
        struct stat info;
        int64_t total;
        saving s;

        begin(&s, "qwen3/uneven", temporary);
        s.options.max_file_bytes = 40000;
        save(meshes[m], &s);
        compare(&s, DT_N_DTYPES);
        DT_ASSERT(dt_test_count_files(s.to, ".safetensors") > 3);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ".tmp"), 0);
        (void)snprintf(path, sizeof path, "%s/model.safetensors", s.to);
        DT_ASSERT(stat(path, &info) != 0);
        (void)snprintf(path, sizeof path, "%s/model.safetensors.index.json", s.to);
        DT_ASSERT_OK(dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
        DT_ASSERT_OK(dti_json_object(&doc.root, "metadata", &metadata));
        DT_ASSERT_OK(dti_json_int(&metadata, "total_size", 1, 1 << 30, &total));
        (void)snprintf(path, sizeof path, "%s/model.safetensors", s.from);
        DT_ASSERT(stat(path, &info) == 0 && total < info.st_size && total > info.st_size - 8192);
        dti_json_free(&doc);
    }
}

DT_TEST(save, another_dtype_is_written_and_named)
{
    char temporary[DT_TEST_PATH_BYTES];
    dti_json_doc doc = { 0 };
    char path[DT_TEST_PATH_BYTES + 64];
    const char *dtype;
    saving s;

    begin(&s, "llama/biases", temporary);
    s.options.keep_dtype = false;
    s.options.dtype = DT_BF16;
    save("tp=3", &s);
    compare(&s, DT_BF16);
    (void)snprintf(path, sizeof path, "%s/config.json", s.to);
    DT_ASSERT_OK(dti_json_read(path, DTI_JSON_CONFIG_BYTES, &doc));
    DT_ASSERT_OK(dti_json_string(&doc.root, "torch_dtype", &dtype));
    DT_ASSERT_EQ_STR(dtype, "bfloat16");
    dti_json_free(&doc);
    DT_ASSERT(!same_file(&s, "config.json"));
}

DT_TEST(save, weights_are_never_written_over)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    char temporary[DT_TEST_PATH_BYTES];
    saving s;

    begin(&s, "llama/tied", temporary);
    save("tp=2", &s);
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_and_save, &s), DT_ERR_ARG,
                     "holds weights already");
    compare(&s, DT_N_DTYPES);
}

DT_TEST(save, a_part_of_a_checkpoint_is_not_saved_as_the_whole)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    char temporary[DT_TEST_PATH_BYTES];
    saving s;

    begin(&s, "gemma3/multimodal", temporary);
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_and_save, &s), DT_ERR_UNSUPPORTED,
                     "only the text part");
}

DT_TEST(save, a_folder_that_cannot_be_made_is_named)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    char temporary[DT_TEST_PATH_BYTES];
    saving s;

    begin(&s, "llama/tied", temporary);
    (void)snprintf(s.to, sizeof s.to, "%s/a/b", temporary);
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_and_save, &s), DT_ERR_IO, "a/b");
    (void)snprintf(s.to, sizeof s.to, "%s/file", temporary);
    dt_test_write_file(temporary, "file", "x", 1);
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_and_save, &s), DT_ERR_IO, "is no folder");
    s.options.max_file_bytes = 0;
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_and_save, &s), DT_ERR_ARG,
                     "max_file_bytes");
}

/* A file of that name says that another run may be at work. */
DT_TEST(save, a_temporary_file_of_another_run_is_left_alone)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    char temporary[DT_TEST_PATH_BYTES];
    saving s;

    begin(&s, "llama/tied", temporary);
    DT_ASSERT(mkdir(s.to, 0700) == 0);
    dt_test_write_file(s.to, "model.safetensors.tmp", "x", 1);
    DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_and_save, &s), DT_ERR_IO,
                     "another run is writing it");
    DT_ASSERT_EQ_INT(dt_test_count_files(s.to, "model.safetensors"), 1);
}

/* One rank breaks off in the middle: nothing stays. */
DT_TEST(save, a_rank_that_fails_leaves_nothing_behind)
{
    for (int call = 1; call <= 3; call++) {
        dt_run_options options = DT_TEST_RUN_OPTIONS;
        char temporary[DT_TEST_PATH_BYTES], fault[64];
        dt_status st;
        saving s;

        begin(&s, "llama/uneven", temporary);
        (void)snprintf(fault, sizeof fault, "rank=1,op=exchange,call=%d", call);
        options.fault = fault;
        s.options.max_file_bytes = 100000;
        st = dt_test_run(&options, "tp=3", load_and_save, &s);
        DT_ASSERT(st != DT_OK);
        DT_ASSERT_EQ_INT(dt_test_count_files(s.to, ""), -1);
    }
}
