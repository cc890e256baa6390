/* SPDX-License-Identifier: Apache-2.0
 *
 * Offsets, packed blocks and explicit orders: pieces, owners, bytes, refusals. */
#include <stdio.h>
#include <string.h>

#include "tests/placements/grid.h"

DT_TEST(query, runs_of_packed_and_offset_cuts)
{
    static const struct {
        grid g;
        const char *layout;
        int64_t extent;
        const char *runs;
    } rows[] = {
        { { 1, { 3 } }, "S(0,offsets=0:3:3:10)", 10, "0-2 | - | 3-9" },
        { { 1, { 3 } }, "S(0,offsets=0:0:0:0)", 0, "- | - | -" },
        { { 1, { 4 } }, "S(0,offsets=0:2:5,replicas=2)", 5, "0-1 | 0-1 | 2-4 | 2-4" },
        /* gate | up of 4 rows each; q | k | v of 6, 2 and 2 */
        { { 1, { 2 } }, "S(0,blocks=4:4)", 8, "0-1,4-5 | 2-3,6-7" },
        { { 1, { 2 } }, "S(0,blocks=6:2:2)", 10, "0-2,6,8 | 3-5,7,9" },
        { { 1, { 4 } }, "S(0,blocks=6:2:2)", 10, "0-1,6,8 | 2-3,7,9 | 4-5 | -" },
        { { 1, { 3 } }, "S(0,blocks=0:5:0)", 5, "0-1 | 2-3 | 4" },
        { { 1, { 2 } }, "S(0,blocks=8:4,unit=4)", 12, "0-3,8-11 | 4-7" },
        { { 1, { 2 } }, "S(0,blocks=8:4:4,units=4:2:2)", 16, "0-3,8-9,12-13 | 4-7,10-11,14-15" },
        { { 1, { 3 } }, "S(0,blocks=8:2,units=4:1)", 10, "0-3,8 | 4-7,9 | -" },
        { { 1, { 1 } }, "S(0,blocks=2:3)", 5, "0-4" },
        /* a chunk of a packed piece, and blocks below a chunk */
        { { 2, { 2, 2 } }, "S(0,blocks=4:4)S(0)", 8, "0-1 | 4-5 | 2-3 | 6-7" },
        { { 2, { 2, 2 } }, "S(0,blocks=6:2)S(0)", 8, "0-1 | 2,6 | 3-4 | 5,7" },
        { { 2, { 2, 2 } }, "S(0)S(0,blocks=2:4)", 12, "0,2-3 | 1,4-5 | 6,8-9 | 7,10-11" },
        { { 2, { 2, 2 } }, "S(0)[1]S(0,offsets=0:2:6)[0]", 6, "0 | 2-3 | 1 | 4-5" },
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        char text[256];
        runs_text(layout(t, &rows[i].g, 1, rows[i].layout), &rows[i].g, rows[i].extent, text,
                  sizeof text);
        DT_ASSERT_EQ_STR(text, rows[i].runs);
    }
    dti_layouts_destroy(t);
}

/* Every element has owners that hold it, as many as are counted, and the first is named. */
DT_TEST(query, owners_are_those_whose_pieces_hold_the_index)
{
    static const struct {
        grid g;
        const char *layout;
        int64_t shape[2];
    } rows[] = {
        { { 2, { 2, 3 } }, "S(0)S(1)", { 5, 7 } },
        { { 2, { 2, 3 } }, "S(0)[1]S(0)[0]", { 7, 2 } },
        { { 2, { 2, 3 } }, "RS(0)", { 4, 3 } },
        { { 2, { 2, 4 } }, "P(sum)S(1,unit=2,replicas=2)", { 2, 5 } },
        { { 2, { 2, 2 } }, "S(0,blocks=4:4)S(0)", { 8, 2 } },
        { { 2, { 2, 3 } }, "S(1)S(0,offsets=0:0:6:7)", { 7, 3 } },
        { { 1, { 6 } }, "S(0)", { 3, 1 } },
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const grid *g = &rows[i].g;
        const int64_t *shape = rows[i].shape;
        const dt_layout *l = layout(t, g, 2, rows[i].layout);
        for (int64_t e = 0; e < shape[0] * shape[1]; e++) {
            const int64_t index[] = { e / shape[1], e % shape[1] };
            int owners = 0, first = -1, coord[DT_MAX_DIMS], found[DT_MAX_DIMS], n_found;
            for (int r = 0; r < grid_ranks(g); r++) {
                bool holds = true;
                grid_coord(g, r, coord);
                for (int a = 0; a < 2; a++) {
                    dt_rows runs[DT_MAX_RUNS];
                    int n;
                    bool in = false;
                    DT_ASSERT_OK(dt_layout_runs(l, shape, a, coord, runs, &n));
                    for (int k = 0; k < n; k++)
                        in = in || (index[a] >= runs[k].begin && index[a] < runs[k].end);
                    holds = holds && in;
                }
                owners += holds;
                if (holds && first < 0) first = r;
            }
            DT_ASSERT_OK(dt_layout_owner(l, shape, index, found, &n_found));
            grid_coord(g, first, coord);
            DT_ASSERT_EQ_INT(n_found, owners);
            for (int m = 0; m < g->n_dims; m++) DT_ASSERT_EQ_INT(found[m], coord[m]);
        }
    }
    dti_layouts_destroy(t);
}

DT_TEST(query, local_shapes_and_bytes_of_any_mesh)
{
    DT_HELD(layouts) *all = NULL;
    const dt_layout *l;
    int64_t local[2], bytes, begin[2], end[2];
    const int64_t shape[] = { 50257, 4096 };

    DT_ASSERT_OK(dt_layouts_create(&all));
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=16,pp=64,tp=16", 2, "RS(0)S(1)", &l));
    DT_ASSERT_OK(dt_layout_local_shape(l, shape, (int[]){ 3, 63, 15 }, local));
    DT_ASSERT_EQ_INT(local[0], 50257 - 63 * 786);
    DT_ASSERT_EQ_INT(local[1], 256);
    DT_ASSERT_OK(dt_layout_bytes(l, shape, (int[]){ 0, 0, 0 }, DT_BF16, &bytes));
    DT_ASSERT_EQ_INT(bytes, 786 * 256 * 2);
    DT_ASSERT_STATUS(dt_layout_bytes(l, shape, (int[]){ 0, 0, 0 }, DT_N_DTYPES, &bytes), DT_ERR_ARG,
                     "is no dtype");
    DT_ASSERT_OK(dt_layouts_parse(all, "tp=2", 2, "S(0,blocks=6:2)", &l));
    DT_ASSERT_OK(dt_layout_local_shape(l, (int64_t[]){ 8, 3 }, (int[]){ 1 }, local));
    DT_ASSERT_EQ_INT(local[0], 4);
    DT_ASSERT_STATUS(dt_layout_range(l, (int64_t[]){ 8, 3 }, (int[]){ 1 }, begin, end),
                     DT_ERR_LAYOUT, "axis 0 is packed: this piece of it is 2 runs of rows");
    DT_ASSERT_STATUS(dt_layout_local_shape(l, (int64_t[]){ 9, 3 }, (int[]){ 1 }, local),
                     DT_ERR_SHAPE,
                     "mesh dim 0 cuts axis 0 in blocks of 8 rows together, but 9 rows are cut");
    DT_ASSERT_STATUS(dt_layout_local_shape(l, (int64_t[]){ 0, 3 }, (int[]){ 1 }, local),
                     DT_ERR_SHAPE, "in blocks of 8 rows together, but 0 rows are cut");
    DT_ASSERT_OK(dt_layouts_parse(all, "dp=2,tp=2", 1, "S(0)S(0,offsets=0:1:3)", &l));
    DT_ASSERT_OK(dt_layout_local_shape(l, (int64_t[]){ 6 }, (int[]){ 1, 0 }, local));
    DT_ASSERT_EQ_INT(local[0], 1);
    DT_ASSERT_STATUS(dt_layout_local_shape(l, (int64_t[]){ 5 }, (int[]){ 1, 0 }, local),
                     DT_ERR_SHAPE, "offsets that end at 3, but 2 rows are cut");
}

DT_TEST(query, malformed_offsets_blocks_and_places_are_refused)
{
    static const struct {
        const char *text, *message;
    } rows[] = {
        { "S(0,offsets=0:1:2)R", "with 3 offsets: its 3 parts need 4, the last being" },
        { "S(0,offsets=1:1:2:3)R", "offsets that begin at 1, not at 0" },
        { "S(0,offsets=0:2:1:3)R", "offset[2] = 1 after 2: offsets must not descend" },
        { "S(0,offsets=0:1:2:3,unit=2)R", "offsets and a unit of 2" },
        { "S(0,offsets=0:1:2:3,blocks=3)R", "4 offsets and 1 blocks: give one" },
        { "S(0,blocks=4:4,units=2:0)R", "unit 0 of block 1: 1 or more is needed" },
        { "S(0,unit=2,blocks=4:4,units=2:4)R", "a unit of 2 and units of its blocks: give one" },
        { "S(0)[1]S(0)[1]", "both stand at place 1 among the cuts of axis 0" },
        { "S(0)[0]S(0)", "only one of them names its place" },
    };
    const grid g = { 2, { 3, 2 } };
    dti_layouts *t = new_table();
    dti_parsed parsed;
    const dt_layout *l;
    int64_t many[DT_MAX_RUNS + 1] = { 0 };

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        DT_ASSERT_OK(dti_placements_parse(rows[i].text, 2, &parsed));
        DT_ASSERT_STATUS(dti_layout_intern(t, 2, g.size, 1, parsed.place, NULL, &l), DT_ERR_LAYOUT,
                         rows[i].message);
    }
    DT_ASSERT_STATUS(dti_layout_intern(t, 1, g.size, 1,
                                       (dt_placement[]){ dt_shard_packed(0, 33, many) }, NULL, &l),
                     DT_ERR_LAYOUT, "33 blocks: 32 are possible");
    DT_ASSERT_STATUS(dti_layout_intern(t, 2, g.size, 1,
                                       (dt_placement[]){ dt_shard_packed(0, 20, many),
                                                         dt_shard_packed(0, 20, many) },
                                       NULL, &l),
                     DT_ERR_LAYOUT, "axis 0 is cut into 40 blocks by all mesh dims together");
    DT_ASSERT_STATUS(
        dti_layout_intern(t, 1, g.size, 1, (dt_placement[]){ DT_SHARD_PACKED(0, 4, -1) }, NULL, &l),
        DT_ERR_LAYOUT, "block[1] of -1 rows");
    DT_ASSERT_STATUS(dti_layout_intern(t, 1, g.size, 1,
                                       (dt_placement[]){ dt_shard_offsets(0, 4, NULL) }, NULL, &l),
                     DT_ERR_ARG, "4 offsets that are NULL");
    dti_layouts_destroy(t);
}

/* Tables are copied: the caller's may change or go. */
DT_TEST(query, equal_offsets_and_blocks_are_one_layout)
{
    const grid g = { 1, { 2 } };
    int64_t numbers[] = { 0, 3, 7 };
    dti_layouts *t = new_table();
    const dt_layout *a, *b;

    DT_ASSERT_OK(dti_layout_intern(t, 1, g.size, 1,
                                   (dt_placement[]){ dt_shard_offsets(0, 3, numbers) }, NULL, &a));
    numbers[1] = 5;
    DT_ASSERT(a == layout(t, &g, 1, "S(0,offsets=0:3:7)"));
    DT_ASSERT_OK(dti_layout_intern(t, 1, g.size, 1,
                                   (dt_placement[]){ DT_SHARD_OFFSETS(-1, 0, 3, 7) }, NULL, &b));
    DT_ASSERT(a == b);
    DT_ASSERT(a != layout(t, &g, 1, "S(0,offsets=0:4:7)"));
    DT_ASSERT(layout(t, &g, 1, "S(0,blocks=3:4)") != layout(t, &g, 1, "S(0,blocks=4:3)"));
    DT_ASSERT(layout(t, &g, 1, "S(0,blocks=4:4,units=2:1)") !=
              layout(t, &g, 1, "S(0,blocks=4:4,units=1:2)"));
    DT_ASSERT(layout(t, &g, 1, "S(0,blocks=4:4,units=2:2)") ==
              layout(t, &g, 1, "S(0,unit=2,blocks=4:4)"));
    DT_ASSERT(!dti_layout_same_cuts(a, 0, layout(t, &g, 1, "S(0,offsets=0:4:7)"), 0));
    DT_ASSERT(dti_layout_same_cuts(a, 0, layout(t, &g, 2, "S(1,offsets=0:3:7)"), 1));
    dti_layouts_destroy(t);
}

/* One mesh dim changes, the order of the other cuts stays. */
DT_TEST(query, replacing_one_cut_keeps_the_order_of_the_others)
{
    static const struct {
        const char *base;
        int dim;
        const char *want, *result;
    } rows[] = {
        { "S(0)[1]S(0)[0]R", 2, "S(1)", "S(0)[1]S(0)[0]S(1)" },
        { "S(0)[1]S(0)[0]R", 2, "S(0)", "S(0)[1]S(0)[0]S(0)[2]" },
        { "S(0)[1]S(0)[0]R", 2, "S(0)[0]", "S(0)[2]S(0)[1]S(0)[0]" },
        { "S(0)[2]S(0)[0]S(0)[1]", 1, "R", "S(0)[1]RS(0)[0]" },
        { "RS(0)R", 0, "S(0)", "S(0)[0]S(0)[1]R" }, /* outer dims first where nothing is said */
        { "RS(0)R", 0, "S(0)[1]", "S(0)[1]S(0)[0]R" },
        { "S(0)[1]S(0)[0]R", 0, "S(0)", "S(0)[1]S(0)[0]R" }, /* it is so already */
        { "S(0)[1]S(0)[0]R", 0, "S(-1,unit=2)", "S(1,unit=2)S(0)R" },
    };
    const grid g = { 3, { 2, 2, 2 } };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *l;
        dti_parsed want;
        char text[128];
        DT_ASSERT_OK(dti_placements_parse(rows[i].want, 1, &want));
        DT_ASSERT_OK(dti_layout_with(layout(t, &g, 2, rows[i].base), rows[i].dim, want.place, &l));
        (void)dt_layout_print(l, text, sizeof text);
        DT_ASSERT_EQ_STR(text, rows[i].result);
    }
    dti_layouts_destroy(t);
}
