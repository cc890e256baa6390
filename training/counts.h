/* SPDX-License-Identifier: Apache-2.0
 *
 * What parts of a step communicate and compute, from the counters of their tapes. */
#ifndef DTI_COUNTS_H
#define DTI_COUNTS_H

#include <dtensor/pipeline_training.h>

/* Adds what the tape has counted since *before, which becomes what it has counted now. */
void dti_count_since(const dt_tape *t, dt_training_part *before, dt_training_part *sum);

#endif
