/* SPDX-License-Identifier: Apache-2.0
 *
 * How long a wait lasts. A peer is given its term in time in which it could have run: of a job that
 * was stopped and goes on, or of a machine that slept, a look that comes late counts as a short
 * pause, not as all that time. */
#ifndef DTI_WAIT_CLOCK_H
#define DTI_WAIT_CLOCK_H

#include <stdint.h>

/* Who waits looks every few milliseconds; on a crowded machine at least a few times in a second. */
enum { DTI_WAIT_PAUSE_NS = 250 * 1000 * 1000 };

/* Zeroed before the first look. */
typedef struct dti_wait_clock {
    int64_t begin_ns, looked_ns;
} dti_wait_clock;

/* What has counted so far, in nanoseconds, at a look `now`. */
static inline int64_t dti_wait_elapsed(dti_wait_clock *c, int64_t now)
{
    const int64_t pause = now - c->looked_ns;

    if (c->begin_ns == 0)
        c->begin_ns = now;
    else if (pause > DTI_WAIT_PAUSE_NS)
        c->begin_ns += pause - DTI_WAIT_PAUSE_NS;
    c->looked_ns = now;
    return now - c->begin_ns;
}

#endif
