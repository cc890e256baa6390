/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"
#include "tests/placements/grid.h"

static const grid g22 = { 2, { 2, 2 } };
static const grid g222 = { 3, { 2, 2, 2 } };

static dt_status intern(dti_layouts *t, const grid *g, int n_axes, const dt_placement *place,
                        const int *order, const dt_layout **out)
{
    return dti_layout_intern(t, g->n_dims, g->size, n_axes, place, order, out);
}

DT_TEST(layout, equal_layouts_are_one_pointer)
{
    dti_layouts *t = new_table();
    const dt_layout *a, *b;

    DT_ASSERT_OK(intern(t, &g22, 2, (dt_placement[]){ DT_SHARD(-1), DT_REPLICATE }, NULL, &a));
    DT_ASSERT_OK(intern(t, &g22, 2, (dt_placement[]){ DT_SHARD(1), { 0 } }, NULL, &b));
    DT_ASSERT(a == b);
    DT_ASSERT_EQ_INT(dt_layout_placement(a, 0).axis, 1); /* case 10: S(-1) stores axis 1 */
    DT_ASSERT(a->hash == b->hash);

    /* unit and replicas of 0 mean 1; fields that a kind does not use do not count */
    DT_ASSERT_OK(intern(t, &g22, 2,
                        (dt_placement[]){ { .kind = DT_PLACE_SHARD, .axis = 1, .reduce = DT_MAX },
                                          { .kind = DT_PLACE_REPLICATE, .axis = 7, .unit = 3 } },
                        NULL, &b));
    DT_ASSERT(a == b);

    DT_ASSERT(layout(t, &g22, 3, "S(1)R") != a);
    DT_ASSERT(layout(t, &g22, 2, "S(0)R") != a);
    DT_ASSERT(layout(t, &g22, 2, "S(1,unit=2)R") != a);
    DT_ASSERT(layout(t, &g22, 2, "S(1,replicas=2)R") != a);
    DT_ASSERT(layout(t, &(grid){ 2, { 2, 3 } }, 2, "S(1)R") != a);
    DT_ASSERT(layout(t, &g22, 2, "P(sum)R") != layout(t, &g22, 2, "P(max)R"));
    dti_layouts_destroy(t);
}

/* Case 42: the caller's list is copied. */
DT_TEST(layout, does_not_see_later_changes_of_the_callers_list)
{
    dti_layouts *t = new_table();
    dt_placement place[] = { DT_SHARD(0), DT_REPLICATE };
    const dt_layout *l;

    DT_ASSERT_OK(intern(t, &g22, 1, place, NULL, &l));
    place[0] = DT_PARTIAL(DT_SUM);
    DT_ASSERT_EQ_INT(dt_layout_placement(l, 0).kind, DT_PLACE_SHARD);
    DT_ASSERT_EQ_INT(dt_layout_placement(l, 2).kind, DT_PLACE_REPLICATE); /* no such dim */
    DT_ASSERT_EQ_INT(dt_layout_n_dims(l), 2);
    DT_ASSERT_EQ_INT(dt_layout_n_axes(l), 1);
    dti_layouts_destroy(t);
}

DT_TEST(layout, order_counts_only_among_cuts_of_one_axis)
{
    dti_layouts *t = new_table();
    const dt_placement s00[] = { DT_SHARD(0), DT_SHARD(0) }, s01[] = { DT_SHARD(0), DT_SHARD(1) };
    const dt_placement s0s1s0[] = { DT_SHARD(0), DT_SHARD(1), DT_SHARD(0) };
    const dt_layout *plain, *turned;

    DT_ASSERT_OK(intern(t, &g22, 2, s00, NULL, &plain));
    DT_ASSERT_OK(intern(t, &g22, 2, s00, (int[]){ 1, 0 }, &turned));
    DT_ASSERT(plain != turned && plain->default_order && !turned->default_order);

    DT_ASSERT_OK(intern(t, &g22, 2, s01, NULL, &plain));
    DT_ASSERT_OK(intern(t, &g22, 2, s01, (int[]){ 1, 0 }, &turned));
    DT_ASSERT(plain == turned && turned->default_order);

    /* six permutations, two meanings: dim 0 before dim 2 or after it */
    DT_ASSERT_OK(intern(t, &g222, 2, s0s1s0, (int[]){ 1, 0, 2 }, &plain));
    DT_ASSERT_OK(intern(t, &g222, 2, s0s1s0, (int[]){ 2, 1, 0 }, &turned));
    for (int i = 0; i < 6; i++) {
        static const int orders[6][3] = { { 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 },
                                          { 2, 0, 1 }, { 2, 1, 0 }, { 1, 2, 0 } };
        const dt_layout *l;
        DT_ASSERT_OK(intern(t, &g222, 2, s0s1s0, orders[i], &l));
        DT_ASSERT(l == (i < 3 ? plain : turned));
    }
    dti_layouts_destroy(t);
}

DT_TEST(layout, a_dim_of_one_rank_cuts_nothing_and_keeps_its_placement)
{
    dti_layouts *t = new_table();
    const grid g = { 2, { 4, 1 } };
    const dt_layout *l = layout(t, &g, 2, "RS(0)"), *p = layout(t, &g, 2, "RP(sum)");

    DT_ASSERT(dt_layout_is_replicated(l));
    DT_ASSERT(dt_layout_is_replicated(p));
    DT_ASSERT_EQ_INT(dt_layout_placement(l, 1).kind, DT_PLACE_SHARD);
    DT_ASSERT_EQ_INT(dt_layout_placement(p, 1).kind, DT_PLACE_PARTIAL);
    DT_ASSERT(dti_layout_same_pieces(l, p));
    DT_ASSERT(!dt_layout_is_replicated(layout(t, &g, 2, "S(0)S(0)")));
    DT_ASSERT(layout(t, &g, 2, "S(0)[1]S(0)[0]") == layout(t, &g, 2, "S(0)S(0)"));
    DT_ASSERT(layout(t, &g, 2, "P(sum)P(max)") != NULL); /* nothing to mix over one rank */
    DT_ASSERT(dt_layout_is_replicated(layout(t, &g, 2, "S(0,replicas=4)R")));
    DT_ASSERT(!dt_layout_is_replicated(NULL));
    dti_layouts_destroy(t);
}

DT_TEST(layout, same_cuts_compares_dims_order_units_and_replicas)
{
    static const struct {
        const char *a, *b;
        int a_axis, b_axis;
        bool same;
    } rows[] = {
        { "S(0)R", "S(1)R", 0, 1, true },
        { "S(0)R", "S(0)R", 1, 1, true }, /* uncut on both sides */
        { "S(0)R", "RS(0)", 0, 0, false },
        { "S(0)S(0)", "S(1)S(1)", 0, 1, true },
        { "S(0)S(0)", "S(1)[1]S(1)[0]", 0, 1, false },
        { "S(0)S(0)", "S(0)R", 0, 0, false },
        { "S(0)R", "S(0,unit=2)R", 0, 0, false },
        { "S(0)P(sum)", "S(0)R", 0, 0, true },
        { "S(0,replicas=2)R", "RR", 0, 0, true }, /* one part is no cut */
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *a = layout(t, &g22, 2, rows[i].a), *b = layout(t, &g22, 2, rows[i].b);
        DT_ASSERT_EQ_INT(dti_layout_same_cuts(a, rows[i].a_axis, b, rows[i].b_axis), rows[i].same);
        DT_ASSERT_EQ_INT(dti_layout_same_cuts(b, rows[i].b_axis, a, rows[i].a_axis), rows[i].same);
    }
    DT_ASSERT(!dti_layout_same_cuts(layout(t, &g22, 1, "S(0)R"), 0,
                                    layout(t, &(grid){ 2, { 3, 2 } }, 1, "S(0)R"), 0));
    dti_layouts_destroy(t);
}

DT_TEST(layout, a_known_layout_costs_no_malloc_and_thousands_keep_their_place)
{
    enum { N = 3000 };
    static const dt_layout *known[N];
    dti_layouts *t = new_table();

    for (int i = 0; i < N; i++)
        DT_ASSERT_OK(intern(t, &g22, 2, (dt_placement[]){ DT_SHARD_UNITS(0, i + 1), DT_SHARD(0) },
                            NULL, &known[i]));
    const uint64_t before = dti_alloc_count();
    for (int i = 0; i < N; i++) {
        const dt_layout *l;
        DT_ASSERT_OK(intern(t, &g22, 2, (dt_placement[]){ DT_SHARD_UNITS(-2, i + 1), DT_SHARD(0) },
                            NULL, &l));
        DT_ASSERT(l == known[i]);
    }
    DT_ASSERT_EQ_INT(dti_alloc_count() - before, 0);
    dti_layouts_destroy(t);
    DT_ASSERT_EQ_INT(dti_alloc_live(), 0);
}

DT_TEST(layout, refusals_name_dim_axis_and_numbers)
{
    static const struct {
        dt_placement place[2];
        int order[2];
        int n_axes;
        dt_status code;
        const char *message;
    } rows[] = {
        { { { DT_PLACE_SHARD, .axis = 2 } },
          { 0, 1 },
          2,
          DT_ERR_LAYOUT,
          "mesh dim 0 is Shard(2), but the axis must lie in [-2, 2) for a tensor of 2 axes" },
        { { { 0 }, { DT_PLACE_SHARD, .axis = -3 } },
          { 0, 1 },
          2,
          DT_ERR_LAYOUT,
          "mesh dim 1 is Shard(-3), but the axis must lie in [-2, 2)" },
        { { { DT_PLACE_SHARD, .axis = 0 } },
          { 0, 1 },
          0,
          DT_ERR_LAYOUT,
          "mesh dim 0 is Shard(0), but a tensor without axes cannot be cut" },
        { { { DT_PLACE_SHARD, .unit = -4 } },
          { 0, 1 },
          1,
          DT_ERR_LAYOUT,
          "mesh dim 0 is Shard(0) with unit -4: 1 or more is needed" },
        { { { DT_PLACE_SHARD, .replicas = -1 } },
          { 0, 1 },
          1,
          DT_ERR_LAYOUT,
          "with -1 replicas: 1 or more are needed" },
        { { { 0 }, { DT_PLACE_SHARD, .replicas = 2 } },
          { 0, 1 },
          1,
          DT_ERR_LAYOUT,
          "mesh dim 1 is Shard(0) with 2 replicas, which do not divide its 3 ranks" },
        { { { DT_PLACE_PARTIAL, .reduce = DT_SUM }, { DT_PLACE_PARTIAL, .reduce = DT_MAX } },
          { 0, 1 },
          1,
          DT_ERR_LAYOUT,
          "mesh dim 0 is Partial(sum) and mesh dim 1 is Partial(max): only sum and avg" },
        { { { DT_PLACE_PARTIAL, .reduce = (dt_reduce)9 } },
          { 0, 1 },
          1,
          DT_ERR_ARG,
          "mesh dim 0 is Partial of unknown reduction 9" },
        { { { .kind = (dt_place_kind)5 } },
          { 0, 1 },
          1,
          DT_ERR_ARG,
          "mesh dim 0 has a placement of unknown kind 5" },
        { { { 0 } }, { 0, 0 }, 1, DT_ERR_ARG, "order names mesh dim 0 twice" },
        { { { 0 } }, { 0, 2 }, 1, DT_ERR_ARG, "order[1] is 2, but the mesh has the dims 0 to 1" },
        { { { 0 } }, { 0, 1 }, 9, DT_ERR_ARG, "9 axes: 0 to 8 are possible" },
        { { { 0 } }, { 0, 1 }, -1, DT_ERR_ARG, "-1 axes: 0 to 8 are possible" },
    };
    dti_layouts *t = new_table();
    const grid g = { 2, { 2, 3 } };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *l = (const dt_layout *)t;
        DT_ASSERT_STATUS(intern(t, &g, rows[i].n_axes, rows[i].place, rows[i].order, &l),
                         rows[i].code, rows[i].message);
        DT_ASSERT(l == NULL);
    }
    DT_ASSERT(layout(t, &g, 1, "P(sum)P(avg)") != NULL);
    dti_layouts_destroy(t);
}

DT_TEST(layout, another_reduction_is_another_layout)
{
    const grid g = { 1, { 2 } };
    const dt_placement sum = DT_PARTIAL(DT_SUM), most = DT_PARTIAL(DT_MAX);
    dti_layouts *t = new_table();
    const dt_layout *terms = layout(t, &g, 1, "P(sum)"), *other;

    DT_ASSERT_OK(dti_layout_with(terms, 0, &sum, &other));
    DT_ASSERT(other == terms);
    DT_ASSERT_OK(dti_layout_with(terms, 0, &most, &other));
    DT_ASSERT(other == layout(t, &g, 1, "P(max)"));
    dti_layouts_destroy(t);
}
