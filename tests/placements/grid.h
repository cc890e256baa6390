/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts written as text, for tables in tests: layout(t, (grid){ 2, { 2, 3 } }, 2, "S(0)R"). */
#ifndef DT_TEST_GRID_H
#define DT_TEST_GRID_H

#include <stdio.h>

#include "placements/layout.h"
#include "tests/support/dt_test.h"

enum { GRID_MAX_RANKS = 16 };

typedef struct grid {
    int n_dims;
    int size[DT_MAX_DIMS];
} grid;

static inline int grid_ranks(const grid *g)
{
    int n = 1;

    for (int m = 0; m < g->n_dims; m++) n *= g->size[m];
    return n;
}

/* The coordinates of rank r, the last dim varies fastest. */
static inline void grid_coord(const grid *g, int r, int *coord)
{
    for (int m = g->n_dims - 1; m >= 0; m--) {
        coord[m] = r % g->size[m];
        r /= g->size[m];
    }
}

static inline const dt_layout *layout(dti_layouts *table, const grid *g, int n_axes,
                                      const char *text)
{
    dti_parsed parsed;
    const dt_layout *l;

    DT_ASSERT_OK(dti_placements_parse(text, g->n_dims, &parsed));
    DT_ASSERT_OK(dti_layout_intern(table, g->n_dims, g->size, n_axes, parsed.place, NULL, &l));
    return l;
}

static inline dti_layouts *new_table(void)
{
    dti_layouts *table;

    DT_ASSERT_OK(dti_layouts_create(&table));
    return table;
}

/* The runs of axis 0 on all ranks: "0-2,6 | 3-5,7 | -". */
static inline void runs_text(const dt_layout *l, const grid *g, int64_t extent, char *text,
                             size_t bytes)
{
    size_t n = 0;

    for (int r = 0; r < grid_ranks(g) && n < bytes; r++) {
        int coord[DT_MAX_DIMS], n_runs;
        dt_rows runs[DT_MAX_RUNS];
        grid_coord(g, r, coord);
        DT_ASSERT_OK(dt_layout_runs(l, &extent, 0, coord, runs, &n_runs));
        n += (size_t)snprintf(text + n, bytes - n, "%s%s", r > 0 ? " | " : "", n_runs ? "" : "-");
        for (int i = 0; i < n_runs && n < bytes; i++)
            n += (size_t)snprintf(
                text + n, bytes - n, runs[i].end - runs[i].begin > 1 ? "%s%lld-%lld" : "%s%lld",
                i > 0 ? "," : "", (long long)runs[i].begin, (long long)runs[i].end - 1);
    }
}

#endif
