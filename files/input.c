/* SPDX-License-Identifier: Apache-2.0 */
#include "files/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"

/* Linux moves at most 2^31 - 4096 bytes in one call. */
enum { READ_BYTES = 1 << 30, CHUNK_BYTES = 1 << 16 };

/* errno says why; a link whose file is gone looks like a file to all who list the folder. */
static dt_status refuse_to_open(const char *path, const char *label)
{
    const int why = errno;
    struct stat info;
    const char *more = "";

    if (why == EMFILE) more = " (see ulimit -n)";
    if (why == ENOENT && lstat(path, &info) == 0) more = " (it is a symbolic link to nothing)";
    DT_FAIL(dti_io_status(why), "%s: cannot be opened: %s%s", label, strerror(why), more);
}

dt_status dti_input_open(const char *path, dti_input *out)
{
    dt_status st = DT_OK;
    struct stat info;

    *out = (dti_input){ .fd = -1, .pread = pread };
    (void)dti_printable(path, out->label, sizeof out->label);

    /* Without O_NONBLOCK a named pipe would wait for a writer before it could be refused. */
    out->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (out->fd < 0) return refuse_to_open(path, out->label);
    DT_CHECK_TO(fail, st, fstat(out->fd, &info) == 0, dti_io_status(errno), "%s: %s", out->label,
                strerror(errno));
    DT_CHECK_TO(fail, st, S_ISREG(info.st_mode), DT_ERR_IO, "%s: is %s, not a file", out->label,
                S_ISDIR(info.st_mode) ? "a folder" : "a device or pipe");
    out->bytes = (int64_t)info.st_size;
    return DT_OK;

fail:
    dti_input_close(out);
    return st;
}

void dti_input_close(dti_input *in)
{
    if (in->fd >= 0) (void)close(in->fd);
    in->fd = -1;
}

dt_status dti_input_read(const dti_input *in, void *to, int64_t n, int64_t at)
{
    for (int64_t done = 0; done < n;) {
        const int64_t want = n - done < READ_BYTES ? n - done : READ_BYTES;
        const ssize_t got = in->pread(in->fd, (char *)to + done, (size_t)want, (off_t)(at + done));

        if (got < 0 && errno == EINTR) continue;
        DT_CHECK(got >= 0, dti_io_status(errno), "%s: reading %lld bytes at offset %lld failed: %s",
                 in->label, (long long)want, (long long)(at + done), strerror(errno));
        DT_CHECK(got > 0, DT_ERR_IO,
                 "%s: ends at byte %lld but had %lld bytes when it was opened: something shortened "
                 "it while it was read",
                 in->label, (long long)(at + done), (long long)in->bytes);
        done += got;
    }
    return DT_OK;
}

/* Reads until the end, into an array that grows. */
static dt_status read_all(int fd, const char *label, int64_t max_bytes, void **bytes, int64_t *n)
{
    size_t capacity = 0;

    for (;;) {
        const int64_t room = max_bytes + 1 - *n; /* one more shows that there is too much */
        const int64_t want = room < CHUNK_BYTES ? room : CHUNK_BYTES;
        ssize_t got;

        DT_TRY(dti_grow(bytes, &capacity, (size_t)(*n + want), 1));
        got = read(fd, (char *)*bytes + *n, (size_t)want);
        if (got < 0 && errno == EINTR) continue;
        DT_CHECK(got >= 0, dti_io_status(errno), "%s: cannot be read: %s", label, strerror(errno));
        *n += got;
        DT_CHECK(*n <= max_bytes, DT_ERR_FORMAT,
                 "%s: has more than %lld bytes, at most %lld are read", label, (long long)max_bytes,
                 (long long)max_bytes);
        if (got == 0) return DT_OK;
    }
}

dt_status dti_input_read_file(const char *path, int64_t max_bytes, void **bytes, int64_t *n)
{
    dt_status st = DT_OK;
    dti_input in;

    *bytes = NULL;
    *n = 0;
    DT_TRY(dti_input_open(path, &in));
    DT_CHECK_TO(done, st, in.bytes <= max_bytes, DT_ERR_FORMAT,
                "%s: is %lld bytes, at most %lld are read", in.label, (long long)in.bytes,
                (long long)max_bytes);
    DT_TRY_TO(done, st, dti_alloc((size_t)in.bytes, bytes));
    DT_TRY_TO(done, st, dti_input_read(&in, *bytes, in.bytes, 0));
    *n = in.bytes;
done:
    dti_input_close(&in);
    if (st == DT_OK) return DT_OK;
    dti_free(*bytes);
    *bytes = NULL;
    return st;
}

dt_status dti_input_read_all(const char *path, int64_t max_bytes, void **bytes, int64_t *n)
{
    char label[DTI_INPUT_LABEL_BYTES];
    dt_status st;
    int fd;

    *bytes = NULL;
    *n = 0;
    (void)dti_printable(path, label, sizeof label);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return refuse_to_open(path, label);
    st = read_all(fd, label, max_bytes, bytes, n);
    (void)close(fd);
    if (st == DT_OK) return DT_OK;
    dti_free(*bytes);
    *bytes = NULL;
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}
