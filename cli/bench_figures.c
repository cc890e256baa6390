/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/bench_figures.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/option_table.h"
#include "cli/print_report.h"

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

    /* the limit of a model of a few bytes may be nothing */
    return json_pack("{s:I, s:f, s:o, s:f, s:o, s:o, s:o, s:o, s:o}", "tokens",
                     (json_int_t)f->tokens, "s", s, "tokens_per_s",
                     cli_json_number((double)f->tokens / s), "work", f->work, "work_per_s",
                     cli_json_number(f->work / s), "limit_per_s", cli_json_number(most), "ratio",
                     cli_json_number(r), "ratio_least", cli_json_number(f->ratio[0]), "ratio_most",
                     cli_json_number(f->ratio[n - 1]));
}

/* --- sequences at once ------------------------------------------------------------------------ */

dt_status cli_batches_read(const char *text, cli_batch batches[CLI_MAX_BATCHES], int *n)
{
    char number[32];

    for (*n = 0;; (*n)++, text++) {
        const size_t bytes = strcspn(text, ",");
        DT_CHECK(*n < CLI_MAX_BATCHES && bytes < sizeof number, DT_ERR_ARG,
                 "--batch: at most %d numbers of at most %zu digits", CLI_MAX_BATCHES,
                 sizeof number - 1);
        memcpy(number, text, bytes);
        number[bytes] = '\0';
        DT_TRY(cli_parse_int("--batch", number, 1, CLI_MAX_BATCH, &batches[*n].n));
        text += bytes;
        if (*text == '\0') break;
    }
    (*n)++;
    return DT_OK;
}

void cli_batch_add(cli_batch *b, int64_t i, double seconds, double reading, double multiplying)
{
    const double bound = reading > multiplying ? reading : multiplying;

    b->passes.seconds[i] = seconds;
    b->passes.limit[i] = 1 / bound;
    b->passes.ratio[i] = b->passes.work * bound / seconds;
    b->reading += reading;
    b->multiplying += multiplying;
}

void cli_batch_print(cli_batch *b, const char *reads, const char *multiplies)
{
    cli_figures *f = &b->passes;
    const int64_t n = f->n_rounds;
    const double s = median(f->seconds, n), most = median(f->limit, n), r = median(f->ratio, n);

    (void)printf("batch %5lld %9.1f tokens/s: a pass %8.2f ms, at the least %8.2f by %s, "
                 "%.2f (%.2f to %.2f)\n",
                 (long long)b->n, (double)f->tokens / s, s / f->work * 1e3, 1e3 / most,
                 b->reading > b->multiplying ? reads : multiplies, r, f->ratio[0], f->ratio[n - 1]);
}

json_t *cli_batch_json(cli_batch *b)
{
    json_t *json = cli_figures_json(&b->passes);
    const double most = median(b->passes.limit, b->passes.n_rounds);

    (void)json_object_set_new(json, "batch", json_integer(b->n));
    (void)json_object_set_new(json, "bound_s", cli_json_number(1 / most));
    (void)json_object_set_new(json, "bound",
                              json_string(b->reading > b->multiplying ? "reading" : "multiplying"));
    return json;
}
