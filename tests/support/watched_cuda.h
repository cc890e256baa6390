/* SPDX-License-Identifier: Apache-2.0
 *
 * A CUDA module that counts what it pins, and whose copies can be made to fail. */
#ifndef TESTS_WATCHED_CUDA_H
#define TESTS_WATCHED_CUDA_H

#include "base/cuda_api.h"

/* `real` with counters; one at a time in a process, beginning from zero. */
const dti_cuda_module *watched_module(const dti_cuda_module *real);

int watched_pinned(void);      /* allocations of pinned memory that are there */
int watched_most_pinned(void); /* the most that there were */

/* Events are asked `n` more times whether they are done; then they say -1. */
void watched_events_fail_after(int n);

/* Such calls fail from now on; WATCHED_NONE: no longer. */
typedef enum watched_call {
    WATCHED_NONE,
    WATCHED_PIN,
    WATCHED_EVENT_CREATE,
    WATCHED_EVENT_RECORD
} watched_call;
void watched_refuse(watched_call call);

/* No event is ever done. What is left behind then, since a device may use it, give_back() frees. */
void watched_events_are_late(void);
void watched_give_back(dti_cuda *c);

#endif
