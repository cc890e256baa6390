/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of attention and of its gradients, where query heads read kv heads of another axis. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* Which operands a call has: of a way back dy comes first and statistics follow v. */
typedef struct roles {
    int q, k, v, positions, extras;
    bool back;
    bool paged; /* keys lie in blocks: whose a row is and a table follow positions */
} roles;

static const roles forward = { 0, 1, 2, 3, 4, false, false };
static const roles back = { 1, 2, 3, 5, 6, true, false };
static const roles paged = { 0, 1, 2, 3, 6, false, true };

/* Does the rank at `coord` hold the kv heads that its query heads read? */
static bool heads_meet(const dti_op_call *call, const roles *r, const int *coord)
{
    const dti_attention_attr *attr = call->attr;
    const int64_t group = attr->n_heads / attr->n_kv_heads;
    int64_t q0, q1, k0, k1;

    dti_layout_axis_range(call->in[r->q]->layout, 2, attr->n_heads, coord, &q0, &q1);
    dti_layout_axis_range(call->in[r->k]->layout, 2, attr->n_kv_heads, coord, &k0, &k1);
    return q0 == q1 || (q0 / group >= k0 && (q1 - 1) / group < k1);
}

/* The same for all ranks, whatever number of mesh dims cuts the heads. */
static bool all_heads_meet(const dti_op_call *call, const roles *r)
{
    const dt_layout *grid = call->in[0]->layout;
    int coord[DT_MAX_DIMS] = { 0 };

    for (;;) {
        int m = grid->n_dims - 1;
        if (!heads_meet(call, r, coord)) return false;
        while (m >= 0 && ++coord[m] == grid->dim_size[m]) coord[m--] = 0;
        if (m < 0) return true;
    }
}

/* Operands that are cut as queries are, on a mesh dim that does not cut the batch. */
static dt_status follow_queries(dti_op_call *call, const roles *r, int m)
{
    const dt_placement q = call->in_place[r->q][m];
    const int others[] = { 0, r->v + 1 }; /* dy, statistics */
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    for (size_t i = 0; r->back && i < DT_COUNT(others); i++) {
        dt_placement *x = &call->in_place[others[i]][m];
        if (x->kind == DT_PLACE_REPLICATE) *x = q; /* a slice */
        if (x->kind != q.kind || (q.kind == DT_PLACE_SHARD && !dti_placement_same_cut(x, &q)))
            return dti_op_clash(call, m, "queries are %s, but operand %d is %s",
                                dti_placement_words(&q, one), others[i],
                                dti_placement_words(x, two));
    }
    return DT_OK;
}

/* Where gradients of keys and values lie: terms of a sum where ranks read the same heads. */
static dt_status place_keys(dti_op_call *call, const roles *r, int m)
{
    const dt_placement q = call->in_place[r->q][m], k = call->in_place[r->k][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    call->out_place[m] = k; /* also where neighbours hold the same query heads: all of them add */
    if (q.kind == DT_PLACE_SHARD && k.kind == DT_PLACE_SHARD && q.replicas == k.replicas)
        return DT_OK;
    if (q.kind == DT_PLACE_SHARD && q.replicas > 1)
        return dti_op_clash(call, m,
                            "queries are %s and keys %s: terms of gradients would count "
                            "copies",
                            dti_placement_words(&q, one), dti_placement_words(&k, two));
    if (k.kind == DT_PLACE_SHARD && k.replicas > 1) {
        call->out_place[m].terms = true;
        call->reduced = true;
    } else if (k.kind == DT_PLACE_REPLICATE && q.kind == DT_PLACE_SHARD) {
        call->out_place[m] = DT_PARTIAL(DT_SUM);
        call->reduced = true;
    }
    return DT_OK;
}

/* Mesh dim m cuts rows, blocks and tables, n operands: each rank has some of all of them. */
static dt_status cut_paged(dti_op_call *call, int m, int n)
{
    const dt_placement rows = DT_SHARD(0);
    char text[DTI_PLACEMENT_BYTES];

    for (int i = 0; i < n; i++) {
        const dt_placement *x = &call->in_place[i][m];
        if (x->kind == DT_PLACE_SHARD && x->axis == 0 && dti_placement_same_cut(x, &rows)) continue;
        return dti_op_clash(call, m,
                            "operand %d is %s: where rows, blocks or tables are cut, all of them "
                            "are, as Shard(0)",
                            i, dti_placement_words(x, text));
    }
    call->out_place[m] = rows;
    return DT_OK;
}

static dt_status attention_dim(dti_op_call *call, const roles *r, int m)
{
    dt_placement(*in)[DT_MAX_DIMS] = call->in_place;
    char q[DTI_PLACEMENT_BYTES], k[DTI_PLACEMENT_BYTES];
    int batch_cuts = 0;

    for (int i = 0; i < call->n; i++) {
        const dt_placement *x = &in[i][m];
        if (x->kind == DT_PLACE_PARTIAL)
            return dti_op_clash(call, m, "operand %d is Partial and must be reduced", i);
        if (i >= r->extras) continue;
        if (x->kind == DT_PLACE_SHARD && x->axis == 0) batch_cuts++;
        if (x->kind == DT_PLACE_SHARD && x->axis != 0 && (i >= r->positions || x->axis != 2))
            return dti_op_clash(call, m, "operand %d is %s but only batch and heads may be cut", i,
                                dti_placement_words(x, q));
    }
    if (batch_cuts > 0 && r->paged) return cut_paged(call, m, r->extras);
    if (batch_cuts > 0) { /* all cut alike, or a clash */
        const int n = call->n;
        dt_status st;
        call->n = r->extras; /* the axes of a bias have letters of their own */
        st = dti_shard_letters_dim(call, m);
        call->n = n;
        return st;
    }
    if (in[r->k][m].kind != in[r->v][m].kind ||
        (in[r->k][m].kind == DT_PLACE_SHARD && !dti_placement_same_cut(&in[r->k][m], &in[r->v][m])))
        return dti_op_clash(call, m, "keys are %s and values are %s",
                            dti_placement_words(&in[r->k][m], q),
                            dti_placement_words(&in[r->v][m], k));
    DT_TRY(follow_queries(call, r, m));
    call->out_place[m] = in[r->q][m];
    if (r->back && (call->result == 1 || call->result == 2)) DT_TRY(place_keys(call, r, m));
    return DT_OK;
}

/* A bias, sinks or segments follow a cut of the queries along `axis`, -1: are whole. */
static dt_status extra_dim(dti_op_call *call, const roles *r, int m, int i, int axis)
{
    dt_placement *x = &call->in_place[i][m];
    dt_placement cut = call->in_place[r->q][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    cut.axis = axis;
    if (x->kind == DT_PLACE_REPLICATE && axis < 0) return DT_OK;
    if (x->kind == DT_PLACE_REPLICATE) *x = cut; /* a slice */
    if (axis >= 0 && x->axis == axis && dti_placement_same_cut(x, &cut)) return DT_OK;
    return dti_op_clash(call, m, "queries are %s, but operand %d is %s: it is cut where they are",
                        dti_placement_words(&call->in_place[r->q][m], one), i,
                        dti_placement_words(x, two));
}

static dt_status extras_dim(dti_op_call *call, const roles *r, int m)
{
    const uint32_t flags = ((const dti_attention_attr *)call->attr)->flags;
    const dt_placement *q = &call->in_place[r->q][m];
    const bool batch = q->kind == DT_PLACE_SHARD && q->axis == 0;
    const bool heads = q->kind == DT_PLACE_SHARD && q->axis == 2;
    int i = r->extras;

    if ((flags & DTI_ATTENTION_BIAS) != 0) {
        const bool along_batch = batch && (flags & DTI_ATTENTION_ONE_BATCH) == 0;
        const bool along_heads = heads && (flags & DTI_ATTENTION_ONE_HEAD) == 0;
        DT_TRY(extra_dim(call, r, m, i, along_batch ? 0 : along_heads ? 1 : -1));
        if (call->result == 3) { /* its gradient; one for all is a sum over what is cut */
            const bool sum = (batch || heads) && !along_batch && !along_heads;
            call->out_place[m] = sum ? DT_PARTIAL(DT_SUM) : call->in_place[i][m];
            call->reduced = call->reduced || sum;
        }
        i++;
    }
    if ((flags & DTI_ATTENTION_SINKS) != 0 && !r->back)
        DT_TRY(extra_dim(call, r, m, i++, heads ? 0 : -1));
    if ((flags & DTI_ATTENTION_SEGMENTS) != 0) DT_TRY(extra_dim(call, r, m, i, batch ? 0 : -1));
    return DT_OK;
}

/* On every mesh dim that cuts heads: a rank would miss kv heads that its query heads read. */
static dt_status heads_clash(dti_op_call *call, const roles *r)
{
    const dti_attention_attr *attr = call->attr;
    const dt_layout *grid = call->in[0]->layout;
    char q[DTI_PLACEMENT_BYTES], k[DTI_PLACEMENT_BYTES];

    for (int m = 0; m < grid->n_dims; m++) {
        const dt_placement *x = &call->in_place[r->q][m], *y = &call->in_place[r->k][m];
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

static dt_status forward_dim(dti_op_call *call, int m)
{
    DT_TRY(attention_dim(call, &forward, m));
    DT_TRY(extras_dim(call, &forward, m));
    return DT_OK;
}

static dt_status back_dim(dti_op_call *call, int m)
{
    DT_TRY(attention_dim(call, &back, m));
    DT_TRY(extras_dim(call, &back, m));
    return DT_OK;
}

static dt_status paged_dim(dti_op_call *call, int m)
{
    DT_TRY(attention_dim(call, &paged, m));
    DT_TRY(extras_dim(call, &paged, m));
    return DT_OK;
}

dt_status dti_attention_paged_shard(dti_op_call *call)
{
    DT_TRY(dti_shard_dims(call, paged_dim));
    return all_heads_meet(call, &paged) ? DT_OK : heads_clash(call, &paged);
}

/* k, positions, sequence, table, pool: the pool stays as it lies. */
static dt_status write_paged_dim(dti_op_call *call, int m)
{
    const int pool = 4;
    const dt_placement cut = call->in_place[pool][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    if (cut.kind == DT_PLACE_SHARD && cut.axis == 0) return cut_paged(call, m, call->n);
    for (int i = 0; i < pool; i++) {
        dt_placement *x = &call->in_place[i][m];
        if (i == 0 && cut.kind == DT_PLACE_SHARD && x->kind == DT_PLACE_REPLICATE) *x = cut;
        if (x->kind == DT_PLACE_REPLICATE && (i > 0 || cut.kind == x->kind)) continue;
        if (i == 0 && x->kind == DT_PLACE_SHARD && x->axis == 2 && cut.kind == DT_PLACE_SHARD &&
            cut.axis == 2 && dti_placement_same_cut(x, &cut))
            continue;
        return dti_op_clash(call, m, "the pool is %s, but operand %d is %s",
                            dti_placement_words(&cut, one), i, dti_placement_words(x, two));
    }
    call->out_place[m] = cut;
    return DT_OK;
}

dt_status dti_kv_write_paged_shard(dti_op_call *call)
{
    DT_TRY(dti_shard_dims(call, write_paged_dim));
    return DT_OK;
}

dt_status dti_attention_shard(dti_op_call *call)
{
    DT_TRY(dti_shard_dims(call, forward_dim));
    return all_heads_meet(call, &forward) ? DT_OK : heads_clash(call, &forward);
}

dt_status dti_attention_backward_shard(dti_op_call *call)
{
    DT_TRY(dti_shard_dims(call, back_dim));
    return all_heads_meet(call, &back) ? DT_OK : heads_clash(call, &back);
}

/* bias [b or 1, h or 1, t or 1, s] */
static dt_status check_bias(const dt_op_shapes *call, const roles *r)
{
    const uint32_t flags = ((const dti_attention_attr *)call->attr)->flags;
    const int64_t *q = call->in[r->q].extent, *bias = call->in[r->extras].extent;
    const int64_t of[] = { q[0], q[2], q[1] };

    for (int a = 0; a < 3; a++)
        DT_CHECK(
            bias[a] == ((flags & DTI_ATTENTION_ONE_BATCH << a) != 0 ? 1 : of[a]), DT_ERR_SHAPE,
            "attention: axis %d of the bias is %lld, but of batch, heads and queries there are "
            "%lld, %lld and %lld: as many, or 1",
            a, (long long)bias[a], (long long)of[0], (long long)of[1], (long long)of[2]);
    return DT_OK;
}

static dt_status check_shapes(const dt_op_shapes *call, const roles *r)
{
    const dti_attention_attr *attr = call->attr;
    const int64_t heads = call->in[r->q].extent[2], kv_heads = call->in[r->k].extent[2];

    DT_CHECK(attr->n_kv_heads > 0 && attr->n_heads % attr->n_kv_heads == 0, DT_ERR_ARG,
             "attention: %lld heads cannot share %lld kv heads", (long long)attr->n_heads,
             (long long)attr->n_kv_heads);
    DT_CHECK(heads == attr->n_heads && kv_heads == attr->n_kv_heads, DT_ERR_SHAPE,
             "attention: operands have %lld heads and %lld kv heads, attributes say "
             "%lld and %lld",
             (long long)heads, (long long)kv_heads, (long long)attr->n_heads,
             (long long)attr->n_kv_heads);
    return (attr->flags & DTI_ATTENTION_BIAS) != 0 ? check_bias(call, r) : DT_OK;
}

dt_status dti_attention_extents(dt_op_shapes *call)
{
    DT_TRY(check_shapes(call, &forward));
    return DT_OK;
}

dt_status dti_attention_backward_extents(dt_op_shapes *call)
{
    DT_TRY(check_shapes(call, &back));
    return DT_OK;
}

/* A row is one token. */
static dt_status check_tokens(const dt_op_shapes *call)
{
    DT_CHECK(call->in[0].extent[1] == 1, DT_ERR_SHAPE, "%s: rows of %lld tokens, must be of one",
             call->op->name, (long long)call->in[0].extent[1]);
    return DT_OK;
}

dt_status dti_attention_paged_extents(dt_op_shapes *call)
{
    const dti_attention_attr *attr = call->attr;

    DT_TRY(check_shapes(call, &paged));
    DT_TRY(check_tokens(call));
    DT_CHECK(
        (attr->flags & (DTI_ATTENTION_BOTH_WAYS | DTI_ATTENTION_SEGMENTS)) == 0, DT_ERR_UNSUPPORTED,
        "%s: keys that lie in blocks are seen from behind, of one sequence each", call->op->name);
    return DT_OK;
}

dt_status dti_kv_write_paged_extents(dt_op_shapes *call)
{
    DT_TRY(check_tokens(call));
    return DT_OK;
}

dt_status dti_attention_stats_extents(dt_op_shapes *call)
{
    call->out[0].extent[3] = 2;
    return DT_OK;
}
