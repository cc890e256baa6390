/* SPDX-License-Identifier: Apache-2.0
 *
 * The collectives of an MPI library, timed as bench_comm times ours, which starts this program and
 * reads its lines "operation bytes microseconds". Arguments: sizes in bytes. It knows nothing of
 * the library, so that it can be compiled for each MPI there is. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pages.h"

enum { SAMPLES = 41, MOST_CALLS = 200, FRESH_BYTES = 1 << 20 };

typedef enum op { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER } op;

static const char *const names[] = { "all_reduce", "all_gather", "reduce_scatter",
                                     "all_to_all", "broadcast",  "barrier" };

typedef struct job {
    op op;
    int n; /* floats: S of bench_comm */
    int rank, size;
    float *send, *recv;
} job;

static void call(const job *j)
{
    const int block = j->n / j->size;

    switch (j->op) {
    case ALL_REDUCE:
        MPI_Allreduce(j->send, j->recv, j->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_GATHER:
        MPI_Allgather(j->send, block, MPI_FLOAT, j->recv, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case REDUCE_SCATTER:
        MPI_Reduce_scatter_block(j->send, j->recv, block, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        break;
    case ALL_TO_ALL:
        MPI_Alltoall(j->send, block, MPI_FLOAT, j->recv, block, MPI_FLOAT, MPI_COMM_WORLD);
        break;
    case BROADCAST:
        MPI_Bcast(j->rank == 0 ? j->send : j->recv, j->n, MPI_FLOAT, 0, MPI_COMM_WORLD);
        break;
    default:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    }
}

static double consume(const float *x, int n)
{
    float sum[16] = { 0 };

    for (int i = 0; i + 16 <= n; i += 16)
        for (int k = 0; k < 16; k++) sum[k] += x[i + k];
    return (double)sum[0] + (double)sum[7];
}

/* Seconds of `calls` rounds of writing, communicating and reading. */
static double loop(const job *j, int calls, int communicates)
{
    const int fresh = j->n <= FRESH_BYTES / 4 && j->op != BARRIER;
    volatile double sink = 0;
    double begin;

    MPI_Barrier(MPI_COMM_WORLD);
    begin = MPI_Wtime();
    for (int k = 0; k < calls; k++) {
        for (int i = 0; fresh && i < j->n; i++) j->send[i] = (float)((i + k) & 255);
        if (communicates) call(j);
        if (fresh) sink += consume(j->recv, j->n);
    }
    return MPI_Wtime() - begin;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* As many calls as fill a fifth of a millisecond, and samples for at most half a second. */
static void measure(const job *j)
{
    double sample[SAMPLES], pilot;
    int calls, samples;

    (void)loop(j, 2, 1);
    pilot = loop(j, 3, 1) / 3;
    MPI_Bcast(&pilot, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    calls = pilot > 0 ? (int)(2e-4 / pilot) : MOST_CALLS;
    if (calls < 1) calls = 1;
    if (calls > MOST_CALLS) calls = MOST_CALLS;
    samples = (int)(0.5 / (pilot * calls)) | 1;
    if (samples > SAMPLES) samples = SAMPLES;
    for (int i = 0; i < samples; i++)
        sample[i] = (loop(j, calls, 1) - loop(j, calls, 0)) / calls * 1e6;
    qsort(sample, (size_t)samples, sizeof sample[0], by_size);
    if (j->rank == 0)
        printf("%s %lld %.3f\n", names[j->op], j->op == BARRIER ? 0LL : 4LL * j->n,
               sample[samples / 2]);
}

int main(int argc, char **argv)
{
    long long most = 0;
    job j = { 0 };

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &j.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &j.size);
    for (int i = 1; i < argc; i++)
        if (atoll(argv[i]) > most) most = atoll(argv[i]);
    j.send = bench_alloc_pages((size_t)most);
    j.recv = bench_alloc_pages((size_t)most);
    if (j.send == NULL || j.recv == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(j.send, 0, (size_t)most);
    memset(j.recv, 0, (size_t)most);
    for (op o = ALL_REDUCE; o <= BARRIER; o++)
        for (int i = 1; i < argc; i++) {
            j.op = o;
            j.n = (int)(atoll(argv[i]) / 4);
            if (o != BARRIER || i == 1) measure(&j);
        }
    free(j.send);
    free(j.recv);
    MPI_Finalize();
    return 0;
}
