/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank's second pair of hands: a thread that does written-down work in the order in which it came
 * while the rank computes. It has communicators of its own (dti_runtime_open_lane), so that what it
 * does and what the rank does never wait for each other; every rank hands in the same work in the
 * same order, so lanes agree as ranks do. The thread begins with the first work and sleeps without
 * any.
 *
 * Buffers of work are the host's. They belong to it until it is done. */
#ifndef DTI_LANE_H
#define DTI_LANE_H

#include "dtensor/device/device.h"

typedef struct dti_lane dti_lane;
typedef struct dti_job dti_job;

/* --- writing work down: the rank's thread ----------------------------------------------------- */

dt_status dti_job_create(dti_job **out) DT_MUST_USE;
void dti_job_free(dti_job **job); /* which is not handed in, or done; accepts NULL */

/* While it is in d->job, d's table writes what it is asked for down there: moves of
 * dtensor/redistribute.c, with their casts. */
extern const dti_device_ops dti_device_later;

/* --- doing it --------------------------------------------------------------------------------- */

/* The lane of a rank whose tensors are the host's; NULL in *out where there is none. */
dt_status dti_lane_of(dti_device *d, dti_lane **out) DT_MUST_USE;

/* Hands the job in; the error is that of starting the thread. */
dt_status dti_lane_do(dti_lane *lane, dti_job *job) DT_MUST_USE;

bool dti_lane_is_done(dti_lane *lane, const dti_job *job);

/* Waits for it and does meanwhile what peers of the rank wait for. The errors are the job's. */
dt_status dti_lane_await(dti_lane *lane, const dti_job *job) DT_MUST_USE;

/* The same for all that was handed in, whose errors are told by those who wait for it. */
void dti_lane_drain(dti_lane *lane);

/* Does what was handed in, ends the thread. Accepts NULL. */
void dti_lane_close(dti_lane **lane);

#endif
