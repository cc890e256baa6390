/* SPDX-License-Identifier: Apache-2.0
 *
 * Saving layers as a folder of safetensors files. The first rank of the mesh makes files of their
 * full size under temporary names, every rank writes what it owns into them, the first one gives
 * them their names; the index comes last, so that a reader finds all or nothing. */
#include "base/io_status.h"
#include "weights/saving/save.h"

#include <dirent.h>
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
#include "files/output.h"
#include "mesh/runtime.h"

/* --- before ----------------------------------------------------------------------------------- */

/* The folder that a folder is to be made in can be written; errno says why not. */
static bool has_parent(const char *dir)
{
    char parent[PATH_MAX];
    size_t n = strlen(dir);

    while (n > 1 && dir[n - 1] == '/') n--;
    while (n > 0 && dir[n - 1] != '/') n--;
    (void)snprintf(parent, sizeof parent, "%.*s", (int)n, n > 0 ? dir : "");
    return faccessat(AT_FDCWD, n > 0 ? parent : ".", W_OK | X_OK, AT_EACCESS) == 0;
}

/* Weights of any format, also such that are not read here: whoever opens the folder afterwards
 * would find two models in it. */
static dt_status check_no_weights(const char *dir, const char *label)
{
    char shown[DTI_SHOWN_BYTES] = "";
    const struct dirent *item;
    DIR *folder = opendir(dir);

    DT_CHECK(folder != NULL, dti_io_status(errno), "%s: cannot be read: %s", label,
             strerror(errno));
    while (shown[0] == '\0' && (item = readdir(folder)) != NULL)
        if (dti_ckpt_is_weights(item->d_name) && !dti_hold_is_left_over(dir, item->d_name))
            (void)dti_printable(item->d_name, shown, sizeof shown);
    (void)closedir(folder);
    DT_CHECK(shown[0] == '\0', DT_ERR_ARG,
             "%s: holds weights already, in %s, which are not written over; choose another folder, "
             "or remove the model's files first",
             label, shown);
    return DT_OK;
}

dt_status dti_save_check_folder(const char *dir)
{
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat info;

    (void)dti_printable(dir, label, sizeof label);
    if (stat(dir, &info) != 0) {
        DT_CHECK(errno == ENOENT && has_parent(dir), dti_io_status(errno), "%s: cannot be made: %s",
                 label, strerror(errno));
        DT_CHECK(lstat(dir, &info) != 0, DT_ERR_IO,
                 "%s: cannot be made: it is a symbolic link to nothing", label);
        return DT_OK;
    }
    DT_CHECK(S_ISDIR(info.st_mode), DT_ERR_IO, "%s: is no folder", label);
    DT_CHECK(faccessat(AT_FDCWD, dir, W_OK | X_OK, AT_EACCESS) == 0, dti_io_status(errno),
             "%s: cannot be written: %s", label, strerror(errno));
    DT_TRY(check_no_weights(dir, label));
    return DT_OK;
}

dt_status dti_save_check_small(const char *from, const char *dir, dt_dtype dtype)
{
    dti_small_file small[DTI_SMALL_FILES];
    int n = 0;
    dt_status st = dti_small_read(from, dtype, NULL, NULL, small, &n);

    if (st == DT_OK && dir != NULL) st = dti_small_check(dir, small, n);
    dti_small_free(small, n);
    DT_TRY(st);
    return DT_OK;
}

/* --- the mesh's first rank -------------------------------------------------------------------- */

/* A file of its full size, so that a disk that is too small is noticed where its system can tell,
 * and the header. It is closed again: there may be more files than may be open. */
static dt_status make_file(dti_saver *s, dti_save_file *f)
{
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st;
    int fd;

    DT_TRY(dti_hold_create(&s->hold, f->name, &fd));
    f->made = s->hold.n - 1;
    (void)dti_printable(f->temporary, label, sizeof label);
    DT_TRY_TO(done, st, dti_write_at(fd, label, f->plan.header, (size_t)f->plan.header_bytes, 0));
    DT_CHECK_TO(done, st, ftruncate(fd, (off_t)f->plan.bytes) == 0, dti_io_status(errno),
                "%s: cannot have %lld bytes: %s", label, (long long)f->plan.bytes, strerror(errno));
    DT_CHECK_TO(done, st, fsync(fd) == 0, dti_io_status(errno), "%s: its bytes cannot be kept: %s",
                label, strerror(errno));
done:
    (void)close(fd);
    return st;
}

static dt_status begin(dti_saver *s)
{
    dt_runtime *rt = dt_mesh_runtime(dt_layers_mesh(s->layers));
    char label[DTI_INPUT_LABEL_BYTES];

    DT_TRY(dti_save_check_folder(s->dir));
    DT_TRY(dti_hold_take(&s->hold, s->dir));
    if (s->hold.n_swept > 0)
        dti_runtime_log(rt, DT_LOG_WARNING, "%s: removed %zu file%s of a save that was cut off",
                        dti_printable(s->dir, label, sizeof label), s->hold.n_swept,
                        s->hold.n_swept == 1 ? "" : "s");
    DT_TRY(dti_save_check_folder(s->dir)); /* nobody else changes it from here on */
    if (s->from != NULL)
        DT_TRY(dti_small_read(s->from, s->dtype, s->layers, s->spellings, s->small, &s->n_small));
    if (s->beside != NULL) DT_TRY(dti_beside_check(s->from, s->beside));
    DT_TRY(dti_small_check(s->dir, s->small, s->n_small));
    for (size_t i = 0; i < s->n_files; i++) DT_TRY(make_file(s, &s->files[i]));
    return DT_OK;
}

/* All that was looked at in the beginning is looked at again: writing may have taken hours, and not
 * everybody asks for the lock. */
static dt_status finish(dti_saver *s)
{
    DT_TRY(dti_hold_check(&s->hold));
    DT_TRY(dti_save_check_folder(s->dir));
    DT_TRY(dti_small_check(s->dir, s->small, s->n_small));
    DT_TRY(dti_small_write(&s->hold, s->small, s->n_small));
    for (size_t i = 0; i < s->n_files; i++) DT_TRY(dti_hold_name(&s->hold, s->files[i].made));
    DT_TRY(dti_folder_sync(s->dir));
    DT_TRY(dti_save_index(s));
    DT_TRY(dti_folder_sync(s->dir));
    return DT_OK;
}

/* --- every rank ------------------------------------------------------------------------------- */

static dt_status write_all(dti_saver *s, const dt_save_options *o)
{
    dt_mesh *mesh = dt_layers_mesh(s->layers);
    const bool first = dti_mesh_place(mesh) == 0;

    DT_TRY(dti_first_says(mesh, first ? begin(s) : DT_OK));
    DT_TRY(dti_runtime_alone(dt_mesh_runtime(mesh), dti_save_values(s, o)));
    if (s->refused.code != DT_OK) dti_error_restore(&s->refused);
    DT_TRY(dti_all_say(mesh, s->refused.code));
    DT_TRY(dti_first_says(mesh, first ? finish(s) : DT_OK));
    return DT_OK;
}

static void end(dti_saver *s)
{
    for (size_t i = 0; i < s->n_files; i++) {
        dti_save_file *f = &s->files[i];
        if (f->fd >= 0) (void)close(f->fd);
        dti_free(f->temporary);
        dti_st_plan_free(&f->plan);
    }
    (void)dti_save_experts_end(s); /* which only read */
    dti_small_free(s->small, s->n_small);
    for (size_t i = 0; i < s->n; i++) dt_tensor_release(&s->values[i].owned);
    dti_free(s->files);
    dti_free(s->specs);
    dti_free(s->values);
    dti_arena_free(&s->names);
}

static dt_status check(const dt_layers *layers, const dt_save_options *o)
{
    DT_CHECK(!dt_runtime_is_dry(dt_mesh_runtime(dt_layers_mesh(layers))), DT_ERR_ARG,
             "a model on a dry mesh has no weights to save");
    DT_CHECK(o->max_file_bytes >= 1, DT_ERR_ARG, "max_file_bytes is %lld, must be at least 1",
             (long long)o->max_file_bytes);
    DT_CHECK(o->keep_dtype || o->dtype == DT_F32 || o->dtype == DT_BF16 || o->dtype == DT_F16,
             DT_ERR_ARG, "dtype %s: models are saved as f32, bf16 or f16", dt_dtype_name(o->dtype));
    return DT_OK;
}

dt_status dti_layers_write(dt_layers *layers, const char *dir, const char *from,
                           const dti_beside *beside, dt_dtype dtype, const dt_spelling *spellings,
                           const dt_save_options *options)
{
    dt_save_options own = DT_SAVE_OPTIONS_INIT, *const o = &own;
    dti_saver s = {
        .layers = layers, .from = from, .beside = beside, .dir = dir, .names = DTI_ARENA_INIT
    };
    dt_status st = DT_OK;

    DT_TRY(dti_options_read("dt_save_options", "start from DT_SAVE_OPTIONS_INIT", options, o,
                            sizeof *o));
    DT_TRY(check(layers, o));
    if (!dt_mesh_is_member(dt_layers_mesh(layers))) return DT_OK;
    s.merged = o->merged;
    s.finite = o->finite;
    s.keep_dtype = o->keep_dtype;
    s.dtype = o->keep_dtype ? dtype : o->dtype;
    for (int i = 0; i < dt_layers_count(layers); i++)
        if (dt_layer_kind_of(dt_layers_at(layers, i)) == &dt_experts_packed_kind)
            s.spellings = spellings;
    DT_TRY_TO(done, st, dti_save_list(&s));
    DT_TRY_TO(done, st, dti_save_divide(&s, o->max_file_bytes));
    DT_TRY_TO(done, st, write_all(&s, o));
done:
    dti_hold_end(&s.hold, st);
    end(&s);
    return st;
}

dt_status dt_layers_write(dt_layers *layers, const char *dir, const dt_save_options *options)
{
    DT_CHECK(layers != NULL && dir != NULL && dir[0] != '\0', DT_ERR_ARG, "layers or dir is NULL");
    DT_TRY(dti_layers_write(layers, dir, NULL, NULL, DT_F32, NULL, options));
    return DT_OK;
}
