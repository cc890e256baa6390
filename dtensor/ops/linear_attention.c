/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention by name, extents that letters cannot say, and its backward. */
#include <dtensor/ops.h>

#include "dtensor/ops/op_rules.h"
#include "dtensor/ops/paged.h"
#include "dtensor/ops/row_gradients.h"
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

/* --- of rows whose states lie in slots -------------------------------------------------------- */

/* Ranks have channels or heads of all slots, or rows and slots of their own. */
const char *const dti_causal_conv_slots_lines[] = { "S(2), R, R, S(0), S(2) -> S(2), S(2)",
                                                    "S(0), S(0), S(0), R, S(0) -> S(0), S(0)",
                                                    NULL };
const char *const dti_gated_delta_slots_lines[] = {
    "S(2), S(2), S(2), S(2), S(2), R, R, S(1) -> S(2), S(1)",
    "S(0), S(0), S(0), S(0), S(0), S(0), S(0), S(0) -> S(0), S(0)", NULL
};

static dt_status check_single(const char *op, const dt_op_shapes *call)
{
    DT_CHECK(call->in[0].extent[1] == 1, DT_ERR_SHAPE, "%s: rows of %lld tokens, must be of one",
             op, (long long)call->in[0].extent[1]);
    return DT_OK;
}

/* x [b, t, c], positions, slots, taps [c, k], pool [n, w, c]: w is k - 1. */
dt_status dti_causal_conv_slots_extents(dt_op_shapes *call)
{
    const int64_t window = call->in[4].extent[1], taps = call->in[3].extent[1];

    DT_CHECK(taps >= 1 && window == taps - 1, DT_ERR_SHAPE,
             "causal_conv_slots: windows of %lld tokens before a sum over %lld; %lld are needed",
             (long long)window, (long long)taps, (long long)(taps > 0 ? taps - 1 : 0));
    DT_TRY(check_single("causal_conv_slots", call));
    return DT_OK;
}

dt_status dti_gated_delta_slots_extents(dt_op_shapes *call)
{
    DT_TRY(check_single("gated_delta_slots", call));
    return DT_OK;
}

dt_tensor *dti_causal_conv_slots(dt_tape *t, dt_tensor *x, dt_tensor *w, const dti_slot_rows *rows,
                                 dt_tensor *pool)
{
    dt_tensor *out[2];

    dt_apply_n(t, &dti_op_causal_conv_slots, NULL, 5,
               (dt_tensor *[]){ x, rows->positions, rows->slots, w, pool }, 2, out);
    return out[0];
}

dt_tensor *dti_gated_delta_slots(dt_tape *t, const dt_delta *d, const dti_slot_rows *rows)
{
    dt_tensor *out[2];

    dt_apply_n(t, &dti_op_gated_delta_slots, NULL, 8,
               (dt_tensor *[]){ d->q, d->k, d->v, d->decay, d->beta, rows->positions, rows->slots,
                                d->state },
               2, out);
    return out[0];
}

/* --- backward --------------------------------------------------------------------------------- */

/* Gradients of queries and keys lie in one result, those of decays and beta in another. */
dt_status dti_gated_delta_backward_extents(dt_op_shapes *call)
{
    call->out[0].extent[3] = 2 * call->in[2].extent[3];
    call->out[2].extent[3] = 2 * call->in[5].extent[3];
    return DT_OK;
}

/* dy as the kernel takes it: of a result that nothing came back from zeros, like `like`. */
static dt_tensor *or_zeros(dt_tape *t, dt_tensor *dy, dt_tensor *like)
{
    if (like == NULL) return NULL;
    return dy != NULL ? dt_cast(t, dy, dt_tensor_dtype(like)) : dt_mul_scalar(t, like, 0.0);
}

BACKWARD(causal_conv)
{
    dt_tensor *x = dt_node_in(n, 0), *window = dt_node_in(n, 1), *out[3];
    dt_tensor *const in[] = { or_zeros(t, dy[0], x), or_zeros(t, dy[1], window), x, window,
                              dt_node_in(n, 2) };

    dt_apply_n(t, &dti_op_causal_conv_backward, NULL, 5, in, 3, out);
    for (int i = 0; i < 3; i++)
        if (dt_node_wants(n, i)) dx[i] = out[i];
}

BACKWARD(gated_delta)
{
    enum { Q, K, V, DECAY, BETA, STATE, N };
    dt_tensor *in[2 + N], *out[4];
    int64_t d, r;

    for (int i = 0; i < N; i++) in[2 + i] = dt_node_in(n, i);
    in[0] = or_zeros(t, dy[0], in[2 + V]);
    in[1] = or_zeros(t, dy[1], in[2 + STATE]);
    dt_apply_n(t, &dti_op_gated_delta_backward, NULL, 2 + N, in, 4, out);
    if (dt_tape_status(t) != DT_OK) return;
    d = dt_tensor_extent(in[2 + Q], 3);
    r = dt_tensor_extent(in[2 + BETA], 3);
    if (dt_node_wants(n, Q)) dx[Q] = dt_slice(t, out[0], 3, 0, d);
    if (dt_node_wants(n, K)) dx[K] = dt_slice(t, out[0], 3, d, d);
    if (dt_node_wants(n, V)) dx[V] = out[1];
    if (dt_node_wants(n, DECAY)) dx[DECAY] = dt_slice(t, out[2], 3, 0, r);
    if (dt_node_wants(n, BETA))
        dx[BETA] = dt_cast(t, dt_slice(t, out[2], 3, r, r), dt_tensor_dtype(in[2 + BETA]));
    if (dt_node_wants(n, STATE)) dx[STATE] = out[3];
}
