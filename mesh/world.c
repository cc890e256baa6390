/* SPDX-License-Identifier: Apache-2.0 */
#include "mesh/world.h"

#include <string.h>

static dt_status open_mpi(const dti_launch *launch, bool agree, dti_world *w)
{
    dti_module_found found;
    dti_mpi_job job;
    char why[DTI_MPI_TEXT_BYTES] = "";
    const int64_t within_ms = w->timeout_ms > DTI_MPI_JOIN_MS ? w->timeout_ms : DTI_MPI_JOIN_MS;

    DT_TRY(dti_module_choose(launch, &found));
    DT_CHECK(found.module->open(within_ms, &job, why) == 0, DT_ERR_COMM,
             "processes could not be joined over %s: %s", found.name, why);
    DT_CHECK(job.n_processes == launch->n_processes && job.process == launch->process,
             DT_ERR_UNSUPPORTED,
             "%s says that this is process %d of %d, but %s says %d of %d: the launcher belongs "
             "to another MPI; start with the mpirun of %s, or choose with DTENSOR_MPI",
             launch->variable, launch->process, launch->n_processes, found.library, job.process,
             job.n_processes, found.name);
    DT_TRY(dti_mpi_world_create(found.module, &job,
                                &(dti_mpi_plan){ w->n_ranks, w->timeout_ms, launch->sums_by_mpi,
                                                 launch->shares, agree, launch->n_hosts },
                                &w->mpi));
    w->first_rank = dti_mpi_first_rank(w->mpi);
    w->n_local = dti_mpi_n_local(w->mpi);
    return DT_OK;
}

dt_status dti_world_open(const dti_launch *launch, const dt_run_options *options, dti_world *out)
{
    const bool agree = options->check != NULL && strcmp(options->check, "agree") == 0;
    const int n_ranks = options->n_ranks;

    *out = (dti_world){ .n_ranks = n_ranks, .n_local = n_ranks, .timeout_ms = options->timeout_ms };
    if (launch->n_processes == 1) return DT_OK;
    if (n_ranks == 1) out->n_ranks = launch->n_processes;
    DT_TRY(open_mpi(launch, agree, out));
    return DT_OK;
}

void dti_world_close(dti_world *w)
{
    dti_local_world_destroy(&w->local);
    dti_local_world_destroy(&w->lanes);
    dti_mpi_world_destroy(&w->mpi);
}

void dti_world_neighbours(const dti_world *w, int *before, int *n)
{
    *before = 0;
    *n = w->n_local;
    if (w->mpi != NULL) dti_mpi_neighbours(w->mpi, before, n);
}

int dti_world_before_on_machine(const dti_world *w)
{
    return w->mpi != NULL ? dti_mpi_before_on_machine(w->mpi) : 0;
}

bool dti_world_sharing(const dti_world *w, char text[DTI_MPI_TEXT_BYTES])
{
    if (w->mpi != NULL) dti_mpi_sharing(w->mpi, text);
    return w->mpi != NULL;
}

dt_status dti_world_start(dti_world *w, bool spin)
{
    if (w->mpi != NULL) {
        dti_mpi_may_spin(w->mpi, spin);
        return DT_OK;
    }
    DT_TRY(dti_local_world_create(w->n_ranks, w->timeout_ms, spin, &w->local));
    DT_TRY(dti_local_world_create(w->n_ranks, w->timeout_ms, false, &w->lanes));
    dti_local_world_twin(w->local, w->lanes);
    return DT_OK;
}

dt_status dti_world_join(dti_world *w, int rank, dti_pool *pool, dti_fault *fault, dti_comm **out)
{
    if (w->mpi != NULL)
        DT_TRY(dti_mpi_open(w->mpi, rank, fault, out));
    else
        DT_TRY(dti_local_open(w->local, rank, pool, fault, out));
    return DT_OK;
}

dt_status dti_world_leave(dti_world *w, dti_comm *world)
{
    return w->mpi != NULL ? dti_mpi_leave(world) : dti_local_leave(world);
}

bool dti_world_has_lanes(const dti_world *w)
{
    return w->mpi != NULL ? dti_mpi_has_lanes(w->mpi) : w->lanes != NULL;
}

dt_status dti_world_join_lane(dti_world *w, int rank, dti_comm **out)
{
    if (w->mpi != NULL)
        DT_TRY(dti_mpi_open_lane(w->mpi, rank, out));
    else
        DT_TRY(dti_local_open(w->lanes, rank, NULL, NULL, out));
    return DT_OK;
}

void dti_world_leave_lane(dti_world *w, int rank)
{
    if (w->mpi != NULL)
        dti_mpi_lane_left(w->mpi, rank);
    else
        dti_local_left(w->lanes, rank);
}

void dti_world_abort(dti_world *w, int rank, const char *why)
{
    if (w->mpi != NULL)
        dti_mpi_abort_world(w->mpi, rank, why);
    else if (w->local != NULL)
        dti_local_abort_world(w->local, rank, why);
}

bool dti_world_finish(dti_world *w, dt_error *out)
{
    if (w->mpi != NULL) return dti_mpi_world_finish(w->mpi, out);
    return w->local != NULL && dti_local_failure(w->local, out);
}
