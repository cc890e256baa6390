/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { BLOCK = 64 << 10, MOST_LINE = 64 << 20 };

/* --- addresses -------------------------------------------------------------------------------- */

static dt_status split_url(const char *url, cli_peer *p)
{
    const char *begin = url + 7, *end, *path;
    size_t n;

    DT_CHECK(strncasecmp(url, "http://", 7) == 0, DT_ERR_ARG,
             "--serve: \"%s\" is no address as http://127.0.0.1:8080", url);
    path = begin + strcspn(begin, "/");
    if (*begin == '[') begin++;
    end = url[7] == '[' ? begin + strcspn(begin, "]") : begin + strcspn(begin, ":/");
    DT_CHECK(end > begin && (size_t)(end - begin) < sizeof p->host && end <= path, DT_ERR_ARG,
             "--serve: \"%s\" names no host", url);
    (void)snprintf(p->host, sizeof p->host, "%.*s", (int)(end - begin), begin);
    if (*end == ']') end++;
    (void)snprintf(p->port, sizeof p->port, "%.*s", *end == ':' ? (int)(path - end - 1) : 2,
                   *end == ':' ? end + 1 : "80");
    n = strlen(path);
    if (n > 0 && path[n - 1] == '/') n--;
    if (n >= 3 && strncmp(path + n - 3, "/v1", 3) == 0) n -= 3;
    DT_CHECK(n < sizeof p->path, DT_ERR_ARG, "--serve: the path of \"%s\" is too long", url);
    (void)snprintf(p->path, sizeof p->path, "%.*s", (int)n, path);
    return DT_OK;
}

dt_status cli_peer_open(const char *url, const char *key, cli_peer *p)
{
    const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
    int failed;

    *p = (cli_peer){ .key = key };
    DT_TRY(split_url(url, p));
    failed = getaddrinfo(p->host, p->port, &hints, &p->address);
    DT_CHECK(failed == 0, DT_ERR_IO, "--serve: %s, port %s: %s", p->host, p->port,
             gai_strerror(failed));
    return DT_OK;
}

void cli_peer_close(cli_peer *p)
{
    if (p->address != NULL) freeaddrinfo(p->address);
    p->address = NULL;
}

static dt_status connect_to(const cli_peer *p, int *out)
{
    const int yes = 1;
    int fd = -1, why = 0;

    for (const struct addrinfo *a = p->address; a != NULL && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0) break;
        why = errno;
        if (fd >= 0) (void)close(fd);
        fd = -1;
    }
    DT_CHECK(fd >= 0, DT_ERR_IO, "%s, port %s: %s", p->host, p->port, strerror(why));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    *out = fd;
    return DT_OK;
}

/* --- a request -------------------------------------------------------------------------------- */

static dt_status send_all(const cli_peer *p, int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        const ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        DT_CHECK(sent > 0, DT_ERR_IO, "%s, port %s: sending: %s", p->host, p->port,
                 strerror(errno));
        bytes += sent;
        n -= (size_t)sent;
    }
    return DT_OK;
}

static dt_status send_request(const cli_peer *p, int fd, const char *path, const char *body)
{
    const size_t n_body = body != NULL ? strlen(body) : 0;
    const bool six = strchr(p->host, ':') != NULL;
    char head[1024], content[96] = "", key[512] = "";
    int n;

    if (body != NULL)
        (void)snprintf(content, sizeof content,
                       "Content-Type: application/json\r\nContent-Length: %zu\r\n", n_body);
    if (p->key != NULL)
        DT_CHECK((size_t)snprintf(key, sizeof key, "Authorization: Bearer %s\r\n", p->key) <
                     sizeof key,
                 DT_ERR_ARG, "the key is too long");
    n = snprintf(head, sizeof head,
                 "%s %s%s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\n%s%s\r\n",
                 body != NULL ? "POST" : "GET", p->path, path, six ? "[" : "", p->host,
                 six ? "]" : "", p->port, key, content);
    DT_CHECK(n > 0 && (size_t)n < sizeof head, DT_ERR_ARG, "the request's head is too long");
    DT_TRY(send_all(p, fd, head, (size_t)n));
    if (n_body > 0) DT_TRY(send_all(p, fd, body, n_body));
    return DT_OK;
}

/* --- an answer -------------------------------------------------------------------------------- */

/* What is being read: bytes of the socket, of which those of the body become lines. */
typedef struct reading {
    const cli_peer *peer;
    int fd;
    char *block;
    size_t at, n; /* of block */
    char *line;
    size_t n_line, room;
    cli_line_fn on_line;
    void *arg;
    bool enough;
} reading;

/* The next byte; -1: the end, or a failure of the connection. */
static int next_byte(reading *r)
{
    if (r->at == r->n) {
        ssize_t got;
        do got = recv(r->fd, r->block, BLOCK, 0);
        while (got < 0 && errno == EINTR);
        if (got <= 0) return -1;
        r->at = 0;
        r->n = (size_t)got;
    }
    return (unsigned char)r->block[r->at++];
}

static dt_status end_line(reading *r)
{
    if (r->n_line > 0 && r->line[r->n_line - 1] == '\r') r->n_line--;
    DT_TRY(dti_grow((void **)&r->line, &r->room, r->n_line + 1, 1));
    r->line[r->n_line] = '\0';
    if (!r->enough && !r->on_line(r->arg, r->line, r->n_line)) r->enough = true;
    r->n_line = 0;
    return DT_OK;
}

static dt_status take_byte(reading *r, int byte)
{
    if (byte == '\n') return end_line(r);
    DT_CHECK(r->n_line < MOST_LINE, DT_ERR_IO, "a line of more than %d bytes", MOST_LINE);
    DT_TRY(dti_grow((void **)&r->line, &r->room, r->n_line + 1, 1));
    r->line[r->n_line++] = (char)byte;
    return DT_OK;
}

static dt_status cut_short(const reading *r)
{
    DT_FAIL(DT_ERR_IO, "%s, port %s: the answer ends too early", r->peer->host, r->peer->port);
}

/* A line of the head, or of what stands before a chunk; *n: of it. */
static dt_status read_head_line(reading *r, char *line, size_t room, size_t *n)
{
    int byte;

    *n = 0;
    while ((byte = next_byte(r)) >= 0 && byte != '\n')
        if (byte != '\r' && *n + 1 < room) line[(*n)++] = (char)byte;
    line[*n] = '\0';
    return byte >= 0 ? DT_OK : cut_short(r);
}

/* Bytes of the body: n of them, or with -1 all that come. */
static dt_status read_bytes(reading *r, int64_t n)
{
    int byte;

    for (int64_t i = 0; (n < 0 || i < n) && !r->enough; i++) {
        byte = next_byte(r);
        if (byte < 0) return n < 0 ? DT_OK : cut_short(r);
        DT_TRY(take_byte(r, byte));
    }
    return DT_OK;
}

static dt_status read_chunks(reading *r)
{
    char line[64];
    size_t n;

    while (!r->enough) {
        int64_t chunk;
        DT_TRY(read_head_line(r, line, sizeof line, &n));
        chunk = strtoll(line, NULL, 16);
        if (chunk <= 0) break;
        DT_TRY(read_bytes(r, chunk));
        if (!r->enough) DT_TRY(read_head_line(r, line, sizeof line, &n));
    }
    return DT_OK;
}

static dt_status read_answer(reading *r, int *status)
{
    char line[512];
    int64_t length = -1;
    bool chunks = false;
    size_t n;

    DT_TRY(read_head_line(r, line, sizeof line, &n));
    DT_CHECK(n > 12 && strncmp(line, "HTTP/1.", 7) == 0, DT_ERR_IO,
             "%s, port %s: no answer of HTTP", r->peer->host, r->peer->port);
    *status = atoi(line + 9);
    do {
        DT_TRY(read_head_line(r, line, sizeof line, &n));
        if (strncasecmp(line, "content-length:", 15) == 0) length = strtoll(line + 15, NULL, 10);
        if (strncasecmp(line, "transfer-encoding:", 18) == 0) chunks = true;
    } while (n > 0);
    DT_TRY(chunks ? read_chunks(r) : read_bytes(r, length));
    return r->n_line > 0 ? end_line(r) : DT_OK;
}

dt_status cli_peer_ask(const cli_peer *p, const char *path, const char *body, int *status,
                       cli_line_fn on_line, void *arg)
{
    reading r = { .peer = p, .fd = -1, .on_line = on_line, .arg = arg };
    dt_status st = DT_OK;

    *status = 0;
    DT_TRY_TO(done, st, dti_alloc(BLOCK, (void **)&r.block));
    DT_TRY_TO(done, st, connect_to(p, &r.fd));
    DT_TRY_TO(done, st, send_request(p, r.fd, path, body));
    DT_TRY_TO(done, st, read_answer(&r, status));
done:
    if (r.fd >= 0) (void)close(r.fd);
    dti_free(r.block);
    dti_free(r.line);
    return st;
}
