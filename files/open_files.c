/* SPDX-License-Identifier: Apache-2.0 */
#include "files/open_files.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

struct dti_open_file {
    dti_open_files *all;
    dti_open_file *next;
    char *path;
    int fd; /* -1: closed */
    int n_readers;
    uint64_t used; /* when it was given back */
    int64_t bytes;
    dev_t device;
    ino_t inode;
};

struct dti_open_files {
    pthread_mutex_t mutex;
    dti_open_file *first;
    int n_open, most;
    uint64_t clock;
};

dt_status dti_open_files_create(int most, dti_open_files **out)
{
    DT_TRY(dti_new(sizeof **out, out));
    (*out)->most = most;
    if (pthread_mutex_init(&(*out)->mutex, NULL) == 0) return DT_OK;
    dti_free(*out);
    *out = NULL;
    DT_FAIL(DT_ERR_MEMORY, "no lock for open files");
}

void dti_open_files_free(dti_open_files **files)
{
    if (*files == NULL) return;
    DT_ASSERT((*files)->first == NULL);
    (void)pthread_mutex_destroy(&(*files)->mutex);
    dti_free(*files);
    *files = NULL;
}

int dti_open_files_count(dti_open_files *files)
{
    int n;

    (void)pthread_mutex_lock(&files->mutex);
    n = files->n_open;
    (void)pthread_mutex_unlock(&files->mutex);
    return n;
}

/* Closes those that nobody reads, the one first that was not read for longest, until at most `most`
 * are open. With the lock. */
static void close_down_to(dti_open_files *files, int most)
{
    while (files->n_open > most) {
        dti_open_file *oldest = NULL;

        for (dti_open_file *f = files->first; f != NULL; f = f->next)
            if (f->fd >= 0 && f->n_readers == 0 && (oldest == NULL || f->used < oldest->used))
                oldest = f;
        if (oldest == NULL) return;
        (void)close(oldest->fd);
        oldest->fd = -1;
        files->n_open--;
    }
}

dt_status dti_open_file_add(dti_open_files *files, const char *path, dti_input *in,
                            dti_open_file **out)
{
    dt_status st = DT_OK;
    struct stat info;
    dti_open_file *f;

    *out = NULL;
    DT_TRY(dti_new(sizeof *f, &f));
    DT_TRY_TO(fail, st, dti_strdup(path, &f->path));
    DT_CHECK_TO(fail, st, fstat(in->fd, &info) == 0, DT_ERR_IO, "%s: cannot be looked at",
                in->label);
    f->all = files;
    f->fd = in->fd;
    f->bytes = in->bytes;
    f->device = info.st_dev;
    f->inode = info.st_ino;
    in->fd = -1;
    (void)pthread_mutex_lock(&files->mutex);
    f->used = files->clock++;
    f->next = files->first;
    files->first = f;
    files->n_open++;
    close_down_to(files, files->most);
    (void)pthread_mutex_unlock(&files->mutex);
    *out = f;
    return DT_OK;

fail:
    dti_free(f->path);
    dti_free(f);
    return st;
}

void dti_open_file_remove(dti_open_file **file)
{
    dti_open_file *f = *file, **at;

    if (f == NULL) return;
    *file = NULL;
    (void)pthread_mutex_lock(&f->all->mutex);
    for (at = &f->all->first; *at != f; at = &(*at)->next) {
    }
    *at = f->next;
    if (f->fd >= 0) {
        (void)close(f->fd);
        f->all->n_open--;
    }
    (void)pthread_mutex_unlock(&f->all->mutex);
    dti_free(f->path);
    dti_free(f);
}

/* With the lock: opening is quick beside what is read afterwards. */
static dt_status open_again(dti_open_file *f)
{
    dt_status st = DT_OK;
    struct stat info;
    dti_input in;

    close_down_to(f->all, f->all->most - 1);
    DT_TRY(dti_input_open(f->path, &in));
    DT_CHECK_TO(fail, st,
                fstat(in.fd, &info) == 0 && info.st_dev == f->device && info.st_ino == f->inode &&
                    in.bytes == f->bytes,
                DT_ERR_IO, "%s: has become another file while the model was read", in.label);
    (void)posix_fadvise(in.fd, 0, 0, POSIX_FADV_SEQUENTIAL); /* a hint: larger read-ahead */
    f->fd = in.fd;
    f->all->n_open++;
    return DT_OK;

fail:
    dti_input_close(&in);
    return st;
}

dt_status dti_open_file_take(dti_open_file *f, int *fd)
{
    dt_status st = DT_OK;

    (void)pthread_mutex_lock(&f->all->mutex);
    if (f->fd < 0) st = open_again(f);
    if (st == DT_OK) f->n_readers++;
    *fd = f->fd;
    (void)pthread_mutex_unlock(&f->all->mutex);
    DT_TRY(st);
    return DT_OK;
}

void dti_open_file_give(dti_open_file *f)
{
    (void)pthread_mutex_lock(&f->all->mutex);
    f->n_readers--;
    f->used = f->all->clock++;
    close_down_to(f->all, f->all->most);
    (void)pthread_mutex_unlock(&f->all->mutex);
}
