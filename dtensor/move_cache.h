/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of moves that were made before: a model makes the same few moves at every step. */
#ifndef DTI_MOVE_CACHE_H
#define DTI_MOVE_CACHE_H

#include "dtensor/tensor_internal.h"
#include "placements/plan.h"

/* The plan that brings x to layout `to` of its runtime, by the costs of x's mesh; borrowed, valid
 * until the next call. Plans that hold for any shape are found for any. */
dt_status dti_move_cache_plan(const dt_tensor *x, const dt_layout *to,
                              const dti_move **out) DT_MUST_USE;

/* Takes the steps of a plan from x's layout; on members of x's mesh. */
dt_status dti_run_move(dt_tensor *x, const dti_move *plan, dt_comm_counter *counters,
                       dt_tensor **y) DT_MUST_USE;

/* Memory for the boxes of one move, of the device's own; valid until the next call. */
dt_status dti_move_room(dti_device *device, size_t bytes, void **out) DT_MUST_USE;

void dti_move_cache_free(dti_device *device);

#endif
