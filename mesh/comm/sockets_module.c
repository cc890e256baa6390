/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of mpi_api.h without MPI, for the processes that torchrun, or anything else that sets
 * RANK and WORLD_SIZE, has started on one machine: messages over Unix sockets (sockets_wire.h).
 * What is large goes through shared memory and never comes here (mpi_region.h).
 *
 * A module of its own, as those of MPI are, with the state of one process's connections. */
#include "mesh/comm/sockets_wire.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TAG_MAX = (1 << 30) - 1 };

typedef dti_wire_message operation;
typedef dti_wire_early early;

typedef struct dti_wire_block {
    struct dti_wire_block *next;
    _Alignas(64) char data[];
} block;

static struct {
    dti_wire wire;
    bool open;
    dti_mpi_state state;
    uint64_t session;
} net = { .wire = { .lock = PTHREAD_MUTEX_INITIALIZER } };

/* --- the job ---------------------------------------------------------------------------------- */

static int join(int64_t within_ms, char why[DTI_MPI_TEXT_BYTES])
{
    dti_sockets_job job;
    int failed;

    if (dti_sockets_meet(within_ms, &job, why)) return -1;
    failed = dti_wire_begin(&net.wire, &job);
    free(job.sockets);
    free(job.guests);
    if (failed)
        (void)snprintf(why, DTI_MPI_TEXT_BYTES, "no memory for %d processes", job.n_processes);
    return failed;
}

static int open_job(int64_t within_ms, dti_mpi_job *out, char why[DTI_MPI_TEXT_BYTES])
{
    if (!net.open && join(within_ms, why)) return -1;
    net.open = true;
    *out = (dti_mpi_job){ net.wire.process, net.wire.n_processes, TAG_MAX, true };
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

static bool lost(char why[DTI_MPI_TEXT_BYTES])
{
    (void)pthread_mutex_lock(&net.wire.lock);
    dti_wire_progress(&net.wire);
    (void)snprintf(why, DTI_MPI_TEXT_BYTES, "%s", net.wire.lost);
    (void)pthread_mutex_unlock(&net.wire.lock);
    return why[0] != '\0';
}

/* Not in the middle of another message. */
static void give_up(const char *why)
{
    (void)pthread_mutex_lock(&net.wire.lock);
    for (dti_wire_link *l = net.wire.links; l != NULL; l = l->next) {
        const operation *next = NULL;
        if (l->process >= 0) {
            dti_wire_push(&net.wire, l->process);
            next = net.wire.peers[l->process].sends;
        }
        if (l->socket < 0) continue;
        if (next == NULL || next->sent == 0) dti_sockets_say_farewell(l->socket, why);
        dti_wire_lose(&net.wire, l);
    }
    (void)pthread_mutex_unlock(&net.wire.lock);
}

/* --- queues ----------------------------------------------------------------------------------- */

static int queue_reserve(dti_mpi_queue *q, int n_more)
{
    const size_t n = (size_t)q->n + (size_t)n_more;
    dti_mpi_done *done, *handed;

    (void)pthread_mutex_lock(&net.wire.lock);
    done = realloc(q->done, n * sizeof *done);
    if (done != NULL) q->done = done;
    handed = realloc(q->handed, n * sizeof *handed);
    if (handed != NULL) q->handed = handed;
    if (done != NULL && handed != NULL) q->n = (int)n;
    (void)pthread_mutex_unlock(&net.wire.lock);
    if (q->n == (int)n) return 0;
    (void)snprintf(q->why, sizeof q->why, "no memory for %zu messages", n);
    return -1;
}

static void *queue_memory(dti_mpi_queue *q, size_t bytes)
{
    const size_t all =
        (sizeof(block) + bytes + _Alignof(block) - 1) / _Alignof(block) * _Alignof(block);
    block *b = aligned_alloc(_Alignof(block), all);

    if (b == NULL) return NULL;
    memset(b, 0, all);
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

    for (const dti_wire_link *l = net.wire.links; l != NULL; l = l->next)
        found = found || (l->taker != NULL && l->taker->queue == q);
    for (int i = 0; i < net.wire.n_processes; i++)
        for (const operation *o = net.wire.peers[i].sends; o != NULL; o = o->next)
            found = found || o->queue == q;
    for (int i = 0; i < DTI_WIRE_DRAWERS; i++)
        for (const early *e = net.wire.drawers[i].early; e != NULL; e = e->next)
            found = found || (e->taker != NULL && e->taker->queue == q);
    return found;
}

static void queue_destroy(dti_mpi_queue *q)
{
    bool stays = false;

    if (q == NULL) return;
    (void)pthread_mutex_lock(&net.wire.lock);
    if (q->used > 0) {
        dti_wire_progress(&net.wire);
        for (int i = 0; i < DTI_WIRE_DRAWERS; i++) forget(&net.wire.drawers[i].receives, q);
        for (int i = 0; i < net.wire.n_processes; i++) {
            for (operation *o = net.wire.peers[i].waiting; o != NULL; o = o->next)
                if (o->queue == q) o->queue = NULL;
        }
        stays = is_under_way(q);
    }
    (void)pthread_mutex_unlock(&net.wire.lock);
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
    early *e = malloc(sizeof *e + o->bytes);

    if (e == NULL) {
        o->queue->used--;
        free(o);
        return -1;
    }
    *e = (early){ .process = net.wire.process, .head = o->head, .whole = true };
    memcpy(e->data, o->data, o->bytes);
    dti_wire_keep(&net.wire, e);
    dti_wire_was_sent(&net.wire.peers[net.wire.process], o);
    e->taker = dti_wire_take(&net.wire, net.wire.process, e->head.tag);
    if (e->taker != NULL) dti_wire_hand_out(&net.wire, e);
    return 0;
}

static int send_message(dti_mpi_queue *q, const dti_mpi_message *m)
{
    operation *o = make(q, m);
    int failed = 0;

    if (o == NULL) return -1;
    (void)pthread_mutex_lock(&net.wire.lock);
    o->head = (dti_frame){ .bytes = (uint32_t)m->bytes,
                           .tag = m->tag,
                           .kind = m->matched ? DTI_FRAME_MATCHED : DTI_FRAME_MESSAGE,
                           .id = ++net.wire.n_sent };
    if (m->process == net.wire.process)
        failed = send_home(o);
    else
        dti_wire_send(&net.wire, o);
    (void)pthread_mutex_unlock(&net.wire.lock);
    return failed;
}

static int recv_message(dti_mpi_queue *q, const dti_mpi_message *m)
{
    dti_wire_drawer *drawer = dti_wire_drawer_of(&net.wire, m->tag);
    operation *o = make(q, m), **end = &drawer->receives;
    early *e;

    if (o == NULL) return -1;
    (void)pthread_mutex_lock(&net.wire.lock);
    e = drawer->early;
    while (e != NULL && (e->taker != NULL || !dti_wire_fits(o, e->process, e->head.tag)))
        e = e->next;
    if (e != NULL && !dti_wire_is_too_long(&net.wire, o, &e->head)) {
        e->taker = o;
        if (e->whole) dti_wire_hand_out(&net.wire, e);
    } else {
        while (*end != NULL) end = &(*end)->next;
        *end = o;
    }
    (void)pthread_mutex_unlock(&net.wire.lock);
    return 0;
}

static int poll_queue(dti_mpi_queue *q, const dti_mpi_done **done)
{
    int n;

    if (q->used == 0) return 0;
    (void)pthread_mutex_lock(&net.wire.lock);
    dti_wire_progress(&net.wire);
    n = q->n_done;
    memcpy(q->handed, q->done, (size_t)n * sizeof *q->done);
    q->n_done = 0;
    if (net.wire.why[0] != '\0') {
        (void)snprintf(q->why, sizeof q->why, "%.400s", net.wire.why);
        n = -1;
    }
    (void)pthread_mutex_unlock(&net.wire.lock);
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
