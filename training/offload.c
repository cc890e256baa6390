/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* O_DIRECT */

#include "training/offload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/io_status.h"
#include "base/memory.h"
#include "base/numbers.h"
#include "base/text.h"
#include "dtensor/device/device.h"
#include "files/checksum.h"
#include "files/input.h"
#include "files/output.h"
#include "training/behind.h"

enum { PAGE = 4096, N_BUFFERS = 3, FLOATS = PAGE / sizeof(float) };

/* Elements of n_slots slots, `chunk` of each in a window. */
typedef struct item {
    int64_t n, chunk;
    int n_slots;
    int64_t at; /* of the first byte */
    int64_t first_window, n_windows;
} item;

typedef struct window_sum {
    uint64_t checksum;
    bool known; /* it was written */
} window_sum;

/* What the thread behind is to do, in this order. A window of -1: not. */
typedef struct transfer {
    dti_offload *of;
    int64_t written, read;
    int from, to; /* buffers */
} transfer;

struct dti_offload {
    dt_runtime *rt;
    dti_device *device;
    char *dir; /* NULL: memory of the host */
    int64_t buffer_bytes;
    item *items;
    size_t n_items, room;
    int64_t n_windows, stored_bytes;

    char *memory; /* [stored_bytes] of the host, without a folder */

    int fd; /* -1: none */
    char label[DTI_INPUT_LABEL_BYTES];
    window_sum *sums;
    char *buffers; /* [N_BUFFERS * buffer_bytes] */
    int now, ready, spare;
    int64_t ready_window; /* -1: none */
    dti_behind *behind;
    transfer transfer;

    dti_storage *on_device; /* a window, while there is one; of a GPU */
    dt_status status;       /* what made the state useless */
    dt_error why;
};

/* --- items --- */

dt_status dti_offload_create(dt_runtime *rt, const char *where, int64_t window_bytes,
                             dti_offload **out)
{
    dt_status st = DT_OK;
    dti_offload *o;

    *out = NULL;
    DT_CHECK(window_bytes >= DTI_OFFLOAD_LEAST_BYTES, DT_ERR_ARG,
             "window_bytes is %lld, must be at least %d", (long long)window_bytes,
             DTI_OFFLOAD_LEAST_BYTES);
    DT_TRY(dti_new(sizeof *o, &o));
    *o = (dti_offload){ .rt = rt, .fd = -1, .ready = 1, .spare = 2, .ready_window = -1 };
    o->buffer_bytes = window_bytes / N_BUFFERS / PAGE * PAGE;
    DT_TRY_TO(fail, st, dti_device_of(rt, &o->device));
    if (strcmp(where, "host") != 0) DT_TRY_TO(fail, st, dti_strdup(where, &o->dir));
    if (o->dir != NULL) DT_TRY_TO(fail, st, dti_behind_create(rt, &o->behind));
    *out = o;
    return DT_OK;

fail:
    dti_offload_free(&o);
    return st;
}

void dti_offload_free(dti_offload **offload)
{
    dti_offload *o = *offload;

    if (o == NULL) return;
    *offload = NULL;
    dti_behind_close(&o->behind);
    if (o->on_device != NULL) dti_storage_release(o->on_device);
    if (o->fd >= 0) (void)close(o->fd);
    dti_big_free(o->memory, (size_t)o->stored_bytes);
    dti_big_free(o->buffers, (size_t)(N_BUFFERS * o->buffer_bytes));
    dti_free(o->sums);
    dti_free(o->items);
    dti_free(o->dir);
    dti_free(o);
}

/* In memory that the rank computes on a window is the whole item, where it lies. */
static bool lies_in_place(const dti_offload *o)
{
    return o->dir == NULL && o->device->ops->host_visible;
}

/* Bytes of one slot's part of a window of n elements: of a file whole pages. */
static int64_t slot_bytes(const dti_offload *o, int64_t n)
{
    return o->dir != NULL ? dti_round_up(n * 4, PAGE) : n * 4;
}

dt_status dti_offload_add(dti_offload *o, int64_t n, int n_slots, int64_t *number)
{
    item *it;

    DT_ASSERT(n_slots >= 1 && n_slots <= DTI_OFFLOAD_MAX_SLOTS);
    DT_TRY(dti_grow((void **)&o->items, &o->room, o->n_items + 1, sizeof *o->items));
    it = &o->items[o->n_items];
    *it = (item){ .n = n, .n_slots = n_slots, .at = o->stored_bytes, .first_window = o->n_windows };
    it->chunk = lies_in_place(o) ? dti_max(n, 1) : o->buffer_bytes / 4 / n_slots / FLOATS * FLOATS;
    it->n_windows = (n + it->chunk - 1) / it->chunk;
    o->n_windows += it->n_windows;
    if (n > 0)
        o->stored_bytes += (it->n_windows - 1) * n_slots * it->chunk * 4 +
                           n_slots * slot_bytes(o, n - (it->n_windows - 1) * it->chunk);
    *number = (int64_t)o->n_items++;
    return DT_OK;
}

/* --- the file --- */

static dt_status make_file(dti_offload *o)
{
    char text[DTI_NUMBER_BYTES];
    int error;

    (void)dti_printable(o->dir, o->label, sizeof o->label);
    DT_TRY(dti_output_nameless(o->dir, dt_runtime_rank(o->rt), &o->fd));
    error = posix_fallocate(o->fd, 0, (off_t)dti_max(o->stored_bytes, PAGE));
    DT_CHECK(error == 0, dti_io_status(error), "%s: no space for %s of optimizer state: %s",
             o->label, dti_bytes_text(o->stored_bytes, text), strerror(error));
    return DT_OK;
}

/* Past the page cache, which would hold what the window is there to not hold. */
static void go_past_the_cache(dti_offload *o)
{
    const int flags = fcntl(o->fd, F_GETFL);

    if (flags < 0 || fcntl(o->fd, F_SETFL, flags | O_DIRECT) != 0) return;
    if (pwrite(o->fd, o->buffers, PAGE, 0) != PAGE) (void)fcntl(o->fd, F_SETFL, flags);
}

dt_status dti_offload_open(dti_offload *o)
{
    const size_t n = (size_t)(N_BUFFERS * o->buffer_bytes);

    if (o->dir == NULL) {
        DT_TRY(dti_big_alloc((size_t)o->stored_bytes, (void **)&o->memory));
        return DT_OK;
    }
    DT_TRY(dti_alloc_array((size_t)o->n_windows, sizeof *o->sums, (void **)&o->sums));
    DT_TRY(dti_big_alloc(n, (void **)&o->buffers));
    DT_TRY(make_file(o));
    if ((uintptr_t)o->buffers % PAGE == 0) go_past_the_cache(o);
    return DT_OK;
}

/* --- windows --- */

/* Where a window is, and how much. */
typedef struct place {
    int64_t first, n, at, slot_bytes, bytes;
    int n_slots;
} place;

static place place_in(const dti_offload *o, const item *it, int64_t window)
{
    const int64_t k = window - it->first_window;
    place p = { .first = k * it->chunk, .n_slots = it->n_slots };

    p.n = dti_min(it->chunk, it->n - p.first);
    p.slot_bytes = slot_bytes(o, p.n);
    p.bytes = p.slot_bytes * it->n_slots;
    p.at = it->at + k * it->n_slots * it->chunk * 4;
    return p;
}

static place place_of(const dti_offload *o, int64_t window)
{
    size_t low = 0, high = o->n_items;

    while (high - low > 1) { /* the last item that begins at or before it */
        const size_t middle = (low + high) / 2;
        if (o->items[middle].first_window <= window)
            low = middle;
        else
            high = middle;
    }
    return place_in(o, &o->items[low], window);
}

static char *buffer(const dti_offload *o, int i)
{
    return o->buffers + i * o->buffer_bytes;
}

static dt_status write_window(dti_offload *o, int64_t window, const char *from)
{
    const place p = place_of(o, window);

    o->sums[window] = (window_sum){ dti_checksum_of(from, (size_t)p.bytes), true };
    DT_TRY(dti_write_at(o->fd, o->label, from, (size_t)p.bytes, p.at));
    return DT_OK;
}

static dt_status read_window(const dti_offload *o, int64_t window, char *to)
{
    const place p = place_of(o, window);

    for (int64_t done = 0; done < p.bytes;) {
        const ssize_t got = pread(o->fd, to + done, (size_t)(p.bytes - done), (off_t)(p.at + done));
        if (got < 0 && errno == EINTR) continue;
        DT_CHECK(got > 0, dti_io_status(errno),
                 "%s: reading %lld bytes of optimizer state failed: %s", o->label,
                 (long long)(p.bytes - done), got < 0 ? strerror(errno) : "the file ends");
        done += got;
    }
    DT_CHECK(!o->sums[window].known ||
                 dti_checksum_of(to, (size_t)p.bytes) == o->sums[window].checksum,
             DT_ERR_IO,
             "%s: bytes %lld to %lld of optimizer state are not those that were written: the disk "
             "fails",
             o->label, (long long)p.at, (long long)(p.at + p.bytes));
    return DT_OK;
}

static dt_status do_transfer(void *arg, const atomic_bool *cancelled)
{
    const transfer *t = arg;

    (void)cancelled;
    if (t->written >= 0) DT_TRY(write_window(t->of, t->written, buffer(t->of, t->from)));
    if (t->read >= 0) DT_TRY(read_window(t->of, t->read, buffer(t->of, t->to)));
    return DT_OK;
}

/* The state is useless from here on. */
static dt_status lose(dti_offload *o, dt_status st)
{
    if (o->status == DT_OK) {
        dti_error_prefix("the optimizer's state is lost; load a checkpoint");
        o->status = st;
        o->why = *dt_last_error();
    }
    return st;
}

static dt_status finish(dti_offload *o)
{
    dt_status st;

    if (o->behind == NULL || dti_behind_look(o->behind) == DTI_BEHIND_IDLE) return DT_OK;
    dti_behind_wait(o->behind, -1);
    st = dti_behind_take(o->behind);
    if (st == DT_OK) return DT_OK;
    o->ready_window = -1;
    return lose(o, st);
}

/* Buffers `from` and `to` belong to it until finish(). */
static dt_status start(dti_offload *o, int64_t written, int from, int64_t read, int to)
{
    if (written < 0 && read < 0) return DT_OK;
    o->transfer = (transfer){ o, written, read, from, to };
    DT_TRY(dti_behind_do(o->behind, do_transfer, &o->transfer));
    return DT_OK;
}

/* The next one in the file is most likely the next one wanted. */
static int64_t window_after(const dti_offload *o, int64_t window)
{
    const int64_t next = window + 1 < o->n_windows ? window + 1 : 0;

    return next != window ? next : -1;
}

static dt_status bring(dti_offload *o, int64_t put, int64_t want)
{
    const int before = o->now;

    if (want == o->ready_window) {
        o->now = o->ready;
        o->ready = o->spare;
        o->spare = before;
        o->ready_window = window_after(o, want);
        return start(o, put, o->spare, o->ready_window, o->ready);
    }
    o->ready_window = -1;
    DT_TRY(start(o, put, o->now, want, o->spare));
    DT_TRY(finish(o));
    o->now = o->spare;
    o->spare = before;
    o->ready_window = window_after(o, want);
    return start(o, -1, 0, o->ready_window, o->ready);
}

/* --- to and from a device --- */

/* Where slot s of a window lies in memory of the host. */
static char *host_slot(const dti_offload *o, const item *it, const place *p, int s)
{
    if (o->dir != NULL) return buffer(o, o->now) + s * p->slot_bytes;
    return o->memory + it->at + ((int64_t)s * it->n + p->first) * 4;
}

static dt_status put_from_device(dti_offload *o, const item *it, const place *p,
                                 const dti_window *w)
{
    if (o->device->ops->host_visible) return DT_OK;
    for (int s = 0; s < it->n_slots; s++)
        DT_TRY(o->device->ops->read(o->device, host_slot(o, it, p, s), w->slot[s],
                                    (size_t)(p->n * 4)));
    return DT_OK;
}

static dt_status bring_to_device(dti_offload *o, const item *it, const place *p, dti_window *w)
{
    if (o->on_device == NULL)
        DT_TRY(dti_storage_create(o->device->memory, (size_t)o->buffer_bytes, true, &o->on_device));
    for (int s = 0; s < it->n_slots; s++) {
        w->slot[s] = (float *)o->on_device->data + s * it->chunk;
        DT_TRY(o->device->ops->write(o->device, w->slot[s], host_slot(o, it, p, s),
                                     (size_t)(p->n * 4)));
    }
    return DT_OK;
}

dt_status dti_offload_next(dti_offload *o, dti_window *w, bool reads)
{
    const item *it = &o->items[w->item];
    const int64_t k = w->n > 0 ? w->first / it->chunk : -1;
    const int64_t held = w->n > 0 ? it->first_window + k : -1, put = reads ? -1 : held;
    const int64_t want = k + 1 < it->n_windows ? it->first_window + k + 1 : -1;
    place p;

    if (o->status != DT_OK) {
        dti_error_restore(&o->why);
        return dti_error_frame(o->status, __func__, __FILE__, __LINE__);
    }
    DT_TRY(finish(o));
    if (put >= 0) {
        p = place_in(o, it, put);
        DT_TRY(put_from_device(o, it, &p, w));
    }
    *w = (dti_window){ .item = w->item };
    if (want < 0) return o->dir != NULL ? start(o, put, o->now, -1, 0) : DT_OK;
    if (o->dir != NULL) DT_TRY(bring(o, put, want));
    p = place_in(o, it, want);
    w->first = p.first;
    w->n = p.n;
    if (!o->device->ops->host_visible) return bring_to_device(o, it, &p, w);
    for (int s = 0; s < it->n_slots; s++) w->slot[s] = (float *)(void *)host_slot(o, it, &p, s);
    return DT_OK;
}

dt_status dti_offload_settle(dti_offload *o)
{
    if (o->on_device != NULL) dti_storage_release(o->on_device);
    o->on_device = NULL;
    DT_TRY(finish(o));
    return DT_OK;
}

void dti_offload_renew(dti_offload *o)
{
    (void)finish(o);
    o->status = DT_OK;
    for (int64_t i = 0; o->sums != NULL && i < o->n_windows; i++) o->sums[i].known = false;
}
