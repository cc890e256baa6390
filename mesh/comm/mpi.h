/* SPDX-License-Identifier: Apache-2.0
 *
 * The MPI back end, as dt_run() sees it: ranks are threads of several processes. */
#ifndef DTI_MPI_H
#define DTI_MPI_H

#include "mesh/comm/comm.h"
#include "mesh/comm/mpi_api.h"

/* What the ranks of one run that live in this process share. */
typedef struct dti_mpi_world dti_mpi_world;

enum { DTI_MPI_JOIN_MS = 60 * 1000 }; /* processes start apart, however short collectives are */

/* What a run asks for. */
typedef struct dti_mpi_plan {
    int n_ranks; /* at least one per process, the same everywhere; given to processes in blocks */
    int64_t timeout_ms;
    bool sums_by_mpi; /* not in rank order */
    bool share;       /* memory with processes of this machine, if they want it too */
    bool agree;       /* what ranks agree on is compared, where all processes want it */
    int n_hosts;      /* into which the ranks are divided, as if there were so many; 0: as it is */
} dti_mpi_plan;

/* Joins the other processes of the job, which was opened before. Collective over processes; a
 * process that does not come within the plan's time is named. */
dt_status dti_mpi_world_create(const dti_mpi_module *module, const dti_mpi_job *job,
                               const dti_mpi_plan *plan, dti_mpi_world **out) DT_MUST_USE;

/* After all ranks of this process have ended. If none has failed: waits, without a deadline, until
 * the ranks of all processes have ended. True if the run failed; *out is then the record of the
 * rank that noticed first. */
bool dti_mpi_world_finish(dti_mpi_world *w, dt_error *out);
void dti_mpi_world_destroy(dti_mpi_world **world);

/* Ranks of this process, and where it stands among those of its machine that may use the same
 * cores: `before` ranks come first, `n` there are. */
int dti_mpi_first_rank(const dti_mpi_world *w);
int dti_mpi_n_local(const dti_mpi_world *w);
void dti_mpi_neighbours(const dti_mpi_world *w, int *before, int *n);

/* Ranks of this machine in processes before this one, whatever cores they may use. */
int dti_mpi_before_on_machine(const dti_mpi_world *w);
/* "3 of 4 processes share memory with process 0", and why the others do not. */
void dti_mpi_sharing(const dti_mpi_world *w, char text[DTI_MPI_TEXT_BYTES]);
void dti_mpi_may_spin(dti_mpi_world *w, bool spin); /* every rank has a core */

/* The communicator "world" of one rank of this process; called once by each. */
dt_status dti_mpi_open(dti_mpi_world *w, int rank, dti_fault *fault, dti_comm **out) DT_MUST_USE;

/* What a rank has sent so far, in segments of all its communicators; members that one of them talks
 * to, and what it has for them and for itself, but for the segments that its rank lends. False: it
 * joins no processes. */
typedef struct dti_mpi_use {
    int64_t n_sent;
    int n_peers;
    size_t peer_bytes, own_bytes;
} dti_mpi_use;

bool dti_mpi_use_of(const dti_comm *c, dti_mpi_use *out);

/* Moves what is under way, from anywhere on the rank's thread. */
void dti_mpi_poll(const dti_comm *c);

/* What this rank does from now on, "cell 3, 1F2": processes that share memory with this one say it
 * if it ends without a word. Empty: nothing. Of a communicator that joins no processes: nobody. */
void dti_mpi_tell_doing(const dti_comm *c, const char *what);

/* Says that this rank starts no more operations. An error if it has operations under way. */
dt_status dti_mpi_leave(dti_comm *world) DT_MUST_USE;

/* The ranks' helpers, a thread beside each: whether this MPI lets them speak, and all processes
 * have it so; the communicator "world" of one of them, called once, on its thread; and that it
 * starts no more, or never began, said by the rank when the helper has ended. */
bool dti_mpi_has_lanes(const dti_mpi_world *w);
dt_status dti_mpi_open_lane(dti_mpi_world *w, int rank, dti_comm **out) DT_MUST_USE;
void dti_mpi_lane_left(dti_mpi_world *w, int rank);

/* The abort of a rank that could not even open its communicator. */
void dti_mpi_abort_world(dti_mpi_world *w, int rank, const char *why);

#endif
