/* SPDX-License-Identifier: Apache-2.0
 *
 * Public collectives: every operation on 1 to 4 ranks and over single and several dims, uneven
 * counts, several under way at once, messages, what is refused, and a device that is late. */
#include <dtensor/collectives.h>
#include <dtensor/factories.h>
#include <dtensor/inspect.h>
#include <dtensor/tensor.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"

enum { N = 5, MOST = 8 };

/* A group's value is told from others' by all coordinates of the rank. */
static float value(int rank, int i)
{
    return (float)(100 * rank + i);
}

/* World ranks of the group of `dims`, by place. */
static dt_status members(dt_mesh *mesh, const char *dims, int *ranks, int *size, int *me)
{
    const int64_t mine = dt_runtime_rank(dt_mesh_runtime(mesh));
    int64_t all[MOST];

    *size = dt_group_size(mesh, dims);
    *me = dt_group_place(mesh, dims);
    DT_EXPECT(*size >= 1 && *size <= MOST && *me >= 0 && *me < *size, "%d of %d", *me, *size);
    DT_TRY(dt_all_gather(mesh, dims, &mine, all, 1, DT_I64));
    for (int r = 0; r < *size; r++) ranks[r] = (int)all[r];
    DT_EXPECT_EQ_INT(ranks[*me], mine);
    return DT_OK;
}

static dt_status check_even(dt_mesh *mesh, const char *dims)
{
    int ranks[MOST], n, me;
    float send[MOST * N], recv[MOST * N];

    DT_TRY(members(mesh, dims, ranks, &n, &me));
    DT_TRY(dt_barrier(mesh, dims));
    for (int i = 0; i < MOST * N; i++) send[i] = value(ranks[me], i);
    DT_TRY(dt_all_gather(mesh, dims, send, recv, N, DT_F32));
    for (int i = 0; i < n * N; i++) DT_EXPECT_CLOSE(recv[i], value(ranks[i / N], i % N), 0);
    DT_TRY(dt_all_to_all(mesh, dims, send, recv, N, DT_F32));
    for (int i = 0; i < n * N; i++)
        DT_EXPECT_CLOSE(recv[i], value(ranks[i / N], me * N + i % N), 0);
    DT_TRY(dt_all_reduce(mesh, dims, send, recv, N, DT_F32, DT_MAX));
    for (int i = 0; i < N; i++) {
        float most = value(ranks[0], i);
        for (int r = 1; r < n; r++) most = most < value(ranks[r], i) ? value(ranks[r], i) : most;
        DT_EXPECT_CLOSE(recv[i], most, 0);
    }
    DT_TRY(dt_reduce_scatter(mesh, dims, send, recv, N, DT_F32, DT_SUM));
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int r = 0; r < n; r++) sum += value(ranks[r], me * N + i);
        DT_EXPECT_CLOSE(recv[i], sum, 0);
    }
    for (int root = 0; root < n; root++) {
        for (int i = 0; i < N; i++) recv[i] = value(ranks[me], i);
        DT_TRY(dt_broadcast(mesh, dims, recv, N, DT_F32, root));
        for (int i = 0; i < N; i++) DT_EXPECT_CLOSE(recv[i], value(ranks[root], i), 0);
    }
    DT_TRY(dt_all_reduce(mesh, dims, send, send, N, DT_F32, DT_AVG)); /* in place */
    for (int i = 0; i < N; i++) {
        float sum = 0;
        for (int r = 0; r < n; r++) sum += value(ranks[r], i);
        DT_EXPECT_CLOSE(send[i], sum / (float)n, 1e-4);
    }
    return DT_OK;
}

/* Rank r gives r + 1 elements to all, or to each, with a gap before each block. */
static dt_status check_uneven(dt_mesh *mesh, const char *dims)
{
    int ranks[MOST], n, me;
    int64_t counts[MOST], displs[MOST], mine[MOST], all = 0;
    float send[64], recv[64];
    dt_collective c = { .op = DT_CALL_ALL_GATHER,
                        .dtype = DT_F32,
                        .send = send,
                        .recv = recv,
                        .counts = counts,
                        .displs = displs };

    DT_TRY(members(mesh, dims, ranks, &n, &me));
    for (int r = 0; r < n; r++) {
        counts[r] = r + 1;
        mine[r] = me + 1;
        displs[r] = all + 1;
        all += counts[r] + 1;
    }
    for (int i = 0; i < 64; i++) send[i] = value(ranks[me], i), recv[i] = -1;
    DT_TRY(dt_collective_run(mesh, dims, &c));
    for (int r = 0; r < n; r++) {
        DT_EXPECT_CLOSE(recv[displs[r] - 1], -1, 0);
        for (int i = 0; i < r + 1; i++) DT_EXPECT_CLOSE(recv[displs[r] + i], value(ranks[r], i), 0);
    }
    c.op = DT_CALL_ALL_TO_ALL;
    c.send_counts = mine;
    DT_TRY(dt_collective_run(mesh, dims, &c));
    for (int r = 0; r < n; r++)
        for (int i = 0; i < r + 1; i++)
            DT_EXPECT_CLOSE(recv[displs[r] + i], value(ranks[r], me * (r + 1) + i), 0);
    c = (dt_collective){
        .op = DT_CALL_REDUCE_SCATTER, .dtype = DT_F32, .send = send, .recv = recv, .counts = counts
    };
    DT_TRY(dt_collective_run(mesh, dims, &c));
    for (int i = 0; i < me + 1; i++) {
        float sum = 0;
        for (int r = 0; r < n; r++) sum += value(ranks[r], me * (me + 1) / 2 + i);
        DT_EXPECT_CLOSE(recv[i], sum, 0);
    }
    return DT_OK;
}

static dt_status all_operations(dt_mesh *mesh, const void *arg)
{
    const char *const *dims = arg;

    for (; *dims != NULL; dims++) {
        DT_TRY(check_even(mesh, *dims));
        DT_TRY(check_uneven(mesh, *dims));
    }
    return check_even(mesh, NULL);
}

DT_TEST(collectives, move_and_reduce_over_any_dims)
{
    static const char *const one[] = { "tp", "", NULL };
    static const char *const two[] = { "tp", "dp", "dp,tp", NULL };
    static const char *const three[] = { "a", "a,c", "b,c", NULL };

    dt_test_on_ranks("tp=1", all_operations, one);
    dt_test_on_ranks("tp=2", all_operations, one);
    dt_test_on_ranks("tp=3", all_operations, one);
    dt_test_on_ranks("dp=2,tp=2", all_operations, two);
    dt_test_on_ranks("a=2,b=2,c=2", all_operations, three);
}

/* Around the ring, both messages started first. */
static dt_status ring(dt_mesh *mesh, const void *arg)
{
    const int n = dt_group_size(mesh, "tp"), me = dt_group_place(mesh, "tp");
    const int to = (me + 1) % n, from = (me + n - 1) % n;
    float out[N], in[N];
    dt_request *sent, *received;

    (void)arg;
    for (int i = 0; i < N; i++) out[i] = value(me, i);
    DT_TRY(dt_collective_start(
        mesh, "tp", &(dt_collective){ .op = DT_CALL_RECV, .peer = from, .recv = in, .count = N },
        &received));
    DT_TRY(dt_collective_start(
        mesh, "tp", &(dt_collective){ .op = DT_CALL_SEND, .peer = to, .send = out, .count = N },
        &sent));
    DT_TRY(dt_collective_wait(&received));
    DT_TRY(dt_collective_wait(&sent));
    DT_EXPECT(sent == NULL && received == NULL, "requests are gone");
    for (int i = 0; i < N; i++) DT_EXPECT_CLOSE(in[i], value(from, i), 0);
    if (me == 0) DT_TRY(dt_send(mesh, "tp", out, N, DT_F32, 1));
    if (me == 1) {
        DT_TRY(dt_recv(mesh, "tp", in, N, DT_F32, 0));
        for (int i = 0; i < N; i++) DT_EXPECT_CLOSE(in[i], value(0, i), 0);
    }
    return DT_OK;
}

DT_TEST(collectives, messages_go_between_two)
{
    dt_test_on_ranks("tp=2", ring, NULL);
    dt_test_on_ranks("tp=4", ring, NULL);
}

/* Several under way on two groups, with arrays that are gone by then, waited for in another order;
 * a move in between. */
static dt_status several(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows[] = { DT_SHARD(0), DT_SHARD(0) };
    const int64_t shape[] = { 8 };
    dt_request *request[6];
    int32_t send[6], recv[6][2];
    dt_tensor *x, *y;

    (void)arg;
    for (int i = 0; i < 6; i++) {
        int64_t counts[2] = { 1, 1 };
        send[i] = 10 * dt_group_place(mesh, NULL) + i;
        DT_TRY(dt_collective_start(mesh, i % 2 ? "tp" : "dp",
                                   &(dt_collective){ .op = DT_CALL_ALL_GATHER,
                                                     .dtype = DT_I32,
                                                     .send = &send[i],
                                                     .recv = recv[i],
                                                     .counts = counts },
                                   &request[i]));
        counts[0] = counts[1] = 77;
    }
    DT_TRY(dt_zeros(mesh, rows, DT_F32, 1, shape, &x));
    DT_TRY(dt_full_tensor(x, &y));
    dt_tensor_release(&y);
    dt_tensor_release(&x);
    for (int i = 5; i >= 0; i--) DT_TRY(dt_collective_wait(&request[i]));
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 2; k++) {
            const int dp = i % 2 ? dt_mesh_coord(mesh, 0) : k;
            const int tp = i % 2 ? k : dt_mesh_coord(mesh, 1);
            DT_EXPECT_EQ_INT(recv[i][k], 10 * (2 * dp + tp) + i);
        }
    DT_TRY(dt_collective_wait(&request[0])); /* NULL by now */
    return DT_OK;
}

DT_TEST(collectives, several_are_under_way_and_waited_for_in_any_order)
{
    dt_test_on_ranks("dp=2,tp=2", several, NULL);
}

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    float x[4] = { 0 };
    const int64_t negative[] = { 1, -1 };
    dt_request *r = NULL;
    dt_collective c = { .op = DT_CALL_ALL_GATHER, .send = x, .recv = x, .counts = negative };

    (void)arg;
    DT_EXPECT_STATUS(dt_barrier(NULL, NULL), DT_ERR_ARG, "mesh or call is NULL");
    DT_EXPECT_STATUS(dt_barrier(mesh, "pp"), DT_ERR_ARG, "dims \"pp\": the mesh has no dim \"pp\"");
    DT_EXPECT_STATUS(dt_barrier(mesh, "tp,"), DT_ERR_ARG, "no dim \"\"");
    DT_EXPECT_STATUS(dt_barrier(mesh, "tp,dp"), DT_ERR_ARG, "\"dp\" stands after \"tp\"");
    DT_EXPECT_STATUS(dt_barrier(mesh, "dp,dp"), DT_ERR_ARG, "name each dim once");
    DT_EXPECT_STATUS(dt_broadcast(mesh, "tp", x, 1, DT_F32, 2), DT_ERR_ARG,
                     "rank 2 is not in 0..1");
    DT_EXPECT_STATUS(dt_all_reduce(mesh, "tp", NULL, x, 1, DT_F32, DT_SUM), DT_ERR_ARG,
                     "send is NULL for 1 elements");
    DT_EXPECT_STATUS(dt_all_reduce(mesh, "tp", x, x, 1, DT_U8, DT_SUM), DT_ERR_ARG, "not reduced");
    DT_EXPECT_STATUS(dt_all_reduce(mesh, "tp", x, x, -1, DT_F32, DT_SUM), DT_ERR_ARG, "is -1");
    DT_EXPECT_STATUS(dt_send(mesh, "tp", x, 1, DT_F32, dt_group_place(mesh, "tp")), DT_ERR_ARG,
                     "names itself");
    DT_EXPECT_STATUS(dt_collective_start(mesh, "tp", &c, &r), DT_ERR_ARG, "counts[1] is -1");
    c.op = DT_N_CALLS;
    DT_EXPECT_STATUS(dt_collective_start(mesh, "tp", &c, &r), DT_ERR_ARG, "is unknown");
    DT_EXPECT(r == NULL, "nothing was started");
    DT_EXPECT_EQ_INT(dt_group_size(mesh, "tp,dp"), -1);
    DT_EXPECT_EQ_INT(dt_group_size(NULL, NULL), -1);
    DT_EXPECT_EQ_INT(dt_group_place(mesh, "x"), -1);
    DT_EXPECT_EQ_INT(dt_group_size(mesh, "dp,tp"), 4);
    return dt_all_reduce(mesh, NULL, NULL, NULL, 0, DT_F32, DT_SUM); /* nothing at all is fine */
}

DT_TEST(collectives, mistakes_of_all_are_named_and_harm_nobody)
{
    dt_test_on_ranks("dp=2,tp=2", refusals, NULL);
}

static dt_status disagree(dt_mesh *mesh, const void *arg)
{
    float x[8] = { 0 };

    (void)arg;
    return dt_all_reduce(mesh, "tp", x, x, 2 + dt_mesh_coord(mesh, 0), DT_F32, DT_SUM);
}

static dt_status outsider(dt_mesh *mesh, const void *arg)
{
    const int first[] = { 0 };
    dt_mesh *part;
    dt_status st;

    (void)arg;
    DT_TRY(dt_mesh_create_ranks(dt_mesh_runtime(mesh), "tp=1", first, &part));
    st = dt_barrier(part, NULL);
    dt_mesh_release(&part);
    if (dt_mesh_coord(mesh, 0) == 0) return st;
    DT_EXPECT_STATUS(st, DT_ERR_ARG, "rank 1 is not a member of the mesh");
    return DT_OK;
}

DT_TEST(collectives, ranks_that_disagree_are_told_apart)
{
    dt_test_on_ranks_fail("tp=2", disagree, NULL, DT_ERR_ARG, "all_reduce of 3 f32");
    dt_test_on_ranks("tp=2", outsider, NULL);
}

/* Nothing follows the call, so that it is the call that finds out. */
typedef struct clash {
    dt_collective call; /* of all but the last rank */
    dt_collective last;
} clash;

static dt_status clashing(dt_mesh *mesh, const void *arg)
{
    const clash *k = arg;
    const bool last = dt_mesh_coord(mesh, 0) + 1 == dt_mesh_n_ranks(mesh);
    dt_collective call = last ? k->last : k->call;
    int64_t send[16] = { 0 }, recv[16];

    call.send = call.op == DT_CALL_BROADCAST ? NULL : send;
    call.recv = recv;
    return dt_collective_run(mesh, NULL, &call);
}

DT_TEST(collectives, reductions_dtypes_and_counts_that_differ_are_refused)
{
    static const dt_collective_op reductions[] = { DT_CALL_ALL_REDUCE, DT_CALL_REDUCE_SCATTER };
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    for (int check = 0; check < 2; check++) {
        o.check = check ? "agree" : "none";
        for (size_t i = 0; i < DT_COUNT(reductions); i++) {
            clash k = { { .op = reductions[i], .count = 2 }, { .op = reductions[i], .count = 2 } };
            k.last.reduce = DT_MAX;
            DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", clashing, &k), DT_ERR_ARG, "differs: rank");
        }
        for (int op = DT_CALL_BROADCAST; op <= DT_CALL_ALL_TO_ALL; op++) {
            clash k = { { .op = (dt_collective_op)op, .count = 2 },
                        { .op = (dt_collective_op)op, .count = 2, .dtype = DT_I32 } };
            DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", clashing, &k), DT_ERR_ARG, "differs: rank");
            k.last = k.call;
            k.last.count = 1;
            DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", clashing, &k), DT_ERR_ARG, "differs: rank");
        }
    }
}

/* Of a broadcast: who is named as the root by each rank, and what is sent. */
typedef enum sending { SMALL, LARGE, WORK } sending;
typedef struct roots {
    int of[3];
    sending what;
} roots;

static dt_status name_roots(dt_mesh *mesh, const void *arg)
{
    enum { MUCH = 1 << 20 };
    const roots *k = arg;
    const int root = k->of[dt_mesh_coord(mesh, 0)];
    int64_t n = 8;
    DT_FREED void *data = NULL;

    DT_TRY(dti_alloc_array(MUCH, 1, &data));
    if (k->what == WORK)
        DT_TRY(dt_mesh_broadcast_work(mesh, root, data, MUCH, &n));
    else
        DT_TRY(dt_broadcast(mesh, NULL, data, k->what == LARGE ? MUCH : 5, DT_U8, root));
    return DT_OK;
}

/* Without the check processes find out by the next call. */
DT_TEST(collectives, roots_that_differ_are_refused)
{
    static const int named[][3] = { { 0, 1, 0 }, { 1, 0, 0 }, { 0, 1, 2 }, { 0, 0, 1 },
                                    { 0, 0, 2 }, { 1, 2, 0 }, { 0, 1, 1 }, { 2, 1, 2 } };
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    for (int check = dt_test_processes() > 1; check < 2; check++)
        for (size_t i = 0; i < DT_COUNT(named); i++)
            for (sending what = SMALL; what <= WORK; what++) {
                roots k = { { named[i][0], named[i][1], named[i][2] }, what };
                o.check = check ? "agree" : "none";
                DT_ASSERT_STATUS(dt_test_run(&o, i < 2 ? "tp=2" : "tp=3", name_roots, &k),
                                 DT_ERR_ARG, "as the source");
            }
}

static dt_status ask_for_items(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 4 }, index[] = { dt_mesh_coord(mesh, 0) };
    dt_tensor *x;
    dt_status st;
    double v;

    (void)arg;
    DT_TRY(dt_ones(mesh, (dt_placement[]){ DT_SHARD(0) }, DT_F32, 1, shape, &x));
    st = dt_item(x, index, &v);
    dt_tensor_release(&x);
    return st;
}

DT_TEST(collectives, ranks_that_ask_for_different_items_are_told_so)
{
    dt_run_options o = DT_TEST_RUN_OPTIONS;

    o.check = "agree"; /* both lie on rank 0 */
    DT_ASSERT_STATUS(dt_test_run(&o, "tp=2", ask_for_items, NULL), DT_ERR_ARG, "(item at ");
}

/* What each rank has started and not waited for. */
typedef struct unwaited {
    dt_request *request[2];
    float x[2][4];
} unwaited;

static dt_status unfinished(dt_mesh *mesh, const void *arg)
{
    unwaited *u = *(unwaited *const *)arg;
    const int me = dt_mesh_coord(mesh, 0);
    const dt_collective sum = {
        .op = DT_CALL_ALL_REDUCE, .send = u->x[me], .recv = u->x[me], .count = 4
    };

    return dt_collective_start(mesh, NULL, &sum, &u->request[me]);
}

DT_TEST(collectives, a_rank_waits_for_what_it_has_started)
{
    unwaited u = { 0 }, *const arg = &u;

    dt_test_on_ranks_fail("tp=2", unfinished, &arg, DT_ERR_INTERNAL, "not released");
    for (int r = 0; r < 2; r++) DT_ASSERT_OK(dt_collective_wait(&u.request[r])); /* long over */
}

/* --- a device that is late -------------------------------------------------------------------- */

/* Of this rank: what is put on its stream is done when somebody waits for the stream. */
static _Thread_local struct {
    dti_comm *comm;
    dti_comm_call call;
} put_off;

static dt_status put_off_call(dti_device *d, dti_comm *comm, const dti_comm_call *call)
{
    (void)d;
    put_off.comm = comm;
    put_off.call = *call;
    return DT_OK;
}

static dt_status await_stream(dti_device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    if (put_off.comm != NULL) DT_TRY(dti_comm_run(put_off.comm, &put_off.call));
    put_off.comm = NULL;
    if (bytes > 0) memcpy(to, from, bytes);
    return DT_OK;
}

static dt_status awaited(dt_mesh *mesh, const void *arg)
{
    int32_t mine = 1 + dt_mesh_coord(mesh, 0), sum = 0, on_host = 0;
    const int32_t n = dt_mesh_n_ranks(mesh);
    const dti_device_ops *real;
    dti_device_ops late;
    dt_status st = DT_OK;
    dti_device *d;

    (void)arg;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &d));
    real = d->ops;
    late = *real;
    late.host_visible = false;
    late.communicate = put_off_call;
    late.read = await_stream;
    d->ops = &late;
    DT_TRY_TO(done, st, dt_all_reduce(mesh, NULL, &mine, &sum, 1, DT_I32, DT_SUM));
    DT_EXPECT_TO(done, st, sum == n * (n + 1) / 2, "%d when the wait has returned", (int)sum);
    DT_TRY_TO(done, st,
              dt_collective_run(mesh, NULL,
                                &(dt_collective){ .op = DT_CALL_ALL_REDUCE,
                                                  .dtype = DT_I32,
                                                  .send = &mine,
                                                  .recv = &on_host,
                                                  .count = 1,
                                                  .on_host = true }));
    DT_EXPECT_TO(done, st, on_host == sum && put_off.comm == NULL, "of the host");
done:
    d->ops = real;
    return st;
}

DT_TEST(collectives, a_wait_waits_for_the_stream_of_a_device)
{
    dt_test_on_ranks("tp=2", awaited, NULL);
}
