/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of the k largest. Each rank gives k keys of its own elements, so where the axis is cut the
 * result is cut too, and as many times longer as there are ranks: gathered it holds the k largest
 * of all. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* x [..., v] -> keys [..., k], or [..., p k] of p pieces */
dt_status dti_top_k_keys_extents(dt_op_shapes *call)
{
    const dti_top_k_attr *attr = call->attr;
    const dt_op_shape *x = &call->in[0];
    const int64_t n = x->extent[x->n_axes - 1];

    DT_CHECK(attr->k >= 1 && attr->k <= n, DT_ERR_ARG,
             "top_k_keys: the %lld largest are asked for, but axis %d has %lld elements; k may be "
             "1 to that",
             (long long)attr->k, x->n_axes - 1, (long long)n);
    DT_CHECK(n <= INT32_MAX, DT_ERR_UNSUPPORTED,
             "top_k_keys: axis %d has %lld elements, indices count up to %d", x->n_axes - 1,
             (long long)n, INT32_MAX);
    call->out[0].extent[x->n_axes - 1] = attr->k * attr->pieces;
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
dt_status dti_top_k_extents(dt_op_shapes *call)
{
    const int64_t k = ((const dti_top_k_attr *)call->attr)->k;
    const dt_op_shape *keys = &call->in[0];
    const int last = keys->n_axes - 1;

    DT_CHECK(k >= 1 && k <= keys->extent[last], DT_ERR_ARG,
             "top_k: the %lld largest of %lld keys are asked for; dt_top_k_keys() takes the same k",
             (long long)k, (long long)keys->extent[last]);
    call->out[0].extent[last] = call->out[1].extent[last] = k;
    return DT_OK;
}
