/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between meshes of different shape or membership: who sends to whom. A receiver may belong
 * to both meshes or only to the one it receives on. */
#ifndef DTI_CROSS_H
#define DTI_CROSS_H

#include "placements/overlap.h"

/* One receiver: where it stands in the mesh that the tensor comes from (`member`), and a number
 * that spreads receivers who do not over the holders of copies. */
typedef struct dti_receiver {
    bool member;
    int coord[DT_MAX_DIMS];
    int number;
} dti_receiver;

/* Does the rank at `sender` (coordinates under `from`) serve this receiver? Of the ranks that hold
 * the same rows exactly one does: the receiver itself where it holds them. */
bool dti_cross_serves(const dt_layout *from, const int *sender, const dti_receiver *receiver);

/* Bytes that the receiver at coordinates `coord` under `to` gets from others: what it lacks. */
int64_t dti_cross_bytes(const dt_layout *from, const dti_receiver *receiver, const dt_layout *to,
                        const int *coord, const int64_t *shape, size_t element_bytes);

#endif
