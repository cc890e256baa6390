/* SPDX-License-Identifier: Apache-2.0
 *
 * The MPI back end: which ranks are on which process, and what those of a process share. */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/comm/mpi_internal.h"

enum { MIN_HASH_BITS = 8, MAX_TAG_BITS = 30 };

uint64_t dti_mpi_hash(uint64_t seed, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    uint64_t h = (seed + 1) * 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 0x100000001b3u;
    h = (h ^ h >> 29) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 32;
    return h != 0 ? h : 1;
}

/* --- ranks on processes -------------------------------------------------------------------------
 */

int dti_mpi_first_rank_of(const dti_mpi_world *w, int process)
{
    const int each = w->n_ranks / w->n_processes, more = w->n_ranks % w->n_processes;

    return process * each + (process < more ? process : more);
}

/* Of n_ranks ranks in `n` blocks. */
static int block_of(const dti_mpi_world *w, int rank, int n)
{
    const int each = w->n_ranks / n, more = w->n_ranks % n;

    return rank < more * (each + 1) ? rank / (each + 1) : (rank - more) / each;
}

int dti_mpi_process_of(const dti_mpi_world *w, int rank)
{
    return block_of(w, rank, w->n_processes);
}

int dti_mpi_host_of(const dti_mpi_world *w, int rank)
{
    if (w->n_hosts > 0) return block_of(w, rank, w->n_hosts);
    return w->hosts[dti_mpi_process_of(w, rank)];
}

int dti_mpi_seat(const dti_mpi_port *port, int rank)
{
    return port->helps ? port->world->n_ranks + rank : rank;
}

dti_mpi_port *dti_mpi_port_of(const dti_mpi_world *w, int seat)
{
    const bool helps = seat >= w->n_ranks;

    return &w->ports[seat - w->first_rank + (helps ? w->n_local - w->n_ranks : 0)];
}

/* From the lowest bit: lane, sender's and receiver's place in their processes, the group. Groups of
 * one rank whose numbers are cut to the same bits are refused when the second one is made, and the
 * header says the whole number. */
int dti_mpi_tag(const dti_mpi_world *w, dti_mpi_lane lane, int from, int to, uint64_t group)
{
    const uint64_t bits = group >> (64 - w->hash_bits);
    const uint64_t f = (uint64_t)(from - dti_mpi_first_rank_of(w, dti_mpi_process_of(w, from)));
    const uint64_t t = (uint64_t)(to - dti_mpi_first_rank_of(w, dti_mpi_process_of(w, to)));

    return (int)((uint64_t)lane | f << 2 | t << (2 + w->thread_bits) |
                 bits << (2 + 2 * w->thread_bits));
}

static dt_status divide_tags(dti_mpi_world *w, const dti_mpi_job *job)
{
    const int most = (w->n_ranks + w->n_processes - 1) / w->n_processes;
    int bits = 0;

    while (bits < MAX_TAG_BITS && (job->tag_max >> bits) > 1) bits++;
    while (1 << w->thread_bits < most) w->thread_bits++;
    w->hash_bits = bits - 2 - 2 * w->thread_bits;
    DT_CHECK(w->hash_bits >= MIN_HASH_BITS, DT_ERR_UNSUPPORTED,
             "%d ranks per process need larger tags than this MPI has (up to %d); start more "
             "processes",
             most, job->tag_max);
    DT_CHECK(most == 1 || job->threads, DT_ERR_UNSUPPORTED,
             "this MPI (%s) allows one thread per process (no MPI_THREAD_MULTIPLE), but %d ranks "
             "in %d processes need more; start one process per rank",
             w->api->name, w->n_ranks, w->n_processes);
    return DT_OK;
}

/* --- worlds -------------------------------------------------------------------------------------
 */

static dt_status make_world(dti_mpi_world *w, const dti_mpi_job *job, bool share)
{
    const size_t n_processes = (size_t)job->n_processes;

    w->process = job->process;
    w->n_processes = job->n_processes;
    DT_CHECK(w->n_ranks >= w->n_processes, DT_ERR_ARG,
             "the run has %d rank%s, but %d processes were started; ask for at least one rank per "
             "process, or start fewer",
             w->n_ranks, w->n_ranks == 1 ? "" : "s", w->n_processes);
    DT_CHECK(w->n_hosts <= w->n_ranks, DT_ERR_ARG, "DTENSOR_HOSTS is %d, but the run has %d ranks",
             w->n_hosts, w->n_ranks);
    w->first_rank = dti_mpi_first_rank_of(w, w->process);
    w->n_local = dti_mpi_first_rank_of(w, w->process + 1) - w->first_rank;
    DT_TRY(divide_tags(w, job));
    DT_TRY(dti_alloc_array(n_processes, sizeof *w->hosts, (void **)&w->hosts));
    DT_TRY(dti_alloc_array(n_processes, sizeof *w->watched, (void **)&w->watched));
    for (size_t p = 0; p < n_processes; p++) w->watched[p].life = -1;
    DT_TRY(dti_alloc_array(2 * (size_t)w->n_local, sizeof *w->ports, (void **)&w->ports));
    DT_TRY(dti_alloc_array(2 * (size_t)w->n_ranks, sizeof *w->left, (void **)&w->left));
    for (int i = 0; i < 2 * w->n_local; i++) atomic_init(&w->ports[i].waits_for, DTI_MPI_NOBODY);
    w->threads = job->threads;
    DT_TRY(dti_mpi_join(w, share));
    if (w->sums_by_mpi) DT_TRY(dti_mpi_sums_join(w));
    return DT_OK;
}

dt_status dti_mpi_world_create(const dti_mpi_module *module, const dti_mpi_job *job,
                               const dti_mpi_plan *plan, dti_mpi_world **out)
{
    dti_mpi_world *w = NULL;
    uint64_t session;
    dt_status st;

    *out = NULL;
    DT_CHECK(module->enter(&session) == 0, DT_ERR_UNSUPPORTED,
             "dt_run() was called while a run is under way in this process; among several "
             "processes runs cannot overlap");
    st = dti_new(sizeof *w, &w);
    if (st != DT_OK) {
        module->leave(true);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    w->api = module;
    w->session = session;
    w->n_ranks = plan->n_ranks;
    (void)pthread_mutex_init(&w->lock, NULL);
    (void)pthread_mutex_init(&w->asks, NULL);
    *out = w;
    w->timeout_ms = plan->timeout_ms;
    w->sums_by_mpi = plan->sums_by_mpi;
    w->agree = plan->agree;
    w->n_hosts = plan->n_hosts;
    st = make_world(w, job, plan->share);
    if (st == DT_OK) return DT_OK;
    atomic_store(&w->aborted, 1); /* the others find out by themselves */
    dti_mpi_world_destroy(out);
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

bool dti_mpi_world_finish(dti_mpi_world *w, dt_error *out)
{
    enum { NAP_NS = 200 * 1000, POLLS = 1000 };

    for (int i = 0; !atomic_load(&w->aborted) && !dti_mpi_is_over(w); i++) {
        if (i < POLLS)
            (void)sched_yield();
        else
            dti_mpi_watch(w, NAP_NS);
    }
    if (!atomic_load(&w->aborted)) return false;
    *out = w->record;
    return true;
}

void dti_mpi_world_destroy(dti_mpi_world **world)
{
    dti_mpi_world *w = *world;

    if (w == NULL) return;
    *world = NULL;
    for (int i = 0; w->ports != NULL && i < 2 * w->n_local; i++) {
        dti_mpi_port *port = &w->ports[i];
        while (port->closed != NULL) {
            dti_mpi_comm *c = port->closed;
            port->closed = c->next;
            dti_mpi_comm_free(c);
        }
        w->api->queue_destroy(port->queue);
    }
    dti_mpi_control_close(w);
    dti_mpi_region_close(&w->region);
    w->api->leave(atomic_load(&w->aborted) != 0);
    (void)pthread_mutex_destroy(&w->lock);
    (void)pthread_mutex_destroy(&w->asks);
    dti_free(w->hosts);
    dti_free(w->watched);
    dti_free(w->ports);
    dti_free((void *)w->left);
    dti_free(w);
}

int dti_mpi_first_rank(const dti_mpi_world *w)
{
    return w->first_rank;
}

int dti_mpi_n_local(const dti_mpi_world *w)
{
    return w->n_local;
}

void dti_mpi_neighbours(const dti_mpi_world *w, int *before, int *n)
{
    *before = w->n_before;
    *n = w->n_neighbours;
}

int dti_mpi_before_on_machine(const dti_mpi_world *w)
{
    return w->n_before_on_machine;
}

void dti_mpi_sharing(const dti_mpi_world *w, char text[DTI_MPI_TEXT_BYTES])
{
    int n = 0;

    for (int p = 0; p < w->n_processes; p++)
        n += p != w->process && dti_mpi_shares(w, w->first_rank, dti_mpi_first_rank_of(w, p));
    (void)snprintf(text, DTI_MPI_TEXT_BYTES,
                   "process %d shares memory with %d of %d other processes%s%s%s", w->process, n,
                   w->n_processes - 1, n < w->n_processes - 1 && w->region.why[0] ? ": " : "",
                   n < w->n_processes - 1 ? w->region.why : "",
                   w->sums_by_mpi ? "; sums are made by MPI" : "");
}

void dti_mpi_may_spin(dti_mpi_world *w, bool spin)
{
    w->spin = spin;
}

void dti_mpi_abort_world(dti_mpi_world *w, int rank, const char *why)
{
    dti_mpi_abort(w, rank, why);
}
