/* SPDX-License-Identifier: Apache-2.0
 *
 * The straight line through what passes took. Every rank is told the same times, and fits the same
 * line. */
#include <math.h>

#include "models/engine/engine_parts.h"

/* A pass counts half after about 14 others. */
static const double FADES = 0.95;

static void add(dti_cost_line *l, double n, double t)
{
    l->weight = FADES * l->weight + 1;
    l->rows = FADES * l->rows + n;
    l->ns = FADES * l->ns + t;
    l->rows_rows = FADES * l->rows_rows + n * n;
    l->rows_ns = FADES * l->rows_ns + n * t;
}

void dti_pass_costs_add(dti_pass_costs *c, int64_t rows, int64_t ns, bool waited)
{
    const double n = (double)rows, t = (double)ns;

    add(&c->all, n, t);
    if (waited) add(&c->waited, n, t);
    if (c->least_row_ns == 0 || t / n < c->least_row_ns) c->least_row_ns = t / n;
}

/* Of passes that nobody waited for only where there are no others: they are large, and a row of
 * theirs costs less. A slope is what some noise says where passes have hardly differed: no row
 * costs less than in the best of all passes, and none more than there would be with no pass around
 * it. */
dti_pass_cost dti_pass_costs_now(const dti_pass_costs *c)
{
    const dti_cost_line *l = c->waited.weight > 0 ? &c->waited : &c->all;
    const double spread = l->weight * l->rows_rows - l->rows * l->rows;
    double row;

    if (l->weight <= 0) return (dti_pass_cost){ 0, 0 };
    row = l->ns / l->rows;
    /* all had the same number of rows: nothing is known of more */
    if (spread > 1e-3 * l->weight * l->weight)
        row = fmin(row, fmax(c->least_row_ns, (l->weight * l->rows_ns - l->rows * l->ns) / spread));
    return (dti_pass_cost){ llround(fmax(0, (l->ns - row * l->rows) / l->weight)),
                            llround(fmax(1, row)) };
}
