/* SPDX-License-Identifier: Apache-2.0 */
#include "files/checkpoint.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "tests/support/dt_test.h"

typedef struct fixture {
    char folder[DT_TEST_PATH_BYTES];
} fixture;

/* A folder with a config.json and nothing else. */
static void begin(fixture *f)
{
    dt_test_temp_dir(f->folder);
    dt_test_write_file(f->folder, "config.json", "{}", 2);
}

static void put_text(const fixture *f, const char *name, const char *text)
{
    dt_test_write_file(f->folder, name, text, strlen(text));
}

static dt_status fill_with_index(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg;
    for (int64_t i = 0; i < count; i++)
        ((float *)to)[i] = (float)(100 * (int64_t)(t + 1) + first + i);
    return DT_OK;
}

/* A file with float tensors of shape [2, 3]; tensor t holds 100 (t + 1), 100 (t + 1) + 1, ... */
static void put_tensors(const fixture *f, const char *name, const char *const *tensors, size_t n)
{
    char path[DT_TEST_PATH_BYTES + 256];
    dti_st_spec specs[8];

    (void)snprintf(path, sizeof path, "%s/%s", f->folder, name);
    for (size_t t = 0; t < n; t++) specs[t] = (dti_st_spec){ tensors[t], DT_F32, 2, { 2, 3 } };
    DT_ASSERT_OK(dti_st_write(path, specs, n, NULL, fill_with_index, NULL));
}

static void refuse(const fixture *f, dt_status code, const char *message)
{
    dti_ckpt *ckpt;

    DT_ASSERT_STATUS(dti_ckpt_open(f->folder, &ckpt), code, message);
    DT_ASSERT(ckpt == NULL);
    DT_ASSERT(strncmp(dt_last_error()->message, f->folder, strlen(f->folder)) == 0);
}

/* Reads column 1 of tensor `name`, which has to be tensor `t` of its file. */
static void check_column(const dti_ckpt *ckpt, const char *name, int t)
{
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    float got[2];

    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(
        dti_ckpt_read(ckpt, name, (int64_t[]){ 0, 1 }, (int64_t[]){ 2, 2 }, DT_F32, &stage, got));
    DT_ASSERT_CLOSE(got[0], 100 * (t + 1) + 1, 0);
    DT_ASSERT_CLOSE(got[1], 100 * (t + 1) + 4, 0);
}

#define INDEX_OF(map) "{\"metadata\":{\"total_size\":72},\"weight_map\":" map "}"

DT_TEST(checkpoint, a_single_file_is_opened)
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f;
    DT_FREED char *path = NULL;

    begin(&f);
    put_tensors(&f, "model.safetensors", (const char *const[]){ "z", "model.a", "b" }, 3);
    put_text(&f, "model.safetensors.index.json", "not looked at");
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    DT_ASSERT_EQ_INT(dti_ckpt_count(ckpt), 3);
    DT_ASSERT_EQ_INT(dti_ckpt_n_files(ckpt), 1);
    DT_ASSERT_EQ_INT(dti_ckpt_bytes(ckpt), 72);
    DT_ASSERT_EQ_STR(dti_ckpt_folder(ckpt), f.folder);
    DT_ASSERT_EQ_STR(dti_ckpt_at(ckpt, 0)->name, "b");
    DT_ASSERT_EQ_STR(dti_ckpt_at(ckpt, 2)->name, "z");
    DT_ASSERT(dti_ckpt_at(ckpt, 3) == NULL);
    DT_ASSERT(dti_ckpt_find(ckpt, "model.a") == dti_ckpt_at(ckpt, 1));
    check_column(ckpt, "z", 0);
    check_column(ckpt, "model.a", 1);
    DT_ASSERT_OK(dti_ckpt_path(f.folder, "model.safetensors", &path));
    DT_ASSERT_EQ_STR(dti_ckpt_label(ckpt, "z"), path);
}

DT_TEST(checkpoint, a_missing_tensor_is_named_with_one_of_another_prefix)
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    fixture f;
    float x[6];

    begin(&f);
    put_tensors(&f, "model.safetensors", (const char *const[]){ "model.norm.weight" }, 1);
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT(dti_ckpt_find(ckpt, "norm.weight") == NULL);
    DT_ASSERT(dti_ckpt_find(ckpt, "model.norm.weight") != NULL);
    DT_ASSERT_STATUS(
        dti_ckpt_read(ckpt, "norm.weight", NULL, NULL, DT_F32, &stage, x), DT_ERR_FORMAT,
        ": tensor \"norm.weight\" is missing; it has \"model.norm.weight\", with another "
        "prefix");
    DT_ASSERT_STATUS(dti_ckpt_read(ckpt, "lm_head", NULL, NULL, DT_F32, &stage, x), DT_ERR_FORMAT,
                     ": tensor \"lm_head\" is missing (tensors present: 1)");
    DT_ASSERT(strncmp(dt_last_error()->message, f.folder, strlen(f.folder)) == 0);
}

DT_TEST(checkpoint, shards_are_opened_through_the_index)
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f;

    begin(&f);
    put_tensors(&f, "one.safetensors", (const char *const[]){ "a", "c", "extra" }, 3);
    put_tensors(&f, "two.safetensors", (const char *const[]){ "b" }, 1);
    put_text(&f, "model.safetensors.index.json",
             INDEX_OF("{\"b\":\"two.safetensors\",\"c\":\"one.safetensors\","
                      "\"a\":\"one.safetensors\"}"));
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    DT_ASSERT_EQ_INT(dti_ckpt_count(ckpt), 3);
    DT_ASSERT_EQ_INT(dti_ckpt_n_files(ckpt), 2);
    DT_ASSERT_EQ_INT(dti_ckpt_bytes(ckpt), 72);
    DT_ASSERT(dti_ckpt_find(ckpt, "extra") == NULL);
    check_column(ckpt, "a", 0);
    check_column(ckpt, "b", 0);
    check_column(ckpt, "c", 1);
    DT_ASSERT(strstr(dti_ckpt_label(ckpt, "b"), "/two.safetensors") != NULL);
}

/* The Hub's cache holds links to files elsewhere. */
DT_TEST(checkpoint, shards_may_be_symbolic_links_and_dangling_ones_are_missing)
{
    char link[DT_TEST_PATH_BYTES + 256], target[DT_TEST_PATH_BYTES + 256];
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f, blobs;

    begin(&f);
    begin(&blobs);
    put_tensors(&blobs, "1234", (const char *const[]){ "a" }, 1);
    (void)snprintf(target, sizeof target, "%s/1234", blobs.folder);
    (void)snprintf(link, sizeof link, "%s/one.safetensors", f.folder);
    DT_ASSERT_EQ_INT(symlink(target, link), 0);
    put_text(&f, "model.safetensors.index.json", INDEX_OF("{\"a\":\"one.safetensors\"}"));
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    check_column(ckpt, "a", 0);
    dti_ckpt_close(&ckpt);
    DT_ASSERT_EQ_INT(unlink(target), 0);
    refuse(&f, DT_ERR_IO, "1 of 1 files it names are missing; the first is \"one.safetensors\"");
}

DT_TEST(checkpoint, an_index_that_cannot_be_true_is_refused)
{
    static const struct {
        const char *text;
        dt_status code;
        const char *message;
    } cases[] = {
        { "{", DT_ERR_FORMAT, "/model.safetensors.index.json: line 1 column 1:" },
        { "{}", DT_ERR_FORMAT, "/model.safetensors.index.json: weight_map is missing" },
        { INDEX_OF("[]"), DT_ERR_FORMAT,
          "index.json: weight_map is an array of 0, must be an object" },
        { INDEX_OF("{}"), DT_ERR_FORMAT, "index.json: weight_map is empty" },
        { INDEX_OF("{\"a\":3}"), DT_ERR_FORMAT, "index.json: weight_map.a is 3, must be a string" },
        { INDEX_OF("{\"a\":\"one.safetensors\",\"a\":\"one.safetensors\"}"), DT_ERR_FORMAT,
          "key \"a\" occurs twice" },
        { INDEX_OF("{\"a\":\"\"}"), DT_ERR_FORMAT,
          "weight_map.a is the string \"\", must be the name" },
        { INDEX_OF("{\"a\":\"/etc/passwd\"}"), DT_ERR_FORMAT,
          "weight_map.a is the string \"/etc/passwd\", must be the name of a file in the same "
          "folder" },
        { INDEX_OF("{\"a\":\"../one.safetensors\"}"), DT_ERR_FORMAT, "the string \"../one" },
        { INDEX_OF("{\"a\":\"x/../../one.safetensors\"}"), DT_ERR_FORMAT, "must be the name" },
        { INDEX_OF("{\"a\":\"..\"}"), DT_ERR_FORMAT, "must be the name" },
        { INDEX_OF("{\"a\":\"one.safetensors\",\"b\":\"two.safetensors\",\"c\":\"3.safetensors\"}"),
          DT_ERR_IO,
          "/model.safetensors.index.json: 2 of 3 files it names are missing; the first is "
          "\"3.safetensors\", which holds tensor \"c\"" },
        { INDEX_OF("{\"a\":\"one.safetensors\",\"b\":\"one.safetensors\"}"), DT_ERR_FORMAT,
          "one.safetensors, nor in any other file of the index" },
        { INDEX_OF("{\"a\":\"other.safetensors\",\"b\":\"other.safetensors\"}"), DT_ERR_FORMAT,
          "index.json: tensor \"a\" is not in " },
        { INDEX_OF("{\"a\":\"other.safetensors\",\"c\":\"one.safetensors\"}"), DT_ERR_FORMAT,
          "other.safetensors but in " },
        { INDEX_OF("{\"a\":\"one.safetensors\",\"b\":\"config.json\"}"), DT_ERR_FORMAT,
          "/config.json: is 2 bytes, too short for a safetensors file" },
        { INDEX_OF("{\"a\":\".\"}"), DT_ERR_IO, "is a folder, not a file" },
    };
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f;

    begin(&f);
    put_tensors(&f, "one.safetensors", (const char *const[]){ "a", "c" }, 2);
    put_tensors(&f, "other.safetensors", (const char *const[]){ "b" }, 1);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        put_text(&f, "model.safetensors.index.json", cases[i].text);
        refuse(&f, cases[i].code, cases[i].message);
    }
}

DT_TEST(checkpoint, a_folder_without_weights_says_what_it_has)
{
    static const struct {
        const char *file;
        dt_status code;
        const char *message;
    } cases[] = {
        /* in rising order of what is told about */
        { NULL, DT_ERR_FORMAT, ": has neither model.safetensors nor model.safetensors.index.json" },
        { "training_args.bin", DT_ERR_FORMAT, "neither model.safetensors nor" },
        { "q4.gguf", DT_ERR_UNSUPPORTED, "but q4.gguf; GGUF files are not read" },
        { "consolidated.00.pth", DT_ERR_UNSUPPORTED, "consolidated.00.pth; PyTorch files are not" },
        { "pytorch_model-00002.bin", DT_ERR_UNSUPPORTED, "but pytorch_model-00002.bin; PyTorch" },
        { "pytorch_model-00001.bin", DT_ERR_UNSUPPORTED,
          "but pytorch_model-00001.bin; PyTorch files are not read: convert the model" },
        { "pytorch_model-00004.bin", DT_ERR_UNSUPPORTED, "but pytorch_model-00001.bin; PyTorch" },
        { "pytorch_model-00003.bin", DT_ERR_UNSUPPORTED, "but pytorch_model-00001.bin; PyTorch" },
        { "pytorch_model-00000.bin", DT_ERR_UNSUPPORTED, "but pytorch_model-00000.bin; PyTorch" },
        { "model-00001-of-00002.safetensors", DT_ERR_FORMAT,
          "but model-00001-of-00002.safetensors; weights of several files need" },
        { "adapter_model.safetensors", DT_ERR_UNSUPPORTED, "an adapter is not a model" },
    };
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f;

    begin(&f);
    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        if (cases[i].file != NULL) put_text(&f, cases[i].file, "x");
        refuse(&f, cases[i].code, cases[i].message);
    }
}

DT_TEST(checkpoint, what_is_no_model_folder_is_said)
{
    char path[DT_TEST_PATH_BYTES + 32];
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f;

    dt_test_temp_dir(f.folder);
    refuse(&f, DT_ERR_FORMAT, ": has no config.json; a model is a Hugging Face folder");
    put_tensors(&f, "model.safetensors", (const char *const[]){ "a" }, 1);
    refuse(&f, DT_ERR_FORMAT, ": has no config.json");
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f.folder);
    DT_ASSERT_STATUS(dti_ckpt_open(path, &ckpt), DT_ERR_IO,
                     "model.safetensors: is no folder; a model is a Hugging Face folder");
    DT_ASSERT_STATUS(dti_ckpt_open("no/such/model", &ckpt), DT_ERR_IO,
                     "no/such/model: No such file or directory; a model is a Hugging Face folder");
    put_text(&f, "config.json", "{}");
    put_text(&f, "model.safetensors", "x");
    refuse(&f, DT_ERR_FORMAT, "/model.safetensors: is 1 bytes, too short");
}

/* Transformers' own files: the fixtures that models are compared with. */
DT_TEST(checkpoint, golden_folders_open)
{
    static const struct {
        const char *folder;
        size_t n_files;
        const char *tensor;
    } cases[] = {
        { "tests/golden/llama/uneven", 1, "model.embed_tokens.weight" },
        { "tests/golden/llama/tied", 1, "model.layers.0.self_attn.q_proj.weight" },
        { "tests/golden/llama/sharded", 3, "model.norm.weight" },
        { "tests/golden/gpt_neo/uneven", 1, "transformer.wte.weight" },
    };
    char path[DT_TEST_PATH_BYTES];
    dti_ckpt *ckpt;

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        DT_ASSERT_OK(dti_ckpt_open(dt_test_source_path(path, "%s", cases[i].folder), &ckpt));
        DT_ASSERT_EQ_INT(dti_ckpt_n_files(ckpt), cases[i].n_files);
        DT_ASSERT(dti_ckpt_find(ckpt, cases[i].tensor) != NULL);
        dti_ckpt_close(&ckpt);
    }
}

DT_TEST(checkpoint, closing_gives_everything_back)
{
    const int64_t live = dti_alloc_live();
    char path[DT_TEST_PATH_BYTES];
    dti_ckpt *ckpt;

    DT_ASSERT_OK(dti_ckpt_open(dt_test_source_path(path, "tests/golden/llama/sharded"), &ckpt));
    dti_ckpt_close(&ckpt);
    DT_ASSERT(ckpt == NULL);
    dti_ckpt_close(&ckpt);
    DT_ASSERT_EQ_INT(dti_alloc_live(), live);
}

/* --- many files ------------------------------------------------------------------------------- */

enum { SHARDS = 60 };

/* SHARDS files of two tensors each, "t0" and "t1", "t2" and "t3", ... */
static void put_shards(const fixture *f)
{
    char index[SHARDS * 100] = "{\"weight_map\": {", names[2][16], shard[32];
    const char *tensors[] = { names[0], names[1] };
    size_t n = strlen(index);

    for (int i = 0; i < SHARDS; i++) {
        (void)snprintf(shard, sizeof shard, "%d.safetensors", i);
        for (int k = 0; k < 2; k++) {
            (void)snprintf(names[k], sizeof names[k], "t%d", 2 * i + k);
            n += (size_t)snprintf(index + n, sizeof index - n, "%s\"%s\": \"%s\"",
                                  i + k > 0 ? ", " : "", names[k], shard);
        }
        put_tensors(f, shard, tensors, 2);
    }
    (void)snprintf(index + n, sizeof index - n, "}}");
    put_text(f, "model.safetensors.index.json", index);
}

DT_TEST(checkpoint, more_files_than_may_be_open_are_read)
{
    struct rlimit old, few;
    char name[16];
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    fixture f;

    begin(&f);
    put_shards(&f);
    DT_ASSERT(getrlimit(RLIMIT_NOFILE, &old) == 0);
    few = (struct rlimit){ 40, old.rlim_max };
    DT_ASSERT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    DT_ASSERT(dti_ckpt_n_open(ckpt) <= 16);
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 2 * SHARDS; i++) {
            (void)snprintf(name, sizeof name, "t%d", round == 0 ? i : i * 7 % (2 * SHARDS));
            check_column(ckpt, name, (round == 0 ? i : i * 7) % 2);
        }
    DT_ASSERT(dti_ckpt_n_open(ckpt) <= 16);
    DT_ASSERT(setrlimit(RLIMIT_NOFILE, &old) == 0);
}

/* What was closed may be another file when it is opened again. */
DT_TEST(checkpoint, a_file_that_was_replaced_is_noticed)
{
    static const char *const tensors[] = { "t0", "t1" };
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage = { 0 };
    float got[6];
    fixture f;

    begin(&f);
    put_shards(&f);
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    for (int i = 2; i < 2 * SHARDS; i++) {
        char name[16];
        (void)snprintf(name, sizeof name, "t%d", i);
        check_column(ckpt, name, i % 2);
    }
    put_tensors(&f, "0.safetensors", tensors, 2);
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_STATUS(dti_ckpt_read(ckpt, "t0", NULL, NULL, DT_F32, &stage, got), DT_ERR_IO,
                     "0.safetensors: has become another file");
}

DT_TEST(checkpoint, what_nobody_asks_for_is_forgotten)
{
    const dti_st_entry *keep[2], *e;
    const char *first;
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    size_t n;
    fixture f;

    begin(&f);
    put_shards(&f);
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    DT_ASSERT(!dti_ckpt_kept_some(ckpt, &n, &first));
    keep[0] = dti_ckpt_find(ckpt, "t3");
    keep[1] = dti_ckpt_find(ckpt, "t80");
    if ((uintptr_t)keep[0] > (uintptr_t)keep[1]) {
        e = keep[0];
        keep[0] = keep[1];
        keep[1] = e;
    }
    DT_ASSERT_OK(dti_ckpt_keep(ckpt, keep, 2, 118, "t0"));
    DT_ASSERT(dti_ckpt_kept_some(ckpt, &n, &first));
    DT_ASSERT_EQ_INT(n, 118);
    DT_ASSERT_EQ_STR(first, "t0");
    DT_ASSERT_EQ_INT(dti_ckpt_count(ckpt), 2);
    DT_ASSERT(dti_ckpt_find(ckpt, "t2") == NULL && dti_ckpt_find(ckpt, "t79") == NULL);
    DT_ASSERT_EQ_STR(dti_ckpt_find(ckpt, "t80")->name, "t80");
    check_column(ckpt, "t3", 1);
    check_column(ckpt, "t80", 0);
}

/* --- scans ------------------------------------------------------------------------------------ */

enum { SCAN_ROWS = 1025, SCAN_ROW = 1024, SCAN_FIRST = 1024 * SCAN_ROW + 3 };

/* Zeros, but for two numbers in the second block of 4 MiB of tensor 0, and one in the first of
 * tensor 1. */
static dt_status fill_blocks(void *arg, size_t t, int64_t first, int64_t count, void *to)
{
    (void)arg;
    for (int64_t i = 0; i < count; i++)
        ((float *)to)[i] = t == 0 && first + i == SCAN_FIRST       ? -INFINITY
                           : t == 0 && first + i == SCAN_FIRST + 1 ? NAN
                           : t == 1 && first + i == 7              ? 1.0f
                                                                   : 0.0f;
    return DT_OK;
}

DT_TEST(checkpoint, numbers_are_counted_over_all_blocks)
{
    static const dti_st_spec specs[] = { { "x", DT_F32, 2, { SCAN_ROWS, SCAN_ROW } },
                                         { "one", DT_F32, 2, { SCAN_ROWS, SCAN_ROW } },
                                         { "zeros", DT_F32, 0, { 0 } } };
    char path[DT_TEST_PATH_BYTES + 32];
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = NULL;
    DT_ENDS(dti_st_stage_destroy) dti_st_stage stage;
    dti_ckpt_scan scan;
    fixture f;

    begin(&f);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", f.folder);
    DT_ASSERT_OK(dti_st_write(path, specs, 3, NULL, fill_blocks, NULL));
    DT_ASSERT_OK(dti_ckpt_open(f.folder, &ckpt));
    DT_ASSERT_OK(dti_st_stage_create(0, NULL, &stage));
    DT_ASSERT_OK(dti_ckpt_scan_values(ckpt, dti_ckpt_find(ckpt, "x"), &stage, &scan));
    DT_ASSERT(scan.n == SCAN_ROWS * SCAN_ROW && !scan.all_zero);
    DT_ASSERT(scan.n_nan == 1 && scan.n_infinite == 1);
    DT_ASSERT_EQ_INT(scan.first, SCAN_FIRST);
    DT_ASSERT_OK(dti_ckpt_scan_values(ckpt, dti_ckpt_find(ckpt, "one"), &stage, &scan));
    DT_ASSERT(!scan.all_zero && scan.n_nan == 0 && scan.n_infinite == 0 && scan.first == -1);
    DT_ASSERT_OK(dti_ckpt_scan_values(ckpt, dti_ckpt_find(ckpt, "zeros"), &stage, &scan));
    DT_ASSERT(scan.n == 1 && scan.all_zero && scan.first == -1);
}
