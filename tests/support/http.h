/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of the HTTP server share: a server over the example checkpoint, and a client of raw
 * bytes. */
#ifndef DT_TEST_HTTP_H
#define DT_TEST_HTTP_H

#include <dtensor/serve.h>

#include "tests/support/dt_test.h"

typedef struct http_server {
    const char *fault; /* dt_run_options.fault of two ranks; NULL: none, of one */
    const char *mesh;  /* of two ranks; NULL: as there are */
    dt_service *service;
    dt_served *model;
    dt_server *server;
    int port;
    char chat[DT_TEST_PATH_BYTES]; /* a folder with a template */
    int n_lines;                   /* of the log */
    char lines[64][1024];
} http_server;

/* Options begin with defaults, short waits and a log. */
dt_server_options http_options(http_server *h);

/* Models "small", with a chat template, and "other": the same weights. Ends with the test. */
void http_start(http_server *h, const dt_server_options *options, int max_running);
void http_stop(http_server *h);

typedef struct http_answer {
    int status;  /* 0: the connection was closed without an answer */
    char *head;  /* text up to the body */
    char *body;  /* chunks put together */
    size_t n;    /* of the body */
    bool closed; /* the server closed the connection */
} http_answer;

int http_connect(int port);
void http_send(int fd, const void *bytes, size_t n); /* as much of it as is taken */

/* One answer, or what there is of it after ms. `leftover`: of a connection that stays open. */
http_answer http_receive(int fd, int ms);

/* A request as it is, on a connection of its own that is closed behind it. */
http_answer http_raw(int port, const void *bytes, size_t n);

/* A request of a well-behaved client; `headers` are lines that end in \r\n, or "". */
http_answer http_get(int port, const char *path, const char *headers);
http_answer http_post(int port, const char *path, const char *body, const char *headers);

/* Its status is this, and its body has each of the texts behind it; the last is NULL. */
void http_expect(const char *file, int line, http_answer a, int status, ...);
#define HTTP_EXPECT(a, ...) http_expect(__FILE__, __LINE__, (a), __VA_ARGS__, NULL)

#endif
