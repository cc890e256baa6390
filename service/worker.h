/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker process, as its ranks see it: what they have to say to who waits, in another process,
 * goes over the pipe. They and the schedule work for a crew as in one process, whose requests have
 * no waiter. */
#ifndef DTI_WORKER_H
#define DTI_WORKER_H

#include "service/crew.h"

typedef struct dti_host dti_host;

/* A rank waits for orders; it ends the run. Under the lock, as all of these but the last two. */
void dti_host_ready(dti_host *h, int rank);
void dti_host_failed(dti_host *h, int rank, const dt_error *why);

/* Of requests, on the first worker. What rank 0 shows: counters, and steps of those that run. */
void dti_host_progress(dti_host *h, const dt_ticket *t);
void dti_host_done(dti_host *h, const dt_ticket *t);
void dti_host_show(dti_host *h);

/* The model is there: what the crew has of it. */
dt_status dti_host_loaded(dti_host *h) DT_MUST_USE;

/* Without the lock: a request begins; something for its caller. */
void dti_host_begun(dti_host *h, int64_t number);
dt_status dti_host_tell(dti_host *h, const dt_ticket *t, const dti_event *head,
                        const void *data) DT_MUST_USE;

#endif
