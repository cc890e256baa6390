/* SPDX-License-Identifier: Apache-2.0
 *
 * Random tensors between random pairs of layouts, checked element by element and byte by byte. */
#ifndef DT_TEST_MOVES_H
#define DT_TEST_MOVES_H

/* Moves `pairs` random tensors from one random layout to another: 0 to 4 axes of 0 to 17 rows, all
 * dtypes, chunks, units, replicas, offsets, blocks, orders, all reductions, on meshes of 1 to 8
 * ranks in turn; then on to two other meshes of other shape and membership, and back. Values are
 * such that every order of reducing is exact. Checks that
 *
 *   - every element of every piece is what it has to be,
 *   - the lengths handed to the back end are those predicted, sent and received,
 *   - with latency 0, PyTorch's two planners do not move less. */
void dt_test_random_moves(unsigned seed, int pairs);

#endif
