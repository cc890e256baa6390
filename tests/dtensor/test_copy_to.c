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
    dt_mesh *from = NULL, *to = NULL;
    dt_tensor *x = NULL, *y = NULL, *z = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_mesh_create(rt, "a=2", &from));
    DT_TRY_TO(done, st, dt_mesh_create_ranks(rt, "b=2", to_ranks, &to));
    DT_TRY_TO(done, st, dt_test_arange(from, &rows, DT_BF16, 2, shape, &x));
    if (me == 3) { /* others are not kept from going on */
        DT_TRY_TO(done, st, dt_copy_to(x, to, &columns, &y));
        DT_EXPECT_TO(done, st, dt_tensor_local(y)->shape[0] == 0, "rank 3 holds rows");
        goto done;
    }
    DT_TRY_TO(done, st, dt_copy_to(x, to, &columns, &y));
    DT_EXPECT_TO(done, st, dt_tensor_mesh(y) == to && dt_tensor_extent(y, 0) == 5, "metadata");
    DT_EXPECT_TO(done, st,
                 dt_tensor_local(y)->shape[1] == (me == 2   ? 2
                                                  : me == 1 ? 1
                                                            : 0),
                 "rank %d holds %lld columns", me, (long long)dt_tensor_local(y)->shape[1]);
    DT_TRY_TO(done, st, dt_copy_to(y, from, &whole, &z));
    if (me < 2) DT_TRY_TO(done, st, dt_test_expect_arange(z));
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_tensor_release(&z);
    dt_mesh_release(&from);
    dt_mesh_release(&to);
    return st;
}

DT_TEST(copy_to, ranks_of_both_meshes_take_part_and_no_other)
{
    dt_test_on_ranks("w=4", other_ranks, NULL);
}

static dt_status terms(dt_mesh *mesh, const void *arg)
{
    const dt_placement partial[] = { DT_PARTIAL(DT_SUM), DT_SHARD(0) }, rows = DT_SHARD(0);
    const int64_t shape[] = { 6, 4 };
    dt_tensor *x = NULL, *y = NULL, *z = NULL;
    dt_mesh *flat = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_mesh_create(dt_mesh_runtime(mesh), "a=3", &flat));
    DT_TRY_TO(done, st, dt_test_arange(mesh, partial, DT_F32, 2, shape, &x));
    DT_TRY_TO(done, st, dt_copy_to(x, flat, &rows, &y));
    DT_TRY_TO(done, st, dt_full_tensor(y, &z));
    if (dt_mesh_is_member(flat)) DT_TRY_TO(done, st, dt_test_expect_arange(z));
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_tensor_release(&z);
    dt_mesh_release(&flat);
    return st;
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
    dt_mesh *other = NULL;
    dt_tensor *x = NULL, *y = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st,
              dt_mesh_create_ranks(dt_mesh_runtime(mesh), "b=2", (int[]){ 1, 0 }, &other));
    DT_TRY_TO(done, st, dt_zeros(mesh, &rows, DT_F32, 1, &n, &x));
    DT_EXPECT_TO(done, st, dt_copy_to(x, other, &partial, &y) == DT_ERR_LAYOUT && y == NULL,
                 "a copy became Partial");
    DT_EXPECT_TO(done, st, dt_copy_to(x, other, &far, &y) == DT_ERR_LAYOUT && y == NULL, "axis 7");
    DT_EXPECT_TO(done, st, dt_copy_to(x, NULL, &rows, &y) == DT_ERR_ARG, "no mesh");
    DT_EXPECT_TO(done, st, dt_copy_to(NULL, other, &rows, &y) == DT_ERR_ARG, "no tensor");
    DT_EXPECT_TO(done, st, dt_redistribute(x, &blocks, &y) == DT_ERR_SHAPE, "blocks of 4 rows");
    /* the mesh lives on */
    DT_TRY_TO(done, st, dt_copy_to(x, other, &rows, &y));
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_mesh_release(&other);
    return st;
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
    dt_tensor *x = NULL, *y = NULL, *z = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dt_test_arange(mesh, &partial, DT_F32, 2, shape, &x));
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, 1279));
    DT_EXPECT_TO(done, st, dt_redistribute(x, &columns, &y) == DT_ERR_LAYOUT, "1279 bytes");
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, 1280));
    DT_TRY_TO(done, st, dt_redistribute(x, &columns, &y));
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, 0));
    DT_TRY_TO(done, st, dt_full_tensor(y, &z));
    DT_TRY_TO(done, st, dt_test_expect_arange(z));
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_tensor_release(&z);
    return st;
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
    dt_tensor *x = NULL, *y = NULL, *z = NULL;
    dt_mesh *other = NULL;
    dt_status st = DT_OK;
    dti_device *device;

    (void)arg;
    DT_TRY_TO(done, st, dti_device_of(dt_mesh_runtime(mesh), &device));
    DT_TRY_TO(done, st, dt_mesh_create_ranks(dt_mesh_runtime(mesh), "b=4", reversed, &other));
    DT_TRY_TO(done, st, dt_from_local(mesh, &partial, DT_F32, 2, shape, data, &x));
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, least - 1));
    DT_EXPECT_TO(done, st, dt_copy_to(x, other, &rows, &y) == DT_ERR_LAYOUT, "a byte too few");
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, least));
    DT_TRY_TO(done, st, dt_copy_to(x, other, &rows, &y));
    DT_EXPECT_TO(done, st, (int64_t)dti_memory_peak(device->memory) == least, "held %lld bytes",
                 (long long)dti_memory_peak(device->memory));
    DT_EXPECT_TO(done, st, dt_tensor_local(y)->shape[0] == 16, "rows");
    /* the exchange alone, by the bound of the mesh that the copy goes to */
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(mesh, 0));
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(other, 2 * 4096 - 1));
    DT_EXPECT_TO(done, st, dt_copy_to(y, mesh, &columns, &z) == DT_ERR_LAYOUT, "y and z");
    DT_TRY_TO(done, st, dt_mesh_set_move_memory(other, 2 * 4096));
    DT_TRY_TO(done, st, dt_copy_to(y, mesh, &columns, &z));
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_tensor_release(&z);
    dt_mesh_release(&other);
    return st;
}

DT_TEST(copy_to, copies_stay_within_both_meshes_memory)
{
    dt_test_on_ranks("a=4", bounded_copy, NULL);
}
