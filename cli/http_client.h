/* SPDX-License-Identifier: Apache-2.0
 *
 * As much of a client of HTTP as measuring a server needs: a connection for each request, answers
 * with a length or in chunks, lines as they come. */
#ifndef DTI_CLI_HTTP_CLIENT_H
#define DTI_CLI_HTTP_CLIENT_H

#include "cli/cli.h"

struct addrinfo;

typedef struct cli_peer {
    char host[256], port[16], path[128]; /* of "http://host:port/path"; path without a last / */
    const char *key;                     /* NULL: none */
    struct addrinfo *address;
} cli_peer;

/* "http://127.0.0.1:8080", with or without /v1 at its end. */
dt_status cli_peer_open(const char *url, const char *key, cli_peer *out) DT_MUST_USE;
void cli_peer_close(cli_peer *p);

/* A line of an answer's body, without its end; false: enough. */
typedef bool (*cli_line_fn)(void *arg, const char *line, size_t n);

/* GET, or POST where there is a body. *status: of HTTP. Threads: any number at a time. Errors:
 * DT_ERR_IO, naming the peer. */
dt_status cli_peer_ask(const cli_peer *p, const char *path, const char *body, int *status,
                       cli_line_fn on_line, void *arg) DT_MUST_USE;

#endif
