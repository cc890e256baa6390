/* SPDX-License-Identifier: Apache-2.0
 *
 * The ring of pinned buffers: what is written into it arrives, also where the device is late; what
 * fails names what was under way; nothing stays pinned. */
#include <string.h>

#include "dtensor/device/upload.h"
#include "tests/support/cuda.h"
#include "tests/support/queued_device.h"
#include "tests/support/watched_cuda.h"

enum { BUFFER = 4096, ALL = 400000, TIMEOUT_MS = 20000 };

typedef struct ring {
    dti_cuda_place place;
    dti_upload *upload;
    void *there; /* ALL bytes */
} ring;

static void open_ring(const dti_cuda_module *real, int64_t timeout_ms, ring *r)
{
    *r = (ring){ .place = { .module = watched_module(real) } };
    DT_ASSERT_CUDA(real, real->open(0, &r->place.cuda));
    DT_ASSERT_CUDA(real, real->alloc(r->place.cuda, ALL, DTI_CUDA_DEVICE, &r->there));
    DT_ASSERT_OK(dti_upload_open(&r->place, BUFFER, timeout_ms, &r->upload));
    DT_ASSERT_EQ_INT(dti_upload_most(r->upload), BUFFER);
}

static void close_ring(ring *r)
{
    r->place.module->release(r->place.cuda, DTI_CUDA_DEVICE, r->there);
    r->place.module->close(r->place.cuda);
}

static unsigned char byte_at(size_t i)
{
    return (unsigned char)(i * 31 + i / 253);
}

/* Writes bytes at..at + n of the pattern into the ring, to where they belong. */
static dt_status send(ring *r, const char *name, size_t at, size_t n)
{
    unsigned char *room;

    DT_TRY(dti_upload_room(r->upload, name, n, (void **)&room));
    DT_EXPECT((uintptr_t)room % 64 == 0, "%s is not aligned", name);
    for (size_t i = 0; i < n; i++) room[i] = byte_at(at + i);
    DT_TRY(dti_upload_send(r->upload, (char *)r->there + at));
    return DT_OK;
}

static void check_arrival(const ring *r)
{
    static unsigned char got[ALL];
    const dti_cuda_module *m = r->place.module;

    DT_ASSERT_CUDA(m, m->copy(r->place.cuda, got, r->there, ALL, DTI_CUDA_DOWN));
    for (size_t i = 0; i < ALL; i++)
        if (got[i] != byte_at(i)) dt_test_fail(__FILE__, __LINE__, "byte %zu is another", i);
}

/* Smaller than a buffer, as large, and many of them to a buffer, in an order without pattern. */
static void send_all(const dti_cuda_module *module)
{
    static const size_t sizes[] = { 1, BUFFER, 63, 64, 65, BUFFER - 1, 1000, BUFFER / 2, 2, 3000 };
    uint32_t state = 7;
    DT_ENDS(close_ring) ring r;

    open_ring(module, TIMEOUT_MS, &r);
    for (size_t at = 0, n; at < ALL; at += n) {
        state = state * 1664525u + 1013904223u;
        n = sizes[(state >> 20) % DT_COUNT(sizes)];
        if (n > ALL - at) n = ALL - at;
        DT_ASSERT_OK(send(&r, "x", at, n));
    }
    DT_ASSERT_OK(dti_upload_wait(r.upload));
    DT_ASSERT_OK(dti_upload_close(&r.upload, DT_OK));
    DT_ASSERT(r.upload == NULL);
    DT_ASSERT_EQ_INT(watched_most_pinned(), DTI_UPLOAD_BUFFERS);
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
    check_arrival(&r);
}

DT_TEST(cuda_upload, pieces_of_any_size_arrive)
{
    send_all(dt_test_cuda_module());
}

DT_TEST(cuda_upload, pieces_of_any_size_arrive_on_a_late_device)
{
    send_all(queued_module());
}

DT_TEST(cuda_upload, buffers_are_pinned_when_they_are_needed)
{
    DT_ENDS(close_ring) ring r;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    DT_ASSERT_EQ_INT(watched_most_pinned(), 0);
    for (int i = 0; i < 8; i++) DT_ASSERT_OK(send(&r, "x", 0, BUFFER / 8));
    DT_ASSERT_EQ_INT(watched_most_pinned(), 1);
    DT_ASSERT_OK(send(&r, "x", 0, 1));
    DT_ASSERT_EQ_INT(watched_most_pinned(), 2);
    DT_ASSERT_OK(dti_upload_close(&r.upload, DT_OK));
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
    DT_ASSERT_OK(dti_upload_close(&r.upload, DT_OK)); /* NULL */
}

DT_TEST(cuda_upload, what_is_pinned_ahead_is_all_that_is_pinned)
{
    DT_ENDS(close_ring) ring r;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    DT_ASSERT_OK(dti_upload_pin(r.upload));
    DT_ASSERT_EQ_INT(watched_most_pinned(), DTI_UPLOAD_BUFFERS);
    watched_refuse(WATCHED_PIN);
    DT_ASSERT_OK(dti_upload_pin(r.upload));
    for (int i = 0; i < 8 * DTI_UPLOAD_BUFFERS; i++) DT_ASSERT_OK(send(&r, "x", 0, BUFFER / 2));
    DT_ASSERT_OK(dti_upload_close(&r.upload, DT_OK));
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
}

/* Whichever of the two comes first: a buffer is used once it has both. */
DT_TEST(cuda_upload, memory_or_an_event_that_is_refused_is_asked_for_again)
{
    static const watched_call calls[] = { WATCHED_PIN, WATCHED_EVENT_CREATE };

    for (size_t i = 0; i < DT_COUNT(calls); i++) {
        ring r;
        void *room;
        open_ring(queued_module(), TIMEOUT_MS, &r);
        watched_refuse(calls[i]);
        for (int again = 0; again < 2; again++) {
            const dt_status st = dti_upload_room(r.upload, "x", 100, &room);
            DT_ASSERT(st == (calls[i] == WATCHED_PIN ? DT_ERR_MEMORY : DT_ERR_DEVICE));
            DT_ASSERT(room == NULL);
        }
        watched_refuse(WATCHED_NONE);
        DT_ASSERT_OK(send(&r, "x", 0, 100));
        DT_ASSERT_OK(dti_upload_close(&r.upload, DT_OK));
        DT_ASSERT_EQ_INT(watched_pinned(), 0);
        close_ring(&r);
    }
}

/* Its buffer may be read for ever: nobody writes it again or gives it back. */
DT_TEST(cuda_upload, a_copy_without_an_event_is_never_written_over)
{
    dt_status st;
    DT_ENDS(close_ring) ring r;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    DT_ASSERT_OK(send(&r, "a.weight", 0, 100)); /* an old event, which will be done */
    watched_refuse(WATCHED_EVENT_RECORD);
    DT_ASSERT_STATUS(send(&r, "b.weight", 0, BUFFER / 2), DT_ERR_DEVICE, "\"b.weight\"");
    watched_refuse(WATCHED_NONE);
    for (int i = 0; i < 2 * DTI_UPLOAD_BUFFERS; i++) {
        st = send(&r, "c.weight", 0, BUFFER);
        DT_ASSERT_STATUS(st, DT_ERR_DEVICE, "\"c.weight\": GPU 0 may still copy");
    }
    DT_ASSERT_STATUS(dti_upload_close(&r.upload, st), DT_ERR_DEVICE, "may still copy");
    DT_ASSERT_EQ_INT(watched_pinned(), 1);
    watched_give_back(r.place.cuda);
}

DT_TEST(cuda_upload, more_than_a_buffer_is_refused)
{
    DT_ENDS(close_ring) ring r;
    void *room;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    DT_ASSERT_STATUS(dti_upload_room(r.upload, "x", BUFFER + 1, &room), DT_ERR_INTERNAL,
                     "\"x\": room for 4097 bytes in a buffer of 4096");
    DT_ASSERT(room == NULL);
    DT_ASSERT_OK(dti_upload_close(&r.upload, DT_OK));
}

DT_TEST(cuda_upload, a_copy_that_cannot_start_is_named)
{
    dt_status st;
    DT_ENDS(close_ring) ring r;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    DT_ASSERT_OK(send(&r, "a.weight", 0, BUFFER));
    queued_fail_after(r.place.cuda, 0);
    st = send(&r, "b.weight", 0, 100);
    DT_ASSERT_STATUS(st, DT_ERR_DEVICE, "\"b.weight\" on its way to the GPU: ");
    DT_ASSERT_STATUS(dti_upload_close(&r.upload, st), DT_ERR_DEVICE, "fell off the bus");
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
}

/* The device says so later: when a buffer is used again, or in the end. */
DT_TEST(cuda_upload, a_copy_that_fails_on_the_way_is_named)
{
    dt_status st = DT_OK;
    DT_ENDS(close_ring) ring r;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    watched_events_fail_after(0);
    DT_ASSERT_OK(send(&r, "a.weight", 0, 100));
    DT_ASSERT_OK(send(&r, "b.weight", 0, 200));
    for (int i = 1; i < DTI_UPLOAD_BUFFERS; i++) DT_ASSERT_OK(send(&r, "c.weight", 0, BUFFER));
    st = send(&r, "d.weight", 0, BUFFER);
    DT_ASSERT_STATUS(st, DT_ERR_DEVICE, "\"a.weight\" to \"b.weight\" on their way to the GPU: ");
    DT_ASSERT_STATUS(dti_upload_close(&r.upload, st), DT_ERR_DEVICE,
                     "\"a.weight\" to \"b.weight\"");
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
    close_ring(&r);

    open_ring(queued_module(), TIMEOUT_MS, &r);
    watched_events_fail_after(0);
    DT_ASSERT_OK(send(&r, "e.weight", 0, 100));
    DT_ASSERT_STATUS(dti_upload_close(&r.upload, DT_OK), DT_ERR_DEVICE, "\"e.weight\" on its way");
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
}

/* What failed before counts, whatever the copies do. */
DT_TEST(cuda_upload, an_error_of_the_caller_is_handed_back)
{
    dt_status st;
    DT_ENDS(close_ring) ring r;
    void *room;

    open_ring(queued_module(), TIMEOUT_MS, &r);
    watched_events_fail_after(0);
    DT_ASSERT_OK(send(&r, "a.weight", 0, 100));
    st = dti_upload_room(r.upload, "too much", 2 * BUFFER, &room);
    DT_ASSERT_STATUS(dti_upload_close(&r.upload, st), DT_ERR_INTERNAL, "too much");
    DT_ASSERT_EQ_INT(watched_pinned(), 0);
}

DT_TEST(cuda_upload, a_copy_that_does_not_end_is_given_up)
{
    dt_status st = DT_OK;
    DT_ENDS(close_ring) ring r;

    open_ring(queued_module(), 30, &r);
    watched_events_are_late();
    for (int i = 0; i < DTI_UPLOAD_BUFFERS; i++) DT_ASSERT_OK(send(&r, "x", 0, BUFFER));
    st = send(&r, "x", 0, BUFFER);
    DT_ASSERT_STATUS(st, DT_ERR_DEVICE, "GPU 0 has not copied 4096 bytes after 30 ms");
    DT_ASSERT_STATUS(dti_upload_close(&r.upload, st), DT_ERR_DEVICE, "has not copied");
    DT_ASSERT_EQ_INT(watched_pinned(), DTI_UPLOAD_BUFFERS); /* the device may still read them */
    watched_give_back(r.place.cuda);
}
