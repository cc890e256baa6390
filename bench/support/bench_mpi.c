/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/support/bench_mpi.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 1024 };

/* The folder of this program, with its last slash. */
static bool own_folder(char folder[PATH_BYTES])
{
    const ssize_t n = readlink("/proc/self/exe", folder, PATH_BYTES - 1);
    char *slash;

    if (n <= 0) return false;
    folder[n] = '\0';
    slash = strrchr(folder, '/');
    if (slash == NULL) return false;
    slash[1] = '\0';
    return true;
}

/* Open MPI refuses more ranks than cores, and root, unless told otherwise; MPICH takes milliseconds
 * for a call when ranks share cores. */
static bool command_of(const char *program, const char *library, int n_ranks, char *command,
                       size_t bytes)
{
    char folder[PATH_BYTES];
    int n;

    if (!own_folder(folder)) return false;
    n = snprintf(
        command, bytes,
        "test -x '%sbench_comm_%s' && command -v mpirun.%s >/dev/null && "
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
        "OMPI_MCA_rmaps_base_oversubscribe=1 timeout 100 mpirun.%s -np %d '%sbench_comm_%s'",
        folder, program, library, library, n_ranks, folder, program);
    return n > 0 && (size_t)n < bytes;
}

bool bench_mpi_run(const char *program, const char *library, int n_ranks, const int64_t *bytes,
                   size_t n_bytes, bench_mpi *out)
{
    char command[4 * PATH_BYTES];
    size_t used;
    FILE *f;

    out->n = 0;
    if (!command_of(program, library, n_ranks, command, sizeof command)) return false;
    used = strlen(command);
    for (size_t i = 0; i < n_bytes; i++)
        used += (size_t)snprintf(command + used, sizeof command - used, " %" PRId64, bytes[i]);
    (void)snprintf(command + used, sizeof command - used, " 2>/dev/null");
    f = popen(command, "r");
    if (f == NULL) return false;
    while (out->n < BENCH_MPI_ROWS && fscanf(f, "%23s %" SCNd64 " %lf", out->row[out->n].op,
                                             &out->row[out->n].bytes, &out->row[out->n].us) == 3)
        out->n++;
    (void)pclose(f);
    return out->n > 0;
}

double bench_mpi_us(const bench_mpi *m, const char *op, int64_t bytes)
{
    for (int i = 0; i < m->n; i++)
        if (m->row[i].bytes == bytes && strcmp(m->row[i].op, op) == 0) return m->row[i].us;
    return (double)NAN;
}
