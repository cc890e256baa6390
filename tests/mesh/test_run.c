/* SPDX-License-Identifier: Apache-2.0
 *
 * dt_run: options, notes, what a runtime keeps, what the run returns. */
#define _GNU_SOURCE /* sched_getaffinity */
#include <dtensor/mesh.h>

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "mesh/core_binding.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

/* --- options ------------------------------------------------------------------------------------
 */

static dt_status nothing(dt_runtime *rt, void *arg)
{
    (void)rt, (void)arg;
    return DT_OK;
}

DT_TEST(run, bad_options_are_refused_with_number_and_range)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;

    DT_ASSERT_STATUS(dt_run(NULL, NULL, NULL), DT_ERR_ARG, "rank_main is NULL");
    o.size = 0;
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "start from DT_RUN_OPTIONS_INIT");
    o = (dt_run_options)DT_RUN_OPTIONS_INIT;
    o.n_ranks = 0;
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "n_ranks is 0, not in 1..");
    o = (dt_run_options)DT_RUN_OPTIONS_INIT;
    o.threads_per_rank = -1;
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "threads_per_rank is -1");
    o = (dt_run_options)DT_RUN_OPTIONS_INIT;
    o.timeout_ms = 0;
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "timeout_ms is 0");
    o = (dt_run_options)DT_RUN_OPTIONS_INIT;
    o.isa = "a name that is longer than that of any instruction set";
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "is no name of an instruction set");
    o = (dt_run_options)DT_RUN_OPTIONS_INIT;
    o.fault = "rank=4";
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "the run has ranks 0..0");
    o.fault = "nonsense";
    DT_ASSERT_STATUS(dt_run(&o, nothing, NULL), DT_ERR_ARG, "\"nonsense\" is not understood");
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they map what they like */
enum { MANY = 64, ROOM_BYTES = 256 << 20 };                         /* of stacks alone 512 MiB */

/* The number of an error says nothing to who reads it. */
DT_TEST(run, threads_that_cannot_start_say_why)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    FILE *f = fopen("/proc/self/statm", "r");
    struct rlimit old, few;
    long pages = 0;

    DT_ASSERT(f != NULL && fscanf(f, "%ld", &pages) == 1);
    (void)fclose(f);
    DT_ASSERT_EQ_INT(getrlimit(RLIMIT_AS, &old), 0);
    few =
        (struct rlimit){ (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ROOM_BYTES, old.rlim_max };
    for (int of_one = 0; of_one < 2; of_one++) {
        dt_status st;
        o.n_ranks = of_one ? 1 : MANY;
        o.threads_per_rank = of_one ? MANY : 1;
        DT_ASSERT_EQ_INT(setrlimit(RLIMIT_AS, &few), 0);
        st = dt_run(&o, nothing, NULL);
        DT_ASSERT_EQ_INT(setrlimit(RLIMIT_AS, &old), 0);
        DT_ASSERT_STATUS(st, DT_ERR_MEMORY, "Resource temporarily unavailable");
    }
}
#endif

DT_TEST(run, several_processes_without_a_transport_are_refused)
{
    (void)setenv("WORLD_SIZE", "4", 1);
    DT_ASSERT_STATUS(dt_run(NULL, nothing, NULL), DT_ERR_UNSUPPORTED, "mpirun");
    (void)setenv("WORLD_SIZE", "1", 1);
    DT_ASSERT_OK(dt_run(NULL, nothing, NULL));
    (void)unsetenv("WORLD_SIZE");
}

/* --- what a rank is told
 * -------------------------------------------------------------------------- */

static dt_status describe(dt_runtime *rt, void *arg)
{
    _Atomic uint32_t *seen = arg;

    DT_EXPECT_EQ_INT(dt_runtime_size(rt), 5);
    DT_EXPECT_EQ_INT(dt_runtime_threads(rt), 2);
    DT_EXPECT_EQ_INT(dti_pool_size(dti_runtime_pool(rt)), 2);
    DT_EXPECT_EQ_STR(dt_runtime_cores(rt), "");
    DT_EXPECT_EQ_STR(dti_runtime_isa(rt), "portable");
    DT_EXPECT_EQ_INT(dt_runtime_live(rt), 0);
    DT_EXPECT_EQ_STR(dti_runtime_world(rt)->name, "world");
    (void)atomic_fetch_or(seen, 1u << dt_runtime_rank(rt));
    return DT_OK;
}

DT_TEST(run, every_rank_knows_itself)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    _Atomic uint32_t seen = 0;

    o.n_ranks = 5;
    o.threads_per_rank = 2;
    o.bind = false;
    o.isa = "portable";
    DT_ASSERT_OK(dt_run(&o, describe, &seen));
    DT_ASSERT_EQ_INT(seen, 31);
}

/* --- notes
 * ---------------------------------------------------------------------------------------- */

typedef struct notes {
    _Atomic int n;
    char first[256];
} notes;

static void keep_note(void *arg, dt_log_level level, int rank, const char *line)
{
    notes *all = arg;

    (void)level, (void)rank;
    if (atomic_fetch_add(&all->n, 1) == 0)
        (void)snprintf(all->first, sizeof all->first, "%s", line);
}

DT_TEST(run, more_ranks_than_cores_are_not_bound_and_said_once)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    notes all = { 0 };
    dt_topology *t;

    DT_ASSERT_OK(dt_topology_load(NULL, &t));
    o.n_ranks = dt_topology_n_cores(t) + 1;
    dt_topology_release(&t);
    o.log = keep_note;
    o.log_arg = &all;
    DT_ASSERT_OK(dt_run(&o, nothing, NULL));
    DT_ASSERT_EQ_INT(all.n, 1);
    DT_ASSERT(strstr(all.first, "not bound to cores: ") != NULL);
    o.bind = false;
    DT_ASSERT_OK(dt_run(&o, nothing, NULL));
    DT_ASSERT_EQ_INT(all.n, 1);
}

static dt_status bound_or_noted(dt_runtime *rt, void *arg)
{
    notes *all = arg;

    DT_EXPECT(dt_runtime_cores(rt)[0] != '\0' || all->n > 0, "neither bound nor a note");
    return DT_OK;
}

DT_TEST(run, one_rank_takes_all_cores)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    notes all = { 0 };

    o.log = keep_note;
    o.log_arg = &all;
    DT_ASSERT_OK(dt_run(&o, bound_or_noted, &all));
}

/* --- what the run returns
 * --------------------------------------------------------------------------- */

static dt_status second_fails(dt_runtime *rt, void *arg)
{
    const dt_status *code = arg;

    if (dt_runtime_rank(rt) != 1) return dti_barrier(dti_runtime_world(rt));
    if (*code == DT_ERR_IO) return DT_ERR_IO; /* without a record */
    DT_FAIL(*code, "the second rank does not like it");
}

DT_TEST(run, the_first_failure_is_that_of_the_run)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    dt_status code = DT_ERR_LAYOUT;

    o.n_ranks = 3;
    DT_ASSERT_STATUS(dt_run(&o, second_fails, &code), DT_ERR_LAYOUT, "the second rank does not");
    DT_ASSERT_EQ_INT(dt_last_error()->rank, 1);
    DT_ASSERT_EQ_STR(dt_last_error()->frames[0].func, "second_fails");
    code = DT_ERR_IO;
    DT_ASSERT_STATUS(dt_run(&o, second_fails, &code), DT_ERR_IO,
                     "rank 1 returned DT_ERR_IO without a message");
}

static dt_status told_where(dt_mesh *mesh, const void *arg)
{
    (void)arg;
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 3) DT_FAIL(DT_ERR_SHAPE, "no");
    return DT_OK;
}

DT_TEST(run, records_carry_mesh_coordinates)
{
    dt_test_on_ranks_fail("dp=2,tp=2", told_where, NULL, DT_ERR_SHAPE, "no");
    DT_ASSERT_EQ_STR(dt_last_error()->where, "dp=1,tp=1");
}

static dt_status run_inside(dt_runtime *rt, void *arg)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    (void)arg;
    o.n_ranks = 2;
    DT_TRY(dt_run(&o, nothing, NULL));
    if (dt_runtime_rank(rt) == 1) DT_FAIL(DT_ERR_ARG, "after the inner run");
    return DT_OK;
}

DT_TEST(run, runs_nest)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.n_ranks = 2;
    DT_ASSERT_STATUS(dt_run(&o, run_inside, NULL), DT_ERR_ARG, "after the inner run");
    DT_ASSERT_EQ_INT(dt_last_error()->rank, 1); /* its number came back */
}

/* --- slots
 * ------------------------------------------------------------------------------------------ */

typedef struct slot_log {
    char order[8];
    int n;
} slot_log;

typedef struct slot_object {
    slot_log *log;
    char letter;
} slot_object;

static void note_end(void *object)
{
    slot_object *o = object;

    o->log->order[o->log->n++] = o->letter;
}

/* The objects wait in a slot of their own; a creator gets nothing but the runtime. */
static _Thread_local slot_object *first_object;
static _Thread_local bool refuses;

static dt_status make_root(dt_runtime *rt, void **out)
{
    (void)rt;
    *out = first_object;
    return DT_OK;
}

static const dti_slot root_slot = { make_root, note_end, false };

static slot_object *objects_of(dt_runtime *rt)
{
    void *object = NULL;

    return dti_runtime_slot(rt, &root_slot, &object) == DT_OK ? object : NULL;
}

static dt_status make_first(dt_runtime *rt, void **out)
{
    *out = &objects_of(rt)[1];
    return DT_OK;
}

static const dti_slot first_slot = { make_first, note_end, false };

static dt_status make_second(dt_runtime *rt, void **out)
{
    void *first;

    DT_CHECK(!refuses, DT_ERR_MEMORY, "no memory for a slot");
    DT_TRY(dti_runtime_slot(rt, &first_slot, &first));
    *out = &objects_of(rt)[2];
    return DT_OK;
}

static const dti_slot second_slot = { make_second, note_end, false };

/* One that fails is no slot yet; one that needs another ends before it. */
static dt_status use_slots(dt_runtime *rt, void *arg)
{
    slot_object *objects = arg;
    void *p, *q;

    first_object = objects;
    refuses = true;
    DT_EXPECT(objects_of(rt) == objects, "another object");
    DT_EXPECT_STATUS(dti_runtime_slot(rt, &second_slot, &q), DT_ERR_MEMORY, "no memory for a slot");
    refuses = false;
    DT_TRY(dti_runtime_slot(rt, &second_slot, &q));
    DT_TRY(dti_runtime_slot(rt, &first_slot, &p));
    DT_EXPECT(p == &objects[1] && q == &objects[2], "other objects");
    return DT_OK;
}

DT_TEST(run, slots_end_in_reverse_order)
{
    slot_log log = { "", 0 };
    slot_object objects[] = { { &log, 'a' }, { &log, 'b' }, { &log, 'c' } };

    DT_ASSERT_OK(dt_run(NULL, use_slots, objects));
    DT_ASSERT_EQ_STR(log.order, "cba");
}

/* --- helpers ---------------------------------------------------------------------------------- */

typedef struct helper_case {
    dt_runtime *rt;
    int cores, of_rank; /* that the helper may use, and the rank */
    dt_status status;
} helper_case;

static int cores_of_this_thread(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    (void)sched_getaffinity(0, sizeof set, &set);
    return CPU_COUNT(&set);
}

static void *help(void *arg)
{
    helper_case *h = arg;
    dti_comm *c;

    h->status = dti_runtime_open_lane(h->rt, &c);
    h->cores = cores_of_this_thread();
    if (h->status == DT_OK) dti_comm_close(c);
    return NULL;
}

static dt_status with_a_helper(dt_runtime *rt, void *arg)
{
    helper_case *h = arg;
    pthread_t thread;

    h->rt = rt;
    h->of_rank = cores_of_this_thread();
    DT_EXPECT(pthread_create(&thread, NULL, help, h) == 0, "no thread");
    (void)pthread_join(thread, NULL);
    return h->status;
}

/* The rank keeps to its core, which is busy when its helper has something to do. */
DT_TEST(run, a_helper_may_run_on_all_cores)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    const int before = cores_of_this_thread();
    helper_case h = { 0 };

    if (dt_test_processes() > 1) dt_test_skip("helpers are of ranks that are threads");
    o.threads_per_rank = 1;
    DT_ASSERT_OK(dt_run(&o, with_a_helper, &h));
    DT_ASSERT_EQ_INT(h.cores, before);
    DT_ASSERT(h.of_rank <= h.cores);
}
