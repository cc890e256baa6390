/* SPDX-License-Identifier: Apache-2.0
 *
 * A folder has its final name when all of it is on the disk, and a pointer names what has its final
 * name: each step is one rename, and between two of them the folder is brought to the disk. What
 * ends in ".tmp" is nobody's; a folder that is to go is called so first. */
#define _GNU_SOURCE /* renameat2 */

#include "training/saving/run_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "base/writer.h"
#include "files/checkpoint.h"
#include "files/folder.h"
#include "files/input.h"
#include "files/output.h"
#include "training/saving/manifest.h"

static const char lock_name[] = ".dtensor-run", latest_name[] = "latest",
                  latest_tmp[] = "latest.tmp", temporary_end[] = ".tmp";

enum { LATEST_BYTES = 4096, SHOWN_STEPS = 5, MOST_ASIDE = 100 };

static dt_status refuse(const char *path, const char *what)
{
    char label[DTI_INPUT_LABEL_BYTES];
    const int why = errno;

    DT_FAIL(dti_io_status(why), "%s: %s: %s", dti_printable(path, label, sizeof label), what,
            strerror(why));
}

dt_status dti_run_disk_step(const char *dir, int64_t step, bool done, char **out)
{
    char name[DTI_STEP_NAME_BYTES];

    (void)snprintf(name, sizeof name, DTI_STEP_FORMAT "%s", (long long)step,
                   done ? "" : temporary_end);
    DT_TRY(dti_ckpt_path(dir, name, out));
    return DT_OK;
}

/* The step of "step-00001000"; *end is what follows the number. -1: another name. */
static int64_t step_of(const char *name, const char **end)
{
    static const char head[] = "step-";
    char *after;
    long long step;

    if (strncmp(name, head, sizeof head - 1) != 0) return -1;
    name += sizeof head - 1;
    if (strspn(name, "0123456789") < 8) return -1;
    errno = 0;
    step = strtoll(name, &after, 10);
    *end = after;
    return errno == 0 ? step : -1;
}

/* A step's own file, or what a killed save has left of one. */
static bool is_of_step(const char *name)
{
    static const char *const names[] = { DTI_MANIFEST_NAME, "model-rank-*.safetensors",
                                         "optim-rank-*.safetensors" };
    char whole[NAME_MAX + 1];
    const size_t n = strlen(name), end = strlen(temporary_end);

    (void)snprintf(whole, sizeof whole, "%s", name);
    if (n > end && n <= NAME_MAX && strcmp(name + n - end, temporary_end) == 0)
        whole[n - end] = '\0';
    for (size_t i = 0; i < DT_COUNT(names); i++)
        if (fnmatch(names[i], whole, 0) == 0) return true;
    return false;
}

/* "step-00001000.tmp" gets another name that no step has, the first that nothing has yet. */
static void set_aside(const char *path)
{
    const int n = (int)(strlen(path) - strlen(temporary_end));
    char other[PATH_MAX];

    for (int i = 0; i < MOST_ASIDE; i++) {
        int bytes = snprintf(other, sizeof other, "%.*s.others", n, path);
        if (i > 0 && bytes < (int)sizeof other)
            bytes += snprintf(other + bytes, sizeof other - (size_t)bytes, "-%d", i);
        if (bytes >= (int)sizeof other || rename(path, other) == 0) return;
    }
}

/* Of a step that is to go, called ".tmp": what somebody else has put into the folder stays, and a
 * link leads to what is somebody else's. */
static void remove_files(const char *path)
{
    const int at = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *folder = at >= 0 ? fdopendir(at) : NULL;
    const struct dirent *item;

    if (at < 0 && (errno == ENOTDIR || errno == ELOOP)) (void)unlink(path);
    if (folder == NULL && at >= 0) (void)close(at);
    if (folder == NULL) return;
    while ((item = readdir(folder)) != NULL)
        if (is_of_step(item->d_name)) (void)unlinkat(dirfd(folder), item->d_name, 0);
    (void)closedir(folder);
    if (rmdir(path) != 0 && (errno == ENOTEMPTY || errno == EEXIST)) set_aside(path);
}

/* --- looking ---------------------------------------------------------------------------------- */

typedef void (*name_fn)(void *arg, int folder, const char *name);

static dt_status each_name(const char *dir, name_fn fn, void *arg)
{
    const struct dirent *item;
    DIR *folder = opendir(dir);

    if (folder == NULL) return refuse(dir, "cannot be read");
    while ((item = readdir(folder)) != NULL) fn(arg, dirfd(folder), item->d_name);
    (void)closedir(folder);
    return DT_OK;
}

/* The newest steps up to `most`, descending. */
typedef struct newest {
    int64_t most;
    int64_t *step;
    size_t n, room;
    bool failed;
} newest;

static void note_step(void *arg, int folder, const char *name)
{
    newest *s = arg;
    const char *end;
    const int64_t step = step_of(name, &end);
    struct stat info;

    if (step < 0 || *end != '\0' || step > s->most) return;
    if (fstatat(folder, name, &info, 0) != 0 || !S_ISDIR(info.st_mode)) return;
    if (dti_grow((void **)&s->step, &s->room, s->n + 1, sizeof *s->step) == DT_OK)
        s->step[s->n++] = step;
    else
        s->failed = true;
}

static int descending(const void *left, const void *right)
{
    const int64_t a = *(const int64_t *)left, b = *(const int64_t *)right;

    return (a < b) - (a > b);
}

static dt_status list_steps(const char *dir, int64_t most, newest *out)
{
    dt_status st;

    *out = (newest){ .most = most };
    st = each_name(dir, note_step, out);
    if (st == DT_OK && out->failed) st = dt_fail(DT_ERR_MEMORY, "no memory for the steps of a run");
    if (st != DT_OK) dti_free(out->step);
    DT_TRY(st);
    if (out->n > 0) qsort(out->step, out->n, sizeof *out->step, descending);
    return DT_OK;
}

const char *dti_run_disk_steps(const char *dir, char *text, size_t bytes)
{
    dti_writer w = { text, bytes, 0 };
    newest all;

    dti_put(&w, "none");
    if (list_steps(dir, INT64_MAX, &all) != DT_OK) return text;
    if (all.n > 0) w.used = 0;
    for (size_t i = 0; i < all.n && i < SHOWN_STEPS; i++)
        dti_put(&w, "%sstep %lld", i > 0 ? ", " : "", (long long)all.step[i]);
    if (all.n > SHOWN_STEPS) dti_put(&w, " and %zu older", all.n - SHOWN_STEPS);
    dti_free(all.step);
    return text;
}

/* A folder that has its name is whole: one that was killed before `latest` named its first step has
 * that step. */
static dt_status newest_step(dti_run_disk *disk)
{
    newest all;

    DT_TRY(list_steps(disk->dir, INT64_MAX, &all));
    disk->latest = all.n > 0 ? all.step[0] : -1;
    dti_free(all.step);
    return DT_OK;
}

static dt_status read_latest(dti_run_disk *disk)
{
    char label[DTI_INPUT_LABEL_BYTES], shown[DTI_SHOWN_BYTES], steps[200], name[LATEST_BYTES] = "";
    char *path = NULL, *text = NULL;
    dt_status st = DT_OK;
    const char *end = "";
    int64_t n = 0;

    if (!dti_folder_has(disk->dir, latest_name)) return newest_step(disk);
    DT_TRY(dti_ckpt_path(disk->dir, latest_name, &path));
    (void)dti_printable(path, label, sizeof label);
    DT_TRY_TO(done, st, dti_input_read_file(path, LATEST_BYTES - 1, (void **)&text, &n));
    memcpy(name, text, (size_t)n);
    name[strcspn(name, "\r\n")] = '\0';
    disk->latest = step_of(name, &end);
    DT_CHECK_TO(done, st, disk->latest >= 0 && *end == '\0', DT_ERR_FORMAT,
                "%s: holds \"%s\", must hold the name of a step such as step-00001000 (there: %s); "
                "without it the newest of them counts",
                label, dti_printable(name, shown, sizeof shown),
                dti_run_disk_steps(disk->dir, steps, sizeof steps));
    DT_CHECK_TO(
        done, st, dti_folder_has(disk->dir, name), DT_ERR_FORMAT,
        "%s: names %s, which is not there (there: %s); without it the newest of them counts", label,
        name, dti_run_disk_steps(disk->dir, steps, sizeof steps));
done:
    dti_free(text);
    dti_free(path);
    return st;
}

/* --- opening ---------------------------------------------------------------------------------- */

static dt_status take_lock(dti_run_disk *disk)
{
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st = DT_OK;
    char *path;

    DT_TRY(dti_ckpt_path(disk->dir, lock_name, &path));
    disk->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (disk->lock < 0) st = refuse(path, "cannot be written");
    dti_free(path);
    DT_TRY(st);
    /* where a file system has no locks, there are none */
    DT_CHECK(flock(disk->lock, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK, DT_ERR_IO,
             "%s: another run is writing into this folder; choose another one, or wait for its end",
             dti_printable(disk->dir, label, sizeof label));
    return DT_OK;
}

static void sweep(void *arg, int folder, const char *name)
{
    dti_run_disk *disk = arg;
    const char *end = "";
    char *path;

    (void)folder;
    if (strcmp(name, latest_tmp) != 0 &&
        (step_of(name, &end) < 0 || strcmp(end, temporary_end) != 0))
        return;
    if (dti_ckpt_path(disk->dir, name, &path) != DT_OK) return;
    remove_files(path);
    dti_free(path);
    disk->n_swept++;
}

dt_status dti_run_disk_open(dti_run_disk *disk, const char *dir, bool write)
{
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st = DT_OK;
    struct stat info;

    *disk = (dti_run_disk){ .dir = dir, .lock = -1, .latest = -1 };
    if (write && mkdir(dir, 0777) != 0 && errno != EEXIST) return refuse(dir, "cannot be made");
    if (stat(dir, &info) != 0) return refuse(dir, "cannot be opened");
    DT_CHECK(S_ISDIR(info.st_mode), DT_ERR_IO, "%s: is no folder",
             dti_printable(dir, label, sizeof label));
    disk->device = info.st_dev;
    disk->inode = info.st_ino;
    if (write) DT_TRY_TO(fail, st, take_lock(disk));
    if (write) DT_TRY_TO(fail, st, each_name(dir, sweep, disk));
    DT_TRY_TO(fail, st, read_latest(disk));
    return DT_OK;

fail:
    dti_run_disk_close(disk);
    return st;
}

void dti_run_disk_close(dti_run_disk *disk)
{
    if (disk->lock >= 0) (void)close(disk->lock);
    disk->lock = -1;
}

/* --- a step ----------------------------------------------------------------------------------- */

/* Somebody may have moved the folder, and another run may have one of its name. */
static bool is_in_place(const dti_run_disk *disk)
{
    struct stat info;

    return stat(disk->dir, &info) == 0 && info.st_dev == disk->device && info.st_ino == disk->inode;
}

static dt_status check_place(const dti_run_disk *disk)
{
    char label[DTI_INPUT_LABEL_BYTES];

    DT_CHECK(is_in_place(disk), DT_ERR_IO,
             "%s: is not the folder any more that this run has opened: it was moved, removed or "
             "replaced, and nothing is written; go on from where its newest checkpoint is",
             dti_printable(disk->dir, label, sizeof label));
    return DT_OK;
}

dt_status dti_run_disk_begin(dti_run_disk *disk, int64_t step)
{
    dt_status st = DT_OK;
    char *path;

    DT_TRY(check_place(disk));
    DT_TRY(dti_run_disk_step(disk->dir, step, false, &path));
    remove_files(path); /* of a save of this run that failed */
    if (mkdir(path, 0777) != 0) st = refuse(path, "cannot be made");
    dti_free(path);
    return st;
}

void dti_run_disk_abandon(dti_run_disk *disk, int64_t step)
{
    char *path;

    if (!is_in_place(disk) || dti_run_disk_step(disk->dir, step, false, &path) != DT_OK) return;
    remove_files(path);
    dti_free(path);
}

static dt_status write_latest(const dti_run_disk *disk, int64_t step)
{
    char *path = NULL, *temporary = NULL, text[DTI_STEP_NAME_BYTES];
    const int n = snprintf(text, sizeof text, DTI_STEP_FORMAT "\n", (long long)step);
    dt_status st = DT_OK;
    dti_output out;

    DT_TRY_TO(done, st, dti_ckpt_path(disk->dir, latest_name, &path));
    DT_TRY_TO(done, st, dti_ckpt_path(disk->dir, latest_tmp, &temporary));
    (void)unlink(temporary);
    DT_TRY_TO(done, st, dti_output_open(&out, path, temporary));
    st = dti_output_close(&out, dti_output_write(&out, text, (size_t)n));
done:
    dti_free(temporary);
    dti_free(path);
    return st;
}

/* Where a step is there already the two change places, in one go. */
static dt_status swap(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return DT_OK;
    if (errno == EEXIST && renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_EXCHANGE) == 0)
        return DT_OK;
    /* a file system that knows neither: a folder takes no other's place unless that is empty */
    if (errno == EINVAL && rename(from, to) == 0) return DT_OK;
    return refuse(to, errno == ENOTEMPTY || errno == EEXIST || errno == EINVAL
                          ? "is there already, and this file system cannot exchange two folders; "
                            "remove it first"
                          : "cannot be named");
}

/* Called so first: half of it is no step. */
static void remove_step(const dti_run_disk *disk, int64_t step)
{
    char *path = NULL, *temporary = NULL;

    if (dti_run_disk_step(disk->dir, step, true, &path) == DT_OK &&
        dti_run_disk_step(disk->dir, step, false, &temporary) == DT_OK &&
        rename(path, temporary) == 0)
        remove_files(temporary);
    dti_free(temporary);
    dti_free(path);
}

/* Those that are newer than the step belong to a part of the run that somebody went back from: they
 * are left to him. */
static void remove_older(const dti_run_disk *disk, int64_t step, int keep)
{
    newest all;

    if (keep == 0 || list_steps(disk->dir, step, &all) != DT_OK) return;
    for (size_t i = (size_t)keep; i < all.n; i++) remove_step(disk, all.step[i]);
    dti_free(all.step);
}

dt_status dti_run_disk_name(dti_run_disk *disk, int64_t step, int keep)
{
    char *path = NULL, *temporary = NULL;
    dt_status st = DT_OK;

    DT_TRY(check_place(disk));
    DT_TRY_TO(done, st, dti_run_disk_step(disk->dir, step, true, &path));
    DT_TRY_TO(done, st, dti_run_disk_step(disk->dir, step, false, &temporary));
    DT_TRY_TO(done, st, dti_folder_sync(temporary));
    DT_TRY_TO(done, st, swap(temporary, path));
    st = dti_folder_sync(disk->dir);
    if (st == DT_OK) st = write_latest(disk, step);
    if (st != DT_OK) {
        const dt_error why = *dt_last_error();
        if (disk->latest == step || rename(path, temporary) != 0) (void)swap(temporary, path);
        dti_error_restore(&why);
        goto done;
    }
    disk->latest = step; /* whatever becomes of it: readers see it from here on */
    DT_TRY_TO(done, st, dti_folder_sync(disk->dir));
    remove_files(temporary); /* the one whose place it took */
    remove_older(disk, step, keep);
done:
    dti_free(temporary);
    dti_free(path);
    return st;
}
