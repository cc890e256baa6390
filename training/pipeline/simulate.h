/* SPDX-License-Identifier: Apache-2.0
 *
 * A simulated step. */
#ifndef DTI_PIPELINE_SIMULATE_H
#define DTI_PIPELINE_SIMULATE_H

#include "training/pipeline/rows.h"

struct dt_pipeline_timing {
    dt_pipeline_schedule *schedule; /* held */
    dt_pipeline_total total;
    dt_pipeline_rank *ranks; /* [n_ranks] */
    dt_pipeline_span *spans; /* [n] of all actions */
};

#endif
