/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"
#include "mesh/runtime.h"
#include "placements/move.h"
#include "tests/support/dt_test.h"

static dt_status one_table_per_runtime(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[] = { DT_SHARD(-1), DT_REPLICATE };
    const dt_layout *a, *b, *c;
    dti_layouts *table;
    dti_move plan;

    (void)arg;
    DT_TRY(dt_layout_get(mesh, 2, place, NULL, &a));
    const uint64_t before = dti_alloc_count();
    DT_TRY(dt_layout_get(mesh, 2, place, (int[]){ 1, 0 }, &b));
    DT_EXPECT_EQ_INT(dti_alloc_count() - before, 0);
    DT_EXPECT(a == b, "the order of one cut means nothing");

    DT_TRY(dti_layouts_of(dt_mesh_runtime(mesh), &table));
    DT_TRY(dti_layout_intern(table, 2, (int[]){ 2, 2 }, 2, place, NULL, &c));
    DT_EXPECT(a == c, "a grid and a mesh of equal sizes share layouts");

    DT_TRY(dt_layout_get(mesh, 2, (dt_placement[]){ DT_REPLICATE, DT_REPLICATE }, NULL, &b));
    DT_TRY(dti_move_plan(table, a, b, &plan));
    DT_EXPECT_EQ_INT(plan.n_steps, 1);
    DT_EXPECT_EQ_STR(dti_move_name(&plan.step[0]), "all_gather");
    return DT_OK;
}

static dt_status refusals_name_the_mesh(dt_mesh *mesh, const void *arg)
{
    const dt_placement place[] = { DT_REPLICATE, DT_SHARD(2) };
    const dt_layout *l;

    (void)arg;
    DT_EXPECT_STATUS(dt_layout_get(mesh, 2, place, NULL, &l), DT_ERR_LAYOUT,
                     "on mesh \"dp=2,tp=2\": mesh dim 1 is Shard(2), but the axis must lie in");
    DT_EXPECT(l == NULL, "outputs are written on success only");
    DT_EXPECT_STATUS(dt_layout_get(NULL, 2, place, NULL, &l), DT_ERR_ARG, "mesh is NULL");
    DT_EXPECT_STATUS(dt_layout_get(mesh, 2, NULL, NULL, &l), DT_ERR_ARG, "place is NULL");
    DT_EXPECT_STATUS(dt_layout_get(mesh, 2, place, NULL, NULL), DT_ERR_ARG, "out is NULL");
    DT_EXPECT_STATUS(dt_layout_get(mesh, 9, place, NULL, &l), DT_ERR_ARG, "9 axes");
    return DT_OK;
}

/* The members of a step's group are the ranks of the mesh's communicator, in its order. */
static dt_status members_are_those_of_the_mesh(dt_mesh *mesh, const void *arg)
{
    const dt_layout *from, *to;
    dti_layouts *table;
    dti_move plan;
    dti_comm *comm;
    int me[3];

    (void)arg;
    for (int m = 0; m < 3; m++) me[m] = dt_mesh_coord(mesh, m);
    DT_TRY(dti_layouts_of(dt_mesh_runtime(mesh), &table));
    DT_TRY(dt_layout_get(mesh, 2, (dt_placement[]){ DT_SHARD(0), DT_REPLICATE, DT_SHARD(1) }, NULL,
                         &from));
    DT_TRY(dt_layout_get(mesh, 2, (dt_placement[]){ { 0 }, { 0 }, { 0 } }, NULL, &to));
    DT_TRY(dti_move_plan(table, from, to, &plan));
    DT_TRY(dti_mesh_comm(mesh, plan.step[0].dims, &comm));
    DT_EXPECT_EQ_INT(comm->size, dti_move_group_size(&plan.step[0]));
    for (int i = 0; i < comm->size; i++) {
        int coord[3];
        dti_move_member(&plan.step[0], me, i, coord);
        const int place = (coord[0] * 2 + coord[1]) * 2 + coord[2];
        DT_EXPECT_EQ_INT(comm->world_ranks[i], dt_mesh_rank_at(mesh, place));
    }
    return DT_OK;
}

/* Terms of a Shard: the group is the neighbours that hold them, in one or in both dims. */
static dt_status holders_of_terms_reduce_alone(dt_mesh *mesh, const void *arg)
{
    const dt_placement terms = dt_shard_terms(0, 1, 2);
    const dt_placement from_place[][2] = { { DT_REPLICATE, terms }, { DT_PARTIAL(DT_SUM), terms } };
    const int me[] = { dt_mesh_coord(mesh, 0), dt_mesh_coord(mesh, 1) };

    (void)arg;
    for (size_t k = 0; k < DT_COUNT(from_place); k++) {
        dt_placement to_place[] = { from_place[k][0], from_place[k][1] };
        const dt_layout *from, *to;
        dti_comm *comm, *again;
        dti_move plan;
        for (int m = 0; m < 2; m++) to_place[m] = dti_placement_reduced(&to_place[m]);
        DT_TRY(dt_layout_get(mesh, 1, from_place[k], NULL, &from));
        DT_TRY(dt_layout_get(mesh, 1, to_place, NULL, &to));
        DT_TRY(dti_move_plan(from->table, from, to, &plan));
        DT_EXPECT_EQ_INT(plan.n_steps, 1);
        const int along[] = { dti_move_along(&plan.step[0], 0), dti_move_along(&plan.step[0], 1) };
        DT_TRY(dti_mesh_comm_along(mesh, plan.step[0].dims, along, &comm));
        DT_TRY(dti_mesh_comm_along(mesh, plan.step[0].dims, along, &again));
        DT_EXPECT(comm == again, "one group, two communicators");
        DT_EXPECT_EQ_INT(comm->size, dti_move_group_size(&plan.step[0]));
        DT_EXPECT_EQ_INT(comm->size, k == 1 ? 4 : 2);
        for (int i = 0; i < comm->size; i++) {
            int coord[2];
            dti_move_member(&plan.step[0], me, i, coord);
            DT_EXPECT_EQ_INT(comm->world_ranks[i], dt_mesh_rank_at(mesh, coord[0] * 4 + coord[1]));
        }
    }
    return DT_OK;
}

DT_TEST(layout_mesh, holders_of_terms_reduce_alone)
{
    dt_test_on_ranks("a=2,b=4", holders_of_terms_reduce_alone, NULL);
}

DT_TEST(layout_mesh, a_runtime_has_one_table)
{
    dt_test_on_ranks("dp=2,tp=2", one_table_per_runtime, NULL);
}

DT_TEST(layout_mesh, refusals_name_the_mesh)
{
    dt_test_on_ranks("dp=2,tp=2", refusals_name_the_mesh, NULL);
}

DT_TEST(layout_mesh, members_of_a_step_are_those_of_the_communicator)
{
    dt_test_on_ranks("a=2,b=2,c=2", members_are_those_of_the_mesh, NULL);
}
