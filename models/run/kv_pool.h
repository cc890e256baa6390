/* SPDX-License-Identifier: Apache-2.0
 *
 * The struct behind a pool of KV blocks. */
#ifndef DTI_KV_POOL_H
#define DTI_KV_POOL_H

#include "models/run/ragged.h"

struct dti_kv_pool {
    dt_model *model;
    int64_t replicas, n_blocks; /* of each */
    dti_kv *kv;                 /* [n_layers]; NULL tensors of layers that other ranks have */
    int64_t sees;               /* as dti_kv_pool_sees() says */
    int32_t *writers; /* [n_blocks] for the checks of a pass: the sequence that writes a block */
    int64_t *reached; /* and the last position of each sequence, so far */
    size_t n_writers, n_reached;
    dt_carry *carry; /* states of slots; NULL: layers carry none */
    int64_t n_slots; /* of each replica; 0 before the pool is laid out */
    int64_t *read;   /* [replicas, n_slots] tokens of its sequence that a slot knows; -1: a pass has
                      * failed in it */
    int32_t *in_slot; /* [n_slots] for the checks of a pass: the sequence that a slot is of */
};

#endif
