/* SPDX-License-Identifier: Apache-2.0
 *
 * Cutting what ranks hold copies of: a parameter that is fully sharded, the state of an optimizer,
 * a gradient that is reduced to where its state lies. One rule for all three: so they agree. */
#ifndef DTI_SHARD_OVER_H
#define DTI_SHARD_OVER_H

#include "placements/layout.h"

/* `base` with mesh dim `dim`, on which it is whole (or terms of a sum), cut over its ranks:
 *
 *   1. along an axis that no other dim cuts and whose extent the dim's size divides: axis 0, else
 *      the longest
 *   2. else along the longest axis that no other dim cuts
 *   3. else along the axis with the most rows left, behind the cuts that it has
 *
 * An axis of which each rank can have a row goes before one of which it cannot, whatever the rule.
 * Nothing is padded: pieces are uneven, or empty, where the size does not divide. *out is `base`
 * where the dim cuts already, has one rank, or no axis has two rows. What is cut already may be
 * packed, at offsets or shared by neighbours: gathering over `dim` gives `base` again, and moves
 * nothing between other dims. No malloc where the layout exists.
 *   Errors  DT_ERR_MEMORY */
dt_status dti_shard_over(const dt_layout *base, const int64_t *shape, int dim,
                         const dt_layout **out) DT_MUST_USE;

#endif
