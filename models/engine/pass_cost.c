/* SPDX-License-Identifier: Apache-2.0
 *
 * The straight line through what passes took. Every rank is told the same times, and fits the same
 * line. */
#include <math.h>

#include "models/engine/engine_parts.h"

/* A pass counts half after about 14 others. */
static const double FADES = 0.95;

void dti_pass_costs_add(dti_pass_costs *c, int64_t rows, int64_t ns)
{
    const double n = (double)rows, t = (double)ns;

    c->weight = FADES * c->weight + 1;
    c->rows = FADES * c->rows + n;
    c->ns = FADES * c->ns + t;
    c->rows_rows = FADES * c->rows_rows + n * n;
    c->rows_ns = FADES * c->rows_ns + n * t;
}

dti_pass_cost dti_pass_costs_now(const dti_pass_costs *c)
{
    const double spread = c->weight * c->rows_rows - c->rows * c->rows;
    double row = 0;

    if (c->weight <= 0) return (dti_pass_cost){ 0, 0 };
    /* all had the same number of rows: nothing is known of more */
    if (spread > 1e-3 * c->weight * c->weight)
        row = (c->weight * c->rows_ns - c->rows * c->ns) / spread;
    if (!(row > 0)) row = c->ns / c->rows;
    return (dti_pass_cost){ llround(fmax(0, (c->ns - row * c->rows) / c->weight)),
                            llround(fmax(1, row)) };
}
