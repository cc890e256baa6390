/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule as it runs. Each action needs one that another stage makes, and only that stage's
 * neighbour needs it: so who waits is woken by what he waits for, and no action is looked at more
 * than a few times. */
#include "training/pipeline/walk.h"

typedef struct walk {
    const dt_pipeline_schedule *s;
    const dt_pipeline_costs *costs;
    dt_pipeline_span *spans;
    double *made[2]; /* [n_stages, n_microbatches] when outputs and gradients of inputs were; -1 */
    double *clock;   /* [n_ranks] */
    int *at;         /* [n_ranks] */
    int *ready;      /* [n_ready] a stack of ranks to go on with */
    bool *is_ready;  /* [n_ranks] they are in it */
    int n_ready;
} walk;

int dti_needed_stage(const dt_pipeline_schedule *s, const dt_action *a)
{
    if (a->kind == DT_ACTION_F) return a->stage - 1;
    return a->kind != DT_ACTION_W && a->stage + 1 < s->n_stages ? a->stage + 1 : -1;
}

static double *made_by(const walk *w, const dt_action *a, int stage)
{
    const size_t at = (size_t)stage * (size_t)w->s->n_microbatches + (size_t)a->microbatch;

    return &w->made[dti_is_backward(a->kind)][at];
}

/* When what it needs is at its rank; 0: it needs nothing; -1: not yet. */
static double arrival(const walk *w, const dt_action *a)
{
    const int from = dti_needed_stage(w->s, a);
    const double made = from >= 0 ? *made_by(w, a, from) : 0.0;
    const bool travels = from >= 0 && w->s->rank_of[from] != w->s->rank_of[a->stage];
    const double *each = w->costs->messages;

    if (made < 0.0 || !travels) return made;
    return made + (each != NULL ? each[from > a->stage ? from : a->stage] : w->costs->message);
}

double dti_action_time(const dt_pipeline_costs *c, const dt_action *a)
{
    const int at = c->n == 1 ? 0 : a->stage;
    const double i = c->i != NULL ? c->i[at] : 1.0, w = c->w != NULL ? c->w[at] : 1.0;

    switch (a->kind) {
    case DT_ACTION_F:
        return c->f != NULL ? c->f[at] : 1.0;
    case DT_ACTION_B:
        return i + w;
    case DT_ACTION_I:
        return i;
    case DT_ACTION_W:
        break;
    }
    return w;
}

static void wake(walk *w, int rank)
{
    if (!w->is_ready[rank]) w->ready[w->n_ready++] = rank;
    w->is_ready[rank] = true;
}

/* It has ended: who may wait for it looks again. */
static void hand_on(walk *w, const dt_action *a, double end)
{
    const int to = a->kind == DT_ACTION_F ? a->stage + 1 : a->stage - 1;

    if (a->kind == DT_ACTION_W) return;
    *made_by(w, a, a->stage) = end;
    if (to >= 0 && to < w->s->n_stages) wake(w, w->s->rank_of[to]);
}

/* The rank's next action, or the next two that are overlapped. False: it waits, or is through. */
static bool step(walk *w, int rank)
{
    const int first = w->s->begin[rank] + w->at[rank];
    const dt_action *a = &w->s->actions[first];
    double begin = w->clock[rank], end, took = 0.0;
    int n;

    if (first == w->s->begin[rank + 1]) return false;
    n = a->overlapped && w->costs->together > 0.0 ? 2 : 1;
    for (int k = 0; k < n; k++) {
        const double here = arrival(w, &a[k]);
        if (here < 0.0) return false;
        if (here > begin) begin = here;
        took += dti_action_time(w->costs, &a[k]);
    }
    end = begin + (n == 2 ? took * w->costs->together : took);
    w->at[rank] += n;
    w->clock[rank] = end;
    for (int k = 0; k < n; k++) {
        w->spans[first + k] = (dt_pipeline_span){ begin, end };
        hand_on(w, &a[k], end);
    }
    return true;
}

dt_status dti_pipeline_walk(const dt_pipeline_schedule *s, const dt_pipeline_costs *costs,
                            dt_pipeline_span *spans, int *at, bool *all)
{
    const size_t made = (size_t)s->n_stages * (size_t)s->n_microbatches;
    walk w = { .s = s, .costs = costs, .spans = spans, .at = at };
    dti_arena arena = DTI_ARENA_INIT;
    dt_status st;

    for (int k = 0; k < 2; k++)
        DT_TRY_TO(done, st, dti_arena_alloc(&arena, made * sizeof **w.made, (void **)&w.made[k]));
    DT_TRY_TO(done, st,
              dti_arena_alloc(&arena, (size_t)s->n_ranks * sizeof *w.clock, (void **)&w.clock));
    DT_TRY_TO(done, st,
              dti_arena_alloc(&arena, (size_t)s->n_ranks * sizeof *w.ready, (void **)&w.ready));
    DT_TRY_TO(done, st, dti_arena_alloc(&arena, (size_t)s->n_ranks, (void **)&w.is_ready));
    for (size_t i = 0; i < made; i++) w.made[0][i] = w.made[1][i] = -1.0;
    for (int rank = s->n_ranks - 1; rank >= 0; rank--) {
        at[rank] = 0;
        wake(&w, rank);
    }
    while (w.n_ready > 0) {
        const int rank = w.ready[--w.n_ready];
        w.is_ready[rank] = false;
        while (step(&w, rank)) continue;
    }
    *all = true;
    for (int rank = 0; rank < s->n_ranks; rank++)
        *all = *all && s->begin[rank] + at[rank] == s->begin[rank + 1];
done:
    dti_arena_free(&arena);
    return st;
}
