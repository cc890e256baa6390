/* SPDX-License-Identifier: Apache-2.0
 *
 * What of a move is hidden behind a kernel: the time of a sum over the ranks, of products that take
 * about as long, of one after the other, and of the sum begun before the products and waited for
 * after them. 1 hides all of the shorter one, 0 nothing. On the machine's own links copies need the
 * cores that the products need; over simulated ones (--latency-us, --mbs) a move takes its time
 * without a core, as between hosts. */
#include <dtensor/async.h>
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <math.h>

#include "base/sync.h"
#include "bench/support/bench_report.h"

/* clang-format off */
static const bench_column columns[] = {
    { "link", "link", 9, -1 },
    { "mesh", "mesh", 6, -1 },
    { "bytes", "bytes", 9, 0 }, /* of the terms on a rank */
    { "move_us", "move us", 9, 1 },
    { "kernel_us", "kernel us", 9, 1 },
    { "serial_us", "serial us", 9, 1 },
    { "overlap_us", "overlap us", 10, 1 },
    { "hidden", "hidden", 6, 3 }, /* (serial - overlap) / min(move, kernel) */
};
/* clang-format on */

typedef struct overlap_options {
    bench_common common;
    int64_t samples, latency_us, mbs;
} overlap_options;

typedef struct overlap_job {
    const overlap_options *options;
    const char *link;
    bench_case c;
    bench_report *report;
} overlap_job;

enum { ROWS = 64, WIDTH = 512, QUICK_WIDTH = 32 };

typedef struct work {
    dt_tape *tape;
    dt_tensor *x, *w, *terms;
    int products;
} work;

static void multiply(const work *k)
{
    dt_tensor *y = k->x;

    for (int i = 0; i < k->products; i++) y = dt_linear(k->tape, y, k->w, NULL);
}

typedef enum what { MOVE, KERNEL, SERIAL, OVERLAP } what;

/* One round, from all ranks' start to the end of this one's. */
static dt_status round_of(dt_runtime *rt, const work *k, what do_what, double *us)
{
    const dt_placement shards[] = { DT_SHARD(0) };
    dt_pending *sum = NULL;
    int64_t begin;

    DT_TRY(bench_barrier(rt));
    begin = dti_now_ns();
    if (do_what == OVERLAP) sum = dt_move_begin(k->tape, k->terms, shards);
    if (do_what == MOVE || do_what == SERIAL) (void)dt_move(k->tape, k->terms, shards);
    if (do_what != MOVE) multiply(k);
    if (do_what == OVERLAP) (void)dt_move_wait(k->tape, sum);
    *us = (double)(dti_now_ns() - begin) / 1e3;
    DT_TRY(dt_tape_status(k->tape));
    dt_tape_reset(k->tape);
    return DT_OK;
}

static dt_status measure(dt_runtime *rt, const overlap_job *j, work *k, double bytes)
{
    bench_samples s[4] = { 0 };
    double us, hidden;

    for (int64_t i = -2; i < j->options->samples; i++)
        for (what d = MOVE; d <= OVERLAP; d++) {
            DT_TRY(round_of(rt, k, d, &us));
            if (i >= 0) bench_add(&s[d], us);
        }
    if (dt_runtime_rank(rt) != 0) return DT_OK;
    hidden = (bench_median(&s[SERIAL]) - bench_median(&s[OVERLAP])) /
             fmin(bench_median(&s[MOVE]), bench_median(&s[KERNEL]));
    bench_report_row(j->report, j->link, j->c.mesh, bytes, bench_median(&s[MOVE]),
                     bench_median(&s[KERNEL]), bench_median(&s[SERIAL]), bench_median(&s[OVERLAP]),
                     hidden);
    return DT_OK;
}

/* As many products as take as long as the move, the same on all ranks. */
static dt_status balance(dt_runtime *rt, dt_mesh *mesh, work *k)
{
    const dt_placement whole[] = { DT_REPLICATE }, term[] = { DT_PARTIAL(DT_SUM) };
    const int64_t shape[] = { 1 };
    double move, kernel;
    float products;
    dt_tensor *mine, *all;

    k->products = 1;
    for (int warm = 0; warm < 3; warm++) {
        DT_TRY(round_of(rt, k, MOVE, &move));
        DT_TRY(round_of(rt, k, KERNEL, &kernel));
    }
    products = (float)fmin(fmax(round(move / kernel), 1), 64);
    DT_TRY(dt_from_local(mesh, term, DT_F32, 1, shape, &products, &mine));
    DT_TRY(dt_redistribute(mine, whole, &all));
    k->products =
        (int)(((const float *)dt_tensor_local(all)->data)[0] / (float)dt_mesh_n_ranks(mesh));
    dt_tensor_release(&mine);
    dt_tensor_release(&all);
    return DT_OK;
}

static dt_status one_size(dt_runtime *rt, const overlap_job *j, dt_mesh *mesh, work *k, int64_t n)
{
    const dt_placement term[] = { DT_PARTIAL(DT_SUM) };
    const dt_layout *layout;

    DT_TRY(dt_layout_get(mesh, 1, term, NULL, &layout));
    DT_TRY(dt_zeros_laid(mesh, layout, DT_F32, &n, &k->terms));
    DT_TRY(balance(rt, mesh, k));
    DT_TRY(measure(rt, j, k, (double)n * 4));
    dt_tensor_release(&k->terms);
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const overlap_job *j = arg;
    const bool quick = j->options->common.quick;
    const int64_t width = quick ? QUICK_WIDTH : WIDTH;
    const int64_t x_shape[] = { ROWS, width }, w_shape[] = { width, width };
    dt_mesh *mesh;
    work k = { 0 };

    DT_TRY(dt_mesh_create(rt, j->c.mesh, &mesh));
    DT_TRY(dt_tape_create(rt, &k.tape));
    DT_TRY(dt_rand(mesh, whole, DT_F32, 2, x_shape, (dt_random){ 1, 0 }, &k.x));
    DT_TRY(dt_rand(mesh, whole, DT_F32, 2, w_shape, (dt_random){ 1, 1 }, &k.w));
    DT_TRY(dt_fill_rand(k.w, (dt_random){ 1, 1 }, -0.03, 0.03));
    for (int64_t n = quick ? 1 << 10 : 1 << 16; n <= (quick ? 1 << 12 : 1 << 22); n *= 4)
        DT_TRY(one_size(rt, j, mesh, &k, n));
    dt_tensor_release(&k.w);
    dt_tensor_release(&k.x);
    dt_tape_release(&k.tape);
    dt_mesh_release(&mesh);
    return DT_OK;
}

static dt_status run_all(overlap_options *o, bench_report *report)
{
    const dt_link slow = { (double)o->latency_us * 1e3, (double)o->mbs / 1e3 };
    const char *mesh = o->common.mesh != NULL ? o->common.mesh : "dp=2";

    for (int simulated = 0; simulated < 2; simulated++) {
        overlap_job j = { .options = o, .link = simulated ? "simulated" : "own", .report = report };
        dt_run_options run = DT_RUN_OPTIONS_INIT;
        DT_TRY(bench_case_of(&o->common, mesh, &j.c));
        run.n_ranks = j.c.n_ranks;
        run.threads_per_rank = j.c.threads;
        run.isa = o->common.isa;
        run.simulated_link = simulated ? &slow : NULL;
        DT_TRY(dt_run(&run, rank_main, &j));
    }
    return DT_OK;
}

int main(int argc, char **argv)
{
    overlap_options o = { .samples = 15, .latency_us = 50, .mbs = 1000 };
    const bench_option own[] = {
        { "--samples", "N", "rounds of each row (default 15)", BENCH_COUNT, &o.samples },
        { "--latency-us", "N", "of simulated links (default 50)", BENCH_COUNT, &o.latency_us },
        { "--mbs", "N", "MB/s of simulated links (default 1000)", BENCH_COUNT, &o.mbs },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Moves that travel while kernels run.", own, DT_COUNT(own),
                     &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) o.samples = 2;
    bench_report_open(&report, "overlap", &o.common, columns, DT_COUNT(columns));
    bench_report_fact(&report, "simulated_link", "%lld us, %lld MB/s", (long long)o.latency_us,
                      (long long)o.mbs);
    return bench_report_close(&report, run_all(&o, &report));
}
