/* SPDX-License-Identifier: Apache-2.0
 *
 * The cheapest way between two layouts of one grid. Pure.
 *
 * Without reductions one exchange is both the fewest bytes and the fewest steps, unless links
 * differ. With reductions there is a choice of what to scatter along which axis, in which order, of
 * which dims to reduce together, and of letting ranks that hold copies share the work: a search by
 * cost over the layouts in between. */
#ifndef DTI_PLAN_H
#define DTI_PLAN_H

#include "placements/cost.h"

/* Plans a move. *any_shape: the plan is the same for every shape and dtype.
 *   Errors  as dti_move_plan(); DT_ERR_LAYOUT if memory_bytes is less than every plan needs */
dt_status dti_plan(const dt_layout *from, const dt_layout *to, const dti_cost_model *model,
                   dti_move *out, bool *any_shape) DT_MUST_USE;

/* Time of all steps. */
double dti_plan_ns(const dti_move *plan, const dti_cost_model *model, const dti_probes *probes);

#endif
