/* SPDX-License-Identifier: Apache-2.0
 *
 * NCCL of the devices that are late (queued_device.h). What a rank sends goes through memory of the
 * communicator, as between real GPUs: after an abort nobody is left in buffers of other ranks. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "mesh/comm/comm.h"
#include "tests/support/queued_device.h"

enum { MAX_RANKS = 8, MAX_GROUP = 64, POLLS_UNTIL_READY = 3 };

typedef enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST } kind;

/* What a rank hands in; all but the buffers is equal on all ranks, or the operation fails. */
typedef struct collective {
    kind kind;
    int dtype, reduce, root;
    int64_t count;
    const void *send;
    void *recv;
} collective;

/* Messages from one rank to another that were sent and not taken. */
typedef struct message {
    struct message *next;
    void *data; /* a copy */
    int64_t count;
    int dtype;
    bool taken;
} message;

/* What the ranks of a communicator share. */
typedef struct meeting {
    struct meeting *next;
    unsigned char id[DTI_CUDA_ID_BYTES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int size, n_opened, n_closed, n_finished;
    uint64_t arrived[MAX_RANKS], done[MAX_RANKS]; /* collectives */
    collective of[MAX_RANKS];
    void *data[MAX_RANKS]; /* what they send, copies */
    message *sent[MAX_RANKS][MAX_RANKS];
} meeting;

typedef struct transfer {
    bool sends;
    void *data;
    int64_t count;
    int dtype, peer;
} transfer;

struct dti_nccl {
    dti_cuda *c;
    meeting *m;
    int rank;
    int polls;    /* of ready() since the last call */
    bool settled; /* ready() has said 1 since then */
    _Atomic bool aborted, wrong;
    bool grouped, finishing;
    int n_transfers;
    transfer transfers[MAX_GROUP];
    uint64_t n_run; /* collectives; the stream's */
};

static pthread_mutex_t meetings_lock = PTHREAD_MUTEX_INITIALIZER;
static meeting *meetings;
static _Atomic unsigned n_ids;

static int make_id(unsigned char id[DTI_CUDA_ID_BYTES])
{
    memset(id, 0, DTI_CUDA_ID_BYTES);
    (void)snprintf((char *)id, DTI_CUDA_ID_BYTES, "meeting %u", atomic_fetch_add(&n_ids, 1) + 1);
    return 0;
}

static meeting *find_meeting(const unsigned char *id, int size)
{
    meeting *m = meetings;

    while (m != NULL && memcmp(m->id, id, sizeof m->id) != 0) m = m->next;
    if (m != NULL) return m;
    m = calloc(1, sizeof *m);
    if (m == NULL) abort();
    memcpy(m->id, id, sizeof m->id);
    (void)pthread_mutex_init(&m->lock, NULL);
    (void)pthread_cond_init(&m->changed, NULL);
    m->size = size;
    m->next = meetings;
    meetings = m;
    return m;
}

static int open_rank(dti_cuda *c, const unsigned char id[DTI_CUDA_ID_BYTES], int rank, int size,
                     dti_nccl **out)
{
    dti_nccl *n = calloc(1, sizeof *n);

    *out = NULL;
    if (n == NULL) return queued_fail("no memory");
    (void)pthread_mutex_lock(&meetings_lock);
    n->m = find_meeting(id, size);
    (void)pthread_mutex_unlock(&meetings_lock);
    n->c = c;
    n->rank = rank;
    (void)pthread_mutex_lock(&n->m->lock);
    n->m->n_opened++;
    (void)pthread_cond_broadcast(&n->m->changed);
    (void)pthread_mutex_unlock(&n->m->lock);
    *out = n;
    return 0;
}

static int ready(dti_nccl *n)
{
    bool is_ready;

    if (atomic_load(&n->wrong)) return queued_fail("NCCL: ranks do not do the same");
    if (atomic_load(&n->aborted)) return queued_fail("NCCL: aborted");
    if (++n->polls < POLLS_UNTIL_READY) return 0;
    (void)pthread_mutex_lock(&n->m->lock);
    is_ready = n->m->n_opened == n->m->size && (!n->finishing || n->m->n_finished == n->m->size);
    (void)pthread_mutex_unlock(&n->m->lock);
    n->settled = is_ready;
    return is_ready;
}

static void abort_rank(dti_nccl *n)
{
    atomic_store(&n->aborted, true);
    (void)pthread_mutex_lock(&n->m->lock);
    (void)pthread_cond_broadcast(&n->m->changed);
    (void)pthread_mutex_unlock(&n->m->lock);
}

static int finish(dti_nccl *n)
{
    n->finishing = true;
    n->polls = 0;
    (void)pthread_mutex_lock(&n->m->lock);
    n->m->n_finished++;
    (void)pthread_mutex_unlock(&n->m->lock);
    return 0;
}

static void free_meeting(meeting *m)
{
    meeting **link = &meetings;

    while (*link != m) link = &(*link)->next;
    *link = m->next;
    for (int i = 0; i < MAX_RANKS * MAX_RANKS; i++)
        while (m->sent[i / MAX_RANKS][i % MAX_RANKS] != NULL) {
            message *gone = m->sent[i / MAX_RANKS][i % MAX_RANKS];
            m->sent[i / MAX_RANKS][i % MAX_RANKS] = gone->next;
            free(gone->data);
            free(gone);
        }
    for (int r = 0; r < MAX_RANKS; r++) free(m->data[r]);
    (void)pthread_cond_destroy(&m->changed);
    (void)pthread_mutex_destroy(&m->lock);
    free(m);
}

/* The stream may still be in a task of n. */
static void close_rank(dti_nccl *n)
{
    bool last, done = false;

    abort_rank(n);
    while (!done) (void)queued_module()->done(n->c, &done);
    (void)pthread_mutex_lock(&meetings_lock);
    (void)pthread_mutex_lock(&n->m->lock);
    last = ++n->m->n_closed == n->m->n_opened;
    (void)pthread_mutex_unlock(&n->m->lock);
    if (last) free_meeting(n->m);
    (void)pthread_mutex_unlock(&meetings_lock);
    free(n);
}

/* Nothing may be started before the call before it has settled. */
static int begin(dti_nccl *n)
{
    if (!n->settled) return queued_fail("NCCL: a call before the last one was under way");
    n->settled = false;
    n->polls = 0;
    return 0;
}

/* --- on the stream ------------------------------------------------------------------------------
 */

/* With the lock held: until all ranks have come to operation `seq`; false: aborted. */
static bool await_all(dti_nccl *n, const uint64_t *reached, uint64_t seq)
{
    meeting *m = n->m;

    for (;;) {
        bool all = true;
        for (int r = 0; r < m->size; r++) all = all && reached[r] >= seq;
        if (all) return true;
        if (atomic_load(&n->aborted)) return false;
        (void)pthread_cond_wait(&m->changed, &m->lock);
    }
}

static bool is_same(const collective *a, const collective *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->reduce == b->reduce &&
           a->root == b->root && a->count == b->count;
}

/* Counted when it runs, since a recorded one runs again and again. */
typedef struct collective_task {
    dti_nccl *n;
    collective call;
} collective_task;

static void *copy_of(const void *data, size_t bytes)
{
    void *copy = malloc(bytes + 1);

    if (copy == NULL) abort();
    if (bytes > 0) memcpy(copy, data, bytes);
    return copy;
}

/* What a rank hands in to a collective; of a broadcast it matters from the root alone. */
static void *copy_sent(const meeting *m, const collective *call)
{
    const size_t block = (size_t)call->count * dt_dtype_size((dt_dtype)call->dtype);

    return copy_of(call->send, call->kind == REDUCE_SCATTER ? block * (size_t)m->size : block);
}

/* This rank's result. */
static void *make_result(const meeting *m, const collective *own, int rank, size_t *bytes)
{
    const size_t block = (size_t)own->count * dt_dtype_size((dt_dtype)own->dtype);
    const int n_blocks = own->kind == ALL_GATHER ? m->size : 1;
    char *result = malloc(block * (size_t)n_blocks + 1);
    dti_cuda_sum sum = { own->dtype, own->reduce, m->size, 1, .to = { result } };

    if (result == NULL) abort();
    *bytes = block * (size_t)n_blocks;
    sum.box = sum.to_box = (dti_cuda_box){ 1, 0, { own->count }, { 1 } };
    for (int r = 0; r < m->size; r++) {
        const char *send = m->data[r];
        if (own->kind == ALL_GATHER) memcpy(result + block * (size_t)r, send, block);
        if (own->kind == BROADCAST && r == own->root) memcpy(result, send, block);
        sum.terms[r] = own->kind == REDUCE_SCATTER ? send + block * (size_t)rank : send;
    }
    if (own->kind == ALL_REDUCE || own->kind == REDUCE_SCATTER) queued_add(&sum);
    return result;
}

static void run_collective(void *arg)
{
    const collective_task *t = arg;
    dti_nccl *n = t->n;
    meeting *m = n->m;
    const uint64_t seq = ++n->n_run;
    void *result = NULL;
    size_t bytes = 0;
    bool met;

    (void)pthread_mutex_lock(&m->lock);
    m->of[n->rank] = t->call;
    free(m->data[n->rank]); /* of the one before, which all have done with */
    m->data[n->rank] = copy_sent(m, &t->call);
    m->arrived[n->rank] = seq;
    (void)pthread_cond_broadcast(&m->changed);
    met = await_all(n, m->arrived, seq);
    for (int r = 0; r < m->size && met; r++)
        if (!is_same(&m->of[r], &t->call)) atomic_store(&n->wrong, true);
    if (met && !atomic_load(&n->wrong)) result = make_result(m, &t->call, n->rank, &bytes);
    m->done[n->rank] = seq;
    (void)pthread_cond_broadcast(&m->changed);
    met = met && await_all(n, m->done, seq);
    if (met && result != NULL) memcpy(t->call.recv, result, bytes);
    (void)pthread_mutex_unlock(&m->lock);
    free(result);
}

static int start_collective(dti_nccl *n, const collective *call)
{
    const collective_task t = { n, *call };

    if (n->grouped) return queued_fail("NCCL: a collective in a group of messages");
    if (begin(n) != 0) return -1;
    return queued_push(n->c, run_collective, &t, sizeof t);
}

static int all_reduce(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype,
                      int reduce)
{
    return start_collective(n, &(collective){ ALL_REDUCE, dtype, reduce, 0, count, send, recv });
}

static int all_gather(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype)
{
    return start_collective(n, &(collective){ ALL_GATHER, dtype, 0, 0, count, send, recv });
}

static int reduce_scatter(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype,
                          int reduce)
{
    return start_collective(n,
                            &(collective){ REDUCE_SCATTER, dtype, reduce, 0, count, send, recv });
}

static int broadcast(dti_nccl *n, const void *send, void *recv, int64_t count, int dtype, int root)
{
    return start_collective(n, &(collective){ BROADCAST, dtype, 0, root, count, send, recv });
}

/* --- messages -----------------------------------------------------------------------------------
 */

typedef struct group_task {
    dti_nccl *n;
    int n_transfers;
    transfer transfers[MAX_GROUP];
} group_task;

/* With the lock held. All sends are there before the first receive is looked at. */
static void send_all(const group_task *t, message **own)
{
    for (int i = 0; i < t->n_transfers; i++) {
        const transfer *one = &t->transfers[i];
        message **link = &t->n->m->sent[t->n->rank][one->peer];
        if (!one->sends) continue;
        while (*link != NULL) link = &(*link)->next;
        own[i] = *link = calloc(1, sizeof **link);
        if (own[i] == NULL) abort();
        **link = (message){ .data = copy_of(one->data, (size_t)one->count *
                                                           dt_dtype_size((dt_dtype)one->dtype)),
                            .count = one->count,
                            .dtype = one->dtype };
    }
    (void)pthread_cond_broadcast(&t->n->m->changed);
}

/* With the lock held. */
static void take(dti_nccl *n, const transfer *one)
{
    message **link = &n->m->sent[one->peer][n->rank];

    for (;;) { /* the first that was not taken */
        message *m = *link;
        while (m != NULL && m->taken) m = m->next;
        if (m != NULL) {
            if (m->count != one->count || m->dtype != one->dtype)
                atomic_store(&n->wrong, true);
            else
                memcpy(one->data, m->data, (size_t)m->count * dt_dtype_size((dt_dtype)m->dtype));
            m->taken = true;
            (void)pthread_cond_broadcast(&n->m->changed);
            return;
        }
        if (atomic_load(&n->aborted)) return;
        (void)pthread_cond_wait(&n->m->changed, &n->m->lock);
    }
}

/* With the lock held: until a sent message was taken, then it goes. */
static void await_taken(dti_nccl *n, message *own, int peer)
{
    message **link = &n->m->sent[n->rank][peer];

    while (!own->taken && !atomic_load(&n->aborted))
        (void)pthread_cond_wait(&n->m->changed, &n->m->lock);
    if (!own->taken) return; /* goes with the meeting */
    while (*link != own) link = &(*link)->next;
    *link = own->next;
    free(own->data);
    free(own);
}

static void run_group(void *arg)
{
    const group_task *t = arg;
    message *own[MAX_GROUP] = { NULL };

    (void)pthread_mutex_lock(&t->n->m->lock);
    send_all(t, own);
    for (int i = 0; i < t->n_transfers; i++)
        if (!t->transfers[i].sends) take(t->n, &t->transfers[i]);
    for (int i = 0; i < t->n_transfers; i++)
        if (own[i] != NULL) await_taken(t->n, own[i], t->transfers[i].peer);
    (void)pthread_mutex_unlock(&t->n->m->lock);
}

static int group_begin(dti_nccl *n)
{
    if (begin(n) != 0) return -1;
    n->grouped = true;
    n->n_transfers = 0;
    return 0;
}

static int add_transfer(dti_nccl *n, const transfer *one)
{
    if (!n->grouped) return queued_fail("NCCL: a message outside of a group");
    if (n->n_transfers == MAX_GROUP) return queued_fail("NCCL: too many messages in a group");
    if (one->count <= 0 || one->peer == n->rank) return queued_fail("NCCL: a message of nothing");
    n->transfers[n->n_transfers++] = *one;
    return 0;
}

static int post_send(dti_nccl *n, const void *send, int64_t count, int dtype, int peer)
{
    return add_transfer(n, &(transfer){ true, (void *)(uintptr_t)send, count, dtype, peer });
}

static int post_recv(dti_nccl *n, void *recv, int64_t count, int dtype, int peer)
{
    return add_transfer(n, &(transfer){ false, recv, count, dtype, peer });
}

static int group_end(dti_nccl *n)
{
    group_task t = { n, n->n_transfers, { { .sends = false } } };

    n->grouped = false;
    memcpy(t.transfers, n->transfers, sizeof t.transfers);
    return n->n_transfers > 0 ? queued_push(n->c, run_group, &t, sizeof t) : 0;
}

const dti_nccl_calls queued_nccl = {
    .id = make_id,
    .open = open_rank,
    .ready = ready,
    .abort = abort_rank,
    .finish = finish,
    .close = close_rank,
    .all_reduce = all_reduce,
    .all_gather = all_gather,
    .reduce_scatter = reduce_scatter,
    .broadcast = broadcast,
    .group_begin = group_begin,
    .send = post_send,
    .recv = post_recv,
    .group_end = group_end,
};
