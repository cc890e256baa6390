/* SPDX-License-Identifier: Apache-2.0
 *
 * Who sends whom what where a tensor goes from one mesh to another (<dtensor/channels.h>): the same
 * on all ranks of both, from the tensor's shape and layout alone. */
#ifndef DTI_CHANNEL_ROUTE_H
#define DTI_CHANNEL_ROUTE_H

#include <dtensor/tensor.h>

#include "placements/overlap.h"

typedef struct dti_route {
    dt_mesh *from, *to;
    bool paired; /* the same sizes of dims: ranks at equal coordinates belong together */
} dti_route;

/* How a tensor that lies as `layout` says on `from` will lie on `to`. */
dt_status dti_route_layout(const dti_route *r, const dt_layout *layout,
                           const dt_layout **out) DT_MUST_USE;

/* The place on `from` of the rank that tells the one at a place on `to` what comes. */
int dti_route_teller(const dti_route *r, int to_place);

/* What the rank at a place on `from` sends the one at a place on `to`; false: nothing. */
bool dti_route_between(const dti_route *r, const dt_layout *from, int from_place,
                       const dt_layout *to, int to_place, const int64_t *shape, dti_overlap *out);

#endif
