/* SPDX-License-Identifier: Apache-2.0
 *
 * An HTTP server with the OpenAI API above a service: what `dtensor serve` runs, for programs that
 * want it inside. Models are loaded by the program (<dtensor/service.h>); the server answers for
 * them until it is stopped.
 *
 *   dt_server_model models[] = { { "gpt-neo", model, 0, NULL } };
 *   dt_server_start(&options, models, 1, &server);
 *   ... dt_server_port(server) ...
 *   dt_server_stop(&server, 30000);
 *
 * What it speaks and what it refuses: docs/serving.md. Without libmicrohttpd at build time
 * (DT_WITH_HTTP) dt_server_start() is DT_ERR_UNSUPPORTED. */
#ifndef DT_SERVE_H
#define DT_SERVE_H

#include <dtensor/service.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dt_server dt_server;

/* A model that is answered for. */
typedef struct dt_server_model {
    const char *name;          /* that requests say, and that /v1/models lists */
    dt_served *model;          /* stays loaded until the server is stopped */
    int64_t context;           /* longest text, prompt included; 0: as the model has it */
    const char *chat_template; /* a file of Jinja in the place of the folder's template, or NULL */
} dt_server_model;

typedef struct dt_server_options {
    size_t size;             /* sizeof(dt_server_options) */
    dt_service *service;     /* of the models, for figures of memory; NULL: none are told */
    const char *host;        /* address to listen at; 127.0.0.1 */
    int port;                /* 0: any that is free, see dt_server_port() */
    bool open;               /* listen beyond this machine without a key */
    const char *const *keys; /* [n_keys] of which a request has to name one; copied */
    int n_keys;
    const char *const *hosts; /* [n_hosts] names that requests may call the server by, beside
                               * addresses and localhost; copied */
    int n_hosts;
    bool metrics;           /* /metrics also where it listens beyond this machine */
    int max_connections;    /* 256 */
    int max_requests;       /* running and waiting, of a model; one more is told to come back: 64 */
    int64_t max_body_bytes; /* 8 MiB */
    int64_t max_parsed_bytes; /* of all bodies that are parsed at the same time: 16 MiB */
    int64_t head_ms;          /* longest wait for head and body of a request: 30 s */
    int64_t idle_ms;          /* between two requests of a connection: 5 s */
    int64_t write_ms;         /* for a client to take what is there for it: 30 s */
    int64_t request_ms;       /* for an answer as a whole; 0: any */
    /* A line of JSON for every request that was answered, without prompts and texts. Called by
     * several threads, one at a time. NULL: silence */
    void (*log)(void *arg, const char *line);
    void *log_arg;
} dt_server_options;

#define DT_SERVER_OPTIONS_INIT                                                                    \
    {                                                                                             \
        sizeof(dt_server_options), NULL, "127.0.0.1", 0, false, NULL, 0, NULL, 0, false, 256, 64, \
            (int64_t)8 << 20, (int64_t)16 << 20, 30000, 5000, 30000, 0, NULL, NULL                \
    }

/**
 * Starts to answer, and returns when connections are accepted.
 *
 *   options  NULL for defaults
 *   models   n_models of them, the first one for requests that name none
 *
 * Not collective.
 * Ownership   *out is ended with dt_server_stop(), before the models are unloaded.
 * Errors      DT_ERR_ARG          an option out of its range; two models of one name; an address
 *                                 beyond this machine without a key, unless `open` is set
 *             DT_ERR_IO           the address or the port cannot be had
 *             DT_ERR_UNSUPPORTED  the library was built without libmicrohttpd
 *             DT_ERR_MEMORY; those of dt_service_info() and dt_tokenizer_open()
 */
DT_API DT_MUST_USE dt_status dt_server_start(const dt_server_options *options,
                                             const dt_server_model *models, int n_models,
                                             dt_server **out);

/** The port that it listens at. Not collective. Errors: 0 for NULL. */
DT_API int dt_server_port(const dt_server *server);

/**
 * Accepts no more connections, lets requests under way finish for at most drain_ms, cancels what is
 * left, and returns when all threads of the server have ended.
 *
 *   server  set to NULL; one that is NULL already is well
 *
 * Not collective. Errors: none.
 */
DT_API void dt_server_stop(dt_server **server, int64_t drain_ms);

/** Whether the build has a server. Not collective. Errors: none. */
DT_API bool dt_server_is_built(void);

#ifdef __cplusplus
}
#endif
#endif
