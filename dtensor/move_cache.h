/* SPDX-License-Identifier: Apache-2.0
 *
 * Plans of moves that were made before: a model makes the same few moves at every step. */
#ifndef DTI_MOVE_CACHE_H
#define DTI_MOVE_CACHE_H

#include "placements/move.h"

struct dti_device;

/* The plan between two layouts of the device's runtime; borrowed, valid until the next call. */
dt_status dti_move_cache_plan(struct dti_device *device, const dt_layout *from, const dt_layout *to,
                              const dti_move **out) DT_MUST_USE;

/* Memory for the boxes of one move, of the device's own; valid until the next call. */
dt_status dti_move_room(struct dti_device *device, size_t bytes, void **out) DT_MUST_USE;

void dti_move_cache_free(struct dti_device *device);

#endif
