/* SPDX-License-Identifier: Apache-2.0
 *
 * What a rank's device reaches at most, for figures to stand beside: it copies its own memory, or
 * multiplies two large matrices, and does nothing else. Ranks that measure at the same time share
 * what they share in a run. */
#ifndef DTI_RATES_H
#define DTI_RATES_H

#include <dtensor/tensor.h>

#include "base/error.h"

/* One rank's; collective only where a call says so. */
typedef struct dti_rates dti_rates;

/* For copies that read and write `bytes` together, at least 2, and for products of side^3
 * multiply-adds in `dtype`. Takes at most a GiB for the copies, which then are several. */
dt_status dti_rates_open(dt_mesh *mesh, int64_t bytes, dt_dtype dtype, int64_t side,
                         dti_rates **out) DT_MUST_USE;
void dti_rates_close(dti_rates **rates); /* accepts NULL */

/* Each returns when it is done. */
dt_status dti_rates_copy(dti_rates *r) DT_MUST_USE;
dt_status dti_rates_multiply(dti_rates *r) DT_MUST_USE;

/* Of one call. */
double dti_rates_copied(const dti_rates *r);     /* bytes read and bytes written */
double dti_rates_operations(const dti_rates *r); /* a multiply-add counts as two */

/* Collective: the side of the least product of all those of powers of two, from 64 to 8192, that
 * takes a millisecond; alike on all ranks. */
dt_status dti_rates_side(dt_mesh *mesh, dt_dtype dtype, int64_t *side) DT_MUST_USE;

/* Collective: each[r] is what rank r of the mesh passes as `own`. */
dt_status dti_rates_gather(dt_mesh *mesh, int64_t own, int64_t *each) DT_MUST_USE;

#endif
