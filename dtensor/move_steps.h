/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of moves, one at a time and for several tensors together. */
#ifndef DTI_MOVE_STEPS_H
#define DTI_MOVE_STEPS_H

#include "dtensor/tensor_internal.h"

/* This rank's coordinates. */
void dti_step_coords(const dt_mesh *mesh, int *coord);

/* *now after the step, of a plan that began with elements of `dtype`. NULL after an error. */
dt_status dti_step_take(const dti_move_step *step, const int *me, dt_dtype dtype,
                        dt_comm_counter *counters, dt_tensor **now) DT_MUST_USE;

/* The communicator of those that reduce together. */
dt_status dti_step_group(const dti_move_step *step, dt_mesh *mesh, dti_comm **out) DT_MUST_USE;

/* For a sum that is an average in part or by steps. */
dt_status dti_step_divide(dt_tensor *y, int64_t divisor) DT_MUST_USE;

/* Counts what the step receives of x, and `calls`; counters may be NULL. */
void dti_step_count(const dti_move_step *step, const dt_tensor *x, const int *me, int calls,
                    dt_comm_counter *counters);

/* n moves of dti_redistribute() at once: y[i] is x[i] as want[i] says, with the same bits and
 * bytes, but reductions of f32 by the same ranks are one collective, whose results lie side by side
 * in memory. After an error all y[i] are NULL. */
dt_status dti_redistribute_all(int n, dt_tensor *const *x, const dt_layout *const *want,
                               dt_comm_counter *counters, dt_tensor **y) DT_MUST_USE;

#endif
