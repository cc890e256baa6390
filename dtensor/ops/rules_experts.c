/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of a mixture of experts. Tokens are not sent to ranks: each rank computes the slots whose
 * expert it holds, or its part of every expert, and the results are terms of a sum. So are, on the
 * way back, gradients of tokens and weights, while those of experts lie as these do. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* Can a token's experts be chosen from groups of them? */
static dt_status check_groups(const dti_route_attr *attr, int64_t n)
{
    const int64_t groups = attr->n_groups, best = attr->n_chosen_groups;

    DT_CHECK(
        groups > 1 && groups <= DTI_ROUTE_GROUPS && n % groups == 0 && n / groups >= 2, DT_ERR_ARG,
        "route_ids: %lld experts in %lld groups; there are at most %d, of two experts or more, "
        "as many in each",
        (long long)n, (long long)groups, (int)DTI_ROUTE_GROUPS);
    DT_CHECK(
        best >= 1 && best <= groups && attr->k <= n / groups * best, DT_ERR_ARG,
        "route_ids: %lld experts for each token of %lld groups, of %lld with %lld experts each",
        (long long)attr->k, (long long)best, (long long)groups, (long long)(n / groups));
    return DT_OK;
}

/* logits [..., e] -> ids [..., k] */
dt_status dti_route_ids_extents(dt_op_shapes *call)
{
    const dti_route_attr *attr = call->attr;
    const dt_op_shape *x = &call->in[0];
    const int64_t n = x->extent[x->n_axes - 1];

    DT_CHECK(attr->k >= 1 && attr->k <= n, DT_ERR_ARG,
             "route_ids: %lld of %lld experts are asked for each token", (long long)attr->k,
             (long long)n);
    if (attr->n_groups > 1) DT_TRY(check_groups(attr, n));
    call->out[0].extent[x->n_axes - 1] = attr->k;
    return DT_OK;
}

/* Operands of the forward call; dy comes before them on the way back. Of packed weights gate and up
 * are two operands or three, and so is down. */
enum { X, IDS, WEIGHTS, GATE_UP, N_BEFORE = GATE_UP };

/* Where operands stand, and how many each weight is. */
typedef struct operands {
    int x, gate_up, down, each;
    int64_t per[3];   /* inputs that an element of each of down's is for */
    bool interleaved; /* gate and up, and their biases follow behind down */
} operands;

static operands plain_operands(int n)
{
    return (operands){ n - N_BEFORE - 2, n - 2, n - 1, 1, { 1, 1, 1 }, false };
}

static operands clamped_operands(int n)
{
    return (operands){ n - N_BEFORE - 4, n - 4, n - 3, 1, { 1, 1, 1 }, true };
}

static operands packed_operands(int n, const dti_experts_packed_attr *attr)
{
    const int each = (n - N_BEFORE) / 2;

    return (operands){
        X,    GATE_UP, GATE_UP + each, each, { 8 / attr->bits[1], attr->group[1], attr->group[1] },
        false
    };
}

static dt_status check_halves(const dt_op_shapes *call, int64_t rows, int64_t columns)
{
    DT_CHECK(rows == 2 * columns, DT_ERR_SHAPE,
             "%s: gate and up have %lld rows together, but down has %lld columns: twice as many "
             "are needed",
             call->op->name, (long long)rows, (long long)columns);
    return DT_OK;
}

/* gate_up [e, 2 f, d], down [e, d, f] */
dt_status dti_experts_extents(dt_op_shapes *call)
{
    const operands at = plain_operands(call->n_in);

    DT_TRY(check_halves(call, call->in[at.gate_up].extent[1], call->in[at.down].extent[2]));
    return DT_OK;
}

dt_status dti_experts_clamped_extents(dt_op_shapes *call)
{
    const operands at = clamped_operands(call->n_in);

    DT_TRY(check_halves(call, call->in[at.gate_up].extent[1], call->in[at.down].extent[2]));
    return DT_OK;
}

/* The same as codes, scales and zero points. */
dt_status dti_experts_packed_extents(dt_op_shapes *call)
{
    const dti_experts_packed_attr *attr = call->attr;
    const operands at = packed_operands(call->n_in, attr);
    const int64_t d = call->in[X].extent[call->in[X].n_axes - 1];
    const int64_t rows = call->in[at.gate_up].extent[1];

    DT_TRY(dti_packed_extents(call, at.gate_up, d, attr->bits[0], attr->group[0]));
    DT_TRY(check_halves(call, rows, call->in[at.down].extent[2] * (8 / attr->bits[1])));
    DT_TRY(dti_packed_extents(call, at.down, rows / 2, attr->bits[1], attr->group[1]));
    return DT_OK;
}

/* Are the rows of gate_up cut as the columns of down are, gate and up each on its own? */
static bool parts_meet(const dti_op_call *call, const operands *at, const dt_placement *gate_up,
                       const dt_placement *down)
{
    const int64_t f = call->in[at->gate_up]->shape[1] / 2;

    if (at->interleaved)
        return gate_up->axis == 1 && down->axis == 2 && gate_up->n_blocks == 0 &&
               gate_up->n_offsets == 0 && gate_up->unit == 2 * down->unit &&
               gate_up->replicas == 1 && down->replicas == 1 && down->n_blocks == 0 &&
               down->n_offsets == 0;
    return gate_up->axis == 1 && down->axis == 2 && gate_up->n_blocks == 2 &&
           gate_up->blocks[0] == f && gate_up->units == NULL &&
           gate_up->unit == down->unit * at->per[0] && gate_up->replicas == 1 &&
           down->replicas == 1 && down->n_blocks == 0 && down->n_offsets == 0;
}

/* Are all operands of a weight cut where the first one is, and down's between groups? */
static bool all_alike(const dti_op_call *call, const operands *at, int m)
{
    for (int i = 1; i < at->each; i++) {
        const dt_placement *gate_up = &call->in_place[at->gate_up][m];
        const dt_placement *other = &call->in_place[at->gate_up + i][m];
        const dt_placement *p = &call->in_place[at->down + i][m];
        dt_placement down = call->in_place[at->down][m];
        if (other->kind != gate_up->kind || other->axis != gate_up->axis ||
            !dti_placement_same_cut(other, gate_up))
            return false;
        if (down.axis == 2 && down.unit * at->per[0] % at->per[i] != 0) return false;
        if (down.axis == 2) down.unit = down.unit * at->per[0] / at->per[i];
        if (p->kind != down.kind || p->axis != down.axis || !dti_placement_same_cut(p, &down))
            return false;
    }
    return true;
}

/* Biases of gate and up lie as these do, those of down whole where a part of each expert is cut. */
static bool biases_follow(const dti_op_call *call, const operands *at, int m)
{
    const dt_placement *gate_up = &call->in_place[at->gate_up][m];
    const dt_placement *first = &call->in_place[at->down + 1][m];
    const dt_placement *second = &call->in_place[at->down + 2][m];

    if (first->kind != DT_PLACE_SHARD || first->axis != gate_up->axis ||
        !dti_placement_same_cut(first, gate_up))
        return false;
    if (gate_up->axis != 0) return second->kind == DT_PLACE_REPLICATE;
    return second->kind == DT_PLACE_SHARD && second->axis == 0 &&
           dti_placement_same_cut(second, gate_up);
}

/* On a mesh dim that cuts the weights. */
static dt_status cut_weights(dti_op_call *call, const operands *at, int m)
{
    const dt_placement *gate_up = &call->in_place[at->gate_up][m];
    const dt_placement *down = &call->in_place[at->down][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];
    bool meet = gate_up->kind == DT_PLACE_SHARD && down->kind == DT_PLACE_SHARD;

    for (int i = 0; i < at->gate_up; i++)
        if (call->in_place[i][m].kind != DT_PLACE_REPLICATE)
            return dti_op_clash(call, m, "operand %d is %s and experts are cut too", i,
                                dti_placement_words(&call->in_place[i][m], one));
    if (meet && gate_up->axis == 0)
        meet = down->axis == 0 && gate_up->replicas == 1 && gate_up->n_blocks == 0 &&
               dti_placement_same_cut(gate_up, down);
    else
        meet = meet && parts_meet(call, at, gate_up, down);
    if (!meet)
        return dti_op_clash(
            call, m,
            "gate and up are %s and down is %s: experts are cut as a whole, or gate "
            "and up block by block as the columns of down",
            dti_placement_words(gate_up, one), dti_placement_words(down, two));
    if (at->interleaved && !biases_follow(call, at, m))
        return dti_op_clash(call, m,
                            "gate and up are %s and down is %s, but their biases are cut "
                            "elsewhere: those of gate and up as these, those of down with whole "
                            "experts alone",
                            dti_placement_words(gate_up, one), dti_placement_words(down, two));
    if (!all_alike(call, at, m))
        return dti_op_clash(call, m,
                            "gate and up are %s and down is %s, but their scales are cut "
                            "elsewhere: codes and scales are cut alike, between groups",
                            dti_placement_words(gate_up, one), dti_placement_words(down, two));
    if (call->result >= 2) { /* gradients of gate and up, of down, of their biases */
        call->out_place[m] = call->in_place[at->gate_up + call->result - 2][m];
        return DT_OK;
    }
    call->out_place[m] = DT_PARTIAL(DT_SUM);
    call->reduced = true;
    return DT_OK;
}

/* A sum passes in dy alone, of which gradients are linear. */
static dt_status shard_one(dti_op_call *call, const operands *at, int m)
{
    bool cut = false;

    for (int i = at->x; i < call->n; i++) {
        const dt_place_kind kind = call->in_place[i][m].kind;
        if (dti_has(call->in[i]->layout->partial_dims, m) &&
            (kind == DT_PLACE_PARTIAL || dti_has(call->terms, m)))
            return dti_op_clash(call, m, "operand %d is Partial and must be reduced", i);
        cut = cut || (i >= at->gate_up && kind == DT_PLACE_SHARD);
    }
    if (cut) return cut_weights(call, at, m);
    return dti_shard_letters_dim(call, m);
}

static dt_status shard_plain(dti_op_call *call, int m)
{
    const operands at = plain_operands(call->n);

    return shard_one(call, &at, m);
}

static dt_status shard_clamped(dti_op_call *call, int m)
{
    const operands at = clamped_operands(call->n);

    return shard_one(call, &at, m);
}

static dt_status shard_packed(dti_op_call *call, int m)
{
    const operands at = packed_operands(call->n, call->attr);

    return shard_one(call, &at, m);
}

dt_status dti_experts_shard(dti_op_call *call)
{
    return dti_shard_dims(call, shard_plain);
}

dt_status dti_experts_clamped_shard(dti_op_call *call)
{
    return dti_shard_dims(call, shard_clamped);
}

dt_status dti_experts_packed_shard(dti_op_call *call)
{
    return dti_shard_dims(call, shard_packed);
}
