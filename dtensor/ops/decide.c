/* SPDX-License-Identifier: Apache-2.0
 *
 * A miss of the decision cache: checks dtypes, asks the shape and sharding rules of the row,
 * interns the layouts they name. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/ops/cache.h"

/* The dtype of the result, after checking the operands against the row's type letters. */
static dt_status decide_dtype(const dti_op_call *call, dt_dtype *out)
{
    const char *types = call->op->types;
    const char result = strchr(types, '>')[1 + call->result];
    dt_dtype model = DT_N_DTYPES;

    for (int i = 0; i < call->n; i++) {
        const dt_dtype t = call->in[i]->local.dtype;
        const bool fits = types[i] == 'F'   ? t == DT_F32 || t == DT_BF16 || t == DT_F16
                          : types[i] == 'x' ? dt_dtype_is_float(t)
                          : types[i] == 'f' ? t == DT_F32
                          : types[i] == 'i' ? t == DT_I32
                                            : t == DT_I64;
        DT_CHECK(fits, DT_ERR_SHAPE,
                 "%s \"%s\": operand %d is %s, which type %c of \"%s\" excludes", call->op->name,
                 call->op->axes, i, dt_dtype_name(t), types[i], types);
        if (types[i] != 'F') continue;
        DT_CHECK(model == DT_N_DTYPES || model == t, DT_ERR_SHAPE,
                 "%s \"%s\": operand %d is %s but operands before it are %s: cast one of them",
                 call->op->name, call->op->axes, i, dt_dtype_name(t), dt_dtype_name(model));
        model = t;
    }
    *out = result == 'F'   ? model
           : result == 'f' ? DT_F32
           : result == 'i' ? DT_I32
           : result == 'k' ? DT_I64
           : result == 'x' ? call->in[0]->local.dtype
                           : *(const dt_dtype *)call->attr;
    DT_CHECK(dt_dtype_size(*out) > 0, DT_ERR_ARG, "%s: %d is no dtype", call->op->name, (int)*out);
    return DT_OK;
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

/* Two operands that share a letter must be cut at the same rows of it, in the same order. *clash:
 * the mesh dims of cuts that do not fit, which only a call that may move anything gets. */
static dt_status check_cuts(const dti_op_call *call, const dt_layout *const *want, uint32_t *clash)
{
    *clash = 0;
    for (int i = 0; i < call->n; i++)
        for (int j = i + 1; j < call->n; j++)
            for (int a = 0; a < call->in[i]->n_axes; a++) {
                const int letter = dti_letter_of(&call->letters->in[i], call->in[i]->n_axes, a);
                const int b = dti_axis_of(&call->letters->in[j], call->in[j]->n_axes, letter);
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
                             decide_order(call), &d->out_layout));
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

static dt_status run_rules(dti_op_call *call)
{
    for (int i = 0; i < call->n; i++)
        memcpy(call->in_place[i], call->in[i]->layout->place, sizeof call->in_place[i]);
    DT_TRY(call->op->infer != NULL ? call->op->infer(call) : dti_infer_letters(call));
    for (int a = 0; a < call->out_axes; a++)
        DT_CHECK(call->out_shape[a] >= 0, DT_ERR_ARG,
                 "operator %s \"%s\": axis %d of the result has "
                 "no extent: the row needs a shape rule of its own",
                 call->op->name, call->op->axes, a);
    DT_TRY(call->op->shard != NULL ? call->op->shard(call) : dti_shard_letters(call));
    DT_TRY(refuse_packed(call));
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
        .result = key->result,
        .may_move = moves != DT_MOVES_FORBID,
    };
    dt_status st = DT_OK;
    dti_decision *d = NULL;

    *out = NULL;
    DT_TRY(dti_op_letters(cache, key->op, &call.letters));
    DT_CHECK(n == call.letters->n_in, DT_ERR_ARG, "%s \"%s\": %d operands given", key->op->name,
             key->op->axes, n);
    DT_CHECK(key->n_out == call.letters->n_out, DT_ERR_ARG,
             "%s \"%s\": %d results are asked for; dt_apply() gives one, dt_apply_n() several",
             key->op->name, key->op->axes, (int)key->n_out);
    DT_TRY(run_rules(&call));
    DT_TRY(dti_new(sizeof *d, &d));
    DT_TRY_TO(fail, st, decide_dtype(&call, &d->out_dtype));
    DT_TRY_TO(fail, st, intern(&call, d));
    if (call.reduced && !(key->op->flags & (DT_OP_EXACT_PARTIAL | DT_OP_REDUCE_MAX)) &&
        (d->out_dtype == DT_BF16 || d->out_dtype == DT_F16))
        d->out_dtype = DT_F32; /* terms of a sum are rounded after it, once */
    d->key = *key;
    d->letters = call.letters;
    d->out_axes = call.out_axes;
    *out = d;
    return DT_OK;

fail:
    dti_free(d);
    return st;
}
