/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of a mixture of experts. Tokens are not sent to ranks: each rank computes the slots whose
 * expert it holds, or its part of every expert, and the results are terms of a sum. So are, on the
 * way back, gradients of tokens and weights, while those of experts lie as these do. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* logits [..., e] -> ids [..., k] */
dt_status dti_route_ids_extents(dt_op_shapes *call)
{
    const int64_t k = ((const dti_route_attr *)call->attr)->k;
    const dt_op_shape *x = &call->in[0];

    DT_CHECK(k >= 1 && k <= x->extent[x->n_axes - 1], DT_ERR_ARG,
             "route_ids: %lld of %lld experts are asked for each token", (long long)k,
             (long long)x->extent[x->n_axes - 1]);
    call->out[0].extent[x->n_axes - 1] = k;
    return DT_OK;
}

/* Operands of the forward call; dy comes before them on the way back. */
enum { X, IDS, WEIGHTS, GATE_UP, DOWN, N_OPERANDS };

static const dt_op_shape *shape_of(const dt_op_shapes *call, int operand)
{
    return &call->in[call->n_in - N_OPERANDS + operand];
}

static int number_of(const dti_op_call *call, int operand)
{
    return call->n - N_OPERANDS + operand;
}

/* gate_up [e, 2 f, d], down [e, d, f] */
dt_status dti_experts_extents(dt_op_shapes *call)
{
    const int64_t *gate_up = shape_of(call, GATE_UP)->extent, *down = shape_of(call, DOWN)->extent;

    DT_CHECK(
        gate_up[1] == 2 * down[2], DT_ERR_SHAPE,
        "%s: gate and up have %lld rows together, but down has %lld columns: twice as many are "
        "needed",
        call->op->name, (long long)gate_up[1], (long long)down[2]);
    return DT_OK;
}

/* Are the rows of gate_up cut as the columns of down are, gate and up each on its own? */
static bool parts_meet(const dti_op_call *call, const dt_placement *gate_up,
                       const dt_placement *down)
{
    const int64_t f = call->in[number_of(call, DOWN)]->shape[2];

    return gate_up->axis == 1 && down->axis == 2 && gate_up->n_blocks == 2 &&
           gate_up->blocks[0] == f && gate_up->units == NULL && gate_up->unit == down->unit &&
           gate_up->replicas == 1 && down->replicas == 1 && down->n_blocks == 0 &&
           down->n_offsets == 0;
}

/* On a mesh dim that cuts the weights. */
static dt_status cut_weights(dti_op_call *call, int m)
{
    const dt_placement *gate_up = &call->in_place[number_of(call, GATE_UP)][m];
    const dt_placement *down = &call->in_place[number_of(call, DOWN)][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];
    bool meet = gate_up->kind == DT_PLACE_SHARD && down->kind == DT_PLACE_SHARD;

    for (int i = 0; i <= number_of(call, WEIGHTS); i++)
        if (call->in_place[i][m].kind != DT_PLACE_REPLICATE)
            return dti_op_clash(call, m, "operand %d is %s and experts are cut too", i,
                                dti_placement_words(&call->in_place[i][m], one));
    if (meet && gate_up->axis == 0)
        meet = down->axis == 0 && gate_up->replicas == 1 && gate_up->n_blocks == 0 &&
               dti_placement_same_cut(gate_up, down);
    else
        meet = meet && parts_meet(call, gate_up, down);
    if (!meet)
        return dti_op_clash(
            call, m,
            "gate and up are %s and down is %s: experts are cut as a whole, or gate "
            "and up block by block as the columns of down",
            dti_placement_words(gate_up, one), dti_placement_words(down, two));
    if (call->result >= 2) { /* gradients of gate and up, of down */
        call->out_place[m] = call->result == 2 ? *gate_up : *down;
        return DT_OK;
    }
    call->out_place[m] = DT_PARTIAL(DT_SUM);
    call->reduced = true;
    return DT_OK;
}

/* A sum passes in dy alone, of which gradients are linear. */
static dt_status shard_dim(dti_op_call *call, int m)
{
    for (int i = number_of(call, X); i < call->n; i++)
        if (dti_has(call->in[i]->layout->partial_dims, m) &&
            (call->in_place[i][m].kind == DT_PLACE_PARTIAL || dti_has(call->terms, m)))
            return dti_op_clash(call, m, "operand %d is Partial and must be reduced", i);
    if (call->in_place[number_of(call, GATE_UP)][m].kind == DT_PLACE_SHARD ||
        call->in_place[number_of(call, DOWN)][m].kind == DT_PLACE_SHARD)
        return cut_weights(call, m);
    return dti_shard_letters_dim(call, m);
}

dt_status dti_experts_shard(dti_op_call *call)
{
    return dti_shard_dims(call, shard_dim);
}
