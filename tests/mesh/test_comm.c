/* SPDX-License-Identifier: Apache-2.0
 *
 * What every back end has to do: operation x dtype x count, in place, uneven, displaced. */
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/dt_test.h"

static const char *const meshes[] = { "tp=1", "tp=2",      "tp=3",        "tp=4",
                                      "tp=5", "dp=2,tp=2", "a=2,b=2,c=2", "dp=4,tp=2" };

static uint32_t all_dims(const dt_mesh *mesh)
{
    return (1u << dt_mesh_n_dims(mesh)) - 1;
}

/* --- the table -------------------------------------------------------------------------------- */

static const int64_t counts[] = { 0, 1, 7, 64, 301, 5003 };

/* Of the table a launched job takes every seventh row, others for each number of ranks: its
 * messages cost more. */
static bool is_chosen(const dti_comm *c, const comm_case *k)
{
    return dt_test_processes() == 1 || (k->salt + (uint32_t)k->reduce + (uint32_t)c->size) % 7 == 0;
}

/* The largest count takes one form only: the model is slow. */
static dt_status run_forms(dti_comm *c, comm_case k)
{
    for (int form = k.n > 1000 ? 7 : 0; form < 8; form++) {
        k.uneven = form & 1;
        k.displaced = form & 2;
        k.in_place = form & 4;
        k.salt++;
        if (is_chosen(c, &k)) DT_TRY(comm_trial_run(c, &k));
    }
    return DT_OK;
}

static dt_status table_holds(dt_mesh *mesh, const void *arg)
{
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    for (int op = 0; op < DTI_COMM_N_OPS; op++)
        for (int dtype = 0; dtype < DT_N_DTYPES; dtype++)
            for (size_t i = 0; i < DT_COUNT(counts); i++) {
                comm_case k = { .op = (dti_comm_op)op, .dtype = (dt_dtype)dtype, .n = counts[i] };
                const bool reduces = op == DTI_COMM_ALL_REDUCE || op == DTI_COMM_REDUCE_SCATTER;
                k.root = (int)i % c->size;
                k.salt = (uint32_t)(op * 1000 + dtype * 100 + (int)i * 10);
                if (reduces && dtype == DT_U8) continue;
                for (int r = 0; r < (reduces ? DT_N_REDUCES : 1); r++) {
                    k.reduce = (dt_reduce)r;
                    DT_TRY(run_forms(c, k));
                }
            }
    return DT_OK;
}

DT_TEST(comm, every_operation_dtype_and_count)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], table_holds, NULL);
}

/* Terms read from where they lie: in long rows and in short ones, in boxes that all ranks have
 * alike and in such as each has for itself. */
static dt_status boxed_terms(dt_mesh *mesh, const void *arg)
{
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    for (int dtype = 0; dtype < DT_N_DTYPES; dtype++)
        for (uint32_t form = 0; form < 16 && dtype != DT_U8; form++)
            DT_TRY(comm_trial_run(c, &(comm_case){ .op = DTI_COMM_REDUCE_SCATTER,
                                                   .dtype = (dt_dtype)dtype,
                                                   .reduce = (dt_reduce)(form % DT_N_REDUCES),
                                                   .n = form & 1 ? 7001 : 301,
                                                   .uneven = form & 2,
                                                   .displaced = form & 4,
                                                   .in_place = true,
                                                   .salt = 20 + (form >> 3) }));
    return DT_OK;
}

DT_TEST(comm, terms_are_read_from_their_boxes)
{
    static const char *const few[] = { "tp=1", "tp=2", "tp=3", "dp=2,tp=2" };

    for (size_t m = 0; m < DT_COUNT(few); m++) dt_test_on_ranks(few[m], boxed_terms, NULL);
}

/* --- large ------------------------------------------------------------------------------------ */

static dt_status large_buffers(dt_mesh *mesh, const void *arg)
{
    static const dti_comm_op ops[] = { DTI_COMM_ALL_REDUCE,     DTI_COMM_ALL_GATHER,
                                       DTI_COMM_REDUCE_SCATTER, DTI_COMM_BROADCAST,
                                       DTI_COMM_ALL_TO_ALL,     DTI_COMM_SEND,
                                       DTI_COMM_EXCHANGE };
    const int64_t large = dt_test_processes() > 1 ? 1 << 18 : 1 << 20;
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    for (size_t i = 0; i < DT_COUNT(ops); i++) {
        DT_TRY(comm_trial_run(c, &(comm_case){ .op = ops[i], .n = large + 13, .salt = 5 }));
        DT_TRY(comm_trial_run(c, &(comm_case){ .op = ops[i], .n = 70001, .root = 1, .salt = 6 }));
        DT_TRY(comm_trial_run(
            c, &(comm_case){ .op = ops[i], .n = 70001, .in_place = true, .salt = 7 }));
    }
    DT_TRY(comm_trial_run(
        c, &(comm_case){
               .op = DTI_COMM_REDUCE_SCATTER, .n = large + 13, .in_place = true, .salt = 4 }));
    for (int dtype = 0; dtype < DT_N_DTYPES; dtype++) { /* and in other forms */
        comm_case k = { .dtype = (dt_dtype)dtype, .n = 70001 + dtype, .salt = 8 };
        k.op = DTI_COMM_ALL_GATHER;
        if (dtype != DT_U8) k.op = dtype % 2 ? DTI_COMM_ALL_REDUCE : DTI_COMM_REDUCE_SCATTER;
        k.reduce = (dt_reduce)(dtype % DT_N_REDUCES);
        k.uneven = k.displaced = k.in_place = dtype % 3 != 0;
        DT_TRY(comm_trial_run(c, &k));
    }
    return DT_OK;
}

/* Of this size results are streamed, and the threads of a rank share the work. */
DT_TEST(comm, large_buffers)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    dt_test_on_ranks("tp=3", large_buffers, NULL);
    o.threads_per_rank = 3;
    DT_ASSERT_OK(dt_test_run(&o, "tp=2", large_buffers, NULL));
}

/* --- more under way than the ring holds --------------------------------------------------------
 */

static dt_status many_under_way(dt_mesh *mesh, const void *arg)
{
    enum { N = 40 };
    dti_comm *c;
    dti_comm_request r[N] = { 0 };
    float x[N], y[N];
    int64_t one = 1;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    for (int i = 0; i < N; i++) {
        x[i] = (float)(c->rank + i);
        r[i].call = (dti_comm_call){
            .op = DTI_COMM_ALL_REDUCE, .send = &x[i], .recv = &y[i], .counts = &one
        };
        DT_TRY(dti_comm_start(c, &r[i]));
    }
    for (int i = N - 1; i >= 0; i--) {
        DT_TRY(dti_comm_wait(c, &r[i]));
        DT_EXPECT_EQ_INT(y[i], c->size * i + c->size * (c->size - 1) / 2);
    }
    return DT_OK;
}

DT_TEST(comm, starts_more_operations_than_the_ring_holds)
{
    for (size_t m = 0; m < DT_COUNT(meshes); m++) dt_test_on_ranks(meshes[m], many_under_way, NULL);
}

/* --- small properties ------------------------------------------------------------------------- */

static dt_status steady_state_makes_no_malloc(dt_mesh *mesh, const void *arg)
{
    float x[256] = { 1 }, y[256 * 4];
    int64_t n[4] = { 256, 256, 256, 256 };
    uint64_t before;
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    for (int i = 0; i < 2; i++) {
        before = dti_alloc_count();
        for (int k = 0; k < 100; k++) {
            DT_TRY(dti_all_reduce(c, x, y, 256, DT_F32, DT_SUM));
            DT_TRY(dti_all_gather(c, x, y, n, NULL, DT_F32));
            DT_TRY(dti_barrier(c));
        }
    }
    DT_EXPECT_EQ_INT(dti_alloc_count(), before);
    return DT_OK;
}

DT_TEST(comm, steady_state_makes_no_malloc)
{
    dt_test_on_ranks("tp=4", steady_state_makes_no_malloc, NULL);
}

static dt_status nan_wins(dt_mesh *mesh, const void *arg)
{
    static const dt_reduce ops[] = { DT_MIN, DT_MAX, DT_SUM };
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    for (size_t i = 0; i < DT_COUNT(ops); i++)
        for (int who = 0; who < c->size; who++) {
            float x = c->rank == who ? (float)(0.0 / (double)(c->size - c->size)) : 1.0f;
            DT_TRY(dti_all_reduce(c, &x, &x, 1, DT_F32, ops[i]));
            DT_EXPECT(x != x, "operation %d gave %g for a NaN of rank %d", (int)ops[i], (double)x,
                      who);
        }
    return DT_OK;
}

DT_TEST(comm, nan_of_any_rank_reaches_all)
{
    dt_test_on_ranks("tp=3", nan_wins, NULL);
}

static dt_status bad_calls(dt_mesh *mesh, const void *arg)
{
    const int64_t minus = -1;
    float x[4] = { 0 };
    dti_comm *c;

    (void)arg;
    DT_TRY(dti_mesh_comm(mesh, all_dims(mesh), &c));
    DT_EXPECT_STATUS(dti_broadcast(c, x, 4, DT_F32, 7), DT_ERR_ARG, "rank 7 is not in 0..1");
    DT_EXPECT_STATUS(dti_all_reduce(c, x, x, -4, DT_F32, DT_SUM), DT_ERR_ARG, "counts[0] is -4");
    DT_EXPECT_STATUS(dti_all_reduce(c, NULL, x, 4, DT_F32, DT_SUM), DT_ERR_ARG, "send is NULL");
    DT_EXPECT_STATUS(dti_all_reduce(c, x, x, 4, DT_U8, DT_SUM), DT_ERR_ARG, "u8 can be moved");
    DT_EXPECT_STATUS(dti_all_reduce(c, x, x, 4, (dt_dtype)40, DT_SUM), DT_ERR_ARG, "dtype 40");
    DT_EXPECT_STATUS(dti_all_gather(c, x, x, NULL, NULL, DT_F32), DT_ERR_ARG, "counts is NULL");
    DT_EXPECT_STATUS(
        dti_comm_run(c, &(dti_comm_call){ .op = DTI_COMM_EXCHANGE, .send = x, .recv = x }),
        DT_ERR_ARG, "send_boxes is NULL");
    DT_EXPECT_STATUS(
        dti_comm_run(
            c,
            &(dti_comm_call){ .op = DTI_COMM_SEND, .root = c->rank, .send = x, .counts = &minus }),
        DT_ERR_ARG, "names itself");
    DT_TRY(dti_barrier(c)); /* all of these left the communicator alive */
    return DT_OK;
}

DT_TEST(comm, refuses_what_one_rank_can_see_alone)
{
    dt_test_on_ranks("tp=2", bad_calls, NULL);
}

static dt_status boxes_are_copied(dt_mesh *mesh, const void *arg)
{
    int32_t from[24], to[24] = { 0 };
    const dti_box scalar = { .n_axes = 0, .offset = 5 };
    const dti_box a = { .n_axes = 2, .extent = { 4, 6 }, .stride = { 6, 1 } };
    const dti_box b = { .n_axes = 2, .extent = { 4, 6 }, .stride = { 1, 4 } };
    const dti_box empty = { .n_axes = 2, .extent = { 4, 0 }, .stride = { 6, 1 } };

    (void)mesh, (void)arg;
    for (int i = 0; i < 24; i++) from[i] = i;
    dti_box_copy(to, &b, from, &a, 4);
    for (int i = 0; i < 24; i++) DT_EXPECT_EQ_INT(to[i % 6 * 4 + i / 6], i);
    dti_box_copy(to, &scalar, from, &scalar, 4);
    DT_EXPECT_EQ_INT(to[5], 5);
    memset(to, 0, sizeof to);
    dti_box_copy(to, &empty, from, &empty, 4);
    DT_EXPECT_EQ_INT(to[0], 0);
    dti_box_copy(to, &a, from, &a, 4);
    DT_EXPECT(memcmp(to, from, sizeof to) == 0, "a contiguous copy differs");
    return DT_OK;
}

DT_TEST(comm, boxes_are_copied)
{
    dt_test_on_ranks("tp=1", boxes_are_copied, NULL);
}

/* --- its name --------------------------------------------------------------------------------- */

static dt_status has_name(dt_mesh *mesh, const void *arg)
{
    DT_EXPECT_EQ_STR(dti_runtime_world(dt_mesh_runtime(mesh))->ops->name, arg);
    return DT_OK;
}

/* torchrun gives each process its number; mpirun does not. */
DT_TEST(comm, the_world_says_what_joins_its_processes)
{
    const bool alone = dt_test_processes() == 1;

    dt_test_on_ranks("tp=4", has_name,
                     alone                    ? "local"
                     : getenv("RANK") != NULL ? "sockets"
                                              : "mpi");
}
