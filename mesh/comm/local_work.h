/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files share that do a rank's part of a collective: local_ops.c moves, local_sums.c sums.
 * Peers have arrived, so that their calls can be read. */
#ifndef DTI_LOCAL_WORK_H
#define DTI_LOCAL_WORK_H

#include "mesh/comm/copy.h"
#include "mesh/comm/local_internal.h"

/* Slices begin on a cache line if the buffers do. */
enum { DTI_SLICE_BYTES = 64 };

/* The member's side of the operation of which `mine` is this rank's. */
static inline const dti_local_slot *dti_local_side(dti_local_comm *c, const dti_local_slot *mine,
                                                   int member)
{
    return dti_local_slot_of(c, member, atomic_load_explicit(&mine->seq, memory_order_relaxed));
}

static inline bool dti_is_large(int64_t n, size_t bytes)
{
    return n >= DTI_STREAM_BYTES / (int64_t)bytes;
}

/* DT_ERR_ARG if the member does something else. `n`: what this rank expects of its count. */
dt_status dti_local_check_same(dti_local_comm *c, const dti_local_slot *mine, int member,
                               int64_t n) DT_MUST_USE;

/* Units [begin, end) of an operation's share, by whatever thread of this rank. */
typedef void (*dti_range_fn)(dti_local_comm *c, const dti_local_slot *mine, int64_t begin,
                             int64_t end);

/* Runs it for [begin, end) of units of `unit` elements: by all threads of the rank if that is worth
 * waking them. */
void dti_local_run(dti_local_comm *c, const dti_local_slot *mine, dti_range_fn run,
                   const int64_t range[2], int64_t unit);

/* local_sums.c */
dt_status dti_local_all_reduce(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;
dt_status dti_local_reduce_scatter(dti_local_comm *c, const dti_local_slot *mine) DT_MUST_USE;

#endif
