/* SPDX-License-Identifier: Apache-2.0 */
#include "models/run/paged.h"

#include <dtensor/op_rows.h>
#include <string.h>

#include "base/numbers.h"
#include "dtensor/create.h"
#include "dtensor/ops/paged.h"
#include "models/run/ragged.h"

/* Every rank of a replica has all tokens of its blocks; only replicas have blocks of their own. */
static dt_status check_layout(const dti_paged *paged, const dt_tensor *k)
{
    const dt_layout *layout = dt_tensor_layout(k);

    for (int m = 0; m < dt_layout_n_dims(layout); m++) {
        const dt_placement p = dt_layout_placement(layout, m);
        const char *dim = dt_mesh_dim_name(dt_tensor_mesh(k), m);
        const bool rows = p.kind == DT_PLACE_SHARD && p.axis == 0;
        if (dt_mesh_dim_size(dt_tensor_mesh(k), m) == 1) continue;
        DT_CHECK(
            p.kind != DT_PLACE_SHARD || p.axis != 1, DT_ERR_UNSUPPORTED,
            "a plan that cuts the tokens of KV caches over mesh dim \"%s\": they cannot lie in "
            "blocks",
            dim);
        DT_CHECK(rows == dti_has(paged->batch_dims, m), DT_ERR_UNSUPPORTED,
                 rows ? "a plan that cuts the sequences of KV caches over mesh dim \"%s\", which "
                        "does not cut batches: they cannot lie in blocks"
                      : "a plan that joins the sequences of KV caches over mesh dim \"%s\", which "
                        "cuts batches: they cannot lie in blocks",
                 dim);
    }
    return DT_OK;
}

static dt_status make_blocks(const dti_paged *paged, const dt_tensor *like, dt_tensor **out)
{
    const int64_t shape[] = { paged->n_blocks, DTI_BLOCK_TOKENS, dt_tensor_extent(like, 2),
                              dt_tensor_extent(like, 3) };

    if (*out != NULL) return DT_OK;
    DT_TRY(check_layout(paged, like));
    DT_TRY(dti_tensor_create_exact(dt_tensor_mesh(like), dt_tensor_layout(like),
                                   dt_tensor_dtype(like), shape, out));
    dti_tensor_set_kind(*out, DTI_KIND_CACHES);
    return DT_OK;
}

dt_tensor *dti_paged_attention(dt_tape *t, const dt_model_pass *pass, int64_t layer, dt_tensor *q,
                               dt_tensor *k, dt_tensor *v, const dt_attention_options *options)
{
    const dti_paged *paged = pass->paged;
    const dti_paged_rows rows = { pass->positions, paged->sequence, paged->table };
    const int64_t window = options != NULL && options->window > 0 ? options->window : INT64_MAX;
    dti_kv *kv = &pass->kv[layer];
    dt_tensor *keys, *values;

    *paged->sees = dti_max(*paged->sees, window);
    if (k != NULL && v != NULL) {
        dt_status st = make_blocks(paged, k, &kv->k);
        if (st == DT_OK && v != k) st = make_blocks(paged, v, &kv->v);
        if (st != DT_OK) return dti_tape_latch(t, st);
    }
    keys = dti_kv_write_paged(t, k, &rows, kv->k);
    values = v == k ? keys : dti_kv_write_paged(t, v, &rows, kv->v);
    return dt_unheads(t, dti_attention_paged(t, q, keys, values, &rows, options));
}

/* x [rows, ...], numbers [n, 1] of rows of this rank -> [n, ...] */
static dt_status take_rows(const dt_kargs *args)
{
    const dt_local *x = &args->in[0];
    const int32_t *numbers = args->in[1].data;
    size_t bytes = dt_dtype_size(x->dtype);

    for (int a = 1; a < x->n_axes; a++) bytes *= (size_t)x->shape[a];
    for (int64_t i = 0; i < args->out[0].shape[0] && bytes > 0; i++)
        memcpy((char *)args->out[0].data + (size_t)i * bytes,
               (const char *)x->data + (size_t)numbers[i] * bytes, bytes);
    return DT_OK;
}

dt_tensor *dti_paged_take(dt_tape *t, const dti_paged *paged, dt_tensor *x)
{
    const int64_t shape[] = { paged->n_out, dt_tensor_extent(x, 1), dt_tensor_extent(x, 2) };
    dt_placement place[DT_MAX_DIMS];
    const dt_local_call call = {
        .name = "the rows whose logits are wanted",
        .run = take_rows,
        .n_in = 2,
        .n_out = 1,
        .out = { { .place = place, .dtype = dt_tensor_dtype(x), .n_axes = 3, .shape = shape } }
    };
    dt_tensor *y = NULL;

    if (paged->out_rows == NULL) return x;
    for (int m = 0; m < dt_layout_n_dims(dt_tensor_layout(x)); m++)
        place[m] = dt_layout_placement(dt_tensor_layout(x), m);
    dt_local_map(t, &call, (dt_tensor *[]){ x, paged->out_rows }, &y);
    return y;
}
