/* SPDX-License-Identifier: Apache-2.0
 *
 * Backward of what layers are made of: activations, norms, positions, attention. */
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>

#include "dtensor/graph.h"
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/compose.h"
#include "dtensor/ops/op_rules.h"
#include "dtensor/ops/row_gradients.h"

/* --- activations ------------------------------------------------------------------------------ */

BACKWARD(curve)
{
    dx[0] = dt_curve_backward(t, n->op, dy[0], dt_node_in(n, 0));
}

BACKWARD(silu_mul)
{
    dt_silu_mul_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), dti_wanted(n, 0, dx),
                         dti_wanted(n, 1, dx));
}

BACKWARD(gelu_tanh_mul)
{
    dt_gelu_tanh_mul_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), dti_wanted(n, 0, dx),
                              dti_wanted(n, 1, dx));
}

BACKWARD(soft_cap)
{
    dx[0] = dt_soft_cap_backward(t, dy[0], dt_node_out(n, 0),
                                 ((const dti_scalar_attr *)dt_node_attr(n))->value);
}

BACKWARD(softmax)
{
    dx[0] = dt_softmax_backward(t, dy[0], dt_node_out(n, 0),
                                (int)((const dti_axis_attr *)dt_node_attr(n))->axis);
}

BACKWARD(log_softmax)
{
    dx[0] = dt_log_softmax_backward(t, dy[0], dt_node_out(n, 0),
                                    (int)((const dti_axis_attr *)dt_node_attr(n))->axis);
}

/* The same elements are dropped. */
BACKWARD(dropout)
{
    const dti_dropout_attr *attr = dt_node_attr(n);

    dx[0] = dt_dropout(t, dy[0], attr->p, (dt_random){ attr->seed, attr->stream });
}

/* --- norms ------------------------------------------------------------------------------------ */

static float eps_of(const dt_node *n)
{
    return ((const dti_norm_attr *)dt_node_attr(n))->eps;
}

BACKWARD(rms_norm)
{
    dt_rms_norm_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), eps_of(n),
                         dti_wanted(n, 0, dx), dti_wanted(n, 1, dx));
}

BACKWARD(rms_norm_1p)
{
    dt_rms_norm_1p_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), eps_of(n),
                            dti_wanted(n, 0, dx), dti_wanted(n, 1, dx));
}

BACKWARD(layer_norm)
{
    const dt_layer_norm_grads out = { dti_wanted(n, 0, dx), dti_wanted(n, 1, dx),
                                      dti_wanted(n, 2, dx) };

    dt_layer_norm_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), eps_of(n), &out);
}

/* --- ids -------------------------------------------------------------------------------------- */

BACKWARD(embedding)
{
    dx[1] = dt_apply(t, &dti_op_embedding_backward, dt_node_attr(n), 3,
                     (dt_tensor *[]){ dy[0], dt_node_in(n, 0), dt_node_in(n, 1) });
}

/* The slope of each token's log-sum-exp are its probabilities. */
static dt_tensor *from_lse(dt_tape *t, dt_tensor *dlse, dt_tensor *logits, dt_tensor *lse)
{
    const int v = dt_tensor_n_axes(lse);
    dt_tensor *p;

    p = dt_sub(t, dt_cast(t, logits, DT_F32), dti_compose_insert(t, lse, v));
    p = dt_mul(t, dt_exp(t, p), dti_compose_insert(t, dlse, v));
    return dt_cast(t, p, dt_tensor_dtype(logits));
}

/* The largest logit and the sums are in the log-sum-exp: nothing flows back through them. What is
 * counted has no slope. */
BACKWARD(cross_entropy)
{
    dt_tensor *logits = dt_node_in(n, 0), *targets = dt_node_in(n, 1), *lse = dt_node_out(n, 1);
    dt_tensor *more;

    if (dy[0] != NULL)
        dx[0] = dt_apply(t, &dti_op_cross_entropy_backward, dt_node_attr(n), 4,
                         (dt_tensor *[]){ dy[0], logits, targets, lse });
    if (dy[1] == NULL) return;
    more = from_lse(t, dy[1], logits, lse);
    dx[0] = dy[0] != NULL ? dt_add(t, dx[0], more) : more;
}

/* --- positions and attention ------------------------------------------------------------------ */

BACKWARD(rope)
{
    dx[0] = dt_rope_backward(t, dy[0], dt_node_in(n, 1));
}

/* Of all eight rows: which operands follow positions is in the attributes. */
BACKWARD(attention_lse)
{
    const dti_attention_train_attr *attr = dt_node_attr(n);
    const uint32_t flags = attr->of.flags;
    dt_attention_options o = { .n_heads = attr->of.n_heads,
                               .n_kv_heads = attr->of.n_kv_heads,
                               .window = attr->of.window,
                               .scale = attr->of.scale,
                               .soft_cap = attr->of.soft_cap,
                               .both_ways = (flags & DTI_ATTENTION_BOTH_WAYS) != 0,
                               .dropout = attr->dropout,
                               .key = { attr->seed, attr->stream } };
    const dt_attention_kept kept = { dt_node_in(n, 0), dt_node_in(n, 1),  dt_node_in(n, 2),
                                     dt_node_in(n, 3), dt_node_out(n, 0), dt_node_out(n, 1) };
    dt_attention_gradients g;
    int bias = -1, sinks = -1, next = 4;

    if (dy[1] != NULL) {
        (void)dt_tape_fail(t, DT_ERR_UNSUPPORTED,
                           "attention: a gradient has reached its log-sum-exp, of which there is "
                           "none: detach it");
        return;
    }
    if ((flags & DTI_ATTENTION_BIAS) != 0) o.bias = dt_node_in(n, bias = next++);
    if ((flags & DTI_ATTENTION_SINKS) != 0) o.sinks = dt_node_in(n, sinks = next++);
    if ((flags & DTI_ATTENTION_SEGMENTS) != 0) o.segments = dt_node_in(n, next++);
    dt_attention_backward(t, dy[0], &kept, &o, &g);
    dx[0] = g.q;
    dx[1] = g.k;
    dx[2] = g.v;
    if (bias >= 0) dx[bias] = g.bias;
    if (sinks >= 0) dx[sinks] = g.sinks;
}

/* --- mixtures of experts ---------------------------------------------------------------------- */

BACKWARD(route_weights)
{
    const dti_route_attr *attr = dt_node_attr(n);
    const dt_routing routing = { .normalise = attr->normalise != 0,
                                 .scores = (dt_route_scores)attr->scores,
                                 .scale = (double)attr->scale };

    dx[0] = dt_route_weights_backward(t, dy[0], dt_node_in(n, 0), dt_node_in(n, 1), &routing);
}

BACKWARD(experts)
{
    const dt_experts_kept kept = { dt_node_in(n, 0), dt_node_in(n, 1), dt_node_in(n, 2),
                                   dt_node_in(n, 3), dt_node_in(n, 4) };
    const dt_experts_gradients out = { .dx = dti_wanted(n, 0, dx),
                                       .dweights = dti_wanted(n, 2, dx),
                                       .dgate_up = dti_wanted(n, 3, dx),
                                       .ddown = dti_wanted(n, 4, dx) };

    dt_experts_backward(t, dy[0], &kept, &out);
}

BACKWARD(experts_clamped)
{
    const dti_experts_clamped_attr *attr = dt_node_attr(n);
    const dt_experts_kept kept = { dt_node_in(n, 0), dt_node_in(n, 1), dt_node_in(n, 2),
                                   dt_node_in(n, 3), dt_node_in(n, 4) };
    const dt_clamp clamp = { .limit = attr->limit,
                             .alpha = attr->alpha,
                             .gate_up_bias = dt_node_in(n, 5),
                             .down_bias = dt_node_in(n, 6) };
    const dt_experts_gradients out = { dti_wanted(n, 0, dx), dti_wanted(n, 2, dx),
                                       dti_wanted(n, 3, dx), dti_wanted(n, 4, dx),
                                       dti_wanted(n, 5, dx), dti_wanted(n, 6, dx) };

    dt_experts_clamped_backward(t, dy[0], &kept, &clamp, &out);
}
