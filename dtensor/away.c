/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* fallocate, sync_file_range */
#include "dtensor/away.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/text.h"
#include "dtensor/tensor_internal.h"
#include "files/checksum.h"
#include "files/input.h"
#include "files/output.h"
#include "mesh/runtime.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14; others refuse it */
#endif

enum {
    READ_AHEAD = 128 << 10, /* as much as systems take from one call */
    READ_AT_ONCE = 16 << 10
};

/* Bytes of a storage in a file; it stands in the page before them. */
typedef struct block {
    int64_t at; /* in the file */
    size_t bytes, mapped;
    uint64_t checksum;
    uint32_t version; /* of the storage whose checksum it is */
    bool known;
} block;

typedef struct dti_away {
    struct dti_away *next;
    dti_device *device;
    char *where;
    dti_memory *memory;
    int fd; /* -1: none */
    char label[DTI_INPUT_LABEL_BYTES];
    int64_t end; /* of the file */
    size_t page;
    block *leaving; /* what was written last, on its way to the disk; or NULL */
} dti_away;

/* --- memory of a file ------------------------------------------------------------------------- */

static char *bytes_of(const dti_away *a, block *b)
{
    return (char *)b + a->page;
}

static dt_status take_bytes(void *arg, size_t bytes, void **out)
{
    dti_away *a = arg;
    const size_t mapped = (bytes + a->page) / a->page * a->page; /* one byte at least */
    const int error = posix_fallocate(a->fd, (off_t)a->end, (off_t)mapped);
    char text[DTI_NUMBER_BYTES], *at;

    DT_CHECK(error == 0, dti_io_status(error), "%s: no space for %s of parameters: %s", a->label,
             dti_bytes_text((int64_t)mapped, text), strerror(error));
    at = mmap(NULL, a->page + mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DT_CHECK(at != MAP_FAILED, DT_ERR_MEMORY, "no addresses for %s of parameters",
             dti_bytes_text((int64_t)mapped, text));
    *out = at + a->page;
    if (mmap(*out, mapped, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, a->fd, (off_t)a->end) ==
        MAP_FAILED) {
        (void)munmap(at, a->page + mapped);
        *out = NULL;
        DT_FAIL(dti_io_status(errno), "%s: cannot be mapped: %s", a->label, strerror(errno));
    }
    *(block *)(void *)at = (block){ .at = a->end, .bytes = bytes, .mapped = mapped };
    a->end += (int64_t)mapped;
    return DT_OK;
}

static void give_bytes(void *arg, void *data, size_t bytes)
{
    dti_away *a = arg;
    block *b = (block *)(void *)((char *)data - a->page);

    (void)bytes;
    if (a->leaving == b) a->leaving = NULL;
    (void)fallocate(a->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)b->at,
                    (off_t)b->mapped);
    (void)munmap(b, a->page + b->mapped);
}

/* --- all of a device's ------------------------------------------------------------------------ */

static dt_status open_memory(dti_away *a, bool host)
{
    const dti_allocator in_file = { take_bytes, give_bytes, a };

    a->page = (size_t)sysconf(_SC_PAGESIZE);
    (void)dti_printable(a->where, a->label, sizeof a->label);
    if (!host && !a->device->dry)
        DT_TRY(dti_output_nameless(a->where, dt_runtime_rank(a->device->rt), &a->fd));
    DT_TRY(dti_memory_create(a->device->dry, host ? &a->device->pinned : &in_file, &a->memory));
    return DT_OK;
}

static void free_away(dti_away *a)
{
    dti_memory_destroy(&a->memory);
    if (a->fd >= 0) (void)close(a->fd);
    dti_free(a->where);
    dti_free(a);
}

dt_status dti_away_open(dti_device *d, const char *where, dti_memory **out)
{
    const bool host = strcmp(where, "host") == 0, gpu = dti_runtime_is_on_gpu(d->rt);
    dti_away *a = d->away;
    dt_status st = DT_OK;

    *out = NULL;
    DT_CHECK(host || !gpu, DT_ERR_UNSUPPORTED,
             "offload to %s: a file is for ranks on the CPU; beside a GPU say \"host\"", where);
    if (host && !gpu) return DT_OK;
    while (a != NULL && strcmp(a->where, where) != 0) a = a->next;
    if (a == NULL) {
        DT_TRY(dti_new(sizeof *a, &a));
        a->device = d;
        a->fd = -1;
        DT_TRY_TO(fail, st, dti_strdup(where, &a->where));
        DT_TRY_TO(fail, st, open_memory(a, host));
        a->next = d->away;
        d->away = a;
    }
    *out = a->memory;
    return DT_OK;

fail:
    free_away(a);
    return st;
}

void dti_away_end(dti_device *d)
{
    for (dti_away *a = d->away; a != NULL; a = a->next) dti_memory_end(a->memory);
}

void dti_away_close(dti_device *d)
{
    for (dti_away *a = d->away, *next; a != NULL; a = next) {
        next = a->next;
        free_away(a);
    }
    d->away = NULL;
}

static dti_away *away_of(const dt_tensor *x)
{
    dti_away *a = x->device->away;

    while (a != NULL && a->memory != x->storage->memory) a = a->next;
    return a;
}

bool dti_tensor_is_away(const dt_tensor *x)
{
    return away_of(x) != NULL;
}

/* --- pages ------------------------------------------------------------------------------------ */

/* NULL: x lies in no file. */
static block *block_of(const dti_away *a, const dt_tensor *x)
{
    if (a == NULL || a->fd < 0 || x->storage->data == NULL) return NULL;
    return (block *)(void *)((char *)x->storage->data - a->page);
}

void dti_away_soon(const dt_tensor *x)
{
    const dti_away *a = away_of(x);
    const block *b = block_of(a, x);

    for (size_t at = 0; b != NULL && at < b->bytes; at += READ_AHEAD)
        (void)posix_fadvise(a->fd, (off_t)(b->at + (int64_t)at), READ_AHEAD, POSIX_FADV_WILLNEED);
}

static void remember(block *b, uint64_t checksum, const dt_tensor *x)
{
    b->checksum = checksum;
    b->version = x->storage->version;
    b->known = true;
}

/* Pages of a mapping that cannot be read end the process. So they are asked for before; where the
 * system says no, whatever its reason, reading the file finds out. */
static dt_status bring_pages(const dti_away *a, block *b)
{
    char bytes[READ_AT_ONCE];

    if (madvise(bytes_of(a, b), b->mapped, MADV_POPULATE_READ) == 0) return DT_OK;
    for (size_t at = 0; at < b->mapped; at += sizeof bytes) {
        const size_t n = (size_t)dti_min(READ_AT_ONCE, (int64_t)(b->mapped - at));
        DT_CHECK(pread(a->fd, bytes, n, (off_t)(b->at + (int64_t)at)) == (ssize_t)n, DT_ERR_IO,
                 "%s: reading %zu bytes of parameters failed", a->label, b->bytes);
    }
    return DT_OK;
}

dt_status dti_away_bring(const dt_tensor *x)
{
    dti_away *a = away_of(x);
    block *b = block_of(a, x);
    uint64_t checksum;

    if (b == NULL) return DT_OK;
    DT_TRY(bring_pages(a, b));
    checksum = dti_checksum_of(bytes_of(a, b), b->bytes);
    DT_CHECK(!b->known || b->version != x->storage->version || b->checksum == checksum, DT_ERR_IO,
             "%s: %zu bytes of parameters are not those that were written: the disk fails",
             a->label, b->bytes);
    remember(b, checksum, x);
    return DT_OK;
}

static dt_status lost(dt_status st)
{
    if (st != DT_OK) dti_error_prefix("parameters are lost; load a checkpoint");
    return st;
}

bool dti_away_write(const dt_tensor *x, int64_t at, const void *from, size_t bytes, dt_status *st)
{
    const dti_away *a = away_of(x);
    const block *b = block_of(a, x);

    if (b != NULL) *st = lost(dti_write_at(a->fd, a->label, from, bytes, b->at + at));
    return b != NULL;
}

static dt_status write_out(const dti_away *a, const block *b, unsigned how)
{
    if (sync_file_range(a->fd, (off_t)b->at, (off_t)b->mapped, how) == 0) return DT_OK;
    return lost(dt_fail(dti_io_status(errno), "%s: writing %zu bytes failed: %s", a->label,
                        b->bytes, strerror(errno)));
}

static void drop(const dti_away *a, block *b)
{
    (void)madvise(bytes_of(a, b), b->mapped, MADV_DONTNEED);
    (void)posix_fadvise(a->fd, (off_t)b->at, (off_t)b->mapped, POSIX_FADV_DONTNEED);
}

/* The disk writes one while the next is made. */
dt_status dti_away_leave(const dt_tensor *x, bool written)
{
    dti_away *a = away_of(x);
    block *b = block_of(a, x), *before;

    if (b == NULL) return DT_OK;
    if (!written) {
        drop(a, b);
        return DT_OK;
    }
    remember(b, dti_checksum_of(bytes_of(a, b), b->bytes), x);
    before = a->leaving;
    a->leaving = b;
    DT_TRY(write_out(a, b, SYNC_FILE_RANGE_WRITE));
    if (before == NULL || before == b) return DT_OK;
    DT_TRY(write_out(a, before,
                     SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
                         SYNC_FILE_RANGE_WAIT_AFTER));
    drop(a, before);
    return DT_OK;
}
