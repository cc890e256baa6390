/* SPDX-License-Identifier: Apache-2.0
 *
 * Six sequences of a fixture, read in random chunks, company, blocks and slots by ragged passes,
 * some of them with what others have read before them: each token's logits are those of its
 * sequence alone. */
#ifndef DT_TEST_RAGGED_SCENE_H
#define DT_TEST_RAGGED_SCENE_H

#include <dtensor/mesh.h>

typedef struct ragged_case {
    const char *fixture, *mesh, *weights, *isa; /* weights: packed so, isa: NULL as they are */
    dt_dtype dtype;
    int64_t longest;  /* where the model has no positions beyond its own; 0: some blocks */
    int64_t window;   /* of all layers: blocks that it has left behind are given to others */
    double tolerance; /* of logits; 0: the same bits */
} ragged_case;

/* Fails the test if they are not. run: options of the ranks, or NULL. */
void ragged_check(const ragged_case *c, const dt_run_options *run);

#endif
