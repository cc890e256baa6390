/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the time of a rank goes: its device's table is replaced by one that takes the time around
 * each kernel, copy and collective. */
#ifndef DT_BENCH_PROFILE_H
#define DT_BENCH_PROFILE_H

#include "bench/support/bench_report.h"
#include "dtensor/device/device.h"

enum { BENCH_MAX_PROFILE = 128 };

typedef struct bench_profile_item {
    const char *name; /* of a row; or what else it is */
    int64_t calls[2]; /* before bench_profile_turn() and after it */
    double seconds[2];
} bench_profile_item;

typedef struct bench_profile {
    dti_device_ops timed; /* first: what the device has meanwhile */
    const dti_device_ops *ops;
    dti_device *device; /* NULL: it is not on */
    int turned, n, rounds;
    double all; /* seconds of the rounds */
    bench_profile_item items[BENCH_MAX_PROFILE];
} bench_profile;

/* Around a round, on the thread of one rank. The second does nothing where the first was not
 * called. */
dt_status bench_profile_begin(bench_profile *p, dt_runtime *rt) DT_MUST_USE;
void bench_profile_end(bench_profile *p, double seconds);

/* From here on it is the second half of the round. */
void bench_profile_turn(bench_profile *p);

/* A line for each name, the longest first, in ms of a round. */
void bench_profile_report(bench_profile *p, const char *dtype, const char *mesh, bench_report *r);

#endif
