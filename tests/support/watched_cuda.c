/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/watched_cuda.h"

#include <stdatomic.h>

enum { MOST = 64 };

static const dti_cuda_module *real;
static void *_Atomic pinned[MOST];
static dti_cuda_event *_Atomic events[MOST];
static _Atomic int n_pinned, most_pinned, n_asked;
static int fail_after; /* -1: never */
static bool late;
static watched_call refused; /* WATCHED_NONE: no call */

static int alloc(dti_cuda *c, size_t bytes, dti_cuda_memory kind, void **out)
{
    const bool refuse = refused == WATCHED_PIN && kind == DTI_CUDA_PINNED;
    const int failed = refuse ? -1 : real->alloc(c, bytes, kind, out);

    if (failed == 0 && kind == DTI_CUDA_PINNED) {
        const int n = ++n_pinned;
        if (n > most_pinned) most_pinned = n;
        for (int i = 0; i < MOST; i++) {
            void *none = NULL;
            if (atomic_compare_exchange_strong(&pinned[i], &none, *out)) break;
        }
    }
    return failed;
}

static void release(dti_cuda *c, dti_cuda_memory kind, void *data)
{
    if (data != NULL && kind == DTI_CUDA_PINNED) {
        n_pinned--;
        for (int i = 0; i < MOST; i++)
            if (pinned[i] == data) pinned[i] = NULL;
    }
    real->release(c, kind, data);
}

static int event_create(dti_cuda *c, dti_cuda_event **out)
{
    const int failed = refused == WATCHED_EVENT_CREATE ? -1 : real->event_create(c, out);

    for (int i = 0; i < MOST && failed == 0; i++) {
        dti_cuda_event *none = NULL;
        if (atomic_compare_exchange_strong(&events[i], &none, *out)) break;
    }
    return failed;
}

static int event_record(dti_cuda *c, dti_cuda_event *e)
{
    return refused == WATCHED_EVENT_RECORD ? -1 : real->event_record(c, e);
}

static void event_destroy(dti_cuda_event *e)
{
    for (int i = 0; i < MOST && e != NULL; i++)
        if (events[i] == e) events[i] = NULL;
    real->event_destroy(e);
}

static int event_done(dti_cuda_event *e, bool *done)
{
    if (fail_after >= 0 && n_asked++ >= fail_after) return -1;
    if (!late) return real->event_done(e, done);
    *done = false;
    return 0;
}

const dti_cuda_module *watched_module(const dti_cuda_module *m)
{
    static dti_cuda_module watched;

    real = m;
    watched = *m;
    watched.alloc = alloc;
    watched.release = release;
    watched.event_create = event_create;
    watched.event_destroy = event_destroy;
    watched.event_record = event_record;
    watched.event_done = event_done;
    n_pinned = most_pinned = n_asked = 0;
    fail_after = -1;
    late = false;
    refused = WATCHED_NONE;
    return &watched;
}

int watched_pinned(void)
{
    return n_pinned;
}

int watched_most_pinned(void)
{
    return most_pinned;
}

void watched_events_fail_after(int n)
{
    fail_after = n;
}

void watched_refuse(watched_call call)
{
    refused = call;
}

void watched_events_are_late(void)
{
    late = true;
}

void watched_give_back(dti_cuda *c)
{
    (void)real->sync(c);
    for (int i = 0; i < MOST; i++) {
        if (pinned[i] != NULL) release(c, DTI_CUDA_PINNED, pinned[i]);
        if (events[i] != NULL) event_destroy(events[i]);
    }
}
