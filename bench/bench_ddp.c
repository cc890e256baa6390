/* SPDX-License-Identifier: Apache-2.0
 *
 * What of the reductions of a data parallel step is hidden behind it, on dp=2 over simulated links
 * of such a bandwidth that gradients travel for a given share of the step's computing. In one run,
 * in turns: passes that reduce nothing, passes that reduce at their end, passes whose buckets are
 * reduced while they go on. Whole gradients travel once, cut ones after each of four passes. The
 * limit is the longer one of computing and transfers; nothing can travel during the first forward
 * pass, which `possible` knows.
 *
 * A small Llama computes on this machine's cores, which helpers of ranks need as well; layers that
 * are "asleep" compute by sleeping, as on a machine with cores for everything, so that their
 * figures stand on a busy machine too. */
#include <dtensor/factories.h>
#include <dtensor/model_training.h>
#include <dtensor/ops.h>
#include <dtensor/timeline.h>
#include <math.h>
#include <string.h>
#include <time.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_model.h"
#include "bench/support/bench_report.h"
#include "dtensor/create.h"
#include "dtensor/leaf_moves.h"
#include "dtensor/leaves.h"
#include "placements/shard_over.h"
#include "training/buckets.h"

static const bench_shapes llama_26m = {
    512, 6, 8, 4, 64, 1408, 8192, 1024, DT_F32, "llama", false
};

/* clang-format off */
static const bench_column columns[] = {
    { "what", "what", 6, -1 },
    { "gradients", "grads", 6, -1 },   /* whole: once a step; cut: in each pass */
    { "mesh", "mesh", 6, -1 },
    { "share", "share", 6, 2 },          /* of transfers, of computing: as asked for */
    { "microbatches", "passes", 6, 0 },
    { "compute_ms", "compute", 8, 1 },
    { "forward_ms", "forward", 8, 1 },   /* of the first pass: nothing travels yet */
    { "transfer_ms", "transfer", 8, 1 }, /* by bytes and calls */
    { "serial_ms", "serial", 8, 1 },
    { "overlap_ms", "overlap", 8, 1 },
    { "ratio", "ratio", 6, 3 },          /* overlap / max(compute, transfer) */
    { "serial_ratio", "serial", 6, 3 },
    { "possible", "possible", 8, 3 },    /* max(compute, forward + transfer) / max(compute, transfer) */
    { "hidden", "hidden", 6, 3 },        /* (serial - overlap) / min(compute, transfer) */
    { "mbs", "MB/s", 8, 1 },
    { "buckets", "buckets", 7, 0 },
};
/* clang-format on */

typedef struct ddp_options {
    bench_common common;
    bench_shapes shapes;
    int64_t batch, tokens, passes, rounds, bucket_kib, latency_us, nap_us;
    bool asleep;
    const char *trace;
} ddp_options;

typedef enum how { COMPUTE, SERIAL, OVERLAP, N_HOW } how;

typedef struct ddp_job {
    const ddp_options *options;
    const char *mesh, *folder;
    int64_t passes;
    bool cut; /* gradients travel in each pass, to be cut over the ranks (ZeRO-2) */
    int32_t *ids;
    bool writes;
    dt_link link;                          /* bytes_per_ns 0: the machine's */
    bench_samples seconds[N_HOW], forward; /* from here on: written by rank 0 */
    double bytes, calls;                   /* of an overlapped step's gradients */
} ddp_job;

enum { MOST_LEAVES = 256, NAPS = 16, NAP_WIDTH = 512, NAP_ROWS = 8 };

typedef struct rank_state {
    dt_runtime *rt;
    const ddp_job *job;
    dt_mesh *mesh;
    dt_model *model;        /* or */
    dt_tensor *w[NAPS], *x; /* layers that sleep */
    dt_gradients *gradients;
    dti_buckets *buckets;
    dt_tape *tape;
    int64_t n;
    const dt_layout *want[MOST_LEAVES];
    double seconds, forward;
    dt_comm_counter sent; /* by the backward pass */
} rank_state;

/* --- layers that sleep ------------------------------------------------------------------------ */

static void sleep_us(int64_t us)
{
    (void)nanosleep(&(struct timespec){ us / 1000000, us % 1000000 * 1000 }, NULL);
}

static dt_status nap_kernel(const dt_kargs *a)
{
    size_t n = sizeof(float);

    for (int i = 0; i < a->in[0].n_axes; i++) n *= (size_t)a->in[0].shape[i];
    memcpy(a->out[0].data, a->in[0].data, n);
    sleep_us(*(const int64_t *)a->attr);
    return DT_OK;
}

/* Twice as long as forward, as products take. */
static void nap_backward(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx);

static const dt_op nap = { .name = "nap",
                           .axes = "... -> ...",
                           .types = "f>f",
                           .attr_bytes = sizeof(int64_t),
                           .cpu = nap_kernel,
                           .backward = nap_backward };

static void nap_backward(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx)
{
    const int64_t us = 2 * *(const int64_t *)dt_node_attr(node);

    dx[0] = dt_apply(t, &nap, &us, 1, dy);
}

static dt_tensor *nap_loss(rank_state *r)
{
    const int64_t us = r->job->options->nap_us;
    dt_tensor *y = r->x;

    for (int i = 0; i < NAPS; i++) {
        y = dt_linear(r->tape, y, r->w[i], NULL);
        y = dt_apply(r->tape, &nap, &us, 1, &y);
    }
    return dt_sum(r->tape, y, DT_ALL_AXES);
}

static dt_status open_naps(rank_state *r)
{
    const int64_t shape[] = { NAP_WIDTH, NAP_WIDTH }, rows[] = { NAP_ROWS, NAP_WIDTH };
    const dt_placement whole[DT_MAX_DIMS] = { DT_REPLICATE }, cut[DT_MAX_DIMS] = { DT_SHARD(0) };

    DT_TRY(dt_rand(r->mesh, cut, DT_F32, 2, rows, (dt_random){ 1, 0 }, &r->x));
    for (int i = 0; i < NAPS; i++) {
        DT_TRY(dt_zeros(r->mesh, whole, DT_F32, 2, shape, &r->w[i]));
        DT_TRY(dt_gradients_watch(r->gradients, r->w[i]));
    }
    return DT_OK;
}

/* --- a step ----------------------------------------------------------------------------------- */

static dt_tensor *loss_of(rank_state *r)
{
    const ddp_options *o = r->job->options;
    dt_loss_options options = DT_LOSS_OPTIONS_INIT;
    dt_tensor *ids;

    if (r->model == NULL) return nap_loss(r);
    options.n_valid = (double)(o->batch * o->tokens * r->job->passes);
    ids = dt_model_ids(r->tape, r->model, r->job->ids, o->batch, o->tokens);
    return dt_model_loss(r->tape, r->model, ids, ids, &options);
}

static void set_out(void *arg, dt_tape *t, dt_tensor *leaf)
{
    rank_state *r = arg;
    const dt_status st = dti_buckets_take(r->buckets, t, dti_leaf_number(r->gradients, leaf));

    if (st != DT_OK) (void)dti_tape_latch(t, st);
}

static dt_comm_counter sent(const dt_tape *t)
{
    return dt_tape_comm_in(t, NULL, 0, DT_N_COMM_KINDS);
}

static dt_status one_pass(rank_state *r, how h, int64_t pass, double *forward_ends)
{
    const bool travels = h != COMPUTE && (r->job->cut || pass == r->job->passes - 1);
    const bool meanwhile = travels && h == OVERLAP;
    const dt_backward_options options = { .ready = meanwhile ? set_out : NULL, .arg = r };
    dt_comm_counter before;
    dt_tensor *loss;

    dt_tape_record(r->tape, r->gradients);
    loss = loss_of(r);
    if (pass == 0) *forward_ends = (double)dti_now_ns();
    before = sent(r->tape);
    if (meanwhile) dti_buckets_open(r->buckets);
    dt_backward(r->tape, loss, &options);
    DT_TRY(dt_tape_status(r->tape));
    if (meanwhile) DT_TRY(dti_buckets_close(r->buckets, r->tape));
    for (int64_t i = 0; travels && h == SERIAL && i < r->n; i++)
        DT_TRY(dti_leaf_settle(r->gradients, i, r->want[i], r->tape));
    r->sent.calls += sent(r->tape).calls - before.calls;
    r->sent.bytes += sent(r->tape).bytes - before.bytes;
    dt_tape_reset(r->tape);
    return DT_OK;
}

static dt_status step(rank_state *r, how h)
{
    static const char *const names[N_HOW] = { "compute", "serial", "overlap" };
    double forward_ends = 0;
    int64_t begin;

    DT_TRY(bench_barrier(r->rt));
    r->sent = (dt_comm_counter){ 0, 0 };
    begin = dti_now_ns();
    dt_timeline_begin(r->rt, names[h]);
    for (int64_t pass = 0; pass < r->job->passes; pass++)
        DT_TRY(one_pass(r, h, pass, &forward_ends));
    if (h == OVERLAP) DT_TRY(dti_buckets_finish(r->buckets, NULL));
    dt_timeline_end(r->rt);
    r->seconds = (double)(dti_now_ns() - begin) * 1e-9;
    r->forward = (forward_ends - (double)begin) * 1e-9;
    dt_gradients_clear(r->gradients);
    return DT_OK;
}

static dt_status measure(rank_state *r, ddp_job *j)
{
    for (int64_t i = -1; i < j->options->rounds; i++)
        for (how h = COMPUTE; h < N_HOW; h++) {
            const bool noted = j->writes && i == j->options->rounds - 1;
            if (noted && h == COMPUTE) dt_timeline_start(r->rt);
            DT_TRY(step(r, h));
            if (noted && h == OVERLAP) dt_timeline_stop(r->rt);
            if (i < 0 || dt_runtime_rank(r->rt) != 0) continue;
            bench_add(&j->seconds[h], r->seconds);
            if (h == OVERLAP) bench_add(&j->forward, r->forward);
            j->bytes = (double)r->sent.bytes;
            j->calls = (double)r->sent.calls;
        }
    return DT_OK;
}

static dt_status want_of(const dt_tensor *w, bool cut, const dt_layout **out)
{
    int64_t shape[DT_MAX_AXES];

    *out = dt_tensor_layout(w);
    for (int a = 0; a < dt_tensor_n_axes(w); a++) shape[a] = dt_tensor_extent(w, a);
    if (cut) DT_TRY(dti_shard_over(*out, shape, 0, out));
    return DT_OK;
}

static dt_status open_state(rank_state *r)
{
    const ddp_job *j = r->job;
    dt_load_options load = DT_LOAD_OPTIONS_INIT;
    dt_tensor *w;

    load.keep_dtype = false;
    load.dtype = DT_F32;
    DT_TRY(dt_mesh_create(r->rt, j->mesh, &r->mesh));
    DT_TRY(dt_gradients_create(r->rt, &r->gradients));
    DT_TRY(dt_tape_create(r->rt, &r->tape));
    if (j->folder == NULL) DT_TRY(open_naps(r));
    if (j->folder != NULL) DT_TRY(dt_model_create_random(r->mesh, j->folder, &load, 1, &r->model));
    if (j->folder != NULL) DT_TRY(dt_layers_watch(dt_model_layers(r->model), r->gradients));
    for (; (w = dt_gradients_at(r->gradients, r->n)) != NULL && r->n < MOST_LEAVES; r->n++)
        DT_TRY(want_of(w, j->cut, &r->want[r->n]));
    return dti_buckets_create(r->gradients, r->n, r->want, j->options->bucket_kib << 10,
                              &r->buckets);
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    ddp_job *j = arg;
    rank_state r = { .rt = rt, .job = j };
    dt_status st = open_state(&r);

    if (st == DT_OK) st = measure(&r, j);
    if (st == DT_OK && j->writes) st = dt_timeline_write(rt, j->options->trace);
    dti_buckets_free(&r.buckets);
    dt_tape_release(&r.tape);
    dt_gradients_release(&r.gradients);
    for (int i = 0; i < NAPS; i++) dt_tensor_release(&r.w[i]);
    dt_tensor_release(&r.x);
    dt_model_release(&r.model);
    dt_mesh_release(&r.mesh);
    return st;
}

static dt_status run_steps(const ddp_options *o, const bench_case *c, ddp_job *j)
{
    dt_run_options run = DT_RUN_OPTIONS_INIT;

    run.n_ranks = c->n_ranks;
    run.threads_per_rank = c->threads;
    run.isa = o->common.isa;
    run.simulated_link = j->link.bytes_per_ns > 0 ? &j->link : NULL;
    DT_TRY(dt_run(&run, on_rank, j));
    return DT_OK;
}

/* The least of a few rounds: what others on the machine take is no part of it. */
static double least(bench_samples *s)
{
    return bench_quantile(s, 0) * 1e3;
}

static dt_status run_share(const ddp_options *o, const bench_case *c, ddp_job *j, double share,
                           bench_report *report)
{
    const double first = least(&j->seconds[COMPUTE]), bytes = j->bytes, calls = j->calls;
    const double latency = (double)o->latency_us * 1e3;
    double compute, serial, overlap, transfer, forward, limit;
    ddp_job with = { .options = o, .mesh = j->mesh, .folder = j->folder, .ids = j->ids };

    with.passes = j->passes;
    with.cut = j->cut;
    with.link = (dt_link){ latency, bytes / fmax(share * first * 1e6 - calls * latency, 1e3) };
    with.writes = o->trace != NULL;
    DT_TRY(run_steps(o, c, &with));
    compute = least(&with.seconds[COMPUTE]);
    serial = least(&with.seconds[SERIAL]);
    overlap = least(&with.seconds[OVERLAP]);
    forward = least(&with.forward);
    transfer = (calls * latency + bytes / with.link.bytes_per_ns) * 1e-6;
    limit = fmax(compute, transfer);
    bench_report_row(report, j->folder != NULL ? "llama" : "asleep", j->cut ? "cut" : "whole",
                     c->mesh, share, (double)j->passes, compute, forward, transfer, serial, overlap,
                     overlap / limit, serial / limit, fmax(compute, forward + transfer) / limit,
                     (serial - overlap) / fmin(compute, transfer), with.link.bytes_per_ns * 1e3,
                     calls);
    return DT_OK;
}

static dt_status run_shares(const ddp_options *o, const bench_case *c, ddp_job *j,
                            bench_report *report)
{
    static const double shares[] = { 0.5, 4, 0.25, 1 };
    const size_t n = o->common.quick ? 2 : DT_COUNT(shares);

    DT_TRY(run_steps(o, c, j));
    for (size_t i = 0; i < n; i++) DT_TRY(run_share(o, c, j, shares[i], report));
    return DT_OK;
}

static dt_status run(const ddp_options *o, bench_report *report)
{
    const char *mesh = o->common.mesh != NULL ? o->common.mesh : "dp=2";
    ddp_job j = { .options = o, .mesh = mesh };
    dt_status st = DT_OK;
    bench_folder folder;
    bench_case c;

    DT_TRY(bench_config_open(&o->shapes, &folder));
    DT_TRY_TO(done, st,
              dti_alloc_array((size_t)(o->batch * o->tokens), sizeof *j.ids, (void **)&j.ids));
    for (int64_t i = 0; i < o->batch * o->tokens; i++)
        j.ids[i] = (int32_t)(i * 7919 % o->shapes.vocab);
    DT_TRY_TO(done, st, bench_case_of(&o->common, mesh, &c));
    for (int asleep = 1; asleep >= 0; asleep--) {
        for (int cut = 0; cut < 2; cut++) {
            ddp_job with = j;
            with.folder = asleep ? NULL : folder.path;
            with.cut = cut;
            with.passes = cut ? 4 * o->passes : o->passes;
            if (asleep || !o->asleep) DT_TRY_TO(done, st, run_shares(o, &c, &with, report));
        }
    }
done:
    dti_free(j.ids);
    bench_folder_close(&folder, false);
    return st;
}

int main(int argc, char **argv)
{
    ddp_options o = { .shapes = llama_26m,
                      .batch = 4,
                      .tokens = 256,
                      .passes = 1,
                      .rounds = 5,
                      .bucket_kib = 2048,
                      .latency_us = 50,
                      .nap_us = 4000 };
    const bench_option own[] = {
        { "--batch", "N", "sequences of a pass (default 4)", BENCH_COUNT, &o.batch },
        { "--tokens", "N", "of each of them (default 256)", BENCH_COUNT, &o.tokens },
        { "--passes", "N", "of a step (default 1; four times as many where gradients are cut)",
          BENCH_COUNT, &o.passes },
        { "--bucket-kib", "N", "gradients that travel together (default 2048)", BENCH_COUNT,
          &o.bucket_kib },
        { "--latency-us", "N", "of links (default 50)", BENCH_COUNT, &o.latency_us },
        { "--rounds", "N", "of which the fastest counts (default 5)", BENCH_COUNT, &o.rounds },
        { "--asleep", NULL, "layers that sleep alone", BENCH_FLAG, &o.asleep },
        { "--trace", "FILE", "a time line of the last row's last round, for Perfetto", BENCH_TEXT,
          &o.trace },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Gradients that are reduced while backward goes on.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.common.quick) {
        o.shapes = bench_llama_tiny;
        o.batch = 2;
        o.tokens = 16;
        o.rounds = 1;
        o.bucket_kib = 16;
        o.latency_us = 1;
        o.nap_us = 50;
    }
    bench_report_open(&report, "ddp", &o.common, columns, DT_COUNT(columns));
    bench_report_fact(&report, "model", "llama, %lld layers of %lld, vocabulary %lld; %lld x %lld",
                      (long long)o.shapes.layers, (long long)o.shapes.hidden,
                      (long long)o.shapes.vocab, (long long)o.batch, (long long)o.tokens);
    bench_report_fact(&report, "buckets", "%lld KiB, links of %lld us", (long long)o.bucket_kib,
                      (long long)o.latency_us);
    return bench_report_close(&report, run(&o, &report));
}
