/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of the k largest. Each rank gives k keys of its own elements, so where the axis is cut the
 * result is cut too, and as many times longer as there are ranks: gathered it holds the k largest
 * of all. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* Into how many pieces the mesh cuts the last axis. */
static int64_t pieces_of(const dt_tensor *x)
{
    int dims[DT_MAX_DIMS];
    int64_t n = 1;

    for (int c = dti_layout_cuts(x->layout, x->n_axes - 1, dims); c > 0; c--)
        n *= x->layout->dim_size[dims[c - 1]];
    return n;
}

/* x [..., v] -> keys [..., k], or [..., p k] of p pieces */
dt_status dti_top_k_keys_infer(dti_op_call *call)
{
    const int64_t k = ((const dti_top_k_attr *)call->attr)->k;
    const dt_tensor *x = call->in[0];
    int64_t n;

    DT_TRY(dti_infer_letters(call));
    n = x->shape[x->n_axes - 1];
    DT_CHECK(k >= 1 && k <= n, DT_ERR_ARG,
             "top_k_keys: the %lld largest are asked for, but axis %d has %lld elements; k may be "
             "1 to that",
             (long long)k, x->n_axes - 1, (long long)n);
    DT_CHECK(n <= INT32_MAX, DT_ERR_UNSUPPORTED,
             "top_k_keys: axis %d has %lld elements, indices count up to %d", x->n_axes - 1,
             (long long)n, INT32_MAX);
    call->out_shape[call->out_axes - 1] = k * pieces_of(x);
    return DT_OK;
}

/* What vanishes by the letters is cut as evenly as its extent is made of pieces. */
dt_status dti_top_k_keys_shard(dti_op_call *call)
{
    const dt_tensor *x = call->in[0];

    DT_TRY(dti_shard_letters(call));
    for (int m = 0; m < x->layout->n_dims; m++) {
        const dt_placement *p = &call->in_place[0][m];
        if (x->layout->dim_size[m] > 1 && p->kind == DT_PLACE_SHARD && p->axis == x->n_axes - 1)
            call->out_place[m] = DT_SHARD(call->out_axes - 1);
    }
    return DT_OK;
}

/* keys [..., c] -> values, indices [..., k] */
dt_status dti_top_k_infer(dti_op_call *call)
{
    const int64_t k = ((const dti_top_k_attr *)call->attr)->k;
    const dt_tensor *keys = call->in[0];

    DT_TRY(dti_infer_letters(call));
    DT_CHECK(k >= 1 && k <= keys->shape[keys->n_axes - 1], DT_ERR_ARG,
             "top_k: the %lld largest of %lld keys are asked for; dt_top_k_keys() takes the same k",
             (long long)k, (long long)keys->shape[keys->n_axes - 1]);
    call->out_shape[call->out_axes - 1] = k;
    return DT_OK;
}
