/* SPDX-License-Identifier: Apache-2.0
 *
 * Dry tensors against a run: the same calls on tensors without bytes give the same shapes, layouts,
 * dtypes, counters, memory and errors, on every rank. */
#include <dtensor/ops.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

static dt_status dry_mesh(dt_mesh *mesh, dt_runtime **rt, dt_mesh **out)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;

    o.n_ranks = dt_runtime_size(dt_mesh_runtime(mesh));
    DT_TRY(dt_runtime_create_dry(&o, dt_runtime_rank(dt_mesh_runtime(mesh)), dt_mesh_runtime(mesh),
                                 rt));
    return dti_mesh_copy(mesh, *rt, out);
}

static dt_status same_tensor(const dt_tensor *a, const dt_tensor *b)
{
    const dt_local *x = dt_tensor_local(a), *y = dt_tensor_local(b);
    char la[128], lb[128];

    DT_EXPECT_EQ_INT(dt_tensor_dtype(a), dt_tensor_dtype(b));
    DT_EXPECT_EQ_INT(x->n_axes, y->n_axes);
    for (int i = 0; i < x->n_axes; i++) {
        DT_EXPECT_EQ_INT(dt_tensor_extent(a, i), dt_tensor_extent(b, i));
        DT_EXPECT_EQ_INT(x->shape[i], y->shape[i]);
        DT_EXPECT_EQ_INT(x->offset[i], y->offset[i]);
    }
    (void)dt_layout_print(dt_tensor_layout(a), la, sizeof la);
    (void)dt_layout_print(dt_tensor_layout(b), lb, sizeof lb);
    DT_EXPECT_EQ_STR(la, lb);
    DT_EXPECT(y->data == NULL, "a dry tensor has no bytes");
    return DT_OK;
}

static dt_status same_memory(dt_runtime *a, dt_runtime *b)
{
    dti_device *x, *y;

    DT_TRY(dti_device_of(a, &x));
    DT_TRY(dti_device_of(b, &y));
    DT_EXPECT_EQ_INT(dti_memory_used(x->memory), dti_memory_used(y->memory));
    DT_EXPECT_EQ_INT(dti_memory_peak(x->memory), dti_memory_peak(y->memory));
    DT_EXPECT_EQ_INT(dti_memory_held(x->memory), dti_memory_held(y->memory));
    return DT_OK;
}

/* --- moves ------------------------------------------------------------------------------------ */

static const dt_placement kinds[] = {
    { .kind = DT_PLACE_REPLICATE },
    { .kind = DT_PLACE_SHARD, .axis = 0 },
    { .kind = DT_PLACE_SHARD, .axis = 1 },
    { .kind = DT_PLACE_PARTIAL, .reduce = DT_SUM },
    { .kind = DT_PLACE_SHARD, .axis = 1, .unit = 2 },
};

static void nth_placement(int n, int n_dims, dt_placement *place)
{
    for (int m = 0; m < n_dims; m++, n /= (int)DT_COUNT(kinds))
        place[m] = kinds[n % (int)DT_COUNT(kinds)];
}

/* One move on both meshes: both work and count alike, or both fail alike. */
static dt_status move_both(dt_tape *real, dt_tape *dry, dt_mesh *const *mesh,
                           const dt_placement *from, const dt_placement *to)
{
    static const int64_t shape[] = { 7, 5 };
    static const float zeros[7 * 5];
    dt_tensor *x[2], *y[2];
    dt_error first = { 0 };

    for (int i = 0; i < 2; i++) {
        dt_tape *t = i == 0 ? real : dry;
        dt_tape_reset(t);
        DT_TRY(dt_from_local(mesh[i], from, DT_F32, 2, shape, i == 0 ? zeros : NULL, &x[i]));
        y[i] = dt_move(t, dt_tape_own(t, x[i]), to);
        if (i == 0 && dt_tape_status(t) != DT_OK) first = *dt_last_error();
    }
    DT_EXPECT((y[0] == NULL) == (y[1] == NULL), "one of them is refused: %s", first.message);
    if (y[0] == NULL) {
        DT_EXPECT(dt_tape_status(dry) == first.code, "another status than \"%s\"", first.message);
        DT_EXPECT_EQ_STR(dt_last_error()->message, first.message);
        return DT_OK;
    }
    DT_TRY(same_tensor(y[0], y[1]));
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        DT_EXPECT_EQ_INT(dt_tape_comm(real, (dt_comm_kind)k).calls,
                         dt_tape_comm(dry, (dt_comm_kind)k).calls);
        DT_EXPECT_EQ_INT(dt_tape_comm(real, (dt_comm_kind)k).bytes,
                         dt_tape_comm(dry, (dt_comm_kind)k).bytes);
    }
    return DT_OK;
}

static dt_status every_move(dt_mesh *real, const void *arg)
{
    dt_mesh *mesh[2] = { real, NULL };
    dt_tape *t[2] = { NULL, NULL };
    const int n_dims = dt_mesh_n_dims(real);
    dt_runtime *rt = NULL;
    dt_status st = DT_OK;
    int n = 1;

    (void)arg;
    for (int m = 0; m < n_dims; m++) n *= (int)DT_COUNT(kinds);
    DT_TRY_TO(done, st, dry_mesh(real, &rt, &mesh[1]));
    for (int i = 0; i < 2; i++)
        DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh[i]), &t[i]));
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            dt_placement from[DT_MAX_DIMS], to[DT_MAX_DIMS];
            nth_placement(a, n_dims, from);
            nth_placement(b, n_dims, to);
            DT_TRY_TO(done, st, move_both(t[0], t[1], mesh, from, to));
            DT_TRY_TO(done, st, same_memory(dt_mesh_runtime(real), rt));
        }
done:
    for (int i = 0; i < 2; i++) dt_tape_release(&t[i]);
    dt_mesh_release(&mesh[1]);
    dt_runtime_release_dry(&rt);
    return st;
}

DT_TEST(dry, every_move_counts_what_a_run_counts)
{
    dt_test_on_ranks("tp=1", every_move, NULL);
    dt_test_on_ranks("tp=2", every_move, NULL);
    dt_test_on_ranks("tp=3", every_move, NULL);
    dt_test_on_ranks("dp=2,tp=2", every_move, NULL);
}

/* --- operators -------------------------------------------------------------------------------- */

/* A gated MLP with its weights cut, its sum reduced, and a choice over a cut axis. */
static dt_status chain(dt_mesh *mesh, dt_tape *t, dt_tensor **out)
{
    const dt_placement rows[] = { DT_SHARD(0) }, columns[] = { DT_SHARD(1) }, whole[] = { { 0 } };
    const int64_t x_shape[] = { 2, 3, 6 }, up_shape[] = { 11, 6 }, down_shape[] = { 6, 11 };
    dt_tensor *x, *up, *down, *h, *key;

    DT_TRY(dt_zeros(mesh, whole, DT_BF16, 3, x_shape, &x));
    DT_TRY(dt_zeros(mesh, rows, DT_BF16, 2, up_shape, &up));
    DT_TRY(dt_zeros(mesh, columns, DT_BF16, 2, down_shape, &down));
    x = dt_tape_own(t, x), up = dt_tape_own(t, up), down = dt_tape_own(t, down);
    dt_scope_begin(t, "mlp");
    h = dt_linear(t, x, up, NULL);
    h = dt_scope_end(t, dt_move(t, dt_linear(t, dt_silu_mul(t, h, h), down, NULL), whole));
    out[0] = h;
    key = dt_argmax_key(t, dt_linear(t, dt_cast(t, h, DT_BF16), up, NULL));
    out[1] = key;
    out[2] = dt_argmax_id(t, dt_move(t, key, whole));
    return dt_tape_status(t);
}

static dt_status chains_agree(dt_mesh *real, const void *arg)
{
    dt_mesh *mesh[2] = { real, NULL };
    dt_tape *t[2] = { NULL, NULL };
    dt_tensor *out[2][3];
    dt_runtime *rt = NULL;
    dt_status st = DT_OK;

    (void)arg;
    DT_TRY_TO(done, st, dry_mesh(real, &rt, &mesh[1]));
    for (int i = 0; i < 2; i++) {
        DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh[i]), &t[i]));
        DT_TRY_TO(done, st, chain(mesh[i], t[i], out[i]));
    }
    for (int k = 0; k < 3; k++) DT_TRY_TO(done, st, same_tensor(out[0][k], out[1][k]));
    for (int k = 0; k < DT_N_COMM_KINDS; k++) {
        const dt_comm_counter a = dt_tape_comm(t[0], (dt_comm_kind)k);
        const dt_comm_counter b = dt_tape_comm(t[1], (dt_comm_kind)k);
        DT_EXPECT_TO(done, st, a.calls == b.calls && a.bytes == b.bytes, "kind %d", k);
    }
    DT_TRY_TO(done, st, same_memory(dt_mesh_runtime(real), rt));
done:
    for (int i = 0; i < 2; i++) dt_tape_release(&t[i]);
    dt_mesh_release(&mesh[1]);
    if (st == DT_OK && rt != NULL && dt_runtime_live(rt) != 0)
        st = dt_test_unexpected(__func__, __FILE__, __LINE__, "live", "dry objects are left");
    dt_runtime_release_dry(&rt);
    return st;
}

DT_TEST(dry, operators_decide_as_in_a_run_and_touch_no_byte)
{
    dt_test_on_ranks("tp=1", chains_agree, NULL);
    dt_test_on_ranks("tp=2", chains_agree, NULL);
    dt_test_on_ranks("tp=3", chains_agree, NULL);
    dt_test_on_ranks("tp=4", chains_agree, NULL);
}

/* Bytes that no machine has: nothing is allocated for them. */
DT_TEST(dry, a_tensor_of_terabytes_costs_its_header)
{
    const dt_placement place[] = { DT_SHARD(0) };
    const int64_t shape[] = { (int64_t)1 << 24, (int64_t)1 << 20 };
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *mesh = NULL;
    DT_HELD(tensor) *y = NULL;
    dt_tensor *x = NULL;
    dti_device *device;

    o.n_ranks = 4;
    DT_ASSERT_OK(dt_runtime_create_dry(&o, 2, NULL, &rt));
    DT_ASSERT_OK(dt_mesh_create(rt, "tp=4", &mesh));
    DT_ASSERT_OK(dt_zeros(mesh, place, DT_F32, 2, shape, &x));
    DT_ASSERT_OK(dt_full_tensor(x, &y));
    DT_ASSERT_OK(dti_device_of(rt, &device));
    DT_ASSERT_EQ_INT(dti_memory_used(device->memory), ((int64_t)1 << 46) + ((int64_t)1 << 44));
    dt_tensor_release(&x);
    DT_ASSERT_EQ_INT(dti_memory_held(device->memory), (int64_t)1 << 46);
}

static dt_status mixture(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole[] = { { 0 } };
    const int64_t n = 4;
    DT_ENDS(dt_runtime_release_dry) dt_runtime *rt = NULL;
    DT_HELD(mesh) *dry = NULL;
    DT_HELD(tensor) *y = NULL, *x = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    DT_TRY(dry_mesh(mesh, &rt, &dry));
    DT_TRY(dt_zeros(mesh, whole, DT_F32, 1, &n, &x));
    DT_TRY(dt_zeros(dry, whole, DT_F32, 1, &n, &y));
    (void)dt_add(t, x, y);
    return dt_test_expect_status(__func__, __FILE__, __LINE__, dt_tape_status(t), DT_ERR_LAYOUT,
                                 "one of them dry");
}

DT_TEST(dry, real_and_dry_operands_do_not_mix)
{
    dt_test_on_ranks("tp=2", mixture, NULL);
}
