/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of training as the planner predicts them, and as they are. This machine is calibrated by
 * turns, for as many ranks as plans have and its links for each link that is simulated: medians of
 * all turns count, and kernels that as many ranks have run at once are measured once for all. Then
 * plans of all kinds are predicted and run, by turns as well, those that the search finds among
 * them. What one half of the turns has measured is compared with the other half: no prediction can
 * be expected to agree better. Errors are of predicted times, in shares of measured ones; rho is
 * Spearman's correlation of both; regret is by how much the plan that the search takes is slower
 * than the fastest that was run, of as many ranks over the same link. */
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

enum { MOST_ROWS = 256, MOST_ROUNDS = 33, MOST_TURNS = 7, MOST_GROUPS = 12 };

typedef struct planner_options {
    bench_common common;
    bench_shapes shapes;
    int64_t batch, tokens, turns, rounds, seconds, ranks;
    const char *link, *plan;
} planner_options;

/* A plan that was run. */
typedef struct outcome {
    double predicted, measured;
    double half[2]; /* measured, in the first turns alone and in the others */
} outcome;

/* --- plans
 * ------------------------------------------------------------------------------------
 */

#define PLAIN DT_RECOMPUTED_NOTHING
#define AGAIN DT_RECOMPUTED_BLOCKS

/* pp, dp, tp, zero, tokens cut, offload, recompute, schedule, stages of a rank,
 * microbatches, and nothing of ep, ends, tiles, chunk and stages */
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

/* --- steps
 * ------------------------------------------------------------------------------------
 */

/* A plan, and what it took. */
typedef struct planned {
    dt_way way;
    bool chosen; /* by the search */
    dt_way_cost cost;
    double times[MOST_ROUNDS];
    int n_times;
} planned;

/* --- plans of so many ranks over one link
 * ----------------------------------------------------- */

typedef struct group {
    int ranks;
    const char *link; /* NULL: this machine's */
    dt_machine turns[MOST_TURNS], machine;
    dti_task task;
    bool open;
    planned list[DT_COUNT(ways) + 1];
    int n;
} group;

typedef struct bench {
    const planner_options *o;
    const char *folder;
    bench_report *report;
    group groups[MOST_GROUPS];
    int n_groups;
    outcome rows[MOST_ROWS];
    int n;
    double regret_sum, regret_most;
    int n_regrets;
} bench;

static dt_status add(const bench *b, group *g, const dt_way *w, bool chosen)
{
    planned *one = &g->list[g->n];
    char name[80];

    if (b->o->plan != NULL && strstr(name_of(w, name), b->o->plan) == NULL) return DT_OK;
    *one = (planned){ .way = *w, .chosen = chosen };
    DT_TRY(dti_way_count(&g->task, w, &one->cost));
    g->n++;
    return DT_OK;
}

/* What the search takes, and of the list what has so many ranks. */
static dt_status find(const bench *b, group *g)
{
    dt_planner_options o = DT_PLANNER_OPTIONS_INIT;
    dt_search *s = NULL;
    dt_status st = DT_OK;

    o.batch = b->o->batch;
    o.sequence = b->o->tokens;
    DT_TRY(dti_task_open(NULL, b->folder, &g->machine, &o, &g->task));
    g->open = true;
    DT_TRY(dt_search_ways(NULL, b->folder, &g->machine, &o, &s));
    if (dt_search_at(s, 0)->kind == DT_VERDICT_RANKED) {
        dt_way w = dt_search_at(s, 0)->way;
        if (w.stages != NULL) DT_TRY_TO(done, st, dti_stages_by_memory(&g->task, &w, &w.stages));
        DT_TRY_TO(done, st, add(b, g, &w, true));
    }
    for (size_t i = 0; i < DT_COUNT(ways); i++)
        if (ranks_of(&ways[i]) == g->ranks) DT_TRY_TO(done, st, add(b, g, &ways[i], false));
done:
    dt_search_release(&s);
    return st;
}

/* Every plan some steps. */
static dt_status run_plans(group *g, int64_t rounds)
{
    dt_calibrate_options o = DT_CALIBRATE_OPTIONS_INIT;

    o.links = g->link != NULL ? g->link : "";
    for (int i = 0; i < g->n; i++) {
        planned *one = &g->list[i];
        const int n = (int)dti_min(rounds, MOST_ROUNDS - one->n_times);
        const dt_run_options run = dti_calibrate_run(&o, 1, 1);
        DT_TRY(dti_way_try(&g->task, &one->way, &run, n, one->times + one->n_times, NULL));
        one->n_times += n;
    }
    return DT_OK;
}

/* Turns follow each other in `times`. */
static outcome outcome_of(const planned *one)
{
    const int n = one->n_times, half = n > 1 ? n / 2 : n;
    outcome o = { .predicted = one->cost.seconds };
    double times[3][MOST_ROUNDS];

    for (int k = 0; k < 3; k++) memcpy(times[k], one->times, sizeof times[k]);
    o.measured = dti_quick_of(times[0], n);
    o.half[0] = dti_quick_of(times[1], half);
    o.half[1] = dti_quick_of(times[2] + n - half, half);
    return o;
}

static void report_plans(bench *b, group *g)
{
    double best = INFINITY, found = 0;

    for (int i = 0; i < g->n; i++) {
        planned *one = &g->list[i];
        const dt_way_cost *c = &one->cost;
        const double seconds = outcome_of(one).measured;
        char name[80];
        bench_report_row(b->report, g->link != NULL ? g->link : "none", name_of(&one->way, name),
                         c->seconds * 1e3, c->compute * 1e3, c->exposed * 1e3, c->bubble * 1e3,
                         seconds * 1e3, 100 * (c->seconds / seconds - 1),
                         one->chosen ? "chosen" : "");
        if (b->n < MOST_ROWS) b->rows[b->n++] = outcome_of(one);
        best = fmin(best, seconds);
        if (one->chosen) found = seconds;
    }
    if (found == 0) return;
    b->regret_sum += found / best - 1;
    b->regret_most = fmax(b->regret_most, found / best - 1);
    b->n_regrets++;
}

/* --- calibrations by turns
 * -------------------------------------------------------------------- */

static int by_size(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static double median_of(double *x, int n)
{
    qsort(x, (size_t)n, sizeof *x, by_size);
    return n % 2 != 0 ? x[n / 2] : (x[n / 2 - 1] + x[n / 2]) / 2;
}

/* Ranks that run a calibration's steps at once. */
static int at_once(int ranks)
{
    return (int)dti_max(dti_min(ranks, dt_machine_cores()), 1);
}

/* The median of what all turns, of all groups with as many ranks at once, say
 * of a call. */
static void settle_kernels(const bench *b, group *g)
{
    double x[MOST_GROUPS * MOST_TURNS];

    for (int i = 0; i < g->machine.n_rates; i++) {
        dt_rate *r = &g->machine.rate[i];
        int n = 0;
        for (int k = 0; k < b->n_groups; k++)
            for (int t = 0; t < b->o->turns && at_once(b->groups[k].ranks) == at_once(g->ranks);
                 t++)
                for (int q = 0; q < b->groups[k].turns[t].n_rates; q++) {
                    const dt_rate *other = &b->groups[k].turns[t].rate[q];
                    if (other->dtype == r->dtype && strcmp(other->kernel, r->kernel) == 0 &&
                        other->flops == r->flops && other->bytes == r->bytes &&
                        n < (int)DT_COUNT(x))
                        x[n++] = other->seconds;
                }
        if (n > 0) r->seconds = median_of(x, n);
    }
}

static void settle_links(const bench *b, group *g)
{
    const int turns = (int)b->o->turns;

    for (int i = 0; i < g->machine.n_links; i++) {
        double latency[MOST_TURNS], bandwidth[MOST_TURNS];
        for (int t = 0; t < turns; t++) { /* rows of all turns are alike */
            latency[t] = g->turns[t].link[i].latency;
            bandwidth[t] = g->turns[t].link[i].bandwidth;
        }
        g->machine.link[i].latency = median_of(latency, turns);
        g->machine.link[i].bandwidth = median_of(bandwidth, turns);
    }
}

static void settle(const bench *b, group *g)
{
    g->machine = g->turns[0];
    for (int f = 0; f < DT_N_FIGURES; f++) {
        double x[MOST_TURNS];
        for (int t = 0; t < b->o->turns; t++) x[t] = g->turns[t].figure[f].value;
        g->machine.figure[f].value = median_of(x, (int)b->o->turns);
    }
    settle_kernels(b, g);
    settle_links(b, g);
}

/* Kernels once for all groups of as many ranks, links for each. */
static dt_status calibrate(bench *b, int turn)
{
    const double seconds = (double)b->o->seconds / (double)b->o->turns;

    for (int i = 0; i < b->n_groups; i++) {
        dt_calibrate_options c = DT_CALIBRATE_OPTIONS_INIT;
        group *g = &b->groups[i];
        dt_machine *m = &g->turns[turn];
        c.ranks = g->ranks;
        c.seconds = seconds;
        c.links = "";
        if (i == 0 || b->groups[i - 1].ranks != g->ranks)
            DT_TRY(dt_machine_calibrate(&c, m));
        else
            *m = b->groups[i - 1].turns[turn];
        if (g->link == NULL) continue;
        m->n_links = 0;
        c.links = g->link;
        DT_TRY(dti_measure_links(&c, seconds / 3, m));
    }
    return DT_OK;
}

/* --- what comes of it
 * ------------------------------------------------------------------------- */

/* Of the i-th of n: how many are less, equal ones by half. */
static double rank_in(const double *x, int n, int i)
{
    double rank = 0;

    for (int k = 0; k < n; k++) rank += x[k] < x[i] ? 1 : x[k] == x[i] ? 0.5 : 0;
    return rank;
}

/* Spearman's, of n pairs. */
static double correlation(const double *x, const double *y, int n)
{
    double xy = 0, xx = 0, yy = 0;

    for (int i = 0; i < n; i++) {
        const double a = rank_in(x, n, i) - n / 2.0, b = rank_in(y, n, i) - n / 2.0;
        xy += a * b;
        xx += a * a;
        yy += b * b;
    }
    return xy / sqrt(fmax(xx * yy, 1e-300));
}

/* Of what was predicted and measured, and of what was measured twice. */
static void report_orders(const bench *b)
{
    double predicted[MOST_ROWS], measured[MOST_ROWS], half[2][MOST_ROWS], apart = 0;

    for (int i = 0; i < b->n; i++) {
        predicted[i] = b->rows[i].predicted;
        measured[i] = b->rows[i].measured;
        for (int h = 0; h < 2; h++) half[h][i] = b->rows[i].half[h];
        apart += fabs(half[0][i] / half[1][i] - 1);
    }
    bench_report_fact(b->report, "rho", "%.3f", correlation(predicted, measured, b->n));
    if (b->o->turns > 1)
        bench_report_fact(b->report, "repeated", "rho %.3f of measured times, %.1f %% apart",
                          correlation(half[0], half[1], b->n), 100 * apart / b->n);
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
    report_orders(b);
    bench_report_fact(b->report, "regret", "of %d choices: mean %.1f %%, largest %.1f %%",
                      b->n_regrets, 100 * b->regret_sum / b->n_regrets, 100 * b->regret_most);
}

/* --- all of it
 * --------------------------------------------------------------------------------
 */

static dt_status run_groups(bench *b)
{
    for (int turn = 0; turn < b->o->turns; turn++) DT_TRY(calibrate(b, turn));
    for (int i = 0; i < b->n_groups; i++) {
        settle(b, &b->groups[i]);
        DT_TRY(find(b, &b->groups[i]));
    }
    for (int turn = 0; turn < b->o->turns; turn++)
        for (int i = 0; i < b->n_groups; i++) DT_TRY(run_plans(&b->groups[i], b->o->rounds));
    for (int i = 0; i < b->n_groups; i++) report_plans(b, &b->groups[i]);
    return DT_OK;
}

/* One rank has no links but those of the machine. */
static void add_groups(bench *b, int ranks, const char *const *links, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (links[i] == NULL || ranks > 1)
            b->groups[b->n_groups++] = (group){ .ranks = ranks, .link = links[i] };
}

static dt_status run(const planner_options *o, bench_report *report)
{
    static const char *const all[] = { NULL, "50,1", "200,0.2", "1000,0.05" };
    const bool none = o->link != NULL && strcmp(o->link, "none") == 0;
    const char *const one[] = { none ? NULL : o->link };
    static const int ranks[] = { 1, 2, 4 };
    dt_status st = DT_OK;
    bench_folder folder;
    bench *b;

    DT_CHECK(o->turns <= MOST_TURNS, DT_ERR_ARG, "--turns %lld: at most %d", (long long)o->turns,
             (int)MOST_TURNS);
    DT_TRY(dti_new(sizeof *b, &b));
    b->o = o;
    b->report = report;
    DT_TRY_TO(done, st, bench_config_open(&o->shapes, &folder));
    b->folder = folder.path;
    for (size_t i = 0; i < DT_COUNT(ranks); i++)
        if (o->ranks == 0 || o->ranks == ranks[i])
            add_groups(b, ranks[i], o->link != NULL ? one : all,
                       o->common.quick || o->link != NULL ? 1 : DT_COUNT(all));
    st = run_groups(b);
    if (st == DT_OK) conclude(b);
    for (int i = 0; i < b->n_groups; i++)
        if (b->groups[i].open) dti_task_close(&b->groups[i].task);
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
        { "--turns", "N", "in which it is calibrated, then plans are run (default 3)", BENCH_COUNT,
          &o.turns },
        { "--rounds", "N", "steps of a turn; of all the quickest quarter counts (default 3)",
          BENCH_COUNT, &o.rounds },
        { "--seconds", "N", "of a calibration, of all turns (default 12)", BENCH_COUNT,
          &o.seconds },
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
