/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that processes of one machine share.
 *
 * Each process of a run has a region: a file without a name that its peers open through
 * /proc/<pid>/fd and map. Nothing is left of it once the last process that maps it has ended,
 * however it ended. A directory at its front says what lies where, so a rank can look for what
 * another one has laid down, or is about to.
 *
 * Processes of a machine use them if each could open that of the next one; they agree about that
 * when the run begins, and use MPI otherwise. The region of another one is mapped when there is
 * something to look for. */
#ifndef DTI_MPI_REGION_H
#define DTI_MPI_REGION_H

#include <stdatomic.h>

#include "base/error.h"

enum { DTI_MPI_REGION_WHY_BYTES = 192 };

/* What others have to know to open a region. */
typedef struct dti_mpi_region_card {
    uint64_t token; /* at its front */
    int64_t pid;
    int32_t file; /* descriptor in its process, or -1 */
    int32_t unused;
} dti_mpi_region_card;

/* A process of this machine whose region can be opened. */
typedef struct dti_mpi_near {
    int process;
    dti_mpi_region_card card;
    _Atomic(char *) region; /* NULL: not mapped yet */
} dti_mpi_near;

typedef struct dti_mpi_region {
    char *own; /* NULL: there is none, see why */
    int process;
    int file;           /* -1: only threads of this process can use it */
    dti_mpi_near *near; /* [n_near] by process, this one among them */
    size_t n_near, most;
    uint64_t token;
    _Atomic uint64_t used, large; /* up to where the two parts of `own` are given out */
    char why[DTI_MPI_REGION_WHY_BYTES];
} dti_mpi_region;

/* Makes the region of this process. If the system refuses, only `why` says so. `share`: for other
 * processes too. Errors: memory. */
dt_status dti_mpi_region_open(dti_mpi_region *r, int process, bool share,
                              dti_mpi_region_card *card) DT_MUST_USE;

/* Whether the region of another process of this machine can be opened; `why` says it if not. */
bool dti_mpi_region_try(dti_mpi_region *r, int process, const dti_mpi_region_card *card);

/* It can: in the order of processes. */
dt_status dti_mpi_region_add(dti_mpi_region *r, int process,
                             const dti_mpi_region_card *card) DT_MUST_USE;

/* Is it one of those; and mapping its region, which may fail later than it was tried. By any
 * thread. */
bool dti_mpi_region_is_near(const dti_mpi_region *r, int process);
dt_status dti_mpi_region_reach(dti_mpi_region *r, int process) DT_MUST_USE;

void dti_mpi_region_close(dti_mpi_region *r);

/* Zeroed memory of `bytes` in the own region under a name that is not 0 and new. NULL: it is full.
 * By any thread. */
void *dti_mpi_region_lay(dti_mpi_region *r, uint64_t name, size_t bytes);

/* Zeroed memory without a name in a part of its own: what is touched of the other part lies close
 * together. NULL: it is full. By any thread. */
void *dti_mpi_region_large(dti_mpi_region *r, size_t bytes);

/* What a process of these has laid down under a name; NULL: nothing yet, or it was not reached. */
void *dti_mpi_region_find(const dti_mpi_region *r, int process, uint64_t name);

/* Could processes of this machine share memory? If not, `why` says what the system answers. */
bool dti_mpi_region_possible(char why[DTI_MPI_REGION_WHY_BYTES]);

#endif
