/* SPDX-License-Identifier: Apache-2.0
 *
 * What ranks learn together of a step's gradients before anything is written: their norm, and
 * whether all are finite. */
#ifndef DTI_NORM_H
#define DTI_NORM_H

#include "dtensor/kernels/digits.h"
#include "training/optimizer.h"

/* The exact sum of squares over all ranks (dtensor/kernels/digits.h), with how many values were not
 * finite; how many gradients had terms on some rank that were not, before they were added up; and
 * whether all ranks ask for the same step. */
typedef struct dti_squares {
    int64_t digits[DTI_DIGITS_N];
    int64_t n_bad_terms;
    int64_t asked[2][2]; /* of two parts of what each rank asks of the step: sum, and of squares */
} dti_squares;

/* Counters on the rank's device: DTI_DIGITS_N numbers for each parameter, and for all. */
dt_status dti_norm_create(dt_optimizer *opt) DT_MUST_USE;
void dti_norm_free(dt_optimizer *opt);

/* Remembers whether this rank's terms of gradient i are finite: where they are added up nobody can
 * say any more whose were not. Called before they travel; nothing is waited for; `tape` counts
 * the work. */
dt_status dti_norm_look(dt_optimizer *opt, int64_t i, dt_tape *tape) DT_MUST_USE;

/* Of all gradients, which lie as their state does. `asked` is a hash of what this rank makes of
 * them. Collective over the mesh; the same everywhere. */
dt_status dti_norm_of(dt_optimizer *opt, uint64_t asked, dti_squares *out) DT_MUST_USE;
bool dti_norm_is_finite(const dti_squares *squares);
bool dti_norm_is_asked_alike(const dt_optimizer *opt, const dti_squares *squares);

/* DT_ERR_ARG, on all ranks alike: who had what of which parameter. Collective over the mesh. */
dt_status dti_norm_refuse(dt_optimizer *opt, const dti_squares *squares) DT_MUST_USE;

#endif
