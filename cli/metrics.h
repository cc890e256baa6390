/* SPDX-License-Identifier: Apache-2.0
 *
 * RUN/metrics.jsonl: an object per step, each on a line of its own. */
#ifndef DTI_CLI_METRICS_H
#define DTI_CLI_METRICS_H

#include "cli/cli.h"

#define CLI_METRICS "metrics.jsonl"

/* One step. What is not known, or was no number, is NAN; JSON has null there, or no member. */
typedef struct cli_metric {
    int64_t step;     /* from 1 on */
    double loss;      /* mean cross entropy of the step's targets, before it */
    double grad_norm; /* of all gradients, before clipping */
    double clip;      /* what they were multiplied by; 1: nothing was clipped */
    double lr;
    int64_t tokens;         /* read since the beginning of the run, those of this step included */
    double seconds;         /* that the step took */
    double validation_loss; /* after the step; NAN: not looked at */
    double imbalance;       /* of experts, where it is most: tokens of the one that most chose over
                             * the mean; NAN: there are none */
    bool skipped;           /* f16: gradients overflowed, parameters are as before */
} cli_metric;

typedef struct cli_metrics cli_metrics;

/* Opens the file of a run to add lines behind that of step `after`, which become the only ones: 0
 * begins anew. *last gets the line of that step, if there is one. Nobody else writes meanwhile:
 * whoever opens it has opened the folder of checkpoints, which is locked. DT_ERR_IO. */
dt_status cli_metrics_open(const char *run, int64_t after, cli_metric *last,
                           cli_metrics **out) DT_MUST_USE;
dt_status cli_metrics_add(cli_metrics *m, const cli_metric *metric) DT_MUST_USE;
void cli_metrics_close(cli_metrics **metrics); /* accepts NULL */

/* Lines that do not count: the last one while it is not complete, since somebody may be writing;
 * others that are no object with a step, such as half a line of a run that was killed. */
typedef struct cli_metrics_faults {
    bool torn;
    size_t n_damaged, first_damaged; /* the first is line number .. */
} cli_metrics_faults;

/* All other lines of a file; *list is freed with dti_free(). DT_ERR_IO. */
dt_status cli_metrics_read(const char *path, cli_metric **list, size_t *n,
                           cli_metrics_faults *faults) DT_MUST_USE;

#endif
