/* SPDX-License-Identifier: Apache-2.0
 *
 * What is cut over a mesh dim beside other cuts, and gathered over it again, on ranks. */
#include "placements/shard_over.h"

#include <stdio.h>

#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

typedef struct shard_case {
    const char *base;
    int n_axes;
    int64_t shape[3];
} shard_case;

/* Cut, gathered over the dim alone, with bytes of other dims untouched. */
static dt_status cut_and_gather(dt_mesh *mesh, const shard_case *c, int dim)
{
    const dt_layout *base, *cut;
    dt_placement place[DT_MAX_DIMS];
    DT_HELD(tensor) *x = NULL, *piece = NULL, *back = NULL;
    int64_t bytes, parts = 0;
    int coord[DT_MAX_DIMS];

    DT_TRY(dt_layout_parse(mesh, c->n_axes, c->base, &base));
    DT_TRY(dti_shard_over(base, c->shape, dim, &cut));
    (void)dt_layout_placements(base, place);
    DT_TRY(dt_test_arange(mesh, place, DT_F32, c->n_axes, c->shape, &x));
    DT_EXPECT(dt_tensor_layout(x) == base, "%s is not normal", c->base);
    (void)dt_layout_placements(cut, place);
    DT_TRY(dt_redistribute(x, place, &piece));
    DT_EXPECT(dt_tensor_layout(piece) == cut, "%s", c->base);
    (void)dt_layout_placements(base, place);
    DT_TRY(dt_redistribute(piece, place, &back));
    for (int m = 0; m < dt_mesh_n_dims(mesh); m++) coord[m] = dt_mesh_coord(mesh, m);
    DT_TRY(dt_layout_bytes(base, c->shape, coord, DT_F32, &bytes));
    if (bytes > 0) DT_TRY(dt_test_expect_same(x, back, c->base));
    for (coord[dim] = 0; coord[dim] < dt_mesh_dim_size(mesh, dim) && cut != base; coord[dim]++) {
        int64_t part;
        DT_TRY(dt_layout_bytes(cut, c->shape, coord, DT_F32, &part));
        parts += part;
    }
    DT_EXPECT(cut == base || parts == bytes, "%s: %lld of %lld bytes", c->base, (long long)parts,
              (long long)bytes);
    return DT_OK;
}

static dt_status on_one_dim(dt_mesh *mesh, const void *arg)
{
    static const shard_case cases[] = { { "R", 2, { 8, 6 } },    { "R", 2, { 7, 5 } },
                                        { "R", 1, { 3 } },       { "R", 1, { 1 } },
                                        { "R", 2, { 0, 4 } },    { "R", 3, { 3, 2, 11 } },
                                        { "R", 3, { 1, 1, 2 } }, { "R", 2, { 257, 3 } } };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) DT_TRY(cut_and_gather(mesh, &cases[i], 0));
    return DT_OK;
}

/* dim 0 is cut beside dim 1, which has two ranks. */
static dt_status beside_two(dt_mesh *mesh, const void *arg)
{
    static const shard_case cases[] = { { "RS(0)", 2, { 8, 6 } },
                                        { "RS(0)", 1, { 9 } },
                                        { "RS(0)", 1, { 1 } },
                                        { "RS(1)", 2, { 5, 7 } },
                                        { "RS(0,unit=4)", 1, { 12 } },
                                        { "RS(0,offsets=0:1:9)", 1, { 9 } },
                                        { "RS(0,blocks=6:5)", 1, { 11 } },
                                        { "RS(0,blocks=8:2:2,units=4:1:1)", 1, { 12 } },
                                        { "RS(1,blocks=4:3)", 2, { 1, 7 } },
                                        { "RS(0)", 2, { 64, 1 } } };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) DT_TRY(cut_and_gather(mesh, &cases[i], 0));
    return DT_OK;
}

/* dim 1 is cut beside dim 0, of four ranks that neighbours share pieces of. */
static dt_status beside_four(dt_mesh *mesh, const void *arg)
{
    static const shard_case cases[] = { { "S(0,unit=4,replicas=2)R", 1, { 8 } },
                                        { "S(0,unit=4,replicas=2)R", 2, { 8, 6 } },
                                        { "S(0,replicas=2,blocks=4:2:2)R", 1, { 8 } },
                                        { "S(0)R", 1, { 11 } } };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) DT_TRY(cut_and_gather(mesh, &cases[i], 1));
    return DT_OK;
}

/* All axes are cut, and one of them is cut once more. */
static dt_status beside_two_dims(dt_mesh *mesh, const void *arg)
{
    static const shard_case cases[] = { { "RS(0)S(1)", 2, { 8, 12 } },
                                        { "RS(0)S(0)", 1, { 13 } },
                                        { "RS(0)[1]S(0)[0]", 1, { 13 } },
                                        { "RS(1)S(0,blocks=4:3)", 2, { 7, 3 } } };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) DT_TRY(cut_and_gather(mesh, &cases[i], 0));
    return DT_OK;
}

DT_TEST(shard_over, gathers_back)
{
    for (int n = 1; n <= 8; n++) {
        char spec[16];
        (void)snprintf(spec, sizeof spec, "dp=%d", n);
        dt_test_on_ranks(spec, on_one_dim, NULL);
    }
    dt_test_on_ranks("dp=2,tp=2", beside_two, NULL);
    dt_test_on_ranks("dp=3,tp=2", beside_two, NULL);
    dt_test_on_ranks("dp=4,tp=2", beside_two, NULL);
    dt_test_on_ranks("tp=4,dp=2", beside_four, NULL);
    dt_test_on_ranks("dp=2,pp=2,tp=2", beside_two_dims, NULL);
}
