/* SPDX-License-Identifier: Apache-2.0
 *
 * Sums of leaves that travel together, while the rank computes. Leaf i is number i of
 * dt_gradients_at(). */
#ifndef DTI_LEAF_MOVES_H
#define DTI_LEAF_MOVES_H

#include <dtensor/gradients.h>

#include "base/error.h"

/* Which leaf x is of the collection; -1: none. */
int64_t dti_leaf_number(const dt_gradients *gradients, const dt_tensor *x);

/* What of a leaf's sum lies otherwise than `want`: bytes of the largest piece, the same on all
 * ranks, of something without elements 1; 0: nothing. */
int64_t dti_leaf_bytes_to_move(const dt_gradients *gradients, int64_t leaf, const dt_layout *want);

/* Sums under way. */
typedef struct dti_leaf_moves dti_leaf_moves;

/* Takes the sums of n leaves out of the collection and begins to bring each to its layout: what the
 * same ranks add up is one collective. `tape` counts it, as "gradients"; or NULL. Collective. */
dt_status dti_leaf_moves_begin(dt_gradients *gradients, int n, const int64_t *leaf,
                               const dt_layout *const *want, dt_tape *tape,
                               dti_leaf_moves **out) DT_MUST_USE;

/* Whether the leaf's sum is under way. */
bool dti_leaf_moves_have(const dti_leaf_moves *moves, int64_t leaf);

/* Waits, and puts each sum back as one part of its leaf's, before what has come since, unless the
 * collection was cleared; `tape` counts the work of adding, or is NULL.
 * Frees *moves and sets it to NULL, also on error, and where it is NULL already does nothing: who
 * shares a bucket may wait for it as often as they like. */
dt_status dti_leaf_moves_wait(dti_leaf_moves **moves, dt_tape *tape) DT_MUST_USE;

/* Lets them go on, and drops what arrives. Accepts NULL. */
void dti_leaf_moves_drop(dti_leaf_moves **moves);

#endif
