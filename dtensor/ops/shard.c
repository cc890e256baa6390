/* SPDX-License-Identifier: Apache-2.0
 *
 * The sharding rule that follows from the letters, one mesh dim at a time. Operands cut at one
 * letter stay put; a Replicate operand that has the letter is sliced locally; a letter that reaches
 * the result leaves Shard there, one that vanishes leaves Partial. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/ops/op_rules.h"

dt_status dti_op_clash(dti_op_call *call, int m, const char *fmt, ...)
{
    char text[256];
    va_list args;

    if (call->may_move) {
        for (int i = 0; i < call->n; i++) call->in_place[i][m] = DT_REPLICATE;
        call->out_place[m] = DT_REPLICATE;
        return DT_OK;
    }
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    DT_FAIL(DT_ERR_LAYOUT, "%s \"%s\": on mesh dim \"%s\" %s; redistribute it first",
            call->op->name, call->op->axes, dt_mesh_dim_name(call->in[0]->mesh, m), text);
}

/* Operands of whose sums a linear row's result is the sum: floats. */
static int count_floats(const dti_op_call *call)
{
    int n = 0;

    for (int i = 0; i < call->n; i++) n += dt_dtype_is_float(call->in[i]->local.dtype);
    return n;
}

/* Partial operands on mesh dim m. */
static dt_status shard_partial(dti_op_call *call, int m, int n_partial, int first)
{
    const dt_placement p = call->in_place[first][m];
    const bool sums = p.reduce == DT_SUM || p.reduce == DT_AVG;
    char text[DTI_PLACEMENT_BYTES];

    if ((call->op->flags & DT_OP_LINEAR) && n_partial == count_floats(call)) {
        for (int i = 0; i < call->n; i++)
            if (call->in_place[i][m].kind == DT_PLACE_SHARD)
                return dti_op_clash(call, m, "operand %d is Partial and operand %d is %s", first, i,
                                    dti_placement_words(&call->in_place[i][m], text));
            else if (call->in_place[i][m].kind == DT_PLACE_PARTIAL &&
                     (!sums || call->in_place[i][m].reduce != p.reduce))
                return dti_op_clash(call, m, "operand %d is %s, which does not pass through", i,
                                    dti_placement_words(&call->in_place[i][m], text));
        call->out_place[m] = p;
        return DT_OK;
    }
    if ((call->op->flags & DT_OP_BILINEAR) && n_partial == 1 && sums) {
        for (int i = 0; i < call->n; i++)
            if (call->in_place[i][m].kind == DT_PLACE_SHARD)
                return dti_op_clash(call, m, "operand %d is Partial and operand %d is %s", first, i,
                                    dti_placement_words(&call->in_place[i][m], text));
        call->out_place[m] = p;
        return DT_OK;
    }
    return dti_op_clash(call, m, "operand %d is %s and must be reduced", first,
                        dti_placement_words(&p, text));
}

/* Operands `first` and i are cut on mesh dim m, but not alike. */
static dt_status clash_of_cuts(dti_op_call *call, int m, int first, int i)
{
    const dti_letters *l = &call->row->letters;
    const dt_placement *a = &call->in_place[first][m], *b = &call->in_place[i][m];
    const int of_a = dti_letter_of(&l->in[first], call->in[first]->n_axes, a->axis);
    const int of_b = dti_letter_of(&l->in[i], call->in[i]->n_axes, b->axis);
    const dti_term *y = &l->out[call->result];
    char one[DTI_PLACEMENT_BYTES], two[DTI_PLACEMENT_BYTES], name[DTI_LETTER_BYTES],
        other[DTI_LETTER_BYTES];

    (void)dti_placement_words(a, one);
    (void)dti_placement_words(b, two);
    if (of_a == of_b)
        return dti_op_clash(call, m, "operand %d is %s and operand %d is %s, cut elsewhere", first,
                            one, i, two);
    (void)dti_letter_text(of_a, name);
    (void)dti_letter_text(of_b, other);
    return dti_op_clash(call, m,
                        "operand %d is %s, which cuts %s, and operand %d is %s, which cuts %s: one "
                        "mesh dim cannot cut two axes%s",
                        first, one, name, i, two, other,
                        dti_axis_of(y, call->out_axes, of_a) >= 0 &&
                                dti_axis_of(y, call->out_axes, of_b) >= 0
                            ? " of the result"
                            : "");
}

/* Operand `first` is cut on mesh dim m; the others must agree or be free to slice. */
static dt_status shard_cut(dti_op_call *call, int m, int first)
{
    const dti_letters *l = &call->row->letters;
    const dt_placement cut = call->in_place[first][m];
    const int letter = dti_letter_of(&l->in[first], call->in[first]->n_axes, cut.axis);
    char one[DTI_PLACEMENT_BYTES], name[DTI_LETTER_BYTES];
    int axis;

    (void)dti_letter_text(letter, name);
    if (dti_spreads(call, first, cut.axis))
        return dti_op_clash(call, m,
                            "operand %d is %s along an axis of one element, which the "
                            "others have more of",
                            first, dti_placement_words(&cut, one));
    if (letter < DTI_DOTS && (l->whole >> letter & 1u))
        return dti_op_clash(call, m, "operand %d is %s but %s must be whole", first,
                            dti_placement_words(&cut, one), name);
    for (int i = 0; i < call->n; i++) {
        dt_placement *p = &call->in_place[i][m];
        axis = dti_axis_of(&l->in[i], call->in[i]->n_axes, letter);
        if (axis >= 0 && dti_spreads(call, i, axis)) axis = -1;
        if (p->kind == DT_PLACE_SHARD) {
            if (p->axis != axis || !dti_placement_same_cut(p, &cut))
                return clash_of_cuts(call, m, first, i);
        } else if (axis >= 0) {
            *p = cut;
            p->axis = axis;
        }
    }
    axis = dti_axis_of(&l->out[call->result], call->out_axes, letter);
    call->out_place[m] = cut;
    call->out_place[m].axis = axis;
    if (axis < 0 && cut.replicas == call->in[first]->layout->dim_size[m]) {
        call->out_place[m] = DT_REPLICATE; /* every rank has all of it */
    } else if (axis < 0) {
        if (dti_op_counts_copies(call, m, &cut))
            return dti_op_clash(call, m, "operand %d is %s: summing over %s would count copies",
                                first, dti_placement_words(&cut, one), name);
        call->out_place[m] = DT_PARTIAL((call->op->flags & DT_OP_REDUCE_MAX) ? DT_MAX : DT_SUM);
        call->reduced = true;
    }
    return DT_OK;
}

uint32_t dti_op_spread(dt_tensor *const *in, int n)
{
    uint32_t spread = 0;

    for (int a = 0; a < in[0]->n_axes; a++) {
        int64_t most = 1;
        for (int i = 0; i < n && most == 1; i++)
            if (a < in[i]->n_axes) most = in[i]->shape[a];
        for (int i = 0; i < n && i < DTI_SPREAD_OPERANDS && most != 1; i++)
            if (a < in[i]->n_axes && in[i]->shape[a] == 1) spread |= 1u << (DT_MAX_AXES * i + a);
    }
    return spread;
}

dt_status dti_shard_letters_dim(dti_op_call *call, int m)
{
    int n_partial = 0, first_partial = -1, first_cut = -1;

    for (int i = call->n - 1; i >= 0; i--) {
        const dt_placement *p = &call->in_place[i][m];
        if (p->kind == DT_PLACE_PARTIAL) {
            n_partial++;
            first_partial = i;
        } else if (p->kind == DT_PLACE_SHARD) {
            first_cut = i;
        }
    }
    call->out_place[m] = DT_REPLICATE;
    if (n_partial > 0) return shard_partial(call, m, n_partial, first_partial);
    if (first_cut >= 0) return shard_cut(call, m, first_cut);
    return DT_OK;
}

dt_status dti_shard_dims(dti_op_call *call, dt_status (*dim)(dti_op_call *call, int m))
{
    const dt_layout *grid = call->in[0]->layout;

    for (int m = 0; m < grid->n_dims; m++) {
        call->out_place[m] = DT_REPLICATE;
        if (grid->dim_size[m] > 1) DT_TRY(dim(call, m));
    }
    return DT_OK;
}

dt_status dti_shard_letters(dti_op_call *call)
{
    return dti_shard_dims(call, dti_shard_letters_dim);
}

/* --- terms of a Shard ------------------------------------------------------------------------- */

static bool has_terms(const dti_op_call *call, int i, int m)
{
    return dti_has(dti_layout_terms(call->in[i]->layout), m);
}

/* Each rank's result is what its term makes of it: n operands have terms on a mesh dim. */
static bool passes_terms(const dti_op_call *call, int n)
{
    return ((call->op->flags & DT_OP_LINEAR) && n == count_floats(call)) ||
           ((call->op->flags & DT_OP_BILINEAR) && n == 1) ||
           ((call->op->flags & DT_OP_VIEW) && n == call->n);
}

dt_status dti_op_take_terms(dti_op_call *call)
{
    char text[DTI_PLACEMENT_BYTES];

    call->terms = 0;
    for (int m = 0; m < call->in[0]->layout->n_dims; m++) {
        int n = 0, first = -1;
        for (int i = call->n - 1; i >= 0; i--) {
            if (!has_terms(call, i, m)) continue;
            call->in_place[i][m].terms = false;
            first = i;
            n++;
        }
        if (n == 0) continue;
        if (passes_terms(call, n))
            call->terms |= 1u << m;
        else if (!call->may_move)
            return dti_op_clash(call, m, "operand %d is %s and must be reduced", first,
                                dti_placement_words(&call->in[first]->layout->place[m], text));
    }
    return DT_OK;
}

/* On mesh dim m the rule took the operands as they are, and what results can be terms. */
static bool is_kept(const dti_op_call *call, int m)
{
    const dt_placement *y = &call->out_place[m];
    bool kept = y->kind == DT_PLACE_PARTIAL && y->reduce == DT_SUM;

    for (int i = 0; i < call->n; i++) {
        const dt_placement *own = &call->in[i]->layout->place[m], *p = &call->in_place[i][m];
        if (!has_terms(call, i, m)) continue;
        if (p->kind != own->kind || p->axis != own->axis || !dti_placement_same_cut(p, own))
            return false;
        kept = kept || (y->kind == DT_PLACE_SHARD && y->replicas == own->replicas);
    }
    return kept;
}

dt_status dti_op_give_terms(dti_op_call *call)
{
    for (int m = 0; m < call->in[0]->layout->n_dims; m++) {
        if (!dti_has(call->terms, m)) continue;
        if (!is_kept(call, m)) {
            DT_TRY(dti_op_clash(call, m,
                                "terms that neighbours hold do not pass and must be "
                                "reduced"));
            continue;
        }
        for (int i = 0; i < call->n; i++)
            if (has_terms(call, i, m)) call->in_place[i][m].terms = true;
        call->out_place[m].terms = call->out_place[m].kind == DT_PLACE_SHARD;
    }
    return DT_OK;
}
