/* SPDX-License-Identifier: Apache-2.0
 *
 * One exchange of overlaps: a pair of ranks may share several boxes (packed layouts), the
 * collective takes one box for each pair. */
#ifndef DTI_EXCHANGE_H
#define DTI_EXCHANGE_H

#include "dtensor/device/device.h"
#include "placements/overlap.h"

/* What this rank sends to member r of the communicator, and receives from it; false: nothing. Both
 * ends of a pair see the same overlap. */
typedef struct dti_pairs {
    bool (*sent)(const void *arg, int r, dti_overlap *out);
    bool (*received)(const void *arg, int r, dti_overlap *out);
    const void *arg;
    const dti_comm_note *about; /* the exchange, see dti_comm_call; or NULL */
} dti_pairs;

/* Single boxes go from where they lie to where they belong. If a pair has several, what this rank
 * sends (or receives) passes through pool memory, and such a pair's message is its boxes one after
 * the other. */
dt_status dti_exchange_pairs(dti_device *device, dti_comm *comm, const dti_pairs *pairs,
                             const void *send, void *recv, dt_dtype dtype) DT_MUST_USE;

/* Copies all boxes of an overlap within this rank's device. */
dt_status dti_overlap_copy(dti_device *device, const dti_overlap *o, const void *from, void *to,
                           size_t element_bytes) DT_MUST_USE;

#endif
