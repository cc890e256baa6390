/* SPDX-License-Identifier: Apache-2.0
 *
 * How processes of one machine that no MPI joins find each other.
 *
 * They meet under a name in the abstract name space of Unix sockets, made of the launcher's
 * variables and the number of the process: nothing is left behind however they end. (The port
 * itself belongs to torchrun, which listens there.) */
#ifndef DTI_SOCKETS_H
#define DTI_SOCKETS_H

#include <sys/socket.h>
#include <sys/un.h>

#include "mesh/comm/mpi_api.h"

/* What goes before the bytes of a message. TAKEN answers MATCHED and has none; a FAREWELL is the
 * last that its sender says: why it cannot join the others. */
typedef enum dti_frame_kind {
    DTI_FRAME_MESSAGE,
    DTI_FRAME_MATCHED,
    DTI_FRAME_TAKEN,
    DTI_FRAME_FAREWELL
} dti_frame_kind;

typedef struct dti_frame {
    uint32_t bytes;
    int32_t tag;
    uint32_t kind;
    uint32_t unused;
    uint64_t id; /* of the sender's message */
} dti_frame;

/* A process of the job, by RANK and WORLD_SIZE, and its connections to every other one: -1 in the
 * place of this one. They do not block. */
typedef struct dti_sockets_job {
    int process, n_processes;
    int *sockets; /* [n_processes]; the caller frees them */
} dti_sockets_job;

/* Waits for a minute, but for nobody once a process that was there has gone. 0, or -1 with the
 * reason, which those who are there are told; all is closed and freed again then. */
int dti_sockets_meet(dti_sockets_job *out, char why[DTI_MPI_TEXT_BYTES]);

/* Best effort: the connection is about to be closed. */
void dti_sockets_say_farewell(int socket, const char *why);

/* "process 1 of 4 has ended while processes were joining" */
void dti_sockets_say_lost(int process, int n_processes, char why[DTI_MPI_TEXT_BYTES]);

/* The name of a process. Who does not know what the launcher keeps secret (torchrun's id of the
 * run, where it has one) cannot tell it before it is there, nor from those that are. */
socklen_t dti_sockets_name(int process, struct sockaddr_un *out);

enum { DTI_HOLDER_BYTES = 96 };

/* Whether the other end of a connection belongs to this user; and who it is, in words:
 * "process 4711 (python3) of user 1000". */
bool dti_sockets_is_mine(int socket);
void dti_sockets_holder(int socket, char text[DTI_HOLDER_BYTES]);

#endif
