/* SPDX-License-Identifier: Apache-2.0
 *
 * Our collectives between ranks that are processes, timed as mpi_collectives.c times those of
 * an MPI library. bench_comm starts it under mpirun and reads its lines "operation bytes
 * microseconds". Arguments: sizes in bytes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/sync.h"
#include "bench/mpi/pages.h"
#include "mesh/runtime.h"

enum { SAMPLES = 41, MOST_CALLS = 200, FRESH_BYTES = 1 << 20, MAX_RANKS = 256, MAX_SIZES = 16 };

static const dti_comm_op ops[] = { DTI_COMM_ALL_REDUCE,     DTI_COMM_ALL_GATHER,
                                   DTI_COMM_REDUCE_SCATTER, DTI_COMM_ALL_TO_ALL,
                                   DTI_COMM_BROADCAST,      DTI_COMM_BARRIER };

typedef struct job {
    dti_comm *comm;
    dti_comm_op op;
    int64_t n; /* floats: S of bench_comm */
    int64_t counts[MAX_RANKS], total[1];
    float *send, *recv;
} job;

typedef struct arguments {
    int n;
    int64_t bytes[MAX_SIZES];
} arguments;

static dt_status communicate(const job *j)
{
    const bool whole = j->op == DTI_COMM_ALL_REDUCE || j->op == DTI_COMM_BROADCAST;
    const dti_comm_call call = { .op = j->op,
                                 .send = j->send,
                                 .recv = j->recv,
                                 .counts = whole ? j->total : j->counts,
                                 .send_counts = j->counts };

    return dti_comm_run(j->comm, &call);
}

static double consume(const float *x, int64_t n)
{
    float sum[16] = { 0 };

    for (int64_t i = 0; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) sum[k] += x[i + k];
    return (double)sum[0] + (double)sum[7];
}

/* Nanoseconds of `calls` rounds of writing, communicating and reading. */
static dt_status loop(const job *j, int calls, bool communicates, double *ns)
{
    const bool fresh = j->n <= FRESH_BYTES / 4 && j->op != DTI_COMM_BARRIER;
    volatile double sink = 0;
    int64_t begin;

    DT_TRY(dti_barrier(j->comm));
    begin = dti_now_ns();
    for (int k = 0; k < calls; k++) {
        for (int64_t i = 0; fresh && i < j->n; i++) j->send[i] = (float)((i + k) & 255);
        if (communicates) DT_TRY(communicate(j));
        if (fresh) sink = sink + consume(j->recv, j->n);
    }
    *ns = (double)(dti_now_ns() - begin);
    return DT_OK;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* As many calls as fill a fifth of a millisecond, and samples for at most half a second. */
static dt_status measure(const job *j)
{
    double sample[SAMPLES], with, without;
    int64_t plan[2] = { MOST_CALLS, SAMPLES };

    DT_TRY(loop(j, 2, true, &with));
    DT_TRY(loop(j, 3, true, &with));
    if (with / 3 * MOST_CALLS > 2e5) plan[0] = 1 + (int64_t)(2e5 / (with / 3));
    if (with / 3 * (double)plan[0] * SAMPLES > 5e8)
        plan[1] = (int64_t)(5e8 / (with / 3 * (double)plan[0])) | 1;
    DT_TRY(dti_broadcast(j->comm, plan, 2, DT_I64, 0));
    for (int i = 0; i < plan[1]; i++) {
        DT_TRY(loop(j, (int)plan[0], true, &with));
        DT_TRY(loop(j, (int)plan[0], false, &without));
        sample[i] = (with - without) / (double)plan[0] * 1e-3;
    }
    qsort(sample, (size_t)plan[1], sizeof sample[0], by_size);
    if (j->comm->rank == 0)
        (void)printf("%s %lld %.3f\n", dti_comm_op_name(j->op),
                     j->op == DTI_COMM_BARRIER ? 0LL : 4LL * j->n, sample[plan[1] / 2]);
    return DT_OK;
}

static dt_status measure_all(job *j, const arguments *a)
{
    for (size_t k = 0; k < DT_COUNT(ops); k++)
        for (int i = 0; i < a->n; i++) {
            j->op = ops[k];
            j->n = a->bytes[i] / 4 / j->comm->size * j->comm->size;
            j->total[0] = j->n;
            for (int r = 0; r < j->comm->size; r++) j->counts[r] = j->n / j->comm->size;
            if (j->op != DTI_COMM_BARRIER || i == 0) DT_TRY(measure(j));
        }
    return DT_OK;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const arguments *a = arg;
    job j = { .comm = dti_runtime_world(rt) };
    size_t most = 4096;
    dt_status st = DT_OK;

    DT_CHECK(j.comm->size <= MAX_RANKS, DT_ERR_ARG, "at most %d ranks", MAX_RANKS);
    for (int i = 0; i < a->n; i++)
        if ((size_t)a->bytes[i] > most) most = (size_t)a->bytes[i];
    j.send = bench_alloc_pages(most);
    j.recv = bench_alloc_pages(most);
    DT_CHECK_TO(done, st, j.send != NULL && j.recv != NULL, DT_ERR_MEMORY, "%zu bytes", most);
    memset(j.send, 0, most);
    memset(j.recv, 0, most);
    DT_TRY_TO(done, st, measure_all(&j, a));
done:
    free(j.send);
    free(j.recv);
    return st;
}

int main(int argc, char **argv)
{
    dt_run_options o = DT_RUN_OPTIONS_INIT;
    arguments a = { 0 };

    o.threads_per_rank = 1;
    o.check = "none";
    for (int i = 1; i < argc && a.n < MAX_SIZES; i++) a.bytes[a.n++] = atoll(argv[i]);
    if (dt_run(&o, rank_main, &a) == DT_OK) return 0;
    (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
