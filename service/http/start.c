/* SPDX-License-Identifier: Apache-2.0
 *
 * A server from its start to its end. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/options.h"
#include "base/sync.h"
#include "files/folder.h"
#include "files/input.h"
#include "service/http/buffer.h"
#include "service/http/server.h"
#include "service/served.h"
#include "text/chat/jinja.h"

enum { MOST_CONNECTIONS = 4096, BACKLOG = 512 };

/* --- options ---------------------------------------------------------------------------------- */

static dt_status check_options(const dt_server_options *o)
{
    DT_CHECK(o->host != NULL && o->host[0] != '\0', DT_ERR_ARG, "host is empty");
    DT_CHECK(o->port >= 0 && o->port <= 65535, DT_ERR_ARG, "port is %d, not in 0..65535", o->port);
    DT_CHECK(o->max_connections >= 1 && o->max_connections <= MOST_CONNECTIONS, DT_ERR_ARG,
             "max_connections is %d, not in 1..%d", o->max_connections, (int)MOST_CONNECTIONS);
    DT_CHECK(o->max_requests >= 1, DT_ERR_ARG, "max_requests is %d", o->max_requests);
    DT_CHECK(o->max_body_bytes >= 1 && o->max_body_bytes <= (int64_t)1 << 30, DT_ERR_ARG,
             "max_body_bytes is %lld, not in 1..2^30", (long long)o->max_body_bytes);
    DT_CHECK(o->max_parsed_bytes >= 1, DT_ERR_ARG, "max_parsed_bytes is %lld",
             (long long)o->max_parsed_bytes);
    DT_CHECK(o->head_ms >= 1 && o->idle_ms >= 1 && o->write_ms >= 1 && o->request_ms >= 0,
             DT_ERR_ARG, "head_ms, idle_ms and write_ms are 1 or more, request_ms 0 or more");
    DT_CHECK(o->n_keys >= 0 && (o->n_keys == 0 || o->keys != NULL), DT_ERR_ARG, "%d keys at NULL",
             o->n_keys);
    DT_CHECK(o->n_hosts >= 0 && (o->n_hosts == 0 || o->hosts != NULL), DT_ERR_ARG,
             "%d hosts at NULL", o->n_hosts);
    for (int i = 0; i < o->n_keys; i++)
        DT_CHECK(o->keys[i] != NULL && o->keys[i][0] != '\0', DT_ERR_ARG, "key %d is empty", i);
    return DT_OK;
}

static dt_status copy_texts(const char *const *from, int n, char ***out)
{
    DT_TRY(dti_alloc_array((size_t)n + 1, sizeof(char *), (void **)out));
    for (int i = 0; i < n; i++) DT_TRY(dti_strdup(from[i], &(*out)[i]));
    return DT_OK;
}

/* --- models ----------------------------------------------------------------------------------- */

static dt_status open_template(dti_http_model *m, const dt_server_model *from)
{
    void *text;
    int64_t n;
    dt_status st;

    if (from->chat_template == NULL) {
        if (dti_served_open(m->served, &m->tokenizer, &m->chat) == DT_OK) return DT_OK;
        return dti_served_open(m->served, &m->tokenizer, NULL); /* why there is none either */
    }
    DT_TRY(dti_served_open(m->served, &m->tokenizer, NULL));
    DT_TRY(dti_input_read_all(from->chat_template, DTI_JINJA_SOURCE_BYTES, &text, &n));
    st = dt_chat_create(from->chat_template, text, (size_t)n, &m->chat);
    dti_free(text);
    DT_TRY(st);
    return DT_OK;
}

/* Whether generation_config.json says top_k: that of the library is no wish of the model's. */
static bool says_top_k(const char *dir)
{
    dti_json_doc doc = { 0 };
    dti_json value;
    bool said;

    if (dti_folder_json(dir, "generation_config.json", &doc) != DT_OK) return false;
    value = dti_json_get(&doc.root, "top_k");
    said = dti_json_is_set(&value);
    dti_json_free(&doc);
    return said;
}

static dt_status open_model(dt_server *s, const dt_server_model *from)
{
    dti_http_model *m = &s->models[s->n_models];

    DT_CHECK(from->name != NULL && from->name[0] != '\0' && from->model != NULL, DT_ERR_ARG,
             "model %d has no name, or is NULL", s->n_models);
    DT_CHECK(s->n_models == 0 || dti_server_model(s, from->name) == NULL, DT_ERR_ARG,
             "two models are called %s", from->name);
    s->n_models++;
    m->served = from->model;
    DT_TRY(dti_strdup(from->name, &m->name));
    DT_TRY(dt_service_info(m->served, &m->info));
    DT_CHECK(from->context >= 0 && from->context <= m->info.max_positions, DT_ERR_ARG,
             "model %s: a context of %lld tokens, the model's is %lld", m->name,
             (long long)from->context, (long long)m->info.max_positions);
    m->context = from->context > 0 ? from->context : m->info.max_positions;
    m->has_top_k = says_top_k(m->served->dir);
    DT_TRY(open_template(m, from));
    (void)dti_call_form_find(m->chat, &m->calls);
    return DT_OK;
}

/* --- the socket ------------------------------------------------------------------------------- */

static bool is_loopback(const struct sockaddr *a)
{
    const struct in6_addr *six;

    if (a->sa_family == AF_INET)
        return (ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24) == 127;
    six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(six);
}

static dt_status bind_to(dt_server *s, const struct addrinfo *a)
{
    struct sockaddr_storage own;
    socklen_t n = sizeof own;
    const int yes = 1;

    s->loopback = is_loopback(a->ai_addr);
    DT_CHECK(s->loopback || s->options.n_keys > 0 || s->options.open, DT_ERR_ARG,
             "%s is reached from other machines, and there is no key: give one, or ask for an open "
             "server",
             s->host);
    s->listener = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    DT_CHECK(s->listener >= 0, DT_ERR_IO, "socket: %s", strerror(errno));
    (void)setsockopt(s->listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    DT_CHECK(bind(s->listener, a->ai_addr, a->ai_addrlen) == 0 && listen(s->listener, BACKLOG) == 0,
             DT_ERR_IO, "cannot listen at %s, port %d: %s", s->host, s->options.port,
             strerror(errno));
    DT_CHECK(getsockname(s->listener, (struct sockaddr *)&own, &n) == 0, DT_ERR_IO,
             "getsockname: %s", strerror(errno));
    s->port = ntohs(own.ss_family == AF_INET ? ((struct sockaddr_in *)(void *)&own)->sin_port
                                             : ((struct sockaddr_in6 *)(void *)&own)->sin6_port);
    return DT_OK;
}

static dt_status open_socket(dt_server *s)
{
    const struct addrinfo hints = { .ai_family = AF_UNSPEC,
                                    .ai_socktype = SOCK_STREAM,
                                    .ai_flags = AI_PASSIVE | AI_NUMERICSERV };
    struct addrinfo *list = NULL;
    char port[16];
    dt_status st;
    int failed;

    (void)snprintf(port, sizeof port, "%d", s->options.port);
    failed = getaddrinfo(s->host, port, &hints, &list);
    DT_CHECK(failed == 0 && list != NULL, DT_ERR_IO, "%s is no address of this machine: %s",
             s->host, gai_strerror(failed));
    st = bind_to(s, list);
    freeaddrinfo(list);
    DT_TRY(st);
    return DT_OK;
}

/* --- life ------------------------------------------------------------------------------------- */

static void free_server(dt_server *s)
{
    for (int i = 0; i < s->n_models; i++) {
        dti_http_model *m = &s->models[i];
        dt_tokenizer_release(&m->tokenizer);
        dt_chat_release(&m->chat);
        dti_free(m->name);
    }
    for (int i = 0; s->keys != NULL && i < s->options.n_keys; i++) dti_free(s->keys[i]);
    for (int i = 0; s->hosts != NULL && i < s->options.n_hosts; i++) dti_free(s->hosts[i]);
    if (s->listener >= 0) (void)close(s->listener);
    (void)pthread_mutex_destroy(&s->lock);
    (void)pthread_mutex_destroy(&s->log_lock);
    (void)pthread_cond_destroy(&s->changed);
    dti_free(s->keys);
    dti_free(s->hosts);
    dti_free(s->models);
    dti_free(s->host);
    dti_free(s);
}

static void init_locks(dt_server *s)
{
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_mutex_init(&s->log_lock, NULL);
    dti_cond_init(&s->changed);
}

static dt_status open_server(dt_server *s, const dt_server_model *models, int n_models)
{
    DT_TRY(check_options(&s->options));
    DT_TRY(dti_strdup(s->options.host, &s->host));
    DT_TRY(copy_texts(s->options.keys, s->options.n_keys, &s->keys));
    DT_TRY(copy_texts(s->options.hosts, s->options.n_hosts, &s->hosts));
    DT_TRY(dti_alloc_array((size_t)n_models, sizeof *s->models, (void **)&s->models));
    for (int i = 0; i < n_models; i++) DT_TRY(open_model(s, &models[i]));
    DT_TRY(open_socket(s));
    DT_TRY(dti_watcher_start(s));
    DT_TRY(dti_daemon_start(s));
    return DT_OK;
}

dt_status dt_server_start(const dt_server_options *options, const dt_server_model *models,
                          int n_models, dt_server **out)
{
    static const dt_server_options by_default = DT_SERVER_OPTIONS_INIT;
    dt_server *s;
    dt_status st;

    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    *out = NULL;
    DT_CHECK(models != NULL && n_models >= 1, DT_ERR_ARG, "%d models", n_models);
    DT_TRY(dti_new(sizeof *s, &s));
    s->listener = s->alarm = -1;
    s->created = (int64_t)time(NULL);
    init_locks(s);
    s->options = by_default;
    st = dti_options_read("dt_server_options", "start from DT_SERVER_OPTIONS_INIT", options,
                          &s->options, sizeof s->options);
    if (st == DT_OK) st = open_server(s, models, n_models);
    if (st != DT_OK) {
        dti_watcher_stop(s);
        free_server(s);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    *out = s;
    return DT_OK;
}

int dt_server_port(const dt_server *s)
{
    return s != NULL ? s->port : 0;
}

/* Until nobody is answered any more. */
static void drain(dt_server *s, int64_t ms)
{
    const int64_t until = dti_after(dti_now_ns(), ms);

    (void)pthread_mutex_lock(&s->lock);
    while (s->n_exchanges > 0 && dti_now_ns() < until) dti_cond_wait(&s->changed, &s->lock, until);
    (void)pthread_mutex_unlock(&s->lock);
}

void dt_server_stop(dt_server **server, int64_t drain_ms)
{
    dt_server *s = server != NULL ? *server : NULL;

    if (s == NULL) return;
    *server = NULL;
    atomic_store(&s->draining, true);
    dti_daemon_quiesce(s);
    drain(s, drain_ms);
    atomic_store(&s->ending, true);
    dti_connections_end(s);
    dti_daemon_stop(s);
    dti_watcher_stop(s);
    free_server(s);
}
