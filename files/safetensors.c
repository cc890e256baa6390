/* SPDX-License-Identifier: Apache-2.0
 *
 * Opening a safetensors file and finding tensors in it. */
#include "files/safetensors.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "files/safetensors_internal.h"

/* A repository cloned without git-lfs holds small text files in place of the weights. */
static const char lfs_pointer[] = "version https://git-lfs";

static dt_status read_header(dti_st_file *file)
{
    const dti_input *in = &file->in;
    const int64_t at_hand =
        in->bytes < (int64_t)sizeof lfs_pointer - 1 ? in->bytes : (int64_t)sizeof lfs_pointer - 1;
    dt_status st = DT_OK;
    char head[sizeof lfs_pointer - 1] = { 0 };
    void *text = NULL;
    uint64_t n = 0;

    DT_CHECK(in->bytes >= DTI_ST_LENGTH_BYTES, DT_ERR_FORMAT,
             "%s: is %lld bytes, too short for a safetensors file", in->label,
             (long long)in->bytes);
    DT_TRY(dti_input_read(in, head, at_hand, 0));
    for (int i = DTI_ST_LENGTH_BYTES - 1; i >= 0; i--) n = n << 8 | (unsigned char)head[i];
    DT_CHECK(memcmp(head, lfs_pointer, sizeof head) != 0, DT_ERR_FORMAT,
             "%s: is a pointer of Git LFS, not the file itself: run \"git lfs pull\"", in->label);
    DT_CHECK(n <= DTI_ST_HEADER_BYTES, DT_ERR_FORMAT,
             "%s: the header would have %llu bytes, at most %d are allowed: this is no safetensors "
             "file",
             in->label, (unsigned long long)n, DTI_ST_HEADER_BYTES);
    DT_CHECK((int64_t)n <= in->bytes - DTI_ST_LENGTH_BYTES, DT_ERR_FORMAT,
             "%s: the header has %llu bytes, but the file only %lld in all: it is cut off (a "
             "download that did not finish?)",
             in->label, (unsigned long long)n, (long long)in->bytes);
    file->data_begin = DTI_ST_LENGTH_BYTES + (int64_t)n;
    file->data_bytes = in->bytes - file->data_begin;

    DT_TRY(dti_alloc((size_t)n, &text));
    DT_TRY_TO(done, st, dti_input_read(in, text, (int64_t)n, DTI_ST_LENGTH_BYTES));
    DT_TRY_TO(done, st, dti_st_parse_header(file, text, (size_t)n));
done:
    dti_free(text);
    return st;
}

dt_status dti_say_fault(const dti_faults *faults, const char *tensor, dt_status st)
{
    if (st == DT_OK || st == DT_ERR_MEMORY || faults == NULL) return st;
    faults->fn(faults->arg, tensor, dt_last_error()->message);
    return DT_OK;
}

dt_status dti_st_open(const char *path, dti_st_file **out)
{
    return dti_st_open_faulty(path, NULL, out);
}

dt_status dti_st_open_faulty(const char *path, const dti_faults *faults, dti_st_file **out)
{
    dt_status st = DT_OK;
    dti_st_file *file;

    *out = NULL;
    DT_TRY(dti_new(sizeof *file, &file));
    file->in.fd = -1;
    file->faults = faults;
    DT_TRY_TO(fail, st, dti_input_open(path, &file->in));
    DT_TRY_TO(fail, st, read_header(file));
    /* A hint: larger read-ahead. Refusing it changes nothing. */
    (void)posix_fadvise(file->in.fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    file->faults = NULL;
    *out = file;
    return DT_OK;

fail:
    dti_st_close(&file);
    return st;
}

void dti_st_close(dti_st_file **file)
{
    dti_st_file *f = file ? *file : NULL;

    if (f == NULL) return;
    *file = NULL;
    dti_input_close(&f->in);
    dti_open_file_remove(&f->open);
    dti_arena_free(&f->names);
    dti_free(f->by_name);
    dti_free(f->entries);
    dti_free(f);
}

dt_status dti_st_share(dti_st_file *file, const char *path, dti_open_files *files)
{
    DT_TRY(dti_open_file_add(files, path, &file->in, &file->open));
    return DT_OK;
}

static int by_address(const void *left, const void *right)
{
    const uintptr_t x = (uintptr_t) * (const dti_st_entry *const *)left;
    const uintptr_t y = (uintptr_t) * (const dti_st_entry *const *)right;

    return (x > y) - (x < y);
}

/* What stays moves into memory of its own size. */
dt_status dti_st_keep(dti_st_file *file, const dti_st_entry *const *keep, size_t n_keep)
{
    dti_st_entry *entries = NULL;
    const dti_st_entry **names = NULL;
    dti_arena arena = DTI_ARENA_INIT;
    dt_status st = DT_OK;
    size_t n = 0;

    for (size_t i = 0; i < file->n; i++) {
        const dti_st_entry *e = &file->entries[i];
        n += n_keep > 0 && bsearch(&e, keep, n_keep, sizeof *keep, by_address) != NULL;
    }
    DT_TRY_TO(fail, st, dti_alloc_array(n, sizeof *entries, (void **)&entries));
    DT_TRY_TO(fail, st, dti_alloc_array(n, sizeof *names, (void **)&names));
    n = 0;
    for (size_t i = 0; i < file->n; i++) {
        const dti_st_entry *e = &file->entries[i];
        char *name;
        if (n_keep == 0 || bsearch(&e, keep, n_keep, sizeof *keep, by_address) == NULL) continue;
        DT_TRY_TO(fail, st, dti_arena_strndup(&arena, e->name, strlen(e->name), &name));
        entries[n] = *e;
        entries[n].name = name;
        names[n] = &entries[n];
        n++;
    }
    dti_st_sort_names(names, n);
    dti_arena_free(&file->names);
    dti_free(file->entries);
    dti_free(file->by_name);
    file->names = arena;
    file->entries = entries;
    file->by_name = names;
    file->n = n;
    return DT_OK;

fail:
    dti_arena_free(&arena);
    dti_free(entries);
    dti_free(names);
    return st;
}

const char *dti_st_label(const dti_st_file *file)
{
    return file->in.label;
}

size_t dti_st_count(const dti_st_file *file)
{
    return file->n;
}

const dti_st_entry *dti_st_at(const dti_st_file *file, size_t i)
{
    return i < file->n ? &file->entries[i] : NULL;
}

const dti_st_entry *dti_st_find(const dti_st_file *file, const char *name)
{
    size_t low = 0, high = file->n;

    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        const int order = strcmp(name, file->by_name[middle]->name);

        if (order == 0) return file->by_name[middle];
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return NULL;
}
