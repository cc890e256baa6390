/* SPDX-License-Identifier: Apache-2.0
 *
 * Saving a sharded model as a Hugging Face folder. The first rank of the mesh makes files of their
 * full size under temporary names, every rank writes what it owns into them, the first one gives
 * them their names; the index comes last, so that a reader finds all or nothing. */
#include "models/saving/save.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "files/checkpoint.h"
#include "files/input.h"
#include "mesh/runtime.h"

/* --- the mesh's first rank -------------------------------------------------------------------- */

/* The folder that a folder is to be made in can be written; errno says why not. */
static bool has_parent(const char *dir)
{
    char parent[PATH_MAX];
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/') n--;
    while (n > 0 && dir[n - 1] != '/') n--;
    (void)snprintf(parent, sizeof parent, "%.*s", (int)n, n > 0 ? dir : "");
    return access(n > 0 ? parent : ".", W_OK | X_OK) == 0;
}

dt_status dti_save_check_folder(const char *dir)
{
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat info;

    (void)dti_printable(dir, label, sizeof label);
    if (stat(dir, &info) != 0) {
        DT_CHECK(errno == ENOENT && has_parent(dir), DT_ERR_IO, "%s: cannot be made: %s", label,
                 strerror(errno));
        DT_CHECK(lstat(dir, &info) != 0, DT_ERR_IO,
                 "%s: cannot be made: it is a symbolic link to nothing", label);
        return DT_OK;
    }
    DT_CHECK(S_ISDIR(info.st_mode), DT_ERR_IO, "%s: is no folder", label);
    DT_CHECK(!dti_ckpt_exists(dir), DT_ERR_ARG,
             "%s: holds weights already, which are not written over; choose another folder, or "
             "remove the model's files first",
             label);
    return DT_OK;
}

static dt_status make_folder(dti_saver *s)
{
    char label[DTI_INPUT_LABEL_BYTES];

    DT_TRY(dti_save_check_folder(s->dir));
    s->made_dir = mkdir(s->dir, 0777) == 0;
    DT_CHECK(s->made_dir || errno == EEXIST, DT_ERR_IO, "%s: cannot be made: %s",
             dti_printable(s->dir, label, sizeof label), strerror(errno));
    return DT_OK;
}

/* A file of its full size, so that a disk that is too small is noticed where its system can tell,
 * and the header. */
static dt_status make_file(dti_save_file *f)
{
    char label[DTI_INPUT_LABEL_BYTES];

    DT_TRY(dti_output_open(&f->out, f->path, f->temporary));
    DT_TRY(dti_output_write(&f->out, f->plan.header, (size_t)f->plan.header_bytes));
    DT_CHECK(ftruncate(f->out.fd, (off_t)f->plan.bytes) == 0, DT_ERR_IO,
             "%s: cannot have %lld bytes: %s", dti_printable(f->temporary, label, sizeof label),
             (long long)f->plan.bytes, strerror(errno));
    return DT_OK;
}

static dt_status begin(dti_saver *s)
{
    DT_TRY(make_folder(s));
    for (size_t i = 0; i < s->n_files; i++) DT_TRY(make_file(&s->files[i]));
    return DT_OK;
}

/* New names are on the disk when the folder is. */
static dt_status sync_folder(const dti_saver *s)
{
    char label[DTI_INPUT_LABEL_BYTES];
    const int fd = open(s->dir, O_RDONLY | O_CLOEXEC);
    /* some file systems cannot do it, and have no need to */
    const bool kept = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);

    if (fd >= 0) (void)close(fd);
    DT_CHECK(kept, DT_ERR_IO, "%s: its names cannot be kept: %s",
             dti_printable(s->dir, label, sizeof label), strerror(errno));
    return DT_OK;
}

static dt_status finish(dti_saver *s)
{
    DT_TRY(dti_save_small_files(s));
    for (size_t i = 0; i < s->n_files; i++) {
        DT_TRY(dti_output_close(&s->files[i].out, DT_OK));
        s->files[i].named = true;
    }
    DT_TRY(sync_folder(s));
    DT_TRY(dti_save_index(s));
    DT_TRY(sync_folder(s));
    return DT_OK;
}

/* Removes what this run has made: the folder had no weights before. Small files stay if it was
 * there already, they may have been there too. */
static void undo(dti_saver *s)
{
    char *path;

    for (size_t i = 0; i < s->n_files; i++) {
        dti_save_file *f = &s->files[i];
        (void)dti_output_close(&f->out, DT_ERR_IO); /* removes it */
        if (f->named) (void)unlink(f->path);
    }
    dti_save_unindex(s);
    if (!s->made_dir) return;
    for (int i = 0; dti_save_small_name(i) != NULL; i++) {
        if (dti_ckpt_path(s->dir, dti_save_small_name(i), &path) != DT_OK) continue;
        (void)unlink(path);
        dti_free(path);
    }
    (void)rmdir(s->dir);
}

/* --- every rank ------------------------------------------------------------------------------- */

static dt_status barrier(const dti_saver *s)
{
    dti_comm *comm;

    DT_TRY(dti_mesh_comm(s->model->mesh, (1u << dt_mesh_n_dims(s->model->mesh)) - 1, &comm));
    DT_TRY(dti_barrier(comm));
    return DT_OK;
}

static dt_status write_all(dti_saver *s, const dt_save_options *o)
{
    dt_mesh *mesh = s->model->mesh;
    const bool first = dti_mesh_place(mesh) == 0;

    DT_TRY(dti_first_says(mesh, first ? begin(s) : DT_OK));
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(mesh), dti_save_values(s, o)));
    DT_TRY(barrier(s));
    DT_TRY(dti_first_says(mesh, first ? finish(s) : DT_OK));
    return DT_OK;
}

static void end(dti_saver *s)
{
    for (size_t i = 0; i < s->n_files; i++) {
        dti_save_file *f = &s->files[i];
        if (f->fd >= 0) (void)close(f->fd);
        dti_free(f->path);
        dti_free(f->temporary);
        dti_st_plan_free(&f->plan);
    }
    dti_free(s->files);
    dti_free(s->specs);
    dti_free(s->values);
    dti_arena_free(&s->names);
}

static dt_status check(const dt_model *m, const dt_save_options *o)
{
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(m->mesh)), DT_ERR_ARG,
             "a model on a dry mesh has no weights to save");
    DT_CHECK(m->arch->text_config == NULL, DT_ERR_UNSUPPORTED,
             "a %s model is only the text part of its checkpoint: saving it would lose the rest",
             m->arch->model_type);
    DT_CHECK(o->max_file_bytes >= 1, DT_ERR_ARG, "max_file_bytes is %lld, must be at least 1",
             (long long)o->max_file_bytes);
    DT_CHECK(o->keep_dtype || o->dtype == DT_F32 || o->dtype == DT_BF16 || o->dtype == DT_F16,
             DT_ERR_ARG, "dtype %s: models are saved as f32, bf16 or f16", dt_dtype_name(o->dtype));
    return DT_OK;
}

dt_status dt_model_save(dt_model *m, const char *dir, const dt_save_options *options)
{
    dt_save_options own = DT_SAVE_OPTIONS_INIT, *const o = &own;
    dti_saver s = { .model = m, .dir = dir, .names = DTI_ARENA_INIT };
    dt_status st = DT_OK;

    DT_CHECK(m != NULL && dir != NULL && dir[0] != '\0', DT_ERR_ARG, "model or dir is NULL");
    DT_TRY(dti_options_read("dt_save_options", "start from DT_SAVE_OPTIONS_INIT", options, o,
                            sizeof *o));
    DT_TRY(check(m, o));
    if (!dt_mesh_is_member(m->mesh)) return DT_OK;
    s.dtype = o->keep_dtype ? m->info.dtype : o->dtype;
    DT_TRY_TO(done, st, dti_save_list(&s));
    DT_TRY_TO(done, st, dti_save_divide(&s, o->max_file_bytes));
    DT_TRY_TO(done, st, write_all(&s, o));
done:
    if (st != DT_OK && dti_mesh_place(m->mesh) == 0) undo(&s);
    end(&s);
    return st;
}
