/* SPDX-License-Identifier: Apache-2.0 */
#include "weights/saving/hold.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "files/checkpoint.h"
#include "files/input.h"

enum { TRIES = 20, PAUSE_NS = 25 * 1000 * 1000, LIST_BYTES = 1 << 24 };

static dt_status refuse(const char *path, const char *what)
{
    char label[DTI_INPUT_LABEL_BYTES];
    const int why = errno;

    DT_FAIL(dti_io_status(why), "%s: %s: %s", dti_printable(path, label, sizeof label), what,
            strerror(why));
}

/* Whether `path` names the regular file that is (device, inode). */
static bool is_same(const char *path, dev_t device, ino_t inode)
{
    struct stat info;

    return lstat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_dev == device &&
           info.st_ino == inode;
}

/* --- the list --------------------------------------------------------------------------------- */

/* Calls fn for each file of the list that is still there, under either of its names. A line is an
 * inode and a final name; the last one may be cut off. */
static void each_listed(int fd, const char *dir, void (*fn)(void *arg, const char *path), void *arg)
{
    static const char *const ends[] = { "", ".tmp" };
    struct stat info;
    char *text = NULL, *line;
    ssize_t n;

    if (fstat(fd, &info) != 0 || info.st_size > LIST_BYTES) return;
    if (dti_alloc((size_t)info.st_size + 1, (void **)&text) != DT_OK) return;
    n = pread(fd, text, (size_t)info.st_size, 0);
    if (n > 0) text[n] = '\0';
    for (line = text; n > 0 && strchr(line, '\n') != NULL; line = strchr(line, '\n') + 1) {
        const int length = (int)strcspn(line, "\n");
        char name[256], path[4096];
        uintmax_t inode;
        if (sscanf(line, "%" SCNuMAX " %255[^/\n]", &inode, name) != 2 || length > 280) continue;
        for (size_t i = 0; i < DT_COUNT(ends); i++) {
            const int used = snprintf(path, sizeof path, "%s/%s%s", dir, name, ends[i]);
            if (used < (int)sizeof path && is_same(path, info.st_dev, (ino_t)inode)) fn(arg, path);
        }
    }
    dti_free(text);
}

static dt_status list_file(const dti_hold *c, const char *name, ino_t inode)
{
    char line[320];
    const int n = snprintf(line, sizeof line, "%" PRIuMAX " %s\n", (uintmax_t)inode, name);

    if (write(c->fd, line, (size_t)n) != n) return refuse(c->path, "cannot be written");
    return DT_OK;
}

static void sweep(void *arg, const char *path)
{
    dti_hold *c = arg;

    if (unlink(path) == 0) c->n_swept++;
}

typedef struct search {
    const char *path;
    bool found;
} search;

static void compare(void *arg, const char *path)
{
    search *s = arg;

    s->found |= strcmp(path, s->path) == 0;
}

bool dti_hold_is_left_over(const char *dir, const char *name)
{
    char *lock = NULL, *path = NULL;
    search s = { NULL, false };
    int fd = -1;

    if (dti_ckpt_path(dir, DTI_HOLD_NAME, &lock) == DT_OK &&
        dti_ckpt_path(dir, name, &path) == DT_OK)
        fd = open(lock, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    s.path = path;
    /* a save that still runs holds the lock alone */
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) == 0) each_listed(fd, dir, compare, &s);
    if (fd >= 0) (void)close(fd);
    dti_free(lock);
    dti_free(path);
    return s.found;
}

/* --- the lock --------------------------------------------------------------------------------- */

static dt_status make_folder(dti_hold *c)
{
    c->made_dir = mkdir(c->dir, 0777) == 0;
    if (!c->made_dir && errno != EEXIST) return refuse(c->dir, "cannot be made");
    return DT_OK;
}

/* Once: *held false if somebody else holds it, or took the file away while it was opened. Where a
 * file system has no locks, who makes the file has it. */
static dt_status try_lock(dti_hold *c, bool *held)
{
    const int flags = O_RDWR | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    struct stat info;
    bool made;

    *held = false;
    c->fd = open(c->path, flags | O_CREAT | O_EXCL, 0666);
    made = c->fd >= 0;
    if (!made && errno == EEXIST) c->fd = open(c->path, flags);
    if (c->fd < 0 && errno == ENOENT) return DT_OK;
    if (c->fd < 0) return refuse(c->path, "cannot be written");
    if (flock(c->fd, LOCK_EX | LOCK_NB) == 0)
        *held = fstat(c->fd, &info) == 0 && is_same(c->path, info.st_dev, info.st_ino);
    else
        *held = made && errno != EWOULDBLOCK && errno != EINTR;
    if (*held) return DT_OK;
    (void)close(c->fd);
    c->fd = -1;
    return DT_OK;
}

static dt_status take_lock(dti_hold *c)
{
    char label[DTI_INPUT_LABEL_BYTES];

    for (int i = 0; i < TRIES && !c->held; i++) {
        if (i > 0) (void)nanosleep(&(struct timespec){ .tv_nsec = PAUSE_NS }, NULL);
        DT_TRY(make_folder(c)); /* another save that failed may have taken its folder away */
        DT_TRY(try_lock(c, &c->held));
    }
    DT_CHECK(c->held, DT_ERR_IO,
             "%s: another save is writing into this folder; choose another one, or wait for its "
             "end",
             dti_printable(c->dir, label, sizeof label));
    return DT_OK;
}

dt_status dti_hold_take(dti_hold *c, const char *dir)
{
    dt_status st = DT_OK;

    *c = (dti_hold){ .dir = dir, .fd = -1 };
    DT_TRY(dti_ckpt_path(dir, DTI_HOLD_NAME, &c->path));
    DT_TRY_TO(fail, st, take_lock(c));
    /* one that came as far as the last name was complete, and is a model like any other */
    if (!dti_ckpt_exists(dir)) each_listed(c->fd, dir, sweep, c);
    if (ftruncate(c->fd, 0) != 0) DT_TRY_TO(fail, st, refuse(c->path, "cannot be written"));
    return DT_OK;

fail:
    dti_hold_end(c, st);
    return st;
}

/* --- files ------------------------------------------------------------------------------------ */

dt_status dti_hold_create(dti_hold *c, const char *name, int *fd)
{
    char label[DTI_INPUT_LABEL_BYTES], temporary[DTI_INPUT_LABEL_BYTES];
    dt_status st = DT_OK;
    struct stat info;
    dti_made *f;

    *fd = -1;
    DT_TRY(dti_grow((void **)&c->made, &c->room, c->n + 1, sizeof *c->made));
    f = &c->made[c->n];
    *f = (dti_made){ 0 };
    (void)snprintf(temporary, sizeof temporary, "%s.tmp", name);
    DT_TRY_TO(fail, st, dti_ckpt_path(c->dir, name, &f->path));
    DT_TRY_TO(fail, st, dti_ckpt_path(c->dir, temporary, &f->temporary));
    *fd = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    DT_CHECK_TO(fail, st, *fd >= 0 || errno != EEXIST, DT_ERR_IO,
                "%s is there already: another run is writing it, or one was killed while it did; "
                "remove the file if nobody writes it",
                dti_printable(f->temporary, label, sizeof label));
    if (*fd < 0) DT_TRY_TO(fail, st, refuse(f->temporary, "cannot be created"));
    if (fstat(*fd, &info) != 0) st = refuse(f->temporary, "cannot be created");
    f->device = info.st_dev;
    f->inode = info.st_ino;
    c->n++; /* from here on it is undone with the others */
    if (st == DT_OK) st = list_file(c, name, info.st_ino);
    if (st == DT_OK) return DT_OK;
    (void)close(*fd);
    *fd = -1;
    return st;

fail:
    dti_free(f->path);
    dti_free(f->temporary);
    return st;
}

static dt_status check_made(const dti_made *f)
{
    const char *path = f->named ? f->path : f->temporary;
    char label[DTI_INPUT_LABEL_BYTES];

    DT_CHECK(is_same(path, f->device, f->inode), DT_ERR_IO,
             "%s: is not the file any more that this save has made: somebody else writes into the "
             "folder",
             dti_printable(path, label, sizeof label));
    return DT_OK;
}

dt_status dti_hold_check(const dti_hold *c)
{
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat info;

    DT_CHECK(fstat(c->fd, &info) == 0 && is_same(c->path, info.st_dev, info.st_ino), DT_ERR_IO,
             "%s: is not the lock any more that this save has taken: somebody else writes into the "
             "folder",
             dti_printable(c->path, label, sizeof label));
    for (size_t i = 0; i < c->n; i++) DT_TRY(check_made(&c->made[i]));
    return DT_OK;
}

dt_status dti_hold_name(dti_hold *c, size_t i)
{
    dti_made *f = &c->made[i];
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat info;

    DT_TRY(check_made(f));
    DT_CHECK(lstat(f->path, &info) != 0 && errno == ENOENT, DT_ERR_IO,
             "%s: has come to be there while the model was written; it is not written over",
             dti_printable(f->path, label, sizeof label));
    if (rename(f->temporary, f->path) != 0) return refuse(f->path, "cannot be named");
    f->named = true;
    return DT_OK;
}

void dti_hold_end(dti_hold *c, dt_status st)
{
    for (size_t i = c->n; i-- > 0;) {
        const dti_made *f = &c->made[i];
        const char *path = f->named ? f->path : f->temporary;
        if (st != DT_OK && is_same(path, f->device, f->inode)) (void)unlink(path);
        dti_free(f->path);
        dti_free(f->temporary);
    }
    dti_free(c->made);
    if (c->held) (void)unlink(c->path); /* while it is locked: who waits for it looks again */
    if (c->held) (void)close(c->fd);
    if (c->made_dir && st != DT_OK) (void)rmdir(c->dir);
    dti_free(c->path);
    *c = (dti_hold){ .fd = -1 };
}
