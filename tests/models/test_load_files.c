/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files a load has open, and what of their headers it keeps. */
#include <dtensor/models.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "files/checkpoint.h"
#include "mesh/share.h"
#include "models/load/load.h"
#include "tests/support/dt_test.h"

typedef struct loading {
    char folder[DT_TEST_PATH_BYTES + 16];
    bool warned; /* of the mark that the test has left */
} loading;

static dt_status save(dt_mesh *mesh, const void *arg)
{
    dt_save_options options = DT_SAVE_OPTIONS_INIT;
    char from[DT_TEST_PATH_BYTES];
    const loading *l = arg;
    dt_model *model;
    dt_status st;

    options.max_file_bytes = 1;
    DT_TRY(
        dt_model_load(mesh, dt_test_source_path(from, "tests/golden/qwen3/uneven"), NULL, &model));
    st = dt_model_save(model, l->folder, &options);
    dt_model_release(&model);
    return st;
}

static dt_status load(dt_mesh *mesh, const void *arg)
{
    const loading *l = arg;
    dt_model *model;

    DT_TRY(dt_model_load(mesh, l->folder, NULL, &model));
    dt_model_release(&model);
    return DT_OK;
}

/* Each rank opened each file: 153 files failed on 8 ranks, with 1024 allowed. */
DT_TEST(load_files, ranks_share_a_few_open_files)
{
    char temporary[DT_TEST_PATH_BYTES];
    struct rlimit old, few;
    loading l = { .warned = false };

    (void)dt_test_temp_dir(temporary);
    (void)snprintf(l.folder, sizeof l.folder, "%s/saved", temporary);
    dt_test_on_ranks("tp=1", save, &l);
    DT_ASSERT(getrlimit(RLIMIT_NOFILE, &old) == 0);
    few = (struct rlimit){ 48, old.rlim_max };
    DT_ASSERT(setrlimit(RLIMIT_NOFILE, &few) == 0);
    dt_test_on_ranks("tp=4", load, &l);
    DT_ASSERT(setrlimit(RLIMIT_NOFILE, &old) == 0);
}

static dt_status open_marked(void *arg, void **out)
{
    const loading *l = arg;
    const dti_st_entry *one;
    dti_ckpt *ckpt;

    DT_TRY(dti_ckpt_open(l->folder, &ckpt));
    one = dti_ckpt_at(ckpt, 0);
    DT_TRY(dti_ckpt_keep(ckpt, &one, 1, 7, "the_mark"));
    *out = ckpt;
    return DT_OK;
}

/* Tensors of which there are none in a million, said by who has forgotten them. */
static dt_status open_all_marked(void *arg, void **out)
{
    const loading *l = arg;
    const dti_st_entry *all[64];
    dti_ckpt *ckpt;
    size_t n = 0;

    DT_TRY(dti_ckpt_open(l->folder, &ckpt));
    for (const dti_st_entry *e; n < DT_COUNT(all) && (e = dti_ckpt_at(ckpt, n)) != NULL; n++) {
        size_t at = n;
        for (; at > 0 && (uintptr_t)all[at - 1] > (uintptr_t)e; at--) all[at] = all[at - 1];
        all[at] = e;
    }
    DT_TRY(dti_ckpt_keep(ckpt, all, n, 7, "the_mark"));
    *out = ckpt;
    return DT_OK;
}

static void close_marked(void *object)
{
    DT_ENDS(dti_ckpt_close) dti_ckpt *ckpt = object;
}

/* What a load with default options shares. */
static dt_status share_of(dt_runtime *rt, const loading *l, dti_share_create create,
                          dti_share **out)
{
    const dt_load_options options = DT_LOAD_OPTIONS_INIT;
    char *key = NULL;
    dt_status st;

    DT_TRY(dti_checkpoint_key(l->folder, &options, &key));
    st = dti_share_get(rt, key, create, (void *)(uintptr_t)l, close_marked, out);
    dti_free(key);
    return st;
}

static dt_status load_marked(dt_mesh *mesh, const void *arg)
{
    loading *l = (loading *)(uintptr_t)arg;
    dti_share *share;
    dt_status st;

    DT_TRY(share_of(dt_mesh_runtime(mesh), l, open_all_marked, &share));
    st = load(mesh, l);
    dti_share_put(&share);
    return st;
}

/* What is there of a folder but lacks what this model asks for is no reason to refuse it. */
static dt_status load_beside_another(dt_mesh *mesh, const void *arg)
{
    loading *l = (loading *)(uintptr_t)arg;
    dti_share *share;
    dt_status st;

    DT_TRY(share_of(dt_mesh_runtime(mesh), l, open_marked, &share));
    st = load(mesh, l);
    dti_share_put(&share);
    return st;
}

typedef struct looking {
    const loading *l;
    dt_runtime *rt;
    bool kept_some;
} looking;

static dt_status make_none(void *arg, void **out)
{
    (void)arg;
    (void)out;
    DT_FAIL(DT_ERR_INTERNAL, "the load has none");
}

/* While parameters are read. */
static void look(void *arg, int64_t done, int64_t total)
{
    looking *k = arg;
    const char *first;
    dti_share *share;
    size_t n;

    (void)done;
    (void)total;
    if (share_of(k->rt, k->l, make_none, &share) != DT_OK) return;
    k->kept_some = dti_ckpt_kept_some(share->object, &n, &first);
    dti_share_put(&share);
}

static dt_status load_and_look(dt_mesh *mesh, const void *arg)
{
    dt_load_options options = DT_LOAD_OPTIONS_INIT;
    const loading *l = arg;
    looking k = { l, dt_mesh_runtime(mesh), false };
    dt_model *model;

    options.progress = look;
    options.progress_arg = &k;
    DT_TRY(dt_model_load(mesh, l->folder, &options, &model));
    dt_model_release(&model);
    DT_EXPECT(k.kept_some || dt_runtime_rank(k.rt) != 0, "all names were kept");
    return DT_OK;
}

static void hear(void *arg, dt_log_level level, int rank, const char *line)
{
    loading *l = arg;

    (void)level;
    (void)rank;
    if (strstr(line, "7 tensors") != NULL && strstr(line, "the_mark") != NULL) l->warned = true;
}

DT_TEST(load_files, headers_belong_to_all_ranks_of_a_process)
{
    dt_run_options options = DT_TEST_RUN_OPTIONS;
    loading l = { .warned = false };

    (void)snprintf(
        l.folder, sizeof l.folder, "%s",
        dt_test_source_path((char[DT_TEST_PATH_BYTES]){ "" }, "tests/golden/llama/uneven"));
    dt_test_on_ranks("tp=2", load_and_look, &l);
    options.log = hear;
    options.log_arg = &l;
    DT_ASSERT_OK(dt_test_run(&options, "tp=3", load_marked, &l));
    DT_ASSERT(l.warned);
    l.warned = false;
    DT_ASSERT_OK(dt_test_run(&options, "tp=3", load_beside_another, &l));
    DT_ASSERT(!l.warned);
}

/* --- files of other ranks --------------------------------------------------------------------- */

/* A folder for each rank. */
typedef struct copies {
    char folder[2][DT_TEST_PATH_BYTES];
} copies;

static dt_status load_own_copy(dt_mesh *mesh, const void *arg)
{
    const copies *c = arg;
    dt_model *model;

    DT_TRY(dt_model_load(mesh, c->folder[dt_runtime_rank(dt_mesh_runtime(mesh))], NULL, &model));
    dt_model_release(&model);
    return DT_OK;
}

static char *read_whole(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *bytes = malloc(1 << 20);

    DT_ASSERT(f != NULL && bytes != NULL);
    *n = fread(bytes, 1, 1 << 20, f);
    DT_ASSERT(*n < 1 << 20 && fclose(f) == 0);
    return bytes;
}

/* The file with another member, or other numbers in all tensors. */
static void change(char *bytes, size_t *n)
{
    static const char more[] = "{\"nobody_reads\": 1,";
    uint64_t header;

    if (bytes[0] == '{') {
        memmove(bytes + sizeof more - 2, bytes, *n);
        memcpy(bytes, more, sizeof more - 1);
        *n += sizeof more - 2;
        return;
    }
    memcpy(&header, bytes, sizeof header);
    for (size_t i = sizeof header + header; i < *n; i++) bytes[i] ^= 1;
}

/* Of processes each has its own folder by the same name: on another host, or by a relative path.
 * Texts of such a run were neither one's nor the other's, without a word. */
DT_TEST(load_files, ranks_whose_files_differ_are_refused)
{
    static const struct {
        const char *changed, *says;
    } cases[] = {
        { NULL, NULL },
        { "config.json", "its config.json is not the same for ranks 0 and 1" },
        { "generation_config.json", "its generation_config.json is not the same" },
        { "model.safetensors", "its weights are not the same for ranks 0 and 1" },
    };
    dt_run_options options = DT_TEST_RUN_OPTIONS;

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        copies c;
        for (int rank = 0; rank < 2; rank++) {
            (void)dt_test_temp_dir(c.folder[rank]);
            for (size_t k = 1; k < DT_COUNT(cases); k++) {
                char path[DT_TEST_PATH_BYTES], *bytes;
                size_t n;
                bytes = read_whole(
                    dt_test_source_path(path, "tests/golden/llama/tied/%s", cases[k].changed), &n);
                if (rank == 1 && i == k) change(bytes, &n);
                dt_test_write_file(c.folder[rank], cases[k].changed, bytes, n);
                free(bytes);
            }
        }
        if (cases[i].says == NULL)
            DT_ASSERT_OK(dt_test_run(&options, "tp=2", load_own_copy, &c));
        else
            DT_ASSERT_STATUS(dt_test_run(&options, "tp=2", load_own_copy, &c), DT_ERR_ARG,
                             cases[i].says);
    }
}
