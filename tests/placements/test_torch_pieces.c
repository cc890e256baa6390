/* SPDX-License-Identifier: Apache-2.0
 *
 * Who owns which rows in PyTorch's own tests of _StridedShard, under their numbers in the project's
 * notes. Ours says a strided shard of factor f as f blocks. Plain cuts and orders: test_range.c. */
#include <string.h>

#include "tests/placements/grid.h"

typedef struct pieces_case {
    int number;
    grid grid;
    const char *layout;
    int64_t rows;
    const char *want; /* runs_text() */
} pieces_case;

DT_TEST(torch_pieces, strided_shards_are_blocks)
{
    /* clang-format off */
    static const pieces_case cases[] = {
        /* 24: SS(f=2)S and the order (1, 0) are one thing */
        { 24, { 2, { 4, 2 } }, "S(0)[1]S(0)[0]", 8, "0 | 4 | 1 | 5 | 2 | 6 | 3 | 7" },
        { 24, { 2, { 4, 2 } }, "S(0,blocks=4:4)S(0)", 8, "0 | 4 | 1 | 5 | 2 | 6 | 3 | 7" },
        /* Blocks cut what outer dims leave, which therefore has to be equal: 18 and 39 rows, as in
         * PyTorch's tests, are refused. SS(f=3)SS(f=4), S(0)SS(f=2) and S(0)SS(f=2)S(0). */
        { 35, { 2, { 4, 2 } }, "S(0,blocks=16:16:16)S(0,blocks=3:3:3:3)", 48,
          "0-1,3,16,18-19,33-34 | 2,17,32,35 | 4-5,7,20,22-23,37-38 | 6,21,36,39 | 8-9,11,24,26-27,41-42 | "
          "10,25,40,43 | 12-13,15,28,30-31,45-46 | 14,29,44,47" },
        { 35, { 2, { 4, 2 } }, "S(0)S(0,blocks=3:2)", 20,
          "0-1,3 | 2,4 | 5-6,8 | 7,9 | 10-11,13 | 12,14 | 15-16,18 | 17,19" },
        { 35, { 3, { 4, 2, 3 } }, "S(0)S(0,blocks=5:5)S(0)", 40,
          "0-1 | 2,5 | 6-7 | 3-4 | 8-9 | - | 10-11 | 12,15 | 16-17 | 13-14 | 18-19 | - | "
          "20-21 | 22,25 | 26-27 | 23-24 | 28-29 | - | 30-31 | 32,35 | 36-37 | 33-34 | 38-39 | -" },
    };
    /* clang-format on */

    for (size_t i = 0; i < DT_COUNT(cases); i++) {
        const pieces_case *c = &cases[i];
        dti_layouts *t = new_table();
        const dt_layout *l = layout(t, &c->grid, 1, c->layout);
        char text[256];
        runs_text(l, &c->grid, c->rows, text, sizeof text);
        if (strcmp(text, c->want) != 0)
            dt_test_fail(__FILE__, __LINE__, "case %d, %s: ranks own %s, not %s", c->number,
                         c->layout, text, c->want);
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
