/* SPDX-License-Identifier: Apache-2.0 */
#include "models/blocks/attention.h"

dt_tensor *dti_cached_attention(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v, dti_kv *kv,
                                dt_tensor *positions, const dt_attention_options *options)
{
    dt_tensor *keys = dt_kv_write(t, k, positions, kv->k);
    dt_tensor *values = dt_kv_write(t, v, positions, kv->v);

    return dt_unheads(t, dt_attention(t, q, keys, values, positions, options));
}

dt_tensor *dti_wanted_rows(dt_tape *t, dt_tensor *x, dt_logits_rows rows)
{
    if (x == NULL || rows == DT_LOGITS_ALL || dt_tensor_extent(x, 1) == 1) return x;
    return dt_slice(t, x, -1, 1);
}
