/* SPDX-License-Identifier: Apache-2.0
 *
 * Who owns which rows in PyTorch's own tests of shard orders and of _StridedShard, under their
 * numbers in the project's notes. Ours says a strided shard of factor f as f blocks. */
#include <stdio.h>
#include <string.h>

#include "tests/placements/grid.h"

/* The rows of axis 0 that rank r holds, as "0-2,7"; "" for none. */
static void rows_text(const dt_layout *l, const grid *g, int64_t rows, int r, char text[128])
{
    dt_rows runs[DT_MAX_RUNS];
    int coord[DT_MAX_DIMS], n_runs, used = 0;

    grid_coord(g, r, coord);
    DT_ASSERT_OK(dt_layout_runs(l, &rows, 0, coord, runs, &n_runs));
    text[0] = '\0';
    for (int i = 0; i < n_runs; i++) {
        used += snprintf(text + used, 128 - (size_t)used, "%s%lld", i ? "," : "",
                         (long long)runs[i].begin);
        if (runs[i].end - runs[i].begin > 1)
            used += snprintf(text + used, 128 - (size_t)used, "-%lld", (long long)runs[i].end - 1);
    }
}

typedef struct pieces_case {
    int number;
    grid grid;
    const char *layout;
    int64_t rows;
    const char *want[24];
} pieces_case;

DT_TEST(torch_pieces, orders_and_strides_own_these_rows)
{
    /* clang-format off */
    static const pieces_case cases[] = {
        /* 24: SS(f=2)S and the order (1, 0) are one thing */
        { 24, { 2, { 4, 2 } }, "S(0)[1]S(0)[0]", 8, { "0", "4", "1", "5", "2", "6", "3", "7" } },
        { 24, { 2, { 4, 2 } }, "S(0,blocks=4:4)S(0)", 8, { "0", "4", "1", "5", "2", "6", "3", "7" } },
        { 31, { 2, { 4, 2 } }, "S(0)S(0)", 18,
          { "0-2", "3-4", "5-7", "8-9", "10-12", "13-14", "15-16", "17" } },
        { 32, { 2, { 4, 2 } }, "S(0)S(0)", 13, { "0-1", "2-3", "4-5", "6-7", "8-9", "10-11", "12", "" } },
        { 34, { 2, { 4, 2 } }, "S(0)[1]S(0)[0]", 18,
          { "0-2", "9-11", "3-5", "12-14", "6-8", "15-17", "", "" } },
        /* Blocks cut what outer dims leave, which therefore has to be equal: 18 and 39 rows, as in
         * PyTorch's tests, are refused. SS(f=3)SS(f=4), S(0)SS(f=2) and S(0)SS(f=2)S(0). */
        { 35, { 2, { 4, 2 } }, "S(0,blocks=16:16:16)S(0,blocks=3:3:3:3)", 48,
          { "0-1,3,16,18-19,33-34", "2,17,32,35", "4-5,7,20,22-23,37-38", "6,21,36,39",
            "8-9,11,24,26-27,41-42", "10,25,40,43", "12-13,15,28,30-31,45-46", "14,29,44,47" } },
        { 35, { 2, { 4, 2 } }, "S(0)S(0,blocks=3:2)", 20,
          { "0-1,3", "2,4", "5-6,8", "7,9", "10-11,13", "12,14", "15-16,18", "17,19" } },
        { 35, { 3, { 4, 2, 3 } }, "S(0)S(0,blocks=5:5)S(0)", 40,
          { "0-1", "2,5", "6-7", "3-4", "8-9", "", "10-11", "12,15", "16-17", "13-14", "18-19", "",
            "20-21", "22,25", "26-27", "23-24", "28-29", "", "30-31", "32,35", "36-37", "33-34", "38-39", "" } },
    };
    /* clang-format on */

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const pieces_case *c = &cases[i];
        dti_layouts *t = new_table();
        const dt_layout *l = layout(t, &c->grid, 1, c->layout);
        for (int r = 0; r < grid_ranks(&c->grid); r++) {
            char text[128];
            rows_text(l, &c->grid, c->rows, r, text);
            if (strcmp(text, c->want[r]) != 0)
                dt_test_fail(__FILE__, __LINE__, "case %d, %s, rank %d owns %s, not %s", c->number,
                             c->layout, r, text, c->want[r]);
        }
        dti_layouts_destroy(t);
    }
}

DT_TEST(torch_pieces, blocks_of_unequal_pieces_are_refused) /* case 35 */
{
    const grid g = { 2, { 4, 2 } };
    const int64_t rows = 18;
    dti_layouts *t = new_table();
    const dt_layout *l = layout(t, &g, 1, "S(0)S(0,blocks=3:2)");
    dt_rows runs[DT_MAX_RUNS];
    int n;

    DT_ASSERT_STATUS(dt_layout_runs(l, &rows, 0, (int[]){ 3, 0 }, runs, &n), DT_ERR_SHAPE,
                     "in blocks of 5 rows together, but 3 rows are cut");
    dti_layouts_destroy(t);
}

/* Case 33: 4096 rows over 30 x 8 ranks, the inner dim first: 18 rows each, then 8, then none. */
DT_TEST(torch_pieces, an_inner_dim_first_over_240_ranks)
{
    const grid g = { 2, { 30, 8 } };
    const int64_t shape[] = { 4096, 4096 };
    dti_layouts *t = new_table();
    const dt_layout *l = layout(t, &g, 2, "S(0)[1]S(0)[0]");

    for (int r = 0; r < 240; r++) {
        const int dp = r / 8, tp = r % 8;
        int64_t begin[2], end[2];
        DT_ASSERT_OK(dt_layout_range(l, shape, (int[]){ dp, tp }, begin, end));
        DT_ASSERT_EQ_INT(end[0] - begin[0], dp < 28 ? 18 : dp == 28 ? 8 : 0);
        if (dp < 29) DT_ASSERT_EQ_INT(begin[0], tp * 512 + 18 * dp);
        /* PyTorch puts pieces without rows at the end of the axis, ours stay in place */
        if (dp == 29) DT_ASSERT_EQ_INT(begin[0], (tp + 1) * 512);
        DT_ASSERT_EQ_INT(end[1] - begin[1], 4096);
    }
    dti_layouts_destroy(t);
}

/* Case 36: every size up to 16 over 8 ranks, and offsets on a mesh of two dims. */
DT_TEST(torch_pieces, chunks_of_every_size)
{
    const grid one = { 1, { 8 } }, two = { 2, { 2, 4 } };
    const int64_t square[] = { 24, 24 };
    dti_layouts *t = new_table();
    const dt_layout *cut = layout(t, &one, 1, "S(0)"), *whole = layout(t, &one, 1, "R");

    for (int64_t n = 0; n <= 16; n++)
        for (int r = 0; r < 8; r++) {
            const int64_t chunk = (n + 7) / 8, first = r * chunk < n ? r * chunk : n;
            int64_t begin, end;
            DT_ASSERT_OK(dt_layout_range(cut, &n, &r, &begin, &end));
            DT_ASSERT_EQ_INT(begin, first);
            DT_ASSERT_EQ_INT(end, first + chunk < n ? first + chunk : n);
            DT_ASSERT_OK(dt_layout_range(whole, &n, &r, &begin, &end));
            DT_ASSERT(begin == 0 && end == n);
        }
    for (int axis = 0; axis < 2; axis++)
        for (int r = 0; r < 8; r++) {
            int64_t begin[2], end[2];
            int coord[2];
            grid_coord(&two, r, coord);
            const dt_layout *outer = layout(t, &two, 2, axis == 0 ? "S(0)R" : "S(1)R");
            const dt_layout *inner = layout(t, &two, 2, axis == 0 ? "RS(0)" : "RS(1)");
            DT_ASSERT_OK(dt_layout_range(outer, square, coord, begin, end));
            DT_ASSERT_EQ_INT(begin[axis], 12 * (r / 4));
            DT_ASSERT_OK(dt_layout_range(inner, square, coord, begin, end));
            DT_ASSERT_EQ_INT(begin[axis], 6 * (r % 4));
            DT_ASSERT_EQ_INT(begin[1 - axis], 0);
        }
    dti_layouts_destroy(t);
}

/* Case 10: axes counted from the end, and case 57: what is not equal has another hash. */
DT_TEST(torch_pieces, axes_count_from_the_end)
{
    const grid g = { 1, { 4 } };
    dti_layouts *t = new_table();

    DT_ASSERT(layout(t, &g, 2, "S(-1)") == layout(t, &g, 2, "S(1)"));
    DT_ASSERT(dt_layout_placement(layout(t, &g, 3, "S(-2)"), 0).axis == 1);
    DT_ASSERT(layout(t, &g, 2, "S(0)")->hash != layout(t, &g, 2, "S(1)")->hash);
    dti_layouts_destroy(t);
}
