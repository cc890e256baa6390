/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed pieces of tensors: every rank holds the rows it should, and packing, gathering and packing
 * again, also by way of a plain cut, changes nothing. */
#include <dtensor/tensor.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { MAX_ROWS = 32 }; /* of a packed axis */

static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };

typedef struct packed_case {
    int n_axes;
    int64_t shape[3];
    dt_placement packed;
} packed_case;

/* Rows of the packed axis that this rank holds, one after the other: of each block its part, in
 * whole units, which neighbours share where there are replicas. Returns their number. */
static int rows_of_rank(const packed_case *c, int p, int me, int64_t rows[MAX_ROWS])
{
    const dt_placement *cut = &c->packed;
    const int64_t copies = cut->replicas > 1 ? cut->replicas : 1, parts = p / copies;
    int64_t first = 0;
    int n = 0;

    for (int b = 0; b < cut->n_blocks; b++) {
        const int64_t unit = cut->units != NULL ? cut->units[b] : 1, all = cut->blocks[b];
        const int64_t chunk = (all + unit * parts - 1) / (unit * parts) * unit;
        for (int64_t i = me / copies * chunk; i < all && i < (me / copies + 1) * chunk; i++)
            rows[n++] = first + i;
        first += all;
    }
    return n;
}

/* x, which is 0, 1, 2, ..., lies on this rank as the placement says. */
static dt_status expect_packed(const packed_case *c, const dt_tensor *x)
{
    const dt_mesh *mesh = dt_tensor_mesh(x);
    const int axis = c->packed.axis, tp = dt_mesh_n_dims(mesh) - 1;
    const dt_local *mine = dt_tensor_local(x);
    int64_t rows[MAX_ROWS], outer = 1, inner = 1;
    const float *at = mine->data;
    int n;

    n = rows_of_rank(c, dt_mesh_dim_size(mesh, tp), dt_mesh_coord(mesh, tp), rows);
    for (int a = 0; a < axis; a++) outer *= c->shape[a];
    for (int a = axis + 1; a < c->n_axes; a++) inner *= c->shape[a];
    for (int a = 0; a < c->n_axes; a++)
        DT_EXPECT_EQ_INT(mine->shape[a], a == axis ? n : c->shape[a]);
    for (int64_t o = 0; o < outer; o++)
        for (int r = 0; r < n; r++)
            for (int64_t i = 0; i < inner; i++, at++) {
                const int64_t want = (o * c->shape[axis] + rows[r]) * inner + i;
                DT_EXPECT(*at == (float)want, "row %d of %d is %g, not %lld", r, n, (double)*at,
                          (long long)want);
            }
    return DT_OK;
}

/* The packed dim is the last one of the mesh; on the others values are whole. */
static dt_status by_way_of(dt_mesh *mesh, const packed_case *c, dt_placement cut)
{
    dt_placement packed[DT_MAX_DIMS] = { { 0 } }, plain[DT_MAX_DIMS] = { { 0 } };
    DT_HELD(tensor) *x = NULL, *full = NULL, *again = NULL, *other = NULL, *back = NULL;

    packed[dt_mesh_n_dims(mesh) - 1] = c->packed;
    plain[dt_mesh_n_dims(mesh) - 1] = cut;
    DT_TRY(dt_test_arange(mesh, packed, DT_F32, c->n_axes, c->shape, &x));
    DT_TRY(expect_packed(c, x));
    DT_TRY(dt_full_tensor(x, &full));
    DT_TRY(dt_test_expect_arange(full));
    DT_TRY(dt_redistribute(full, packed, &again));
    DT_TRY(expect_packed(c, again));
    DT_TRY(dt_redistribute(x, plain, &other));
    DT_TRY(dt_redistribute(other, packed, &back));
    DT_TRY(expect_packed(c, back));
    return DT_OK;
}

static dt_status there_and_back(dt_mesh *mesh, const void *arg)
{
    const packed_case *c = arg;

    for (int a = 0; a < c->n_axes; a++) DT_TRY(by_way_of(mesh, c, DT_SHARD(a)));
    return DT_OK;
}

DT_TEST(packed_pieces, pack_gather_and_pack_again_is_the_identity)
{
    static const int64_t units[] = { 4, 2, 1 }, heads[] = { 4, 2, 2 };
    packed_case cases[] = {
        /* outputs of [out, in]: gate | up, q | k | v, a block of one row, in units */
        { 2, { 14, 3 }, DT_SHARD_PACKED(0, 7, 7) },
        { 2, { 24, 3 }, DT_SHARD_PACKED(0, 12, 12) },
        { 2, { 14, 3 }, DT_SHARD_PACKED(0, 8, 4, 2) },
        { 2, { 14, 3 }, DT_SHARD_PACKED(0, 1, 13) },
        { 2, { 14, 3 }, DT_SHARD_PACKED(0, 8, 4, 2) },
        /* inputs of [out, in], or outputs of [in, out] */
        { 2, { 3, 14 }, DT_SHARD_PACKED(1, 7, 7) },
        { 2, { 5, 24 }, DT_SHARD_PACKED(1, 12, 12) },
        { 2, { 5, 14 }, DT_SHARD_PACKED(1, 8, 4, 2) },
        /* [experts, out, in], and [experts, in, out] */
        { 3, { 5, 14, 3 }, DT_SHARD_PACKED(1, 7, 7) },
        { 3, { 4, 24, 12 }, DT_SHARD_PACKED(1, 12, 12) },
        { 3, { 3, 2, 14 }, DT_SHARD_PACKED(2, 8, 4, 2) },
        { 3, { 3, 2, 13 }, DT_SHARD_PACKED(2, 1, 3, 9) },
        /* a bias */
        { 1, { 14 }, DT_SHARD_PACKED(0, 8, 4, 2) },
        { 1, { 3 }, DT_SHARD_PACKED(0, 1, 2) },
    };
    packed_case shared[] = {
        /* neighbours share kv heads, and the query heads that read them */
        { 2, { 16, 3 }, DT_SHARD_PACKED(0, 8, 4, 4) },
        { 2, { 3, 16 }, DT_SHARD_PACKED(1, 8, 4, 4) },
        { 3, { 2, 16, 3 }, DT_SHARD_PACKED(1, 8, 4, 4) },
    };

    cases[4].packed.units = units;
    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t i = 0; i < DT_COUNT(cases); i++)
            dt_test_on_ranks(meshes[m], there_and_back, &cases[i]);
    dt_test_on_ranks("dp=2,tp=2", there_and_back, &cases[2]);
    dt_test_on_ranks("dp=2,tp=2", there_and_back, &cases[8]);
    for (size_t i = 0; i < DT_COUNT(shared); i++) {
        shared[i].packed.units = heads;
        shared[i].packed.replicas = 2;
        dt_test_on_ranks("tp=2", there_and_back, &shared[i]);
        dt_test_on_ranks("tp=4", there_and_back, &shared[i]);
    }
}
