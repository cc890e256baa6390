/* SPDX-License-Identifier: Apache-2.0
 *
 * How processes of one machine that no MPI joins find each other.
 *
 * They meet under a name made of MASTER_ADDR, MASTER_PORT and the number of the process, in the
 * abstract name space of Unix sockets: nothing is left behind however they end. (The port itself
 * belongs to torchrun, which listens there.) */
#ifndef DTI_SOCKETS_H
#define DTI_SOCKETS_H

#include "mesh/comm/mpi_api.h"

/* A connection to every other process, in sockets[n_processes]; -1 in the place of this one. They
 * do not block. Waits for a minute. 0, or -1 with the reason; all are closed again then. */
int dti_sockets_meet(int process, int n_processes, int *sockets, char why[DTI_MPI_TEXT_BYTES]);

#endif
