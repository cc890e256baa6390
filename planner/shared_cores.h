/* SPDX-License-Identifier: Apache-2.0
 *
 * Pipelines whose ranks are more than the cores that they run on. */
#ifndef DTI_PLANNER_SHARED_CORES_H
#define DTI_PLANNER_SHARED_CORES_H

#include <dtensor/pipeline.h>

/* Of a microbatch, by stage: seconds of a core of F, I and W, and what follows the way there and
 * back without one. */
typedef struct dti_shared_work {
    const double *f, *i, *w, *f_wait, *b_wait; /* [n_stages] */
    const double *message; /* [n_stages] between stages k - 1 and k, of different ranks */
    double cores;          /* for all ranks of the pipeline */
} dti_shared_work;

/* When the last action has ended. */
dt_status dti_shared_makespan(const dt_pipeline_schedule *s, const dti_shared_work *work,
                              double *out) DT_MUST_USE;

#endif
