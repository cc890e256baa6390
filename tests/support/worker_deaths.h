/* SPDX-License-Identifier: Apache-2.0
 *
 * A worker process of a service that is killed or stopped at some point, and what its callers and
 * the program then find. */
#ifndef DT_TEST_WORKER_DEATHS_H
#define DT_TEST_WORKER_DEATHS_H

#include <dtensor/service.h>
#include <sys/types.h>

enum { MOST_WORKERS = 16, HANG_MS = 2000 }; /* that one who hangs has */

typedef enum worker_point {
    DIES_BEFORE_LOAD,
    DIES_LOADING,
    DIES_QUEUED,   /* others wait behind a call */
    DIES_PROMPT,   /* as soon as a request has begun */
    DIES_DECODING, /* after its third token */
    DIES_IDLE      /* between requests */
} worker_point;
enum { N_WORKER_POINTS = DIES_IDLE + 1 };

typedef struct worker_death {
    int n_ranks, n_processes;
    int process; /* that dies */
    int signal;  /* SIGKILL, or SIGSTOP */
    worker_point when;
} worker_death;

/* Fails the test unless all who wait hear of it in time, by its rank, the model and what it did;
 * another model goes on; a restart makes the model well; and nothing is left. */
void worker_dies(const worker_death *d);

/* Worker processes of a program, in their order; how many. Whether one lives, stopped or not. */
int worker_pids(pid_t program, pid_t pids[MOST_WORKERS]);
bool worker_is_alive(pid_t pid);

void nap_ms(int ms);

/* The functions of workers: "wait", for a minute. */
dt_status worker_setup(dt_runtime *rt, void *arg);

#endif
