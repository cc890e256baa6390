/* SPDX-License-Identifier: Apache-2.0 */
#include "placements/plan_edges.h"

typedef struct walker {
    const dt_layout *at;
    const dt_layout *to;
    const dti_cost_model *model;
    void (*take)(void *arg, const dti_move_step *step);
    void *arg;
} walker;

static void take(const walker *w, dti_move_kind kind, uint32_t dims, const dt_layout *to)
{
    dti_move_step s = {
        .kind = kind, .dims = dims, .reduce = DT_SUM, .divisor = 1, .from = w->at, .to = to
    };

    if (to->table_axes != 0 && !dti_layout_fits(to, w->model->shape)) return;
    if (kind == DTI_MOVE_EXCHANGE) {
        s.dims = dti_move_exchange_dims(w->at, to);
        /* Ranks would read one term of several, or take it for the value. */
        if ((dti_layout_terms(w->at) & (s.dims | ~to->partial_dims)) != 0) return;
        if (s.dims == 0) s.kind = DTI_MOVE_LOCAL_SLICE;
        s.gathers = dti_move_is_gather(w->at, to, s.dims);
    } else if (kind != DTI_MOVE_LOCAL_SLICE) {
        dti_move_set_reduction(&s);
    }
    if (s.kind == DTI_MOVE_LOCAL_SLICE) s.same_piece = dti_layout_same_pieces(w->at, to);
    w->take(w->arg, &s);
}

/* The cuts to try on a mesh dim: every axis that has rows to cut, and what the target wants. */
typedef struct choices {
    int n;
    dt_placement place[DT_MAX_AXES + 1];
} choices;

static void choices_of(const walker *w, int m, choices *out)
{
    const dt_placement *want = &w->to->place[m];

    out->n = 0;
    for (int a = 0; a < w->to->n_axes; a++)
        if (w->model->shape[a] > 1) out->place[out->n++] = DT_SHARD(a);
    if (!dti_has(w->to->shard_dims, m)) return;
    if (want->unit > 1 || want->replicas > 1 || want->n_offsets > 0 || want->n_blocks > 0 ||
        w->model->shape[want->axis] <= 1)
        out->place[out->n++] = *want;
    for (int i = 0; i < out->n; i++) out->place[i].order = DT_MAX_DIMS; /* applied last */
}

/* `at` with the cut on mesh dim m, as the last of its axis. */
static bool append(const dt_layout *at, int m, const dt_placement *cut, dt_layout *out)
{
    dt_placement last = *cut;

    last.order = DT_MAX_DIMS;
    return dti_layout_replace(at, m, &last, out) == DT_OK;
}

/* Ranks that hold copies keep a part each: free, and what follows is less. */
static void slices(const walker *w)
{
    dt_layout to;
    choices c;

    for (int m = 0; m < w->at->n_dims; m++) {
        if (w->at->dim_size[m] == 1 || dti_has(w->at->shard_dims | w->at->partial_dims, m))
            continue;
        choices_of(w, m, &c);
        for (int i = 0; i < c.n; i++)
            if (append(w->at, m, &c.place[i], &to)) take(w, DTI_MOVE_LOCAL_SLICE, 0, &to);
    }
}

/* The last cut of each axis goes, or moves to another axis. */
static void exchanges(const walker *w)
{
    const dt_placement whole = DT_REPLICATE;
    dt_layout gathered, to;
    choices c;

    for (int a = 0; a < w->at->n_axes; a++) {
        int cuts[DT_MAX_DIMS];
        const int n = dti_layout_cuts(w->at, a, cuts), m = n > 0 ? cuts[n - 1] : -1;
        if (m < 0 || dti_layout_replace(w->at, m, &whole, &gathered) != DT_OK) continue;
        take(w, DTI_MOVE_EXCHANGE, 0, &gathered);
        choices_of(w, m, &c);
        for (int i = 0; i < c.n; i++)
            if (append(&gathered, m, &c.place[i], &to)) take(w, DTI_MOVE_EXCHANGE, 0, &to);
    }
}

/* All dims of a group become whole. */
static void all_reduce(const walker *w, uint32_t group)
{
    dt_layout to = *w->at;

    for (int m = 0; m < to.n_dims; m++)
        if (dti_has(group, m)) to.place[m] = dti_placement_reduced(&to.place[m]);
    if (dti_layout_normalise(&to, w->at->order) == DT_OK) take(w, DTI_MOVE_ALL_REDUCE, group, &to);
}

/* All dims of a group cut one axis, outer dims first, or lie as the target wants them. Terms of a
 * Shard go where their holders' pieces lie within theirs. */
static void reduce_scatter(const walker *w, uint32_t group, int axis)
{
    const uint32_t terms = group & dti_layout_terms(w->at);
    dt_layout to = *w->at, next;

    if (terms != 0 && terms != group) return;
    for (int i = 0; i < to.n_dims; i++) {
        const int m = axis < 0 ? w->to->order[i] : i; /* the target's cuts in its order */
        dt_placement cut = axis < 0 ? w->to->place[m] : DT_SHARD(axis);
        if (!dti_has(group, m)) continue;
        if (cut.kind != DT_PLACE_SHARD || cut.replicas > 1 || !append(&to, m, &cut, &next)) return;
        to = next;
    }
    if (terms != 0 && !((to.table_axes == 0 || dti_layout_fits(&to, w->model->shape)) &&
                        dti_move_nests(w->at, &to, w->model->shape)))
        return;
    take(w, DTI_MOVE_REDUCE_SCATTER, group, &to);
}

static void reductions(const walker *w, uint32_t open)
{
    int n_open = 0;

    for (int m = 0; m < w->at->n_dims; m++) n_open += dti_has(open, m);
    /* all subsets of up to four dims; of more only single dims and all together */
    for (uint32_t group = open; group != 0; group = (group - 1) & open) {
        if (n_open > 4 && group != open && (group & (group - 1)) != 0) continue;
        all_reduce(w, group);
        for (int axis = -1; axis < w->at->n_axes; axis++)
            if (axis < 0 || w->model->shape[axis] > 1) reduce_scatter(w, group, axis);
    }
}

void dti_plan_edges(const dt_layout *at, const dt_layout *to, const dti_cost_model *model,
                    void (*take_step)(void *arg, const dti_move_step *step), void *arg)
{
    const uint32_t open = at->partial_dims & ~to->partial_dims;
    const walker w = { at, to, model, take_step, arg };

    if (open == 0) { /* one exchange moves the least; by far links it may be dear */
        take(&w, DTI_MOVE_EXCHANGE, 0, to);
        if (!dti_links_equal(model, at)) {
            exchanges(&w);
            slices(&w);
        }
        return;
    }
    reductions(&w, open);
    slices(&w);
    exchanges(&w);
}
