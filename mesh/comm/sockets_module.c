/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of mpi_api.h without MPI, for the processes that torchrun, or anything else that sets
 * RANK and WORLD_SIZE, has started on one machine: messages over Unix sockets, one for each two
 * processes. What is large goes through shared memory and never comes here (mpi_region.h).
 *
 * A module of its own, as those of MPI are, with the state of one process's connections. */
#include "mesh/comm/sockets.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { TAG_MAX = (1 << 30) - 1 };

typedef dti_frame frame;

/* A message that was handed to send() or recv(). */
typedef struct operation {
    struct operation *next;
    dti_mpi_queue *queue;
    void *cookie;
    char *data;
    int process, tag;
    size_t bytes;
    frame head;  /* of a send */
    size_t sent; /* of head and data */
} operation;

/* A message that came before anybody asked for it. */
typedef struct early {
    struct early *next;
    int process;
    frame head;
    operation *taker; /* somebody has asked meanwhile */
    bool whole;
    char data[];
} early;

typedef struct peer {
    int socket; /* -1: not there any more */
    operation *sends, **last;
    operation *waiting; /* sent, until TAKEN has come */
    frame head;
    size_t got; /* of head and bytes */
    char *to;
    operation *taker;
    early *kept;
    char farewell[DTI_MPI_TEXT_BYTES];
} peer;

typedef struct block {
    struct block *next;
    _Alignas(64) char data[];
} block;

struct dti_mpi_queue {
    int n, used; /* used: handed in and not yet handed out as done */
    dti_mpi_done *done, *handed;
    int n_done;
    block *blocks;
    char why[DTI_MPI_TEXT_BYTES];
};

static struct {
    pthread_mutex_t lock; /* all of it, but for what belongs to a queue's thread */
    bool open;
    dti_mpi_state state;
    uint64_t session, n_sent;
    int process, n_processes;
    peer *peers; /* [n_processes] */
    operation *receives;
    early *early;
    char why[DTI_MPI_TEXT_BYTES];
    char lost[DTI_MPI_TEXT_BYTES]; /* the first process that has gone; or "" */
} net = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* --- the job ---------------------------------------------------------------------------------- */

static int join(int64_t within_ms, char why[DTI_MPI_TEXT_BYTES])
{
    dti_sockets_job job;

    if (dti_sockets_meet(within_ms, &job, why)) return -1;
    net.process = job.process;
    net.n_processes = job.n_processes;
    net.peers = calloc((size_t)job.n_processes, sizeof *net.peers);
    for (int p = 0; p < job.n_processes; p++)
        if (net.peers != NULL)
            net.peers[p] = (peer){ .socket = job.sockets[p], .last = &net.peers[p].sends };
        else if (job.sockets[p] >= 0)
            (void)close(job.sockets[p]);
    free(job.sockets);
    if (net.peers != NULL) return 0;
    (void)snprintf(why, DTI_MPI_TEXT_BYTES, "no memory for %d processes", job.n_processes);
    return -1;
}

static int open_job(int64_t within_ms, dti_mpi_job *out, char why[DTI_MPI_TEXT_BYTES])
{
    if (!net.open && join(within_ms, why)) return -1;
    net.open = true;
    *out = (dti_mpi_job){ net.process, net.n_processes, TAG_MAX, true };
    return 0;
}

static void describe(char text[DTI_MPI_TEXT_BYTES])
{
    (void)snprintf(text, DTI_MPI_TEXT_BYTES, "processes of one machine, without MPI");
}

static int enter(uint64_t *session)
{
    if (net.state == DTI_MPI_RUNNING) return -1;
    net.state = DTI_MPI_RUNNING;
    *session = ++net.session;
    return 0;
}

static void leave(bool has_failed)
{
    net.state = has_failed ? DTI_MPI_FAILED : DTI_MPI_IDLE;
}

/* --- what is done ----------------------------------------------------------------------------- */

/* With the lock held, as all that follows until the queues. A queue that was destroyed is NULL. */
static void complete(operation *o, size_t bytes)
{
    if (o->queue != NULL)
        o->queue->done[o->queue->n_done++] = (dti_mpi_done){ o->cookie, (int)bytes };
    free(o);
}

static void put(peer *p, operation *o)
{
    o->next = NULL;
    *p->last = o;
    p->last = &o->next;
}

/* Whoever has gone takes nothing any more. Those who wait for it while joining ask; later that it
 * is missed is noticed elsewhere. */
static void lose(peer *p)
{
    if (net.lost[0] == '\0' && p->farewell[0] != '\0')
        (void)snprintf(net.lost, sizeof net.lost, "%s", p->farewell);
    else if (net.lost[0] == '\0')
        dti_sockets_say_lost((int)(p - net.peers), net.n_processes, net.lost);
    (void)close(p->socket);
    p->socket = -1;
    while (p->sends != NULL) {
        operation *o = p->sends;
        p->sends = o->next;
        complete(o, 0);
    }
    p->last = &p->sends;
}

static void was_taken(peer *p, uint64_t id)
{
    for (operation **link = &p->waiting; *link != NULL; link = &(*link)->next) {
        operation *o = *link;
        if (o->head.id != id) continue;
        *link = o->next;
        complete(o, o->head.bytes);
        return;
    }
}

static void answer(peer *p, const frame *head)
{
    operation *o;

    if (head->kind != DTI_FRAME_MATCHED) return;
    if (p == &net.peers[net.process]) was_taken(p, head->id);
    o = p->socket >= 0 ? calloc(1, sizeof *o) : NULL;
    if (o == NULL) return;
    o->head = (frame){ .kind = DTI_FRAME_TAKEN, .id = head->id };
    put(p, o);
}

static void was_sent(peer *p, operation *o)
{
    if (o->head.kind != DTI_FRAME_MATCHED) {
        complete(o, o->head.bytes);
        return;
    }
    o->next = p->waiting;
    p->waiting = o;
}

static void push(peer *p)
{
    while (p->socket >= 0 && p->sends != NULL) {
        operation *o = p->sends;
        const size_t all = sizeof o->head + o->head.bytes;
        const size_t of_data = o->sent > sizeof o->head ? o->sent - sizeof o->head : 0;
        const size_t of_head = o->sent - of_data;
        struct iovec parts[2] = { { (char *)&o->head + of_head, sizeof o->head - of_head },
                                  { o->data + of_data, o->head.bytes - of_data } };
        const struct msghdr m = { .msg_iov = parts, .msg_iovlen = 2 };
        const ssize_t n = sendmsg(p->socket, &m, MSG_NOSIGNAL);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
        if (n < 0) {
            lose(p);
            return;
        }
        o->sent += (size_t)n;
        if (o->sent < all) return;
        p->sends = o->next;
        if (p->sends == NULL) p->last = &p->sends;
        was_sent(p, o);
    }
}

/* --- what comes ------------------------------------------------------------------------------- */

static bool fits(const operation *o, int process, int tag)
{
    return o->tag == tag && (o->process == process || o->process == DTI_MPI_ANY_PROCESS);
}

static bool is_too_long(const operation *o, const frame *head)
{
    if (head->bytes <= o->bytes) return false;
    (void)snprintf(net.why, sizeof net.why, "a message of %u bytes came where %zu fit", head->bytes,
                   o->bytes);
    return true;
}

/* Where the bytes of a message go that begins to come. False: no memory, or it is too long. */
static bool find_place(peer *p)
{
    const int process = (int)(p - net.peers);
    operation **link = &net.receives;
    early **end = &net.early;

    if (p->head.kind == DTI_FRAME_FAREWELL) {
        p->to = p->farewell;
        p->head.bytes = p->head.bytes < sizeof p->farewell ? p->head.bytes : 0;
        return true;
    }
    while (*link != NULL && !fits(*link, process, p->head.tag)) link = &(*link)->next;
    p->taker = *link;
    if (p->taker != NULL) {
        *link = p->taker->next;
        p->to = p->taker->data;
        return !is_too_long(p->taker, &p->head);
    }
    p->kept = malloc(sizeof *p->kept + p->head.bytes);
    if (p->kept == NULL) {
        (void)snprintf(net.why, sizeof net.why, "no memory for a message of %u bytes",
                       p->head.bytes);
        return false;
    }
    *p->kept = (early){ .process = process, .head = p->head };
    while (*end != NULL) end = &(*end)->next;
    *end = p->kept;
    p->to = p->kept->data;
    return true;
}

static void hand_out(early *e)
{
    early **link = &net.early;

    while (*link != e) link = &(*link)->next;
    *link = e->next;
    memcpy(e->taker->data, e->data, e->head.bytes);
    answer(&net.peers[e->process], &e->head);
    complete(e->taker, e->head.bytes);
    free(e);
}

static void is_whole(peer *p)
{
    if (p->head.kind == DTI_FRAME_FAREWELL) lose(p);
    if (p->taker != NULL) {
        answer(p, &p->head);
        complete(p->taker, p->head.bytes);
    } else if (p->kept != NULL) {
        p->kept->whole = true;
        if (p->kept->taker != NULL) hand_out(p->kept);
    }
    p->taker = NULL;
    p->kept = NULL;
    p->got = 0;
}

/* False when nothing more is there. */
static bool pull_some(peer *p)
{
    const bool in_head = p->got < sizeof p->head;
    char *to = in_head ? (char *)&p->head + p->got : p->to + (p->got - sizeof p->head);
    const size_t want = (in_head ? sizeof p->head : sizeof p->head + p->head.bytes) - p->got;
    const ssize_t n = recv(p->socket, to, want, 0);

    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
        lose(p);
        return false;
    }
    p->got += (size_t)n;
    if (p->got < sizeof p->head) return true;
    if (in_head && p->head.kind == DTI_FRAME_TAKEN) {
        was_taken(p, p->head.id);
        p->got = 0;
        return true;
    }
    if (in_head && !find_place(p)) return false;
    if (p->got == sizeof p->head + p->head.bytes) is_whole(p);
    return true;
}

static void progress(void)
{
    for (int i = 0; i < net.n_processes; i++) {
        peer *p = &net.peers[i];
        while (p->socket >= 0 && net.why[0] == '\0' && pull_some(p)) {
        }
        push(p);
    }
}

static bool lost(char why[DTI_MPI_TEXT_BYTES])
{
    (void)pthread_mutex_lock(&net.lock);
    progress();
    (void)snprintf(why, DTI_MPI_TEXT_BYTES, "%s", net.lost);
    (void)pthread_mutex_unlock(&net.lock);
    return why[0] != '\0';
}

/* Not in the middle of another message. */
static void give_up(const char *why)
{
    (void)pthread_mutex_lock(&net.lock);
    for (int i = 0; i < net.n_processes; i++) {
        peer *p = &net.peers[i];
        push(p);
        if (p->socket < 0) continue;
        if (p->sends == NULL || p->sends->sent == 0) dti_sockets_say_farewell(p->socket, why);
        lose(p);
    }
    (void)pthread_mutex_unlock(&net.lock);
}

/* --- queues ----------------------------------------------------------------------------------- */

static int queue_reserve(dti_mpi_queue *q, int n_more)
{
    const size_t n = (size_t)q->n + (size_t)n_more;
    dti_mpi_done *done, *handed;

    (void)pthread_mutex_lock(&net.lock);
    done = realloc(q->done, n * sizeof *done);
    if (done != NULL) q->done = done;
    handed = realloc(q->handed, n * sizeof *handed);
    if (handed != NULL) q->handed = handed;
    if (done != NULL && handed != NULL) q->n = (int)n;
    (void)pthread_mutex_unlock(&net.lock);
    if (q->n == (int)n) return 0;
    (void)snprintf(q->why, sizeof q->why, "no memory for %zu messages", n);
    return -1;
}

static void *queue_memory(dti_mpi_queue *q, size_t bytes)
{
    block *b = calloc(1, sizeof *b + bytes);

    if (b == NULL) return NULL;
    b->next = q->blocks;
    q->blocks = b;
    return b->data;
}

static void forget(operation **list, const dti_mpi_queue *q)
{
    while (*list != NULL) {
        operation *o = *list;
        if (o->queue == q && o->sent == 0) { /* one that is being sent keeps its place */
            *list = o->next;
            free(o);
        } else {
            list = &o->next;
        }
    }
}

/* What is under way stays, with the memory that it lies in. */
static bool is_under_way(const dti_mpi_queue *q)
{
    bool found = false;

    for (int i = 0; i < net.n_processes; i++) {
        const peer *p = &net.peers[i];
        found = found || (p->taker != NULL && p->taker->queue == q);
        for (const operation *o = p->sends; o != NULL; o = o->next) found = found || o->queue == q;
    }
    for (const early *e = net.early; e != NULL; e = e->next)
        found = found || (e->taker != NULL && e->taker->queue == q);
    return found;
}

static void queue_destroy(dti_mpi_queue *q)
{
    bool stays = false;

    if (q == NULL) return;
    (void)pthread_mutex_lock(&net.lock);
    if (q->used > 0) {
        progress();
        forget(&net.receives, q);
        for (int i = 0; i < net.n_processes; i++) {
            for (operation *o = net.peers[i].waiting; o != NULL; o = o->next)
                if (o->queue == q) o->queue = NULL;
        }
        stays = is_under_way(q);
    }
    (void)pthread_mutex_unlock(&net.lock);
    if (stays) return; /* after a failure; the process is about to end */
    while (q->blocks != NULL) {
        block *b = q->blocks;
        q->blocks = b->next;
        free(b);
    }
    free(q->done);
    free(q->handed);
    free(q);
}

static dti_mpi_queue *queue_create(int n_messages)
{
    dti_mpi_queue *q = calloc(1, sizeof *q);

    if (q != NULL && queue_reserve(q, n_messages) != 0) {
        queue_destroy(q);
        q = NULL;
    }
    return q;
}

static operation *make(dti_mpi_queue *q, const dti_mpi_message *m)
{
    operation *o;

    if (q->used == q->n && queue_reserve(q, q->n) != 0) return NULL;
    o = calloc(1, sizeof *o);
    if (o == NULL) {
        (void)snprintf(q->why, sizeof q->why, "no memory for a message");
        return NULL;
    }
    *o = (operation){ .queue = q,
                      .cookie = m->cookie,
                      .data = m->data,
                      .process = m->process,
                      .tag = m->tag,
                      .bytes = (size_t)m->bytes };
    q->used++;
    return o;
}

/* A message of a process to itself is early at once. */
static int send_home(operation *o)
{
    early *e = malloc(sizeof *e + o->bytes), **end = &net.early;
    operation **link = &net.receives;

    if (e == NULL) {
        o->queue->used--;
        free(o);
        return -1;
    }
    *e = (early){ .process = net.process, .head = o->head, .whole = true };
    memcpy(e->data, o->data, o->bytes);
    while (*end != NULL) end = &(*end)->next;
    *end = e;
    was_sent(&net.peers[net.process], o);
    while (*link != NULL && !fits(*link, net.process, e->head.tag)) link = &(*link)->next;
    if (*link != NULL) {
        e->taker = *link;
        *link = (*link)->next;
        hand_out(e);
    }
    return 0;
}

static int send_message(dti_mpi_queue *q, const dti_mpi_message *m)
{
    operation *o = make(q, m);
    int failed = 0;

    if (o == NULL) return -1;
    (void)pthread_mutex_lock(&net.lock);
    o->head = (frame){ .bytes = (uint32_t)m->bytes,
                       .tag = m->tag,
                       .kind = m->matched ? DTI_FRAME_MATCHED : DTI_FRAME_MESSAGE,
                       .id = ++net.n_sent };
    if (m->process == net.process) {
        failed = send_home(o);
    } else if (net.peers[m->process].socket < 0) {
        complete(o, o->bytes);
    } else {
        put(&net.peers[m->process], o);
        push(&net.peers[m->process]);
    }
    (void)pthread_mutex_unlock(&net.lock);
    return failed;
}

static int recv_message(dti_mpi_queue *q, const dti_mpi_message *m)
{
    operation *o = make(q, m), **end = &net.receives;
    early *e;

    if (o == NULL) return -1;
    (void)pthread_mutex_lock(&net.lock);
    e = net.early;
    while (e != NULL && (e->taker != NULL || !fits(o, e->process, e->head.tag))) e = e->next;
    if (e != NULL && !is_too_long(o, &e->head)) {
        e->taker = o;
        if (e->whole) hand_out(e);
    } else {
        while (*end != NULL) end = &(*end)->next;
        *end = o;
    }
    (void)pthread_mutex_unlock(&net.lock);
    return 0;
}

static int poll_queue(dti_mpi_queue *q, const dti_mpi_done **done)
{
    int n;

    if (q->used == 0) return 0;
    (void)pthread_mutex_lock(&net.lock);
    progress();
    n = q->n_done;
    memcpy(q->handed, q->done, (size_t)n * sizeof *q->done);
    q->n_done = 0;
    if (net.why[0] != '\0') {
        (void)snprintf(q->why, sizeof q->why, "%.400s", net.why);
        n = -1;
    }
    (void)pthread_mutex_unlock(&net.lock);
    if (n > 0) q->used -= n;
    *done = q->handed;
    return n;
}

static int no_sums(dti_mpi_queue *q)
{
    (void)snprintf(q->why, sizeof q->why, "there is no MPI; start with mpirun");
    return -1;
}

static int no_sum(dti_mpi_queue *q, const dti_mpi_sum *s)
{
    (void)s;
    return no_sums(q);
}

static const char *why(const dti_mpi_queue *q)
{
    return q->why;
}

extern const dti_mpi_module dti_mpi_module_table;

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
const dti_mpi_module dti_mpi_module_table = {
    .version = DTI_MPI_API_VERSION,
    .name = "sockets",
    .describe = describe,
    .arrive = dti_sockets_arrive,
    .stay_away = dti_sockets_stay_away,
    .open = open_job,
    .enter = enter,
    .leave = leave,
    .lost = lost,
    .give_up = give_up,
    .queue_create = queue_create,
    .queue_reserve = queue_reserve,
    .queue_memory = queue_memory,
    .queue_destroy = queue_destroy,
    .send = send_message,
    .recv = recv_message,
    .poll = poll_queue,
    .sums_open = no_sums,
    .sum = no_sum,
    .why = why,
};
