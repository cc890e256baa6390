/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages between the program and a worker process, both ways. Whoever has something to say lays
 * it down under the crew's lock and goes on; one thread of each process carries messages, and waits
 * for both sides. */
#ifndef DTI_PIPE_H
#define DTI_PIPE_H

#include <pthread.h>
#include <sys/uio.h>

#include "service/packet.h"

typedef enum dti_message_kind {
    /* of the program */
    DTI_SAYS_START, /* a dti_start; the first, with the memory of dti_view */
    DTI_SAYS_ASK,   /* to the first worker: a dti_asked, and the request's packet */
    DTI_SAYS_CANCEL,
    DTI_SAYS_QUIT,
    /* of workers */
    DTI_SAYS_READY,  /* a rank */
    DTI_SAYS_LOG,    /* a line of it: its level is the number */
    DTI_SAYS_FAILED, /* why a rank ends the run */
    /* of the first one */
    DTI_SAYS_BEGUN,
    DTI_SAYS_EVENT,    /* a dti_event without its data, and these */
    DTI_SAYS_PROGRESS, /* of a load: bytes done, and all */
    DTI_SAYS_LOADED,   /* dt_model_info, dt_error of the defaults, their packet */
    DTI_SAYS_DONE      /* how it ended */
} dti_message_kind;

typedef struct dti_message {
    int32_t kind, rank;
    int64_t number; /* of a request */
    uint64_t n_bytes;
} dti_message;

typedef struct dti_pipe {
    int socket;     /* does not block; -1: closed */
    int wake;       /* descriptor that wakes who carries */
    dti_packet out; /* under the crew's lock */
    /* of who carries */
    dti_packet leaving;
    size_t n_left;
    dti_packet in;
    size_t n_taken;
    uint64_t n_read; /* bytes so far */
} dti_pipe;

/* Lays a message down whose bytes are those of n parts. Under the lock. Errors: memory; then it is
 * not said at all. */
dt_status dti_pipe_say(dti_pipe *p, dti_message_kind kind, int rank, int64_t number,
                       const struct iovec *parts, int n) DT_MUST_USE;

/* An error record as bytes; names of functions mean nothing elsewhere. */
dt_error dti_pipe_record(const dt_error *e);
void dti_pipe_read_record(const dti_message *m, const char *bytes, dt_error *out);

void dti_pipe_wake(int wake);
void dti_pipe_slept(int wake);

/* For who carries: sends what there is, as far as the other side takes it. True: there is more. */
bool dti_pipe_carry(dti_pipe *p, pthread_mutex_t *lock);

/* Takes in of what has come as much as is handled at a time; false: the other side has ended. */
bool dti_pipe_read(dti_pipe *p);

/* The next message; its bytes stay until the next call. */
bool dti_pipe_next(dti_pipe *p, dti_message *m, const char **bytes);

void dti_pipe_close(dti_pipe *p);

#endif
