/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that fails frees the others: every operation, every rank, and no memory read after it was
 * given back (which the sanitizer builds see). */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"
#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

enum { MAX_RANKS = 8, QUICK_MS = 5000, LAUNCHED_QUICK_MS = 20000 };

/* What each rank saw, written by itself. */
typedef struct outcome {
    dt_status status;
    char message[DT_ERROR_MESSAGE_BYTES];
} outcome;

typedef struct scene {
    const char *spec;
    dti_comm_op op;
    int culprit;
    dt_status (*play)(struct scene *s, dt_mesh *mesh, dti_comm *c);
    outcome seen[MAX_RANKS];
} scene;

static dt_status scene_main(dt_runtime *rt, void *arg)
{
    scene *s = arg;
    outcome *o = &s->seen[dt_runtime_rank(rt)];
    dt_mesh *mesh = NULL;
    dti_comm *c = NULL;

    DT_TRY(dt_mesh_create(rt, s->spec, &mesh));
    o->status = dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &c);
    if (o->status == DT_OK) o->status = s->play(s, mesh, c);
    (void)snprintf(o->message, sizeof o->message, "%s",
                   o->status == DT_OK ? "" : dt_last_error()->message);
    dt_mesh_release(&mesh);
    return o->status;
}

/* Runs the scene, which has to end soon. */
static dt_status run_scene(scene *s, const char *fault, int64_t timeout_ms)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;
    const int64_t begin = dti_now_ns();
    const int quick_ms = dt_test_processes() > 1 ? LAUNCHED_QUICK_MS : QUICK_MS;
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims;
    dt_status st;

    DT_ASSERT_OK(dt_mesh_parse(s->spec, &n_dims, names, sizes, &o.n_ranks));
    o.fault = fault;
    o.timeout_ms = timeout_ms;
    st = dt_run(&o, scene_main, s);
    DT_ASSERT(dti_now_ns() - begin < (int64_t)quick_ms * 1000000);
    return st;
}

static void assert_contains(const char *message, const char *part)
{
    if (strstr(message, part) == NULL)
        dt_test_fail(__FILE__, __LINE__, "\"%s\" is not in \"%s\"", part, message);
}

/* --- injected faults ---------------------------------------------------------------------------
 */

static dt_status three_times(scene *s, dt_mesh *mesh, dti_comm *c)
{
    (void)mesh;
    for (uint32_t i = 0; i < 3; i++)
        DT_TRY(comm_trial_run(c, &(comm_case){ .op = s->op, .n = 200, .salt = i }));
    return DT_OK;
}

static void inject(const char *spec, int n_ranks, dti_comm_op op, int culprit)
{
    scene s = { .spec = spec, .op = op, .culprit = culprit, .play = three_times };
    const char *name = dti_comm_op_name(op);
    char fault[64], named[64], culprit_text[32];

    if (op == DTI_COMM_RECV) s.op = DTI_COMM_SEND; /* the case does both */
    (void)snprintf(fault, sizeof fault, "rank=%d,op=%s,call=2", culprit, name);
    (void)snprintf(named, sizeof named, "a fault was injected on rank %d", culprit);
    (void)snprintf(culprit_text, sizeof culprit_text, "rank %d: %s", culprit, name);
    DT_ASSERT_STATUS(run_scene(&s, fault, 20000), DT_ERR_COMM, named);
    DT_ASSERT_EQ_INT(dt_last_error()->rank, culprit);
    for (int r = 0; r < n_ranks; r++) {
        if (r == culprit || !dt_test_is_here(r, n_ranks) || s.seen[r].status == DT_OK) continue;
        DT_ASSERT_EQ_INT(s.seen[r].status, DT_ERR_COMM);
        assert_contains(s.seen[r].message, "was cut short by");
        assert_contains(s.seen[r].message, culprit_text);
        assert_contains(s.seen[r].message, "\"tp\"");
    }
}

DT_TEST(fault, every_operation_on_every_rank_ends_all_ranks_with_the_culprit_named)
{
    static const char *const specs[] = { "tp=2", "tp=3", "tp=8" };
    static const int sizes[] = { 2, 3, 8 };

    for (size_t i = 0; i < DT_COUNT(specs) && (i < 2 || dt_test_processes() == 1); i++)
        for (int op = 0; op < DTI_COMM_N_OPS; op++)
            for (int culprit = 0; culprit < sizes[i]; culprit++)
                inject(specs[i], sizes[i], (dti_comm_op)op, culprit);
}

static dt_status random_play(scene *s, dt_mesh *mesh, dti_comm *c)
{
    (void)c;
    return comm_random_steps(mesh, (uint64_t)s->culprit * 977, 150, NULL);
}

DT_TEST(fault, random_interleavings_end_and_free_their_buffers)
{
    static const char *const specs[] = { "a=2", "a=3", "a=2,b=2", "a=2,b=2,c=2" };

    for (int i = 0; i < (dt_test_processes() == 1 ? 60 : 12); i++) {
        const uint64_t h = comm_hash((uint64_t)i, 3, 3);
        scene s = { .spec = specs[i % 4], .culprit = i, .play = random_play };
        char fault[64], named[64];
        (void)snprintf(fault, sizeof fault, "rank=%d,call=%d", (int)(h % 2),
                       1 + (int)((h >> 8) % 80));
        (void)snprintf(named, sizeof named, "a fault was injected on rank %d", (int)(h % 2));
        DT_ASSERT_STATUS(run_scene(&s, fault, 20000), DT_ERR_COMM, named);
    }
}

/* --- ranks that fail by themselves -------------------------------------------------------------
 */

static dt_status out_of_memory(scene *s, dt_mesh *mesh, dti_comm *c)
{
    (void)mesh;
    DT_TRY(dti_barrier(c));
    if (c->rank == s->culprit) DT_FAIL(DT_ERR_MEMORY, "4096 bytes could not be allocated");
    return comm_trial_run(c, &(comm_case){ .op = s->op, .n = 100, .root = s->culprit });
}

DT_TEST(fault, the_record_of_the_failing_rank_is_that_of_the_run)
{
    for (int culprit = 0; culprit < 3; culprit++) {
        scene s = { "tp=3", DTI_COMM_ALL_GATHER, culprit, out_of_memory, { { DT_OK, "" } } };
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_MEMORY,
                         "4096 bytes could not be allocated");
        DT_ASSERT_EQ_INT(dt_last_error()->rank, culprit);
        for (int r = 0; r < 3; r++) {
            if (r == culprit || !dt_test_is_here(r, 3)) continue;
            DT_ASSERT_EQ_INT(s.seen[r].status, DT_ERR_COMM);
            assert_contains(s.seen[r].message, "on \"tp\" was cut short by rank");
            assert_contains(s.seen[r].message, "4096 bytes could not be allocated");
        }
    }
}

/* The culprit starts operations, fails before waiting, and gives the buffers back at once. */
static dt_status free_while_read(scene *s, dt_mesh *mesh, dti_comm *c)
{
    const int64_t n = 1 << 21;
    const bool culprit = c->rank == s->culprit;
    dt_status st = DT_OK;
    float *x = NULL, *y = NULL;
    dti_comm_request r = { 0 };

    (void)mesh;
    DT_TRY(dti_big_alloc((size_t)n * 4, (void **)&x));
    DT_TRY_TO(done, st, dti_big_alloc((size_t)n * 4, (void **)&y));
    r.call = (dti_comm_call){ .op = DTI_COMM_ALL_REDUCE, .send = x, .recv = y, .counts = &n };
    DT_TRY_TO(done, st, dti_comm_start(c, &r));
    if (culprit) {
        while (dti_now_ns() % 7 != 0) { /* the others are somewhere in their copies */
        }
        st = dt_fail_at(DT_ERR_IO, __func__, __FILE__, __LINE__, "a disk went away");
        dti_runtime_abort(dt_mesh_runtime(mesh));
        goto done;
    }
    DT_TRY_TO(done, st, dti_comm_wait(c, &r));
done:
    dti_big_free(x, (size_t)n * 4);
    dti_big_free(y, (size_t)n * 4);
    return st;
}

DT_TEST(fault, buffers_can_be_freed_once_abort_has_returned)
{
    for (int i = 0; i < 20; i++) {
        scene s = {
            i % 2 ? "tp=2" : "tp=4", DTI_COMM_BARRIER, i % 2, free_while_read, { { DT_OK, "" } }
        };
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_IO, "a disk went away");
    }
}

/* --- ranks that leave ---------------------------------------------------------------------------
 */

static dt_status leave_early(scene *s, dt_mesh *mesh, dti_comm *c)
{
    (void)mesh;
    DT_TRY(dti_barrier(c));
    if (c->rank == s->culprit) return DT_OK;
    return comm_trial_run(c, &(comm_case){ .op = s->op, .n = 100, .root = s->culprit });
}

DT_TEST(fault, a_rank_that_returns_early_is_named)
{
    for (int op = 0; op < DTI_COMM_RECV; op++)
        for (int culprit = 0; culprit < 3; culprit++) {
            scene s = { "tp=3", (dti_comm_op)op, culprit, leave_early, { { DT_OK, "" } } };
            char named[64];
            (void)snprintf(named, sizeof named, "rank %d has left", culprit);
            DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM, named);
            if (op != DTI_COMM_SEND) /* the case waits for either end first */
                assert_contains(dt_last_error()->message, dti_comm_op_name((dti_comm_op)op));
            DT_ASSERT_EQ_INT(s.seen[culprit].status, DT_OK);
        }
}

/* What was sent has been taken: bytes on their way to nobody are no message. */
static dt_status send_to_nobody(scene *s, dt_mesh *mesh, dti_comm *c)
{
    static const int64_t one = 1;
    float x = 1;
    dti_comm_request r = {
        .call = { .op = DTI_COMM_SEND, .send = &x, .counts = &one, .root = s->culprit }
    };

    (void)mesh;
    DT_TRY(dti_barrier(c));
    if (c->rank == s->culprit) return DT_OK;
    DT_TRY(dti_comm_start(c, &r));
    DT_TRY(dti_comm_wait(c, &r));
    return DT_OK;
}

DT_TEST(fault, a_send_ends_when_it_was_received)
{
    for (int culprit = 0; culprit < 2; culprit++) {
        scene s = { "tp=2", DTI_COMM_SEND, culprit, send_to_nobody, { { DT_OK, "" } } };
        char named[64];
        (void)snprintf(named, sizeof named, "rank %d has left", culprit);
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM, named);
    }
}

/* Groups of the first dim: ranks 0 and 2, 1 and 3. A member's number is not that of its rank. */
static dt_status leave_a_group(scene *s, dt_mesh *mesh, dti_comm *c)
{
    const bool concerned = dt_runtime_rank(dt_mesh_runtime(mesh)) % 2 == s->culprit % 2;
    dti_comm *group;

    DT_TRY(dti_barrier(c));
    DT_TRY(dti_mesh_comm(mesh, 1, &group));
    DT_TRY(dti_barrier(group));
    if (!concerned || dt_runtime_rank(dt_mesh_runtime(mesh)) == s->culprit) return DT_OK;
    return dti_barrier(group);
}

DT_TEST(fault, a_rank_that_leaves_a_group_is_named_by_its_number_in_the_world)
{
    for (int culprit = 1; culprit < 4; culprit++) {
        scene s = { .spec = "dp=2,tp=2", .culprit = culprit, .play = leave_a_group };
        char named[64];
        (void)snprintf(named, sizeof named, "barrier #2 on \"dp\": rank %d has left", culprit);
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM, named);
    }
}

static dt_status end_the_thread(scene *s, dt_mesh *mesh, dti_comm *c)
{
    DT_TRY(dti_barrier(c));
    if (c->rank == s->culprit) {
        dt_mesh_release(&mesh);
        pthread_exit(NULL);
    }
    return dti_barrier(c);
}

DT_TEST(fault, a_rank_whose_thread_ends_is_named)
{
    scene s = { "tp=3", DTI_COMM_BARRIER, 2, end_the_thread, { { DT_OK, "" } } };

    if (dt_test_processes() > 1) dt_test_skip("the rank may be the main thread of its process");
    DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM,
                     "rank 2 has left: its thread ended inside rank_main");
    assert_contains(s.seen[0].message, "on \"tp\" was cut short by rank 2");
}

/* dt_run() ends with its caller's thread, but sees the other ranks out first. */
static void *caller(void *arg)
{
    scene *s = arg;
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.n_ranks = 3;
    s->seen[0].status = dt_run(&o, scene_main, s); /* never reached */
    return NULL;
}

DT_TEST(fault, the_thread_of_the_caller_may_end_too)
{
    scene s = { "tp=3", DTI_COMM_BARRIER, 0, end_the_thread, { { DT_OK, "" } } };
    pthread_t thread;

    if (dt_test_processes() > 1) dt_test_skip("the rank may be the main thread of its process");
    DT_ASSERT_EQ_INT(pthread_create(&thread, NULL, caller, &s), 0);
    DT_ASSERT_EQ_INT(pthread_join(thread, NULL), 0);
    for (int r = 1; r < 3; r++)
        if (dt_test_is_here(r, 3))
            assert_contains(s.seen[r].message,
                            "rank 0 has left: its thread ended inside rank_main");
}

static dt_status leave_under_way(scene *s, dt_mesh *mesh, dti_comm *c)
{
    static const int64_t one = 1;
    float x[2] = { 0 };
    dti_comm_request r = {
        .call = { .op = DTI_COMM_ALL_REDUCE, .send = &x[0], .recv = &x[1], .counts = &one }
    };

    (void)mesh;
    if (c->rank != s->culprit) return dti_all_reduce(c, x, x, 2, DT_F32, DT_SUM);
    r.call.counts = &one;
    DT_TRY(dti_comm_start(c, &r));
    (void)usleep(1000);
    return DT_OK;
}

DT_TEST(fault, a_rank_must_wait_for_what_it_started)
{
    scene s = { "tp=2", DTI_COMM_BARRIER, 1, leave_under_way, { { DT_OK, "" } } };
    const dt_status st = run_scene(&s, NULL, 20000);

    DT_ASSERT(st == DT_ERR_ARG); /* counts differ as well: either rank may see its mistake first */
}

/* --- ranks that never come ----------------------------------------------------------------------
 */

/* A launched process may be kept waiting for its turn. */
static int64_t deadline_ms(void)
{
    return dt_test_processes() > 1 ? 300 : 60;
}

static dt_status come_late(scene *s, dt_mesh *mesh, dti_comm *c)
{
    (void)mesh;
    DT_TRY(dti_barrier(c));
    c->timeout_ms = deadline_ms();
    if (c->rank == s->culprit) (void)usleep((useconds_t)deadline_ms() * 3 * 1000);
    return comm_trial_run(c, &(comm_case){ .op = s->op, .n = 100, .root = s->culprit });
}

DT_TEST(fault, the_deadline_names_rank_operation_number_and_communicator)
{
    const int step = dt_test_processes() > 1 ? 2 : 1; /* half a second each is spent asleep */

    for (int op = 0; op < DTI_COMM_RECV; op += step) {
        scene s = { "tp=3", (dti_comm_op)op, 1, come_late, { { DT_OK, "" } } };
        char named[128];
        (void)snprintf(named, sizeof named, "after %lld ms", (long long)deadline_ms());
        if (op != DTI_COMM_SEND) /* who waits for whom depends on the order of the two ends */
            (void)snprintf(named, sizeof named,
                           "%s #2 on \"tp\": rank 1 has not arrived after %lld ms",
                           dti_comm_op_name((dti_comm_op)op), (long long)deadline_ms());
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM, named);
        if (op != DTI_COMM_SEND && dt_test_is_here(1, 3))
            assert_contains(s.seen[1].message,
                            "was cut short by rank 1: rank 1 has not arrived at");
    }
}

/* Rank 0 waits for 1, which waits for 2, which waits for 3, which does something else. */
static dt_status wait_in_a_row(scene *s, dt_mesh *mesh, dti_comm *c)
{
    const int rank = c->rank;
    const int64_t one = 1;
    float x = 0;
    dti_comm_call take = { .op = DTI_COMM_RECV, .recv = &x, .counts = &one, .root = rank + 1 };
    dti_comm_call give = { .op = DTI_COMM_SEND, .send = &x, .counts = &one, .root = rank - 1 };

    (void)mesh, (void)s;
    DT_TRY(dti_barrier(c));
    if (rank == 0) c->timeout_ms = 2 * deadline_ms();
    if (rank == 3) (void)usleep((useconds_t)deadline_ms() * 8 * 1000);
    if (rank < 3) DT_TRY(dti_comm_run(c, &take));
    if (rank > 0) DT_TRY(dti_comm_run(c, &give));
    return DT_OK;
}

DT_TEST(fault, the_root_of_a_chain_of_waits_is_named)
{
    scene s = { .spec = "tp=4", .play = wait_in_a_row };

    DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM, "rank 1 has not");
    assert_contains(dt_last_error()->message, "since it waits for rank 3; ");
}

enum { STALL_DEADLINE_MS = 400 };

/* The others have its word, but not its work: it does something else before it waits. They come
 * when it has begun: a start does all that can be done, with peers at hand the whole sum, and to
 * other processes it sends what their rings hold. Threads sum little, so that a sanitizer on a busy
 * machine leaves their own shares far from the deadline. */
static dt_status stall_after_start(scene *s, dt_mesh *mesh, dti_comm *c)
{
    const int64_t n = dt_test_processes() > 1 ? 1 << 22 : 1 << 12;
    const bool culprit = c->rank == s->culprit;
    int32_t begins = 1;
    dt_status st = DT_OK;
    float *x = NULL;
    dti_comm *world = dti_runtime_world(dt_mesh_runtime(mesh));
    dti_comm_request r = { 0 };

    DT_TRY(dti_big_alloc((size_t)n * 4, (void **)&x));
    memset(x, 0, (size_t)n * 4);
    DT_TRY_TO(done, st, dti_barrier(c));
    c->timeout_ms = STALL_DEADLINE_MS;
    r.call = (dti_comm_call){ .op = DTI_COMM_ALL_REDUCE, .send = x, .recv = x, .counts = &n };
    DT_TRY_TO(done, st, dti_broadcast(world, &begins, 1, DT_I32, s->culprit));
    if (!culprit) (void)usleep(STALL_DEADLINE_MS * 1000 / 4);
    DT_TRY_TO(done, st, dti_comm_start(c, &r));
    if (culprit) (void)usleep(STALL_DEADLINE_MS * 3 * 1000);
    DT_TRY_TO(done, st, dti_comm_wait(c, &r));
done:
    dti_big_free(x, (size_t)n * 4);
    return st;
}

DT_TEST(fault, a_rank_that_starts_and_then_stalls_is_named)
{
    static const char *const specs[] = { "tp=2", "tp=3" };

    for (size_t i = 0; i < DT_COUNT(specs); i++) {
        scene s = { specs[i], DTI_COMM_ALL_REDUCE, 1, stall_after_start, { { DT_OK, "" } } };
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_COMM, "after 400 ms");
        assert_contains(dt_last_error()->message, "the last collective that rank 1 began is");
    }
}

/* --- ranks that disagree ------------------------------------------------------------------------
 */

static dt_status disagree(scene *s, dt_mesh *mesh, dti_comm *c)
{
    float x[8] = { 0 }, y[64];
    int64_t counts[] = { 8, 8, 8 };

    (void)mesh;
    if (c->rank != s->culprit) return dti_all_reduce(c, x, y, 8, DT_F32, DT_SUM);
    if (s->op == DTI_COMM_ALL_GATHER) return dti_all_gather(c, x, y, counts, NULL, DT_F32);
    if (s->op == DTI_COMM_BROADCAST) return dti_broadcast(c, x, 8, DT_F32, 0);
    if (s->op == DTI_COMM_BARRIER) return dti_barrier(c);
    return dti_all_reduce(c, x, y, 7, DT_F32, DT_SUM);
}

DT_TEST(fault, different_calls_are_refused)
{
    static const dti_comm_op ops[] = { DTI_COMM_ALL_GATHER, DTI_COMM_BROADCAST, DTI_COMM_BARRIER,
                                       DTI_COMM_ALL_REDUCE };

    for (size_t i = 0; i < DT_COUNT(ops); i++) {
        scene s = { "tp=3", ops[i], 1, disagree, { { DT_OK, "" } } };
        DT_ASSERT_STATUS(run_scene(&s, NULL, 20000), DT_ERR_ARG,
                         "issue the same operations in the same order");
    }
}

/* The others come to the barrier late, so the culprit does its share of the sum while it waits
 * there. */
static dt_status fail_while_waiting_elsewhere(scene *s, dt_mesh *mesh, dti_comm *c)
{
    dti_comm *world = dti_runtime_world(dt_mesh_runtime(mesh));
    const int64_t n = c->rank == s->culprit ? 7 : 8;
    float x[8] = { 0 }, y[8];
    dti_comm_request sum = { 0 }, meeting = { .call = { .op = DTI_COMM_BARRIER } };

    sum.call = (dti_comm_call){ .op = DTI_COMM_ALL_REDUCE, .send = x, .recv = y, .counts = &n };
    DT_TRY(dti_comm_start(c, &sum));
    if (c->rank != s->culprit) (void)usleep(50 * 1000);
    DT_TRY(dti_comm_start(world, &meeting));
    DT_EXPECT(dti_comm_wait(world, &meeting) == DT_ERR_COMM, "the barrier");
    return dti_comm_wait(c, &sum);
}

DT_TEST(fault, a_share_that_fails_while_another_is_awaited_keeps_its_words)
{
    scene s = { "tp=2", DTI_COMM_ALL_REDUCE, 1, fail_while_waiting_elsewhere, { { DT_OK, "" } } };

    if (dt_test_processes() > 1) return; /* messages between processes are no shares of a rank */
    (void)run_scene(&s, NULL, 20000);
    DT_ASSERT_EQ_INT(s.seen[1].status, DT_ERR_ARG);
    assert_contains(s.seen[1].message, "operation #1 on \"tp\" differs");
}

/* --- the text of faults --------------------------------------------------------------------------
 */

DT_TEST(fault, the_text_is_parsed)
{
    dti_fault f;

    DT_ASSERT_OK(dti_fault_parse("rank=1,op=all_reduce,call=3", &f));
    DT_ASSERT_EQ_INT(f.rank, 1);
    DT_ASSERT_EQ_INT(f.op, DTI_COMM_ALL_REDUCE);
    DT_ASSERT_EQ_INT(f.call, 3);
    DT_ASSERT_OK(dti_fault_parse("op=any,rank=0", &f));
    DT_ASSERT_EQ_INT(f.op, -1);
    DT_ASSERT_EQ_INT(f.call, 1);
    DT_ASSERT_STATUS(dti_fault_parse("", &f), DT_ERR_ARG, "\"\" is not understood");
    DT_ASSERT_STATUS(dti_fault_parse("op=all_reduce", &f), DT_ERR_ARG, "names no rank");
    DT_ASSERT_STATUS(dti_fault_parse("rank=1,op=allreduce", &f), DT_ERR_ARG, "\"op=allreduce\"");
    DT_ASSERT_STATUS(dti_fault_parse("rank=1,call=0", &f), DT_ERR_ARG, "\"call=0\"");
    DT_ASSERT_STATUS(dti_fault_parse("rank=-1", &f), DT_ERR_ARG, "\"rank=-1\"");
    DT_ASSERT_STATUS(dti_fault_parse("rank=1,", &f), DT_ERR_ARG, "\"\" is not understood");
    DT_ASSERT_STATUS(dti_fault_parse("rank=99999999999999999999", &f), DT_ERR_ARG, "rank=9");
}

/* What was logged as a warning, and how often. */
typedef struct warnings {
    int n;
    char last[256];
} warnings;

static void note_warning(void *arg, dt_log_level level, int rank, const char *line)
{
    warnings *w = arg;

    if (level != DT_LOG_WARNING) return;
    DT_ASSERT_EQ_INT(rank, 0); /* so that nobody else writes */
    w->n++;
    (void)snprintf(w->last, sizeof w->last, "%s", line);
}

DT_TEST(fault, one_that_did_not_happen_is_reported)
{
    static const struct {
        const char *fault, *said;
    } cases[] = {
        { "rank=0,op=barrier,call=1", "rank 0 was to fail in call 1 of barrier, and made 0" },
        { "rank=0,op=all_reduce,call=50",
          "rank 0 was to fail in call 50 of all_reduce, and made 3" },
        { "rank=0,call=1000", "rank 0 was to fail in call 1000 of any operation, and made" },
    };

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        scene s = { .spec = "tp=2", .op = DTI_COMM_ALL_REDUCE, .play = three_times };
        dt_run_options o = DT_TEST_RUN_OPTIONS;
        warnings w = { 0, "" };

        o.n_ranks = 2;
        o.fault = cases[i].fault;
        o.log = note_warning;
        o.log_arg = &w;
        DT_ASSERT_OK(dt_run(&o, scene_main, &s));
        DT_ASSERT_EQ_INT(w.n, dt_test_is_here(0, 2) ? 1 : 0);
        if (dt_test_is_here(0, 2)) assert_contains(w.last, cases[i].said);
    }
}
