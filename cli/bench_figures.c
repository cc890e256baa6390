/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench_figures.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

void cli_figures_open(cli_figures *f, int64_t n_rounds, double *numbers)
{
    f->n_rounds = n_rounds;
    f->seconds = numbers;
    f->limit = numbers + n_rounds;
    f->ratio = numbers + 2 * n_rounds;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* The median of what is sorted here. */
static double median(double *x, int64_t n)
{
    qsort(x, (size_t)n, sizeof *x, compare);
    return n % 2 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

void cli_figures_print(cli_figures *f, const cli_figures_words *w)
{
    const int64_t n = f->n_rounds;
    const double s = median(f->seconds, n), most = median(f->limit, n), r = median(f->ratio, n);

    (void)printf("%-*s %5lld tokens, %9.2f ms, %9.1f tokens/s: %.1f %s of %.1f that %s reaches, "
                 "%.2f (%.2f to %.2f)\n",
                 w->width, w->name, (long long)f->tokens, s * 1e3, (double)f->tokens / s,
                 f->work / s * 1e-9, w->unit, most * 1e-9, w->limit, r, f->ratio[0],
                 f->ratio[n - 1]);
}

json_t *cli_figures_json(cli_figures *f)
{
    const int64_t n = f->n_rounds;
    const double s = median(f->seconds, n), most = median(f->limit, n), r = median(f->ratio, n);

    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "tokens",
                     (json_int_t)f->tokens, "s", s, "tokens_per_s", (double)f->tokens / s, "work",
                     f->work, "work_per_s", f->work / s, "limit_per_s", most, "ratio", r,
                     "ratio_least", f->ratio[0], "ratio_most", f->ratio[n - 1]);
}
