/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps that lead on from a layout: the edges of the planner's graph. */
#ifndef DTI_PLAN_EDGES_H
#define DTI_PLAN_EDGES_H

#include "placements/cost.h"

/* Calls `take` with every step that may lead from `at` towards `to`; step->from is `at` and
 * step->to a layout in normal form, both valid during the call only, neither interned. */
void dti_plan_edges(const dt_layout *at, const dt_layout *to, const dti_cost_model *model,
                    void (*take)(void *arg, const dti_move_step *step), void *arg);

#endif
