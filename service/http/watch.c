/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that watches all connections: a client that goes while its request runs or waits ends
 * the request, and who takes too long for a request, or to read an answer, is closed. */
#define _GNU_SOURCE /* POLLRDHUP */
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "base/sync.h"
#include "service/http/server.h"

/* How often times are looked at. */
enum { LOOK_MS = 100 };

static void wake(dt_server *s)
{
    const uint64_t one = 1;

    (void)!write(s->alarm, &one, sizeof one);
}

void dti_connection_open(dt_server *s, dti_connection *c, int fd)
{
    *c = (dti_connection){ .fd = fd, .phase = DTI_PHASE_READ, .since_ns = dti_now_ns() };
    (void)pthread_mutex_lock(&s->lock);
    c->number = ++s->last_number;
    c->next = s->connections;
    c->at = &s->connections;
    if (c->next != NULL) c->next->at = &c->next;
    s->connections = c;
    s->n_connections++;
    (void)pthread_mutex_unlock(&s->lock);
}

void dti_connection_close(dt_server *s, dti_connection *c)
{
    (void)pthread_mutex_lock(&s->lock);
    *c->at = c->next;
    if (c->next != NULL) c->next->at = c->at;
    s->n_connections--;
    (void)pthread_mutex_unlock(&s->lock);
}

void dti_connection_enter(dt_server *s, dti_connection *c, dti_phase phase)
{
    if (c == NULL) return;
    (void)pthread_mutex_lock(&s->lock);
    if (phase != c->phase || phase == DTI_PHASE_WRITE) c->since_ns = dti_now_ns();
    c->phase = phase;
    (void)pthread_mutex_unlock(&s->lock);
}

bool dti_connection_wait_for(dt_server *s, dti_connection *c, dt_ticket *ticket)
{
    bool well;

    if (c == NULL) return true;
    (void)pthread_mutex_lock(&s->lock);
    c->ticket = ticket;
    well = !c->gone && !atomic_load(&s->ending);
    if (ticket != NULL && !well) dt_ticket_cancel(ticket);
    (void)pthread_mutex_unlock(&s->lock);
    if (ticket != NULL) wake(s);
    return well;
}

bool dti_connection_is_gone(dt_server *s, dti_connection *c)
{
    bool gone;

    if (c == NULL) return false;
    (void)pthread_mutex_lock(&s->lock);
    gone = c->gone;
    (void)pthread_mutex_unlock(&s->lock);
    return gone;
}

/* The connection's thread finds it closed. Under the lock. */
static void end(dti_connection *c)
{
    c->gone = true;
    if (c->ticket != NULL) dt_ticket_cancel(c->ticket);
    (void)shutdown(c->fd, SHUT_RDWR);
}

void dti_connections_end(dt_server *s)
{
    (void)pthread_mutex_lock(&s->lock);
    for (dti_connection *c = s->connections; c != NULL; c = c->next) end(c);
    (void)pthread_mutex_unlock(&s->lock);
}

static int64_t longest_ms(const dt_server *s, dti_phase phase)
{
    switch (phase) {
    case DTI_PHASE_READ:
        return s->options.head_ms;
    case DTI_PHASE_WRITE:
        return s->options.write_ms;
    case DTI_PHASE_IDLE:
        return atomic_load(&s->draining) ? 0 : s->options.idle_ms;
    case DTI_PHASE_WORK:
        break;
    }
    return INT64_MAX;
}

static bool is_over(const dt_server *s, const dti_connection *c, int64_t now)
{
    const int64_t most = longest_ms(s, c->phase);

    return most < INT64_MAX / 2000000 && now - c->since_ns >= most * 1000000;
}

/* Those that wait for a request are polled: one that was heard to close is not heard again. Under
 * the lock; returns how many there are. */
static nfds_t list_waiting(dt_server *s, struct pollfd *list, uint64_t *whose)
{
    nfds_t n = 1;

    list[0] = (struct pollfd){ .fd = s->alarm, .events = POLLIN };
    for (dti_connection *c = s->connections; c != NULL; c = c->next) {
        if (c->ticket == NULL || c->gone || (int)n > s->options.max_connections) continue;
        list[n] = (struct pollfd){ .fd = c->fd, .events = POLLRDHUP };
        whose[n++] = c->number;
    }
    return n;
}

/* Whoever closed may be gone, and another connection have its socket and its memory: numbers tell
 * them apart. */
static void look(dt_server *s, const struct pollfd *list, const uint64_t *whose, nfds_t n)
{
    const int64_t now = dti_now_ns();

    (void)pthread_mutex_lock(&s->lock);
    for (dti_connection *c = s->connections; c != NULL; c = c->next) {
        bool closed = is_over(s, c, now);
        for (nfds_t i = 1; i < n && !closed; i++)
            closed = whose[i] == c->number && c->ticket != NULL &&
                     (list[i].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL)) != 0;
        if (closed && !c->gone) end(c);
    }
    (void)pthread_mutex_unlock(&s->lock);
}

static void *watch(void *arg)
{
    dt_server *s = arg;
    const size_t room = (size_t)s->options.max_connections + 2;
    struct pollfd *list = NULL;
    uint64_t *whose = NULL;

    if (dti_alloc_array(room, sizeof *list, (void **)&list) != DT_OK ||
        dti_alloc_array(room, sizeof *whose, (void **)&whose) != DT_OK)
        goto done;
    while (!atomic_load(&s->ending)) {
        uint64_t rung;
        nfds_t n;
        (void)pthread_mutex_lock(&s->lock);
        n = list_waiting(s, list, whose);
        (void)pthread_mutex_unlock(&s->lock);
        (void)poll(list, n, LOOK_MS);
        if (list[0].revents != 0) (void)!read(s->alarm, &rung, sizeof rung);
        look(s, list, whose, n);
    }
done:
    dti_free(list);
    dti_free(whose);
    return NULL;
}

dt_status dti_watcher_start(dt_server *s)
{
    s->alarm = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    DT_CHECK(s->alarm >= 0, DT_ERR_MEMORY, "eventfd for the watcher of connections failed");
    if (pthread_create(&s->watcher, NULL, watch, s) == 0) return DT_OK;
    (void)close(s->alarm);
    s->alarm = -1;
    DT_FAIL(DT_ERR_MEMORY, "the thread that watches connections could not be started");
}

void dti_watcher_stop(dt_server *s)
{
    if (s->alarm < 0) return;
    atomic_store(&s->ending, true);
    wake(s);
    (void)pthread_join(s->watcher, NULL);
    (void)close(s->alarm);
    s->alarm = -1;
}
