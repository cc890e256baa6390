/* SPDX-License-Identifier: Apache-2.0
 *
 * The server: what it was told, its models, its connections. What is shared is under one lock;
 * nothing here knows the library that reads HTTP but mhd.c. */
#ifndef DTI_HTTP_SERVER_H
#define DTI_HTTP_SERVER_H

#include <dtensor/serve.h>
#include <pthread.h>
#include <stdatomic.h>

#include "service/http/call_form.h"
#include "service/http/metrics.h"

/* A model as requests know it. */
typedef struct dti_http_model {
    char *name;
    dt_served *served; /* borrowed */
    dt_tokenizer *tokenizer;
    dt_chat *chat;       /* NULL: it has no template, ... */
    dt_error chat_error; /* ... and why */
    dt_model_info info;
    int64_t context;
    bool has_top_k;       /* generation_config.json says one */
    dti_call_form calls;  /* of its chat template */
    _Atomic int requests; /* running and waiting */
    dti_http_metrics metrics;
} dti_http_model;

/* What a connection is doing; each has its longest time, that of work is the request's own. */
typedef enum dti_phase {
    DTI_PHASE_READ,
    DTI_PHASE_WORK,
    DTI_PHASE_WRITE,
    DTI_PHASE_IDLE
} dti_phase;

typedef struct dti_connection {
    struct dti_connection *next, **at;
    uint64_t number; /* of the server's connections, from 1 on */
    int fd;
    /* under the server's lock */
    dti_phase phase;
    int64_t since_ns;
    dt_ticket *ticket; /* whose answer it waits for; borrowed */
    bool gone;         /* the client has closed its side, or is to be closed */
} dti_connection;

struct dt_server {
    dt_server_options options;
    char *host;
    char **keys, **hosts;
    dti_http_model *models; /* [n_models] */
    int n_models;
    bool loopback;                           /* it listens on this machine alone */
    int port, listener, alarm;               /* sockets; alarm: an eventfd that wakes the watcher */
    int64_t created;                         /* seconds since 1970 */
    void *daemon;                            /* of the HTTP library */
    _Atomic int64_t parsed_bytes, n_answers; /* bodies in parsing; ids of answers */
    _Atomic bool draining, ending;
    pthread_t watcher;
    pthread_mutex_t lock, log_lock;
    pthread_cond_t changed; /* fewer exchanges */
    /* under the lock */
    dti_connection *connections;
    int n_connections, n_exchanges;
    uint64_t last_number; /* of a connection */
};

/* A model by its name of n bytes; NULL: there is none. */
dti_http_model *dti_server_model(dt_server *s, const char *name);

/* --- connections (watch.c) -------------------------------------------------------------------- */

void dti_connection_open(dt_server *s, dti_connection *c, int fd);
void dti_connection_close(dt_server *s, dti_connection *c);
void dti_connection_enter(dt_server *s, dti_connection *c, dti_phase phase);

/* The connection waits for this request, which ends if the client goes; NULL: for none any more.
 * False: the client is gone, or the server ends. */
bool dti_connection_wait_for(dt_server *s, dti_connection *c, dt_ticket *ticket);
bool dti_connection_is_gone(dt_server *s, dti_connection *c);

/* The thread that looks for clients that went and for times that are over. */
dt_status dti_watcher_start(dt_server *s) DT_MUST_USE;
void dti_watcher_stop(dt_server *s);

/* Cancels what connections wait for, and closes them. */
void dti_connections_end(dt_server *s);

/* --- the HTTP library (mhd.c, or none.c) ------------------------------------------------------ */

dt_status dti_daemon_start(dt_server *s) DT_MUST_USE;
void dti_daemon_quiesce(dt_server *s);
void dti_daemon_stop(dt_server *s);

#endif
