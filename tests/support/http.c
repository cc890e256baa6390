/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/http.h"

#include <arpa/inet.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"

static const char template[] =
    "{% if tools %}tools: {{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{% if m.role not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ raise_exception('what is ' ~ m.role ~ '?') }}{% endif %}{{ m.role | upper }}:\n"
    "{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n{\"name\": "
    "{{ c.function.name | tojson }}, \"arguments\": {{ c.function.arguments | tojson }}}\n"
    "</tool_call>{% endfor %}\n\n{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}";

static void log_line(void *arg, const char *line)
{
    http_server *h = arg;

    if (h->n_lines < (int)DT_COUNT(h->lines))
        (void)snprintf(h->lines[h->n_lines++], sizeof h->lines[0], "%s", line);
}

dt_server_options http_options(http_server *h)
{
    dt_server_options o = DT_SERVER_OPTIONS_INIT;

    o.log = log_line;
    o.log_arg = h;
    return o;
}

void http_start(http_server *h, const dt_server_options *options, int max_running)
{
    dt_run_options run = DT_TEST_RUN_OPTIONS;
    dt_service_options service = DT_SERVICE_OPTIONS_INIT;
    dt_server_options o = options != NULL ? *options : http_options(h);
    dt_parallelize_options how = DT_PARALLELIZE_OPTIONS_INIT;
    char folder[DT_TEST_PATH_BYTES], path[DT_TEST_PATH_BYTES + 32];
    dt_server_model models[2] = { { "small", NULL, 0, path }, { "other", NULL, 64, NULL } };

    run.fault = h->fault;
    if (h->fault != NULL || h->mesh != NULL) run.n_ranks = 2;
    how.mesh = h->mesh;
    service.run = &run;
    service.max_running = max_running;
    DT_ASSERT_OK(dt_service_start(&service, &h->service));
    DT_ASSERT_OK(dt_service_load(h->service, dt_test_source_path(folder, "examples/checkpoint"),
                                 &how, &h->model));
    dt_test_write_file(dt_test_temp_dir(h->chat), "chat.jinja", template, sizeof template - 1);
    (void)snprintf(path, sizeof path, "%s/chat.jinja", h->chat);
    models[0].model = models[1].model = h->model;
    o.service = h->service;
    DT_ASSERT_OK(dt_server_start(&o, models, 2, &h->server));
    h->port = dt_server_port(h->server);
}

void http_stop(http_server *h)
{
    dt_server_stop(&h->server, 5000);
    DT_ASSERT_OK(dt_service_unload(&h->model));
    DT_ASSERT_OK(dt_service_stop(&h->service));
}

/* --- a client --------------------------------------------------------------------------------- */

int http_connect(int port)
{
    struct sockaddr_in a = { .sin_family = AF_INET, .sin_port = htons((uint16_t)port) };
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        dt_test_fail(__FILE__, __LINE__, "no connection to port %d", port);
    return fd;
}

void http_send(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0) {
        const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0) return; /* the server has heard enough */
        at += sent;
        n -= (size_t)sent;
    }
}

/* n zeros and one more. */
static char *room_for(size_t n)
{
    char *text = calloc(n + 1, 1);

    if (text == NULL) dt_test_fail(__FILE__, __LINE__, "no memory");
    return text;
}

/* A copy that stays until the process ends, that is as long as a test. */
static char *keep(const char *bytes, size_t n)
{
    typedef struct text {
        struct text *next;
        char bytes[];
    } text;
    static _Atomic(text *) texts; /* of all threads */
    text *t = (text *)(void *)room_for(sizeof *t + n);

    memcpy(t->bytes, bytes, n);
    t->next = atomic_load(&texts);
    while (!atomic_compare_exchange_weak(&texts, &t->next, t)) continue;
    return t->bytes;
}

/* The length of a body that is whole; -1: not yet. Chunks are put together in place. */
static long whole_body(const char *head, char *body, size_t n, bool closed)
{
    const char *length = strstr(head, "Content-Length: ");
    size_t out = 0, at = 0;

    if (length != NULL) {
        const long all = strtol(length + 16, NULL, 10);
        return (long)n >= all ? all : -1;
    }
    if (strstr(head, "Transfer-Encoding: chunked") == NULL) return closed ? (long)n : -1;
    for (;;) {
        const char *end = at < n ? strstr(body + at, "\r\n") : NULL;
        const size_t chunk = end != NULL ? strtoul(body + at, NULL, 16) : 0;
        if (end == NULL) return -1;
        at = (size_t)(end + 2 - body);
        if (at + chunk + 2 > n) return -1;
        if (chunk == 0) break;
        out += chunk;
        at += chunk + 2;
    }
    for (size_t from = 0, to = 0; to < out;) {
        const size_t chunk = strtoul(body + from, NULL, 16);
        from = (size_t)(strstr(body + from, "\r\n") + 2 - body);
        memmove(body + to, body + from, chunk);
        to += chunk;
        from += chunk + 2;
    }
    return (long)out;
}

static bool is_whole(char *text, size_t n, bool closed, http_answer *out)
{
    char *end = strstr(text, "\r\n\r\n"), *copy;
    long body;

    if (end == NULL) return false;
    out->status = atoi(text + 9);
    out->head = keep(text, (size_t)(end + 2 - text));
    copy = keep(end + 4, n - (size_t)(end + 4 - text));
    if (out->status == 100) return false;
    body = whole_body(out->head, copy, n - (size_t)(end + 4 - text), closed);
    out->body = copy;
    if (body >= 0) copy[out->n = (size_t)body] = '\0';
    return body >= 0;
}

http_answer http_receive(int fd, int ms)
{
    enum { MOST = 1 << 22 };
    const int64_t until = dti_now_ns() + (int64_t)ms * 1000000;
    http_answer a = { 0 };
    char *text = room_for(MOST);
    size_t n = 0;

    a.head = a.body = keep("", 0);
    for (;;) {
        const int64_t left = (until - dti_now_ns()) / 1000000;
        struct pollfd p = { fd, POLLIN, 0 };
        ssize_t got;
        if (left <= 0 || poll(&p, 1, (int)left) <= 0) break;
        got = recv(fd, text + n, MOST - n - 1, 0);
        a.closed = got <= 0;
        if (got > 0) n += (size_t)got;
        text[n] = '\0';
        while (strncmp(text, "HTTP/1.1 100", 12) == 0 && strstr(text, "\r\n\r\n") != NULL) {
            const size_t skip = (size_t)(strstr(text, "\r\n\r\n") + 4 - text);
            memmove(text, text + skip, n - skip + 1);
            n -= skip;
        }
        if (is_whole(text, n, a.closed, &a) || a.closed) break;
    }
    free(text);
    return a;
}

http_answer http_raw(int port, const void *bytes, size_t n)
{
    const int fd = http_connect(port);
    http_answer a;
    char more;

    http_send(fd, bytes, n);
    a = http_receive(fd, 20000);
    if (!a.closed) {
        struct pollfd p = { fd, POLLIN, 0 };
        a.closed = poll(&p, 1, 300) > 0 && recv(fd, &more, 1, 0) <= 0;
    }
    (void)close(fd);
    return a;
}

static http_answer ask(int port, const char *method, const char *path, const char *body,
                       const char *headers)
{
    const size_t n = strlen(body), room = n + strlen(headers) + strlen(path) + 256;
    char *text = room_for(room), length[64] = "";
    http_answer a;
    int used;

    if (strcmp(method, "POST") == 0)
        (void)snprintf(length, sizeof length, "Content-Length: %zu\r\n", n);
    used = snprintf(text, room,
                    "%s %s HTTP/1.1\r\nHost: localhost:%d\r\nConnection: close\r\n%s%s\r\n%s",
                    method, path, port, length, headers, body);
    a = http_raw(port, text, (size_t)used);
    free(text);
    return a;
}

http_answer http_get(int port, const char *path, const char *headers)
{
    return ask(port, "GET", path, "", headers);
}

http_answer http_post(int port, const char *path, const char *body, const char *headers)
{
    return ask(port, "POST", path, body, headers);
}

void http_expect(const char *file, int line, http_answer a, int status, ...)
{
    const char *part;
    va_list parts;

    if (a.status != status)
        dt_test_fail(file, line, "status %d, not %d: %.600s", a.status, status, a.body);
    va_start(parts, status);
    while ((part = va_arg(parts, const char *)) != NULL)
        if (strstr(a.body, part) == NULL && strstr(a.head, part) == NULL)
            dt_test_fail(file, line, "\"%s\" is not in: %.300s %.1500s", part, a.head, a.body);
    va_end(parts);
}
