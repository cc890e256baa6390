/* SPDX-License-Identifier: Apache-2.0
 *
 * dt_run: ranks as threads of one or more processes, from the check of the options to the record of
 * the culprit. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/sync.h"
#include "mesh/comm/slow_link.h"
#include "mesh/gpu.h"
#include "mesh/runtime_internal.h"
#include "mesh/share.h"
#include "mesh/world.h"

enum { MAX_RANKS = 16384, MAX_THREADS = 4096 };

/* Ranks wait at the gate until all threads exist, so that a run starts whole or not at all. */
enum { GATE_CLOSED, GATE_OPEN, GATE_CANCELLED };

typedef struct run_state run_state;

typedef struct run_rank {
    run_state *run;
    int rank;  /* in the world */
    int place; /* among those that divide this process's cores */
    pthread_t thread;
    dti_fault fault; /* its own copy: it counts calls */
} run_rank;

struct run_state {
    dt_run_options options;
    dt_rank_main rank_main;
    void *arg;
    dt_topology *topology;
    bool bind;
    bool has_fault;
    dti_world world;
    dti_shares *shares;
    run_rank *ranks; /* [world.n_local] */
    _Atomic uint32_t gate;
};

static const char links_name[] = "DTENSOR_LINK";

/* What was not chosen by the program is up to the environment. */
static void read_environment(dt_run_options *o)
{
#ifdef NDEBUG
    static const char by_default[] = "none";
#else
    static const char by_default[] = "agree";
#endif

    if (o->check == NULL) o->check = getenv("DTENSOR_CHECK");
    if (o->check == NULL || o->check[0] == '\0') o->check = by_default;
    if (o->flight == NULL) o->flight = getenv("DTENSOR_FLIGHT");
    if (o->flight != NULL && o->flight[0] == '\0') o->flight = NULL;
    if (o->links == NULL && o->simulated_link == NULL) o->links = getenv(links_name);
}

static dt_status check_options(const dt_run_options *o)
{
    dti_slow_links links;

    DT_CHECK(o->n_ranks >= 1 && o->n_ranks <= MAX_RANKS, DT_ERR_ARG, "n_ranks is %d, not in 1..%d",
             o->n_ranks, MAX_RANKS);
    DT_CHECK(o->threads_per_rank >= 0 && o->threads_per_rank <= MAX_THREADS, DT_ERR_ARG,
             "threads_per_rank is %d, not in 0..%d (0: cores / ranks)", o->threads_per_rank,
             MAX_THREADS);
    DT_CHECK((unsigned)o->bind <= DT_BIND_SPREAD, DT_ERR_ARG,
             "bind is %d, not DT_BIND_NONE, DT_BIND_COMPACT or DT_BIND_SPREAD", (int)o->bind);
    DT_CHECK(o->ranks_together >= 0 &&
                 (o->ranks_together == 0 || o->n_ranks % o->ranks_together == 0),
             DT_ERR_ARG, "ranks_together is %d, which does not divide n_ranks = %d",
             o->ranks_together, o->n_ranks);
    DT_CHECK(o->timeout_ms >= 1, DT_ERR_ARG, "timeout_ms is %lld; a wait needs at least 1",
             (long long)o->timeout_ms);
    DT_TRY(dti_slow_link_check(o->simulated_link));
    DT_CHECK(o->links == NULL || o->simulated_link == NULL, DT_ERR_ARG,
             "links and simulated_link say the same: choose one");
    if (o->links != NULL) {
        const dt_status st = dti_slow_links_parse(o->links, &links);
        if (st != DT_OK && o->links == getenv(links_name)) dti_error_prefix("%s", links_name);
        DT_TRY(st);
    }
    DT_TRY(dti_check_isa(o->isa));
    DT_TRY(dti_check_products(o->products));
    DT_TRY(dti_check_device(o->device));
    DT_CHECK(strcmp(o->check, "agree") == 0 || strcmp(o->check, "none") == 0, DT_ERR_ARG,
             "check (DTENSOR_CHECK) is \"%s\"; choose \"agree\" or \"none\"", o->check);
    return DT_OK;
}

static dt_status make_ranks(run_state *run, int before)
{
    const dt_run_options *o = &run->options;
    const dti_world *w = &run->world;
    dti_fault fault = { 0 };

    if (o->fault != NULL) {
        DT_TRY(dti_fault_parse(o->fault, &fault));
        DT_CHECK(fault.rank < w->n_ranks, DT_ERR_ARG, "fault \"%s\": the run has ranks 0..%d",
                 o->fault, w->n_ranks - 1);
        run->has_fault = true;
    }
    DT_TRY(dti_alloc_array((size_t)w->n_local, sizeof *run->ranks, (void **)&run->ranks));
    for (int i = 0; i < w->n_local; i++)
        run->ranks[i] = (run_rank){
            .run = run, .rank = w->first_rank + i, .place = before + i, .fault = fault
        };
    return DT_OK;
}

/* Other processes of this machine that may use the same cores get their part of them. */
static dt_status make_run(run_state *run)
{
    const dt_run_options *o = &run->options;
    int before, n, together;
    bool fits;

    dti_world_neighbours(&run->world, &before, &n);
    DT_TRY(make_ranks(run, before));
    DT_TRY(dti_shares_create(&run->shares));
    DT_TRY(dt_topology_load(NULL, &run->topology));
    together = o->ranks_together > 0 && n % o->ranks_together == 0 ? o->ranks_together : 0;
    DT_TRY(dt_topology_divide(run->topology,
                              &(dt_division){ n, o->threads_per_rank, o->bind, together }));
    fits = dt_topology_fits(run->topology);
    run->bind = o->bind != DT_BIND_NONE && fits && dti_topology_can_bind(run->topology);
    DT_TRY(dti_world_start(&run->world, fits));
    return DT_OK;
}

static void free_run(run_state *run)
{
    dti_world_close(&run->world);
    dt_topology_release(&run->topology);
    dti_free(run->ranks);
    dti_shares_free(&run->shares);
}

/* Workers of the pool bind themselves; worker 0 is the rank's thread and is bound already. */
static void bind_worker(void *arg, int worker)
{
    const run_rank *r = arg;

    if (r->run->bind) (void)dti_topology_bind(r->run->topology, r->place, worker);
}

/* What became of a rank's binding. */
typedef struct binding {
    bool cpus, memory;
    int error; /* errno of a refusal */
} binding;

static void log_binding(dt_runtime *rt, const run_state *run, const binding *b)
{
    const dt_topology *t = run->topology;
    const int threads = dt_topology_threads(t);

    if (run->options.bind == DT_BIND_NONE) return;
    if (rt->rank == 0 && !dt_topology_fits(t))
        dti_runtime_log(rt, DT_LOG_INFO,
                        "not bound to cores: %d rank%s of %d thread%s on %d core%s", rt->size,
                        rt->size == 1 ? "" : "s", threads, threads == 1 ? "" : "s",
                        dt_topology_n_cores(t), dt_topology_n_cores(t) == 1 ? "" : "s");
    else if (rt->rank == 0 && !run->bind)
        dti_runtime_log(rt, DT_LOG_INFO, "not bound to cores: this system does not offer it");
    if (run->bind && !b->cpus)
        dti_runtime_log(rt, DT_LOG_INFO, "rank %d could not be bound to its cores (%s)", rt->rank,
                        strerror(b->error));
    if (b->cpus && !b->memory)
        dti_runtime_log(rt, DT_LOG_INFO,
                        "memory of rank %d could not be bound to its NUMA node; pages lie where "
                        "they are first touched",
                        rt->rank);
}

/* Binds before anything is allocated, so that the rank's memory is near. */
static dt_status make_runtime(run_rank *r, dt_runtime **out)
{
    run_state *run = r->run;
    const int n_threads = dt_topology_threads(run->topology);
    char cores[DT_CORES_TEXT_BYTES] = "", sharing[DTI_MPI_TEXT_BYTES];
    binding b = { false, false, 0 };
    const char *wish = getenv("DTENSOR_CUDA_COMM");
    dti_comm *world = NULL;
    dti_pool *pool = NULL;
    dt_status st;

    if (run->bind) {
        b.cpus = dti_topology_bind(run->topology, r->place, 0);
        b.error = errno;
        b.memory = b.cpus && dti_topology_bind_memory(run->topology, r->place);
        if (b.cpus) dti_topology_cores_text(run->topology, r->place, cores);
    }
    if (n_threads > 1)
        DT_TRY(dti_pool_create(n_threads, dt_topology_fits(run->topology), bind_worker, r, &pool));
    st = dti_world_join(&run->world, r->rank, pool, run->has_fault ? &r->fault : NULL, &world);
    if (st != DT_OK) {
        dti_pool_destroy(&pool);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    DT_TRY(dti_runtime_create(&run->options, world, pool, cores, out));
    (*out)->shares = run->shares;
    (*out)->place = dti_world_before_on_machine(&run->world) + r->rank - run->world.first_rank;
    if (dti_world_has_lanes(&run->world)) (*out)->lanes = &run->world;
    (*out)->bound_by = b.cpus ? run->topology : NULL;
    if (wish != NULL && wish[0] != '\0') (*out)->cuda_wish = wish;
    log_binding(*out, run, &b);
    if (dti_world_sharing(&run->world, sharing) && r->rank == run->world.first_rank)
        dti_runtime_log(*out, DT_LOG_INFO, "%s", sharing);
    return DT_OK;
}

/* A rank that returns a status without a record still has to say something to the others. */
static void ensure_record(dt_status st, int rank)
{
    if (dt_last_error()->code == st) return;
    (void)dt_fail_at(st, __func__, __FILE__, __LINE__, "rank %d returned %s without a message",
                     rank, dt_status_name(st));
}

/* The thread is ending inside rank_main (pthread_exit, cancellation). For the caller's own thread
 * this is also the end of dt_run(), which has to see the other ranks out. */
typedef struct leaver {
    run_state *run;
    dt_runtime *rt;
} leaver;

static void thread_left(void *arg)
{
    leaver *l = arg;
    const int rank = l->rt->rank;

    (void)dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                     "rank %d has left: its thread ended inside rank_main", rank);
    dti_runtime_abort(l->rt);
    dti_runtime_destroy(&l->rt);
    if (rank != l->run->world.first_rank) return;
    for (int r = 1; r < l->run->world.n_local; r++)
        (void)pthread_join(l->run->ranks[r].thread, NULL);
    free_run(l->run);
}

static dt_status call_rank_main(run_state *run, dt_runtime *rt)
{
    leaver l = { run, rt };
    dt_status st;

    pthread_cleanup_push(thread_left, &l);
    st = dti_gpu_open(rt);
    if (st == DT_OK && run->options.setup != NULL)
        st = run->options.setup(rt, run->options.setup_arg);
    if (st == DT_OK) st = run->rank_main(rt, run->arg);
    pthread_cleanup_pop(0);
    return st;
}

/* What happens on the thread of a rank. */
static void run_one(run_rank *r)
{
    dt_runtime *rt = NULL;
    dt_status st;

    dti_error_set_rank(r->rank);
    dti_error_set_where("");
    dti_error_clear();
    st = make_runtime(r, &rt);
    if (st == DT_OK) {
        DT_ASSERT(rt != NULL);
        st = call_rank_main(r->run, rt);
        if (st == DT_OK && rt->beside.finish != NULL) st = rt->beside.finish(rt->beside.arg);
        if (st == DT_OK) st = dti_world_leave(&r->run->world, rt->world);
    }
    if (st != DT_OK) {
        ensure_record(st, r->rank);
        if (rt != NULL)
            dti_runtime_abort(rt);
        else
            dti_world_abort(&r->run->world, r->rank, dt_last_error()->message);
    }
    dti_runtime_destroy(&rt);
}

static void *thread_main(void *arg)
{
    run_rank *r = arg;
    uint32_t gate;

    while ((gate = atomic_load(&r->run->gate)) == GATE_CLOSED)
        dti_futex_wait(&r->run->gate, GATE_CLOSED, -1);
    if (gate == GATE_OPEN) run_one(r);
    return NULL;
}

static void open_gate(run_state *run, uint32_t state)
{
    atomic_store(&run->gate, state);
    dti_futex_wake_all(&run->gate);
}

static dt_status start_threads(run_state *run)
{
    dt_status st = DT_OK;
    int started = 1;

    for (; started < run->world.n_local; started++) {
        run_rank *r = &run->ranks[started];
        const int error = pthread_create(&r->thread, NULL, thread_main, r);
        DT_CHECK_TO(fail, st, error == 0, DT_ERR_MEMORY,
                    "the thread of rank %d of %d could not be started (%s)", r->rank,
                    run->world.n_ranks, strerror(error));
    }
    return DT_OK;

fail:
    open_gate(run, GATE_CANCELLED);
    for (int r = 1; r < started; r++) (void)pthread_join(run->ranks[r].thread, NULL);
    return st;
}

/* The caller is the first rank of this process meanwhile, and gets its place and its number back.
 */
static void run_all(run_state *run)
{
    dti_binding *before = run->bind ? dti_binding_save(run->topology) : NULL;
    int outer_rank;

    dti_error_clear();
    outer_rank = dt_last_error()->rank;
    open_gate(run, GATE_OPEN);
    run_one(&run->ranks[0]);
    for (int r = 1; r < run->world.n_local; r++) (void)pthread_join(run->ranks[r].thread, NULL);
    dti_error_set_rank(outer_rank);
    dti_error_set_where("");
    dti_binding_restore(run->topology, before);
}

dt_status dt_run(const dt_run_options *options, dt_rank_main rank_main, void *arg)
{
    dt_status st = DT_OK;
    run_state run = { .options = DT_RUN_OPTIONS_INIT, .rank_main = rank_main, .arg = arg };
    dti_launch launch;
    dt_error record;

    dt_launch_arrive();
    DT_CHECK(rank_main != NULL, DT_ERR_ARG, "rank_main is NULL");
    DT_TRY(dti_options_read("dt_run_options", "start from DT_RUN_OPTIONS_INIT", options,
                            &run.options, sizeof run.options));
    read_environment(&run.options);
    DT_TRY(check_options(&run.options));
    DT_TRY(dti_launch_read(&launch));
    if (run.options.sums != NULL)
        DT_TRY(dti_launch_read_sums(run.options.sums, "sums", &launch.sums_by_mpi));
    DT_TRY_TO(done, st, dti_world_open(&launch, &run.options, &run.world));
    st = make_run(&run);
    if (st == DT_OK) st = start_threads(&run);
    if (st != DT_OK) { /* other processes count on this one */
        dti_world_abort(&run.world, run.world.first_rank, dt_last_error()->message);
        DT_TRY_TO(done, st, st);
    }
    run_all(&run);
    if (dti_world_finish(&run.world, &record)) {
        st = record.code;
        dti_error_restore(&record);
    }
done:
    free_run(&run);
    return st;
}
