/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention that remembers keys and values. */
#include "dtensor/create.h"
#include "models/run/paged.h"
#include "models/run/state.h"

/* An empty cache for tokens laid out as `like` [B, T, Kv, e]. */
static dt_status make_cache(const dt_tensor *like, int64_t capacity, dt_tensor **out)
{
    const int64_t shape[] = { dt_tensor_extent(like, 0), capacity, dt_tensor_extent(like, 2),
                              dt_tensor_extent(like, 3) };

    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(like), dt_tensor_layout(like),
                                   dt_tensor_dtype(like), shape, out));
    dti_tensor_set_kind(*out, DTI_KIND_CACHES);
    return DT_OK;
}

/* Where values are keys one cache has both. */
static dt_status make_caches(dti_kv *kv, const dt_tensor *k, const dt_tensor *v)
{
    if (kv->k == NULL) DT_TRY(make_cache(k, kv->capacity, &kv->k));
    if (kv->v == NULL && v != k) DT_TRY(make_cache(v, kv->capacity, &kv->v));
    return DT_OK;
}

/* Of whole sequences. Attention counts keys along the sequence, also where positions begin anew
 * with each document. */
static dt_tensor *attend_whole(dt_tape *t, const dt_model_pass *pass, dt_tensor *q, dt_tensor *k,
                               dt_tensor *v, const dt_attention_options *options)
{
    dt_attention_options within;

    if (pass->segments == NULL || options == NULL)
        return dt_attention(t, q, k, v, pass->positions, options);
    if (options->segments != NULL)
        return dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                            "dt_cached_attention: the architecture has segments of its own; a pass "
                            "over documents has them too");
    within = *options;
    within.segments = pass->segments;
    return dt_attention(t, q, k, v, pass->rows_of, &within);
}

dt_tensor *dt_cached_attention(dt_tape *t, const dt_model_pass *pass, int64_t layer, dt_tensor *q,
                               dt_tensor *k, dt_tensor *v, const dt_attention_options *options)
{
    dt_tensor *keys, *values, *positions;
    dti_kv *kv;

    if (dt_tape_status(t) != DT_OK) return NULL;
    if (pass == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_cached_attention: pass is NULL");
    if (layer < 0 || layer >= pass->n_layers)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_cached_attention: layer %lld of a model of %lld",
                            (long long)layer, (long long)pass->n_layers);
    positions = pass->positions;
    if (pass->paged != NULL) return dti_paged_attention(t, pass, layer, q, k, v, options);
    if (pass->kv == NULL) return dt_unheads(t, attend_whole(t, pass, q, k, v, options));
    kv = &pass->kv[layer];
    if (k != NULL && v != NULL && (kv->k == NULL || (kv->v == NULL && v != k))) {
        const dt_status st = make_caches(kv, k, v);
        if (st != DT_OK) return dti_tape_latch(t, st);
    }
    keys = dt_kv_write(t, k, positions, kv->k);
    values = v == k ? keys : dt_kv_write(t, v, positions, kv->v);
    return dt_unheads(t, dt_attention(t, q, keys, values, positions, options));
}
