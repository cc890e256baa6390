/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of general rows whose shapes or placements letters cannot say. Axes and numbers of elements
 * that a placement follows from are attributes: a decision is kept by layouts, not by extents. */
#include "base/memory.h"
#include "dtensor/kernels/attrs.h"
#include "dtensor/ops/op_rules.h"

/* On mesh dims of more than one rank, where operand 0 is cut along `axis`. */
static bool is_cut_at(const dti_op_call *call, int m, int64_t axis)
{
    const dt_placement *p = &call->in_place[0][m];

    return call->in[0]->layout->dim_size[m] > 1 && p->kind == DT_PLACE_SHARD && p->axis == axis;
}

static dt_status check_axis(const dt_op_shapes *call, int64_t axis)
{
    DT_CHECK(axis >= 0 && axis < call->in[0].n_axes, DT_ERR_ARG,
             "%s: axis %lld of a tensor of %d axes", call->op->name, (long long)axis,
             call->in[0].n_axes);
    return DT_OK;
}

/* --- quotients, choices ----------------------------------------------------------------------- */

/* A quotient is linear in what is divided alone. */
dt_status dti_first_shard(dti_op_call *call)
{
    const dt_layout *grid = call->in[0]->layout;

    for (int m = 0; m < grid->n_dims; m++)
        for (int i = 1; i < call->n; i++)
            if (dti_has(call->in[i]->layout->partial_dims, m) &&
                (call->in_place[i][m].kind == DT_PLACE_PARTIAL || dti_has(call->terms, m)))
                DT_TRY(dti_op_clash(call, m, "operand %d is Partial and must be reduced", i));
    return dti_shard_letters(call);
}

/* --- along one axis, which is whole ----------------------------------------------------------- */

dt_status dti_line_extents(dt_op_shapes *call)
{
    return check_axis(call, ((const dti_axis_attr *)call->attr)->axis);
}

dt_status dti_line_shard(dti_op_call *call)
{
    const int64_t axis = ((const dti_axis_attr *)call->attr)->axis;
    const dt_layout *x = call->in[0]->layout;
    char text[DTI_PLACEMENT_BYTES];

    DT_TRY(dti_shard_letters(call));
    for (int m = 0; m < x->n_dims; m++)
        if (is_cut_at(call, m, axis))
            DT_TRY(dti_op_clash(call, m, "operand 0 is %s but its axis %lld must be whole",
                                dti_placement_words(&call->in_place[0][m], text), (long long)axis));
    return DT_OK;
}

/* --- permute ---------------------------------------------------------------------------------- */

dt_status dti_permute_extents(dt_op_shapes *call)
{
    const dti_permute_attr *attr = call->attr;
    uint32_t seen = 0;

    for (int a = 0; a < call->in[0].n_axes; a++) {
        const int from = attr->axis[a];
        DT_CHECK(from >= 0 && from < call->in[0].n_axes && (seen >> from & 1u) == 0, DT_ERR_ARG,
                 "permute: axis %d of the result is to be axis %d of a tensor of %d axes, each "
                 "once",
                 a, from, call->in[0].n_axes);
        seen |= 1u << from;
        call->out[0].extent[a] = call->in[0].extent[from];
    }
    return DT_OK;
}

dt_status dti_permute_shard(dti_op_call *call)
{
    const dti_permute_attr *attr = call->attr;
    const dt_layout *x = call->in[0]->layout;

    for (int m = 0; m < x->n_dims; m++) {
        call->out_place[m] = call->in_place[0][m];
        if (call->in_place[0][m].kind != DT_PLACE_SHARD) continue;
        for (int a = 0; a < call->out_axes; a++)
            if (attr->axis[a] == call->in_place[0][m].axis) call->out_place[m].axis = a;
    }
    return DT_OK;
}

/* --- one step of a reshape -------------------------------------------------------------------- */

dt_status dti_view_extents(dt_op_shapes *call)
{
    const dti_view_attr *attr = call->attr;
    const dt_op_shape *x = &call->in[0];
    dt_op_shape *y = &call->out[0];
    const int gone = attr->step == DTI_VIEW_INSERT ? 0 : attr->step == DTI_VIEW_MERGE ? 2 : 1;
    int n = 0;

    DT_CHECK(attr->axis >= 0 && attr->axis + gone <= x->n_axes, DT_ERR_ARG,
             "reshape: axis %d of a tensor of %d axes", (int)attr->axis, x->n_axes);
    for (int a = 0; a < attr->axis; a++) y->extent[n++] = x->extent[a];
    if (attr->step == DTI_VIEW_MERGE) y->extent[n++] = attr->outer * attr->inner;
    if (attr->step == DTI_VIEW_SPLIT) y->extent[n++] = attr->outer;
    if (attr->step == DTI_VIEW_SPLIT) y->extent[n++] = attr->inner;
    if (attr->step == DTI_VIEW_INSERT) y->extent[n++] = 1;
    for (int a = attr->axis + gone; a < x->n_axes && n < DT_MAX_AXES; a++)
        y->extent[n++] = x->extent[a];
    y->n_axes = x->n_axes - gone + (attr->step == DTI_VIEW_SPLIT ? 2 : attr->step != DTI_VIEW_DROP);
    DT_CHECK(y->n_axes <= DT_MAX_AXES, DT_ERR_SHAPE, "reshape: %d axes, at most %d are possible",
             y->n_axes, DT_MAX_AXES);
    return DT_OK;
}

/* Does only one mesh dim cut what becomes or was packed? Then blocks are cut once. */
static bool is_cut_once(const dti_op_call *call, int axis)
{
    return dti_layout_cuts(call->in[0]->layout, axis, (int[DT_MAX_DIMS]){ 0 }) == 1;
}

/* `outer` rows of `inner` elements become one axis. A cut of whole rows stays one; of a cut of each
 * row a rank has its part of every row: the result is packed, a block for each. */
static dt_status merge_cut(dti_op_call *call, int m)
{
    const dti_view_attr *attr = call->attr;
    const dt_placement p = call->in_place[0][m];
    dt_placement *y = &call->out_place[m];
    char text[DTI_PLACEMENT_BYTES];

    y->axis = attr->axis;
    if (p.axis == attr->axis && p.n_offsets == 0 && p.n_blocks == 0) {
        if (!dti_mul_i64(y->unit, attr->inner, &y->unit)) y->unit = INT64_MAX; /* one part */
        return DT_OK;
    }
    if (p.axis == attr->axis + 1 && p.n_offsets == 0 && p.n_blocks == 0 &&
        attr->outer <= DT_MAX_RUNS && is_cut_once(call, attr->axis + 1) &&
        dti_layout_cuts(call->in[0]->layout, attr->axis, (int[DT_MAX_DIMS]){ 0 }) == 0) {
        for (int64_t i = 0; i < attr->outer; i++) call->numbers[i] = attr->inner;
        if (attr->outer > 1) {
            y->blocks = call->numbers;
            y->n_blocks = (int)attr->outer;
        }
        return DT_OK;
    }
    if (attr->inner == 1 && p.axis == attr->axis) return DT_OK;
    return dti_op_clash(call, m,
                        "operand 0 is %s: where %lld rows of %lld elements become one axis, what a "
                        "rank has of it is neither one run nor a part of each of at most %d blocks",
                        dti_placement_words(&p, text), (long long)attr->outer,
                        (long long)attr->inner, DT_MAX_RUNS);
}

/* One axis becomes `outer` rows of `inner` elements. */
static dt_status split_cut(dti_op_call *call, int m)
{
    const dti_view_attr *attr = call->attr;
    const dt_placement p = call->in_place[0][m];
    dt_placement *y = &call->out_place[m];
    bool rows = p.n_blocks == attr->outer && p.units == NULL; /* each block is a row */
    char text[DTI_PLACEMENT_BYTES];

    for (int i = 0; i < p.n_blocks; i++) rows = rows && p.blocks[i] == attr->inner;
    if (p.n_blocks > 0 && rows && is_cut_once(call, attr->axis)) {
        *y = DT_SHARD_UNITS(attr->axis + 1, p.unit);
        y->replicas = p.replicas;
        return DT_OK;
    }
    if (attr->outer == 1) {
        y->axis = attr->axis + 1;
        return DT_OK;
    }
    if (attr->inner == 1) return DT_OK;
    if (p.n_blocks == 0 && p.n_offsets == 0 && p.unit % attr->inner == 0) {
        y->unit = p.unit / attr->inner;
        return DT_OK;
    }
    return dti_op_clash(call, m,
                        "operand 0 is %s, which splits rows of %lld elements: a cut by "
                        "DT_SHARD_UNITS(%d, %lld) keeps them together",
                        dti_placement_words(&p, text), (long long)attr->inner, p.axis,
                        (long long)attr->inner);
}

dt_status dti_view_shard(dti_op_call *call)
{
    const dti_view_attr *attr = call->attr;
    const dt_layout *x = call->in[0]->layout;
    const int merged = attr->step == DTI_VIEW_MERGE;
    char text[DTI_PLACEMENT_BYTES];

    for (int m = 0; m < x->n_dims; m++) {
        const dt_placement p = call->in_place[0][m];
        call->out_place[m] = p;
        if (p.kind != DT_PLACE_SHARD || p.axis < attr->axis) continue;
        if (x->dim_size[m] == 1 && p.axis <= attr->axis + merged) { /* cuts nothing */
            call->out_place[m] = DT_REPLICATE;
        } else if (attr->step == DTI_VIEW_INSERT) {
            call->out_place[m].axis++;
        } else if (p.axis > attr->axis + merged) {
            call->out_place[m].axis += attr->step == DTI_VIEW_SPLIT ? 1 : -1;
        } else if (attr->step == DTI_VIEW_DROP) {
            DT_TRY(dti_op_clash(call, m, "operand 0 is %s, an axis of one element that goes",
                                dti_placement_words(&p, text)));
        } else {
            DT_TRY(merged ? merge_cut(call, m) : split_cut(call, m));
        }
    }
    return DT_OK;
}

/* --- concat ----------------------------------------------------------------------------------- */

dt_status dti_concat_extents(dt_op_shapes *call)
{
    const dti_concat_attr *attr = call->attr;
    dt_op_shape *y = &call->out[0];

    DT_TRY(check_axis(call, attr->axis));
    *y = (dt_op_shape){ y->dtype, call->in[0].n_axes, { 0 } };
    for (int i = 0; i < call->n_in; i++) {
        const dt_op_shape *x = &call->in[i];
        for (int a = 0; a < y->n_axes; a++) {
            if (a == attr->axis) {
                DT_CHECK(x->extent[a] <= INT64_MAX - y->extent[a], DT_ERR_SHAPE,
                         "concat along axis %d: operands 0 to %d have more than 2^63 rows", a, i);
                y->extent[a] += x->extent[a];
                continue;
            }
            DT_CHECK(i == 0 || y->extent[a] == x->extent[a], DT_ERR_SHAPE,
                     "concat along axis %d: axis %d is %lld in operand 0 but %lld in operand %d",
                     (int)attr->axis, a, (long long)y->extent[a], (long long)x->extent[a], i);
            y->extent[a] = x->extent[a];
        }
    }
    return DT_OK;
}

/* Each operand is cut on its own, and so a rank has its part of every block of the result. */
static dt_status concat_cut(dti_op_call *call, int m)
{
    const dti_concat_attr *attr = call->attr;
    const dt_placement cut = call->out_place[m];
    char text[DTI_PLACEMENT_BYTES];

    for (int i = 0; i < call->n; i++) {
        int dims[DT_MAX_DIMS];
        if (cut.n_offsets > 0 || cut.n_blocks > 0 ||
            dti_layout_cuts(call->in[i]->layout, (int)attr->axis, dims) > 1)
            return dti_op_clash(call, m,
                                "operand %d is %s: operands that are joined along a cut axis are "
                                "cut into chunks, by one mesh dim",
                                i, dti_placement_words(&cut, text));
        call->numbers[i] = attr->extent[i];
    }
    call->out_place[m].blocks = call->numbers;
    call->out_place[m].n_blocks = call->n;
    return DT_OK;
}

dt_status dti_concat_shard(dti_op_call *call)
{
    const dti_concat_attr *attr = call->attr;
    const dt_layout *grid = call->in[0]->layout;

    DT_TRY(dti_shard_letters(call));
    for (int m = 0; m < grid->n_dims; m++)
        if (grid->dim_size[m] > 1 && call->out_place[m].kind == DT_PLACE_SHARD &&
            call->out_place[m].axis == attr->axis)
            DT_TRY(concat_cut(call, m));
    return DT_OK;
}

/* --- pad -------------------------------------------------------------------------------------- */

dt_status dti_pad_extents(dt_op_shapes *call)
{
    const dti_pad_attr *attr = call->attr;
    int64_t extent;

    DT_TRY(check_axis(call, attr->axis));
    extent = call->in[0].extent[attr->axis];
    DT_CHECK(attr->before >= 0 && attr->after >= 0, DT_ERR_ARG,
             "pad: %lld elements before and %lld behind axis %d", (long long)attr->before,
             (long long)attr->after, (int)attr->axis);
    DT_CHECK(attr->before <= INT64_MAX - extent && attr->after <= INT64_MAX - extent - attr->before,
             DT_ERR_SHAPE, "pad: %lld and %lld elements around %lld of axis %d exceed 2^63",
             (long long)attr->before, (long long)attr->after, (long long)extent, (int)attr->axis);
    call->out[0].extent[attr->axis] += attr->before + attr->after;
    return DT_OK;
}

/* Ranks keep their rows: the first part grows by what comes before, the last by what comes behind.
 */
static dt_status pad_cut(dti_op_call *call, int m)
{
    const dti_pad_attr *attr = call->attr;
    const dt_placement p = call->in_place[0][m];
    const int size = call->in[0]->layout->dim_size[m], parts = size / p.replicas;
    dt_placement *y = &call->out_place[m];
    char text[DTI_PLACEMENT_BYTES];

    if (!is_cut_once(call, attr->axis) || p.n_blocks > 0 || parts >= DTI_CALL_NUMBERS)
        return dti_op_clash(call, m,
                            "operand 0 is %s: an axis that is padded is cut by one mesh dim, into "
                            "parts without blocks",
                            dti_placement_words(&p, text));
    *y = DT_SHARD(attr->axis);
    y->replicas = p.replicas;
    y->offsets = call->numbers;
    y->n_offsets = parts + 1;
    for (int k = 0; k < parts; k++) {
        int64_t begin, end;
        dti_shard_range(&p, attr->extent, size, k * p.replicas, &begin, &end);
        call->numbers[k] = k == 0 ? 0 : begin + attr->before;
    }
    call->numbers[parts] = attr->extent + attr->before + attr->after;
    return DT_OK;
}

/* Zeros fit terms of a sum; a number would be added once for each of them. */
dt_status dti_pad_shard(dti_op_call *call)
{
    const dti_pad_attr *attr = call->attr;
    const dt_layout *x = call->in[0]->layout;
    char text[DTI_PLACEMENT_BYTES];

    for (int m = 0; m < x->n_dims; m++) {
        const dt_placement *p = &call->in_place[0][m];
        call->out_place[m] = *p;
        if (is_cut_at(call, m, attr->axis)) DT_TRY(pad_cut(call, m));
        if (dti_has(x->partial_dims, m) && attr->bits != 0 &&
            (p->reduce == DT_SUM || p->reduce == DT_PROD))
            DT_TRY(dti_op_clash(call, m,
                                "operand 0 is %s and the padding not zero: it must be "
                                "reduced",
                                dti_placement_words(&x->place[m], text)));
    }
    return DT_OK;
}

/* --- index_select ----------------------------------------------------------------------------- */

dt_status dti_index_select_extents(dt_op_shapes *call)
{
    const int64_t axis = ((const dti_axis_attr *)call->attr)->axis;

    DT_TRY(check_axis(call, axis));
    call->out[0].extent[axis] = call->in[1].extent[0];
    return DT_OK;
}

/* A rank of a cut axis has some of the wanted rows and writes zeros for the others. */
static dt_status select_dim(dti_op_call *call, int m)
{
    const int axis = (int)((const dti_axis_attr *)call->attr)->axis;
    const dt_placement x = call->in_place[0][m], ids = call->in_place[1][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    if (ids.kind == DT_PLACE_PARTIAL)
        return dti_op_clash(call, m, "operand 1 is %s and must be reduced",
                            dti_placement_words(&ids, one));
    if (ids.kind == DT_PLACE_SHARD) {
        if (x.kind != DT_PLACE_REPLICATE)
            return dti_op_clash(call, m,
                                "operand 0 is %s and operand 1 is %s, another axis of the "
                                "result",
                                dti_placement_words(&x, one), dti_placement_words(&ids, two));
        call->out_place[m] = ids;
        call->out_place[m].axis = axis;
        return DT_OK;
    }
    call->out_place[m] = x;
    if (!is_cut_at(call, m, axis)) return DT_OK;
    if (dti_op_counts_copies(call, m, &x))
        return dti_op_clash(call, m, "operand 0 is %s: summing its rows would count copies",
                            dti_placement_words(&x, one));
    call->out_place[m] = DT_PARTIAL(DT_SUM);
    call->reduced = true;
    return DT_OK;
}

dt_status dti_index_select_shard(dti_op_call *call)
{
    return dti_shard_dims(call, select_dim);
}

/* dy [..., n, ...], ids [n] -> [..., extent, ...] */
dt_status dti_index_select_backward_extents(dt_op_shapes *call)
{
    const dti_select_backward_attr *attr = call->attr;

    DT_TRY(check_axis(call, attr->axis));
    DT_CHECK(attr->extent >= 0, DT_ERR_ARG, "index_select_backward: an axis of %lld rows",
             (long long)attr->extent);
    DT_CHECK(call->in[0].extent[attr->axis] == call->in[1].extent[0], DT_ERR_SHAPE,
             "index_select_backward: %lld rows along axis %lld, but %lld ids",
             (long long)call->in[0].extent[attr->axis], (long long)attr->axis,
             (long long)call->in[1].extent[0]);
    call->out[0].extent[attr->axis] = attr->extent;
    return DT_OK;
}

/* The rows that were selected are cut, and so are their ids: terms of a sum. */
static dt_status scatter_cut(dti_op_call *call, int m)
{
    const int axis = (int)((const dti_select_backward_attr *)call->attr)->axis;
    const dt_layout *dy = call->in[0]->layout, *ids = call->in[1]->layout;
    dt_placement *x = &call->in_place[0][m], *i = &call->in_place[1][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];
    const bool both = dti_layout_cuts(ids, 0, (int[DT_MAX_DIMS]){ 0 }) > 0 &&
                      dti_layout_cuts(dy, axis, (int[DT_MAX_DIMS]){ 0 }) > 0;

    if ((both && !dti_layout_same_cuts(dy, axis, ids, 0)) || dti_op_counts_copies(call, m, x) ||
        dti_op_counts_copies(call, m, i))
        return dti_op_clash(call, m, "operand 0 is %s and operand 1 is %s, cut elsewhere",
                            dti_placement_words(x, one), dti_placement_words(i, two));
    if (x->kind == DT_PLACE_REPLICATE) *x = *i;
    if (i->kind == DT_PLACE_REPLICATE) *i = *x;
    x->axis = axis;
    i->axis = 0;
    call->out_place[m] = DT_PARTIAL(DT_SUM);
    call->reduced = true;
    return DT_OK;
}

static dt_status scatter_dim(dti_op_call *call, int m)
{
    const int axis = (int)((const dti_select_backward_attr *)call->attr)->axis;
    const dt_placement x = call->in_place[0][m], ids = call->in_place[1][m];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES];

    if (ids.kind == DT_PLACE_PARTIAL ||
        (x.kind == DT_PLACE_PARTIAL && x.reduce != DT_SUM && x.reduce != DT_AVG))
        return dti_op_clash(call, m, "operand 0 is %s and operand 1 is %s",
                            dti_placement_words(&x, one), dti_placement_words(&ids, two));
    if (is_cut_at(call, m, axis) || (x.kind == DT_PLACE_REPLICATE && ids.kind == DT_PLACE_SHARD))
        return scatter_cut(call, m);
    if (ids.kind == DT_PLACE_SHARD)
        return dti_op_clash(call, m, "operand 0 is %s and operand 1 is %s",
                            dti_placement_words(&x, one), dti_placement_words(&ids, two));
    call->out_place[m] = x;
    return DT_OK;
}

dt_status dti_index_select_backward_shard(dti_op_call *call)
{
    return dti_shard_dims(call, scatter_dim);
}
