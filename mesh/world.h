/* SPDX-License-Identifier: Apache-2.0
 *
 * The ranks of one run as this process sees them: all of them threads of it, or some, and the
 * others in other processes. Which, nobody above can tell. */
#ifndef DTI_WORLD_H
#define DTI_WORLD_H

#include <dtensor/mesh.h>

#include "base/pool.h"
#include "mesh/comm/local.h"
#include "mesh/comm/mpi.h"
#include "mesh/launch.h"

typedef struct dti_world {
    int n_ranks;    /* of the run */
    int first_rank; /* of this process */
    int n_local;    /* its ranks follow each other */
    int64_t timeout_ms;
    dti_local_world *local; /* one of these two */
    dti_mpi_world *mpi;
    dti_local_world *lanes; /* beside local: of the ranks' helpers */
} dti_world;

/* Joins what the launcher has started; n_ranks == 1, the default of a program that does not care,
 * then means one rank per process. Errors as dt_run(). After an error the world can still be
 * closed. */
dt_status dti_world_open(const dti_launch *launch, const dt_run_options *options,
                         dti_world *out) DT_MUST_USE;
void dti_world_close(dti_world *w);

/* Ranks that divide the cores among them that this process may use, and how many of them come
 * before those of this process. */
void dti_world_neighbours(const dti_world *w, int *before, int *n);

/* Ranks of this machine in processes before this one: they come first where GPUs are handed out. */
int dti_world_before_on_machine(const dti_world *w);

/* How this process exchanges with others; false if it is the only one. */
bool dti_world_sharing(const dti_world *w, char text[DTI_MPI_TEXT_BYTES]);

/* Makes what the ranks share. `spin`: each of them has a core. */
dt_status dti_world_start(dti_world *w, bool spin) DT_MUST_USE;

/* Communicator of a rank of this process, called once by each; the rank's end; the abort of a rank
 * that has no communicator. */
dt_status dti_world_join(dti_world *w, int rank, dti_pool *pool, dti_fault *fault,
                         dti_comm **out) DT_MUST_USE;
dt_status dti_world_leave(dti_world *w, dti_comm *world) DT_MUST_USE;
void dti_world_abort(dti_world *w, int rank, const char *why);

/* Helpers of the ranks (dti_runtime_open_lane()): whether there can be any; the communicator of
 * one, on its thread; and what its rank says when the helper has ended or never began. */
bool dti_world_has_lanes(const dti_world *w);
dt_status dti_world_join_lane(dti_world *w, int rank, dti_comm **out) DT_MUST_USE;
void dti_world_leave_lane(dti_world *w, int rank);

/* After the ranks of this process have ended: waits for the others. True if the run failed; *out is
 * then the record of the rank that noticed first. */
bool dti_world_finish(dti_world *w, dt_error *out);

#endif
