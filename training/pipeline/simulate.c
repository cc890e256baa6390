/* SPDX-License-Identifier: Apache-2.0
 *
 * What a schedule takes and holds. Time comes of ranks that wait for each other; what a rank holds
 * is a matter of its row alone. */
#include "training/pipeline/simulate.h"

#include <math.h>

#include "base/options.h"
#include "training/pipeline/walk.h"

static dt_status check_times(const dt_pipeline_costs *c, int n_stages)
{
    const double *const times[] = { c->f, c->i, c->w };

    DT_CHECK(c->n == 0 || c->n == 1 || c->n == n_stages, DT_ERR_ARG,
             "%d times for %d stages; give each of them one, or one for all", c->n, n_stages);
    for (int k = 0; k < 3; k++)
        for (int s = 0; times[k] != NULL && s < (c->n == 1 ? 1 : n_stages); s++)
            DT_CHECK(isfinite(times[k][s]) && times[k][s] >= 0.0, DT_ERR_ARG,
                     "%c of stage %d takes %g; times are 0 or more", "FIW"[k], s, times[k][s]);
    DT_CHECK(isfinite(c->message) && c->message >= 0.0, DT_ERR_ARG,
             "a message takes %g; times are 0 or more", c->message);
    for (int s = 1; c->messages != NULL && s < n_stages; s++)
        DT_CHECK(isfinite(c->messages[s]) && c->messages[s] >= 0.0, DT_ERR_ARG,
                 "a message between stages %d and %d takes %g; times are 0 or more", s - 1, s,
                 c->messages[s]);
    DT_CHECK(isfinite(c->together) && c->together >= 0.0, DT_ERR_ARG,
             "two actions together take %g of their time; it is a share, or 0 for one after the "
             "other",
             c->together);
    return DT_OK;
}

static void add_up(dt_pipeline_timing *t, const dt_pipeline_costs *c, int rank)
{
    const dt_pipeline_schedule *s = t->schedule;
    dt_pipeline_rank *r = &t->ranks[rank];
    dti_held held = { 0, 0, 0 };

    for (int i = s->begin[rank]; i < s->begin[rank + 1]; i++) {
        const dt_pipeline_span *span = &t->spans[i];
        const bool second = i > s->begin[rank] && s->actions[i - 1].overlapped && c->together > 0.0;
        const dt_action *a = &s->actions[i];
        const int at = c->n == 1 ? 0 : a->stage;
        dti_hold(&held, a->kind, c->live_bytes != NULL ? c->live_bytes[at] : 0,
                 c->postponed_bytes != NULL ? c->postponed_bytes[at] : 0);
        if (held.live > r->live) r->live = held.live;
        if (held.postponed > r->postponed) r->postponed = held.postponed;
        if (held.bytes > r->bytes) r->bytes = held.bytes;
        if (!second) r->busy += span->end - span->begin;
    }
    r->begin = t->spans[s->begin[rank]].begin;
    r->end = t->spans[s->begin[rank + 1] - 1].end;
    if (r->end > t->total.makespan) t->total.makespan = r->end;
    if (r->busy > t->total.ideal) t->total.ideal = r->busy;
}

static dt_status run(dt_pipeline_timing *t, const dt_pipeline_costs *c)
{
    const dt_pipeline_schedule *s = t->schedule;
    const size_t n_ranks = (size_t)s->n_ranks;
    int *at;
    dt_status st;
    bool all;

    DT_TRY(dti_alloc_array((size_t)s->n, sizeof *t->spans, (void **)&t->spans));
    DT_TRY(dti_alloc_array(n_ranks, sizeof *t->ranks, (void **)&t->ranks));
    DT_TRY(dti_alloc_array(n_ranks, sizeof *at, (void **)&at));
    st = dti_pipeline_walk(s, c, t->spans, at, &all);
    dti_free(at);
    if (st != DT_OK) return st;
    for (int rank = 0; rank < s->n_ranks; rank++) add_up(t, c, rank);
    for (int rank = 0; rank < s->n_ranks; rank++)
        t->ranks[rank].idle = t->total.makespan - t->ranks[rank].busy;
    t->total.bubble = t->total.makespan - t->total.ideal;
    DT_CHECK(isfinite(t->total.makespan), DT_ERR_ARG,
             "these times add up to more than a number holds: give them in another unit");
    return DT_OK;
}

dt_status dt_pipeline_simulate(dt_pipeline_schedule *s, const dt_pipeline_costs *costs,
                               dt_pipeline_timing **out)
{
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    dt_pipeline_timing *t;
    dt_status st;

    DT_CHECK(s != NULL && out != NULL, DT_ERR_ARG, "the schedule or out is NULL");
    *out = NULL;
    DT_TRY(dti_options_read("dt_pipeline_costs", "start from DT_PIPELINE_COSTS_INIT", costs, &c,
                            sizeof c));
    DT_TRY(check_times(&c, s->n_stages));
    DT_TRY(dti_new(sizeof *t, &t));
    t->schedule = dt_pipeline_schedule_retain(s);
    st = run(t, &c);
    if (st != DT_OK) dt_pipeline_timing_release(&t);
    *out = t;
    return st;
}

void dt_pipeline_timing_release(dt_pipeline_timing **timing)
{
    dt_pipeline_timing *t = timing != NULL ? *timing : NULL;

    if (t == NULL) return;
    *timing = NULL;
    dt_pipeline_schedule_release(&t->schedule);
    dti_free(t->spans);
    dti_free(t->ranks);
    dti_free(t);
}

dt_pipeline_total dt_pipeline_timing_total(const dt_pipeline_timing *t)
{
    return t != NULL ? t->total : (dt_pipeline_total){ 0.0, 0.0, 0.0 };
}

const dt_pipeline_rank *dt_pipeline_timing_rank(const dt_pipeline_timing *t, int rank)
{
    return t != NULL && rank >= 0 && rank < t->schedule->n_ranks ? &t->ranks[rank] : NULL;
}

dt_pipeline_span dt_pipeline_timing_span(const dt_pipeline_timing *t, int rank, int i)
{
    int n;
    const dt_action *row = dt_pipeline_schedule_row(t != NULL ? t->schedule : NULL, rank, &n);

    return row != NULL && i >= 0 && i < n ? t->spans[t->schedule->begin[rank] + i]
                                          : (dt_pipeline_span){ 0.0, 0.0 };
}
