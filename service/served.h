/* SPDX-License-Identifier: Apache-2.0
 *
 * What handles stand for. A model's handle outlives its crews: a restart gives it another. */
#ifndef DTI_SERVED_H
#define DTI_SERVED_H

#include "service/crew.h"

struct dt_service {
    _Atomic int refs;
    dt_service_options options;
    dt_run_options run;                            /* what options.run points to */
    dt_engine_options engine;                      /* the same of options.engine */
    dt_status (*setup)(dt_runtime *rt, void *arg); /* that of the caller, after the modules */
    void *setup_arg;
    pthread_mutex_t lock;
    /* under the lock */
    bool stopped;
    dti_crew *spare;       /* that has no model yet */
    dt_served *models;     /* all handles, those that are being loaded too */
    int n_loading;         /* threads that load */
    pthread_cond_t loaded; /* one less */
};

struct dt_served {
    dt_service *service; /* a reference */
    char *dir;
    dt_parallelize_options how;
    pthread_mutex_t restarting; /* one thread at a time */
    pthread_mutex_t lock;
    /* under the lock */
    dti_crew *crew;          /* NULL: it was stopped, or could not be restarted */
    dti_crew *loading;       /* that will be the crew; belongs to the thread that loads */
    dt_tokenizer *tokenizer; /* opened when something needs it */
    dt_chat *chat;
    dt_served *next; /* of the service's; under its lock */
};

/* The crew that serves the model now, a reference. Errors: it has failed or was stopped. */
dt_status dti_served_crew(dt_served *m, dti_crew **out) DT_MUST_USE;

/* Lets modules add what they have: in the setup of a rank. */
dt_status dti_modules_add(dt_runtime *rt, const char *const *paths, int n) DT_MUST_USE;

/* References to what the folder has; NULL for `chat`: it is not wanted. */
dt_status dti_served_open(dt_served *m, dt_tokenizer **tokenizer, dt_chat **chat) DT_MUST_USE;

#endif
