/* SPDX-License-Identifier: Apache-2.0
 *
 * Dijkstra's algorithm over layouts. States are values in an array, so that layouts that are only
 * looked at are never interned; what is found first, by rules (move.c), bounds the search. */
#include "placements/plan.h"

#include <string.h>

#include "base/memory.h"
#include "placements/plan_edges.h"

/* States that are looked at before the best plan found so far is taken. */
enum { MAX_STATES = 4096 };

#define NOT_REACHED_NS 1e300

typedef struct state {
    dt_layout layout;   /* normal form with its hash, not interned */
    double ns;          /* from the beginning */
    dti_move_step step; /* that led here; from and to are not set */
    int parent;         /* index, -1 for the first */
    int next;           /* in the chain of equal hashes, -1: last */
    bool settled;
} state;

enum { N_CHAINS = 1024 };

typedef struct search {
    const dt_layout *from;
    const dt_layout *to;
    const dti_cost_model *model;
    dti_probes probes;
    state *states;
    size_t n_states;
    size_t capacity;
    int chains[N_CHAINS];
    double best_ns;  /* of a whole plan, found by rules or by the search */
    double least_ns; /* that any plan from a state with something to reduce still takes */
    int best;        /* state of the target, -1: none yet */
    bool cut_short;  /* there were more states than are looked at */
    dt_status status;
} search;

double dti_plan_ns(const dti_move *plan, const dti_cost_model *model, const dti_probes *probes)
{
    double ns = 0;

    for (int i = 0; i < plan->n_steps; i++) ns += dti_step_ns(model, &plan->step[i], probes);
    return ns;
}

/* A step's cost. Of equal times the one with fewer steps is taken. */
static double step_cost(const search *s, const dti_move_step *step)
{
    const double tie = step->kind == DTI_MOVE_LOCAL_SLICE ? 0 : 1e-6;

    return dti_step_ns(s->model, step, &s->probes) + tie;
}

static bool fits_memory(const search *s, const dti_move_step *step, bool first)
{
    return s->model->memory_bytes <= 0 ||
           dti_step_peak(s->model, step, s->from, first, &s->probes) <= s->model->memory_bytes;
}

static int find_state(const search *s, const dt_layout *l)
{
    int i = s->chains[l->hash % N_CHAINS];

    while (i >= 0 && !dti_layout_equal(&s->states[i].layout, l)) i = s->states[i].next;
    return i;
}

/* A way of `ns` to `to`, over `step` from state `parent`. */
static dt_status reach(search *s, const dt_layout *to, double ns, const dti_move_step *step,
                       int parent)
{
    int i = find_state(s, to);
    state *x;

    if (i < 0) {
        if (s->n_states >= MAX_STATES) {
            s->cut_short = true;
            return DT_OK;
        }
        DT_TRY(dti_grow((void **)&s->states, &s->capacity, s->n_states + 1, sizeof *s->states));
        i = (int)s->n_states++;
        x = &s->states[i];
        x->layout = *to;
        x->settled = false;
        x->next = s->chains[to->hash % N_CHAINS];
        s->chains[to->hash % N_CHAINS] = i;
    } else {
        x = &s->states[i];
        if (x->settled || x->ns <= ns) return DT_OK;
    }
    x->ns = ns;
    x->step = *step;
    x->parent = parent;
    return DT_OK;
}

/* Called for every step that leads on from the state `arg` says. */
typedef struct edge_arg {
    search *s;
    int at;
} edge_arg;

static void take_edge(void *arg, const dti_move_step *step)
{
    edge_arg *e = arg;
    search *s = e->s;
    const dt_layout *to = step->to;
    dt_layout here;
    dti_move_step edge = *step;

    if (s->status != DT_OK) return;
    dti_move_set_width(&edge, s->from, s->to);
    const double ns = s->states[e->at].ns + step_cost(s, &edge);
    const bool reduces = (to->partial_dims & ~s->to->partial_dims) != 0;
    if (ns + (reduces ? s->least_ns : 0) >= s->best_ns) return;
    if (!fits_memory(s, &edge, e->at == 0)) return;
    here = *to;
    here.hash = dti_layout_hash(&here);
    s->status = reach(s, &here, ns, &edge, e->at);
}

/* The open state of least cost, -1: none that is better than what is known. */
static int next_state(const search *s)
{
    int best = -1;

    for (size_t i = 0; i < s->n_states; i++)
        if (!s->states[i].settled && s->states[i].ns < s->best_ns &&
            (best < 0 || s->states[i].ns < s->states[best].ns))
            best = (int)i;
    return best;
}

static dt_status run_search(search *s)
{
    for (int i = next_state(s); i >= 0; i = next_state(s)) {
        const dt_layout here = s->states[i].layout; /* the array may move */
        edge_arg arg = { s, i };
        s->states[i].settled = true;
        if (dti_layout_equal(&here, s->to)) {
            s->best = i;
            s->best_ns = s->states[i].ns;
            return DT_OK;
        }
        dti_plan_edges(&here, s->to, s->model, take_edge, &arg);
        DT_TRY(s->status);
    }
    return DT_OK;
}

/* --- the plan that was found ------------------------------------------------------------------ */

static dt_status intern_step(dti_move *plan, const dt_layout *from, state *x, const dt_layout **at)
{
    const dt_layout *to;
    dti_move_step *last = plan->n_steps > 0 ? &plan->step[plan->n_steps - 1] : NULL;

    DT_TRY(dti_layout_intern_key(from->table, &x->layout, &to));
    if (last != NULL && last->kind == DTI_MOVE_LOCAL_SLICE && x->step.kind == last->kind) {
        last->to = to; /* two slices are one */
        last->same_piece = dti_layout_same_pieces(last->from, to);
    } else {
        DT_ASSERT(plan->n_steps < DTI_MOVE_MAX_STEPS);
        plan->step[plan->n_steps] = x->step;
        plan->step[plan->n_steps].from = *at;
        plan->step[plan->n_steps].to = to;
        plan->n_steps++;
    }
    *at = to;
    return DT_OK;
}

static dt_status trace_back(search *s, dti_move *out)
{
    int path[DTI_MOVE_MAX_STEPS + DT_MAX_DIMS], n = 0;
    const dt_layout *at = s->from;

    for (int i = s->best; s->states[i].parent >= 0; i = s->states[i].parent) {
        if (n == (int)DT_COUNT(path)) return DT_OK; /* keep the plan by rules */
        path[n++] = i;
    }
    if (n > DTI_MOVE_MAX_STEPS) return DT_OK;
    out->n_steps = 0;
    while (n > 0) DT_TRY(intern_step(out, s->from, &s->states[path[--n]], &at));
    dti_move_settle(out);
    return DT_OK;
}

/* Beats `out`, which is the plan by rules and the best known (best_ns). */
static dt_status improve(search *s, dti_move *out)
{
    const dti_move_step nothing = { .kind = DTI_MOVE_LOCAL_SLICE };
    dt_status st;

    for (int i = 0; i < N_CHAINS; i++) s->chains[i] = -1;
    s->least_ns = dti_least_ns(s->model, s->to, &s->probes);
    s->best = -1;
    st = reach(s, s->from, 0, &nothing, -1);
    if (st == DT_OK) st = reach(s, s->to, NOT_REACHED_NS, &nothing, -1); /* has its place */
    if (st == DT_OK) st = run_search(s);
    if (st == DT_OK && s->best >= 0) st = trace_back(s, out);
    dti_free(s->states);
    DT_TRY(st);
    return DT_OK;
}

/* --- what needs no search --------------------------------------------------------------------- */

/* Nothing to reduce, or one all-reduce that nobody could share: the rules say all there is. Not so
 * for a reduce-scatter: where few ranks get rows, reducing along another axis may be cheaper. */
static bool is_plain(const dt_layout *from, const dt_layout *to, const dti_cost_model *model,
                     const dti_move *by_rules)
{
    const uint32_t reduced = from->partial_dims & ~to->partial_dims;

    if (by_rules->n_steps > 1 || model->memory_bytes > 0) return false;
    if (reduced == 0) return dti_links_equal(model, from);
    if (by_rules->step[0].kind != DTI_MOVE_ALL_REDUCE) return false;
    for (int m = 0; m < from->n_dims; m++) /* copies could share the work */
        if (from->dim_size[m] > 1 && !((from->shard_dims | from->partial_dims) >> m & 1u))
            return false;
    return true;
}

static dt_status fail_memory(const search *s, const dti_move *plan)
{
    int64_t least = 0;

    for (int i = 0; i < plan->n_steps; i++) {
        const int64_t n = dti_step_peak(s->model, &plan->step[i], s->from, i == 0, &s->probes);
        if (n > least) least = n;
    }
    char from[256], to[256];
    (void)dt_layout_print(s->from, from, sizeof from);
    (void)dt_layout_print(s->to, to, sizeof to);
    DT_FAIL(DT_ERR_LAYOUT,
            "%s -> %s: no plan %s within %lld bytes per rank; one that ranks have %lld bytes for "
            "exists",
            from, to, s->cut_short ? "was found that stays" : "stays",
            (long long)s->model->memory_bytes, (long long)least);
}

/* `to` has no terms but those of `from`. */
static dt_status plan_values(const dt_layout *from, const dt_layout *to,
                             const dti_cost_model *model, dti_move *out, bool *any_shape)
{
    search s = { .from = from, .to = to, .model = model };
    bool fits = true;

    DT_TRY(dti_move_plan(from->table, from, to, out));
    if (out->n_steps == 0 || is_plain(from, to, model, out)) return DT_OK;
    *any_shape = false;
    dti_probes_of(from, &s.probes);
    for (int i = 0; i < out->n_steps; i++) {
        fits = fits && fits_memory(&s, &out->step[i], i == 0);
        s.best_ns += step_cost(&s, &out->step[i]);
    }
    if (!fits) s.best_ns = NOT_REACHED_NS;
    s.best = -1;
    DT_TRY(improve(&s, out));
    if (!fits && s.best < 0) return fail_memory(&s, out);
    return DT_OK;
}

dt_status dti_plan(const dt_layout *from, const dt_layout *to, const dti_cost_model *model,
                   dti_move *out, bool *any_shape)
{
    search s = { .from = from, .to = to, .model = model };
    const dt_layout *copies;

    *any_shape = true;
    DT_TRY(dti_move_check(from, to));
    DT_TRY(dti_move_before_terms(from, to, &copies));
    DT_TRY(plan_values(from, copies, model, out, any_shape));
    dti_move_keep(out, copies, to);
    if (copies == to || model->memory_bytes <= 0) return DT_OK;
    *any_shape = false;
    dti_probes_of(from, &s.probes);
    if (!fits_memory(&s, &out->step[out->n_steps - 1], out->n_steps == 1))
        return fail_memory(&s, out);
    return DT_OK;
}
