/* SPDX-License-Identifier: Apache-2.0
 *
 * A miss of the decision cache: checks dtypes, asks the shape and sharding rules of the row,
 * interns the layouts they name. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/ops/cache.h"

void dti_op_shapes_of(const dti_op_key *key, dt_tensor *const *in, int n, dt_op_shapes *out)
{
    out->op = key->op;
    out->attr = (key->op->flags & DT_OP_VALUE_ATTR) != 0 ? NULL : key->attr;
    out->n_in = n;
    out->n_out = (int)key->n_out;
    for (int i = 0; i < n; i++) {
        out->in[i].dtype = in[i]->local.dtype;
        out->in[i].n_axes = in[i]->n_axes;
        memcpy(out->in[i].extent, in[i]->shape, sizeof out->in[i].extent);
    }
}

/* Orders of cuts follow the first operand that has an order of its own. */
static const int *decide_order(const dti_op_call *call)
{
    for (int i = 0; i < call->n; i++)
        if (!call->in[i]->layout->default_order) return call->in[i]->layout->order;
    return NULL;
}

/* The mesh dims that cut axis `axis` of an operand. */
static uint32_t dims_of_cuts(const dt_layout *layout, int axis)
{
    int dims[DT_MAX_DIMS];
    uint32_t bits = 0;

    for (int n = dti_layout_cuts(layout, axis, dims); n > 0; n--) bits |= 1u << dims[n - 1];
    return bits;
}

/* Do mesh dims m and n cut one axis of x, m before n (1), after it (-1), or not (0)? */
static int order_of(const dt_layout *x, int m, int n)
{
    if (!dti_has(x->shard_dims, m) || !dti_has(x->shard_dims, n) ||
        x->place[m].axis != x->place[n].axis)
        return 0;
    for (int k = 0; k < x->n_dims; k++)
        if (x->order[k] == m || x->order[k] == n) return x->order[k] == m ? 1 : -1;
    return 0;
}

/* Of a row whose letters do not say what is cut alike: its lines are for one mesh dim each, so
 * where two of them cut an axis, one is the first in all operands. */
static dt_status check_orders(const dti_op_call *call, const dt_layout *const *want)
{
    for (int i = 1; i < call->n; i++)
        for (int m = 0; m < want[0]->n_dims; m++)
            for (int n = m + 1; n < want[0]->n_dims; n++)
                for (int j = 0; j < i; j++)
                    DT_CHECK(order_of(want[i], m, n) * order_of(want[j], m, n) >= 0, DT_ERR_LAYOUT,
                             "%s \"%s\": operands %d and %d are cut in different orders; "
                             "redistribute one of them",
                             call->op->name, call->op->axes, j, i);
    return DT_OK;
}

/* Two operands that share a letter must be cut at the same rows of it, in the same order. *clash:
 * the mesh dims of cuts that do not fit, which only a call that may move anything gets. */
static dt_status check_cuts(const dti_op_call *call, const dt_layout *const *want, uint32_t *clash)
{
    *clash = 0;
    if (call->op->accepts != NULL) return check_orders(call, want);
    for (int i = 0; i < call->n; i++)
        for (int j = i + 1; j < call->n; j++)
            for (int a = 0; a < call->in[i]->n_axes; a++) {
                const int letter = dti_letter_of(&call->row->letters.in[i], call->in[i]->n_axes, a);
                const int b = dti_axis_of(&call->row->letters.in[j], call->in[j]->n_axes, letter);
                if (dti_spreads(call, i, a) || (b >= 0 && dti_spreads(call, j, b))) continue;
                if (b < 0 || dti_layout_same_cuts(want[i], a, want[j], b)) continue;
                DT_CHECK(call->may_move, DT_ERR_LAYOUT,
                         "%s \"%s\": axis %d of operand %d and axis %d of operand %d are cut in "
                         "different orders; redistribute one of them",
                         call->op->name, call->op->axes, a, i, b, j);
                *clash |= dims_of_cuts(want[i], a) | dims_of_cuts(want[j], b);
            }
    return DT_OK;
}

static bool unchanged(const dt_placement *place, const dt_layout *own)
{
    for (int m = 0; m < own->n_dims; m++)
        if (!dti_placement_equal(&place[m], &own->place[m])) return false;
    return true;
}

/* The layouts that operands have to have. */
static dt_status intern_operands(const dti_op_call *call, dti_layouts *table, dti_decision *d,
                                 const dt_layout **want)
{
    const dt_layout *grid = call->in[0]->layout;

    d->wants_moves = false;
    for (int i = 0; i < call->n; i++) {
        const dt_layout *own = call->in[i]->layout;
        want[i] = own;
        d->in_want[i] = NULL;
        if (unchanged(call->in_place[i], own)) continue;
        DT_TRY(dti_layout_intern(table, grid->n_dims, grid->dim_size, call->in[i]->n_axes,
                                 call->in_place[i], decide_order(call), &want[i]));
        d->in_want[i] = want[i] == own ? NULL : want[i];
        d->wants_moves = d->wants_moves || d->in_want[i] != NULL;
    }
    return DT_OK;
}

/* Interns the layouts of operands and of the result. */
static dt_status intern(dti_op_call *call, dti_decision *d)
{
    const dt_layout *grid = call->in[0]->layout;
    const dt_layout *want[DT_OP_MAX_IN];
    dti_layouts *table;
    uint32_t clash;

    DT_TRY(dti_layouts_of(dt_mesh_runtime(call->in[0]->mesh), &table));
    DT_TRY(intern_operands(call, table, d, want));
    DT_TRY(check_cuts(call, want, &clash));
    if (clash != 0) { /* as dti_op_clash() does: all operands become whole there */
        for (int m = 0; m < grid->n_dims; m++) {
            if ((clash >> m & 1u) == 0) continue;
            for (int i = 0; i < call->n; i++) call->in_place[i][m] = DT_REPLICATE;
            call->out_place[m] = DT_REPLICATE;
        }
        call->reduced = false;
        for (int m = 0; m < grid->n_dims; m++)
            call->reduced = call->reduced || call->out_place[m].kind == DT_PLACE_PARTIAL;
        DT_TRY(intern_operands(call, table, d, want));
        call->may_move = false; /* what does not fit now never will */
        DT_TRY(check_cuts(call, want, &clash));
    }
    DT_CHECK((call->op->flags & DT_OP_INPLACE_LAST) == 0 || d->in_want[call->n - 1] == NULL,
             DT_ERR_LAYOUT,
             "%s \"%s\": operand %d is written in place and must lie as the others are cut; "
             "redistribute it first",
             call->op->name, call->op->axes, call->n - 1);
    DT_TRY(dti_layout_intern(table, grid->n_dims, grid->dim_size, call->out_axes, call->out_place,
                             decide_order(call), &d->out_layout[call->result]));
    return DT_OK;
}

/* A packed piece's rows are not those from offset[] on, which is what most kernels assume. */
static dt_status refuse_packed(dti_op_call *call)
{
    if (call->op->flags & DT_OP_ANY_ROWS) return DT_OK;
    for (int i = 0; i < call->n; i++)
        for (int m = 0; m < call->in[i]->layout->n_dims; m++) {
            const dt_placement *p = &call->in_place[i][m];
            if (p->kind == DT_PLACE_SHARD && p->n_blocks > 0 &&
                call->in[i]->layout->dim_size[m] > 1)
                DT_TRY(dti_op_clash(call, m, "operand %d is packed in %d blocks along axis %d", i,
                                    p->n_blocks, p->axis));
        }
    return DT_OK;
}

/* How operands and one result lie. */
static dt_status decide_result(dti_op_call *call, dti_decision *d)
{
    const uint32_t flags = call->op->flags;
    dt_dtype *dtype = &d->out_dtype[call->result];

    for (int i = 0; i < call->n; i++)
        memcpy(call->in_place[i], call->in[i]->layout->place, sizeof call->in_place[i]);
    DT_TRY(dti_op_take_terms(call));
    DT_TRY(call->op->shard != NULL     ? call->op->shard(call)
           : call->op->accepts != NULL ? dti_shard_accepts(call)
                                       : dti_shard_letters(call));
    DT_TRY(dti_op_give_terms(call));
    DT_TRY(refuse_packed(call));
    DT_TRY(intern(call, d));
    if (call->reduced && !(flags & (DT_OP_EXACT_PARTIAL | DT_OP_REDUCE_MAX)) &&
        (*dtype == DT_BF16 || *dtype == DT_F16))
        *dtype = DT_F32; /* terms of a sum are rounded after it, once */
    return DT_OK;
}

/* Results are decided one by one; operands can only lie in one way for all of them. */
static dt_status decide_results(dti_op_call *call, const dt_op_shapes *shapes, dti_decision *d)
{
    const dt_layout *want[DT_OP_MAX_IN] = { NULL };
    const bool may_move = call->may_move;

    for (int r = 0; r < shapes->n_out; r++) {
        call->result = r;
        call->out_axes = d->out_axes[r] = shapes->out[r].n_axes;
        d->out_dtype[r] = shapes->out[r].dtype;
        call->may_move = may_move;
        call->reduced = false;
        DT_TRY(decide_result(call, d));
        if (r == 0) memcpy(want, d->in_want, sizeof want);
        DT_CHECK(memcmp(want, d->in_want, sizeof want) == 0, DT_ERR_LAYOUT,
                 "%s \"%s\": results 0 and %d want the operands to lie differently; redistribute "
                 "them first",
                 call->op->name, call->op->axes, r);
    }
    return DT_OK;
}

dt_status dti_op_decide(dti_op_cache *cache, const dti_op_key *key, dt_moves moves,
                        dt_tensor *const *in, int n, dti_decision **out)
{
    dti_op_call call = {
        .op = key->op,
        .attr = key->attr,
        .n = n,
        .in = in,
        .spread = key->spread,
        .may_move = moves != DT_MOVES_FORBID,
    };
    const size_t made = (size_t)(DTI_N_MEMOS * key->n_out) * sizeof(dti_op_made);
    dt_status st = DT_OK;
    dt_op_shapes shapes;
    dti_decision *d;

    *out = NULL;
    DT_TRY(dti_op_row(cache, key->op, &call.row));
    DT_CHECK(n == call.row->letters.n_in, DT_ERR_ARG, "%s \"%s\": %d operands given", key->op->name,
             key->op->axes, n);
    DT_CHECK(key->n_out == call.row->letters.n_out, DT_ERR_ARG,
             "%s \"%s\": %d results are asked for; dt_apply() gives one, dt_apply_n() several",
             key->op->name, key->op->axes, (int)key->n_out);
    dti_op_shapes_of(key, in, n, &shapes);
    DT_TRY(dti_row_dtypes(&shapes));
    DT_TRY(dti_row_extents(call.row, &shapes));
    DT_TRY(dti_new(sizeof *d + made, &d));
    DT_TRY_TO(fail, st, decide_results(&call, &shapes, d));
    d->key = *key;
    d->row = call.row;
    *out = d;
    return DT_OK;

fail:
    dti_free(d);
    return st;
}
