/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a checkpoint folder and finding tensors in it. */
#include "files/checkpoint.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/io_status.h"
#include "files/checkpoint_internal.h"
#include "files/folder.h"
#include "files/safetensors_internal.h"

/* Of one checkpoint; reading is as fast with as many as there are threads that read. */
enum { MOST_OPEN = 16 };

static const char single_name[] = "model.safetensors";
static const char index_name[] = "model.safetensors.index.json";

static dt_status open_single(dti_ckpt *ckpt, const char *path)
{
    DT_TRY(dti_alloc_array(1, sizeof *ckpt->files, (void **)&ckpt->files));
    DT_TRY(dti_ckpt_open_file(ckpt, path, &ckpt->files[0]));
    ckpt->n_files = 1;
    DT_TRY(dti_alloc_array(dti_st_count(ckpt->files[0]), sizeof *ckpt->tensors,
                           (void **)&ckpt->tensors));
    for (size_t i = 0; i < dti_st_count(ckpt->files[0]); i++)
        ckpt->tensors[ckpt->n_tensors++] =
            (dti_ckpt_tensor){ dti_st_at(ckpt->files[0], i), ckpt->files[0] };
    return DT_OK;
}

static int by_name(const void *left, const void *right)
{
    return strcmp(((const dti_ckpt_tensor *)left)->entry->name,
                  ((const dti_ckpt_tensor *)right)->entry->name);
}

dt_status dti_ckpt_check_folder(const char *folder)
{
    static const char what[] = "a model is a Hugging Face folder on this machine (config.json, "
                               "model.safetensors, tokenizer.json)";
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat info;

    (void)dti_printable(folder, label, sizeof label);
    DT_CHECK(stat(folder, &info) == 0, dti_io_status(errno), "%s: %s; %s", label, strerror(errno),
             what);
    DT_CHECK(S_ISDIR(info.st_mode), DT_ERR_IO, "%s: is no folder; %s", label, what);
    DT_CHECK(dti_folder_has(folder, "config.json"), DT_ERR_FORMAT, "%s: has no config.json; %s",
             label, what);
    return DT_OK;
}

/* Which files hold the weights. A single file is preferred, as in Transformers. */
static dt_status open_files(dti_ckpt *ckpt)
{
    char *single = NULL, *index = NULL;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dti_ckpt_path(ckpt->folder, single_name, &single));
    DT_TRY_TO(done, st, dti_ckpt_path(ckpt->folder, index_name, &index));
    if (dti_folder_has(ckpt->folder, single_name))
        DT_TRY_TO(done, st, open_single(ckpt, single));
    else if (dti_folder_has(ckpt->folder, index_name))
        DT_TRY_TO(done, st, dti_ckpt_open_index(ckpt, index));
    else
        DT_TRY_TO(done, st, dti_ckpt_no_weights(ckpt->folder));
done:
    dti_free(single);
    dti_free(index);
    return st;
}

dt_status dti_ckpt_open(const char *folder, dti_ckpt **out)
{
    return dti_ckpt_open_faulty(folder, NULL, out);
}

/* `path` is a folder, or with `file` the only file. */
static dt_status open_at(const char *path, bool file, const dti_faults *faults, dti_ckpt **out)
{
    dt_status st = DT_OK;
    dti_ckpt *ckpt;

    DT_TRY(dti_new(sizeof *ckpt, &ckpt));
    ckpt->faults = faults;
    DT_TRY_TO(fail, st, dti_open_files_create(MOST_OPEN, &ckpt->open));
    DT_TRY_TO(fail, st, dti_strdup(path, &ckpt->folder));
    DT_TRY_TO(fail, st, file ? open_single(ckpt, path) : open_files(ckpt));
    DT_CHECK_TO(fail, st, !ckpt->forgot, DT_ERR_MEMORY, "no memory for the names of bad tensors");
    ckpt->faults = NULL;
    dti_ckpt_sort_names(ckpt);
    qsort(ckpt->tensors, ckpt->n_tensors, sizeof *ckpt->tensors, by_name);
    for (size_t i = 0; i < ckpt->n_tensors; i++)
        ckpt->bytes += ckpt->tensors[i].entry->end - ckpt->tensors[i].entry->begin;
    *out = ckpt;
    return DT_OK;

fail:
    dti_ckpt_close(&ckpt);
    return st;
}

dt_status dti_ckpt_open_faulty(const char *folder, const dti_faults *faults, dti_ckpt **out)
{
    *out = NULL;
    DT_TRY(dti_ckpt_check_folder(folder));
    DT_TRY(open_at(folder, false, faults, out));
    return DT_OK;
}

dt_status dti_ckpt_open_weights(const char *path, dti_ckpt **out)
{
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat info;

    *out = NULL;
    DT_CHECK(stat(path, &info) == 0, dti_io_status(errno), "%s: %s",
             dti_printable(path, label, sizeof label), strerror(errno));
    DT_TRY(open_at(path, !S_ISDIR(info.st_mode), NULL, out));
    return DT_OK;
}

/* Entries move, so each tensor is found again by its name. */
dt_status dti_ckpt_keep(dti_ckpt *ckpt, const dti_st_entry *const *keep, size_t n_keep,
                        size_t n_unused, const char *first_unused)
{
    size_t n = 0;

    if (first_unused != NULL) DT_TRY(dti_strdup(first_unused, &ckpt->first_unused));
    ckpt->n_unused = n_unused;
    ckpt->n_tensors = 0;
    dti_free(ckpt->tensors);
    ckpt->tensors = NULL;
    ckpt->kept_some = true;
    for (size_t f = 0; f < ckpt->n_files; f++) {
        DT_TRY(dti_st_keep(ckpt->files[f], keep, n_keep));
        n += dti_st_count(ckpt->files[f]);
    }
    DT_TRY(dti_alloc_array(n, sizeof *ckpt->tensors, (void **)&ckpt->tensors));
    for (size_t f = 0; f < ckpt->n_files; f++)
        for (size_t i = 0; i < dti_st_count(ckpt->files[f]); i++)
            ckpt->tensors[ckpt->n_tensors++] =
                (dti_ckpt_tensor){ dti_st_at(ckpt->files[f], i), ckpt->files[f] };
    if (n > 0) qsort(ckpt->tensors, n, sizeof *ckpt->tensors, by_name);
    return DT_OK;
}

bool dti_ckpt_kept_some(const dti_ckpt *ckpt, size_t *n_unused, const char **first_unused)
{
    *n_unused = ckpt->n_unused;
    *first_unused = ckpt->first_unused;
    return ckpt->kept_some;
}

int dti_ckpt_n_open(const dti_ckpt *ckpt)
{
    return dti_open_files_count(ckpt->open);
}

bool dti_ckpt_exists(const char *folder)
{
    return dti_folder_has(folder, single_name) || dti_folder_has(folder, index_name);
}

void dti_ckpt_close(dti_ckpt **ckpt)
{
    dti_ckpt *c = ckpt ? *ckpt : NULL;

    if (c == NULL) return;
    *ckpt = NULL;
    for (size_t i = 0; i < c->n_files; i++) dti_st_close(&c->files[i]);
    dti_open_files_free(&c->open);
    for (size_t i = 0; i < c->n_bad; i++) dti_free(c->bad[i]);
    dti_free(c->first_unused);
    dti_free(c->bad);
    dti_free(c->files);
    dti_free(c->tensors);
    dti_free(c->folder);
    dti_free(c);
}

dt_status dti_ckpt_path(const char *folder, const char *name, char **out)
{
    const size_t bytes = strlen(folder) + strlen(name) + 2;

    DT_TRY(dti_alloc(bytes, (void **)out));
    (void)snprintf(*out, bytes, "%s/%s", folder, name);
    return DT_OK;
}

const char *dti_ckpt_folder(const dti_ckpt *ckpt)
{
    return ckpt->folder;
}

size_t dti_ckpt_count(const dti_ckpt *ckpt)
{
    return ckpt->n_tensors;
}

const dti_st_entry *dti_ckpt_at(const dti_ckpt *ckpt, size_t i)
{
    return i < ckpt->n_tensors ? ckpt->tensors[i].entry : NULL;
}

int64_t dti_ckpt_bytes(const dti_ckpt *ckpt)
{
    return ckpt->bytes;
}

size_t dti_ckpt_n_files(const dti_ckpt *ckpt)
{
    size_t n = 0;

    for (size_t f = 0; f < ckpt->n_files; f++) n += ckpt->files[f] != NULL;
    return n;
}

static const dti_ckpt_tensor *find(const dti_ckpt *ckpt, const char *name)
{
    size_t low = 0, high = ckpt->n_tensors;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, ckpt->tensors[middle].entry->name);

        if (order == 0) return &ckpt->tensors[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}

const dti_st_entry *dti_ckpt_find(const dti_ckpt *ckpt, const char *name)
{
    const dti_ckpt_tensor *t = find(ckpt, name);

    return t ? t->entry : NULL;
}

const char *dti_ckpt_label(const dti_ckpt *ckpt, const char *name)
{
    const dti_ckpt_tensor *t = find(ckpt, name);

    return t ? dti_st_label(t->file) : ckpt->folder;
}

/* True if one name is the other with "something." before it. */
static bool differ_by_prefix(const char *a, const char *b)
{
    const size_t n = strlen(a), m = strlen(b);
    const char *longer = n > m ? a : b, *shorter = n > m ? b : a;
    const size_t prefix = n > m ? n - m : m - n;

    return prefix > 0 && longer[prefix - 1] == '.' && strcmp(longer + prefix, shorter) == 0;
}

static dt_status missing(const dti_ckpt *ckpt, const char *name)
{
    char label[DTI_INPUT_LABEL_BYTES], shown[DTI_ST_SHOWN_BYTES], other[DTI_ST_SHOWN_BYTES];
    const char *similar = NULL;

    for (size_t i = 0; i < ckpt->n_tensors && similar == NULL; i++)
        if (differ_by_prefix(ckpt->tensors[i].entry->name, name))
            similar = ckpt->tensors[i].entry->name;
    (void)dti_printable(ckpt->folder, label, sizeof label);
    (void)dti_printable(name, shown, sizeof shown);
    DT_CHECK(similar == NULL, DT_ERR_FORMAT,
             "%s: tensor \"%s\" is missing; it has \"%s\", with another prefix", label, shown,
             dti_printable(similar ? similar : "", other, sizeof other));
    DT_FAIL(DT_ERR_FORMAT, "%s: tensor \"%s\" is missing (tensors present: %zu)", label, shown,
            ckpt->n_tensors);
}

dt_status dti_ckpt_read(const dti_ckpt *ckpt, const char *name, const int64_t *begin,
                        const int64_t *end, dt_dtype want, const dti_st_stage *stage, void *dst)
{
    const dti_ckpt_tensor *t = find(ckpt, name);

    if (t == NULL) return missing(ckpt, name);
    DT_TRY(dti_st_read_slice(t->file, t->entry, begin, end, want, stage, dst));
    return DT_OK;
}

dt_status dti_ckpt_read_strided(const dti_ckpt *ckpt, const char *name, const dti_st_box *box,
                                dt_dtype want, const dti_st_stage *stage, void *dst)
{
    const dti_ckpt_tensor *t = find(ckpt, name);

    if (t == NULL) return missing(ckpt, name);
    DT_TRY(dti_st_read_strided(t->file, t->entry, box, want, stage, dst));
    return DT_OK;
}

void dti_ckpt_each_unnamed(const dti_ckpt *ckpt,
                           void (*fn)(void *arg, const char *file, const dti_st_entry *entry),
                           void *arg)
{
    for (size_t f = 0; f < ckpt->n_files; f++)
        for (size_t i = 0; ckpt->files[f] != NULL && i < dti_st_count(ckpt->files[f]); i++) {
            const dti_st_entry *e = dti_st_at(ckpt->files[f], i);
            if (dti_ckpt_find(ckpt, e->name) != e) fn(arg, dti_st_label(ckpt->files[f]), e);
        }
}
