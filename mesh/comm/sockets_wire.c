/* SPDX-License-Identifier: Apache-2.0
 *
 * Messages over connections of Unix sockets, which are made when they are needed. */
#define _GNU_SOURCE /* accept4 */
#include "mesh/comm/sockets_wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

typedef dti_wire_message message;
typedef dti_wire_early early;
typedef dti_wire_link line;
typedef dti_wire_peer peer;

/* --- what is done ----------------------------------------------------------------------------- */

/* A queue that was destroyed is NULL. */
void dti_wire_complete(message *m, size_t bytes)
{
    if (m->queue != NULL)
        m->queue->done[m->queue->n_done++] = (dti_mpi_done){ m->cookie, (int)bytes };
    free(m);
}

static void put(dti_wire *w, message *m)
{
    peer *p = &w->peers[m->process];

    w->n_pending++;
    m->next = NULL;
    *p->last = m;
    p->last = &m->next;
}

static void was_taken(peer *p, uint64_t id)
{
    for (message **at = &p->waiting; *at != NULL; at = &(*at)->next) {
        message *m = *at;
        if (m->head.id != id) continue;
        *at = m->next;
        dti_wire_complete(m, m->head.bytes);
        return;
    }
}

static void answer(dti_wire *w, int process, const dti_frame *head)
{
    peer *p = &w->peers[process];
    message *m;

    if (head->kind != DTI_FRAME_MATCHED) return;
    if (process == w->process) was_taken(p, head->id);
    m = process != w->process && !p->gone ? calloc(1, sizeof *m) : NULL;
    if (m == NULL) return;
    m->process = process;
    m->head = (dti_frame){ .kind = DTI_FRAME_TAKEN, .id = head->id };
    put(w, m);
}

void dti_wire_was_sent(peer *p, message *m)
{
    if (m->head.kind != DTI_FRAME_MATCHED) {
        dti_wire_complete(m, m->head.bytes);
        return;
    }
    m->next = p->waiting;
    p->waiting = m;
}

/* --- connections ------------------------------------------------------------------------------ */

static line *add_link(dti_wire *w, int socket, int process)
{
    line *l = calloc(1, sizeof *l);
    struct pollfd *polls = w->polls;

    if (l != NULL && w->n_links + 1 >= w->most) {
        polls = realloc(w->polls, ((size_t)w->most * 2 + 16) * sizeof *polls);
        if (polls != NULL) {
            w->polls = polls;
            w->most = 2 * w->most + 16;
        }
    }
    if (l == NULL || polls == NULL) {
        (void)close(socket);
        free(l);
        (void)snprintf(w->why, sizeof w->why, "no memory for a connection");
        return NULL;
    }
    l->socket = socket;
    l->process = process;
    l->next = w->links;
    w->links = l;
    w->n_links++;
    if (process >= 0 && w->peers[process].writes == NULL) w->peers[process].writes = l;
    return l;
}

int dti_wire_begin(dti_wire *w, const dti_sockets_job *job)
{
    w->process = job->process;
    w->n_processes = job->n_processes;
    w->listener = job->listener;
    w->peers = calloc((size_t)job->n_processes, sizeof *w->peers);
    w->most = 16;
    w->polls = malloc((size_t)w->most * sizeof *w->polls);
    if (w->polls == NULL) {
        free(w->peers);
        w->peers = NULL;
    }
    for (int p = 0; p < job->n_processes; p++) {
        if (w->peers != NULL) w->peers[p].last = &w->peers[p].sends;
        if (job->sockets[p] < 0) continue;
        if (w->peers == NULL)
            (void)close(job->sockets[p]);
        else
            (void)add_link(w, job->sockets[p], p);
    }
    for (int i = 0; i < job->n_guests; i++) {
        if (w->peers == NULL)
            (void)close(job->guests[i]);
        else
            (void)add_link(w, job->guests[i], -1);
    }
    return w->peers != NULL && w->why[0] == '\0' ? 0 : -1;
}

/* Whoever has gone takes nothing any more. Those who wait for it while joining ask; later that it
 * is missed is noticed elsewhere. */
void dti_wire_lose(dti_wire *w, line *l)
{
    peer *p = l->process >= 0 ? &w->peers[l->process] : NULL;

    if (w->lost[0] == '\0' && l->farewell[0] != '\0' && l->head.kind == DTI_FRAME_FAREWELL)
        (void)snprintf(w->lost, sizeof w->lost, "%s", l->farewell);
    else if (w->lost[0] == '\0' && p != NULL)
        dti_sockets_say_lost(l->process, w->n_processes, w->lost);
    (void)close(l->socket);
    l->socket = -1;
    if (p == NULL || p->writes != l) return;
    p->writes = NULL;
    p->gone = true;
    while (p->sends != NULL) {
        message *m = p->sends;
        p->sends = m->next;
        w->n_pending--;
        dti_wire_complete(m, 0);
    }
    p->last = &p->sends;
}

/* Nobody is at that name, or not who belongs there: it has gone. A busy one takes us later. */
static void dial(dti_wire *w, int process)
{
    const dti_sockets_arrival here = { .process = w->process, .n_processes = w->n_processes };
    const dti_hello mine = dti_sockets_hello(&here, DTI_HELLO_TALKS);
    const int s = dti_sockets_dial(process);
    const bool busy = s < 0 && (errno == EAGAIN || errno == EINTR);
    peer *p = &w->peers[process];
    line *l;

    if (busy) return;
    if (s >= 0 && dti_sockets_is_mine(s) && dti_sockets_say(s, &mine)) {
        (void)add_link(w, s, process);
        return;
    }
    l = add_link(w, s, process);
    if (l != NULL) dti_wire_lose(w, l);
    p->gone = true;
}

/* Strangers are sent away; the others say first who they are. */
static void admit(dti_wire *w)
{
    for (;;) {
        const int s = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (s < 0) return;
        if (dti_sockets_is_mine(s))
            (void)add_link(w, s, -1);
        else
            (void)close(s);
    }
}

static void learn(dti_wire *w, line *l, const dti_hello *h)
{
    const bool fits = h->magic == DTI_HELLO_MAGIC && h->version == DTI_MPI_API_VERSION &&
                      h->kind == DTI_HELLO_TALKS && h->n_processes == w->n_processes &&
                      h->process >= 0 && h->process < w->n_processes && h->process != w->process;

    if (h->magic == DTI_HELLO_MAGIC && h->kind == DTI_HELLO_FAILS && w->lost[0] == '\0')
        (void)snprintf(w->lost, sizeof w->lost, "%.*s", DTI_MPI_TEXT_BYTES - 1, h->why);
    if (!fits) {
        dti_wire_lose(w, l);
        return;
    }
    l->process = h->process;
    l->got = 0;
    if (w->peers[l->process].writes == NULL) w->peers[l->process].writes = l;
}

/* --- what goes -------------------------------------------------------------------------------- */

void dti_wire_push(dti_wire *w, int process)
{
    peer *p = &w->peers[process];

    if (p->sends != NULL && p->writes == NULL && !p->gone) dial(w, process);
    while (p->writes != NULL && p->sends != NULL) {
        message *m = p->sends;
        const size_t all = sizeof m->head + m->head.bytes;
        const size_t of_data = m->sent > sizeof m->head ? m->sent - sizeof m->head : 0;
        const size_t of_head = m->sent - of_data;
        struct iovec parts[2] = { { (char *)&m->head + of_head, sizeof m->head - of_head },
                                  { m->data + of_data, m->head.bytes - of_data } };
        const struct msghdr h = { .msg_iov = parts, .msg_iovlen = 2 };
        const ssize_t n = sendmsg(p->writes->socket, &h, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) {
            dti_wire_lose(w, p->writes);
            return;
        }
        m->sent += (size_t)n;
        if (m->sent < all) return;
        p->sends = m->next;
        w->n_pending--;
        if (p->sends == NULL) p->last = &p->sends;
        dti_wire_was_sent(p, m);
    }
}

void dti_wire_send(dti_wire *w, message *m)
{
    peer *p = &w->peers[m->process];

    if (p->gone) {
        dti_wire_complete(m, m->bytes);
        return;
    }
    put(w, m);
    dti_wire_push(w, m->process);
}

/* --- what comes ------------------------------------------------------------------------------- */

bool dti_wire_fits(const message *m, int process, int tag)
{
    return m->tag == tag && (m->process == process || m->process == DTI_MPI_ANY_PROCESS);
}

dti_wire_drawer *dti_wire_drawer_of(dti_wire *w, int tag)
{
    return &w->drawers[((uint32_t)tag * 2654435761u >> 24) % DTI_WIRE_DRAWERS];
}

message *dti_wire_take(dti_wire *w, int process, int tag)
{
    message **at = &dti_wire_drawer_of(w, tag)->receives, *found;

    while (*at != NULL && !dti_wire_fits(*at, process, tag)) at = &(*at)->next;
    found = *at;
    if (found != NULL) *at = found->next;
    return found;
}

void dti_wire_keep(dti_wire *w, early *e)
{
    early **end = &dti_wire_drawer_of(w, e->head.tag)->early;

    while (*end != NULL) end = &(*end)->next;
    *end = e;
}

bool dti_wire_is_too_long(dti_wire *w, const message *m, const dti_frame *head)
{
    if (head->bytes <= m->bytes) return false;
    (void)snprintf(w->why, sizeof w->why, "a message of %u bytes came where %zu fit", head->bytes,
                   m->bytes);
    return true;
}

/* Where the bytes of a message go that begins to come. False: no memory, or it is too long. */
static bool find_place(dti_wire *w, line *l)
{
    if (l->head.kind == DTI_FRAME_FAREWELL) {
        l->to = l->farewell;
        l->head.bytes = l->head.bytes < sizeof l->farewell ? l->head.bytes : 0;
        return true;
    }
    l->taker = dti_wire_take(w, l->process, l->head.tag);
    if (l->taker != NULL) {
        l->to = l->taker->data;
        return !dti_wire_is_too_long(w, l->taker, &l->head);
    }
    l->kept = malloc(sizeof *l->kept + l->head.bytes);
    if (l->kept == NULL) {
        (void)snprintf(w->why, sizeof w->why, "no memory for a message of %u bytes", l->head.bytes);
        return false;
    }
    *l->kept = (early){ .process = l->process, .head = l->head };
    dti_wire_keep(w, l->kept);
    l->to = l->kept->data;
    return true;
}

void dti_wire_hand_out(dti_wire *w, early *e)
{
    early **at = &dti_wire_drawer_of(w, e->head.tag)->early;

    while (*at != e) at = &(*at)->next;
    *at = e->next;
    memcpy(e->taker->data, e->data, e->head.bytes);
    answer(w, e->process, &e->head);
    dti_wire_complete(e->taker, e->head.bytes);
    free(e);
}

static void is_whole(dti_wire *w, line *l)
{
    if (l->head.kind == DTI_FRAME_FAREWELL) dti_wire_lose(w, l);
    if (l->taker != NULL) {
        answer(w, l->process, &l->head);
        dti_wire_complete(l->taker, l->head.bytes);
    } else if (l->kept != NULL) {
        l->kept->whole = true;
        if (l->kept->taker != NULL) dti_wire_hand_out(w, l->kept);
    }
    l->taker = NULL;
    l->kept = NULL;
    l->got = 0;
}

/* The first words of who has connected. */
static bool hear(dti_wire *w, line *l)
{
    dti_hello h;
    const ssize_t n = recv(l->socket, &h, sizeof h, MSG_PEEK);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        dti_wire_lose(w, l);
        return false;
    }
    if (n < (ssize_t)sizeof h) return false;
    (void)!recv(l->socket, &h, sizeof h, 0);
    learn(w, l, &h);
    return l->socket >= 0;
}

/* False when nothing more is there. */
static bool pull_some(dti_wire *w, line *l)
{
    const bool in_head = l->got < sizeof l->head;
    char *to = in_head ? (char *)&l->head + l->got : l->to + (l->got - sizeof l->head);
    const size_t want = (in_head ? sizeof l->head : sizeof l->head + l->head.bytes) - l->got;
    ssize_t n;

    if (l->process < 0) return hear(w, l);
    n = recv(l->socket, to, want, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        dti_wire_lose(w, l);
        return false;
    }
    l->got += (size_t)n;
    if (l->got < sizeof l->head) return true;
    if (in_head && l->head.kind == DTI_FRAME_TAKEN) {
        was_taken(&w->peers[l->process], l->head.id);
        l->got = 0;
        return true;
    }
    if (in_head && !find_place(w, l)) return false;
    if (l->got == sizeof l->head + l->head.bytes) is_whole(w, l);
    return l->socket >= 0;
}

static void forget_closed(dti_wire *w)
{
    for (line **at = &w->links; *at != NULL;) {
        line *l = *at;
        if (l->socket >= 0 || l->taker != NULL || l->kept != NULL) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        w->n_links--;
        free(l);
    }
}

void dti_wire_progress(dti_wire *w)
{
    int n = 0;

    w->polls[n++] = (struct pollfd){ .fd = w->listener, .events = POLLIN };
    for (line *l = w->links; l != NULL; l = l->next)
        w->polls[n++] = (struct pollfd){ .fd = l->socket, .events = POLLIN };
    if (poll(w->polls, (nfds_t)n, 0) > 0) {
        n = 1;
        for (line *l = w->links; l != NULL; l = l->next)
            if (w->polls[n++].revents != 0 && l->socket >= 0)
                while (w->why[0] == '\0' && pull_some(w, l)) {
                }
        if (w->polls[0].revents != 0) admit(w);
        forget_closed(w);
    }
    for (int p = 0; p < w->n_processes && w->n_pending > 0; p++)
        if (w->peers[p].sends != NULL) dti_wire_push(w, p);
}
