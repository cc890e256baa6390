/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of attention, where query heads read kv heads of another axis. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* Does the rank at `coord` hold the kv heads that its query heads read? */
static bool heads_meet(const dti_op_call *call, const int *coord)
{
    const dti_attention_attr *attr = call->attr;
    const int64_t group = attr->n_heads / attr->n_kv_heads;
    int64_t q0, q1, k0, k1;

    dti_layout_axis_range(call->in[0]->layout, 2, attr->n_heads, coord, &q0, &q1);
    dti_layout_axis_range(call->in[1]->layout, 2, attr->n_kv_heads, coord, &k0, &k1);
    return q0 == q1 || (q0 / group >= k0 && (q1 - 1) / group < k1);
}

/* The same for all ranks, whatever number of mesh dims cuts the heads. */
static bool all_heads_meet(const dti_op_call *call)
{
    const dt_layout *grid = call->in[0]->layout;
    int coord[DT_MAX_DIMS] = { 0 };

    for (;;) {
        int m = grid->n_dims - 1;
        if (!heads_meet(call, coord)) return false;
        while (m >= 0 && ++coord[m] == grid->dim_size[m]) coord[m--] = 0;
        if (m < 0) return true;
    }
}

enum { Q, K, V, POSITIONS, EXTRAS };

static dt_status attention_dim(dti_op_call *call, int m)
{
    dt_placement(*in)[DT_MAX_DIMS] = call->in_place;
    int batch_cuts = 0;
    char q[DTI_PLACEMENT_BYTES], k[DTI_PLACEMENT_BYTES];

    for (int i = 0; i < call->n; i++) {
        const dt_placement *x = &in[i][m];
        if (x->kind == DT_PLACE_PARTIAL)
            return dti_op_clash(call, m, "operand %d is Partial and must be reduced", i);
        if (i >= EXTRAS) continue;
        if (x->kind == DT_PLACE_SHARD && x->axis == 0) batch_cuts++;
        if (x->kind == DT_PLACE_SHARD && x->axis != 0 && (i == POSITIONS || x->axis != 2))
            return dti_op_clash(call, m, "operand %d is %s but only batch and heads may be cut", i,
                                dti_placement_words(x, q));
    }
    if (batch_cuts > 0) { /* all cut alike, or a clash */
        const int n = call->n;
        dt_status st;
        call->n = EXTRAS; /* the axes of a bias have letters of their own */
        st = dti_shard_letters_dim(call, m);
        call->n = n;
        return st;
    }
    if (in[K][m].kind != in[V][m].kind ||
        (in[K][m].kind == DT_PLACE_SHARD && !dti_placement_same_cut(&in[K][m], &in[V][m])))
        return dti_op_clash(call, m, "keys are %s and values are %s",
                            dti_placement_words(&in[K][m], q), dti_placement_words(&in[V][m], k));
    call->out_place[m] = in[Q][m];
    return DT_OK;
}

/* A bias or sinks follow a cut of the queries along `axis`, -1: are whole. */
static dt_status extra_dim(dti_op_call *call, int m, int i, int axis)
{
    dt_placement *x = &call->in_place[i][m];
    dt_placement cut = call->in_place[Q][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    cut.axis = axis;
    if (x->kind == DT_PLACE_REPLICATE && axis < 0) return DT_OK;
    if (x->kind == DT_PLACE_REPLICATE) *x = cut; /* a slice */
    if (axis >= 0 && x->axis == axis && dti_placement_same_cut(x, &cut)) return DT_OK;
    return dti_op_clash(call, m, "queries are %s, but operand %d is %s: it is cut where they are",
                        dti_placement_words(&call->in_place[Q][m], one), i,
                        dti_placement_words(x, two));
}

static dt_status extras_dim(dti_op_call *call, int m)
{
    const uint32_t flags = ((const dti_attention_attr *)call->attr)->flags;
    const dt_placement *q = &call->in_place[Q][m];
    const bool batch = q->kind == DT_PLACE_SHARD && q->axis == 0;
    const bool heads = q->kind == DT_PLACE_SHARD && q->axis == 2;
    int i = EXTRAS;

    if ((flags & DTI_ATTENTION_BIAS) != 0) {
        const bool along_batch = batch && (flags & DTI_ATTENTION_ONE_BATCH) == 0;
        const bool along_heads = heads && (flags & DTI_ATTENTION_ONE_HEAD) == 0;
        DT_TRY(extra_dim(call, m, i++, along_batch ? 0 : along_heads ? 1 : -1));
    }
    if ((flags & DTI_ATTENTION_SINKS) != 0) DT_TRY(extra_dim(call, m, i, heads ? 0 : -1));
    return DT_OK;
}

/* On every mesh dim that cuts heads: a rank would miss kv heads that its query heads read. */
static dt_status heads_clash(dti_op_call *call)
{
    const dti_attention_attr *attr = call->attr;
    const dt_layout *grid = call->in[0]->layout;
    char q[DTI_PLACEMENT_BYTES], k[DTI_PLACEMENT_BYTES];

    for (int m = 0; m < grid->n_dims; m++) {
        const dt_placement *x = &call->in_place[Q][m], *y = &call->in_place[K][m];
        const bool cuts = (x->kind == DT_PLACE_SHARD && x->axis == 2) ||
                          (y->kind == DT_PLACE_SHARD && y->axis == 2);
        if (grid->dim_size[m] == 1 || !cuts) continue;
        DT_TRY(dti_op_clash(call, m,
                            "query heads are %s and kv heads %s (%lld and %lld heads over %d "
                            "ranks): a rank would miss the kv heads its query heads read",
                            dti_placement_words(x, q), dti_placement_words(y, k),
                            (long long)attr->n_heads, (long long)attr->n_kv_heads,
                            grid->dim_size[m]));
    }
    return DT_OK;
}

static dt_status shard_dim(dti_op_call *call, int m)
{
    DT_TRY(attention_dim(call, m));
    DT_TRY(extras_dim(call, m));
    return DT_OK;
}

dt_status dti_attention_shard(dti_op_call *call)
{
    DT_TRY(dti_shard_dims(call, shard_dim));
    return all_heads_meet(call) ? DT_OK : heads_clash(call);
}

/* bias [b or 1, h or 1, t or 1, s] */
static dt_status check_bias(const dt_op_shapes *call)
{
    const uint32_t flags = ((const dti_attention_attr *)call->attr)->flags;
    const int64_t *q = call->in[Q].extent, *bias = call->in[EXTRAS].extent;
    const int64_t of[] = { q[0], q[2], q[1] };

    for (int a = 0; a < 3; a++)
        DT_CHECK(
            bias[a] == ((flags & DTI_ATTENTION_ONE_BATCH << a) != 0 ? 1 : of[a]), DT_ERR_SHAPE,
            "attention: axis %d of the bias is %lld, but of batch, heads and queries there are "
            "%lld, %lld and %lld: as many, or 1",
            a, (long long)bias[a], (long long)of[0], (long long)of[1], (long long)of[2]);
    return DT_OK;
}

dt_status dti_attention_extents(dt_op_shapes *call)
{
    const dti_attention_attr *attr = call->attr;
    const int64_t heads = call->in[Q].extent[2], kv_heads = call->in[K].extent[2];

    DT_CHECK(attr->n_kv_heads > 0 && attr->n_heads % attr->n_kv_heads == 0, DT_ERR_ARG,
             "attention: %lld heads cannot share %lld kv heads", (long long)attr->n_heads,
             (long long)attr->n_kv_heads);
    DT_CHECK(heads == attr->n_heads && kv_heads == attr->n_kv_heads, DT_ERR_SHAPE,
             "attention: operands have %lld heads and %lld kv heads, attributes say "
             "%lld and %lld",
             (long long)heads, (long long)kv_heads, (long long)attr->n_heads,
             (long long)attr->n_kv_heads);
    return (attr->flags & DTI_ATTENTION_BIAS) != 0 ? check_bias(call) : DT_OK;
}
