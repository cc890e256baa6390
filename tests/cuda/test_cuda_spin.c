/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums over ranks by kernels that wait for each other: the module's own, on one device or two. */
#include <pthread.h>
#include <string.h>

#include "mesh/runtime.h"
#include "tests/support/comm_model.h"
#include "tests/support/cuda.h"

enum { MAX_SIZE = 8, SOON_MS = 60 };

static int n_devices(const dti_cuda_module *m)
{
    dti_cuda_versions v;

    m->versions(&v);
    return v.n_devices;
}

static void on_meshes(const char *const *meshes,
                      dt_status (*body)(dt_mesh *, const dti_cuda_place *))
{
    const dti_cuda_module *m = dt_test_cuda_module();
    const comm_devices d = { m, "cuda_local_spin", n_devices(m), body };

    dt_test_cuda_needs_eager(m);
    for (; *meshes != NULL; meshes++) dt_test_on_ranks(*meshes, comm_on_devices, &d);
}

/* --- results ---------------------------------------------------------------------------------- */

DT_TEST(cuda_spin, every_operation_dtype_and_count)
{
    static const char *const meshes[] = { "tp=1", "tp=3", NULL };

    on_meshes(meshes, comm_device_table);
}

static dti_comm *all_dims_comm(dt_mesh *mesh)
{
    dti_comm *c = NULL;

    return dti_mesh_comm(mesh, (1u << dt_mesh_n_dims(mesh)) - 1, &c) == DT_OK ? c : NULL;
}

/* Every dtype and reduction once, at sizes around a pack, a block and both thresholds. */
static dt_status sums(dt_mesh *mesh, const dti_cuda_place *place)
{
    static const int64_t counts[] = { 1, 3, 17, 2047, 9001, 70003, 140007 };
    static const dt_dtype dtypes[] = { DT_F32, DT_BF16, DT_F16, DT_F64, DT_I32, DT_I64 };
    dti_comm *c = all_dims_comm(mesh);

    for (int i = 0; i < (int)DT_COUNT(counts); i++)
        for (int k = 0; k < 2; k++) {
            comm_case one = { .op = DTI_COMM_ALL_REDUCE,
                              .dtype = dtypes[(i + 3 * k) % (int)DT_COUNT(dtypes)],
                              .reduce = (dt_reduce)((i + k) % DT_N_REDUCES),
                              .n = counts[i],
                              .in_place = (i + k) % 2 == 0,
                              .salt = (uint32_t)(10 * i + k),
                              .place = place };
            DT_TRY(comm_trial_run(c, &one));
        }
    return DT_OK;
}

DT_TEST(cuda_spin, sums_in_one_step_and_in_two)
{
    static const char *const meshes[] = { "tp=2", "tp=3", "tp=8", NULL };

    on_meshes(meshes, sums);
}

/* Longer than any area: between events. */
static dt_status long_sum(dt_mesh *mesh, const dti_cuda_place *place)
{
    const comm_case one = { .op = DTI_COMM_ALL_REDUCE,
                            .dtype = DT_F32,
                            .n = DTI_CUDA_SPIN_SUM_BYTES / 4 + 1,
                            .place = place };

    return comm_trial_run(all_dims_comm(mesh), &one);
}

DT_TEST(cuda_spin, a_sum_that_is_too_long_for_the_kernels)
{
    static const char *const meshes[] = { "tp=2", NULL };

    on_meshes(meshes, long_sum);
}

/* One after the other on two communicators, with nobody waiting in between: a rank may be an
 * operation ahead, and no more. */
static dt_status back_to_back(dt_mesh *mesh, const dti_cuda_place *place)
{
    enum { ROUNDS = 8, N = 333 };
    comm_trial t[ROUNDS][2];
    dti_comm *comms[2];

    DT_TRY(dti_mesh_comm(mesh, 1, &comms[0]));
    DT_TRY(dti_mesh_comm(mesh, 3, &comms[1]));
    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < 2; k++) {
            const comm_case one = { .op = DTI_COMM_ALL_REDUCE,
                                    .dtype = DT_BF16,
                                    .n = N + 50 * i * (i % 3),
                                    .salt = (uint32_t)(i * 2 + k),
                                    .place = place };
            DT_TRY(comm_trial_start(comms[k], &one, &t[i][k]));
        }
    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < 2; k++) DT_TRY(comm_trial_finish(comms[k], &t[i][k]));
    return DT_OK;
}

DT_TEST(cuda_spin, back_to_back_on_interleaved_communicators)
{
    static const char *const meshes[] = { "dp=3,tp=2", NULL };

    on_meshes(meshes, back_to_back);
}

static dt_status random_steps(dt_mesh *mesh, const dti_cuda_place *place)
{
    return comm_random_steps(mesh, 31337, 60, place);
}

DT_TEST(cuda_spin, random_operations_of_hosts_and_devices)
{
    static const char *const meshes[] = { "dp=2,tp=2", NULL };

    on_meshes(meshes, random_steps);
}

/* --- the module by itself --------------------------------------------------------------------- */

typedef struct side {
    const dti_cuda_module *m;
    dti_cuda *c;
    dti_cuda_circle with;
    void *data;
} side;

/* Ranks of a circle, which the test's thread plays in turn. */
static void open_sides(side *s, int size)
{
    const dti_cuda_module *m = dt_test_cuda_module();
    void *stop = NULL;

    dt_test_cuda_needs_eager(m);
    for (int r = 0; r < size; r++) {
        s[r] = (side){ .m = m, .c = dt_test_cuda_open(m) };
        DT_ASSERT_CUDA(m, m->alloc(s[r].c, m->spin_bytes(), DTI_CUDA_DEVICE, &s[r].with.areas[r]));
        DT_ASSERT_CUDA(m, m->clear(s[r].c, s[r].with.areas[r], DTI_CUDA_SPIN_HEAD_BYTES));
        DT_ASSERT_CUDA(m, m->alloc(s[r].c, sizeof(uint32_t), DTI_CUDA_PINNED, &stop));
        DT_ASSERT_CUDA(m, m->alloc(s[r].c, MAX_SIZE * sizeof(float), DTI_CUDA_DEVICE, &s[r].data));
        DT_ASSERT_CUDA(m, m->clear(s[r].c, s[r].data, MAX_SIZE * sizeof(float)));
        DT_ASSERT_CUDA(m, m->sync(s[r].c));
        s[r].with.stop = stop;
        *s[r].with.stop = 0;
        s[r].with.rank = r;
        s[r].with.size = size;
        s[r].with.limit_ms = 30000;
        s[r].with.crowded = true;
    }
    for (int r = 0; r < size; r++)
        for (int k = 0; k < size; k++) {
            s[r].with.areas[k] = s[k].with.areas[k];
            s[r].with.names[k] = 100 + k;
        }
}

static void close_sides(side *s, int size)
{
    for (int r = 0; r < size; r++) {
        s[r].m->release(s[r].c, DTI_CUDA_DEVICE, s[r].with.areas[r]);
        s[r].m->release(s[r].c, DTI_CUDA_DEVICE, s[r].data);
        s[r].m->release(s[r].c, DTI_CUDA_PINNED, s[r].with.stop);
        s[r].m->close(s[r].c);
    }
}

static int add(side *s, int64_t n)
{
    const dti_cuda_spin_job job = { DT_F32, DT_SUM, n, s->data, s->data };

    return s->m->spin_sum(s->c, &s->with, &job);
}

DT_TEST(cuda_spin, a_rank_that_does_not_come_is_named_by_the_kernel)
{
    side s[2];

    open_sides(s, 2);
    s[0].with.limit_ms = SOON_MS;
    DT_ASSERT_CUDA(s[0].m, add(&s[0], 3));
    DT_ASSERT_CUDA_FAILS(s[0].m, s[0].m->sync(s[0].c),
                         "kernel 1 of those that wait for other ranks has waited 60 ms for rank "
                         "101, which did not come");
    DT_ASSERT_EQ_INT(*s[0].with.stop, DTI_CUDA_SPIN_FAULT);
    s[0].with.limit_ms = 1000000; /* what follows does not wait again */
    DT_ASSERT_CUDA(s[0].m, add(&s[0], 3));
    DT_ASSERT_CUDA(s[0].m, s[0].m->spin_meet(s[0].c, &s[0].with));
    DT_ASSERT_CUDA(s[0].m, s[0].m->sync(s[0].c));
    close_sides(s, 2);
}

DT_TEST(cuda_spin, kernels_end_when_the_host_stops_them)
{
    side s[2];
    bool done = true;

    open_sides(s, 2);
    s[0].with.limit_ms = 1000000;
    DT_ASSERT_CUDA(s[0].m, add(&s[0], 3));
    for (int i = 0; i < 20; i++) DT_ASSERT_CUDA(s[0].m, s[0].m->done(s[0].c, &done));
    DT_ASSERT(!done);
    __atomic_store_n(s[0].with.stop, 1u, __ATOMIC_RELEASE);
    DT_ASSERT_CUDA(s[0].m, s[0].m->sync(s[0].c));
    close_sides(s, 2);
}

DT_TEST(cuda_spin, sums_of_other_lengths_are_told_apart)
{
    side s[2];

    open_sides(s, 2);
    DT_ASSERT_CUDA(s[0].m, add(&s[0], 3));
    DT_ASSERT_CUDA(s[1].m, add(&s[1], 4));
    DT_ASSERT_CUDA_FAILS(s[0].m, s[0].m->sync(s[0].c), "differs from that of rank 101");
    DT_ASSERT_CUDA_FAILS(s[1].m, s[1].m->sync(s[1].c), "differs from that of rank 100");
    close_sides(s, 2);
}

DT_TEST(cuda_spin, what_no_kernel_can_do_is_refused)
{
    side s[1];
    dti_cuda_spin_job job = { DT_F32, DT_SUM, 3, NULL, NULL };

    open_sides(s, 1);
    s->with.size = 9;
    DT_ASSERT_CUDA_FAILS(s->m, s->m->spin_sum(s->c, &s->with, &job), "9 ranks");
    DT_ASSERT_CUDA_FAILS(s->m, s->m->spin_meet(s->c, &s->with), "takes 1 to 8");
    s->with.size = 1;
    job.n = DTI_CUDA_SPIN_SUM_BYTES / 4 + 1;
    DT_ASSERT_CUDA_FAILS(s->m, s->m->spin_sum(s->c, &s->with, &job), "8388608 bytes at most");
    job.n = 3;
    job.dtype = DT_U8;
    DT_ASSERT_CUDA_FAILS(s->m, s->m->spin_sum(s->c, &s->with, &job), "a sum of u8");
    close_sides(s, 1);
}

/* Each rank plays a graph of its own again and again: counters go on, results follow the terms. */
DT_TEST(cuda_spin, recorded_sums_are_played_again_and_again)
{
    enum { SIZE = 3, ROUNDS = 7, N = 5 };
    dti_cuda_graph *graphs[SIZE] = { NULL };
    side s[SIZE];

    open_sides(s, SIZE);
    for (int r = 0; r < SIZE; r++) {
        DT_ASSERT_CUDA(s[r].m, s[r].m->capture_begin(s[r].c));
        for (int k = 0; k < 3; k++) DT_ASSERT_CUDA(s[r].m, add(&s[r], N));
        DT_ASSERT_CUDA(s[r].m, s[r].m->capture_end(s[r].c, &graphs[r]));
    }
    for (int round = 1; round <= ROUNDS; round++) {
        float got[N];
        for (int r = 0; r < SIZE; r++) {
            float own[N];
            for (int i = 0; i < N; i++) own[i] = (float)(round * 10 + r + i);
            DT_ASSERT_CUDA(s[r].m, s[r].m->copy(s[r].c, s[r].data, own, sizeof own, DTI_CUDA_UP));
            DT_ASSERT_CUDA(s[r].m, s[r].m->graph_launch(s[r].c, graphs[r]));
            if (round % 2 == 0) DT_ASSERT_CUDA(s[r].m, add(&s[r], N)); /* and one between */
        }
        for (int r = 0; r < SIZE; r++) {
            const float times = round % 2 == 0 ? 27.0f : 9.0f;
            DT_ASSERT_CUDA(s[r].m, s[r].m->copy(s[r].c, got, s[r].data, sizeof got, DTI_CUDA_DOWN));
            for (int i = 0; i < N; i++)
                DT_ASSERT(got[i] == times * (float)(3 * (round * 10 + i) + 3));
        }
    }
    for (int r = 0; r < SIZE; r++) s[r].m->graph_destroy(graphs[r]);
    close_sides(s, SIZE);
}
