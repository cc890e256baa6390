/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention by name, extents that letters cannot say. */
#include <dtensor/ops.h>

#include "dtensor/ops/op_rules.h"
#include "dtensor/tape.h"

/* x [b, t, c], window [b, w, c], taps [c, k]: w is k - 1. */
dt_status dti_causal_conv_extents(dt_op_shapes *call)
{
    const int64_t window = call->in[1].extent[1], taps = call->in[2].extent[1];

    DT_CHECK(taps >= 1 && window == taps - 1, DT_ERR_SHAPE,
             "causal_conv: a window of %lld tokens before a sum over %lld; %lld are needed",
             (long long)window, (long long)taps, (long long)(taps > 0 ? taps - 1 : 0));
    return DT_OK;
}

dt_tensor *dt_causal_conv(dt_tape *t, dt_tensor *x, dt_tensor *w, dt_tensor *window,
                          dt_tensor **next)
{
    dt_tensor *out[2];

    if (next == NULL) return dt_tape_fail(t, DT_ERR_ARG, "dt_causal_conv: next is NULL");
    dt_apply_n(t, &dti_op_causal_conv, NULL, 3, (dt_tensor *[]){ x, window, w }, 2, out);
    *next = out[1];
    return out[0];
}

dt_tensor *dt_gated_delta(dt_tape *t, const dt_delta *d, dt_tensor **after)
{
    dt_tensor *out[2];

    if (d == NULL || after == NULL)
        return dt_tape_fail(t, DT_ERR_ARG, "dt_gated_delta: delta or after is NULL");
    dt_apply_n(t, &dti_op_gated_delta, NULL, 6,
               (dt_tensor *[]){ d->q, d->k, d->v, d->decay, d->beta, d->state }, 2, out);
    *after = out[1];
    return out[0];
}
