/* SPDX-License-Identifier: Apache-2.0
 *
 * Ranks in worker processes, as the program sees them. The crew's thread starts the processes,
 * carries messages to and from them, sees them die and ends them: who kills it kills them. What
 * ranks show lies in memory that all have. */
#ifndef DTI_WORKERS_H
#define DTI_WORKERS_H

#include <sys/types.h>

#include "base/module_file.h"
#include "service/crew.h"
#include "service/pipe.h"

/* What a worker has to know; behind it in the message are the options of the run and the modules,
 * texts. Both sides compare `version` first. */
typedef struct dti_start {
    char version[64];
    char name[40]; /* under which the workers meet */
    int32_t process, n_processes;
    int32_t max_running, n_modules;
    int32_t logs, unused;
    dt_engine_options engine; /* without callbacks */
} dti_start;

/* A request on its way; its packet is behind it. */
typedef struct dti_asked {
    int32_t kind, priority;
    int64_t deadline_ns, n_prompt;
    int32_t tells_tokens, by_turns;
} dti_asked;

typedef struct dti_worker {
    dti_pipe pipe;
    int first_rank, n_ranks;
    pid_t pid;   /* 0: not started, or gone; written under the lock, as `failed` is */
    int life;    /* a descriptor of the process, or -1 */
    bool failed; /* it has said why it ends */
    bool lost;   /* the other end of the pipe is closed */
} dti_worker;

typedef struct dti_workers {
    dti_crew *crew;
    char program[DTI_MODULE_PATH_BYTES];
    const char *const *modules;
    int n_modules, n;
    int wake, memory; /* descriptors: who carries; of the views, until all workers have it */
    size_t n_bytes;   /* of these */
    dti_board *board; /* behind the views */
    /* of the crew's thread */
    bool told_quit, killed;
    int64_t quit_ns;  /* asked to end since; 0: not */
    dt_error hearsay; /* a rank was cut short: another may have more to say */
    int hearsay_rank;
    int64_t hearsay_ns; /* 0: none */
    dti_worker each[];
} dti_workers;

/* What both sides write into dti_start.version: they have the same structs. */
void dti_workers_version(char version[64]);

/* Bytes of views and board; the board. */
size_t dti_views_bytes(int n_ranks);
dti_board *dti_views_board(dti_view *views, int n_ranks);

/* For a crew that is being made: its views and what the rest needs; starts nothing. Errors:
 * DT_ERR_IO there is no worker program; memory; descriptors. */
dt_status dti_workers_create(dti_crew *c, const dt_service_options *options) DT_MUST_USE;
void dti_workers_free(dti_workers *w); /* accepts NULL; with the views */

/* On the crew's thread, in the place of dt_run(): until all workers are gone. */
dt_status dti_workers_run(dti_crew *c) DT_MUST_USE;

/* Under the lock. Hands a request to the first worker; one is not wanted any more. */
dt_status dti_workers_ask(dti_workers *w, const dt_ticket *t) DT_MUST_USE;
void dti_workers_cancel(dti_workers *w, const dt_ticket *t);

/* A rank whose process is stopped, and words for it; -1: none. Under the lock. */
int dti_workers_find_stopped(const dti_workers *w, dt_error *why);

/* A message of worker i (workers_hear.c). */
void dti_workers_hear(dti_workers *w, int i, const dti_message *m, const char *bytes);

#endif
