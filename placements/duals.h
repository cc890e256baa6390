/* SPDX-License-Identifier: Apache-2.0
 *
 * How gradients lie. Seen from the whole tensor every move is the identity, and so is its dual: a
 * gradient goes back by one move, from where it lies to where the gradient of the move's operand
 * belongs. What is left to say is where that is. */
#ifndef DTI_DUALS_H
#define DTI_DUALS_H

#include "placements/layout.h"

/* The layout of the gradient of a value that lies as `value`, mesh dim by mesh dim, such that the
 * product of value and gradient is the sum of what ranks multiply:
 *
 *   Shard           the same cut; where neighbours hold copies they have terms, and the reverse
 *   Partial(sum)    Replicate
 *   Replicate       Replicate or, if it comes so, Partial(sum): who adds all contributions first
 *                   reduces once
 *
 *   comes  how the gradient lies now, in a grid like value's, or NULL: Replicate stays Replicate
 *
 * So dti_redistribute() to dti_dual_layout(x, dy) is the backward of a move that x came by. No
 * malloc where the layout exists.
 *   Errors  DT_ERR_UNSUPPORTED  the value is Partial of another reduction than sum and has no
 *                               gradient
 *           DT_ERR_MEMORY */
dt_status dti_dual_layout(const dt_layout *value, const dt_layout *comes,
                          const dt_layout **out) DT_MUST_USE;

#endif
