/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of training as the planner predicts them, and as they are. This machine is calibrated, for
 * as many ranks as a plan has, and again its links for each link that is simulated; then plans of
 * all kinds are predicted and run, those that the search finds among them. Errors are of predicted
 * times, in shares of measured ones; rho is Spearman's correlation of both; regret is by how much
 * the plan that the search takes is slower than the fastest that was run, of as many ranks over the
 * same link. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "planner/measure.h"
#include "planner/search.h"

/* clang-format off */
static const bench_column columns[] = {
    { "link", "link", 9, -1 },
    { "plan", "plan", 46, -1 },
    { "predicted_ms", "predicted ms", 12, 2 },
    { "compute_ms", "compute", 8, 2 },
    { "exposed_ms", "exposed", 8, 2 },  /* communication that shows */
    { "bubble_ms", "bubble", 8, 2 },
    { "measured_ms", "measured ms", 11, 2 },
    { "error_percent", "error %", 7, 1 },
    { "chosen", "", 6, -1 },
};
/* clang-format on */

enum { MOST_ROWS = 256, MOST_ROUNDS = 33 };

typedef struct planner_options {
    bench_common common;
    bench_shapes shapes;
    int64_t batch, tokens, turns, rounds, seconds, ranks;
    const char *link, *plan;
} planner_options;

/* A plan that was run. */
typedef struct outcome {
    double predicted, measured;
    bool chosen;
} outcome;

/* Plans of one number of ranks. */
typedef struct bench {
    const planner_options *o;
    const char *folder, *link; /* link NULL: this machine's */
    dt_machine machine;
    bench_report *report;
    outcome rows[MOST_ROWS];
    int n;
    double regret_sum, regret_most;
    int n_regrets;
} bench;

/* --- plans ------------------------------------------------------------------------------------ */

#define PLAIN DT_RECOMPUTED_NOTHING
#define AGAIN DT_RECOMPUTED_BLOCKS

/* pp, dp, tp, zero, tokens cut, offload, recompute, schedule, stages of a rank, microbatches, and
 * nothing of ep, ends, tiles, chunk and stages */
static const dt_way ways[] = {
    { 1, 1, 1, 0, false, false, PLAIN, NULL, 1, 1, 0, false, 0, 0, NULL },
    { 1, 1, 1, 0, false, false, PLAIN, NULL, 1, 4, 0, false, 0, 0, NULL },
    { 1, 1, 1, 0, false, false, AGAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 2, 1, 0, false, false, PLAIN, NULL, 1, 1, 0, false, 0, 0, NULL },
    { 1, 2, 1, 0, false, false, AGAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 2, 1, 1, false, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 2, 1, 2, false, false, PLAIN, NULL, 1, 4, 0, false, 0, 0, NULL },
    { 1, 2, 1, 3, false, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 1, 2, 0, false, false, PLAIN, NULL, 1, 1, 0, false, 0, 0, NULL },
    { 1, 1, 2, 0, true, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 1, 2, 0, false, false, AGAIN, NULL, 1, 8, 0, false, 0, 0, NULL },
    { 2, 1, 1, 0, false, false, PLAIN, "1f1b", 1, 2, 0, false, 0, 0, NULL },
    { 2, 1, 1, 0, false, false, PLAIN, "1f1b", 1, 8, 0, false, 0, 0, NULL },
    { 2, 1, 1, 0, false, false, PLAIN, "zb-h1", 1, 4, 0, false, 0, 0, NULL },
    { 2, 1, 1, 0, false, false, AGAIN, "interleaved", 2, 4, 0, false, 0, 0, NULL },
    { 1, 4, 1, 0, false, false, PLAIN, NULL, 1, 1, 0, false, 0, 0, NULL },
    { 1, 4, 1, 1, false, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 4, 1, 3, false, false, PLAIN, NULL, 1, 1, 0, false, 0, 0, NULL },
    { 1, 1, 4, 0, false, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 2, 2, 0, false, false, PLAIN, NULL, 1, 2, 0, false, 0, 0, NULL },
    { 1, 2, 2, 1, true, false, PLAIN, NULL, 1, 1, 0, false, 0, 0, NULL },
    { 4, 1, 1, 0, false, false, PLAIN, "1f1b", 1, 4, 0, false, 0, 0, NULL },
    { 4, 1, 1, 0, false, false, PLAIN, "zb-h1", 1, 8, 0, false, 0, 0, NULL },
    { 2, 2, 1, 1, false, false, PLAIN, "1f1b", 1, 4, 0, false, 0, 0, NULL },
    { 2, 1, 2, 0, false, false, PLAIN, "1f1b", 1, 4, 0, false, 0, 0, NULL },
};

static int ranks_of(const dt_way *w)
{
    return w->pp * w->dp * w->tp;
}

static const char *name_of(const dt_way *w, char text[80])
{
    char mesh[DTI_MESH_BYTES];

    (void)snprintf(text, 80, "%s z%d%s%s %s%s x%lld", dti_way_mesh(w, mesh), w->zero,
                   w->sequence_parallel ? " sp" : "",
                   w->recompute == DT_RECOMPUTED_NOTHING ? ""
                   : w->recompute == DT_RECOMPUTED_CHEAP ? " cheap"
                                                         : " again",
                   w->schedule != NULL ? w->schedule : "", w->stages_per_rank > 1 ? " of 2" : "",
                   (long long)w->microbatches);
    return text;
}

/* --- steps ------------------------------------------------------------------------------------ */

/* A plan, and what it took. */
typedef struct planned {
    dt_way way;
    bool chosen; /* by the search */
    dt_way_cost cost;
    double times[MOST_ROUNDS];
    int n_times;
} planned;

/* --- plans of so many ranks over one link ----------------------------------------------------- */

typedef struct plans {
    planned list[DT_COUNT(ways) + 1];
    int n;
} plans;

static dt_status add(bench *b, dti_task *t, plans *p, const dt_way *w, bool chosen)
{
    planned *one = &p->list[p->n];
    char name[80];

    if (b->o->plan != NULL && strstr(name_of(w, name), b->o->plan) == NULL) return DT_OK;
    *one = (planned){ .way = *w, .chosen = chosen };
    DT_TRY(dti_way_count(t, w, &one->cost));
    p->n++;
    return DT_OK;
}

/* What the search takes, and of the list what has so many ranks. */
static dt_status find(bench *b, dti_task *t, int ranks, plans *p)
{
    dt_search *s = NULL;
    dt_status st = DT_OK;

    DT_TRY(dt_search_ways(NULL, b->folder, &b->machine, &t->o, &s));
    if (dt_search_at(s, 0)->kind == DT_VERDICT_RANKED)
        DT_TRY_TO(done, st, add(b, t, p, &dt_search_at(s, 0)->way, true));
    for (size_t i = 0; i < DT_COUNT(ways); i++)
        if (ranks_of(&ways[i]) == ranks) DT_TRY_TO(done, st, add(b, t, p, &ways[i], false));
done:
    dt_search_release(&s);
    return st;
}

/* By turns, so that what others take of the machine is not one plan's alone. */
static dt_status run_plans(bench *b, const dti_task *t, plans *p)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;

    o.links = b->link != NULL ? b->link : "";
    for (int64_t turn = 0; turn < b->o->turns; turn++)
        for (int i = 0; i < p->n; i++) {
            planned *one = &p->list[i];
            const int n = (int)dti_min(b->o->rounds, MOST_ROUNDS - one->n_times);
            const dt_run_options run = dti_calibrate_run(&o, 1, 1);
            DT_TRY(dti_way_try(t, &one->way, &run, n, one->times + one->n_times, NULL));
            one->n_times += n;
        }
    return DT_OK;
}

/* All plans of so many ranks over one link. */
static dt_status run_ways(bench *b, int ranks)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    double best = INFINITY, found = 0;
    plans p = { .n = 0 };
    dt_status st;
    dti_task t;

    o.batch = b->o->batch;
    o.sequence = b->o->tokens;
    DT_TRY(dti_task_open(NULL, b->folder, &b->machine, &o, &t));
    st = find(b, &t, ranks, &p);
    if (st == DT_OK) st = run_plans(b, &t, &p);
    dti_task_close(&t);
    DT_TRY(st);
    for (int i = 0; i < p.n; i++) {
        planned *one = &p.list[i];
        const dt_way_cost *c = &one->cost;
        const double seconds = dti_quick_of(one->times, one->n_times);
        char name[80];
        bench_report_row(b->report, b->link != NULL ? b->link : "none", name_of(&one->way, name),
                         c->seconds * 1e3, c->compute * 1e3, c->exposed * 1e3, c->bubble * 1e3,
                         seconds * 1e3, 100 * (c->seconds / seconds - 1),
                         one->chosen ? "chosen" : "");
        if (b->n < MOST_ROWS) b->rows[b->n++] = (outcome){ c->seconds, seconds, one->chosen };
        best = fmin(best, seconds);
        if (one->chosen) found = seconds;
    }
    if (found == 0) return DT_OK;
    b->regret_sum += found / best - 1;
    b->regret_most = fmax(b->regret_most, found / best - 1);
    b->n_regrets++;
    return DT_OK;
}

/* --- what comes of it ------------------------------------------------------------------------- */

/* Of the i-th row: how many are less, equal ones by half. */
static double rank_in(const bench *b, int i, bool predicted)
{
    double rank = 0;

    for (int k = 0; k < b->n; k++) {
        const double x = predicted ? b->rows[i].predicted : b->rows[i].measured;
        const double y = predicted ? b->rows[k].predicted : b->rows[k].measured;
        rank += y < x ? 1 : y == x ? 0.5 : 0;
    }
    return rank;
}

static double correlation(const bench *b)
{
    double xy = 0, xx = 0, yy = 0;

    for (int i = 0; i < b->n; i++) {
        const double x = rank_in(b, i, true) - b->n / 2.0, y = rank_in(b, i, false) - b->n / 2.0;
        xy += x * y;
        xx += x * x;
        yy += y * y;
    }
    return xy / sqrt(fmax(xx * yy, 1e-300));
}

static void conclude(bench *b)
{
    double sum = 0, most = 0, signed_sum = 0;

    for (int i = 0; i < b->n; i++) {
        const double error = b->rows[i].predicted / b->rows[i].measured - 1;
        sum += fabs(error);
        signed_sum += error;
        most = fmax(most, fabs(error));
    }
    bench_report_fact(b->report, "error",
                      "of %d plans: mean %.1f %%, largest %.1f %%, with signs %.1f %%", b->n,
                      100 * sum / b->n, 100 * most, 100 * signed_sum / b->n);
    bench_report_fact(b->report, "rho", "%.3f", correlation(b));
    bench_report_fact(b->report, "overlap_cost", "%.2f",
                      b->machine.figure[DT_FIGURE_OVERLAP_COST].value);
    bench_report_fact(b->report, "regret", "of %d choices: mean %.1f %%, largest %.1f %%",
                      b->n_regrets, 100 * b->regret_sum / b->n_regrets, 100 * b->regret_most);
}

/* --- all of it -------------------------------------------------------------------------------- */

static dt_status run_ranks(bench *b, int ranks, const char *const *links, size_t n_links)
{
    const planner_options *o = b->o;
    dt_calibrate_options c = DT_CALIBRATE_OPTIONS_INIT;
    static dt_machine kernels;

    c.ranks = ranks;
    c.seconds = (double)o->seconds;
    c.links = "";
    DT_TRY(dt_machine_calibrate(&c, &kernels));
    for (size_t i = 0; i < n_links; i++) {
        b->machine = kernels;
        b->link = links[i];
        if (b->link != NULL) {
            b->machine.n_links = 0;
            c.links = b->link;
            DT_TRY(dti_measure_links(&c, (double)o->seconds / 3, &b->machine));
        }
        if (b->link == NULL || ranks > 1) DT_TRY(run_ways(b, ranks));
    }
    return DT_OK;
}

static dt_status run(const planner_options *o, bench_report *report)
{
    static const char *const all[] = { NULL, "50,1", "200,0.2", "1000,0.05" };
    const char *const one[] = { o->link };
    static const int ranks[] = { 1, 2, 4 };
    const bool none = o->link != NULL && strcmp(o->link, "none") == 0;
    const size_t n = o->common.quick ? 1 : o->link != NULL ? 1 : DT_COUNT(all);
    dt_status st = DT_OK;
    bench_folder folder;
    bench *b;

    DT_TRY(dti_new(sizeof *b, &b));
    b->o = o;
    b->report = report;
    DT_TRY_TO(done, st, bench_config_open(&o->shapes, &folder));
    b->folder = folder.path;
    for (size_t i = 0; i < DT_COUNT(ranks); i++)
        if (o->ranks == 0 || o->ranks == ranks[i])
            DT_TRY_TO(closed, st,
                      run_ranks(b, ranks[i], o->link != NULL && !none ? one : all, none ? 1 : n));
    conclude(b);
closed:
    bench_folder_close(&folder, false);
done:
    dti_free(b);
    return st;
}

int main(int argc, char **argv)
{
    planner_options o = { .shapes = { 256, 4, 8, 4, 32, 688, 2048, 512, DT_F32, "llama", false },
                          .batch = 8,
                          .tokens = 64,
                          .turns = 3,
                          .rounds = 3,
                          .seconds = 12 };
    const bench_option own[] = {
        { "--batch", "N", "sequences of a step (default 8)", BENCH_COUNT, &o.batch },
        { "--tokens", "N", "of each of them (default 64)", BENCH_COUNT, &o.tokens },
        { "--turns", "N", "in which all plans are run (default 3)", BENCH_COUNT, &o.turns },
        { "--rounds", "N", "steps of a turn; of all the quickest quarter counts (default 3)",
          BENCH_COUNT, &o.rounds },
        { "--seconds", "N", "of a calibration (default 12)", BENCH_COUNT, &o.seconds },
        { "--ranks", "N", "1, 2 or 4 (default: all of them)", BENCH_COUNT, &o.ranks },
        { "--plan", "TEXT", "those that have it in their names alone", BENCH_TEXT, &o.plan },
        { "--link", "LINK", "none, or microseconds,GB/s (default: none and three)", BENCH_TEXT,
          &o.link },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Predicted and measured times of plans.", own, DT_COUNT(own),
                     &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.shapes = (bench_shapes){ 64, 4, 4, 4, 16, 128, 256, 128, DT_F32, "llama", false };
        o.tokens = 16;
        o.turns = o.rounds = 1;
        o.seconds = 1;
        if (o.ranks == 0) o.ranks = 2;
    }
    bench_report_open(&report, "planner", &o.common, columns, DT_COUNT(columns));
    bench_report_fact(&report, "model", "llama, %lld layers of %lld; %lld x %lld tokens",
                      (long long)o.shapes.layers, (long long)o.shapes.hidden, (long long)o.batch,
                      (long long)o.tokens);
    return bench_report_close(&report, run(&o, &report));
}
