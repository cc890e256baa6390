/* SPDX-License-Identifier: Apache-2.0
 *
 * Counts the lengths that a rank really hands to its back end. */
#ifndef DT_TEST_COUNTING_H
#define DT_TEST_COUNTING_H

#include <dtensor/mesh.h>

#include "mesh/comm/comm.h"

/* To and from other ranks. An all-reduce of n bytes is counted as 2 (p-1)/p n each way, which is
 * what scattering and gathering n bytes takes; everything else by its counts and boxes. */
typedef struct dt_counted {
    int64_t sent;
    int64_t received;
} dt_counted;

/* From now on this thread's operations on a communicator, or on all groups of a mesh, are counted.
 * Making the groups is collective over the mesh. */
void dt_count_comm(dti_comm *comm);
dt_status dt_count_mesh(dt_mesh *mesh) DT_MUST_USE;

/* What was counted since the last call. */
dt_counted dt_counted_take(void);

/* Gives the communicators back, before the rank ends. */
void dt_count_end(void);

#endif
