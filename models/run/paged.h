/* SPDX-License-Identifier: Apache-2.0
 *
 * What a pass over single tokens of several sequences carries besides ids and positions, and what
 * it does otherwise: attention, linear attention (carried.c), and the choice of rows that enter the
 * head. */
#ifndef DTI_MODEL_PAGED_H
#define DTI_MODEL_PAGED_H

#include "models/model.h"

/* pass->kv are the blocks then: [replicas * n_blocks, DTI_BLOCK_TOKENS, kv heads, head_dim]. */
typedef struct dti_paged {
    dt_tensor *sequence; /* [rows, 1] i32; of all replicas, of which each has its own */
    dt_tensor *table;    /* [sequences, max_blocks] i32 */
    dt_tensor *slots; /* [rows, 1] i32: of all replicas; NULL: of layers that carry state none has
                          * slots yet, or there is none */
    dt_tensor *out_rows; /* [n_out, 1] i32, counted in the replica; NULL: every row, in order */
    int64_t n_out;       /* of all replicas */
    int64_t n_blocks;    /* of all replicas */
    uint32_t batch_dims; /* of the model */
    int64_t *sees;       /* the largest window of the layers that have run, INT64_MAX: no window */
} dti_paged;

/* dt_cached_attention() of such a pass. Blocks are made when a layer first runs, laid out as its
 * keys are. */
dt_tensor *dti_paged_attention(dt_tape *t, const dt_model_pass *pass, int64_t layer, dt_tensor *q,
                               dt_tensor *k, dt_tensor *v, const dt_attention_options *options);

/* The rows of x [rows, 1, ...] that are wanted: [n_out, 1, ...], each replica its own. */
dt_tensor *dti_paged_take(dt_tape *t, const dti_paged *paged, dt_tensor *x);

#endif
