/* SPDX-License-Identifier: Apache-2.0
 *
 * A time line: when a rank computed what, and when it and its helper (<dtensor/async.h>) moved
 * bytes.
 *
 *   dt_timeline_start(rt);
 *   dt_timeline_begin(rt, "step 7");
 *   ...                               scopes of tapes and collectives are noted by themselves
 *   dt_timeline_end(rt);
 *   dt_timeline_stop(rt);
 *   dt_timeline_write(rt, "step.json");
 *
 * The file is for chrome://tracing and https://ui.perfetto.dev: a process for each rank, in it the
 * rank's thread and its helper's. Nothing is noted before the start; then about 0.1 us an event. */
#ifndef DT_TIMELINE_H
#define DT_TIMELINE_H

#include <dtensor/mesh.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DT_EVENT_NAME_BYTES = 64, DT_TIMELINE_MOST = 1 << 20 };

typedef enum dt_timeline_lane { DT_LANE_RANK, DT_LANE_TRANSFERS, DT_N_LANES } dt_timeline_lane;

/* Events of a lane nest or follow each other. */
typedef struct dt_timeline_event {
    char name[DT_EVENT_NAME_BYTES]; /* a scope's; "all_reduce dp"; shortened if it is long */
    dt_timeline_lane lane;
    int64_t begin_ns, end_ns; /* monotonic clock of the host */
    int64_t bytes;            /* that a collective received; -1: none */
} dt_timeline_event;

/** Notes what this rank does from now on, and forgets what was noted before; at most
 * DT_TIMELINE_MOST events of each lane. Ends noting. Not collective. Errors: none; NULL does
 * nothing. */
DT_API void dt_timeline_start(dt_runtime *rt);
DT_API void dt_timeline_stop(dt_runtime *rt);

/** An event of one's own around what happens between the two, which nest up to 8 deep. Not
 * collective. Errors: none. */
DT_API void dt_timeline_begin(dt_runtime *rt, const char *name);
DT_API void dt_timeline_end(dt_runtime *rt);

/** Event number i of this rank, in the order in which events ended, lane after lane; false past the
 * last. Not collective. Errors: none. */
DT_API bool dt_timeline_at(dt_runtime *rt, int64_t i, dt_timeline_event *out);

/**
 * Writes what all ranks have noted, in Chrome's format: times in microseconds since the first
 * event of all.
 *
 *   path  on the first rank, which writes; a file that is there is replaced
 *
 * Collective  over all ranks of the run.
 * Errors      DT_ERR_ARG     NULL; a dry runtime, or the run has ended
 *             DT_ERR_IO      the file could not be written; on all ranks alike
 *             DT_ERR_MEMORY
 *             DT_ERR_COMM    another rank failed, left or timed out
 */
DT_API DT_MUST_USE dt_status dt_timeline_write(dt_runtime *rt, const char *path);

#ifdef __cplusplus
}
#endif
#endif
