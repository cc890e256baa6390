/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between meshes: who waits for whom, what is refused. Values and bytes: test_moves.c. */
#include <dtensor/tensor.h>

#include "dtensor/device/device.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* Ranks 0 and 1 to ranks 2 and 1; rank 3 belongs to neither and does not wait. */
static dt_status other_ranks(dt_mesh *world, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(world);
    const dt_placement rows = DT_SHARD(0), columns = DT_SHARD(1), whole = DT_REPLICATE;
    const int to_ranks[] = { 2, 1 }, me = dt_runtime_rank(rt);
    const int64_t shape[] = { 5, 3 };
    DT_HELD(mesh) *from = NULL, *to = NULL;
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "a=2", &from));
    DT_TRY(dt_mesh_create_ranks(rt, "b=2", to_ranks, &to));
    DT_TRY(dt_test_arange(from, &rows, DT_BF16, 2, shape, &x));
    if (me == 3) { /* others are not kept from going on */
        DT_TRY(dt_copy_to(x, to, &columns, &y));
        DT_EXPECT(dt_tensor_local(y)->shape[0] == 0, "rank 3 holds rows");
        return DT_OK;
    }
    DT_TRY(dt_copy_to(x, to, &columns, &y));
    DT_EXPECT(dt_tensor_mesh(y) == to && dt_tensor_extent(y, 0) == 5, "metadata");
    DT_EXPECT(dt_tensor_local(y)->shape[1] == (me == 2   ? 2
                                               : me == 1 ? 1
                                                         : 0),
              "rank %d holds %lld columns", me, (long long)dt_tensor_local(y)->shape[1]);
    DT_TRY(dt_copy_to(y, from, &whole, &z));
    if (me < 2) DT_TRY(dt_test_expect_arange(z));
    return DT_OK;
}

DT_TEST(copy_to, ranks_of_both_meshes_take_part_and_no_other)
{
    dt_test_on_ranks("w=4", other_ranks, NULL);
}

static dt_status terms(dt_mesh *mesh, const void *arg)
{
    const dt_placement partial[] = { DT_PARTIAL(DT_SUM), DT_SHARD(0) }, rows = DT_SHARD(0);
    const int64_t shape[] = { 6, 4 };
    DT_HELD(mesh) *flat = NULL;
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;

    (void)arg;
    DT_TRY(dt_mesh_create(dt_mesh_runtime(mesh), "a=3", &flat));
    DT_TRY(dt_test_arange(mesh, partial, DT_F32, 2, shape, &x));
    DT_TRY(dt_copy_to(x, flat, &rows, &y));
    DT_TRY(dt_full_tensor(y, &z));
    if (dt_mesh_is_member(flat)) DT_TRY(dt_test_expect_arange(z));
    return DT_OK;
}

DT_TEST(copy_to, terms_are_reduced_first)
{
    dt_test_on_ranks("dp=2,tp=2", terms, NULL);
}

static dt_status refusals(dt_mesh *mesh, const void *arg)
{
    const dt_placement rows = DT_SHARD(0), partial = DT_PARTIAL(DT_SUM), far = DT_SHARD(7);
    const dt_placement blocks = DT_SHARD_PACKED(0, 2, 2);
    const int64_t n = 6;
    DT_HELD(mesh) *other = NULL;
    DT_HELD(tensor) *x = NULL, *y = NULL;

    (void)arg;
    DT_TRY(dt_mesh_create_ranks(dt_mesh_runtime(mesh), "b=2", (int[]){ 1, 0 }, &other));
    DT_TRY(dt_zeros(mesh, &rows, DT_F32, 1, &n, &x));
    DT_EXPECT(dt_copy_to(x, other, &partial, &y) == DT_ERR_LAYOUT && y == NULL,
              "a copy became Partial");
    DT_EXPECT(dt_copy_to(x, other, &far, &y) == DT_ERR_LAYOUT && y == NULL, "axis 7");
    DT_EXPECT(dt_copy_to(x, NULL, &rows, &y) == DT_ERR_ARG, "no mesh");
    DT_EXPECT(dt_copy_to(NULL, other, &rows, &y) == DT_ERR_ARG, "no tensor");
    DT_EXPECT(dt_redistribute(x, &blocks, &y) == DT_ERR_SHAPE, "blocks of 4 rows");
    /* the mesh lives on */
    DT_TRY(dt_copy_to(x, other, &rows, &y));
    return DT_OK;
}

DT_TEST(copy_to, refusals_leave_the_meshes_alive)
{
    dt_test_on_ranks("a=2", refusals, NULL);
}

/* Beyond the bound nothing is sent, on any rank; within it the plan obeys. */
static dt_status bounded(dt_mesh *mesh, const void *arg)
{
    const dt_placement partial = DT_PARTIAL(DT_SUM), columns = DT_SHARD(1);
    const int64_t shape[] = { 16, 16 };
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, &partial, DT_F32, 2, shape, &x));
    DT_TRY(dt_mesh_set_move_memory(mesh, 1279));
    DT_EXPECT(dt_redistribute(x, &columns, &y) == DT_ERR_LAYOUT, "1279 bytes");
    DT_TRY(dt_mesh_set_move_memory(mesh, 1280));
    DT_TRY(dt_redistribute(x, &columns, &y));
    DT_TRY(dt_mesh_set_move_memory(mesh, 0));
    DT_TRY(dt_full_tensor(y, &z));
    DT_TRY(dt_test_expect_arange(z));
    return DT_OK;
}

DT_TEST(copy_to, moves_stay_within_the_meshs_memory)
{
    dt_test_on_ranks("a=4", bounded, NULL);
}

/* To the same ranks in another order: only terms reduced by rows stay within the bound. */
static dt_status bounded_copy(dt_mesh *mesh, const void *arg)
{
    static const int reversed[] = { 3, 2, 1, 0 };
    const dt_placement partial = DT_PARTIAL(DT_SUM), rows = DT_SHARD(0), columns = DT_SHARD(1);
    const int64_t shape[] = { 64, 64 };
    const float data[64 * 64] = { 0 };
    const int64_t least = 16384 + 2 * 4096; /* terms, reduced rows, rows on the other mesh */
    DT_HELD(mesh) *other = NULL;
    DT_HELD(tensor) *x = NULL, *y = NULL, *z = NULL;
    dti_device *device;

    (void)arg;
    DT_TRY(dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY(dt_mesh_create_ranks(dt_mesh_runtime(mesh), "b=4", reversed, &other));
    DT_TRY(dt_from_local(mesh, &partial, DT_F32, 2, shape, data, &x));
    DT_TRY(dt_mesh_set_move_memory(mesh, least - 1));
    DT_EXPECT(dt_copy_to(x, other, &rows, &y) == DT_ERR_LAYOUT, "a byte too few");
    DT_TRY(dt_mesh_set_move_memory(mesh, least));
    DT_TRY(dt_copy_to(x, other, &rows, &y));
    DT_EXPECT((int64_t)dti_memory_peak(device->memory) == least, "held %lld bytes",
              (long long)dti_memory_peak(device->memory));
    DT_EXPECT(dt_tensor_local(y)->shape[0] == 16, "rows");
    /* the exchange alone, by the bound of the mesh that the copy goes to */
    DT_TRY(dt_mesh_set_move_memory(mesh, 0));
    DT_TRY(dt_mesh_set_move_memory(other, 2 * 4096 - 1));
    DT_EXPECT(dt_copy_to(y, mesh, &columns, &z) == DT_ERR_LAYOUT, "y and z");
    DT_TRY(dt_mesh_set_move_memory(other, 2 * 4096));
    DT_TRY(dt_copy_to(y, mesh, &columns, &z));
    return DT_OK;
}

DT_TEST(copy_to, copies_stay_within_both_meshes_memory)
{
    dt_test_on_ranks("a=4", bounded_copy, NULL);
}

/* Ranks 0 to 3 hold terms, 3 to 5 want rows. */
typedef struct two_meshes {
    dt_mesh *from, *to;
    dt_tensor *x;
} two_meshes;

static dt_status make_two(dt_mesh *world, two_meshes *m)
{
    const dt_placement partial[] = { DT_PARTIAL(DT_SUM), DT_PARTIAL(DT_SUM) };
    const int64_t shape[] = { 5, 4 };
    dt_runtime *rt = dt_mesh_runtime(world);

    DT_TRY(dt_mesh_create(rt, "a=2,b=2", &m->from));
    DT_TRY(dt_mesh_create_ranks(rt, "c=3", (int[]){ 3, 4, 5 }, &m->to));
    DT_TRY(dt_test_arange(m->from, partial, DT_F32, 2, shape, &m->x));
    return DT_OK;
}

static void release_two(two_meshes *m)
{
    dt_tensor_release(&m->x);
    dt_mesh_release(&m->from);
    dt_mesh_release(&m->to);
}

static dt_status copy_is_right(const two_meshes *m)
{
    const dt_placement rows = DT_SHARD(0);
    DT_HELD(tensor) *y = NULL, *z = NULL;

    DT_TRY(dt_copy_to(m->x, m->to, &rows, &y));
    DT_TRY(dt_full_tensor(y, &z));
    if (dt_mesh_is_member(m->to)) DT_TRY(dt_test_expect_arange(z));
    return DT_OK;
}

/* Default links reduce along axis 1, these along axis 0 (the other dim slow: along axis 1). What a
 * mesh's own ranks know decides for all. */
static dt_status known_to_members(dt_mesh *world, const void *arg)
{
    static const dt_link slow[][2] = { { { 1000, 0.0001 }, { 1000, 10 } },
                                       { { 1000, 10 }, { 1000, 0.0001 } },
                                       { { 0, 10 }, { 0, 0.001 } } };
    const dt_placement rows = DT_SHARD(0);
    DT_ENDS(release_two) two_meshes m = { 0 };
    dt_tensor *y = NULL;

    (void)arg;
    DT_TRY(make_two(world, &m));
    DT_TRY(copy_is_right(&m));
    for (size_t i = 0; i < DT_COUNT(slow); i++) {
        if (dt_mesh_is_member(m.from)) DT_TRY(dt_mesh_set_links(m.from, slow[i]));
        DT_TRY(copy_is_right(&m));
    }
    if (dt_mesh_is_member(m.from)) DT_TRY(dt_mesh_set_move_memory(m.from, 99));
    DT_EXPECT(dt_copy_to(m.x, m.to, &rows, &y) == DT_ERR_LAYOUT, "99 bytes there");
    if (dt_mesh_is_member(m.from)) DT_TRY(dt_mesh_set_move_memory(m.from, 0));
    if (dt_mesh_is_member(m.to)) DT_TRY(dt_mesh_set_move_memory(m.to, 31));
    DT_EXPECT(dt_copy_to(m.x, m.to, &rows, &y) == DT_ERR_LAYOUT, "31 bytes here");
    /* outsiders may say what they like */
    if (!dt_mesh_is_member(m.from)) DT_TRY(dt_mesh_set_move_memory(m.from, 1));
    DT_TRY(dt_mesh_set_move_memory(m.to, dt_mesh_is_member(m.to) ? 1000 : 1));
    DT_TRY(copy_is_right(&m));
    return DT_OK;
}

DT_TEST(copy_to, costs_that_only_members_know_decide_for_all)
{
    dt_test_on_ranks("w=6", known_to_members, NULL);
}

/* A tape counts the reduction on the one mesh and what arrives on the other: rows 0-1, 2-3, 4. */
static dt_status counted(dt_mesh *world, const void *arg)
{
    static const int64_t arrives[6] = { 0, 0, 0, 0, 32, 16 };
    const dt_placement rows = DT_SHARD(0), whole = DT_REPLICATE;
    const int64_t shape[] = { 5, 4 };
    const int me = dt_runtime_rank(dt_mesh_runtime(world));
    DT_ENDS(release_two) two_meshes m = { 0 };
    DT_HELD(tape) *t = NULL;
    DT_HELD(tensor) *r = NULL;
    dt_tensor *same;
    int64_t reductions;

    (void)arg;
    DT_TRY(make_two(world, &m));
    DT_TRY(dt_tape_create(dt_mesh_runtime(world), &t));
    (void)dt_move_to(t, m.x, m.to, &rows);
    DT_TRY(dt_tape_status(t));
    reductions =
        dt_tape_comm(t, DT_COMM_REDUCE_SCATTER).calls + dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls;
    DT_EXPECT((me < 4) == (reductions > 0), "%lld reductions", (long long)reductions);
    DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_TO_ALL).calls == 1, "no exchange");
    dt_tape_reset(t);
    DT_TRY(dt_test_arange(m.from, (dt_placement[]){ whole, whole }, DT_F32, 2, shape, &r));
    (void)dt_move_to(t, r, m.to, &rows);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tape_comm(t, DT_COMM_ALL_TO_ALL).bytes == arrives[me], "%lld bytes on rank %d",
              (long long)dt_tape_comm(t, DT_COMM_ALL_TO_ALL).bytes, me);
    same = dt_move_to(t, r, m.from, (dt_placement[]){ whole, whole });
    DT_EXPECT(same == r, "a copy to the same place");
    DT_EXPECT(dt_move_to(t, NULL, m.to, &rows) == NULL, "no tensor");
    DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "no error");
    return DT_OK;
}

DT_TEST(copy_to, a_tape_counts_copies)
{
    dt_test_on_ranks("w=6", counted, NULL);
}
