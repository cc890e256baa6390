/* SPDX-License-Identifier: Apache-2.0
 *
 * The local back end, as dt_run() sees it: ranks are threads of this process. */
#ifndef DTI_LOCAL_H
#define DTI_LOCAL_H

#include "base/pool.h"
#include "mesh/comm/comm.h"

/* What the ranks of one run share. */
typedef struct dti_local_world dti_local_world;

/* `spin`: every rank has a core, so waiting threads may keep theirs busy for a while. */
dt_status dti_local_world_create(int n_ranks, int64_t timeout_ms, bool spin,
                                 dti_local_world **out) DT_MUST_USE;
void dti_local_world_destroy(dti_local_world **world); /* after all ranks have ended */

/* The communicator "world" of one rank; called once by each. Large operations are shared among the
 * threads of `pool`, which outlives the last of them. `pool` and `fault` may be NULL. */
dt_status dti_local_open(dti_local_world *world, int rank, dti_pool *pool, dti_fault *fault,
                         dti_comm **out) DT_MUST_USE;

/* Whether c is of this back end. Its start and wait then also serve calls with a stream, if all
 * members' devices can reach each other (local_cuda.c). */
bool dti_local_is(const dti_comm *c);

/* Says that this rank starts no more operations: peers that wait for it fail at once. An error if
 * the rank has operations under way, whose buffers are gone when its function has returned. */
dt_status dti_local_leave(dti_comm *world) DT_MUST_USE;

/* Two worlds of the same ranks, which are threads of their own in each: from now on, who aborts one
 * aborts both. Before anybody opens one. */
void dti_local_world_twin(dti_local_world *a, dti_local_world *b);

/* dti_local_leave() of a rank that need not have opened the world. */
void dti_local_left(dti_local_world *world, int rank);

/* The abort of a rank that could not even open its communicator. */
void dti_local_abort_world(dti_local_world *world, int rank, const char *why);

/* True if the world was aborted; *out is then the record of the rank that noticed first. */
bool dti_local_failure(dti_local_world *world, dt_error *out);

#endif
