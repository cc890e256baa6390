/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies between the table of sockets_module.c and the connections: messages on their way.
 *
 * A process is joined to few others when a job begins, and to any other when one of them first
 * sends to it. If both do so at once they have two connections: each writes on the one that it has
 * dialed, and both are read. */
#ifndef DTI_SOCKETS_WIRE_H
#define DTI_SOCKETS_WIRE_H

#include <pthread.h>

#include "mesh/comm/sockets.h"

/* A message that was handed to send() or recv(). */
typedef struct dti_wire_message {
    struct dti_wire_message *next;
    dti_mpi_queue *queue;
    void *cookie;
    char *data;
    int process, tag;
    size_t bytes;
    dti_frame head; /* of a send */
    size_t sent;    /* of head and data */
} dti_wire_message;

/* A message that came before anybody asked for it. */
typedef struct dti_wire_early {
    struct dti_wire_early *next;
    int process;
    dti_frame head;
    dti_wire_message *taker; /* somebody has asked meanwhile */
    bool whole;
    char data[];
} dti_wire_early;

/* A connection, and what is being read from it. */
typedef struct dti_wire_link {
    int socket;  /* -1: it is not there */
    int process; /* -1: it has not said who it is */
    dti_frame head;
    size_t got; /* of head and bytes */
    char *to;
    dti_wire_message *taker;
    dti_wire_early *kept;
    char farewell[DTI_MPI_TEXT_BYTES]; /* or what else is no message */
    struct dti_wire_link *next;
} dti_wire_link;

typedef struct dti_wire_peer {
    dti_wire_link *writes; /* NULL: not connected */
    bool gone;
    dti_wire_message *sends, **last;
    dti_wire_message *waiting; /* sent, until TAKEN has come */
} dti_wire_peer;

struct dti_mpi_queue {
    int n, used; /* used: handed in and not yet handed out as done */
    dti_mpi_done *done, *handed;
    int n_done;
    struct dti_wire_block *blocks;
    char why[DTI_MPI_TEXT_BYTES];
};

/* Messages of some tags that somebody has asked for, or that came before. */
typedef struct dti_wire_drawer {
    dti_wire_message *receives;
    dti_wire_early *early;
} dti_wire_drawer;

enum { DTI_WIRE_DRAWERS = 256 };

/* All of this process. */
typedef struct dti_wire {
    pthread_mutex_t lock; /* all of it, but for what belongs to a queue's thread */
    int process, n_processes;
    int listener;
    uint64_t n_sent;
    dti_wire_peer *peers; /* [n_processes] */
    dti_wire_link *links;
    struct pollfd *polls;         /* [most] one for each, and for the listener */
    int n_links, most, n_pending; /* messages that are to be sent */
    dti_wire_drawer drawers[DTI_WIRE_DRAWERS];
    char why[DTI_MPI_TEXT_BYTES];
    char lost[DTI_MPI_TEXT_BYTES]; /* the first process that has gone; or "" */
} dti_wire;

/* With the lock held, as all of these. -1: no memory. */
int dti_wire_begin(dti_wire *w, const dti_sockets_job *job);
void dti_wire_progress(dti_wire *w);
void dti_wire_send(dti_wire *w, dti_wire_message *m); /* to another process */
void dti_wire_push(dti_wire *w, int process);
void dti_wire_lose(dti_wire *w, dti_wire_link *l);
void dti_wire_complete(dti_wire_message *m, size_t bytes);
void dti_wire_was_sent(dti_wire_peer *p, dti_wire_message *m);
void dti_wire_hand_out(dti_wire *w, dti_wire_early *e);
bool dti_wire_fits(const dti_wire_message *m, int process, int tag);
dti_wire_drawer *dti_wire_drawer_of(dti_wire *w, int tag);

/* The first that was asked for and fits, which is asked for no more; NULL: none. And one that came
 * early. */
dti_wire_message *dti_wire_take(dti_wire *w, int process, int tag);
void dti_wire_keep(dti_wire *w, dti_wire_early *e);
bool dti_wire_is_too_long(dti_wire *w, const dti_wire_message *m, const dti_frame *head);

#endif
