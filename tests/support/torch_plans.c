/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/torch_plans.h"

#include <string.h>

enum { MAX_DIMS = 3, MAX_STEPS = 64, MAX_STATES = 4096, WHOLE = -1, TERMS = -2 };

/* What each mesh dim does (an axis, WHOLE or TERMS), and the dims in the order their cuts apply. */
typedef struct torch_state {
    int at[MAX_DIMS];
    int n_cuts;
    int cuts[MAX_DIMS];
} torch_state;

typedef struct problem {
    const dt_layout *from;
    const dt_layout *to;
    const int64_t *shape;
    double bytes; /* of the whole tensor */
    int n_dims;
} problem;

bool torch_can_say(const dt_layout *l)
{
    if (l->n_dims > MAX_DIMS) return false;
    for (int m = 0; m < l->n_dims; m++) {
        const dt_placement *p = &l->place[m];
        if (p->kind == DT_PLACE_SHARD &&
            (p->unit > 1 || p->replicas > 1 || p->n_offsets > 0 || p->n_blocks > 0))
            return false;
    }
    return true;
}

static torch_state state_of(const dt_layout *l)
{
    torch_state s = { { 0 }, 0, { 0 } };

    for (int i = 0; i < l->n_dims; i++) {
        const int m = l->order[i];
        s.at[m] = l->partial_dims >> m & 1u ? TERMS : WHOLE;
        if (!(l->shard_dims >> m & 1u)) continue;
        s.at[m] = l->place[m].axis;
        s.cuts[s.n_cuts++] = m;
    }
    return s;
}

static void set(torch_state *s, int m, int at)
{
    int n = 0;

    for (int i = 0; i < s->n_cuts; i++)
        if (s->cuts[i] != m) s->cuts[n++] = s->cuts[i];
    s->at[m] = at;
    if (at >= 0) s->cuts[n++] = m;
    s->n_cuts = n;
}

/* Cuts of different axes commute, so states are compared axis by axis. */
static bool same(const problem *p, const torch_state *a, const torch_state *b)
{
    if (memcmp(a->at, b->at, (size_t)p->n_dims * sizeof a->at[0]) != 0) return false;
    for (int axis = 0; axis < p->from->n_axes; axis++)
        for (int i = 0, k = 0;; i++, k++) {
            while (i < a->n_cuts && a->at[a->cuts[i]] != axis) i++;
            while (k < b->n_cuts && b->at[b->cuts[k]] != axis) k++;
            if (i == a->n_cuts || k == b->n_cuts) break;
            if (a->cuts[i] != b->cuts[k]) return false;
        }
    return true;
}

/* The layout of a state; reductions as in `from`. */
static void layout_of(const problem *p, const torch_state *s, dt_layout *out)
{
    int order[DT_MAX_DIMS], n = 0;

    *out = *p->from;
    for (int i = 0; i < s->n_cuts; i++) order[n++] = s->cuts[i];
    for (int m = 0; m < p->n_dims; m++) {
        out->place[m] = s->at[m] == WHOLE   ? DT_REPLICATE
                        : s->at[m] == TERMS ? p->from->place[m]
                                            : DT_SHARD(s->at[m]);
        if (s->at[m] < 0) order[n++] = m;
    }
    if (dti_layout_normalise(out, order) != DT_OK) out->n_dims = 0;
}

typedef struct torch_path {
    int n;
    torch_state state[MAX_STEPS + 1];
} torch_path;

static int changed_dim(const problem *p, const torch_state *a, const torch_state *b)
{
    for (int m = 0; m < p->n_dims; m++)
        if (a->at[m] != b->at[m]) return m;
    return -1;
}

/* The busiest rank's bytes, step by step. */
static int64_t path_bytes(const problem *p, const torch_path *path, size_t element_bytes)
{
    dti_cost_model model = { .shape = p->shape, .element_bytes = element_bytes };
    dti_probes probes;
    double sum = 0;

    for (int m = 0; m < p->n_dims; m++) model.link[m] = (dt_link){ 0, 1 };
    dti_probes_of(p->from, &probes);
    for (int i = 0; i < path->n; i++) {
        const torch_state *a = &path->state[i], *b = &path->state[i + 1];
        dt_layout from, to;
        dti_move_step step = { .from = &from, .to = &to, .divisor = 1 };
        int m = changed_dim(p, a, b);
        if (m < 0 || p->from->dim_size[m] == 1) continue;
        layout_of(p, a, &from);
        step.dims = 1u << m;
        step.kind = a->at[m] >= 0       ? DTI_MOVE_EXCHANGE
                    : a->at[m] != TERMS ? DTI_MOVE_LOCAL_SLICE
                    : b->at[m] >= 0     ? DTI_MOVE_REDUCE_SCATTER
                                        : DTI_MOVE_ALL_REDUCE;
        while (step.kind == DTI_MOVE_ALL_REDUCE && i + 1 < path->n) {
            const torch_state *c = &path->state[i + 2];
            m = changed_dim(p, b, c);
            if (m < 0 || b->at[m] != TERMS || c->at[m] != WHOLE) break;
            step.dims |= 1u << m;
            b = c;
            i++;
        }
        layout_of(p, b, &to);
        sum += dti_step_ns(&model, &step, &probes);
    }
    return (int64_t)sum;
}

/* --- greedy ----------------------------------------------------------------------------------- */

static void go(torch_path *path, int m, int at)
{
    torch_state next = path->state[path->n];

    if (next.at[m] == at) return;
    set(&next, m, at);
    path->state[++path->n] = next;
}

/* Are the outer mesh dims that cut `axis` the same in both? */
static bool same_outer(const torch_state *a, const torch_state *b, int m, int axis)
{
    for (int i = 0; i < m; i++)
        if ((a->at[i] == axis) != (b->at[i] == axis)) return false;
    return true;
}

static int64_t greedy_bytes(const problem *p, size_t element_bytes)
{
    const torch_state to = state_of(p->to);
    static _Thread_local torch_path path;

    path.n = 0;
    path.state[0] = state_of(p->from);
    for (int m = p->n_dims - 1; m >= 0 && p->n_dims > 1; m--) {
        const torch_state *now = &path.state[path.n];
        const bool direct = to.at[m] < 0 || same_outer(now, &to, m, to.at[m]);
        if (now->at[m] != to.at[m]) go(&path, m, direct ? to.at[m] : WHOLE);
        /* a cut that stays but whose outer cuts change is lifted too */
        else if (!direct)
            go(&path, m, WHOLE);
    }
    for (int m = 0; m < p->n_dims; m++) go(&path, m, to.at[m]);
    return path_bytes(p, &path, element_bytes);
}

/* --- graph ------------------------------------------------------------------------------------ */

typedef struct node {
    torch_state state;
    double cost;
    int parent;
    bool settled;
} node;

typedef struct graph {
    const problem *p;
    int n;
    node nodes[MAX_STATES];
} graph;

/* Its cost model: bytes as if everything divided, ring formulas, microseconds. */
static double edge_cost(const problem *p, const torch_state *s, int m, int at)
{
    const double n = p->from->dim_size[m], hop = 0.6, base = 6.6, gb = 1e9, bandwidth = 87.7;
    double bytes = p->bytes / gb;

    if (n < 2 || s->at[m] == WHOLE) return 0; /* slices are free */
    for (int i = 0; i < s->n_cuts; i++) bytes /= p->from->dim_size[s->cuts[i]];
    if (s->at[m] == TERMS && at == WHOLE)
        return base + 2 * (n - 1) * hop + 2 * bytes * (n - 1) / n / bandwidth * 1e6;
    if (s->at[m] >= 0 && at == WHOLE) bytes *= n;
    return base + (n - 1) * hop + bytes * (n - 1) / n / bandwidth * 1e6;
}

static void relax(graph *g, int at_node, int m, int at)
{
    torch_state next = g->nodes[at_node].state;
    const double cost = g->nodes[at_node].cost + edge_cost(g->p, &next, m, at);
    int i = 0;

    set(&next, m, at);
    while (i < g->n && !same(g->p, &g->nodes[i].state, &next)) i++;
    if (i == MAX_STATES || (i < g->n && (g->nodes[i].settled || g->nodes[i].cost <= cost))) return;
    g->n += i == g->n;
    g->nodes[i] = (node){ next, cost, at_node, false };
}

/* Is m the last cut of its axis? */
static bool is_last(const torch_state *s, int m)
{
    for (int i = s->n_cuts - 1; i >= 0; i--)
        if (s->at[s->cuts[i]] == s->at[m]) return s->cuts[i] == m;
    return false;
}

static void expand(graph *g, int i, const torch_state *to)
{
    for (int m = 0; m < g->p->n_dims; m++) {
        const torch_state s = g->nodes[i].state;
        if (s.at[m] == TERMS && to->at[m] == TERMS) continue; /* stays: R -> P is of no use */
        if (s.at[m] >= 0 && !is_last(&s, m)) continue;
        if (s.at[m] != WHOLE) relax(g, i, m, WHOLE);
        for (int a = 0; a < g->p->from->n_axes; a++)
            if (a != s.at[m]) relax(g, i, m, a);
    }
}

static int64_t graph_bytes(const problem *p, size_t element_bytes)
{
    static _Thread_local graph g;
    static _Thread_local torch_path path;
    const torch_state to = state_of(p->to);
    int way[MAX_STEPS], n = 0, found = -1;

    g.p = p;
    g.n = 1;
    g.nodes[0] = (node){ state_of(p->from), 0, -1, false };
    while (found < 0) {
        int best = -1;
        for (int i = 0; i < g.n; i++)
            if (!g.nodes[i].settled && (best < 0 || g.nodes[i].cost < g.nodes[best].cost)) best = i;
        if (best < 0) return -1;
        g.nodes[best].settled = true;
        if (same(p, &g.nodes[best].state, &to))
            found = best;
        else
            expand(&g, best, &to);
    }
    for (int i = found; i >= 0 && n < MAX_STEPS; i = g.nodes[i].parent) way[n++] = i;
    path.n = n - 1;
    for (int i = 0; i < n; i++) path.state[i] = g.nodes[way[n - 1 - i]].state;
    return path_bytes(p, &path, element_bytes);
}

torch_bytes torch_plans(const dt_layout *from, const dt_layout *to, const int64_t *shape,
                        size_t element_bytes)
{
    const bool default_order = from->default_order && to->default_order;
    problem p = { from, to, shape, (double)element_bytes, from->n_dims };

    for (int a = 0; a < from->n_axes; a++) p.bytes *= (double)shape[a];
    return (torch_bytes){ default_order ? greedy_bytes(&p, element_bytes) : -1,
                          graph_bytes(&p, element_bytes) };
}
