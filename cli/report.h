/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of the page that `dtensor report` writes: HTML with SVG in it, no script, nothing that
 * is elsewhere. Colours are those of the style sheet, which has them for light and for dark. */
#ifndef DTI_CLI_REPORT_PAGE_H
#define DTI_CLI_REPORT_PAGE_H

#include <stdio.h>

#include "cli/metrics.h"

struct json_t;

/* What the folder of a run holds; objects may be NULL: not written, or not yet. */
typedef struct cli_run {
    const char *folder;
    struct json_t *options, *plan, *trace;
    cli_metric *steps; /* [n] */
    size_t n;
    cli_metrics_faults faults;
} cli_run;

/* Text of others, so that it means nothing to HTML. */
void cli_html_text(FILE *to, const char *text);

/* Loss, norm, speed and learning rate over the steps (report_curves.c). */
void cli_html_curves(FILE *to, const cli_run *run);

/* Memory by kind and bytes by mesh dim (report_costs.c), a step in time (report_timeline.c).
 * Nothing where the folder does not say it. */
void cli_html_costs(FILE *to, const cli_run *run);
void cli_html_timeline(FILE *to, const cli_run *run);

#endif
