/* SPDX-License-Identifier: Apache-2.0
 *
 * The figures of other libraries' collectives, as bench/mpi/mpi_collectives.c measures them. */
#ifndef DT_BENCH_MPI_H
#define DT_BENCH_MPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BENCH_MPI_ROWS = 64 };

typedef struct bench_mpi {
    int n;
    struct {
        char op[24];
        int64_t bytes;
        double us;
    } row[BENCH_MPI_ROWS];
} bench_mpi;

/* Runs bench_comm_<program>, which lies beside this program, under mpirun.<library> with `n_ranks`
 * processes. False, and no rows, if either is missing. */
bool bench_mpi_run(const char *program, const char *library, int n_ranks, const int64_t *bytes,
                   size_t n_bytes, bench_mpi *out);

double bench_mpi_us(const bench_mpi *m, const char *op, int64_t bytes); /* NAN: not measured */

#endif
