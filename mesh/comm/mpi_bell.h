/* SPDX-License-Identifier: Apache-2.0
 *
 * A rank that sleeps until another one, of any process that shares memory with it, rings. */
#ifndef DTI_MPI_BELL_H
#define DTI_MPI_BELL_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/sync.h"

enum { DTI_MPI_DOING_BYTES = 56 };

/* In the region of the rank's process. Zeroed memory is the bell of a rank that is awake. */
typedef struct dti_mpi_bell {
    _Alignas(DTI_LINE_BYTES) _Atomic uint32_t asleep;
    char doing[DTI_MPI_DOING_BYTES]; /* for those who read it when its process has ended */
} dti_mpi_bell;

/* The owner's. The first call only says that the rank is about to sleep, so that it looks once more
 * at what it waits for; the next ones sleep until somebody rings, at most for so long. */
void dti_mpi_bell_doze(dti_mpi_bell *b, int64_t timeout_ns);
void dti_mpi_bell_awake(dti_mpi_bell *b);

/* After something was left for the owner. A plain load while it is awake: a rank that falls asleep
 * at this very moment may be missed, and no fence is spent on it, as sleep is short. */
void dti_mpi_bell_ring(dti_mpi_bell *b);

#endif
