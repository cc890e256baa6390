/* SPDX-License-Identifier: Apache-2.0
 *
 * How processes of one machine that no MPI joins find each other.
 *
 * They meet under a name in the abstract name space of Unix sockets, made of the launcher's
 * variables and the number of the process: nothing is left behind however they end. (The port
 * itself belongs to torchrun, which listens there.)
 *
 * A process takes its name as soon as it knows that it is one of several, long before it meets the
 * others, and shows itself to its partners that are there; of any two the later one has a
 * connection to the earlier. So whoever waits hears at once that one has ended that was there; and
 * one that cannot come tells its partners why, who tell theirs. Partners are all, up to eight
 * processes; of more those that hear from each other when they join (mpi_join.c). Others are joined
 * when one of them has something to say, so a process keeps its name. */
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

/* The first words on a connection: in a meeting of both sides; SHOWS and FAILS say all there is to
 * be said on theirs. */
enum { DTI_HELLO_MAGIC = 0x64747333 };
typedef enum dti_hello_kind {
    DTI_HELLO_JOINS,
    DTI_HELLO_SHOWS,
    DTI_HELLO_FAILS,
    DTI_HELLO_TALKS /* who has met its partners; messages follow */
} dti_hello_kind;

typedef struct dti_hello {
    uint32_t magic, version;
    int32_t process, n_processes;
    uint32_t kind;
    char why[DTI_MPI_TEXT_BYTES]; /* FAILS */
} dti_hello;

/* A process of the job, by RANK and WORLD_SIZE, its connections to its partners, -1 in the places
 * of others, and those to some who have not said who they are. None blocks. The caller frees both,
 * and keeps the listener. */
typedef struct dti_sockets_job {
    int process, n_processes;
    int listener;
    int *sockets; /* [n_processes] */
    int *guests;  /* [n_guests] */
    int n_guests;
} dti_sockets_job;

/* This process before it meets the others: there is one of it. */
typedef struct dti_sockets_arrival {
    int process, n_processes; /* 0: it has not arrived */
    int listener;             /* -1: somebody else has the name, or the system refuses */
    int *shown;               /* [n_processes] connections to those who were there, or -1 */
    bool over;                /* it has met them, or tried to */
} dti_sockets_arrival;

/* Never waits, and tells no error: what is wrong is found by who meets. Nothing after a meeting. */
void dti_sockets_arrive(void);

/* Tells the others why this process does not come; returns when all know or have given up
 * themselves, after two seconds at the latest. Nothing after a meeting. There is no `pmi`. */
void dti_sockets_stay_away(int pmi, const char *why);

/* Waits for `within_ms`, but for nobody once a process that was there has gone. 0, or -1 with the
 * reason, which those who are there are told; all is closed and freed again then. */
int dti_sockets_meet(int64_t within_ms, dti_sockets_job *out, char why[DTI_MPI_TEXT_BYTES]);

/* Best effort: the connection is about to be closed. */
void dti_sockets_say_farewell(int socket, const char *why);

/* "process 1 of 4 has ended while processes were joining" */
void dti_sockets_say_lost(int process, int n_processes, char why[DTI_MPI_TEXT_BYTES]);

/* --- pieces of both ---------------------------------------------------------------------------
 */

int64_t dti_sockets_now_ms(void);
int dti_sockets_new(void);

/* A connection to the name of a process, or -1 with errno. */
int dti_sockets_dial(int process);

dti_hello dti_sockets_hello(const dti_sockets_arrival *a, dti_hello_kind kind);

/* A few bytes on a new connection always find room. False: nobody is there. */
bool dti_sockets_say(int socket, const dti_hello *h);

/* Reads RANK and WORLD_SIZE and takes the name, unless that is done. NULL with the reason. */
dti_sockets_arrival *dti_sockets_take_name(char why[DTI_MPI_TEXT_BYTES]);

/* Whether they meet; no process is its own partner. */
bool dti_sockets_are_partners(int a, int b, int n_processes);

/* Leaves the name, unless it is kept, and those who were shown this process. */
void dti_sockets_depart(bool keeps_name);

/* The name of a process. Who does not know what the launcher keeps secret (torchrun's id of the
 * run, where it has one) cannot tell it before it is there, nor from those that are. */
socklen_t dti_sockets_name(int process, struct sockaddr_un *out);

enum { DTI_HOLDER_BYTES = 96 };

/* Whether the other end of a connection belongs to this user; and who it is, in words:
 * "process 4711 (python3) of user 1000". */
bool dti_sockets_is_mine(int socket);
void dti_sockets_holder(int socket, char text[DTI_HOLDER_BYTES]);

#endif
