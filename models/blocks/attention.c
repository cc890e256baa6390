/* SPDX-License-Identifier: Apache-2.0 */
#include "models/blocks/attention.h"

#include "dtensor/create.h"

/* An empty cache for tokens laid out as `like` [B, T, Kv, e]. */
static dt_status make_cache(const dt_tensor *like, int64_t capacity, dt_tensor **out)
{
    const int64_t shape[] = { dt_tensor_extent(like, 0), capacity, dt_tensor_extent(like, 2),
                              dt_tensor_extent(like, 3) };

    return dti_tensor_create_exact(dt_tensor_mesh(like), dt_tensor_layout(like),
                                   dt_tensor_dtype(like), shape, out);
}

static dt_status make_caches(dti_kv *kv, const dt_tensor *k, const dt_tensor *v)
{
    if (kv->k == NULL) DT_TRY(make_cache(k, kv->capacity, &kv->k));
    if (kv->v == NULL) DT_TRY(make_cache(v, kv->capacity, &kv->v));
    return DT_OK;
}

dt_tensor *dti_cached_attention(dt_tape *t, dt_tensor *q, dt_tensor *k, dt_tensor *v, dti_kv *kv,
                                dt_tensor *positions, const dt_attention_options *options)
{
    dt_tensor *keys, *values;

    if (k != NULL && v != NULL && (kv->k == NULL || kv->v == NULL)) {
        const dt_status st = make_caches(kv, k, v);
        if (st != DT_OK) return dti_tape_latch(t, st);
    }
    keys = dt_kv_write(t, k, positions, kv->k);
    values = dt_kv_write(t, v, positions, kv->v);
    return dt_unheads(t, dt_attention(t, q, keys, values, positions, options));
}

dt_tensor *dti_wanted_rows(dt_tape *t, dt_tensor *x, dt_logits_rows rows)
{
    const dt_layout *before;

    if (x == NULL || rows == DT_LOGITS_ALL || dt_tensor_extent(x, 1) == 1) return x;
    before = dt_tensor_layout(x);
    x = dt_slice(t, x, 1, -1, 1);
    for (int m = 0; m < dt_layout_n_dims(before) && x != NULL; m++) {
        const dt_placement cut = dt_layout_placement(before, m);
        if (cut.kind == DT_PLACE_SHARD && cut.axis == 1) x = dt_move_dim(t, x, m, DT_REPLICATE);
    }
    return x;
}
