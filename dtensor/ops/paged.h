/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of one token each, of several sequences: attention over keys that lie in blocks of a pool,
 * linear attention over states that lie in slots of one. */
#ifndef DTI_PAGED_H
#define DTI_PAGED_H

#include <dtensor/ops.h>

/* What rows are of. Sequences and blocks are counted over all ranks: where a mesh dim cuts rows,
 * tables and pools, all as Shard(0), a row's sequence and its blocks are on the row's rank. */
typedef struct dti_paged_rows {
    dt_tensor *positions; /* [n, 1] i32 in the sequence */
    dt_tensor *sequence;  /* [n, 1] i32: row of the table; -1: writes and reads nothing, gives 0 */
    dt_tensor *table;     /* [m, c] i32: block of positions s i .. s i + s - 1; what is not read may
                           * be -1 */
} dti_paged_rows;

/* k [n, 1, kv, e] into the blocks of its rows: pool [blocks, s, kv, e], which is the result. s is a
 * multiple of 64, no two rows have one place. */
dt_tensor *dti_kv_write_paged(dt_tape *t, dt_tensor *k, const dti_paged_rows *rows,
                              dt_tensor *pool);

/* q [n, 1, h, e] -> [n, 1, h, e]: dt_attention() of each row to its sequence up to the row's
 * position, with the bits that it gives. A bias is [n or 1, h or 1, 1, keys], of as many keys as
 * positions reach at least. Latches DT_ERR_UNSUPPORTED for segments, dropout, keys that are seen
 * from before, a tape that records. */
dt_tensor *dti_attention_paged(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v,
                               const dti_paged_rows *rows, const dt_attention_options *options);

/* Where the states of rows lie. Slots are counted over all ranks: where a mesh dim cuts rows and
 * pools, as Shard(0), a row's slot is on the row's rank. */
typedef struct dti_slot_rows {
    dt_tensor *positions; /* [n, 1] i32 in the sequence: 0 begins it, whatever its slot holds */
    dt_tensor *slots;     /* [n, 1] i32; -1: reads and writes nothing, gives 0 */
} dti_slot_rows;

/* dt_causal_conv() and dt_gated_delta() of rows, x [n, 1, c] and likewise: each goes on from the
 * row of its slot before it, in this call or an earlier one, with the bits of a sequence by itself.
 * The pool, windows [slots, k - 1, c] or d->state [slots, h, r, d, e], is written over. */
dt_tensor *dti_causal_conv_slots(dt_tape *t, dt_tensor *x, dt_tensor *w, const dti_slot_rows *rows,
                                 dt_tensor *pool);
dt_tensor *dti_gated_delta_slots(dt_tape *t, const dt_delta *d, const dti_slot_rows *rows);

#endif
