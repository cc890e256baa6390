/* SPDX-License-Identifier: Apache-2.0
 *
 * Cases 11, 13 and 31 to 36 of PyTorch's tests of local shapes and offsets, and units. Case 35 and
 * half of 34 speak of _StridedShard, which we do not have: the order of cuts says what it means. */
#include <stdio.h>
#include <string.h>

#include "tests/placements/grid.h"

/* The pieces of axis 0 on all ranks as "size@offset size@offset ...". */
static void pieces(const dt_layout *l, const grid *g, int64_t extent, char *text, size_t bytes)
{
    size_t n = 0;

    for (int r = 0; r < grid_ranks(g) && n < bytes; r++) {
        int coord[DT_MAX_DIMS];
        int64_t begin, end;
        grid_coord(g, r, coord);
        dti_layout_axis_range(l, 0, extent, coord, &begin, &end);
        n += (size_t)snprintf(text + n, bytes - n, "%s%lld@%lld", r > 0 ? " " : "",
                              (long long)(end - begin), (long long)begin);
    }
}

DT_TEST(range, pieces_of_one_axis)
{
    static const struct {
        grid g;
        const char *layout;
        int64_t extent;
        const char *pieces;
    } rows[] = {
        /* chunk: ceil(n / parts) each, then the rest, then nothing */
        { { 1, { 4 } }, "S(0)", 5, "2@0 2@2 1@4 0@5" },
        { { 1, { 4 } }, "S(0)", 6, "2@0 2@2 2@4 0@6" },
        { { 1, { 4 } }, "S(0)", 7, "2@0 2@2 2@4 1@6" },
        { { 1, { 4 } }, "S(0)", 9, "3@0 3@3 3@6 0@9" },
        { { 1, { 4 } }, "S(0)", 2, "1@0 1@1 0@2 0@2" }, /* case 11 */
        { { 1, { 4 } }, "S(0)", 0, "0@0 0@0 0@0 0@0" },
        { { 1, { 8 } }, "S(0)", 7, "1@0 1@1 1@2 1@3 1@4 1@5 1@6 0@7" },
        { { 1, { 3 } }, "S(0)", 50257, "16753@0 16753@16753 16751@33506" },
        { { 1, { 3 } }, "R", 5, "5@0 5@0 5@0" },
        { { 1, { 3 } }, "P(sum)", 5, "5@0 5@0 5@0" },
        /* case 13: nested cuts are not a cut over the flattened dims */
        { { 2, { 2, 2 } }, "S(0)S(0)", 10, "3@0 2@3 3@5 2@8" },
        { { 2, { 2, 2 } }, "S(0)S(0)", 9, "3@0 2@3 2@5 2@7" },
        { { 2, { 2, 2 } }, "S(0)S(0)", 3, "1@0 1@1 1@2 0@3" },
        { { 2, { 2, 2 } }, "S(0)S(0)", 1, "1@0 0@1 0@1 0@1" },
        { { 2, { 2, 2 } }, "S(0)S(1)", 9, "5@0 5@0 4@5 4@5" },
        { { 2, { 2, 3 } }, "S(0)S(0)", 4, "1@0 1@1 0@2 1@2 1@3 0@4" }, /* case 29 */
        /* cases 31 and 32 */
        { { 2, { 4, 2 } }, "S(0)S(0)", 18, "3@0 2@3 3@5 2@8 3@10 2@13 2@15 1@17" },
        { { 2, { 4, 2 } }, "S(0)S(0)", 13, "2@0 2@2 2@4 2@6 2@8 2@10 1@12 0@13" },
        /* case 34: 9 tp + 3 dp. An empty piece stands at the end of the piece it is cut from. */
        { { 2, { 4, 2 } }, "S(0)[1]S(0)[0]", 18, "3@0 3@9 3@3 3@12 3@6 3@15 0@9 0@18" },
        /* 7 rows over dp=3, tp=2, tp first: a split factor would misplace row 6 */
        { { 2, { 3, 2 } }, "S(0)[1]S(0)[0]", 7, "2@0 1@4 2@2 1@5 0@4 1@6" },
        /* a dim of one rank cuts nothing */
        { { 2, { 1, 2 } }, "S(0)S(0)", 5, "3@0 2@3" },
        /* units stay together, the last one may be short; n replicas hold the same part */
        { { 1, { 2 } }, "S(0,unit=4)", 12, "8@0 4@8" },
        { { 1, { 3 } }, "S(0,unit=4)", 10, "4@0 4@4 2@8" },
        { { 1, { 4 } }, "S(0,unit=4)", 8, "4@0 4@4 0@8 0@8" },
        { { 1, { 4 } }, "S(0,unit=4,replicas=2)", 8, "4@0 4@0 4@4 4@4" },
        { { 1, { 4 } }, "S(0,unit=4,replicas=2)", 12, "8@0 8@0 4@8 4@8" },
        { { 1, { 4 } }, "S(0,replicas=4)", 5, "5@0 5@0 5@0 5@0" },
        { { 1, { 6 } }, "S(0,unit=2,replicas=2)", 5, "2@0 2@0 2@2 2@2 1@4 1@4" },
        { { 2, { 2, 2 } }, "S(0,unit=4)S(0)", 12, "4@0 4@4 2@8 2@10" },
        /* nothing overflows near the end of int64 */
        { { 1, { 2 } },
          "S(0,unit=9223372036854775807)",
          9223372036854775807,
          "9223372036854775807@0 0@9223372036854775807" },
        { { 1, { 3 } },
          "S(0)",
          9223372036854775807,
          "3074457345618258603@0 3074457345618258603@3074457345618258603 "
          "3074457345618258601@6148914691236517206" },
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        char text[256];
        pieces(layout(t, &rows[i].g, 2, rows[i].layout), &rows[i].g, rows[i].extent, text,
               sizeof text);
        if (strcmp(text, rows[i].pieces) != 0)
            dt_test_fail(__FILE__, __LINE__, "%s of %lld rows: %s, not %s", rows[i].layout,
                         (long long)rows[i].extent, text, rows[i].pieces);
    }
    dti_layouts_destroy(t);
}

/* A piece without rows still has a place, where its rows would be: at the end of what it is cut
 * from. */
DT_TEST(range, an_empty_packed_piece_begins_where_its_rows_would)
{
    const grid line = { 1, { 4 } }, square = { 2, { 2, 2 } };
    dti_layouts *t = new_table();
    const dt_layout *blocks = layout(t, &line, 1, "S(0,blocks=2:2)");
    const dt_layout *inner = layout(t, &square, 1, "S(0,blocks=1:1)S(0)");
    const dt_layout *first = layout(t, &square, 1, "S(0)S(0,blocks=1:1)");
    int64_t begin, n;

    dti_layout_axis_extent(blocks, 0, 4, (int[]){ 1 }, &begin, &n);
    DT_ASSERT(begin == 1 && n == 2); /* rows 1 and 3 */
    dti_layout_axis_extent(blocks, 0, 4, (int[]){ 2 }, &begin, &n);
    DT_ASSERT(begin == 4 && n == 0);
    dti_layout_axis_extent(inner, 0, 2, (int[]){ 1, 0 }, &begin, &n);
    DT_ASSERT(begin == 2 && n == 0); /* cut from nothing */
    dti_layout_axis_extent(inner, 0, 2, (int[]){ 1, 1 }, &begin, &n);
    DT_ASSERT(begin == 2 && n == 0);
    dti_layout_axis_extent(first, 0, 4, (int[]){ 0, 1 }, &begin, &n);
    DT_ASSERT(begin == 2 && n == 0); /* of the first half, whose end this is */
    const dt_layout *runs = layout(t, &(grid){ 2, { 2, 4 } }, 1, "S(0,blocks=2:2)S(0)");
    dti_layout_axis_extent(runs, 0, 4, (int[]){ 0, 2 }, &begin, &n);
    DT_ASSERT(begin == 3 && n == 0); /* of rows 0 and 2: behind the last of them */
    dti_layouts_destroy(t);
}

/* Case 33: 4096 rows over dp=30, tp=8, cut by tp first. PyTorch gives empty pieces the offset 4096;
 * ours stand at the end of their tp piece. */
DT_TEST(range, an_order_is_not_a_split_factor)
{
    dti_layouts *t = new_table();
    const grid g = { 2, { 30, 8 } };
    const dt_layout *l = layout(t, &g, 2, "S(0)[1]S(0)[0]");

    for (int r = 0; r < 240; r++) {
        int64_t begin[2], end[2];
        int coord[2];
        grid_coord(&g, r, coord);
        DT_ASSERT_OK(dt_layout_range(l, (int64_t[]){ 4096, 4096 }, coord, begin, end));
        DT_ASSERT_EQ_INT(end[0] - begin[0], coord[0] < 28 ? 18 : coord[0] == 28 ? 8 : 0);
        DT_ASSERT_EQ_INT(begin[0], coord[1] * 512 + (coord[0] < 29 ? 18 * coord[0] : 512));
        DT_ASSERT_EQ_INT(begin[1], 0);
        DT_ASSERT_EQ_INT(end[1], 4096);
    }
    dti_layouts_destroy(t);
}

/* Case 36. */
DT_TEST(range, every_size_up_to_16_on_8_ranks)
{
    dti_layouts *t = new_table();
    const grid g8 = { 1, { 8 } }, g24 = { 2, { 2, 4 } };
    const dt_layout *s = layout(t, &g8, 1, "S(0)");

    for (int64_t n = 0; n <= 16; n++) {
        const int64_t chunk = n == 0 ? 0 : n <= 8 ? 1 : 2;
        int64_t covered = 0, begin, end;
        for (int r = 0; r < 8; r++) {
            DT_ASSERT_OK(dt_layout_range(s, &n, &r, &begin, &end));
            DT_ASSERT_EQ_INT(begin, covered);
            DT_ASSERT_EQ_INT(end - begin, n - covered < chunk ? n - covered : chunk);
            covered = end;
        }
        DT_ASSERT_EQ_INT(covered, n);
    }
    for (int axis = 0; axis < 2; axis++) {
        for (int r = 0; r < 8; r++) {
            int64_t begin[2], end[2];
            int coord[2];
            grid_coord(&g24, r, coord);
            DT_ASSERT_OK(dt_layout_range(layout(t, &g24, 2, axis ? "S(1)R" : "S(0)R"),
                                         (int64_t[]){ 24, 24 }, coord, begin, end));
            DT_ASSERT_EQ_INT(begin[axis], 12 * (r / 4));
            DT_ASSERT_OK(dt_layout_range(layout(t, &g24, 2, axis ? "RS(1)" : "RS(0)"),
                                         (int64_t[]){ 24, 24 }, coord, begin, end));
            DT_ASSERT_EQ_INT(begin[axis], 6 * (r % 4));
            DT_ASSERT_EQ_INT(begin[1 - axis], 0);
            DT_ASSERT_EQ_INT(end[1 - axis], 24);
        }
    }
    dti_layouts_destroy(t);
}

DT_TEST(range, bad_arguments_are_named)
{
    dti_layouts *t = new_table();
    const grid g = { 2, { 2, 3 } };
    const dt_layout *l = layout(t, &g, 1, "RS(0)");
    int64_t shape = 5, begin, end;

    DT_ASSERT_STATUS(dt_layout_range(NULL, &shape, (int[]){ 0, 0 }, &begin, &end), DT_ERR_ARG,
                     "layout or coord is NULL");
    DT_ASSERT_STATUS(dt_layout_range(l, NULL, (int[]){ 0, 0 }, &begin, &end), DT_ERR_ARG,
                     "shape is NULL");
    DT_ASSERT_STATUS(dt_layout_range(l, &shape, (int[]){ 0, 3 }, &begin, &end), DT_ERR_ARG,
                     "coordinate 3 is outside mesh dim 1 of 3 ranks");
    DT_ASSERT_STATUS(dt_layout_range(l, &shape, (int[]){ -1, 0 }, &begin, &end), DT_ERR_ARG,
                     "coordinate -1 is outside mesh dim 0 of 2 ranks");
    shape = -2;
    DT_ASSERT_STATUS(dt_layout_range(l, &shape, (int[]){ 0, 0 }, &begin, &end), DT_ERR_ARG,
                     "axis 0 has extent -2");
    dti_layouts_destroy(t);
}
