/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule as it runs: each rank through its row, waiting for what others make. */
#ifndef DTI_PIPELINE_WALK_H
#define DTI_PIPELINE_WALK_H

#include "training/pipeline/rows.h"

/* Begins and ends of all actions, as those of the rows. Where ranks wait for ever they stop: *all
 * is false, and at[rank] the action of the row (from 0) that does not begin. Rows obey all else
 * that dt_pipeline_check() asks for, costs are whole. */
dt_status dti_pipeline_walk(const dt_pipeline_schedule *s, const dt_pipeline_costs *costs,
                            dt_pipeline_span *spans, int *at, bool *all) DT_MUST_USE;

/* What an action takes by itself. */
double dti_action_time(const dt_pipeline_costs *costs, const dt_action *a);

/* Whose action the one needs that is made elsewhere: F of the stage before, B or I of the stage
 * behind. -1: none. */
int dti_needed_stage(const dt_pipeline_schedule *s, const dt_action *a);

#endif
