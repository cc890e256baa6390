/* SPDX-License-Identifier: Apache-2.0
 *
 * What the attention of every architecture here shares: remember keys and values, attend, join
 * heads. */
#ifndef DTI_BLOCK_ATTENTION_H
#define DTI_BLOCK_ATTENTION_H

#include "models/model.h"

/* q [B, T, H, e], k and v [B, T, Kv, e] of new tokens -> [B, T, H e]: k and v go into the cache at
 * their positions, q attends to the cache up to its own position. */
dt_tensor *dti_cached_attention(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v, dti_kv *kv,
                                dt_tensor *positions, const dt_attention_options *options);

/* The rows of x [B, T, D] that logits are wanted of. One row of a cut sequence becomes whole. */
dt_tensor *dti_wanted_rows(dt_tape *t, dt_tensor *x, dt_logits_rows rows);

#endif
