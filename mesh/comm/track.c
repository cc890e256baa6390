/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/comm/track.h"

#include <stdio.h>

#include "base/memory.h"
#include "base/sync.h"

void dti_track_open(dti_track *t)
{
    (void)pthread_mutex_init(&t->lock, NULL);
}

void dti_track_close(dti_track *t)
{
    (void)pthread_mutex_destroy(&t->lock);
    dti_free(t->events);
    t->events = NULL;
    t->n = 0;
    atomic_store(&t->on, false);
}

void dti_track_add(dti_track *t, const char *name, int64_t begin_ns, int64_t bytes)
{
    const int64_t now = dti_now_ns();

    (void)pthread_mutex_lock(&t->lock);
    if (t->n < DT_TIMELINE_MOST &&
        dti_grow((void **)&t->events, &t->capacity, t->n + 1, sizeof *t->events) == DT_OK) {
        dt_timeline_event *e = &t->events[t->n++];
        *e = (dt_timeline_event){ .begin_ns = begin_ns, .end_ns = now, .bytes = bytes };
        (void)snprintf(e->name, sizeof e->name, "%s", name);
    }
    (void)pthread_mutex_unlock(&t->lock);
}
