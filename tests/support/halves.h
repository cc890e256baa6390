/* SPDX-License-Identifier: Apache-2.0
 *
 * A backward pass in two halves, beside a whole one. */
#ifndef DT_TEST_HALVES_H
#define DT_TEST_HALVES_H

#include <dtensor/gradients.h>

/* fn's gradients by x[0 .. n - 1], floats and not Partial, have the same bits in two halves as in
 * a whole pass: with each x as the only leaf and the others as inputs, and the other way round.
 * Those of inputs are there after the first half, those of leaves are not. */
dt_status dt_test_halves(dt_mesh *mesh, dt_differentiable_fn fn, const void *arg, int n,
                         dt_tensor *const *x);

#endif
