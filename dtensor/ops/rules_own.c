/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of rows whose shapes or placements letters cannot say: views of heads, tables that double
 * an axis, rows and blocks of an axis. */
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* [b, t, h e] -> [b, t, h, e] */
dt_status dti_heads_extents(dt_op_shapes *call)
{
    const int64_t head_dim = ((const dti_heads_attr *)call->attr)->head_dim;
    const int64_t columns = call->in[0].extent[2];

    DT_CHECK(head_dim > 0 && columns % head_dim == 0, DT_ERR_SHAPE,
             "heads: axis 2 has %lld columns, which heads of %lld do not divide",
             (long long)columns, (long long)head_dim);
    call->out[0].extent[2] = columns / head_dim;
    call->out[0].extent[3] = head_dim;
    return DT_OK;
}

dt_status dti_heads_shard(dti_op_call *call)
{
    const int64_t head_dim = ((const dti_heads_attr *)call->attr)->head_dim;
    const dt_layout *x = call->in[0]->layout;

    DT_TRY(dti_shard_letters(call));
    for (int m = 0; m < x->n_dims; m++) {
        const dt_placement *p = &call->in_place[0][m];
        if (x->dim_size[m] == 1 || p->kind != DT_PLACE_SHARD || p->axis != 2) continue;
        if (p->unit % head_dim != 0) {
            DT_TRY(dti_op_clash(call, m,
                                "axis 2 is cut in units of %lld, which splits heads of %lld",
                                (long long)p->unit, (long long)head_dim));
            continue;
        }
        call->out_place[m] = *p;
        call->out_place[m].unit = p->unit / head_dim;
    }
    return DT_OK;
}

/* [b, t, h, e] -> [b, t, h e] */
dt_status dti_unheads_extents(dt_op_shapes *call)
{
    const int64_t head_dim = ((const dti_heads_attr *)call->attr)->head_dim;
    const int64_t *x = call->in[0].extent;

    DT_CHECK(x[3] == head_dim, DT_ERR_SHAPE, "unheads: heads of %lld columns, attributes say %lld",
             (long long)x[3], (long long)head_dim);
    call->out[0].extent[2] = x[2] * x[3];
    return DT_OK;
}

dt_status dti_unheads_shard(dti_op_call *call)
{
    const dt_layout *x = call->in[0]->layout;

    DT_TRY(dti_shard_letters(call));
    for (int m = 0; m < x->n_dims; m++)
        if (x->dim_size[m] > 1 && call->in_place[0][m].kind == DT_PLACE_SHARD &&
            call->in_place[0][m].axis == 2) {
            call->out_place[m] = call->in_place[0][m];
            if (call->out_place[m].n_offsets > 0) {
                DT_TRY(dti_op_clash(call, m, "axis 2 is cut at offsets, which count heads"));
                continue;
            }
            call->out_place[m].unit *= ((const dti_heads_attr *)call->attr)->head_dim;
        }
    return DT_OK;
}

/* positions [b, t], inv_freq [r] -> [b, t, 2 r] */
dt_status dti_rope_table_extents(dt_op_shapes *call)
{
    call->out[0].extent[2] = 2 * call->in[1].extent[0];
    return DT_OK;
}

dt_status dti_rope_extents(dt_op_shapes *call)
{
    const int64_t e = call->in[0].extent[3], r = call->in[1].extent[2];

    DT_CHECK(r <= e && r % 2 == 0, DT_ERR_SHAPE,
             "rope: a table of %lld columns rotates heads of %lld: it must be even and not wider",
             (long long)r, (long long)e);
    return DT_OK;
}

dt_status dti_slice_extents(dt_op_shapes *call)
{
    const dti_slice_attr *attr = call->attr;
    const dt_op_shape *x = &call->in[0];
    int64_t extent, begin;

    DT_CHECK(attr->axis >= 0 && attr->axis < x->n_axes, DT_ERR_ARG,
             "slice: axis %lld of a tensor of %d axes", (long long)attr->axis, x->n_axes);
    extent = x->extent[attr->axis];
    begin = attr->begin < 0 ? attr->begin + extent : attr->begin;
    DT_CHECK(begin >= 0 && begin <= extent && attr->count >= 0 && attr->count <= extent - begin,
             DT_ERR_SHAPE, "slice: %lld rows from row %lld on of axis %lld, which has %lld",
             (long long)attr->count, (long long)attr->begin, (long long)attr->axis,
             (long long)extent);
    call->out[0].extent[attr->axis] = attr->count;
    return DT_OK;
}

/* A rank of a cut axis has some of the wanted rows and writes zeros for the others, so the result
 * is a sum of which one term counts. Sums only pass through sums. */
static dt_status slice_cut(dti_op_call *call, int m)
{
    const dt_layout *x = call->in[0]->layout;
    const dt_placement *cut = &call->in_place[0][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    if (dti_op_counts_copies(call, m, cut))
        return dti_op_clash(call, m, "operand 0 is %s: summing its rows would count copies",
                            dti_placement_words(cut, one));
    for (int d = 0; d < x->n_dims; d++) {
        const dt_placement *p = &call->in_place[0][d];
        if (x->dim_size[d] > 1 && p->kind == DT_PLACE_PARTIAL && p->reduce != DT_SUM)
            return dti_op_clash(call, m, "operand 0 is %s along the axis, and %s on another dim",
                                dti_placement_words(cut, one), dti_placement_words(p, two));
    }
    call->out_place[m] = DT_PARTIAL(DT_SUM);
    call->reduced = true;
    return DT_OK;
}

dt_status dti_slice_shard(dti_op_call *call)
{
    const int64_t axis = ((const dti_slice_attr *)call->attr)->axis;
    const dt_layout *x = call->in[0]->layout;

    for (int m = 0; m < x->n_dims; m++) {
        const dt_placement p = call->in_place[0][m];
        call->out_place[m] = p;
        if (x->dim_size[m] > 1 && p.kind == DT_PLACE_SHARD && p.axis == axis)
            DT_TRY(slice_cut(call, m));
    }
    return DT_OK;
}

dt_status dti_blocks_extents(dt_op_shapes *call)
{
    const dti_blocks_attr *attr = call->attr;
    const dti_slice_attr rows = { attr->axis, attr->begin, attr->count };
    const void *own = call->attr;
    dt_status st;

    call->attr = &rows;
    st = dti_slice_extents(call);
    call->attr = own;
    return st;
}

/* The blocks that are exactly rows [begin, begin + count); false if there are none. */
static bool find_blocks(const dt_placement *p, int64_t begin, int64_t count, int *first, int *n)
{
    int64_t at = 0;

    for (*first = 0; *first < p->n_blocks && (at < begin || p->blocks[*first] == 0); ++*first)
        at += p->blocks[*first];
    for (*n = 0; at == begin && count > 0 && *first + *n < p->n_blocks; ++*n)
        count -= p->blocks[*first + *n];
    return *n > 0 && count == 0;
}

/* Never moved: the attribute says where blocks lie in the operand's own layout. */
static dt_status blocks_dim(dti_op_call *call, int m)
{
    const dti_blocks_attr *attr = call->attr;
    const dt_placement p = call->in_place[0][m];
    dt_placement *out = &call->out_place[m];
    char text[DTI_PLACEMENT_BYTES];
    int first, n;

    *out = p;
    if (p.kind != DT_PLACE_SHARD || p.axis != attr->axis) return DT_OK;
    if (attr->count == 0) {
        *out = DT_SHARD(p.axis);
        return DT_OK;
    }
    DT_CHECK(p.n_blocks > 0 &&
                 dti_layout_cuts(call->in[0]->layout, p.axis, (int[DT_MAX_DIMS]){ 0 }) == 1,
             DT_ERR_LAYOUT,
             "blocks \"%s\": on mesh dim \"%s\" operand 0 is %s, and another dim cuts that axis; "
             "redistribute it first",
             call->op->axes, dt_mesh_dim_name(call->in[0]->mesh, m), dti_placement_words(&p, text));
    DT_CHECK(
        find_blocks(&p, attr->begin, attr->count, &first, &n), DT_ERR_LAYOUT,
        "slice: rows %lld to %lld of axis %d are no blocks of it: on mesh dim \"%s\" operand 0 "
        "is %s; slice whole blocks, or redistribute it first",
        (long long)attr->begin, (long long)(attr->begin + attr->count - 1), p.axis,
        dt_mesh_dim_name(call->in[0]->mesh, m), dti_placement_words(&p, text));
    out->blocks = p.blocks + first;
    out->units = p.units != NULL ? p.units + first : NULL;
    out->n_blocks = n;
    if (n > 1) return DT_OK;
    out->unit = p.units != NULL ? p.units[first] : p.unit;
    out->blocks = out->units = NULL;
    out->n_blocks = 0;
    return DT_OK;
}

dt_status dti_blocks_shard(dti_op_call *call)
{
    const dt_layout *x = call->in[0]->layout;

    for (int m = 0; m < x->n_dims; m++) {
        call->out_place[m] = call->in_place[0][m];
        if (x->dim_size[m] > 1) DT_TRY(blocks_dim(call, m));
    }
    return DT_OK;
}
