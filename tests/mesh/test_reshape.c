/* SPDX-License-Identifier: Apache-2.0
 *
 * Meshes made from meshes. What every rank sees is written as dt_mesh_print() writes it; the cases
 * are those of PyTorch's DeviceMesh tests on 4 and 8 ranks. */
#include <dtensor/mesh.h>
#include <string.h>

#include "mesh/runtime.h"
#include "tests/support/dt_test.h"

enum { TEXT_BYTES = 256 };

static dt_status prints(const dt_mesh *mesh, const char *want)
{
    char text[TEXT_BYTES];

    (void)dt_mesh_print(mesh, text, sizeof text);
    DT_EXPECT_EQ_STR(text, want);
    return DT_OK;
}

/* One way to make a mesh of the world's, and all that come out: every rank gets the one that it is
 * part of. */
typedef struct made {
    const char *world;
    enum { SLICE, FLATTEN, UNFLATTEN } how;
    const char *names[4]; /* UNFLATTEN: the dim and its spec */
    const char *name;
    const char *want[4];
} made;

static dt_status make(dt_mesh *world, const made *c, dt_mesh **out)
{
    int n = 0;

    while (c->names[n] != NULL) n++;
    if (c->how == SLICE) return dt_mesh_slice(world, c->names, n, out);
    if (c->how == FLATTEN) return dt_mesh_flatten(world, c->names, n, c->name, out);
    return dt_mesh_unflatten(world, c->names[0], c->names[1], out);
}

static dt_status is_made(dt_mesh *world, const void *arg)
{
    const made *c = arg;
    const int rank = dt_runtime_rank(dt_mesh_runtime(world));
    DT_HELD(mesh) *mesh = NULL, *again = NULL;
    char text[TEXT_BYTES];
    bool found = false;

    DT_TRY(make(world, c, &mesh));
    (void)dt_mesh_print(mesh, text, sizeof text);
    for (int i = 0; i < 4 && c->want[i] != NULL; i++) found = found || !strcmp(text, c->want[i]);
    DT_EXPECT(found, "rank %d sees %s", rank, text);
    DT_TRY(make(world, c, &again));
    DT_EXPECT(dt_mesh_equal(mesh, again), "made twice, not equal");
    for (int i = 0; i < dt_mesh_n_ranks(mesh); i++) {
        int coord[DT_MAX_DIMS], place = 0;
        DT_EXPECT(dt_mesh_find_rank(mesh, dt_mesh_rank_at(mesh, i), coord), "%d", i);
        for (int d = 0; d < dt_mesh_n_dims(mesh); d++)
            place = place * dt_mesh_dim_size(mesh, d) + coord[d];
        DT_EXPECT(place == i, "rank at place %d is found at %d", i, place);
    }
    DT_EXPECT(dt_mesh_rank_at(mesh, dti_mesh_place(mesh)) == rank, "not my mesh");
    return DT_OK;
}

DT_TEST(reshape, every_rank_sees_its_part)
{
    /* clang-format off */
    static const made cases[] = {
        /* case 52: slices */
        { "a=2,b=2,c=2", SLICE, { "c" }, NULL, { "c=2 [0 1]", "c=2 [2 3]", "c=2 [4 5]", "c=2 [6 7]" } },
        { "a=2,b=2,c=2", SLICE, { "b" }, NULL, { "b=2 [0 2]", "b=2 [1 3]", "b=2 [4 6]", "b=2 [5 7]" } },
        { "a=2,b=2,c=2", SLICE, { "a" }, NULL, { "a=2 [0 4]", "a=2 [1 5]", "a=2 [2 6]", "a=2 [3 7]" } },
        { "a=2,b=2,c=2", SLICE, { "a", "b" }, NULL, { "a=2,b=2 [[0 2],[4 6]]", "a=2,b=2 [[1 3],[5 7]]" } },
        /* case 53: dims that are no neighbours */
        { "dp=2,pp=2,cp=2", SLICE, { "dp", "cp" }, NULL, { "dp=2,cp=2 [[0 1],[4 5]]", "dp=2,cp=2 [[2 3],[6 7]]" } },
        /* case 54: flattened dims */
        { "dp=2,cp=2,tp=2", FLATTEN, { "dp", "cp" }, NULL, { "dp_cp=4 [0 2 4 6]", "dp_cp=4 [1 3 5 7]" } },
        { "dp=2,cp=2,tp=2", FLATTEN, { "dp", "tp" }, "batch", { "batch=4 [0 1 4 5]", "batch=4 [2 3 6 7]" } },
        { "dp=2,cp=2,tp=2", FLATTEN, { NULL }, NULL, { "dp_cp_tp=8 [0 1 2 3 4 5 6 7]" } },
        { "dp=2,tp=3", FLATTEN, { "dp" }, NULL, { "dp=2 [0 3]", "dp=2 [1 4]", "dp=2 [2 5]" } },
        { "dp=3,tp=1", FLATTEN, { "tp" }, "x", { "x=1 [0]", "x=1 [1]", "x=1 [2]" } },
        { "dp=1,tp=1", FLATTEN, { NULL }, "x", { "x=1 [0]" } },
        /* case 55: split dims */
        { "dp=4,tp=2", UNFLATTEN, { "dp", "dp=2,cp=2" }, NULL, { "dp=2,cp=2,tp=2 [[[0 1],[2 3]],[[4 5],[6 7]]]" } },
        { "world=8", UNFLATTEN, { "world", "dp=2,cp=2,tp=2" }, NULL, { "dp=2,cp=2,tp=2 [[[0 1],[2 3]],[[4 5],[6 7]]]" } },
        { "dp=2,tp=3", UNFLATTEN, { "tp", "a=1,b=3,c=1" }, NULL, { "dp=2,a=1,b=3,c=1 [[[[0],[1],[2]]],[[[3],[4],[5]]]]" } },
        { "tp=7", UNFLATTEN, { "tp", "tp=7" }, NULL, { "tp=7 [0 1 2 3 4 5 6]" } },
    };
    /* clang-format on */

    for (size_t i = 0; i < DT_COUNT(cases); i++)
        dt_test_on_ranks(cases[i].world, is_made, &cases[i]);
}

/* A flattened pair of dims that are no neighbours splits again, also across its seam. */
static dt_status splits_of_flattened(dt_mesh *world, const void *arg)
{
    static const char *const ac[] = { "a", "c" };
    const int rank = dt_runtime_rank(dt_mesh_runtime(world));
    DT_HELD(mesh) *flat = NULL, *same = NULL, *across = NULL;

    (void)arg;
    DT_TRY(dt_mesh_set_timeout(world, 4321));
    DT_TRY(dt_mesh_flatten(world, ac, 2, "f", &flat));
    DT_TRY(prints(flat, rank / 3 % 2 == 0 ? "f=6 [0 1 2 6 7 8]" : "f=6 [3 4 5 9 10 11]"));
    DT_TRY(dt_mesh_unflatten(flat, "f", "a=2,c=3", &same));
    DT_TRY(prints(same,
                  rank / 3 % 2 == 0 ? "a=2,c=3 [[0 1 2],[6 7 8]]" : "a=2,c=3 [[3 4 5],[9 10 11]]"));
    DT_TRY(dt_mesh_unflatten(flat, "f", "x=3,y=2", &across));
    DT_TRY(prints(across, rank / 3 % 2 == 0 ? "x=3,y=2 [[0 1],[2 6],[7 8]]"
                                            : "x=3,y=2 [[3 4],[5 9],[10 11]]"));
    DT_EXPECT(dt_mesh_timeout(same) == 4321 && dt_mesh_timeout(across) == 4321,
              "the deadline is not inherited"); /* PyTorch issues 119613, 180967 */
    return DT_OK;
}

DT_TEST(reshape, flattened_dims_split_anywhere)
{
    dt_test_on_ranks("a=2,b=2,c=3", splits_of_flattened, NULL);
}

static dt_status concatenates(dt_mesh *world, const void *arg)
{
    static const char *const dp[] = { "dp" }, *const tp[] = { "tp" },
                             *const pp_dp[] = { "pp", "dp" };
    const bool three = dt_mesh_n_dims(world) == 3;
    DT_HELD(mesh) *a = NULL, *b = NULL, *ab = NULL, *ba = NULL;
    dti_comm *of_world, *of_joined;

    (void)arg;
    DT_TRY(dt_mesh_slice(world, three ? pp_dp : dp, three ? 2 : 1, &a));
    DT_TRY(dt_mesh_slice(world, tp, 1, &b));
    DT_TRY(dt_mesh_concatenate((dt_mesh *[]){ a, b }, 2, &ab));
    DT_EXPECT(dt_mesh_equal(ab, world), "slices joined are not the mesh");
    DT_TRY(dt_mesh_concatenate((dt_mesh *[]){ b, a }, 2, &ba));
    DT_EXPECT(dt_mesh_dim_size(ba, 0) == dt_mesh_dim_size(b, 0) && !dt_mesh_equal(ba, ab),
              "the first mesh is not the outermost");
    for (uint32_t dims = 0; dims < 1u << dt_mesh_n_dims(world); dims++) {
        DT_TRY(dti_mesh_comm(world, dims, &of_world));
        DT_TRY(dti_mesh_comm(ab, dims, &of_joined));
        DT_EXPECT(of_world == of_joined, "groups 0x%x are not shared", dims);
    }
    return DT_OK;
}

DT_TEST(reshape, slices_join_again) /* case 56 */
{
    dt_test_on_ranks("dp=2,tp=4", concatenates, NULL);
    dt_test_on_ranks("pp=2,dp=2,tp=2", concatenates, NULL);
    dt_test_on_ranks("dp=3,tp=1", concatenates, NULL);
    dt_test_on_ranks("dp=1,tp=1", concatenates, NULL);
}

/* (2,2,2,1): three dims flattened, and put together with the fourth: (8,1), case 54. */
static dt_status flat_and_rest(dt_mesh *world, const void *arg)
{
    static const char *const abc[] = { "a", "b", "c" }, *const d[] = { "d" };
    DT_HELD(mesh) *flat = NULL, *rest = NULL, *both = NULL;

    (void)arg;
    DT_TRY(dt_mesh_flatten(world, abc, 3, "abc", &flat));
    DT_TRY(dt_mesh_slice(world, d, 1, &rest));
    DT_TRY(dt_mesh_concatenate((dt_mesh *[]){ flat, rest }, 2, &both));
    DT_TRY(prints(both, "abc=8,d=1 [[0],[1],[2],[3],[4],[5],[6],[7]]"));
    return DT_OK;
}

DT_TEST(reshape, flattened_dims_join_others)
{
    dt_test_on_ranks("a=2,b=2,c=2,d=1", flat_and_rest, NULL);
}

/* One world seen as (dp,cp,tp) and as (dp,ep,ep_tp): equal groups are one communicator, case 55. */
static dt_status two_views(dt_mesh *world, const void *arg)
{
    static const char *const cp_tp[] = { "cp", "tp" };
    DT_HELD(mesh) *dense = NULL, *sparse = NULL, *flat = NULL;
    dti_comm *x, *y;

    (void)arg;
    DT_TRY(dt_mesh_unflatten(world, "world", "dp=2,cp=2,tp=2", &dense));
    DT_TRY(dt_mesh_unflatten(world, "world", "dp=2,ep=4,ep_tp=1", &sparse));
    DT_TRY(dt_mesh_flatten(dense, cp_tp, 2, NULL, &flat));
    DT_TRY(dti_mesh_comm(dense, 6, &x));
    DT_TRY(dti_mesh_comm(sparse, 2, &y));
    DT_EXPECT(x == y, "cp x tp and ep are not one group");
    DT_TRY(dti_mesh_comm(flat, 1, &y));
    DT_EXPECT(x == y, "the flattened dim has a group of its own");
    DT_TRY(dti_mesh_comm(dense, 1, &x));
    DT_TRY(dti_mesh_comm(sparse, 1, &y));
    DT_EXPECT(x == y, "dp is not one group");
    return DT_OK;
}

DT_TEST(reshape, views_of_one_world_share_groups)
{
    dt_test_on_ranks("world=8", two_views, NULL);
}

/* --- any list of ranks ------------------------------------------------------------------------ */

/* Column-major over ranks [0 2 1 4]: the fifth rank list of PyTorch's tests, on 5 ranks. Rank 3 is
 * outside and sees the parts at coordinates 0. */
static dt_status odd_ranks(dt_mesh *world, const void *arg)
{
    static const char *const x[] = { "x" }, *const y[] = { "y" };
    const char *const columns[] = { "y=2 [0 1]", "y=2 [0 1]", "y=2 [2 4]", "y=2 [0 1]",
                                    "y=2 [2 4]" };
    const char *const rows[] = { "x=2 [0 2]", "x=2 [1 4]", "x=2 [0 2]", "x=2 [0 2]", "x=2 [1 4]" };
    dt_runtime *rt = dt_mesh_runtime(world);
    const int rank = dt_runtime_rank(rt);
    DT_HELD(mesh) *mesh = NULL, *part = NULL, *other = NULL, *joined = NULL, *flat = NULL;
    int group[2], coord[2] = { 7, 7 };

    (void)arg;
    DT_TRY(dt_mesh_create_ranks(rt, "x=2,y=2", (int[]){ 0, 1, 2, 4 }, &mesh));
    DT_EXPECT(dt_mesh_is_member(mesh) == (rank != 3), "rank %d", rank);
    DT_TRY(dt_mesh_slice(mesh, y, 1, &part));
    DT_TRY(prints(part, columns[rank]));
    DT_TRY(dt_mesh_slice(mesh, x, 1, &other));
    DT_TRY(prints(other, rows[rank]));
    DT_TRY(dt_mesh_concatenate((dt_mesh *[]){ part, other }, 2, &joined));
    DT_TRY(prints(joined, "y=2,x=2 [[0 2],[1 4]]"));
    DT_TRY(dt_mesh_flatten(joined, NULL, 0, NULL, &flat));
    DT_TRY(prints(flat, "y_x=4 [0 2 1 4]"));
    DT_EXPECT(!dt_mesh_find_rank(mesh, 3, coord) && coord[0] == 7, "rank 3 was found");
    DT_EXPECT(!dt_mesh_find_rank(mesh, 99, coord), "rank 99 was found");
    DT_EXPECT(dt_mesh_group(mesh, 0, (int[]){ 0, 1 }, group) == 2 && group[1] == 4,
              "the group of x at y = 1");
    DT_EXPECT(dt_mesh_group(mesh, 0, NULL, group) == 2 && group[0] == (rank == 1 || rank == 4),
              "the group of x through rank %d begins at %d", rank, group[0]);
    DT_EXPECT(dt_mesh_group(mesh, 2, NULL, group) == -1 &&
                  dt_mesh_group(mesh, 0, (int[]){ 0, 2 }, group) == -1,
              "a group that does not exist");
    return DT_OK;
}

DT_TEST(reshape, any_list_of_ranks_with_outsiders)
{
    dt_test_on_ranks("world=5", odd_ranks, NULL);
}

static dt_status equality(dt_mesh *world, const void *arg)
{
    static const char *const q[] = { "q" };
    dt_runtime *rt = dt_mesh_runtime(world);
    DT_HELD(mesh) *listed = NULL, *half = NULL, *slice = NULL;

    (void)arg; /* case 57; the way to a mesh does not matter, only ranks, sizes and names */
    DT_TRY(dt_mesh_create_ranks(rt, "p=2,q=2", (int[]){ 0, 1, 2, 3 }, &listed));
    DT_EXPECT(dt_mesh_equal(world, listed), "equal ranks, listed and not");
    DT_TRY(dt_mesh_slice(world, q, 1, &slice));
    DT_TRY(dt_mesh_create(rt, "q=2", &half));
    DT_EXPECT(dt_mesh_equal(slice, half) == (dt_runtime_rank(rt) < 2), "slice and mesh");
    DT_EXPECT(!dt_mesh_equal(world, slice) && !dt_mesh_equal(NULL, world) &&
                  dt_mesh_equal(NULL, NULL),
              "other dims, NULL");
    return DT_OK;
}

DT_TEST(reshape, equality_looks_at_ranks_sizes_and_names)
{
    dt_test_on_ranks("p=2,q=2", equality, NULL);
}

/* Each stage is the same for all ranks, those of other stages too, and its groups are those of the
 * mesh that it was cut from. */
static dt_status stages(dt_mesh *world, const void *arg)
{
    static const char *const want[] = { "dp=2,pp=1,tp=2 [[[0 1]],[[6 7]]]",
                                        "dp=2,pp=1,tp=2 [[[2 3]],[[8 9]]]",
                                        "dp=2,pp=1,tp=2 [[[4 5]],[[10 11]]]" };
    const dt_link links[] = { { 1, 2 }, { 3, 4 }, { 5, 6 } };
    static const char *const tp[] = { "tp" };
    const int mine = dt_mesh_coord(world, 1);
    dti_comm *of_world, *of_stage;

    (void)arg;
    DT_TRY(dt_mesh_set_timeout(world, 4321));
    DT_TRY(dt_mesh_set_links(world, links));
    for (int i = 0; i < 3; i++) {
        DT_HELD(mesh) *stage = NULL, *same = NULL, *line = NULL;
        DT_TRY(dt_mesh_stage(world, "pp", i, &stage));
        DT_TRY(prints(stage, want[i]));
        DT_EXPECT(dt_mesh_is_member(stage) == (i == mine), "stage %d", i);
        DT_EXPECT(dt_mesh_coord(stage, 2) == (i == mine ? dt_mesh_coord(world, 2) : -1), "tp");
        DT_EXPECT(dt_mesh_timeout(stage) == 4321 && dt_mesh_link(stage, 2).latency_ns == 5,
                  "the deadline or a link is not inherited");
        DT_TRY(dt_mesh_stage(stage, "pp", 0, &same));
        DT_EXPECT(same == stage, "the only stage is the mesh");
        DT_TRY(dt_mesh_slice(stage, tp, 1, &line));
        if (i == mine) {
            DT_EXPECT(dt_mesh_rank_at(line, dti_mesh_place(line)) ==
                          dt_mesh_rank_at(stage, dti_mesh_place(stage)),
                      "not mine");
            DT_TRY(dti_mesh_comm(world, 1u << 2, &of_world));
            DT_TRY(dti_mesh_comm(stage, 1u << 2, &of_stage));
            DT_EXPECT(of_world == of_stage, "equal groups have two communicators");
            DT_TRY(dti_mesh_comm(stage, 1u << 1, &of_stage));
            DT_EXPECT(of_stage->size == 1, "%d ranks along the dim that was cut", of_stage->size);
        }
    }
    return DT_OK;
}

DT_TEST(reshape, stages_keep_their_dims_and_groups)
{
    dt_test_on_ranks("dp=2,pp=3,tp=2", stages, NULL);
}

/* --- misuse ----------------------------------------------------------------------------------- */

static dt_status misuse(dt_mesh *mesh, const void *arg)
{
    static const char *const dp[] = { "dp" }, *const both[] = { "dp", "tp" },
                             *const back[] = { "tp", "dp" }, *const none[] = { "ep" },
                             *const nothing[] = { NULL };
    dt_runtime *rt = dt_mesh_runtime(mesh);
    DT_HELD(mesh) *line = NULL, *other = NULL;
    dt_mesh *bad = mesh;

    (void)arg;
    DT_TRY(dt_mesh_slice(mesh, dp, 1, &line));
    DT_TRY(dt_mesh_create_ranks(rt, "x=2", (int[]){ 1, 0 }, &other));
#define REFUSED(call, text)                   \
    DT_EXPECT_STATUS(call, DT_ERR_ARG, text); \
    DT_EXPECT(bad == NULL, "a refused mesh is there")
    REFUSED(dt_mesh_flatten(mesh, both, 2, "dp", &bad),
            "cannot be called \"dp\": the mesh has a dim of that name");
    REFUSED(dt_mesh_flatten(mesh, dp, 1, "tp", &bad), "cannot be called \"tp\"");
    REFUSED(dt_mesh_flatten(mesh, both, 2, "dp tp", &bad), "\"dp tp\" is no name of a dim");
    REFUSED(dt_mesh_flatten(mesh, both, 2, "", &bad), "\"\" is no name of a dim");
    REFUSED(dt_mesh_flatten(mesh, both, 2, "a_name_that_is_far_too_long", &bad),
            "more than 23 characters");
    REFUSED(dt_mesh_flatten(mesh, back, 2, NULL, &bad), "dim \"dp\" comes before \"tp\"");
    REFUSED(dt_mesh_flatten(mesh, none, 1, NULL, &bad), "no dim \"ep\"; it has \"dp,tp\"");
    REFUSED(dt_mesh_flatten(mesh, nothing, 1, NULL, &bad), "name 0 of 1 is NULL");
    REFUSED(dt_mesh_flatten(NULL, both, 2, NULL, &bad), "mesh is NULL");
    REFUSED(dt_mesh_flatten(mesh, NULL, 2, NULL, &bad), "2 names to flatten, and names is NULL");
    REFUSED(dt_mesh_unflatten(mesh, "dp", "a=2,b=2", &bad),
            "\"a=2,b=2\" are 4 ranks, but dim \"dp\" has 2");
    REFUSED(dt_mesh_unflatten(mesh, "ep", "a=2", &bad), "no dim \"ep\"");
    REFUSED(dt_mesh_unflatten(mesh, "dp", "tp=2", &bad), "another dim of the name \"tp\"");
    REFUSED(dt_mesh_unflatten(mesh, "dp", "a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=2", &bad),
            "the mesh has 9 dims");
    REFUSED(dt_mesh_unflatten(mesh, "dp", "a", &bad), "has no size");
    REFUSED(dt_mesh_unflatten(mesh, NULL, "a=2", &bad), "name or spec is NULL");
    REFUSED(dt_mesh_stage(mesh, "ep", 0, &bad), "no dim \"ep\"");
    REFUSED(dt_mesh_stage(mesh, "tp", 2, &bad), "stage 2 along dim \"tp\", which has stages 0..1");
    REFUSED(dt_mesh_stage(mesh, "tp", -1, &bad), "stage -1");
    REFUSED(dt_mesh_stage(mesh, NULL, 0, &bad), "mesh or name is NULL");
    REFUSED(dt_mesh_concatenate((dt_mesh *[]){ line, mesh }, 2, &bad),
            "dim \"dp\" of mesh 1 is there already");
    REFUSED(dt_mesh_concatenate((dt_mesh *[]){ line, other }, 2, &bad),
            "made from different lists of ranks");
    REFUSED(dt_mesh_concatenate((dt_mesh *[]){ line, NULL }, 2, &bad), "mesh 1 is NULL");
    REFUSED(dt_mesh_concatenate(NULL, 0, &bad), "no mesh to concatenate");
#undef REFUSED
    DT_EXPECT(dt_mesh_flatten(mesh, both, 2, NULL, NULL) == DT_ERR_ARG, "out is NULL");
    return DT_OK;
}

DT_TEST(reshape, misuse_is_refused_with_the_names)
{
    dt_test_on_ranks("dp=2,tp=2", misuse, NULL);
}

/* Dims that run through the same ranks, and a rank that is in one of the meshes only. */
static dt_status crossings(dt_mesh *world, const void *arg)
{
    static const char *const b[] = { "b" }, *const a[] = { "a" };
    dt_runtime *rt = dt_mesh_runtime(world);
    const int rank = dt_runtime_rank(rt);
    DT_HELD(mesh) *all = NULL, *part = NULL, *column = NULL, *two = NULL;
    dt_mesh *bad = NULL;

    (void)arg;
    DT_TRY(dt_mesh_flatten(world, NULL, 0, "all", &all));
    DT_TRY(dt_mesh_slice(world, b, 1, &part));
    DT_TRY(dt_mesh_slice(world, a, 1, &column));
    DT_TRY(dt_mesh_create(rt, "two=2", &two));
    DT_EXPECT_STATUS(dt_mesh_concatenate((dt_mesh *[]){ all, part }, 2, &bad), DT_ERR_ARG,
                     "dim \"b\" of mesh 1 runs through ranks of the dims before it");
    if (rank == 3)
        DT_EXPECT_STATUS(dt_mesh_concatenate((dt_mesh *[]){ column, two }, 2, &bad), DT_ERR_ARG,
                         "rank 3 is a member of mesh 0 but not of mesh 1");
    return DT_OK;
}

DT_TEST(reshape, meshes_that_do_not_cross_are_refused)
{
    dt_test_on_ranks("a=2,b=2", crossings, NULL);
}
