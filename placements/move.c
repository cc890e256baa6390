/* SPDX-License-Identifier: Apache-2.0
 *
 * Choosing the steps. One idea carries all of it: a rank holds its target piece of an axis already
 * if the cuts it has are the first cuts of the target, in the same order ("is a start of"). */
#include "placements/move.h"

#include <string.h>

/* A plan being made: `at` is the layout after the last step, `next` after free slices that are not
 * a step yet. */
typedef struct planner {
    dti_layouts *table;
    dti_move *plan;
    const dt_layout *at;
    const dt_layout *next;
    const dt_layout *to;
} planner;

/* True if the cuts of axis `axis` in `a` are the first cuts of that axis in `b`. */
static bool is_start_of(const dt_layout *a, const dt_layout *b, int axis)
{
    int dims[DT_MAX_DIMS];

    return dti_layout_common_cuts(a, axis, b, axis) == dti_layout_cuts(a, axis, dims);
}

/* --- legality --------------------------------------------------------------------------------- */

static dt_status check_grids(const dt_layout *from, const dt_layout *to)
{
    DT_CHECK(from->n_axes == to->n_axes, DT_ERR_ARG,
             "a tensor of %d axes cannot move to a layout of %d axes", from->n_axes, to->n_axes);
    DT_CHECK(from->n_dims == to->n_dims, DT_ERR_ARG,
             "a tensor on %d mesh dims cannot move to a layout of %d mesh dims", from->n_dims,
             to->n_dims);
    for (int m = 0; m < from->n_dims; m++)
        DT_CHECK(from->dim_size[m] == to->dim_size[m], DT_ERR_ARG,
                 "mesh dim %d has %d ranks in the tensor's layout and %d in the wanted one", m,
                 from->dim_size[m], to->dim_size[m]);
    return DT_OK;
}

static dt_status check_partials(const dt_layout *from, const dt_layout *to)
{
    char have[256], want[256], place[64];

    for (int m = 0; m < to->n_dims; m++) {
        if (!dti_has(to->partial_dims & ~to->shard_dims, m)) continue; /* any value has terms */
        if (from->place[m].kind == DT_PLACE_PARTIAL && dti_has(from->partial_dims, m) &&
            from->place[m].reduce == to->place[m].reduce)
            continue;
        (void)dt_layout_print(from, have, sizeof have);
        (void)dt_layout_print(to, want, sizeof want);
        (void)dt_placement_print(&from->place[m], place, sizeof place);
        DT_CHECK(
            dti_has(from->partial_dims, m), DT_ERR_LAYOUT,
            "%s -> %s: Partial(%s) is wanted on mesh dim %d (%d ranks), where the value is %s: "
            "a whole value cannot become terms; ask for Replicate or Shard",
            have, want, dti_reduce_name(to->place[m].reduce), m, to->dim_size[m], place);
        DT_FAIL(
            DT_ERR_LAYOUT,
            "%s -> %s: on mesh dim %d (%d ranks) the value is %s and cannot become Partial(%s); "
            "reduce it first",
            have, want, m, to->dim_size[m], place, dti_reduce_name(to->place[m].reduce));
    }
    return DT_OK;
}

dt_status dti_move_check(const dt_layout *from, const dt_layout *to)
{
    DT_TRY(check_grids(from, to));
    DT_TRY(check_partials(from, to));
    return DT_OK;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* The terms of `to` that `from` does not have, bit m for dim m. Those stay whose cut stays: what a
 * rank reads it reads on other dims, so from one that holds the same term. */
static uint32_t new_terms(const dt_layout *from, const dt_layout *to)
{
    const uint32_t terms = dti_layout_terms(to);

    if (terms == 0) return 0;
    return terms & ~(dti_layout_terms(from) & ~dti_move_exchange_dims(from, to));
}

/* Copies in place of terms on `dims`. */
static dt_status without_terms(const dt_layout *l, uint32_t dims, const dt_layout **out)
{
    dt_layout next = *l;

    for (int m = 0; m < l->n_dims; m++)
        if (dti_has(dims, m)) next.place[m].terms = false;
    *out = l;
    if (dims == 0) return DT_OK;
    DT_TRY(dti_layout_normalise(&next, l->order));
    return dti_layout_intern_key(l->table, &next, out);
}

dt_status dti_move_before_terms(const dt_layout *from, const dt_layout *to, const dt_layout **out)
{
    return without_terms(to, new_terms(from, to), out);
}

void dti_move_keep(dti_move *plan, const dt_layout *copies, const dt_layout *to)
{
    if (copies == to) return;
    DT_ASSERT(plan->n_steps < DTI_MOVE_MAX_STEPS);
    plan->step[plan->n_steps++] = (dti_move_step){
        .kind = DTI_MOVE_KEEP_ONE, .reduce = DT_SUM, .divisor = 1, .from = copies, .to = to
    };
}

static dti_move_step *emit(planner *p, dti_move_kind kind, uint32_t dims, const dt_layout *to)
{
    dti_move_step *s = &p->plan->step[p->plan->n_steps++];

    DT_ASSERT(p->plan->n_steps <= DTI_MOVE_MAX_STEPS);
    *s = (dti_move_step){
        .kind = kind, .dims = dims, .reduce = DT_SUM, .divisor = 1, .from = p->at, .to = to
    };
    p->at = p->next = to;
    return s;
}

static void emit_slice(planner *p, const dt_layout *to)
{
    const bool same = dti_layout_same_pieces(p->at, to);

    emit(p, DTI_MOVE_LOCAL_SLICE, 0, to)->same_piece = same;
}

/* The layout `base` with mesh dim m as in p->to, applied as the last cut of its axis. */
static dt_status with_target(planner *p, const dt_layout *base, int m, const dt_layout **out)
{
    dt_placement want = p->to->place[m];
    dt_layout next;

    want.order = DT_MAX_DIMS; /* more than there are cuts: last */
    DT_TRY(dti_layout_replace(base, m, &want, &next));
    return dti_layout_intern_key(p->table, &next, out);
}

/* True if appending mesh dim m's target cut to p->next leaves a start of the target's cuts: the
 * piece that results is where the target wants it, as far as its axis is cut. */
static bool can_append(const planner *p, int m)
{
    const int axis = p->to->place[m].axis;
    int have[DT_MAX_DIMS], want[DT_MAX_DIMS];
    const int n = dti_layout_cuts(p->next, axis, have);

    return dti_has(p->to->shard_dims, m) && is_start_of(p->next, p->to, axis) &&
           n < dti_layout_cuts(p->to, axis, want) && want[n] == m;
}

/* Takes the slices that cost nothing before a reduction: Replicate dims that the target cuts. */
static dt_status slice_ahead(planner *p)
{
    for (int m = 0; m < p->to->n_dims;) {
        if (dti_has(p->next->shard_dims | p->next->partial_dims, m) || !can_append(p, m)) {
            m++;
            continue;
        }
        DT_TRY(with_target(p, p->next, m, &p->next));
        m = 0; /* one cut may have been waiting for another */
    }
    return DT_OK;
}

/* Reduce-scatter wherever the cut can be appended. Not with replicas: each part would have to be
 * reduced once per copy, which is no less than an all-reduce. */
static dt_status reduce_scatters(planner *p)
{
    for (int m = 0; m < p->to->n_dims;) {
        const dt_layout *to;
        if (!dti_has(p->next->partial_dims & ~p->next->shard_dims, m) || !can_append(p, m) ||
            p->to->place[m].replicas > 1) {
            m++;
            continue;
        }
        if (p->next != p->at) emit_slice(p, p->next);
        DT_TRY(with_target(p, p->at, m, &to));
        dti_move_set_reduction(emit(p, DTI_MOVE_REDUCE_SCATTER, 1u << m, to));
        DT_TRY(slice_ahead(p));
        m = 0;
    }
    return DT_OK;
}

/* All other Partial dims that the target wants whole or cut, as one reduction. */
static dt_status all_reduce(planner *p)
{
    const uint32_t dims = p->at->partial_dims & ~p->to->partial_dims;
    dt_placement place[DT_MAX_DIMS];
    const dt_layout *to;

    if (dims == 0) return DT_OK;
    if (p->next != p->at) emit_slice(p, p->next);
    memcpy(place, p->at->place, sizeof place);
    for (int m = 0; m < p->at->n_dims; m++)
        if (dti_has(dims & p->at->shard_dims, m))
            place[m].terms = false;
        else if (dti_has(dims, m))
            place[m] = dti_has(p->to->shard_dims, m) ? DT_REPLICATE : p->to->place[m];
    DT_TRY(dti_layout_intern(p->table, p->at->n_dims, p->at->dim_size, p->at->n_axes, place,
                             p->at->order, &to));
    dti_move_set_reduction(emit(p, DTI_MOVE_ALL_REDUCE, dims, to));
    return DT_OK;
}

/* The mesh dims a rank has to read over to get its piece of `to`: per axis those cuts of `from`
 * that follow after the common start. All other dims keep their coordinate. */
uint32_t dti_move_exchange_dims(const dt_layout *from, const dt_layout *to)
{
    uint32_t dims = 0;

    for (int axis = 0; axis < from->n_axes; axis++) {
        int cuts[DT_MAX_DIMS];
        const int n = dti_layout_cuts(from, axis, cuts);
        for (int i = dti_layout_common_cuts(from, axis, to, axis); i < n; i++)
            dims |= 1u << cuts[i];
    }
    return dims;
}

/* True if an exchange over `dims` makes axes whole and does nothing else to them: no dim of the
 * group cuts the result, and no axis is both gathered and cut anew. */
bool dti_move_is_gather(const dt_layout *from, const dt_layout *to, uint32_t dims)
{
    if ((to->shard_dims & dims) != 0) return false;
    for (int axis = 0; axis < from->n_axes; axis++)
        if (!is_start_of(from, to, axis) && !is_start_of(to, from, axis)) return false;
    return true;
}

static void last_move(planner *p)
{
    const uint32_t dims = dti_move_exchange_dims(p->at, p->to);
    const bool gathers = dti_move_is_gather(p->at, p->to, dims);

    if (p->at == p->to) return;
    if (dims == 0)
        emit_slice(p, p->to);
    else
        emit(p, DTI_MOVE_EXCHANGE, dims, p->to)->gathers = gathers;
}

dt_status dti_move_plan(dti_layouts *table, const dt_layout *from, const dt_layout *to,
                        dti_move *out)
{
    planner p = { table, out, from, from, to };

    out->n_steps = 0;
    if (from == to) return DT_OK;
    DT_TRY(dti_move_check(from, to));
    DT_TRY(dti_move_before_terms(from, to, &p.to));
    if ((from->partial_dims & ~p.to->partial_dims) != 0) {
        DT_TRY(slice_ahead(&p));
        DT_TRY(reduce_scatters(&p));
        DT_TRY(all_reduce(&p));
    }
    last_move(&p);
    dti_move_settle(out);
    dti_move_keep(out, p.to, to);
    return DT_OK;
}

bool dti_move_is_local(const dt_layout *from, const dt_layout *to)
{
    return from == to || ((from->partial_dims & ~(to->partial_dims & ~new_terms(from, to))) == 0 &&
                          dti_move_exchange_dims(from, to) == 0);
}

const char *dti_move_name(const dti_move_step *step)
{
    switch (step->kind) {
    case DTI_MOVE_LOCAL_SLICE:
        return "local_slice";
    case DTI_MOVE_REDUCE_SCATTER:
        return "reduce_scatter";
    case DTI_MOVE_ALL_REDUCE:
        return "all_reduce";
    case DTI_MOVE_EXCHANGE:
        return step->gathers ? "all_gather" : "all_to_all";
    case DTI_MOVE_KEEP_ONE:
        return "keep_one";
    }
    return "?";
}

/* One collective over several mesh dims. */
static bool is_merged(const dti_move_step *step)
{
    return (step->dims & (step->dims - 1)) != 0;
}

void dti_put_move(dti_writer *w, const dti_move *plan)
{
    for (int i = 0; i < plan->n_steps; i++) {
        if (i == 0) dti_put_layout(w, plan->step[0].from);
        dti_put(w, is_merged(&plan->step[i]) ? "-->" : "->");
        dti_put_layout(w, plan->step[i].to);
    }
}
