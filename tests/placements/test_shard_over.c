/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting copies: which axis is taken, and that ranks of the dim divide the piece that each of them
 * had. What moves make of it is in tests/dtensor/test_shard_over.c. */
#include "placements/shard_over.h"

#include <string.h>

#include "tests/placements/grid.h"

static const dt_layout *over(const dt_layout *base, const int64_t *shape, int dim)
{
    const dt_layout *l;

    DT_ASSERT_OK(dti_shard_over(base, shape, dim, &l));
    return l;
}

DT_TEST(shard_over, takes_the_axis_that_the_rule_says)
{
    static const struct {
        grid g;
        const char *base;
        int n_axes;
        int64_t shape[3];
        int dim;
        const char *is;
    } rows[] = {
        { { 1, { 2 } }, "R", 2, { 6, 64 }, 0, "S(0)" },    /* divides: axis 0 though shorter */
        { { 1, { 4 } }, "R", 2, { 6, 64 }, 0, "S(1)" },    /* axis 1 divides, axis 0 not */
        { { 1, { 2 } }, "R", 3, { 3, 8, 64 }, 0, "S(2)" }, /* the longest that divides */
        { { 1, { 4 } }, "R", 2, { 257, 6 }, 0, "S(0)" },   /* none divides: the longest */
        { { 1, { 4 } }, "R", 2, { 5, 33 }, 0, "S(1)" },    /* the same, the other way */
        { { 1, { 4 } }, "R", 2, { 3, 2 }, 0, "S(0)" },     /* a row each for three of four */
        { { 1, { 4 } }, "R", 2, { 1, 1 }, 0, "R" },        /* nothing to cut */
        { { 1, { 4 } }, "R", 2, { 0, 8 }, 0, "S(1)" },     /* no elements at all */
        { { 1, { 4 } }, "R", 0, { 0 }, 0, "R" },           /* a scalar */
        { { 1, { 1 } }, "R", 1, { 8 }, 0, "R" },           /* one rank */
        { { 2, { 2, 2 } }, "RS(0)", 2, { 8, 7 }, 0, "S(1)S(0)" }, /* axis 0 is taken by tp */
        { { 2, { 2, 2 } }, "RS(0)", 1, { 8 }, 0, "S(0)[1]S(0)[0]" },
        { { 2, { 2, 2 } }, "S(0)R", 1, { 8 }, 1, "S(0)[0]S(0)[1]" },
        { { 2, { 2, 3 } }, "S(0)S(1)", 2, { 8, 9 }, 0, "S(0)S(1)" }, /* is cut already */
        { { 3, { 2, 2, 2 } }, "RS(0)S(1)", 2, { 8, 12 }, 0, "S(1)[1]S(0)S(1)[0]" },
        { { 2, { 4, 2 } }, "RS(0)", 2, { 64, 3 }, 0, "S(0)[1]S(0)[0]" }, /* 3 rows are too few */
        { { 2, { 2, 2 } }, "RS(0,blocks=6:6)", 1, { 12 }, 0, "S(0)[1]S(0,blocks=6:6)[0]" },
        { { 2, { 2, 4 } },
          "RS(0,unit=4,replicas=2)",
          1,
          { 8 },
          0,
          "S(0)[1]S(0,unit=4,replicas=2)[0]" },
        { { 2, { 2, 2 } }, "RS(0,offsets=0:1:9)", 1, { 9 }, 0, "S(0)[1]S(0,offsets=0:1:9)[0]" },
        { { 2, { 2, 2 } }, "P(sum)S(0)", 2, { 8, 8 }, 0, "S(1)S(0)" }, /* of a gradient */
        { { 2, { 2, 2 } }, "RS(0,replicas=2)", 1, { 8 }, 0, "S(0)S(0,replicas=2)" },
    };
    dti_layouts *t = new_table();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        const dt_layout *base = layout(t, &rows[i].g, rows[i].n_axes, rows[i].base);
        const dt_layout *cut = over(base, rows[i].shape, rows[i].dim);
        char text[128];
        (void)dt_layout_print(cut, text, sizeof text);
        DT_ASSERT_EQ_STR(text, rows[i].is);
        DT_ASSERT(over(cut, rows[i].shape, rows[i].dim) == cut);
    }
    dti_layouts_destroy(t);
}

/* The elements of the whole that a rank holds, marked by it. */
static int64_t mark(const dt_layout *l, const int64_t *shape, const int *coord, int *marks)
{
    dti_runs a, b;
    int64_t n = 0;

    dti_layout_axis_runs(l, 0, shape[0], coord, &a);
    dti_layout_axis_runs(l, 1, shape[1], coord, &b);
    for (int i = 0; i < a.n; i++)
        for (int64_t x = a.run[i].begin; x < a.run[i].end; x++)
            for (int k = 0; k < b.n; k++)
                for (int64_t y = b.run[k].begin; y < b.run[k].end; y++, n++)
                    marks[x * shape[1] + y]++;
    return n;
}

/* Ranks along `dim` divide what each of them had. */
static void check_divided(const grid *g, const dt_layout *base, const dt_layout *cut,
                          const int64_t *shape, int dim)
{
    for (int r = 0; r < grid_ranks(g); r++) {
        int coord[DT_MAX_DIMS] = { 0 }, had[40 * 40] = { 0 }, has[40 * 40] = { 0 };
        int64_t most = 0, all;
        grid_coord(g, r, coord);
        all = mark(base, shape, coord, had);
        DT_ASSERT(base != cut || all <= 1);
        if (base == cut) continue;
        for (coord[dim] = 0; coord[dim] < g->size[dim]; coord[dim]++) {
            const int64_t n = mark(cut, shape, coord, has);
            most = n > most ? n : most;
        }
        DT_ASSERT(memcmp(had, has, sizeof had) == 0);
        DT_ASSERT(all < 2 || all % g->size[dim] != 0 || most < all);
    }
}

DT_TEST(shard_over, ranks_divide_what_each_had)
{
    static const char *const places[] = { "R",
                                          "S(0)",
                                          "S(1)",
                                          "S(0,unit=4)",
                                          "S(0,replicas=2)",
                                          "S(1,unit=3,replicas=2)",
                                          "S(0,blocks=4:2:2)",
                                          "S(0,blocks=4:2:2,units=4:1:1)",
                                          "S(1,blocks=5:5)" };
    static const int64_t shapes[][2] = { { 8, 10 }, { 8, 40 } };
    static const int64_t uneven[][2] = { { 1, 1 }, { 7, 1 }, { 5, 33 }, { 33, 2 }, { 0, 9 } };
    dti_layouts *t = new_table();

    for (int size = 2; size <= 8; size++)
        for (int tp = 2; tp * size <= GRID_MAX_RANKS; tp += 2)
            for (int inner = 0; inner < 2; inner++) {
                const grid g = { 2, { inner ? tp : size, inner ? size : tp } };
                for (size_t p = 0; p < DT_COUNT(places); p++) {
                    const bool table = strstr(places[p], "blocks") != NULL;
                    char text[128];
                    (void)snprintf(text, sizeof text, inner ? "%sR" : "R%s", places[p]);
                    const dt_layout *base = layout(t, &g, 2, text);
                    const size_t n = table ? 0 : DT_COUNT(uneven);
                    for (size_t s = strstr(text, "5:5") == NULL ? 0 : DT_COUNT(shapes);
                         s < DT_COUNT(shapes); s++)
                        check_divided(&g, base, over(base, shapes[s], inner), shapes[s], inner);
                    for (size_t s = 0; s < n; s++)
                        check_divided(&g, base, over(base, uneven[s], inner), uneven[s], inner);
                    if (strstr(text, "5:5") != NULL)
                        check_divided(&g, base, over(base, shapes[0], inner), shapes[0], inner);
                }
            }
    dti_layouts_destroy(t);
}
