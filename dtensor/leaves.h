/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step of training asks of collections, tensors and tapes: sums of leaves one by one, a move
 * into bytes that are there, and counting both. Leaf i is number i of dt_gradients_at(). */
#ifndef DTI_LEAVES_H
#define DTI_LEAVES_H

#include <dtensor/gradients.h>

#include "base/error.h"

/* Whether the tape records for the collection. */
bool dti_tape_records_for(const dt_tape *tape, const dt_gradients *gradients);

/* Whether what it records reads the leaf, anywhere. */
bool dti_tape_reads(const dt_tape *tape, int64_t leaf);

/* How often the collection was cleared. */
uint32_t dti_gradients_clears(const dt_gradients *gradients);

/* Part number k of a leaf's sum, those that lie alike being one: a piece of the gradient, or terms
 * of it, in f32. Borrowed; NULL past the last. */
dt_tensor *dti_leaf_part(const dt_gradients *gradients, int64_t leaf, int k);

/* Brings a leaf's sum to one layout, in one move for each part, where it stays as the only part.
 * Nothing where nothing came. `tape` counts what travels, as "gradients"; or NULL. */
dt_status dti_leaf_settle(dt_gradients *gradients, int64_t leaf, const dt_layout *want,
                          dt_tape *tape) DT_MUST_USE;

/* Adds x to the only part of a leaf's sum, which lies and is shaped as it is; where there is none x
 * is it. Terms of a sum need no other way. */
dt_status dti_leaf_add(dt_gradients *gradients, int64_t leaf, dt_tensor *x,
                       dt_tape *tape) DT_MUST_USE;

/* Takes the only part of a leaf's sum out; NULL if there is none. A reference of the caller's. */
dt_tensor *dti_leaf_take(dt_gradients *gradients, int64_t leaf);

/* Writes x's value to `to`, of the same shape, dtype and mesh: what is there is written over, where
 * it lies. Counted under the tape's reason. */
dt_status dti_move_into(dt_tape *tape, dt_tensor *x, dt_tensor *to) DT_MUST_USE;

/* What was computed on pieces beside the tape, since `begun_ns`, by what a meter knows as `kernel`;
 * and an all-reduce of that many bytes over p ranks. */
void dti_tape_add_work(dt_tape *tape, const char *kernel, dt_dtype dtype, const dt_op_work *work,
                       int64_t begun_ns);
double dti_tape_seconds(const dt_tape *tape); /* of kernels, by the device's meter */
dt_status dti_tape_add_reduction(dt_tape *tape, const char *reason, int64_t bytes,
                                 int p) DT_MUST_USE;

#endif
