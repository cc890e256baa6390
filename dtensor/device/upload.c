/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/device/upload.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/error.h"
#include "base/memory.h"
#include "base/sync.h"

enum { ALIGNMENT = 64, NAME_BYTES = 128, NS_PER_MS = 1000000, LOOK_EVERY = 64 };

typedef struct buffer {
    void *data; /* NULL: not pinned yet */
    size_t used;
    dti_cuda_event *sent;                     /* behind the last copy out of it */
    bool under_way;                           /* ... which may not have ended */
    char first[NAME_BYTES], last[NAME_BYTES]; /* what lies in it */
} buffer;

struct dti_upload {
    dti_cuda_place place;
    size_t buffer_bytes;
    int64_t timeout_ms;
    buffer buffers[DTI_UPLOAD_BUFFERS];
    int at;            /* the buffer that is written */
    size_t room_bytes; /* behind its `used`; 0: none was given */
    bool stuck; /* a copy did not end in time, or no event tells its end: nobody waits or writes */
};

dt_status dti_upload_open(const dti_cuda_place *place, size_t buffer_bytes, int64_t timeout_ms,
                          dti_upload **out)
{
    dti_upload *u;

    *out = NULL;
    DT_TRY(dti_new(sizeof *u, &u));
    u->place = *place;
    u->buffer_bytes = buffer_bytes > 0 ? buffer_bytes : DTI_UPLOAD_BUFFER_BYTES;
    u->timeout_ms = timeout_ms;
    *out = u;
    return DT_OK;
}

size_t dti_upload_most(const dti_upload *u)
{
    return u->buffer_bytes;
}

/* The name of what lies in a buffer, or of the first and the last of it. */
static dt_status blame(const buffer *b, dt_status st)
{
    if (st == DT_OK) return DT_OK;
    if (strcmp(b->first, b->last) == 0)
        dti_error_prefix("\"%s\" on its way to the GPU", b->last);
    else
        dti_error_prefix("\"%s\" to \"%s\" on their way to the GPU", b->first, b->last);
    return st;
}

/* --- order ------------------------------------------------------------------------------------ */

static dt_status poll_copy(dti_upload *u, const buffer *b)
{
    const int64_t begin = dti_now_ns();
    bool done = false;

    for (unsigned polls = 1;; polls++) {
        DT_TRY(dti_cuda_check_call(&u->place, u->place.module->event_done(b->sent, &done),
                                   "copying up"));
        if (done) return DT_OK;
        (void)sched_yield();
        if (polls % LOOK_EVERY != 0) continue;
        u->stuck = (dti_now_ns() - begin) / NS_PER_MS >= u->timeout_ms;
        DT_CHECK(!u->stuck, DT_ERR_DEVICE, "GPU %d has not copied %zu bytes after %lld ms",
                 u->place.device, b->used, (long long)u->timeout_ms);
    }
}

static dt_status wait_for(dti_upload *u, buffer *b)
{
    dt_status st;

    if (!b->under_way || u->stuck) return DT_OK;
    st = blame(b, poll_copy(u, b));
    b->under_way = u->stuck;
    return st;
}

/* The one that was sent first comes first. */
dt_status dti_upload_wait(dti_upload *u)
{
    dt_error why = *dt_last_error();
    dt_status st = DT_OK;

    for (int i = 1; i <= DTI_UPLOAD_BUFFERS; i++) {
        const dt_status one = wait_for(u, &u->buffers[(u->at + i) % DTI_UPLOAD_BUFFERS]);
        if (one == DT_OK || st != DT_OK) continue;
        st = one;
        why = *dt_last_error();
    }
    if (st != DT_OK) dti_error_restore(&why);
    return st;
}

/* --- buffers ---------------------------------------------------------------------------------- */

/* What has memory has an event. */
static dt_status pin(dti_upload *u, buffer *b)
{
    const dti_cuda_module *m = u->place.module;

    if (b->data != NULL) return DT_OK;
    if (b->sent == NULL)
        DT_TRY(
            dti_cuda_check_call(&u->place, m->event_create(u->place.cuda, &b->sent), "an event"));
    DT_CHECK(m->alloc(u->place.cuda, u->buffer_bytes, DTI_CUDA_PINNED, &b->data) == 0,
             DT_ERR_MEMORY, "%zu bytes of the host for copies to GPU %d: %s", u->buffer_bytes,
             u->place.device, m->why());
    return DT_OK;
}

dt_status dti_upload_pin(dti_upload *u)
{
    for (int i = 0; i < DTI_UPLOAD_BUFFERS; i++) DT_TRY(pin(u, &u->buffers[i]));
    return DT_OK;
}

bool dti_upload_ready(const dti_upload *u, size_t bytes)
{
    const buffer *b = &u->buffers[u->at];
    bool done = true;

    if (bytes <= u->buffer_bytes - b->used) return true;
    b = &u->buffers[(u->at + 1) % DTI_UPLOAD_BUFFERS];
    return !b->under_way || (u->place.module->event_done(b->sent, &done) == 0 && done);
}

dt_status dti_upload_room(dti_upload *u, const char *name, size_t bytes, void **room)
{
    buffer *b = &u->buffers[u->at];

    *room = NULL;
    DT_CHECK(bytes > 0 && bytes <= u->buffer_bytes, DT_ERR_INTERNAL,
             "\"%s\": room for %zu bytes in a buffer of %zu", name, bytes, u->buffer_bytes);
    DT_CHECK(!u->stuck, DT_ERR_DEVICE,
             "\"%s\": GPU %d may still copy what was sent before, and nothing tells when it has",
             name, u->place.device);
    if (bytes > u->buffer_bytes - b->used) {
        u->at = (u->at + 1) % DTI_UPLOAD_BUFFERS;
        b = &u->buffers[u->at];
        DT_TRY(wait_for(u, b));
        b->used = 0;
    }
    DT_TRY(pin(u, b));
    if (b->used == 0) (void)snprintf(b->first, sizeof b->first, "%s", name);
    (void)snprintf(b->last, sizeof b->last, "%s", name);
    u->room_bytes = bytes;
    *room = (char *)b->data + b->used;
    return DT_OK;
}

dt_status dti_upload_send(dti_upload *u, void *to)
{
    const dti_cuda_module *m = u->place.module;
    buffer *b = &u->buffers[u->at];
    const size_t bytes = u->room_bytes, aligned = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    int failed;

    u->room_bytes = 0;
    failed = m->copy(u->place.cuda, to, (char *)b->data + b->used, bytes, DTI_CUDA_UP);
    b->used = aligned < u->buffer_bytes - b->used ? b->used + aligned : u->buffer_bytes;
    if (failed == 0) {
        b->under_way = true;
        failed = m->event_record(u->place.cuda, b->sent);
        u->stuck = failed != 0;
    }
    DT_TRY(blame(b, dti_cuda_check_call(&u->place, failed, "copying up")));
    return DT_OK;
}

/* What the device may still read from is left to it. */
static void give_back(dti_upload *u)
{
    const dti_cuda_module *m = u->place.module;

    for (int i = 0; i < DTI_UPLOAD_BUFFERS; i++) {
        buffer *b = &u->buffers[i];
        if (b->under_way) continue;
        if (b->data != NULL) m->release(u->place.cuda, DTI_CUDA_PINNED, b->data);
        if (b->sent != NULL) m->event_destroy(b->sent);
    }
    dti_free(u);
}

dt_status dti_upload_close(dti_upload **upload, dt_status st)
{
    const dt_error why = *dt_last_error();
    dti_upload *u = *upload;
    dt_status own;

    if (u == NULL) return st;
    *upload = NULL;
    own = dti_upload_wait(u);
    give_back(u);
    if (st == DT_OK) return own;
    dti_error_restore(&why);
    return st;
}
