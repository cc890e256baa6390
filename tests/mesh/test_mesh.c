/* SPDX-License-Identifier: Apache-2.0
 *
 * Meshes: their text, coordinates, slices and communicators; the group cases of PyTorch's own
 * DeviceMesh tests. */
#include <dtensor/mesh.h>

#include <string.h>

#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

/* --- text ---------------------------------------------------------------------------------------
 */

DT_TEST(mesh, the_text_is_parsed)
{
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;

    DT_ASSERT_OK(dt_mesh_parse("dp=2,tp=4", &n_dims, names, sizes, &n_ranks));
    DT_ASSERT_EQ_INT(n_dims, 2);
    DT_ASSERT_EQ_INT(n_ranks, 8);
    DT_ASSERT_EQ_STR(names[0], "dp");
    DT_ASSERT_EQ_STR(names[1], "tp");
    DT_ASSERT_EQ_INT(sizes[0], 2);
    DT_ASSERT_EQ_INT(sizes[1], 4);
    DT_ASSERT_OK(dt_mesh_parse("pp_0=16384", &n_dims, names, sizes, &n_ranks));
    DT_ASSERT_EQ_INT(n_ranks, 16384);
}

DT_TEST(mesh, bad_text_is_refused_with_the_place)
{
    static const struct {
        const char *spec, *message;
    } cases[] = {
        { "", "a dim name is missing at \"\"" },
        { "tp", "dim \"tp\" has no size; write it as \"tp=2\"" },
        { "tp=", "the size of dim \"tp\" is not a number" },
        { "tp=x", "not a number at \"x\"" },
        { "tp=-2", "not a number at \"-2\"" },
        { "tp=0x2", "the size of dim \"tp\" is not a decimal number at \"0x2\"" },
        { "tp=2.5", "not a decimal number at \"2.5\"" },
        { "tp = 2", "a space follows \"tp\"; write it without spaces" },
        { "tp=0", "dim \"tp\" has size 0" },
        { "tp=2,", "a dim name is missing" },
        { "tp=2,,dp=2", "a dim name is missing at \",dp=2\"" },
        { "=2", "a dim name is missing at \"=2\"" },
        { "2=tp", "a dim name is missing" },
        { "tp=2;dp=2", "\";dp=2\" follows dim \"tp\"" },
        { "tp=2 ", "\" \" follows dim \"tp\"" },
        { "tp=2,tp=2", "names dim \"tp\" twice" },
        { "tp=99999999999,dp=2", "dim \"tp\" has size 99999999999, at most 2147483647" },
        { "tp=2147483648", "dim \"tp\" has size 2147483648, at most 2147483647" },
        { "tp=999999999999999999999999999999", "has size 999999999999999999999999..., at most" },
        { "dp=65536,tp=65536", "has 4294967296 ranks with dim \"tp\", at most 2147483647" },
        { "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1", "more than 8 dims" },
        { "a_name_that_is_far_too_long=2", "27 characters, at most 23" },
    };
    char names[DT_MAX_DIMS][DT_DIM_NAME_BYTES];
    int sizes[DT_MAX_DIMS], n_dims, n_ranks;

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        DT_ASSERT_STATUS(dt_mesh_parse(cases[i].spec, &n_dims, names, sizes, &n_ranks), DT_ERR_ARG,
                         cases[i].message);
}

/* --- creation -----------------------------------------------------------------------------------
 */

static dt_status bad_creations(dt_mesh *mesh, const void *arg)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);
    dt_mesh *bad = mesh;

    (void)arg;
    DT_EXPECT_STATUS(dt_mesh_create(rt, "tp=4", &bad), DT_ERR_ARG,
                     "mesh \"tp=4\" needs 4 ranks but the run has 3; start it with n_ranks = 4");
    DT_EXPECT(bad == NULL, "a failed creation left a mesh");
    DT_EXPECT_STATUS(dt_mesh_create(NULL, "tp=2", &bad), DT_ERR_ARG, "rt or spec is NULL");
    DT_EXPECT_STATUS(dt_mesh_create(rt, "tp=2", NULL), DT_ERR_ARG, "out is NULL");
    DT_EXPECT_STATUS(dt_mesh_create_ranks(rt, "tp=2", (int[]){ 1, 1 }, &bad), DT_ERR_ARG,
                     "rank 1 stands at place 0 and at place 1");
    DT_EXPECT_STATUS(dt_mesh_create_ranks(rt, "tp=2", (int[]){ 1, 3 }, &bad), DT_ERR_ARG,
                     "rank 3 at place 1 does not exist; the run has ranks 0..2");
    DT_EXPECT_STATUS(dt_mesh_create_ranks(rt, "tp=2", (int[]){ -1, 0 }, &bad), DT_ERR_ARG,
                     "rank -1 at place 0");
    return DT_OK;
}

DT_TEST(mesh, bad_creations_name_the_numbers)
{
    dt_test_on_ranks("tp=3", bad_creations, NULL);
}

static dt_status queries(dt_mesh *mesh, const void *arg)
{
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));

    (void)arg;
    DT_EXPECT_EQ_INT(dt_mesh_n_dims(mesh), 3);
    DT_EXPECT_EQ_INT(dt_mesh_n_ranks(mesh), 8);
    DT_EXPECT_EQ_INT(dt_mesh_find_dim(mesh, "tp"), 2);
    DT_EXPECT_EQ_INT(dt_mesh_find_dim(mesh, "cp"), -1);
    DT_EXPECT_EQ_STR(dt_mesh_dim_name(mesh, 0), "dp");
    DT_EXPECT(dt_mesh_dim_name(mesh, 3) == NULL, "a dim past the end has a name");
    DT_EXPECT_EQ_INT(dt_mesh_dim_size(mesh, -1), -1);
    DT_EXPECT_EQ_INT(dt_mesh_coord(mesh, 3), -1);
    DT_EXPECT_EQ_INT(dt_mesh_rank_at(mesh, 5), 5);
    DT_EXPECT_EQ_INT(dt_mesh_rank_at(mesh, 8), -1);
    DT_EXPECT_EQ_INT(dt_mesh_coord(mesh, 2), rank % 2); /* case 51 */
    DT_EXPECT_EQ_INT(dt_mesh_coord(mesh, 1), rank % 4 / 2);
    DT_EXPECT_EQ_INT(dt_mesh_coord(mesh, 0), rank / 4);
    DT_EXPECT(dt_mesh_find_rank(mesh, 7, NULL) && !dt_mesh_find_rank(mesh, 8, NULL), "no room");
    DT_EXPECT_EQ_INT(dt_mesh_group(mesh, 0, NULL, NULL), -1);
    DT_EXPECT_EQ_INT(dt_mesh_print(mesh, NULL, 9), dt_mesh_print(mesh, NULL, 0));
    return DT_OK;
}

DT_TEST(mesh, coordinates_are_row_major)
{
    dt_test_on_ranks("dp=2,pp=2,tp=2", queries, NULL);
}

static dt_status outsiders(dt_mesh *world, const void *arg)
{
    static const char *const tp[] = { "tp" };
    dt_runtime *rt = dt_mesh_runtime(world);
    const int rank = dt_runtime_rank(rt);
    dt_mesh *mesh = NULL, *slice = NULL;
    dti_comm *c;

    (void)arg;
    DT_TRY(dt_mesh_create_ranks(rt, "dp=1,tp=2", (int[]){ 3, 1 }, &mesh));
    DT_EXPECT(dt_mesh_is_member(mesh) == (rank == 1 || rank == 3), "membership of rank %d", rank);
    DT_EXPECT_EQ_INT(dt_mesh_coord(mesh, 1), rank == 3 ? 0 : rank == 1 ? 1 : -1);
    DT_TRY(dt_mesh_slice(mesh, tp, 1, &slice));
    DT_EXPECT_EQ_INT(dt_mesh_rank_at(slice, 0), 3);
    if (dt_mesh_is_member(mesh)) {
        int32_t x = rank;
        DT_TRY(dti_mesh_comm(mesh, 2, &c));
        DT_TRY(dti_broadcast(c, &x, 1, DT_I32, 0));
        DT_EXPECT_EQ_INT(x, 3);
    } else {
        DT_EXPECT_STATUS(dti_mesh_comm(mesh, 2, &c), DT_ERR_ARG, "is not a member of the mesh");
    }
    dt_mesh_release(&slice);
    dt_mesh_release(&mesh);
    return DT_OK;
}

DT_TEST(mesh, any_subset_in_any_order_with_outsiders)
{
    dt_test_on_ranks("tp=4", outsiders, NULL);
}

static dt_status equality(dt_mesh *world, const void *arg)
{
    static const char *const specs[] = { "dp=2,tp=2", "tp=2,dp=2", "dp=4,tp=1", "dp=4" };
    dt_runtime *rt = dt_mesh_runtime(world);
    dt_mesh *other = NULL, *pair[2] = { NULL, NULL };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(specs); i++) {
        DT_TRY(dt_mesh_create(rt, specs[i], &other));
        DT_EXPECT(dt_mesh_equal(world, other) == (i == 0), "%s", specs[i]);
        dt_mesh_release(&other);
    }
    DT_TRY(dt_mesh_create_ranks(rt, "dp=2,tp=2", (int[]){ 0, 1, 3, 2 }, &other));
    DT_EXPECT(!dt_mesh_equal(world, other), "other ranks");
    DT_TRY(dt_mesh_create_ranks(rt, "dp=2", (int[]){ 0, 1 }, &pair[0]));
    DT_TRY(dt_mesh_create_ranks(rt, "dp=2", (int[]){ 2, 1 }, &pair[1]));
    DT_EXPECT(!dt_mesh_equal(pair[0], pair[1]), "another first rank");
    for (int i = 0; i < 2; i++) dt_mesh_release(&pair[i]);
    DT_EXPECT_EQ_INT(dt_runtime_live(rt), 2);
    dt_mesh_release(&other);
    DT_EXPECT(other == NULL, "release leaves the variable");
    dt_mesh_release(&other);
    dt_mesh_release(NULL);
    DT_EXPECT(dt_mesh_retain(NULL) == NULL, "retain of NULL");
    return DT_OK;
}

DT_TEST(mesh, equal_means_same_ranks_sizes_and_names)
{
    dt_test_on_ranks("dp=2,tp=2", equality, NULL);
}

/* --- slices and communicators -------------------------------------------------------------------
 */

/* Names to a slice, whose ranks have to be `want`. */
typedef struct slice_case {
    const char *names[4];
    int n_names;
    int want[8][4]; /* by world rank */
} slice_case;

static dt_status slice_is(dt_mesh *mesh, const slice_case *k)
{
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    dt_mesh *slice = NULL;
    uint32_t dims = 0;
    dti_comm *c;

    DT_TRY(dt_mesh_slice(mesh, k->names, k->n_names, &slice));
    DT_EXPECT_EQ_INT(dt_mesh_n_ranks(slice), 1 << k->n_names);
    for (int i = 0; i < 1 << k->n_names; i++)
        DT_EXPECT_EQ_INT(dt_mesh_rank_at(slice, i), k->want[rank][i]);
    for (int i = 0; i < k->n_names; i++) dims |= 1u << dt_mesh_find_dim(mesh, k->names[i]);
    DT_TRY(dti_mesh_comm(mesh, dims, &c));
    for (int i = 0; i < c->size; i++) DT_EXPECT_EQ_INT(c->world_ranks[i], k->want[rank][i]);
    dt_mesh_release(&slice);
    return DT_OK;
}

static dt_status slices(dt_mesh *mesh, const void *arg)
{
    static const slice_case cases[] = {
        { { "c" },
          1,
          { { 0, 1 }, { 0, 1 }, { 2, 3 }, { 2, 3 }, { 4, 5 }, { 4, 5 }, { 6, 7 }, { 6, 7 } } },
        { { "b" },
          1,
          { { 0, 2 }, { 1, 3 }, { 0, 2 }, { 1, 3 }, { 4, 6 }, { 5, 7 }, { 4, 6 }, { 5, 7 } } },
        { { "a" },
          1,
          { { 0, 4 }, { 1, 5 }, { 2, 6 }, { 3, 7 }, { 0, 4 }, { 1, 5 }, { 2, 6 }, { 3, 7 } } },
        { { "a", "b" },
          2,
          { { 0, 2, 4, 6 },
            { 1, 3, 5, 7 },
            { 0, 2, 4, 6 },
            { 1, 3, 5, 7 },
            { 0, 2, 4, 6 },
            { 1, 3, 5, 7 },
            { 0, 2, 4, 6 },
            { 1, 3, 5, 7 } } },
        { { "a", "c" },
          2,
          { { 0, 1, 4, 5 },
            { 0, 1, 4, 5 },
            { 2, 3, 6, 7 },
            { 2, 3, 6, 7 },
            { 0, 1, 4, 5 },
            { 0, 1, 4, 5 },
            { 2, 3, 6, 7 },
            { 2, 3, 6, 7 } } },
    };

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(cases); i++) DT_TRY(slice_is(mesh, &cases[i]));
    return DT_OK;
}

DT_TEST(mesh, slices_and_groups_of_three_dims)
{
    dt_test_on_ranks("a=2,b=2,c=2", slices, NULL); /* cases 52, 53, 54 */
}

/* Neighbours by two and by four, asked for in turns. */
static dt_status neighbours(dt_mesh *mesh, const void *arg)
{
    static const int along[] = { 2, 4, 2, 8, 4 };
    const int rank = dt_runtime_rank(dt_mesh_runtime(mesh));
    dti_comm *first = NULL, *c;

    (void)arg;
    for (size_t i = 0; i < DT_COUNT(along); i++) {
        DT_TRY(dti_mesh_comm_along(mesh, 1, &along[i], &c));
        DT_EXPECT(c->size == along[i] && c->rank == rank % along[i], "%d of %d along %d", c->rank,
                  c->size, along[i]);
        DT_EXPECT(i != 2 || c == first, "another communicator");
        if (i == 0) first = c;
    }
    return DT_OK;
}

DT_TEST(mesh, neighbours_of_each_number_have_a_group)
{
    dt_test_on_ranks("tp=8", neighbours, NULL);
}

/* Of two meshes all ranks together, each once; they wait as long as the more patient mesh says. */
static dt_status together(dt_mesh *mesh, const void *arg)
{
    static const int last[] = { 3, 1 };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    const int rank = dt_runtime_rank(rt);
    DT_HELD(mesh) *a = NULL, *b = NULL;
    dti_comm *c;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "tp=2", &a));
    DT_TRY(dt_mesh_create_ranks(rt, "tp=2", last, &b));
    for (int turn = 0; turn < 2; turn++) {
        DT_TRY(dt_mesh_set_timeout(turn ? a : b, 70000));
        DT_TRY(dt_mesh_set_timeout(turn ? b : a, 50000));
        DT_TRY(dti_mesh_union_comm(a, b, &c));
        DT_EXPECT((c == NULL) == (rank == 2), "rank 2 is in neither");
        if (c == NULL) continue;
        DT_EXPECT(c->size == 3 && c->rank == (rank == 3 ? 2 : rank), "%d of %d", c->rank, c->size);
        DT_EXPECT(c->timeout_ms == 70000, "%lld ms", (long long)c->timeout_ms);
    }
    return DT_OK;
}

DT_TEST(mesh, ranks_of_two_meshes_wait_as_long_as_either)
{
    dt_test_on_ranks("tp=4", together, NULL);
}

static dt_status slice_of_slice(dt_mesh *mesh, const void *arg)
{
    static const char *const ab[] = { "a", "b" };
    static const char *const b[] = { "b" };
    static const char *const abc[] = { "a", "b", "c" };
    dt_mesh *s = NULL, *t = NULL, *u = NULL;
    dti_comm *of_mesh, *of_slice;

    (void)arg;
    DT_TRY(dt_mesh_slice(mesh, ab, 2, &s));
    DT_TRY(dt_mesh_slice(s, b, 1, &t));
    DT_EXPECT_EQ_INT(dt_mesh_n_ranks(t), 2);
    DT_TRY(dti_mesh_comm(mesh, 2, &of_mesh));
    DT_TRY(dti_mesh_comm(t, 1, &of_slice));
    DT_EXPECT(of_mesh == of_slice, "equal groups do not share a communicator");
    DT_EXPECT_EQ_STR(of_mesh->name, "b");
    DT_TRY(dt_mesh_slice(mesh, abc, 3, &u));
    DT_EXPECT(u == mesh, "the slice of all dims is another mesh");
    dt_mesh_release(&u);
    dt_mesh_release(&t);
    dt_mesh_release(&s);
    return DT_OK;
}

DT_TEST(mesh, slices_again_and_groups_are_shared)
{
    dt_test_on_ranks("a=2,b=2,c=2", slice_of_slice, NULL);
}

static dt_status bad_slices(dt_mesh *mesh, const void *arg)
{
    static const char *const unknown[] = { "cp" }, *const twice[] = { "tp", "tp" },
                             *const reversed[] = { "tp", "dp" };
    dt_mesh *s;

    (void)arg;
    DT_EXPECT_STATUS(dt_mesh_slice(mesh, unknown, 1, &s), DT_ERR_ARG,
                     "the mesh has no dim \"cp\"; it has \"dp,tp\"");
    DT_EXPECT_STATUS(dt_mesh_slice(mesh, twice, 2, &s), DT_ERR_ARG, "dim \"tp\" is named twice");
    DT_EXPECT_STATUS(dt_mesh_slice(mesh, reversed, 2, &s), DT_ERR_ARG,
                     "dim \"dp\" comes before \"tp\" in the mesh");
    DT_EXPECT_STATUS(dt_mesh_slice(mesh, unknown, 0, &s), DT_ERR_ARG, "needs the name of a dim");
    DT_EXPECT_STATUS(dt_mesh_slice(mesh, NULL, 1, &s), DT_ERR_ARG, "names is NULL");
    return DT_OK;
}

DT_TEST(mesh, bad_slices_are_refused)
{
    dt_test_on_ranks("dp=2,tp=1", bad_slices, NULL);
}

/* Members of one fiber make their group while the others do nothing. */
static dt_status members_only(dt_mesh *mesh, const void *arg)
{
    int32_t x = 1;
    dti_comm *c;

    (void)arg;
    if (dt_mesh_coord(mesh, 0) == 1) return DT_OK;
    DT_TRY(dti_mesh_comm(mesh, 2, &c));
    DT_TRY(dti_all_reduce(c, &x, &x, 1, DT_I32, DT_SUM));
    DT_EXPECT_EQ_INT(x, 2);
    return DT_OK;
}

DT_TEST(mesh, groups_involve_their_members_only)
{
    dt_test_on_ranks("dp=2,tp=2", members_only, NULL);
}

static dt_status lone_dims(dt_mesh *mesh, const void *arg)
{
    float x[3] = { 1, 2, 3 }, y[3];
    int64_t n = 3;
    dti_comm *c;

    (void)arg;
    for (uint32_t dims = 0; dims <= 1; dims++) { /* no dim at all, and a dim of one rank */
        DT_TRY(dti_mesh_comm(mesh, dims, &c));
        DT_EXPECT_EQ_INT(c->size, 1);
        DT_TRY(dti_all_gather(c, x, y, &n, NULL, DT_F32));
        DT_EXPECT(memcmp(x, y, sizeof x) == 0, "a copy differs");
    }
    DT_EXPECT_STATUS(dti_mesh_comm(mesh, 4, &c), DT_ERR_ARG, "dims 0x4 of a mesh that has 2");
    return DT_OK;
}

DT_TEST(mesh, communicators_of_one_rank)
{
    dt_test_on_ranks("dp=1,tp=2", lone_dims, NULL);
}
