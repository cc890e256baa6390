/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans as readable rows: the collectives, the states in between, bytes, refusals. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "placements/move.h"
#include "tests/placements/grid.h"

/* "reduce_scatter all_gather": the steps, without local slices, which cost nothing. */
static void collectives(const dti_move *plan, char *text, size_t bytes)
{
    size_t n = 0;

    text[0] = '\0';
    for (int i = 0; i < plan->n_steps && n < bytes; i++)
        if (plan->step[i].kind != DTI_MOVE_LOCAL_SLICE)
            n += (size_t)snprintf(text + n, bytes - n, "%s%s", n > 0 ? " " : "",
                                  dti_move_name(&plan->step[i]));
}

typedef struct row {
    const char *from, *to, *collectives, *trace;
} row;

static void check_rows(const grid *g, int n_axes, const row *rows, size_t n_rows)
{
    dti_layouts *t = new_table();

    for (size_t i = 0; i < n_rows; i++) {
        const dt_layout *from = layout(t, g, n_axes, rows[i].from);
        const dt_layout *to = layout(t, g, n_axes, rows[i].to);
        dti_move plan;
        char text[256];
        DT_ASSERT_OK(dti_move_plan(t, from, to, &plan));
        collectives(&plan, text, sizeof text);
        if (strcmp(text, rows[i].collectives) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s -> %s: \"%s\", not \"%s\"", rows[i].from,
                         rows[i].to, text, rows[i].collectives);
        DT_ASSERT_EQ_INT(dti_move_is_local(from, to), rows[i].collectives[0] == '\0');
        text[0] = '\0';
        dti_writer w = { text, sizeof text, 0 };
        dti_put_move(&w, &plan);
        DT_ASSERT_EQ_INT(dti_written(&w), strlen(text));
        if (rows[i].trace != NULL) DT_ASSERT_EQ_STR(text, rows[i].trace);
    }
    dti_layouts_destroy(t);
}

#define CHECK_ROWS(n_axes, rows, ...) check_rows(&(grid)__VA_ARGS__, n_axes, rows, DT_COUNT(rows))

/* Cases 1, 2, 3, 5, 6, 9, 12. */
DT_TEST(move, plans_on_one_dim)
{
    static const row rows[] = {
        { "S(0)", "R", "all_gather", "S(0)->R" },
        { "S(1)", "R", "all_gather", "S(1)->R" },
        { "R", "R", "", "" },
        { "P(sum)", "P(sum)", "", "" },
        { "R", "S(0)", "", "R->S(0)" },
        { "P(sum)", "R", "all_reduce", "P(sum)->R" },
        { "P(max)", "R", "all_reduce", "P(max)->R" },
        { "P(sum)", "S(0)", "reduce_scatter", "P(sum)->S(0)" },
        { "P(avg)", "S(1)", "reduce_scatter", "P(avg)->S(1)" },
        { "S(0)", "S(1)", "all_to_all", "S(0)->S(1)" },
        { "S(0)", "S(0,unit=2)", "all_to_all", "S(0)->S(0,unit=2)" },
        /* copies: each part reduced once per copy is no less than an all-reduce */
        { "P(sum)", "S(0,replicas=2)", "all_reduce", "P(sum)->R->S(0,replicas=2)" },
        { "P(sum)", "S(0,replicas=4)", "all_reduce", "P(sum)->S(0,replicas=4)" },
        { "S(0,replicas=4)", "R", "", "S(0,replicas=4)->R" },
        { "S(0,replicas=2)", "R", "all_gather", NULL },
    };
    CHECK_ROWS(2, rows, { 1, { 4 } });
}

/* Case 14 (upper bounds 1, 2, 2, 2, 1: we need one each), 26, and orders. */
DT_TEST(move, plans_on_two_dims)
{
    static const row rows[] = {
        { "S(0)S(1)", "S(0)S(0)", "all_to_all", NULL },
        { "S(0)S(1)", "S(1)S(0)", "all_to_all", NULL },
        { "S(0)S(0)", "S(1)S(1)", "all_to_all", NULL },
        { "S(0)S(2)", "S(1)S(0)", "all_to_all", NULL },
        { "S(1)S(1)", "S(1)S(2)", "all_to_all", NULL },
        { "S(0)S(0)", "S(0)R", "all_gather", NULL },
        { "S(0)S(0)", "RR", "all_gather", "S(0)[0]S(0)[1]-->RR" },
        { "S(0)[1]S(0)[0]", "RS(0)", "all_gather", NULL },
        { "S(0)S(0)", "RS(0)", "all_to_all", NULL },
        { "S(0)S(0)", "S(0)[1]S(0)[0]", "all_to_all", NULL },
        { "S(0)S(1)", "RR", "all_gather", NULL },
        { "S(0)R", "RS(1)", "all_gather", NULL }, /* of narrower pieces */
        { "S(0)R", "RS(0)", "all_to_all", NULL },
        { "RR", "S(0)S(0)", "", "RR->S(0)[0]S(0)[1]" },
        { "S(0)R", "S(0)S(0)", "", NULL },
        { "RS(0)", "S(0)[1]S(0)[0]", "", NULL },
        { "RS(0)", "S(0)S(0)", "all_to_all", NULL },
        { "P(sum)P(sum)", "RR", "all_reduce", "P(sum)P(sum)-->RR" },
        { "P(sum)P(avg)", "RR", "all_reduce", "P(sum)P(avg)-->RR" },
        { "P(sum)P(sum)", "S(0)S(0)", "reduce_scatter reduce_scatter",
          "P(sum)P(sum)->S(0)P(sum)->S(0)[0]S(0)[1]" },
        { "P(sum)P(sum)", "S(0)[1]S(0)[0]", "reduce_scatter reduce_scatter",
          "P(sum)P(sum)->P(sum)S(0)->S(0)[1]S(0)[0]" },
        { "P(sum)P(sum)", "S(0)S(1)", "reduce_scatter reduce_scatter", NULL },
        { "P(sum)P(sum)", "RS(0)", "reduce_scatter all_reduce", "P(sum)P(sum)->P(sum)S(0)->RS(0)" },
        { "P(sum)P(sum)", "RP(sum)", "all_reduce", "P(sum)P(sum)->RP(sum)" },
        { "S(0)P(sum)", "S(0)S(0)", "reduce_scatter", "S(0)P(sum)->S(0)[0]S(0)[1]" },
        { "P(sum)S(0)", "S(0)[1]S(0)[0]", "reduce_scatter", "P(sum)S(0)->S(0)[1]S(0)[0]" },
        /* the append would stand behind the wrong cut */
        { "P(sum)S(0)", "S(0)S(0)", "all_reduce all_to_all", "P(sum)S(0)->RS(0)->S(0)[0]S(0)[1]" },
        { "P(sum)S(0)", "S(0)R", "all_reduce all_to_all", "P(sum)S(0)->RS(0)->S(0)R" },
        { "P(sum)S(0)", "S(1)R", "reduce_scatter all_gather", "P(sum)S(0)->S(1)S(0)->S(1)R" },
        { "P(sum)S(0)", "RR", "all_reduce all_gather", "P(sum)S(0)->RS(0)->RR" },
        /* what the target cuts anyway is cut before it is reduced */
        { "P(sum)R", "RS(0)", "all_reduce", "P(sum)R->P(sum)S(0)->RS(0)" },
        { "RP(sum)", "S(0)S(0)", "reduce_scatter", "RP(sum)->S(0)P(sum)->S(0)[0]S(0)[1]" },
        { "P(sum)R", "S(0)S(0)", "reduce_scatter", "P(sum)R->S(0)R->S(0)[0]S(0)[1]" },
        { "P(sum)R", "S(0)S(1)", "reduce_scatter", "P(sum)R->P(sum)S(1)->S(0)S(1)" },
    };
    CHECK_ROWS(3, rows, { 2, { 4, 2 } });
}

/* Case 20 with bounds 3, 3, 2, 1, 2, 2, case 21, 26 and 28. */
DT_TEST(move, plans_on_three_dims)
{
    static const row rows[] = {
        { "S(0)S(0)S(0)", "S(1)S(1)S(1)", "all_to_all", NULL },
        { "S(0)S(1)S(0)", "S(1)S(0)S(0)", "all_to_all", NULL },
        { "S(0)S(1)S(2)", "S(2)S(1)S(0)", "all_to_all", NULL },
        { "S(1)S(0)S(0)", "RS(0)S(0)", "all_gather", NULL },
        { "S(1)RS(0)", "S(0)S(0)R", "all_to_all", NULL },
        { "S(0)S(0)S(1)", "S(0)S(1)S(2)", "all_to_all", NULL },
        { "S(0)S(0)S(0)", "RS(0)[1]S(0)[0]", "all_to_all", NULL },
        { "S(0)[1]S(0)[0]S(0)[2]", "RRR", "all_gather", NULL },
        { "P(sum)P(sum)P(sum)", "RRR", "all_reduce", NULL },
        { "P(sum)S(0)P(sum)", "RRR", "all_reduce all_gather", NULL },
        { "P(sum)RP(sum)", "RRR", "all_reduce", NULL },
        { "P(sum)P(sum)R", "S(0)S(1)R", "reduce_scatter reduce_scatter", NULL },
        { "P(avg)P(avg)P(sum)", "RRR", "all_reduce", NULL },
        { "S(0)P(sum)P(sum)", "S(0)RR", "all_reduce", NULL },
        { "P(max)P(max)S(1)", "RP(max)S(1)", "all_reduce", NULL },
    };
    CHECK_ROWS(3, rows, { 3, { 2, 2, 2 } });
}

/* Case 15: on a (4,1) mesh the second dim never communicates. */
DT_TEST(move, a_dim_of_one_rank_never_communicates)
{
    static const char *const from[] = { "S(1)", "R", "P(sum)" }, *const to[] = { "S(0)", "S(1)",
                                                                                 "R" };
    static const char *const first[] = { "R", "S(0)", "S(1)", "P(sum)" };
    const grid g = { 2, { 4, 1 } };
    dti_layouts *t = new_table();

    for (size_t k = 0; k < DT_COUNT(first); k++) {
        for (size_t i = 0; i < DT_COUNT(from) * DT_COUNT(to); i++) {
            char a[32], b[32];
            dti_move plan;
            (void)snprintf(a, sizeof a, "%s%s", first[k], from[i / DT_COUNT(to)]);
            (void)snprintf(b, sizeof b, "%s%s", first[k], to[i % DT_COUNT(to)]);
            DT_ASSERT_OK(dti_move_plan(t, layout(t, &g, 2, a), layout(t, &g, 2, b), &plan));
            DT_ASSERT(plan.n_steps <= 1);
            if (plan.n_steps == 1) DT_ASSERT(plan.step[0].same_piece);
        }
    }
    dti_layouts_destroy(t);
}

/* Cases 8, 16 and 17. */
DT_TEST(move, partial_is_kept_but_never_made)
{
    static const struct {
        const char *from, *to, *message; /* NULL: legal */
    } rows[] = {
        { "P(sum)S(0)", "P(sum)S(0)", NULL },
        { "P(sum)S(0)", "P(sum)S(1)", NULL },
        { "S(0)P(sum)", "RP(sum)", NULL },
        { "P(prod)S(0)", "P(prod)S(0)", NULL },
        { "P(prod)S(0)", "P(prod)S(1)", NULL },
        { "S(0)P(prod)", "RP(prod)", NULL },
        { "S(0)R", "S(0)P(sum)",
          "S(0)R -> S(0)P(sum): Partial(sum) is wanted on mesh dim 1 (2 ranks), where the value is "
          "R: "
          "a whole value cannot become terms" },
        { "S(0)R", "RP(sum)", "wanted on mesh dim 1 (2 ranks), where the value is R" },
        { "S(0)S(1)", "RP(sum)", "wanted on mesh dim 1 (2 ranks), where the value is S(1)" },
        { "S(0)P(prod)", "RP(sum)",
          "on mesh dim 1 (2 ranks) the value is P(prod) and cannot become Partial(sum)" },
        { "P(sum)R", "P(avg)R", "the value is P(sum) and cannot become Partial(avg)" },
        { "RR", "P(sum)R", "a whole value cannot become terms" },
    };
    const grid g = { 2, { 2, 2 } };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *from = layout(t, &g, 2, rows[i].from), *to = layout(t, &g, 2, rows[i].to);
        dti_move plan;
        if (rows[i].message == NULL)
            DT_ASSERT_OK(dti_move_plan(t, from, to, &plan));
        else
            DT_ASSERT_STATUS(dti_move_plan(t, from, to, &plan), DT_ERR_LAYOUT, rows[i].message);
    }
    dti_layouts_destroy(t);
}

DT_TEST(move, layouts_of_different_grids_are_refused)
{
    dti_layouts *t = new_table();
    const dt_layout *l = layout(t, &(grid){ 2, { 2, 2 } }, 2, "S(0)R");
    dti_move plan;

    DT_ASSERT_STATUS(dti_move_plan(t, l, layout(t, &(grid){ 2, { 2, 3 } }, 2, "RR"), &plan),
                     DT_ERR_ARG, "mesh dim 1 has 2 ranks in the tensor's layout and 3");
    DT_ASSERT_STATUS(dti_move_plan(t, l, layout(t, &(grid){ 1, { 2 } }, 2, "R"), &plan), DT_ERR_ARG,
                     "a tensor on 2 mesh dims cannot move to a layout of 1 mesh dims");
    DT_ASSERT_STATUS(dti_move_plan(t, l, layout(t, &(grid){ 2, { 2, 2 } }, 3, "RR"), &plan),
                     DT_ERR_ARG, "a tensor of 2 axes cannot move to a layout of 3 axes");
    dti_layouts_destroy(t);
}

DT_TEST(move, reductions_name_their_group_and_divisor)
{
    static const struct {
        const char *from, *to;
        dt_reduce reduce;
        int divisor;
        uint32_t dims;
    } rows[] = {
        { "P(sum)P(sum)P(sum)", "RRR", DT_SUM, 1, 7 },
        { "P(avg)P(avg)R", "RRR", DT_AVG, 1, 3 }, /* one rounding: the collective divides */
        { "P(avg)P(sum)P(avg)", "RRR", DT_SUM, 8, 7 },
        { "P(sum)P(avg)P(avg)", "P(sum)RR", DT_AVG, 1, 6 },
        { "P(min)RP(min)", "RRR", DT_MIN, 1, 5 },
        { "P(avg)P(sum)R", "S(0)P(sum)R", DT_AVG, 1, 1 },
    };
    const grid g = { 3, { 2, 3, 4 } };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        dti_move plan;
        DT_ASSERT_OK(
            dti_move_plan(t, layout(t, &g, 1, rows[i].from), layout(t, &g, 1, rows[i].to), &plan));
        DT_ASSERT_EQ_INT(plan.n_steps, 1);
        DT_ASSERT_EQ_INT(plan.step[0].reduce, rows[i].reduce);
        DT_ASSERT_EQ_INT(plan.step[0].divisor, rows[i].divisor);
        DT_ASSERT_EQ_INT(plan.step[0].dims, rows[i].dims);
    }
    dti_layouts_destroy(t);
}

/* Two reductions one after the other: what comes between them is wide where rounding it would show,
 * not where the result is one of the terms. */
DT_TEST(move, only_sums_and_products_are_wide_between_steps)
{
    static const struct {
        const char *source, *between;
        bool wide;
    } rows[] = {
        { "P(sum)P(sum)", "RP(sum)", true },    { "P(avg)P(avg)", "RP(avg)", true },
        { "P(prod)P(prod)", "RP(prod)", true }, { "P(min)P(min)", "RP(min)", false },
        { "P(max)P(max)", "RP(max)", false },
    };
    const grid g = { 2, { 2, 2 } };
    dti_layouts *t = new_table();
    const dt_layout *whole = layout(t, &g, 1, "RR");

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *source = layout(t, &g, 1, rows[i].source);
        const dt_layout *between = layout(t, &g, 1, rows[i].between);
        dti_move_step first = { .kind = DTI_MOVE_ALL_REDUCE, .dims = 1, .divisor = 1 };
        dti_move_step second = { .kind = DTI_MOVE_ALL_REDUCE, .dims = 2, .divisor = 1 };
        first.from = source;
        first.to = second.from = between;
        second.to = whole;
        dti_move_set_width(&first, source, whole);
        dti_move_set_width(&second, source, whole);
        DT_ASSERT(first.wide == rows[i].wide && second.wide == rows[i].wide);
        DT_ASSERT(first.widens == rows[i].wide && !second.widens);
        DT_ASSERT(!first.narrows && second.narrows == rows[i].wide);
    }
    dti_layouts_destroy(t);
}

DT_TEST(move, members_of_a_group_are_in_row_major_order)
{
    const grid g = { 3, { 2, 3, 2 } };
    dti_layouts *t = new_table();
    dti_move plan;
    int coord[3];

    DT_ASSERT_OK(dti_move_plan(t, layout(t, &g, 2, "S(0)RS(1)"), layout(t, &g, 2, "RRR"), &plan));
    DT_ASSERT_EQ_INT(plan.step[0].dims, 5);
    DT_ASSERT_EQ_INT(dti_move_group_size(&plan.step[0]), 4);
    for (int i = 0; i < 4; i++) {
        dti_move_member(&plan.step[0], (int[]){ 1, 2, 0 }, i, coord);
        DT_ASSERT_EQ_INT(coord[0], i / 2);
        DT_ASSERT_EQ_INT(coord[1], 2);
        DT_ASSERT_EQ_INT(coord[2], i % 2);
    }
    dti_layouts_destroy(t);
}

/* The formulas of dt_redistribute()'s comment, and what PyTorch's planners need 5/8 and 7/8 for. */
DT_TEST(move, bytes_follow_the_formulas)
{
    static const struct {
        grid g;
        int rank;
        const char *from, *to;
        int64_t shape[3];
        int64_t elements;
    } rows[] = {
        { { 1, { 4 } }, 1, "S(0)", "R", { 8, 8, 1 }, 48 },
        { { 1, { 4 } }, 1, "R", "S(0)", { 8, 8, 1 }, 0 },
        { { 1, { 4 } }, 1, "P(sum)", "R", { 8, 8, 1 }, 96 },
        { { 1, { 4 } }, 1, "P(sum)", "S(0)", { 8, 8, 1 }, 48 },
        { { 1, { 4 } }, 1, "S(0)", "S(1)", { 8, 8, 1 }, 12 },
        { { 3, { 2, 2, 2 } }, 3, "S(0)S(0)S(0)", "S(1)S(1)S(1)", { 8, 8, 8 }, 8 * 8 * 8 * 7 / 64 },
        /* uneven: 5 rows of 3 over 4 ranks are 2 2 1 0 */
        { { 1, { 4 } }, 0, "S(0)", "R", { 5, 3, 1 }, 9 },
        { { 1, { 4 } }, 2, "S(0)", "R", { 5, 3, 1 }, 12 },
        { { 1, { 4 } }, 3, "S(0)", "R", { 5, 3, 1 }, 15 },
        { { 1, { 4 } }, 0, "P(sum)", "S(0)", { 5, 3, 1 }, 18 },
        { { 1, { 4 } }, 3, "P(sum)", "S(0)", { 5, 3, 1 }, 0 },
        { { 1, { 4 } }, 0, "S(0)", "R", { 0, 3, 1 }, 0 },
        /* S(0) 2 2 1 0 to S(1) 1 1 1 0 */
        { { 1, { 4 } }, 0, "S(0)", "S(1)", { 5, 3, 1 }, 3 },
        { { 1, { 4 } }, 2, "S(0)", "S(1)", { 5, 3, 1 }, 4 },
        { { 1, { 4 } }, 3, "S(0)", "S(1)", { 5, 3, 1 }, 0 },
        /* half is here already; and all of it, where replicas end */
        { { 1, { 4 } }, 3, "S(0,unit=4,replicas=2)", "R", { 8, 1, 1 }, 4 },
        { { 1, { 4 } }, 3, "S(0,replicas=2)", "S(0)", { 8, 1, 1 }, 0 },
        { { 2, { 2, 2 } }, 0, "P(sum)S(0)", "RR", { 4, 4, 1 }, 8 + 8 },
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const grid *g = &rows[i].g;
        int64_t elements = 0;
        int coord[DT_MAX_DIMS];
        dti_move plan;
        grid_coord(g, rows[i].rank, coord);
        DT_ASSERT_OK(
            dti_move_plan(t, layout(t, g, 3, rows[i].from), layout(t, g, 3, rows[i].to), &plan));
        for (int s = 0; s < plan.n_steps; s++) {
            const int64_t n = dti_move_bytes(&plan.step[s], rows[i].shape, 4, coord);
            DT_ASSERT_EQ_INT(n % 4, 0);
            elements += n / 4;
        }
        if (elements != rows[i].elements)
            dt_test_fail(__FILE__, __LINE__, "%s -> %s: %lld elements, not %lld", rows[i].from,
                         rows[i].to, (long long)elements, (long long)rows[i].elements);
    }
    dti_layouts_destroy(t);
}

/* Two kv heads of 4 rows on 4 ranks, each held twice: whom rank r reads from. */
DT_TEST(move, copies_are_read_from_myself_and_then_from_the_nearest)
{
    static const char *const sources[4] = { "0:0+4 2:4+4", "1:0+4 2:4+4", "1:0+4 2:4+4",
                                            "1:0+4 3:4+4" };
    const grid g = { 1, { 4 } };
    const int64_t shape = 8;
    dti_layouts *t = new_table();
    dti_move plan;

    DT_ASSERT_OK(
        dti_move_plan(t, layout(t, &g, 1, "S(0,unit=4,replicas=2)"), layout(t, &g, 1, "R"), &plan));
    for (int me = 0; me < 4; me++) {
        char text[64] = "";
        size_t n = 0;
        for (int peer = 0; peer < 4; peer++) {
            static dti_overlap o;
            dti_box sent, received;
            if (!dti_move_overlap(&plan.step[0], &shape, &me, &peer, &o)) continue;
            DT_ASSERT_EQ_INT(o.n_boxes, 1);
            dti_overlap_box(&o, 0, &sent, &received);
            DT_ASSERT_EQ_INT(sent.offset, 0);
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%d:%lld+%lld", n > 0 ? " " : "",
                                  peer, (long long)received.offset, (long long)received.extent[0]);
        }
        DT_ASSERT_EQ_STR(text, sources[me]);
    }
    dti_layouts_destroy(t);
}

DT_TEST(move, a_scalar_has_boxes_of_one_element)
{
    const grid g = { 1, { 2 } };
    dti_layouts *t = new_table();
    static dti_overlap o;
    dti_box sent, received;
    dti_move plan;

    DT_ASSERT_OK(dti_move_plan(t, layout(t, &g, 0, "P(sum)"), layout(t, &g, 0, "R"), &plan));
    DT_ASSERT(dti_move_overlap(&plan.step[0], NULL, (int[]){ 0 }, (int[]){ 1 }, &o));
    DT_ASSERT_EQ_INT(o.n_boxes, 1);
    dti_overlap_box(&o, 0, &sent, &received);
    DT_ASSERT_EQ_INT(sent.n_axes, 0);
    DT_ASSERT_EQ_INT(sent.offset, 0);
    DT_ASSERT_EQ_INT(dti_move_bytes(&plan.step[0], NULL, 4, (int[]){ 0 }), 4);
    dti_layouts_destroy(t);
}

DT_TEST(move, a_plan_made_before_costs_no_malloc)
{
    const grid g = { 3, { 2, 2, 2 } };
    dti_layouts *t = new_table();
    const dt_layout *from = layout(t, &g, 2, "P(sum)RP(sum)"), *to = layout(t, &g, 2, "S(0)S(0)R");
    dti_move plan;

    DT_ASSERT_OK(dti_move_plan(t, from, to, &plan));
    const uint64_t before = dti_alloc_count();
    DT_ASSERT_OK(dti_move_plan(t, from, to, &plan));
    DT_ASSERT_EQ_INT(dti_alloc_count() - before, 0);
    dti_layouts_destroy(t);
}
