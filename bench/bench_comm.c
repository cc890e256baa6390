/* SPDX-License-Identifier: Apache-2.0
 *
 * Collectives between ranks that are threads. One call is the time of a loop in which every rank
 * writes its buffer, communicates and reads the result, less that of the same loop without the
 * communication: a loop without writing and reading would find everything in the caches of the
 * rank that needs it. From 4 MiB on, buffers are used again as they are.
 *
 * Beside each figure, measured in the same minute: all ranks copying at the same time as many bytes
 * out of all ranks' buffers as the collective has to read and write at the least, with memcpy and
 * past the caches; the hand-over of a cache line; and MPI libraries, where there are any. */
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "bench/support/bench_mpi.h"
#include "bench/support/bench_report.h"
#include "mesh/runtime.h"

enum { MAX_RANKS = 64, FRESH_BYTES = 1 << 20, WARM_UP = 2, MOST_CALLS = 200 };

/* clang-format off */
static const bench_column columns[] = {
    { "op", "operation", 14, -1 },
    { "mesh", "mesh", 6, -1 },
    { "bytes", "bytes", 9, 0 },
    { "us", "us", 9, 2 },
    { "us_quarter", "quarter", 9, 2 },
    { "us_3_quarters", "3/4", 9, 2 },
    { "memcpy_us", "memcpy us", 9, 2 },
    { "stream_us", "stream us", 9, 2 },
    { "ratio", "ratio", 6, 2 },      /* the faster copy / us */
    { "handoff_ns", "handoff", 7, 0 },
    { "handoffs", "handoffs", 8, 1 }, /* us / handoff */
    { "openmpi_us", "Open MPI", 10, 2 },
    { "mpich_us", "MPICH", 10, 2 },
    { "processes_us", "processes", 10, 2 }, /* dtensor over Open MPI */
    { "faster", "faster", 7, 1 },    /* Open MPI / us */
};
/* clang-format on */

typedef struct comm_options {
    bench_common common;
    int64_t samples;
    const char *op; /* NULL: all */
    bool no_mpi;
} comm_options;

static const int64_t all_sizes[] = { 1 << 10, 16 << 10, 1 << 20, 64 << 20 };

typedef struct rank_buffers {
    float *send, *recv; /* [most_bytes], the next row's */
} rank_buffers;

typedef struct comm_job {
    const comm_options *options;
    const char *mesh;
    int n_sizes;
    const bench_machine *limits;
    bench_report *report;
    bench_mpi openmpi, mpich, processes; /* the last: ours over Open MPI */
    rank_buffers buffers[MAX_RANKS];
} comm_job;

/* One rank's side of one row. S bytes are what each rank puts into all_reduce, reduce_scatter and
 * all_to_all, what all get out of all_gather and broadcast. */
typedef struct row {
    comm_job *job;
    dt_runtime *rt;
    dti_comm *comm;
    dti_comm_op op;
    int64_t bytes, n; /* S, and in floats */
    int64_t counts[MAX_RANKS], total[1];
    float *send, *recv;
    int calls;
} row;

static dt_status communicate(const row *r)
{
    dti_comm_call call = { .op = r->op,
                           .dtype = DT_F32,
                           .reduce = DT_SUM,
                           .send = r->send,
                           .recv = r->recv,
                           .counts = r->counts,
                           .send_counts = r->counts };

    if (r->op == DTI_COMM_ALL_REDUCE || r->op == DTI_COMM_BROADCAST) call.counts = r->total;
    if (r->op == DTI_COMM_BROADCAST && r->comm->rank == 0) call.recv = r->send;
    DT_TRY(dti_comm_run(r->comm, &call));
    return DT_OK;
}

/* What this rank contributes, small numbers so that sums stay finite. */
static void rewrite(const row *r, int round)
{
    for (int64_t i = 0; i < r->n; i++) r->send[i] = (float)((i + round) & 255);
}

static float consume(const row *r)
{
    float sum[16] = { 0 };

    for (int64_t i = 0; i + 16 <= r->n; i += 16)
        for (int k = 0; k < 16; k++) sum[k] += r->recv[i + k];
    return sum[0] + sum[7];
}

static dt_status loop(const row *r, bool communicates, double *ns)
{
    const bool fresh = r->bytes <= FRESH_BYTES && r->op != DTI_COMM_BARRIER;
    volatile float sink = 0;
    int64_t begin;

    DT_TRY(dti_barrier(r->comm));
    begin = dti_now_ns();
    for (int k = 0; k < r->calls; k++) {
        if (fresh) rewrite(r, k);
        if (communicates) DT_TRY(communicate(r));
        if (fresh) sink = sink + consume(r);
    }
    *ns = (double)(dti_now_ns() - begin) / r->calls;
    return DT_OK;
}

/* Bytes that a rank has to read, and as many on average to write. */
static double least_copy(const row *r)
{
    const double s = (double)r->bytes, ranks = r->comm->size;

    switch (r->op) {
    case DTI_COMM_REDUCE_SCATTER: /* all terms of its block in, the block out */
        return (s + s / ranks) / 2;
    case DTI_COMM_BROADCAST: /* all but the root */
        return s * (ranks - 1) / ranks;
    case DTI_COMM_BARRIER:
        return 0;
    default: /* S in, S out */
        return s;
    }
}

static dt_status time_copy(const row *r, bool past_caches, double *ns)
{
    const int me = r->comm->rank, n = r->comm->size;
    const size_t part = (size_t)(least_copy(r) / n) / 64 * 64;
    int64_t begin;

    DT_TRY(dti_barrier(r->comm));
    begin = dti_now_ns();
    for (int k = 0; k < n; k++) {
        const int from = (me + k) % n;
        char *to = (char *)r->recv + (size_t)from * part;
        const char *x = (const char *)r->job->buffers[from].send + (size_t)me * part;
        if (past_caches)
            r->job->limits->loops->copy(to, x, part);
        else
            memcpy(to, x, part);
    }
    DT_TRY(dti_barrier(r->comm));
    *ns = (double)(dti_now_ns() - begin);
    return DT_OK;
}

typedef struct row_samples {
    bench_samples call, memcpy, stream, ratio, handoff;
} row_samples;

static dt_status sample(const row *r, row_samples *s)
{
    double with, without, copied, streamed, best;

    DT_TRY(loop(r, true, &with));
    DT_TRY(loop(r, false, &without));
    DT_TRY(time_copy(r, false, &copied));
    DT_TRY(time_copy(r, true, &streamed));
    best = copied < streamed ? copied : streamed;
    bench_add(&s->call, with - without);
    bench_add(&s->memcpy, copied);
    bench_add(&s->stream, streamed);
    bench_add(&s->ratio, best / (with - without));
    return DT_OK;
}

static dt_status add_handoff(const row *r, row_samples *s)
{
    double ns = 0;

    DT_TRY(bench_alone(r->rt, bench_handoff_ns, r->job->limits, &ns));
    bench_add(&s->handoff, ns);
    return DT_OK;
}

static void report(const row *r, const row_samples *s)
{
    const char *name = dti_comm_op_name(r->op);
    const bool moves = r->op != DTI_COMM_BARRIER;
    const double us = bench_median(&s->call) * 1e-3, none = (double)NAN;
    const double openmpi = bench_mpi_us(&r->job->openmpi, name, r->bytes);

    bench_report_row(r->job->report, name, r->job->mesh, (double)r->bytes, us,
                     bench_quantile(&s->call, 0.25) * 1e-3, bench_quantile(&s->call, 0.75) * 1e-3,
                     moves ? bench_median(&s->memcpy) * 1e-3 : none,
                     moves ? bench_median(&s->stream) * 1e-3 : none,
                     moves ? bench_median(&s->ratio) : none, bench_median(&s->handoff),
                     us * 1e3 / bench_median(&s->handoff), openmpi,
                     bench_mpi_us(&r->job->mpich, name, r->bytes),
                     bench_mpi_us(&r->job->processes, name, r->bytes), openmpi / us);
}

static dt_status run_row(row *r)
{
    const comm_options *o = r->job->options;
    const int64_t most = o->common.quick ? 2 : r->bytes > FRESH_BYTES ? o->samples / 4 : o->samples;
    row_samples s = { 0 };

    r->n = r->total[0] = r->bytes / 4;
    for (int m = 0; m < r->comm->size; m++) r->counts[m] = r->n / r->comm->size;
    r->calls = r->bytes > 0 ? (int)((4 << 20) / r->bytes) : MOST_CALLS;
    if (r->calls > MOST_CALLS) r->calls = MOST_CALLS;
    if (r->calls < 1) r->calls = 1;
    DT_TRY(add_handoff(r, &s));
    for (int64_t i = -WARM_UP; i < most; i++) {
        DT_TRY(sample(r, &s));
        if (i == -1) s.call.n = s.memcpy.n = s.stream.n = s.ratio.n = 0;
    }
    DT_TRY(add_handoff(r, &s));
    if (r->comm->rank == 0) report(r, &s);
    return DT_OK;
}

static dt_status run_rows(row *r)
{
    static const dti_comm_op ops[] = { DTI_COMM_BARRIER,    DTI_COMM_ALL_REDUCE,
                                       DTI_COMM_ALL_GATHER, DTI_COMM_REDUCE_SCATTER,
                                       DTI_COMM_ALL_TO_ALL, DTI_COMM_BROADCAST };
    const char *only = r->job->options->op;

    for (size_t i = 0; i < DT_COUNT(ops); i++)
        for (int k = 0; k < (ops[i] == DTI_COMM_BARRIER ? 1 : r->job->n_sizes); k++) {
            if (only != NULL && strcmp(only, dti_comm_op_name(ops[i])) != 0) continue;
            r->op = ops[i];
            r->bytes = ops[i] == DTI_COMM_BARRIER ? 0 : all_sizes[k];
            DT_TRY(run_row(r));
        }
    return DT_OK;
}

static dt_status on_rank(dt_runtime *rt, void *arg)
{
    comm_job *j = arg;
    const size_t bytes = (size_t)all_sizes[j->n_sizes - 1];
    row r = { .job = j, .rt = rt, .comm = dti_runtime_world(rt) };
    void *send = NULL, *recv = NULL;
    dt_status st = DT_OK;

    DT_TRY_TO(done, st, dti_big_alloc(bytes, &send));
    DT_TRY_TO(done, st, dti_big_alloc(bytes, &recv));
    r.send = j->buffers[r.comm->rank].send = send;
    r.recv = j->buffers[r.comm->rank].recv = recv;
    r.n = (int64_t)bytes / 4;
    rewrite(&r, 1);
    memset(recv, 1, bytes);
    DT_TRY_TO(done, st, run_rows(&r));
done:
    if (st != DT_OK) (void)dti_runtime_alone(rt, st);
    dti_big_free(send, bytes);
    dti_big_free(recv, bytes);
    return st;
}

static dt_status run_mesh(comm_job *j, const char *spec)
{
    const comm_options *o = j->options;
    bench_case c;

    DT_TRY(bench_case_of(&o->common, spec, &c));
    DT_CHECK(c.n_ranks <= MAX_RANKS, DT_ERR_ARG, "--mesh \"%s\": at most %d ranks", spec,
             MAX_RANKS);
    j->mesh = spec;
    j->openmpi.n = j->mpich.n = j->processes.n = 0;
    if (!o->no_mpi && !o->common.quick) {
        const size_t n = (size_t)j->n_sizes;
        (void)bench_mpi_run("openmpi", "openmpi", c.n_ranks, all_sizes, n, &j->openmpi);
        (void)bench_mpi_run("mpich", "mpich", c.n_ranks, all_sizes, n, &j->mpich);
        (void)bench_mpi_run("processes", "openmpi", c.n_ranks, all_sizes, n, &j->processes);
    }
    c.threads = 1;
    DT_TRY(bench_run(&o->common, &c, on_rank, j));
    return DT_OK;
}

static dt_status run(const comm_options *o, bench_report *report)
{
    static const char *const meshes[] = { "tp=2", "tp=4" };
    const size_t bytes = o->common.quick ? 4 << 20 : 1 << 30;
    comm_job j = { .options = o, .report = report };
    bench_machine limits;
    dt_status st = DT_OK;

    j.n_sizes = o->common.quick ? 2 : (int)DT_COUNT(all_sizes);
    DT_TRY(bench_limits_open((int)o->common.threads, bytes, &limits));
    j.limits = &limits;
    bench_report_fact(report, "copy", "%.1f GB/s read and written past the caches, %d threads",
                      bench_copy_gbs(&limits), limits.n_threads);
    if (o->common.mesh != NULL) DT_TRY_TO(done, st, run_mesh(&j, o->common.mesh));
    for (size_t i = 0; o->common.mesh == NULL && i < DT_COUNT(meshes); i++)
        DT_TRY_TO(done, st, run_mesh(&j, meshes[i]));
done:
    bench_machine_close(&limits);
    return st;
}

int main(int argc, char **argv)
{
    comm_options o = { .samples = 60 };
    const bench_option own[] = {
        { "--samples", "N", "per figure, a quarter of them from 4 MiB on (default: 60)",
          BENCH_COUNT, &o.samples },
        { "--op", "NAME", "one operation: barrier, all_reduce, ...", BENCH_TEXT, &o.op },
        { "--no-mpi", NULL, "leave MPI libraries out", BENCH_FLAG, &o.no_mpi },
    };
    bench_report report;
    int exit_code;

    if (!bench_parse(argc, argv, "Collectives against copying as much, and against MPI.", own,
                     DT_COUNT(own), &o.common, &exit_code))
        return exit_code;
    if (o.samples < 8) o.samples = 8;
    bench_report_open(&report, "comm", &o.common, columns, DT_COUNT(columns));
    return bench_report_close(&report, run(&o, &report));
}
