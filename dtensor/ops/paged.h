/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention over keys that lie in blocks of a pool: rows of one token each, of several
 * sequences. */
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

#endif
