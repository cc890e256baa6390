/* SPDX-License-Identifier: Apache-2.0
 *
 * What one thread of a rank has done, and when (<dtensor/timeline.h>): that thread adds, the rank's
 * own reads. */
#ifndef DTI_TRACK_H
#define DTI_TRACK_H

#include <dtensor/timeline.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct dti_track {
    _Atomic bool on;
    pthread_mutex_t lock; /* of what follows */
    dt_timeline_event *events;
    size_t n, capacity;
} dti_track;

static inline bool dti_track_is_on(const dti_track *t)
{
    return t != NULL && atomic_load_explicit(&t->on, memory_order_relaxed);
}

void dti_track_open(dti_track *t);
void dti_track_close(dti_track *t);

/* From begin_ns until now; bytes -1: it moved none. What there is no room for is not noted. */
void dti_track_add(dti_track *t, const char *name, int64_t begin_ns, int64_t bytes);

#endif
