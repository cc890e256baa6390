/* SPDX-License-Identifier: Apache-2.0
 *
 * What PyTorch's two planners of redistribute would move, for moves that PyTorch can express: plain
 * Shard, Replicate, Partial, any order of cuts. The rules are those of its greedy planner and of
 * its graph search (constants of its cost model); bytes are counted without padding, which is in
 * its favour, and consecutive all-reduces as one, which it does where flattened groups exist. */
#ifndef DT_TEST_TORCH_PLANS_H
#define DT_TEST_TORCH_PLANS_H

#include "placements/plan.h"

/* Bytes that the busiest rank receives, summed over the steps; -1: the planner does not apply. */
typedef struct torch_bytes {
    int64_t greedy;
    int64_t graph;
} torch_bytes;

/* True if no unit, replicas, offsets or blocks stand in the layout. */
bool torch_can_say(const dt_layout *l);

torch_bytes torch_plans(const dt_layout *from, const dt_layout *to, const int64_t *shape,
                        size_t element_bytes);

#endif
