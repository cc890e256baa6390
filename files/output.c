/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_TMPFILE */
#include "files/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "files/input.h"

enum { TRIES = 100 };

static dt_status refuse(const char *path, const char *what)
{
    char label[DTI_INPUT_LABEL_BYTES];

    DT_FAIL(dti_io_status(errno), "%s: %s: %s", dti_printable(path, label, sizeof label), what,
            strerror(errno));
}

static dt_status create(dti_output *out, const char *name, size_t bytes)
{
    char label[DTI_INPUT_LABEL_BYTES];

    for (int i = 0; i < TRIES && out->fd < 0; i++) {
        if (name != NULL)
            (void)snprintf(out->temporary, bytes, "%s", name);
        else
            (void)snprintf(out->temporary, bytes, "%s.%ld-%d.tmp", out->path, (long)getpid(), i);
        out->fd = open(out->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (out->fd < 0 && (errno != EEXIST || name != NULL)) break;
    }
    DT_CHECK(out->fd >= 0 || name == NULL || errno != EEXIST, DT_ERR_IO,
             "%s is there already: another run is writing it, or one was killed while it did; "
             "remove the file if nobody writes it",
             dti_printable(out->temporary, label, sizeof label));
    if (out->fd < 0) return refuse(out->path, "cannot be created");
    return DT_OK;
}

dt_status dti_output_open(dti_output *out, const char *path, const char *name)
{
    const size_t bytes = (name != NULL ? strlen(name) : strlen(path)) + 48;
    char label[DTI_INPUT_LABEL_BYTES];
    struct stat there;
    dt_status st;

    *out = (dti_output){ .path = path, .fd = -1 };
    DT_CHECK(stat(path, &there) != 0 || S_ISREG(there.st_mode), DT_ERR_IO,
             "%s is %s, in whose place no file is put; name a file",
             dti_printable(path, label, sizeof label),
             S_ISDIR(there.st_mode) ? "a folder" : "a device or pipe");
    DT_TRY(dti_alloc(bytes, (void **)&out->temporary));
    st = create(out, name, bytes);
    if (st != DT_OK) {
        dti_free(out->temporary);
        out->temporary = NULL;
    }
    return st;
}

dt_status dti_output_nameless(const char *dir, int number, int *fd)
{
    char path[4096];

    *fd = open(dir, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
    if (*fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR)) {
        (void)snprintf(path, sizeof path, "%s/.dtensor-%ld-%d", dir, (long)getpid(), number);
        *fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (*fd >= 0) (void)unlink(path);
    }
    if (*fd < 0) return refuse(dir, "no file can be made");
    return DT_OK;
}

dt_status dti_output_write(dti_output *out, const void *data, size_t n)
{
    DT_TRY(dti_write_at(out->fd, out->path, data, n, out->at));
    out->at += (int64_t)n;
    return DT_OK;
}

dt_status dti_write_at(int fd, const char *label, const void *data, size_t n, int64_t at)
{
    char shown[DTI_INPUT_LABEL_BYTES];

    for (size_t done = 0; done < n;) {
        const ssize_t got =
            pwrite(fd, (const char *)data + done, n - done, (off_t)(at + (int64_t)done));
        if (got < 0 && errno == EINTR) continue;
        DT_CHECK(got >= 0, dti_io_status(errno), "%s: writing %zu bytes at offset %lld failed: %s",
                 dti_printable(label, shown, sizeof shown), n - done,
                 (long long)(at + (int64_t)done), strerror(errno));
        done += (size_t)got;
    }
    return DT_OK;
}

dt_status dti_output_sync(const dti_output *out)
{
    return fsync(out->fd) == 0 ? DT_OK : refuse(out->path, "its bytes cannot be kept");
}

dt_status dti_output_close(dti_output *out, dt_status st)
{
    if (out->fd < 0) return st;
    if (st == DT_OK) st = dti_output_sync(out);
    if (close(out->fd) != 0 && st == DT_OK) st = refuse(out->path, "cannot be closed");
    if (st == DT_OK && rename(out->temporary, out->path) != 0)
        st = refuse(out->path, "cannot be replaced");
    if (st != DT_OK) (void)unlink(out->temporary);
    dti_free(out->temporary);
    *out = (dti_output){ .fd = -1 };
    return st;
}

dt_status dti_folder_sync(const char *dir)
{
    char label[DTI_INPUT_LABEL_BYTES];
    const int fd = open(dir, O_RDONLY | O_CLOEXEC);
    /* some file systems cannot do it, and have no need to */
    const bool kept = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    const int why = errno;

    if (fd >= 0) (void)close(fd);
    DT_CHECK(kept, dti_io_status(why), "%s: its names cannot be kept: %s",
             dti_printable(dir, label, sizeof label), strerror(why));
    return DT_OK;
}
