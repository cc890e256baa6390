/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule as it runs: each rank through its row, waiting for what others make. */
#ifndef DTI_PIPELINE_WALK_H
#define DTI_PIPELINE_WALK_H

#include "training/pipeline/rows.h"

/* What an action takes: NULL: F, I and W one each, messages nothing. */
typedef struct dti_walk_times {
    const double *f, *i, *w; /* [n_stages] */
    double message;          /* from one rank to another */
    double together;         /* of two that are overlapped: as a share of their sum */
} dti_walk_times;

typedef struct dti_action_span {
    double begin, end;
} dti_action_span;

/* Spans of all actions, as those of the rows; where ranks wait for ever they stop: *all is false,
 * and at[rank] the action of the row (from 0) that does not begin. Rows obey all else that
 * dt_pipeline_check() asks for. */
dt_status dti_pipeline_walk(const dt_pipeline_schedule *s, const dti_walk_times *times,
                            dti_action_span *spans, int *at, bool *all) DT_MUST_USE;

/* Whose action the one needs that is made elsewhere: F of the stage before, B or I of the stage
 * behind. -1: none. */
int dti_needed_stage(const dt_pipeline_schedule *s, const dt_action *a);

#endif
