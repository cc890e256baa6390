/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of known contents for tests. */
#ifndef DT_TEST_TENSORS_H
#define DT_TEST_TENSORS_H

#include <dtensor/tensor.h>

/* A tensor whose global value is 0, 1, 2, ... in row-major order, placed as `place`. A Partial dim
 * holds terms that add up to it (sum), each rank's different. */
dt_status dt_test_arange(dt_mesh *mesh, const dt_placement *place, dt_dtype dtype, int n_axes,
                         const int64_t *shape, dt_tensor **out);

/* Terms of a sum become the value, by a move on the tape. */
dt_tensor *dt_test_reduced(dt_tape *t, dt_tensor *x);

/* A replicated tensor that must be 0, 1, 2, ... exactly. */
dt_status dt_test_expect_arange(const dt_tensor *x);

/* Two tensors have the same pieces on this rank, bit by bit; `what` says whose the second is. */
dt_status dt_test_expect_same(const dt_tensor *a, const dt_tensor *b, const char *what);

/* Fills n floats with reproducible values in [-1, 1). */
void dt_test_random(float *to, int64_t n, uint32_t seed);

#endif
