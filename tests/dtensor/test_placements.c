/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors whose placements are ordered, packed or cut at offsets, through the public calls. */
#include <dtensor/ops.h>
#include <string.h>

#include "base/dtype.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

/* x is 0, 1, 2, ...: `want` are the values that the rank at `place` holds, in order. */
static dt_status expect_values(const dt_tensor *x, const float *want, int64_t n)
{
    const dt_local *l = dt_tensor_local(x);
    int64_t count = 1;

    for (int a = 0; a < l->n_axes; a++) count *= l->shape[a];
    DT_EXPECT(count == n, "%lld elements, not %lld", (long long)count, (long long)n);
    for (int64_t i = 0; i < n; i++)
        DT_EXPECT(dti_load_f32(l->data, l->dtype, i) == want[i], "element %lld is %g, not %g",
                  (long long)i, (double)dti_load_f32(l->data, l->dtype, i), (double)want[i]);
    return DT_OK;
}

static dt_status from_root(dt_mesh *mesh, const dt_placement *place, int64_t rows, int root,
                           dt_tensor **out)
{
    float full[64];

    for (int i = 0; i < 64; i++) full[i] = (float)i;
    return dt_distribute(mesh, place, DT_F32, 1, &rows, (dt_source){ full, root }, out);
}

static dt_status gate_and_up(dt_mesh *mesh, const void *arg)
{
    static const float mine[2][4] = { { 0, 1, 4, 5 }, { 2, 3, 6, 7 } };
    const dt_placement packed = DT_SHARD_PACKED(0, 4, 4), rows = DT_SHARD(0);

    (void)arg;
    for (int root = DT_EQUAL_COPIES; root < 2; root++) {
        dt_status st = DT_OK;
        dt_tensor *x = NULL, *y = NULL, *z = NULL, *full = NULL;
        DT_TRY_TO(done, st, from_root(mesh, &packed, 8, root, &x));
        DT_TRY_TO(done, st, expect_values(x, mine[dt_mesh_coord(mesh, 0)], 4));
        DT_TRY_TO(done, st, dt_redistribute(x, &rows, &y));
        DT_TRY_TO(done, st, dt_redistribute(y, &packed, &z));
        DT_TRY_TO(done, st, expect_values(z, mine[dt_mesh_coord(mesh, 0)], 4));
        DT_TRY_TO(done, st, dt_full_tensor(z, &full));
        DT_TRY_TO(done, st, dt_test_expect_arange(full));
    done:
        dt_tensor_release(&x);
        dt_tensor_release(&y);
        dt_tensor_release(&z);
        dt_tensor_release(&full);
        DT_TRY(st);
    }
    return DT_OK;
}

DT_TEST(placements, packed_blocks_are_cut_each_on_its_own)
{
    dt_test_on_ranks("tp=2", gate_and_up, NULL);
}

/* Moves between kinds that need several boxes for a pair of ranks, on both sides and on one. */
static dt_status every_pair(dt_mesh *mesh, const void *arg)
{
    const int p = dt_mesh_n_ranks(mesh);
    const int64_t own[] = { 0, 0, 1, 9, 12, 12 }, shape[] = { 12, 5 };
    int64_t offsets[5];
    (void)arg;
    for (int i = 0; i <= p; i++) offsets[i] = i == p ? 12 : own[i];
    const dt_placement all[] = {
        DT_REPLICATE,
        DT_SHARD(0),
        DT_SHARD(1),
        DT_SHARD_PACKED(0, 6, 3, 3),
        DT_SHARD_PACKED(0, 1, 11),
        DT_SHARD_PACKED(1, 2, 3),
        dt_shard_offsets(0, p + 1, offsets),
        DT_PARTIAL(DT_SUM),
    };

    for (size_t i = 0; i < DT_COUNT(all) * DT_COUNT(all); i++) {
        const dt_placement *from = &all[i / DT_COUNT(all)], *to = &all[i % DT_COUNT(all)];
        dt_status st = DT_OK;
        dt_tensor *x = NULL, *y = NULL, *full = NULL;
        if (to->kind == DT_PLACE_PARTIAL && from->kind != DT_PLACE_PARTIAL) continue;
        DT_TRY_TO(done, st, dt_test_arange(mesh, from, DT_F32, 2, shape, &x));
        DT_TRY_TO(done, st, dt_redistribute(x, to, &y));
        DT_TRY_TO(done, st, dt_full_tensor(y, &full));
        DT_TRY_TO(done, st, dt_test_expect_arange(full));
    done:
        dt_tensor_release(&x);
        dt_tensor_release(&y);
        dt_tensor_release(&full);
        if (st != DT_OK) {
            dti_error_prefix("pair %zu of %zu kinds", i, DT_COUNT(all));
            return st;
        }
    }
    return DT_OK;
}

DT_TEST(placements, packed_and_offset_cuts_move_exactly)
{
    dt_test_on_ranks("tp=1", every_pair, NULL);
    dt_test_on_ranks("tp=2", every_pair, NULL);
    dt_test_on_ranks("tp=3", every_pair, NULL);
    dt_test_on_ranks("tp=4", every_pair, NULL);
}

static dt_status ordered(dt_mesh *mesh, const void *arg)
{
    /* 7 rows, tp first: tp 0 has rows 0-3, of which dp 0 keeps two */
    static const float mine[3][2][2] = { { { 0, 1 }, { 4 } },
                                         { { 2, 3 }, { 5 } },
                                         { { 0 }, { 6 } } };
    static const int64_t n[3][2] = { { 2, 1 }, { 2, 1 }, { 0, 1 } };
    const dt_placement place[] = { DT_SHARD_NTH(0, 1), DT_SHARD_NTH(0, 0) };
    const int dp = dt_mesh_coord(mesh, 0), tp = dt_mesh_coord(mesh, 1);
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL;
    dt_tensor *y;
    char text[64];

    (void)arg;
    DT_TRY(from_root(mesh, place, 7, 0, &x));
    DT_TRY(expect_values(x, mine[dp][tp], n[dp][tp]));
    y = dt_move_dim(t, x, 1, DT_SHARD(0)); /* it is */
    DT_EXPECT(y == x, "a cut that names no place left its own");
    y = dt_move_dim(t, x, 0, DT_REPLICATE);
    y = dt_move_dim(t, y, 0, DT_SHARD_NTH(0, 1));
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_tensor_layout(y) == dt_tensor_layout(x), "another layout");
    DT_TRY(expect_values(y, mine[dp][tp], n[dp][tp]));
    y = dt_move_dim(t, y, 0, DT_SHARD_NTH(0, 0));
    (void)dt_layout_print(dt_tensor_layout(y), text, sizeof text);
    DT_EXPECT(strcmp(text, "S(0)[0]S(0)[1]") == 0, "moved to %s", text);
    y = dt_move(t, y, (dt_placement[]){ DT_REPLICATE, DT_REPLICATE });
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_test_expect_arange(y));
    return DT_OK;
}

DT_TEST(placements, orders_of_cuts_are_part_of_placements)
{
    dt_test_on_ranks("dp=3,tp=2", ordered, NULL);
}

/* Elementwise operators work on packed pieces; those that count rows from an offset refuse them. */
static dt_status operators(dt_mesh *mesh, const void *arg)
{
    const dt_placement packed = DT_SHARD_PACKED(0, 6, 2), rows = DT_SHARD(0);
    const int64_t shape[] = { 8, 4 };
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *x = NULL, *r = NULL, *full = NULL;
    dt_tensor *y;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, &packed, DT_F32, 2, shape, &x));
    DT_TRY(dt_test_arange(mesh, &rows, DT_F32, 2, shape, &r));
    y = dt_add(t, x, x);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_full_tensor(y, &full));
    for (int i = 0; i < 32; i++)
        DT_EXPECT(dti_load_f32(dt_tensor_local(full)->data, DT_F32, i) == 2 * (float)i,
                  "element %d of x + x", i);
    (void)dt_add(t, x, r);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_LAYOUT, "rows of two cuts were added");
    DT_EXPECT(strstr(dt_last_error()->message, "blocks=6:2") != NULL, "message %s",
              dt_last_error()->message);
    dt_tape_reset(t);
    (void)dt_rms_norm(t, x, r, 1e-6f);
    DT_EXPECT(dt_tape_status(t) != DT_OK, "a norm of matrices as weights");
    return DT_OK;
}

DT_TEST(placements, operators_on_packed_pieces)
{
    dt_test_on_ranks("tp=2", operators, NULL);
}

static dt_status packed_table(dt_mesh *mesh, const void *arg)
{
    const dt_placement packed = DT_SHARD_PACKED(0, 6, 2), whole = DT_REPLICATE;
    const int64_t shape[] = { 8, 4 }, n = 3;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *table = NULL, *ids = NULL;

    (void)arg;
    DT_TRY(dt_test_arange(mesh, &packed, DT_F32, 2, shape, &table));
    DT_TRY(dt_zeros(mesh, &whole, DT_I32, 1, &n, &ids));
    (void)dt_embedding(t, ids, table);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_LAYOUT, "a packed table was looked up");
    DT_EXPECT(strstr(dt_last_error()->message, "packed in 2 blocks along axis 0") != NULL, "%s",
              dt_last_error()->message);
    return DT_OK;
}

DT_TEST(placements, operators_that_count_rows_refuse_packed_pieces)
{
    dt_test_on_ranks("tp=2", packed_table, NULL);
}

static dt_status wrong_extent(dt_mesh *mesh, const void *arg)
{
    const dt_placement at = DT_SHARD_OFFSETS(0, 0, 3, 8), packed = DT_SHARD_PACKED(0, 3, 3);
    const int64_t n = 9;
    dt_tensor *x;

    (void)arg;
    DT_EXPECT_STATUS(dt_zeros(mesh, &at, DT_F32, 1, &n, &x), DT_ERR_SHAPE,
                     "cuts axis 0 at offsets that end at 8, but 9 rows are cut");
    DT_EXPECT_STATUS(dt_zeros(mesh, &packed, DT_F32, 1, &n, &x), DT_ERR_SHAPE,
                     "in blocks of 6 rows together, but 9 rows are cut");
    return DT_OK;
}

DT_TEST(placements, tensors_must_fit_offsets_and_blocks)
{
    dt_test_on_ranks("tp=2", wrong_extent, NULL);
}
