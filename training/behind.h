/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread of a rank that works behind it, one thing at a time: what waits for disks. It takes no
 * part in communication; what became of its work the ranks tell each other. It begins with the
 * first work and sleeps without any. */
#ifndef DTI_BEHIND_H
#define DTI_BEHIND_H

#include <stdatomic.h>

#include <dtensor/mesh.h>

#include "base/error.h"

typedef struct dti_behind dti_behind;

/* Ends soon, with whatever status, once *cancelled is true. */
typedef dt_status (*dti_behind_fn)(void *arg, const atomic_bool *cancelled);

typedef enum dti_behind_state {
    DTI_BEHIND_IDLE,
    DTI_BEHIND_BUSY,
    DTI_BEHIND_DONE
} dti_behind_state;

dt_status dti_behind_create(dt_runtime *rt, dti_behind **out) DT_MUST_USE;
void dti_behind_close(
    dti_behind **behind); /* cancels what goes on, ends the thread; accepts NULL */

/* Begins fn(arg): nothing may be going on. Errors: that of starting the thread. */
dt_status dti_behind_do(dti_behind *b, dti_behind_fn fn, void *arg) DT_MUST_USE;

/* DONE until somebody has taken the result. */
dti_behind_state dti_behind_look(dti_behind *b);

/* Waits until it is not BUSY, at most so long (< 0: for ever). */
void dti_behind_wait(dti_behind *b, int64_t timeout_ns);

/* What DONE work has returned, with its error record; IDLE from then on. */
dt_status dti_behind_take(dti_behind *b) DT_MUST_USE;

/* Cancels what goes on, waits for its end and forgets it. */
void dti_behind_cancel(dti_behind *b);

#endif
