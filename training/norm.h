/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of squares of f32 without rounding.
 *
 * The square of an f32 is m^2 2^(2 e), m a whole number below 2^24 and e from -149 to 104. All such
 * squares are multiples of 2^-298 below 2^256, so digits of 32 bits in 64-bit integers take any sum
 * of up to 2^31 of them in any order, over ranks too, and one carry makes them one number. */
#ifndef DTI_NORM_H
#define DTI_NORM_H

#include <dtensor/tensor.h>

#include "base/error.h"

enum { DTI_NORM_DIGITS = 20 }; /* digit d counts 2^(32 d - 298) */

typedef struct dti_square_sum {
    int64_t digit[DTI_NORM_DIGITS];
    int64_t n_bad;     /* elements that are not finite, and are not in the digits */
    int64_t n_bad_own; /* ranks' own terms that were not */
} dti_square_sum;

/* Adds the squares of x's piece. */
dt_status dti_square_sum_add(dti_square_sum *sum, dt_tensor *x) DT_MUST_USE;

/* Whether all of x's piece is finite. */
dt_status dti_is_finite(dt_tensor *x, bool *finite) DT_MUST_USE;

/* The root of the sum. The digits may come from any number of ranks. */
double dti_square_sum_root(const dti_square_sum *sum);

#endif
