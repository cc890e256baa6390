/* SPDX-License-Identifier: Apache-2.0
 *
 * Waiting for work has no deadline, everything else has that of its mesh. */
#include <string.h>
#include <unistd.h>

#include "base/sync.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

/* Who waits for work of another rank sleeps for half a second at a time: before that it does not
 * look at the clock. */
enum {
    CAPACITY = 5000,
    DEADLINE_MS = 180,
    LATE_US = 300 * 1000,
    NAP_OVER_US = 750 * 1000,
    QUICK_MS = 3000
};

static dt_run_options hurried(int64_t timeout_ms)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.timeout_ms = timeout_ms;
    return o;
}

static unsigned char byte_of(int64_t i, int64_t n)
{
    return (unsigned char)(i * 7 + n);
}

/* The root thinks for longer than a collective may take. */
static dt_status work_of(dt_mesh *mesh, int root, int64_t n, useconds_t thinks)
{
    const bool is_root = dt_runtime_rank(dt_mesh_runtime(mesh)) == dt_mesh_rank_at(mesh, root);
    unsigned char data[CAPACITY] = { 0 };
    int64_t bytes = is_root ? n : -1;

    for (int64_t i = 0; is_root && i < n; i++) data[i] = byte_of(i, n);
    if (is_root) (void)usleep(thinks);
    DT_TRY(dt_mesh_broadcast_work(mesh, root, data, CAPACITY, &bytes));
    DT_EXPECT_EQ_INT(bytes, n);
    for (int64_t i = 0; i < n; i++) DT_EXPECT_EQ_INT(data[i], byte_of(i, n));
    for (int64_t i = n; i < CAPACITY; i++) DT_EXPECT_EQ_INT(data[i], 0);
    return DT_OK;
}

static dt_status idle_root(dt_mesh *mesh, const void *arg)
{
    static const int64_t sizes[] = { 0, 1, 77, CAPACITY };

    (void)arg;
    for (int root = 0; root < dt_mesh_n_ranks(mesh); root++) {
        for (size_t i = 0; i < DT_COUNT(sizes); i++) DT_TRY(work_of(mesh, root, sizes[i], 0));
        if (root == dt_mesh_n_ranks(mesh) / 2) DT_TRY(work_of(mesh, root, 5, NAP_OVER_US));
    }
    return DT_OK;
}

DT_TEST(work, a_root_may_come_after_the_deadline)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };
    const dt_run_options o = hurried(DEADLINE_MS);

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        DT_ASSERT_OK(dt_test_run(&o, meshes[m], idle_root, NULL));
}

/* While ranks wait for work on "dp" they still do their share of a sum, which they could not do
 * when they started it: the others were not there yet, and wait for it now. */
static dt_status idle_on_one_dim(dt_mesh *mesh, const void *arg)
{
    static const int64_t one = 1;
    static const char *const dp[] = { "dp" };
    float x[2] = { 1, 0 };
    dti_comm_request r = {
        .call = { .op = DTI_COMM_ALL_REDUCE, .send = &x[0], .recv = &x[1], .counts = &one }
    };
    const bool first = dt_mesh_coord(mesh, 0) == 0;
    DT_HELD(mesh) *slice = NULL;
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 3, &c));
    DT_TRY(dt_mesh_slice(mesh, dp, 1, &slice));
    if (first) (void)usleep(DEADLINE_MS * 1000 / 2);
    DT_TRY(dti_comm_start(c, &r));
    if (first) DT_TRY(dti_comm_wait(c, &r));
    DT_TRY(work_of(slice, 0, 9, NAP_OVER_US));
    DT_TRY(dti_comm_wait(c, &r));
    DT_EXPECT(x[1] == 4, "the sum is %g", (double)x[1]);
    return DT_OK;
}

DT_TEST(work, those_who_wait_do_what_is_due_elsewhere)
{
    const dt_run_options o = hurried(DEADLINE_MS);

    DT_ASSERT_OK(dt_test_run(&o, "dp=2,tp=2", idle_on_one_dim, NULL));
}

/* --- how it ends ------------------------------------------------------------------------------ */

static dt_status root_fails(dt_mesh *mesh, const void *arg)
{
    unsigned char data[8];
    int64_t bytes = 8;

    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) {
        (void)usleep(LATE_US);
        if (arg == NULL) return DT_OK;
        DT_FAIL(DT_ERR_IO, "%s", (const char *)arg);
    }
    return dt_mesh_broadcast_work(mesh, 0, data, 8, &bytes);
}

DT_TEST(work, those_who_wait_notice_at_once_that_a_rank_failed_or_left)
{
    const dt_run_options o = hurried(600000);
    int64_t begin = dti_now_ns();

    DT_ASSERT_STATUS(dt_test_run(&o, "tp=3", root_fails, "the user is gone"), DT_ERR_IO,
                     "the user is gone");
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=3", root_fails, NULL), DT_ERR_COMM, "rank 0 has left");
    DT_ASSERT(dti_now_ns() - begin < (int64_t)QUICK_MS * 1000000);
}

static dt_status peer_is_late(dt_mesh *mesh, const void *arg)
{
    int64_t bytes = 4;
    char data[4] = { 0 };

    (void)arg;
    if (dt_mesh_coord(mesh, 0) == 1) (void)usleep(LATE_US);
    return dt_mesh_broadcast_work(mesh, 0, data, 4, &bytes);
}

DT_TEST(work, the_root_has_a_deadline)
{
    const dt_run_options o = hurried(DEADLINE_MS);

    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", peer_is_late, NULL), DT_ERR_COMM,
                     "broadcast #1 on \"tp\": rank 1 has not arrived after 180 ms");
}

static dt_status bad_arguments(dt_mesh *mesh, const void *arg)
{
    int64_t bytes = 9;
    char data[4];

    (void)arg;
    DT_EXPECT_STATUS(dt_mesh_broadcast_work(NULL, 0, data, 4, &bytes), DT_ERR_ARG, "mesh or bytes");
    DT_EXPECT_STATUS(dt_mesh_broadcast_work(mesh, 0, data, 4, NULL), DT_ERR_ARG, "mesh or bytes");
    DT_EXPECT_STATUS(dt_mesh_broadcast_work(mesh, 1, data, 4, &bytes), DT_ERR_ARG, "places 0..0");
    DT_EXPECT_STATUS(dt_mesh_broadcast_work(mesh, 0, data, -4, &bytes), DT_ERR_ARG, "capacity is");
    DT_EXPECT_STATUS(dt_mesh_broadcast_work(mesh, 0, NULL, 4, &bytes), DT_ERR_ARG, "data is NULL");
    DT_EXPECT_STATUS(dt_mesh_broadcast_work(mesh, 0, data, 4, &bytes), DT_ERR_ARG,
                     "work of 9 bytes, not in 0..4");
    DT_EXPECT_STATUS(dt_mesh_set_timeout(mesh, 0), DT_ERR_ARG, "timeout_ms is 0");
    DT_EXPECT_STATUS(dt_mesh_set_timeout(NULL, 5), DT_ERR_ARG, "mesh is NULL");
    DT_EXPECT_EQ_INT(dt_mesh_timeout(NULL), -1);
    return DT_OK;
}

DT_TEST(work, refuses_bad_arguments)
{
    dt_test_on_ranks("tp=1", bad_arguments, NULL);
}

/* The rank that finds it goes on without saying so to dt_run(); the root, which waits for it in the
 * next collective, is free at once. */
static dt_status capacities_differ(dt_mesh *mesh, const void *arg)
{
    const bool small = dt_mesh_coord(mesh, 0) == 1;
    const int64_t start = dti_now_ns();
    int64_t bytes = 8;
    char data[8] = { 0 };
    dt_status st;

    (void)arg;
    st = dt_mesh_broadcast_work(mesh, 0, data, small ? 4 : 8, &bytes);
    if (small) {
        DT_EXPECT_STATUS(st, DT_ERR_ARG, "rank 1 has room for 4 bytes of work, the root for 8");
        return DT_OK;
    }
    if (st == DT_OK) st = dt_mesh_broadcast_work(mesh, 1, data, 8, &bytes);
    DT_EXPECT_STATUS(st, DT_ERR_COMM, "");
    DT_EXPECT((dti_now_ns() - start) / 1000000 < QUICK_MS, "freed too late");
    return DT_OK;
}

DT_TEST(work, a_rank_with_another_capacity_frees_the_root)
{
    DT_ASSERT(dt_test_run(NULL, "tp=2", capacities_differ, NULL) != DT_ERR_INTERNAL);
}

/* --- the deadline of a mesh ------------------------------------------------------------------- */

/* A slice made after the deadline was set has it, the mesh's equal of before has its own. */
static dt_status one_is_late(dt_mesh *mesh, const void *arg)
{
    static const char *const tp[] = { "tp" };
    const int64_t *timeout_ms = arg;
    DT_HELD(mesh) *before = NULL, *after = NULL;
    dti_comm *c;

    DT_TRY(dt_mesh_slice(mesh, tp, 1, &before));
    DT_TRY(dt_mesh_set_timeout(mesh, *timeout_ms));
    DT_TRY(dt_mesh_slice(mesh, tp, 1, &after));
    DT_EXPECT(dt_mesh_timeout(before) != *timeout_ms, "the old slice has changed");
    DT_EXPECT(dt_mesh_timeout(after) == *timeout_ms, "the new slice has it not");
    DT_TRY(dti_mesh_comm(before, 1, &c));
    DT_TRY(dti_barrier(c));
    DT_TRY(dti_mesh_comm(after, 1, &c));
    if (dt_mesh_coord(mesh, 1) == 1) (void)usleep(LATE_US);
    DT_TRY(dti_barrier(c));
    return DT_OK;
}

DT_TEST(work, a_mesh_has_a_deadline_of_its_own_and_passes_it_on)
{
    const dt_run_options patient = hurried(20000), hurried_run = hurried(DEADLINE_MS);

    DT_ASSERT_STATUS(dt_test_run(&patient, "dp=2,tp=2", one_is_late, &(int64_t){ DEADLINE_MS + 5 }),
                     DT_ERR_COMM, "barrier #2 on \"tp\": rank");
    DT_ASSERT(strstr(dt_last_error()->message, "has not arrived after 185 ms") != NULL);
    DT_ASSERT_OK(dt_test_run(&hurried_run, "dp=2,tp=2", one_is_late, &(int64_t){ 10000 }));
}
