/* SPDX-License-Identifier: Apache-2.0
 *
 * A schedule on ranks that are more than their cores: whoever has something to compute gets an
 * equal share of them. What dt_pipeline_simulate() says where each rank has its own. */
#include "planner/shared_cores.h"

#include <math.h>

#include "base/memory.h"

/* Less than this is nothing, in seconds. */
static const double NOTHING = 1e-12;

typedef enum phase { IDLE, WORKING, WAITING } phase;

typedef struct worker {
    phase phase;
    int at;       /* of its row */
    double left;  /* WORKING: seconds of a core */
    double until; /* WAITING; IDLE: when what it needs has come; INFINITY: it is not known */
} worker;

typedef struct world {
    const dti_shared_work *work;
    const dt_pipeline_schedule *s;
    worker *ranks;   /* [n_ranks] */
    double *made[2]; /* [n_stages, n_microbatches] outputs, gradients of inputs; -1: not yet */
    int n_ranks, n_stages, n_microbatches;
    double now;
} world;

static const dt_action *next_of(const world *w, int rank)
{
    int n;
    const dt_action *row = dt_pipeline_schedule_row(w->s, rank, &n);

    return w->ranks[rank].at < n ? &row[w->ranks[rank].at] : NULL;
}

static double *made_by(const world *w, const dt_action *a, int stage)
{
    return &w->made[a->kind != DT_ACTION_F][stage * w->n_microbatches + a->microbatch];
}

static double arrival(const world *w, const dt_action *a)
{
    const int from = a->kind == DT_ACTION_F   ? a->stage - 1
                     : a->kind == DT_ACTION_W ? -1
                                              : a->stage + 1;
    double made;

    if (from < 0 || from == w->n_stages) return 0;
    made = *made_by(w, a, from);
    if (made < 0) return INFINITY;
    return dt_pipeline_schedule_rank_of(w->s, from) == dt_pipeline_schedule_rank_of(w->s, a->stage)
               ? made
               : made + w->work->message[from > a->stage ? from : a->stage];
}

static double seconds_of(const dti_shared_work *work, const dt_action *a)
{
    const double i = work->i[a->stage], w = work->w[a->stage];

    return a->kind == DT_ACTION_F   ? work->f[a->stage]
           : a->kind == DT_ACTION_I ? i
           : a->kind == DT_ACTION_W ? w
                                    : i + w;
}

/* Whoever can begin does. */
static int begin_all(world *w)
{
    int working = 0;

    for (int r = 0; r < w->n_ranks; r++) {
        worker *k = &w->ranks[r];
        const dt_action *a = next_of(w, r);
        if (k->phase == IDLE) k->until = a != NULL ? arrival(w, a) : INFINITY;
        if (k->phase == IDLE && k->until <= w->now) {
            k->phase = WORKING;
            k->left = seconds_of(w->work, a);
        }
        working += k->phase == WORKING;
    }
    return working;
}

/* To the next moment at which something ends or comes. False: there is none. */
static bool advance(world *w)
{
    const int working = begin_all(w);
    const double rate = working > 0 ? fmin(1, w->work->cores / working) : 1;
    double step = INFINITY;

    for (int r = 0; r < w->n_ranks; r++) {
        const worker *k = &w->ranks[r];
        step = fmin(step, k->phase == WORKING ? k->left / rate : k->until - w->now);
    }
    if (isinf(step)) return false;
    w->now += step;
    for (int r = 0; r < w->n_ranks; r++) {
        worker *k = &w->ranks[r];
        const dt_action *a = next_of(w, r);
        if (k->phase == WORKING) k->left -= step * rate;
        if (k->phase == WORKING && k->left < NOTHING) {
            k->phase = WAITING;
            k->until = w->now + (a->kind == DT_ACTION_F   ? w->work->f_wait[a->stage]
                                 : a->kind == DT_ACTION_W ? 0
                                                          : w->work->b_wait[a->stage]);
        }
        if (k->phase != WAITING || k->until > w->now + NOTHING) continue;
        if (a->kind != DT_ACTION_W) *made_by(w, a, a->stage) = w->now;
        k->phase = IDLE;
        k->at++;
    }
    return true;
}

dt_status dti_shared_makespan(const dt_pipeline_schedule *s, const dti_shared_work *work,
                              double *out)
{
    world w = { .work = work,
                .s = s,
                .n_ranks = dt_pipeline_schedule_ranks(s),
                .n_stages = dt_pipeline_schedule_stages(s),
                .n_microbatches = dt_pipeline_schedule_microbatches(s) };
    const size_t n = (size_t)w.n_stages * (size_t)w.n_microbatches;
    dti_arena arena = DTI_ARENA_INIT;
    dt_status st;

    DT_TRY_TO(done, st,
              dti_arena_alloc(&arena, (size_t)w.n_ranks * sizeof *w.ranks, (void **)&w.ranks));
    for (int k = 0; k < 2; k++)
        DT_TRY_TO(done, st, dti_arena_alloc(&arena, n * sizeof(double), (void **)&w.made[k]));
    for (int r = 0; r < w.n_ranks; r++) w.ranks[r] = (worker){ .phase = IDLE };
    for (size_t i = 0; i < n; i++) w.made[0][i] = w.made[1][i] = -1;
    while (advance(&w)) continue;
    *out = w.now;
done:
    dti_arena_free(&arena);
    return st;
}
