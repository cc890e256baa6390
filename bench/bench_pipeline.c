/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of a pipeline against what dt_pipeline_simulate() says of them. Stages are calls of a row
 * that sleeps, for given times of F, I and W; messages are over a simulated link. So nothing needs
 * a core, and what is measured is who waits for whom. A schedule with several stages on a rank
 * divides a rank's times among them. Where two schedules are simulated a twentieth apart or more
 * the same one has to be the faster. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/op_rows.h>
#include <dtensor/ops.h>
#include <dtensor/pipeline_training.h>
#include <dtensor/weights.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/sync.h"
#include "bench/support/bench_report.h"

/* clang-format off */
static const bench_column columns[] = {
    { "times", "F:I:W:message", 14, -1 },
    { "schedule", "schedule", 11, -1 },
    { "simulated_ms", "simulated ms", 12, 2 },
    { "measured_ms", "measured ms", 11, 2 },
    { "ratio", "ratio", 6, 3 },     /* measured / simulated */
    { "bubble", "bubble", 6, 3 },   /* simulated, by what is computed */
    { "live", "live", 4, 0 },       /* microbatches of stages, on the rank with most; as simulated */
};
/* clang-format on */

enum { RANKS = 4, WIDTH = 16, MOST_STAGES = 16, MOST_ROWS = 16 };

/* Times of a rank's F, I and W of a microbatch, and of a message, in units. */
typedef struct times {
    const char *name;
    double f, i, w, message;
} times;

static const times time_sets[] = { { "1:1:1:0.25", 1, 1, 1, 0.25 },
                                   { "2:3:2:0.5", 2, 3, 2, 0.5 },
                                   { "2:2:1:0", 2, 2, 1, 0 } };

typedef struct pipeline_options {
    bench_common common;
    int64_t samples, microbatches, unit_us;
} pipeline_options;

/* A schedule with its times, and what came of it. */
typedef struct job {
    const pipeline_options *options;
    const times *t;
    dt_pipeline_schedule *schedule;
    dt_pipeline_timing *timing;
    double measured_ms; /* written by rank 0 */
    int live[RANKS];    /* each by its rank */
} job;

static int stages_per_rank(const job *j)
{
    return dt_pipeline_schedule_stages(j->schedule) / RANKS;
}

/* --- rows that sleep -------------------------------------------------------------------------- */

/* Of a stage, in nanoseconds. */
typedef struct nap {
    int64_t f, i, w;
} nap;

static void sleep_until(int64_t then)
{
    for (int64_t left; (left = then - dti_now_ns()) > 0;)
        (void)nanosleep(&(struct timespec){ left / 1000000000, left % 1000000000 }, NULL);
}

static dt_status sleep_f(const dt_kargs *args)
{
    sleep_until(dti_now_ns() + ((const nap *)args->attr)->f);
    memcpy(args->out[0].data, args->in[0].data, WIDTH * sizeof(float));
    return DT_OK;
}

static dt_status sleep_i(const dt_kargs *args)
{
    sleep_until(dti_now_ns() + ((const nap *)args->attr)->i);
    memcpy(args->out[0].data, args->in[0].data, WIDTH * sizeof(float));
    return DT_OK;
}

static dt_status sleep_w(const dt_kargs *args)
{
    sleep_until(dti_now_ns() + ((const nap *)args->attr)->w);
    memset(args->out[0].data, 0, WIDTH * sizeof(float));
    return DT_OK;
}

#define NAP .flags = DT_OP_VALUE_ATTR, .attr_bytes = sizeof(nap)

/* dy -> dx */
static const dt_op nap_i = {
    .name = "nap_i", .axes = "od -> od", .types = "f>f", .cpu = sleep_i, NAP
};

/* dy, x -> dw */
static const dt_op nap_w = {
    .name = "nap_w", .axes = "od, od -> od", .types = "ff>f", .cpu = sleep_w, NAP
};

static void nap_gradients(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx)
{
    dt_tensor *in[] = { dy[0], dt_node_in(node, 0) };

    if (dt_node_wants(node, 0)) dx[0] = dt_apply(t, &nap_i, dt_node_attr(node), 1, in);
    if (dt_node_wants(node, 1)) dx[1] = dt_apply(t, &nap_w, dt_node_attr(node), 2, in);
}

/* x, w [1, d] -> y */
static const dt_op nap_f = { .name = "nap_f",
                             .axes = "od, od -> od",
                             .types = "ff>f",
                             .cpu = sleep_f,
                             .backward = nap_gradients,
                             .keeps = DT_OP_KEEPS_IN(0),
                             NAP };

/* --- a rank ----------------------------------------------------------------------------------- */

typedef struct rank_state {
    job *j;
    dt_mesh *mesh, *here;
    dt_layers *layers; /* a weight for each stage */
    dt_optimizer *optimizer;
    dt_pipeline *pipeline;
    dt_tensor *x;
} rank_state;

static dt_tensor *run_stage(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    const rank_state *r = arg;
    const double each = (double)r->j->options->unit_us * 1e3 / stages_per_rank(r->j);
    const nap naps = { .f = (int64_t)(r->j->t->f * each),
                       .i = (int64_t)(r->j->t->i * each),
                       .w = (int64_t)(r->j->t->w * each) };
    const bool last = stage == dt_pipeline_schedule_stages(r->j->schedule) - 1;
    dt_tensor *in[] = { x != NULL ? x : dt_tape_input(t, r->x),
                        dt_layer_param(dt_layers_at(r->layers, stage), 0) };
    dt_tensor *y = dt_apply(t, &nap_f, &naps, 2, in);

    (void)microbatch;
    return last ? dt_sum(t, y, DT_ALL_AXES) : y;
}

static dt_status make_layers(rank_state *r)
{
    const int n = dt_pipeline_schedule_stages(r->j->schedule);
    dt_layer_spec specs[MOST_STAGES] = { { 0 } };
    char names[MOST_STAGES][16];
    dt_status st = DT_OK;

    for (int s = 0; s < n && st == DT_OK; s++) {
        (void)snprintf(names[s], sizeof names[s], "stage %d", s);
        specs[s] = (dt_layer_spec){ .name = names[s],
                                    .kind = &dt_linear_kind,
                                    .axis = { { 1, DT_UNIT_ROW }, { WIDTH, DT_UNIT_ROW } },
                                    .stage = s };
        st = dt_mesh_stage(r->mesh, "pp", dt_pipeline_schedule_rank_of(r->j->schedule, s),
                           &specs[s].mesh);
    }
    if (st == DT_OK) st = dt_layers_create(r->mesh, "tp?", specs, n, NULL, &r->layers);
    if (st == DT_OK) st = dt_layers_init(r->layers, DT_F32, 1, NULL, 0);
    for (int s = 0; s < n; s++) dt_mesh_release(&specs[s].mesh);
    return st;
}

static dt_status make(rank_state *r)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { 1, WIDTH };
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    dt_optimizer_options sgd = DT_OPTIMIZER_OPTIONS_INIT;

    sgd.rule = DT_SGD;
    how.forward = run_stage;
    how.arg = r;
    DT_TRY(dt_mesh_stage(r->mesh, "pp", dt_mesh_coord(r->mesh, 0), &r->here));
    DT_TRY(make_layers(r));
    DT_TRY(dt_zeros(r->here, whole, DT_F32, 2, shape, &r->x));
    DT_TRY(dt_optimizer_create(r->layers, &sgd, &r->optimizer));
    DT_TRY(dt_pipeline_create(r->mesh, "pp", r->j->schedule, r->optimizer, &how, &r->pipeline));
    return DT_OK;
}

static dt_status measure(rank_state *r, dt_runtime *rt)
{
    bench_samples ms = { 0 };

    for (int64_t k = -1; k < r->j->options->samples; k++) {
        dt_pipeline_result result;
        int64_t begin;
        DT_TRY(bench_barrier(rt));
        begin = dti_now_ns();
        DT_TRY(dt_pipeline_run(r->pipeline, &result));
        if (k >= 0) bench_add(&ms, (double)(dti_now_ns() - begin) * 1e-6);
        dt_gradients_clear(dt_optimizer_gradients(r->optimizer));
        r->j->live[dt_runtime_rank(rt)] = result.live;
    }
    if (dt_runtime_rank(rt) == 0) r->j->measured_ms = bench_median(&ms);
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    rank_state r = { .j = arg };
    dt_status st = dt_mesh_create(rt, "pp=4", &r.mesh);

    if (st == DT_OK) st = make(&r);
    if (st == DT_OK) st = measure(&r, rt);
    dt_pipeline_release(&r.pipeline);
    dt_optimizer_release(&r.optimizer);
    dt_layers_release(&r.layers);
    dt_tensor_release(&r.x);
    dt_mesh_release(&r.here);
    dt_mesh_release(&r.mesh);
    return st;
}

/* --- schedules -------------------------------------------------------------------------------- */

static dt_status simulate(job *j)
{
    dt_pipeline_costs c = DT_PIPELINE_COSTS_INIT;
    const double each = (double)j->options->unit_us * 1e-3 / stages_per_rank(j);
    const double f = j->t->f * each, i = j->t->i * each, w = j->t->w * each;

    c.n = 1;
    c.f = &f;
    c.i = &i;
    c.w = &w;
    c.message = j->t->message * (double)j->options->unit_us * 1e-3;
    c.together = 0;
    return dt_pipeline_simulate(j->schedule, &c, &j->timing);
}

static dt_status run(const job *j)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;
    char links[48];

    (void)snprintf(links, sizeof links, "pp=%g,1000", j->t->message * (double)j->options->unit_us);
    run.n_ranks = RANKS;
    run.threads_per_rank = 1;
    run.isa = j->options->common.isa;
    run.links = j->t->message > 0 ? links : NULL;
    run.bind = DT_BIND_NONE;
    return dt_run(&run, rank_main, (void *)j);
}

static void report_row(bench_report *report, const job *j)
{
    const dt_pipeline_total total = dt_pipeline_timing_total(j->timing);
    int live = 0;

    for (int r = 0; r < RANKS; r++) live = live > j->live[r] ? live : j->live[r];
    bench_report_row(report, j->t->name, dt_pipeline_schedule_name(j->schedule), total.makespan,
                     j->measured_ms, j->measured_ms / total.makespan, total.bubble / total.ideal,
                     (double)live);
}

/* What is off most, and pairs of schedules of which the slower was to be the faster. */
typedef struct verdict {
    double worst;
    int n_pairs, n_wrong;
    char wrong[64];
} verdict;

static void compare(const job *jobs, int n, verdict *v)
{
    double made[MOST_ROWS];

    for (int a = 0; a < n; a++) {
        made[a] = dt_pipeline_timing_total(jobs[a].timing).makespan;
        v->worst = fmax(v->worst, fabs(jobs[a].measured_ms / made[a] - 1));
    }
    for (int a = 0; a < n; a++)
        for (int b = 0; b < n; b++) {
            if (made[a] * 1.05 > made[b]) continue;
            v->n_pairs++;
            if (jobs[a].measured_ms < jobs[b].measured_ms) continue;
            v->n_wrong++;
            (void)snprintf(v->wrong, sizeof v->wrong, ", such as %s and %s at %s",
                           dt_pipeline_schedule_name(jobs[a].schedule),
                           dt_pipeline_schedule_name(jobs[b].schedule), jobs[a].t->name);
        }
}

static dt_status run_set(const pipeline_options *o, const times *t, bench_report *report,
                         verdict *v)
{
    job jobs[MOST_ROWS] = { { 0 } };
    const dt_pipeline_kind *kind;
    dt_status st = DT_OK;
    int n = 0;

    for (; st == DT_OK && (kind = dt_pipeline_kind_at(n)) != NULL && n < MOST_ROWS; n++) {
        job *j = &jobs[n];
        *j = (job){ .options = o, .t = t };
        st = dt_pipeline_schedule_create(kind->name, RANKS, 0, (int)o->microbatches, &j->schedule);
        if (st == DT_OK) st = simulate(j);
        if (st == DT_OK) st = run(j);
        if (st == DT_OK) report_row(report, j);
    }
    if (st == DT_OK) compare(jobs, n, v);
    for (int i = 0; i < n; i++) {
        dt_pipeline_timing_release(&jobs[i].timing);
        dt_pipeline_schedule_release(&jobs[i].schedule);
    }
    return st;
}

static dt_status run_all(const pipeline_options *o, bench_report *report)
{
    const size_t n = o->common.quick ? 1 : DT_COUNT(time_sets);
    verdict v = { 0 };

    for (size_t i = 0; i < n; i++) DT_TRY(run_set(o, &time_sets[i], report, &v));
    bench_report_fact(report, "worst", "%.1f %% from what is simulated", 100 * v.worst);
    bench_report_fact(report, "ranking", "%d of %d pairs differ%s", v.n_wrong, v.n_pairs, v.wrong);
    return DT_OK;
}

int main(int argc, char **argv)
{
    pipeline_options o = { .samples = 3, .microbatches = 8, .unit_us = 4000 };
    const bench_option own[] = {
        { "--samples", "N", "steps of each row (default 3)", BENCH_COUNT, &o.samples },
        { "--microbatches", "N", "of a step (default 8)", BENCH_COUNT, &o.microbatches },
        { "--unit-us", "N", "what times count in (default 4000 us)", BENCH_COUNT, &o.unit_us },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Steps of pipelines, and what is simulated of them.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.samples = 1;
        o.unit_us = 500;
    }
    bench_report_open(&report, "pipeline", &o.common, columns, DT_COUNT(columns));
    bench_report_fact(&report, "step", "%lld microbatches on 4 ranks, %lld us a unit",
                      (long long)o.microbatches, (long long)o.unit_us);
    return bench_report_close(&report, run_all(&o, &report));
}
