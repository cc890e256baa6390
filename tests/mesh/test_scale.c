/* SPDX-License-Identifier: Apache-2.0
 *
 * Among more than eight ranks of several processes: sums in a tree over hosts, gathers in rounds or
 * round a ring; what they send, and what they keep. */
#include <stdlib.h>
#include <unistd.h>

#include "base/memory.h"
#include "mesh/comm/mpi.h"
#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

/* Between processes only. */
static int n_hosts(void)
{
    const char *text = getenv("DTENSOR_HOSTS");

    return text != NULL && dt_test_processes() > 1 ? atoi(text) : 1;
}

static dt_status some_of_each(dti_comm *c, int n_world)
{
    static const dti_comm_op ops[] = { DTI_COMM_ALL_REDUCE, DTI_COMM_REDUCE_SCATTER,
                                       DTI_COMM_ALL_GATHER, DTI_COMM_BROADCAST,
                                       DTI_COMM_BARRIER,    DTI_COMM_ALL_TO_ALL };
    static const int64_t counts[] = { 0, 1, 7, 301, 2111 };
    uint32_t salt = 0;

    for (size_t op = 0; op < DT_COUNT(ops); op++)
        for (size_t i = 0; i < DT_COUNT(counts); i++)
            for (int form = 0; form < 4; form++) {
                comm_case k = { .op = ops[op], .n = counts[i], .salt = ++salt };
                k.n_hosts = n_hosts();
                k.n_world = n_world;
                k.dtype = (dt_dtype)(salt % DT_N_DTYPES);
                k.reduce = (dt_reduce)(salt / 2 % DT_N_REDUCES);
                if (k.dtype == DT_U8) k.dtype = DT_F32;
                k.uneven = form & 1;
                k.displaced = form & 2;
                k.in_place = (form + (int)i) & 1;
                k.root = (int)i % c->size;
                DT_TRY(comm_trial_run(c, &k));
            }
    return DT_OK;
}

/* Of the world, and of some of its ranks in an order that changes hosts with every member. */
static dt_status on_all_and_on_some(dt_mesh *mesh, const void *arg)
{
    const int n = dt_mesh_n_ranks(mesh);
    dti_comm *world, *some;
    int ranks[64], m = 0;
    dt_status st;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &world));
    DT_TRY(some_of_each(world, n));
    for (int first = 0; first < 3; first++)
        for (int r = n - 1 - first; r >= 0; r -= 3)
            if (r != n / 2) ranks[m++] = r;
    if (world->rank == n / 2) return DT_OK;
    DT_TRY(dti_comm_group(world, ranks, m, "some", &some));
    st = some_of_each(some, n);
    dti_comm_close(some);
    return st;
}

DT_TEST(scale, every_operation_on_more_than_eight_ranks)
{
    static const char *const meshes[] = { "tp=9", "tp=10", "tp=16", "tp=23" };

    for (size_t i = 0; i < DT_COUNT(meshes); i++)
        dt_test_on_ranks(meshes[i], on_all_and_on_some, NULL);
}

/* Several pieces of sums, several segments of each, blocks larger than both. */
static dt_status large(dt_mesh *mesh, const void *arg)
{
    static const dti_comm_op ops[] = { DTI_COMM_ALL_REDUCE, DTI_COMM_REDUCE_SCATTER,
                                       DTI_COMM_ALL_GATHER };
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    for (uint32_t salt = 0; salt < 9; salt++) {
        comm_case k = { .op = ops[salt % 3], .n = 7013, .salt = salt };
        k.n_hosts = n_hosts();
        k.n_world = c->size;
        k.dtype = salt < 3 ? DT_F32 : salt < 6 ? DT_BF16 : DT_F64;
        k.reduce = salt < 3 ? DT_AVG : DT_SUM;
        k.uneven = k.displaced = k.in_place = salt >= 3;
        if (salt == 0) k.n = 300017;
        DT_TRY(comm_trial_run(c, &k));
    }
    return DT_OK;
}

DT_TEST(scale, large_buffers_of_more_than_eight_ranks)
{
    dt_test_on_ranks("tp=13", large, NULL);
}

/* --- what it costs ----------------------------------------------------------------------------
 */

static int ceil_log2(int n)
{
    int k = 0;

    while (1 << k < n) k++;
    return k;
}

/* Messages of small operations, and memory for those that are talked to; how many ranks share a
 * host is what the run was told. */
static dt_status counts_hold(dt_mesh *mesh, const void *arg)
{
    enum { N = 5, FEW_BYTES = 4096, A_MEMBER = 40, ITSELF = 32 << 10 };
    const int n = dt_mesh_n_ranks(mesh), hosts = n_hosts(), here = (n + hosts - 1) / hosts;
    dti_mpi_use before, after;
    float x = 1, sum = 0;
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    if (!dti_mpi_use_of(c, &before)) return DT_OK;
    for (int i = 0; i < N; i++) DT_TRY(dti_all_reduce(c, &x, &sum, 1, DT_F32, DT_SUM));
    DT_EXPECT_EQ_INT(sum, n);
    (void)dti_mpi_use_of(c, &after);
    DT_EXPECT(after.n_sent - before.n_sent <= N * (2 * ceil_log2(hosts) + here),
              "%lld messages for %d sums of %d ranks on %d hosts",
              (long long)(after.n_sent - before.n_sent), N, n, hosts);
    before = after;
    for (int i = 0; i < N; i++) DT_TRY(dti_barrier(c));
    (void)dti_mpi_use_of(c, &after);
    DT_EXPECT(after.n_sent - before.n_sent <= N * ceil_log2(n), "%lld messages for %d barriers",
              (long long)(after.n_sent - before.n_sent), N);
    DT_EXPECT(after.n_peers <= here + 3 * ceil_log2(n), "%d members talked to", after.n_peers);
    DT_EXPECT(after.peer_bytes <= (size_t)after.n_peers * FEW_BYTES, "%zu bytes for %d members",
              after.peer_bytes, after.n_peers);
    DT_EXPECT(after.own_bytes <= ITSELF + (size_t)n * A_MEMBER, "%zu bytes for %d ranks",
              after.own_bytes, n);
    return DT_OK;
}

DT_TEST(scale, small_sums_and_barriers_send_few_messages)
{
    dt_test_on_ranks("tp=12", counts_hold, NULL);
    dt_test_on_ranks("tp=64", counts_hold, NULL);
}

/* Many times as many as there are cores. */
DT_TEST(scale, hundreds_of_ranks_send_few_messages)
{
    static const char *const meshes[] = { "tp=256", "tp=1024" };

    dt_test_long();
    for (size_t i = 0; i < DT_COUNT(meshes) && dt_test_processes() > 1; i++) {
        dt_run_options o = DT_TEST_RUN_OPTIONS;
        o.timeout_ms = 120000;
        o.threads_per_rank = 1;
        DT_ASSERT_OK(dt_test_run(&o, meshes[i], counts_hold, NULL));
    }
}

/* --- ranks that fail --------------------------------------------------------------------------
 */

enum { CULPRIT = 7, DEADLINE_MS = 1000 };

typedef struct trouble {
    const char *fault; /* injected; NULL: the rank leaves, or comes late */
    bool leaves;
    const char *said;
} trouble;

static dt_status three_of_each(dt_mesh *mesh, const void *arg)
{
    static const int64_t counts[] = { 3, 70001 };
    const trouble *t = arg;
    dti_comm *c;

    DT_TRY(dti_mesh_comm(mesh, 1, &c));
    for (int i = 0; i < 3; i++) {
        if (t->fault == NULL && i == 1) {
            if (c->rank == CULPRIT && t->leaves) return DT_OK;
            if (!t->leaves) c->timeout_ms = DEADLINE_MS;
            if (c->rank == CULPRIT) (void)usleep(4 * DEADLINE_MS * 1000);
        }
        for (size_t k = 0; k < DT_COUNT(counts); k++) {
            DT_TRY(comm_trial_run(
                c, &(comm_case){ .op = DTI_COMM_ALL_REDUCE, .n = counts[k], .dtype = DT_I32 }));
            DT_TRY(comm_trial_run(c, &(comm_case){ .op = DTI_COMM_REDUCE_SCATTER,
                                                   .n = counts[k] / 10,
                                                   .dtype = DT_I32 }));
            DT_TRY(comm_trial_run(
                c,
                &(comm_case){ .op = DTI_COMM_ALL_GATHER, .n = counts[k] / 10, .dtype = DT_I32 }));
        }
    }
    return DT_OK;
}

DT_TEST(scale, a_rank_that_fails_in_a_tree_is_named)
{
    static const trouble troubles[] = {
        { "rank=7,op=all_reduce,call=4", false, "a fault was injected on rank 7" },
        { "rank=7,op=reduce_scatter,call=3", false, "a fault was injected on rank 7" },
        { "rank=7,op=all_gather,call=4", false, "a fault was injected on rank 7" },
        { NULL, true, "rank 7 has left" },
        { NULL, false, "rank 7" },
    };

    for (size_t i = 0; i < DT_COUNT(troubles); i++) {
        dt_run_options o = DT_TEST_RUN_OPTIONS;
        o.fault = troubles[i].fault;
        o.timeout_ms = 20000;
        DT_ASSERT_STATUS(dt_test_run(&o, "tp=12", three_of_each, &troubles[i]), DT_ERR_COMM,
                         troubles[i].said);
    }
}
