/* SPDX-License-Identifier: Apache-2.0
 *
 * The one file that knows libmicrohttpd, with a thread for each connection: handlers and readers
 * may wait. Compiled where the library was found (DT_WITH_HTTP). */
#include <microhttpd.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/sync.h"
#include "service/http/answering.h"
#include "service/http/exchange.h"

enum {
    HEAD_BYTES = 32 << 10,
    BLOCK_BYTES = 16 << 10,
    KEEP_AWAKE_MS = 15000 /* an event-stream says something at least so often */
};

static dti_connection *connection_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);

    return info != NULL ? info->socket_context : NULL;
}

/* --- connections ------------------------------------------------------------------------------ */

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    dt_server *s = cls;
    dti_connection *own = *context;

    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
        if (info == NULL || dti_new(sizeof *own, &own) != DT_OK) return;
        dti_connection_open(s, own, info->connect_fd);
        *context = own;
    } else if (own != NULL) {
        dti_connection_close(s, own);
        *context = NULL;
        dti_free(own);
    }
}

/* A request's first line is there. */
static void *on_line(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)uri;
    dti_connection_enter(cls, connection_of(c), DTI_PHASE_READ);
    return NULL;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **con_cls,
                         enum MHD_RequestTerminationCode code)
{
    dt_server *s = cls;
    dti_exchange *x = *con_cls;

    *con_cls = NULL;
    dti_connection_enter(s, connection_of(c), DTI_PHASE_IDLE);
    if (x == NULL) return;
    dti_exchange_log(x, code == MHD_REQUEST_TERMINATED_COMPLETED_OK);
    dti_exchange_free(x);
    (void)pthread_mutex_lock(&s->lock);
    s->n_exchanges--;
    (void)pthread_cond_broadcast(&s->changed);
    (void)pthread_mutex_unlock(&s->lock);
}

/* --- answers ---------------------------------------------------------------------------------- */

/* Until there is something to send; tokens alone may be held back. */
static void listen_for(dti_exchange *x, int64_t ms)
{
    const int64_t until = dti_now_ns() + ms * 1000000;
    int64_t left = ms;

    while (x->out.n == 0 && !x->stream->over && left > 0) {
        dti_generation_listen(x->stream, left);
        left = (until - dti_now_ns()) / 1000000;
    }
}

/* Waits for the next events of a stream. */
static ssize_t read_stream(void *cls, uint64_t at, char *to, size_t most)
{
    dti_exchange *x = cls;
    size_t n;

    (void)at;
    dti_connection_enter(x->server, x->connection, DTI_PHASE_WORK);
    if (x->out.n == 0 && !x->stream->over) {
        listen_for(x, KEEP_AWAKE_MS);
        if (x->out.n == 0 && !x->stream->over) dti_buffer_text(&x->out, ": keep-alive\n\n");
    }
    if (x->out.n == 0 && !x->stream->over) return MHD_CONTENT_READER_END_WITH_ERROR;
    dti_connection_enter(x->server, x->connection, DTI_PHASE_WRITE);
    if (x->out.n == 0) return MHD_CONTENT_READER_END_OF_STREAM;
    if (dti_connection_is_gone(x->server, x->connection)) return MHD_CONTENT_READER_END_WITH_ERROR;
    n = x->out.n < most ? x->out.n : most;
    memcpy(to, x->out.bytes, n);
    dti_buffer_drop(&x->out, n);
    x->handed = x->stream->over && x->out.n == 0;
    return (ssize_t)n;
}

static void add_headers(const dti_exchange *x, struct MHD_Response *r)
{
    char number[16];

    (void)MHD_add_response_header(r, "Content-Type", x->type);
    (void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    (void)MHD_add_response_header(r, "Cache-Control", "no-cache");
    if (x->closes) (void)MHD_add_response_header(r, "Connection", "close");
    if (x->stream != NULL) (void)MHD_add_response_header(r, "X-Accel-Buffering", "no");
    if (x->status == 401) (void)MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    if (x->allow != NULL) (void)MHD_add_response_header(r, "Allow", x->allow);
    if (x->no_retry) (void)MHD_add_response_header(r, "x-should-retry", "false");
    if (strncmp(x->type, "text/html", 9) == 0)
        (void)MHD_add_response_header(r, "Content-Security-Policy",
                                      "default-src 'none'; style-src 'unsafe-inline'; script-src "
                                      "'unsafe-inline'; connect-src 'self'; base-uri 'none'; "
                                      "form-action 'none'; frame-ancestors 'none'");
    if (x->retry_after_s > 0) {
        (void)snprintf(number, sizeof number, "%d", x->retry_after_s);
        (void)MHD_add_response_header(r, "Retry-After", number);
    }
}

static enum MHD_Result send_answer(struct MHD_Connection *c, dti_exchange *x)
{
    struct MHD_Response *r;
    enum MHD_Result done;

    if (x->stream != NULL)
        r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, read_stream, x, NULL);
    else
        r = MHD_create_response_from_buffer(x->out.n, x->out.n > 0 ? x->out.bytes : "",
                                            MHD_RESPMEM_PERSISTENT); /* until it is completed */
    if (r == NULL) return MHD_NO;
    add_headers(x, r);
    dti_connection_enter(x->server, x->connection, DTI_PHASE_WRITE);
    done = MHD_queue_response(c, (unsigned)x->status, r);
    MHD_destroy_response(r);
    return done;
}

/* --- requests --------------------------------------------------------------------------------- */

static enum MHD_Result on_header(void *cls, enum MHD_ValueKind kind, const char *name,
                                 const char *value)
{
    (void)kind;
    dti_head_add(cls, name, value);
    return MHD_YES;
}

static dti_exchange *begin(dt_server *s, struct MHD_Connection *c, const char *url,
                           const char *method)
{
    dti_exchange *x;

    if (dti_new(sizeof *x, &x) != DT_OK) return NULL;
    x->server = s;
    x->connection = connection_of(c);
    x->began_ns = dti_now_ns();
    x->head.method = method;
    (void)snprintf(x->head.path, sizeof x->head.path, "%s", url);
    (void)MHD_get_connection_values(c, MHD_HEADER_KIND, on_header, &x->head);
    (void)pthread_mutex_lock(&s->lock);
    s->n_exchanges++;
    (void)pthread_mutex_unlock(&s->lock);
    return x;
}

static void take_body(dti_exchange *x, const char *bytes, size_t n)
{
    x->too_long = x->too_long || x->body.n + n > (size_t)x->server->options.max_body_bytes;
    if (x->too_long)
        dti_buffer_free(&x->body);
    else
        dti_buffer_add(&x->body, bytes, n);
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *bytes,
                                  size_t *n_bytes, void **con_cls)
{
    dti_exchange *x = *con_cls;

    (void)version;
    if (x == NULL) {
        x = *con_cls = begin(cls, c, url, method);
        if (x == NULL || x->connection == NULL) return MHD_NO;
        if (dti_guard(x)) return MHD_YES;
        x->closes = true;
        return send_answer(c, x);
    }
    if (*n_bytes > 0) {
        take_body(x, bytes, *n_bytes);
        *n_bytes = 0;
        return MHD_YES;
    }
    dti_connection_enter(x->server, x->connection, DTI_PHASE_WORK);
    if (x->body.st != DT_OK)
        dti_refuse(x, 503, NULL, "no memory for the body");
    else
        dti_answer(x);
    x->closes = x->closes || x->too_long || atomic_load(&x->server->draining);
    return send_answer(c, x);
}

/* --- the daemon ------------------------------------------------------------------------------- */

/* What clients do wrong is answered; nobody reads more of it. */
static void no_log(void *cls, const char *fmt, va_list args)
{
    (void)cls, (void)fmt, (void)args;
}

/* Paths are compared as they were sent: one that is written in another way is another one. */
static size_t keep_escapes(void *cls, struct MHD_Connection *c, char *text)
{
    (void)cls, (void)c;
    return strlen(text);
}

dt_status dti_daemon_start(dt_server *s)
{
    s->daemon = MHD_start_daemon(
        MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_POLL | MHD_USE_THREAD_PER_CONNECTION |
            MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, no_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, s->listener, MHD_OPTION_CONNECTION_LIMIT,
        (unsigned)s->options.max_connections, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)HEAD_BYTES, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_NOTIFY_CONNECTION,
        on_connection, s, MHD_OPTION_URI_LOG_CALLBACK, on_line, s, MHD_OPTION_NOTIFY_COMPLETED,
        on_completed, s, MHD_OPTION_UNESCAPE_CALLBACK, keep_escapes, NULL, MHD_OPTION_END);
    DT_CHECK(s->daemon != NULL, DT_ERR_MEMORY, "the HTTP server could not be started");
    return DT_OK;
}

void dti_daemon_quiesce(dt_server *s)
{
    const int listener = s->daemon != NULL ? MHD_quiesce_daemon(s->daemon) : -1;

    if (listener >= 0) (void)close(listener);
    s->listener = -1;
}

void dti_daemon_stop(dt_server *s)
{
    if (s->daemon != NULL) MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}

bool dt_server_is_built(void)
{
    return true;
}
