/* SPDX-License-Identifier: Apache-2.0
 *
 * The carrier cuda_local_spin: cuda_local, but sums over ranks are kernels that wait for each
 * other on the devices. No host takes part in them, so they cost one launch and can be recorded.
 *
 * A sum is put on the stream when it is started, so all ranks have to have the same before it
 * there. What cuda_local does when it is waited for is therefore done first.
 *
 * Whoever gives memory back waits for the whole device, and must not do so while a kernel is on it
 * whose peers are yet to be started: where ranks share a device the hosts meet before and after
 * they start such kernels, and only the world's ranks together start them. Devices that reach each
 * other may have to wait in the same way, which is why this carrier is never chosen by itself
 * (docs/cuda.md). */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "mesh/comm/call.h"
#include "mesh/comm/local_internal.h"
#include "mesh/comm/spin_moves.h"

enum {
    GRACE_MS = 10 * 1000,              /* hosts find out first who is missing */
    DRAIN_NS = 2 * 1000 * 1000 * 1000, /* for kernels to end that were told to */
    NS_PER_MS = 1000 * 1000
};

/* Of one communicator. */
typedef struct spin_part {
    struct spin_part *next;
    dti_local_group *group; /* NULL: not counted among its parts */
    bool open;
    uint64_t seq; /* sums */
    void *area;
    dti_cuda_circle circle;
} spin_part;

/* Of one rank. */
typedef struct dti_spin_rank {
    spin_part *parts;
    uint32_t *stop; /* pinned; other threads set it too, when they abort (local_fail.c) */
} dti_spin_rank;

static void set_stop(uint32_t *stop)
{
    __atomic_store_n(stop, 1u, __ATOMIC_RELEASE);
}

void dti_local_spin_stop_all(dti_local_world *w)
{
    for (int r = 0; r < w->n_ranks; r++)
        if (w->ranks[r].stop != NULL) set_stop(w->ranks[r].stop);
}

/* The rank's word, for kernels and for those who abort. */
static void share_stop(dti_local_comm *c, uint32_t *stop)
{
    (void)pthread_mutex_lock(&c->world->lock);
    c->self->stop = stop;
    if (stop != NULL && atomic_load(&c->world->aborted)) set_stop(stop);
    (void)pthread_mutex_unlock(&c->world->lock);
}

/* --- areas --------------------------------------------------------------------------------------
 */

static dt_status rank_of(dti_local_comm *c, dti_spin_rank **out)
{
    dti_cuda_world *w = c->head.cuda;
    const dti_cuda_place *place = &w->place;
    void *stop = NULL;

    if (w->spin == NULL) {
        DT_TRY(dti_new(sizeof *w->spin, &w->spin));
        DT_TRY(dti_cuda_check_call(
            place, place->module->alloc(place->cuda, sizeof(uint32_t), DTI_CUDA_PINNED, &stop),
            "pinned memory for communication"));
        w->spin->stop = stop;
        *w->spin->stop = 0;
        share_stop(c, w->spin->stop);
    }
    *out = w->spin;
    return DT_OK;
}

static void count_part(dti_local_comm *c, spin_part *p)
{
    (void)pthread_mutex_lock(&c->world->lock);
    c->group->spin.n_opened++;
    (void)pthread_mutex_unlock(&c->world->lock);
    p->group = c->group;
}

/* Zeros that have arrived, before the others hear of it. */
static dt_status make_area(const dti_local_comm *c, spin_part *p)
{
    const dti_cuda_place *place = &c->head.cuda->place;
    const size_t bytes = place->module->spin_bytes();

    DT_CHECK(place->module->alloc(place->cuda, bytes, DTI_CUDA_DEVICE, &p->area) == 0,
             DT_ERR_MEMORY, "%zu bytes of device memory for sums over \"%s\": %s", bytes,
             c->head.name, place->module->why());
    DT_TRY(dti_cuda_check_call(place,
                               place->module->clear(place->cuda, p->area, DTI_CUDA_SPIN_HEAD_BYTES),
                               "clearing memory for communication"));
    return dti_cuda_watch_sync(c->head.cuda);
}

static dt_status exchange_areas(dti_local_comm *c, spin_part *p)
{
    int64_t mine = (int64_t)(intptr_t)p->area, all[DTI_CUDA_SPIN_RANKS];
    int64_t counts[DTI_CUDA_SPIN_RANKS];

    for (int m = 0; m < c->head.size; m++) counts[m] = 1;
    DT_TRY(dti_all_gather(&c->head, &mine, all, counts, NULL, DT_I64));
    p->circle = (dti_cuda_circle){ .rank = c->head.rank,
                                   .size = c->head.size,
                                   .stop = c->head.cuda->spin->stop,
                                   .crowded = c->head.cuda->crowded };
    for (int m = 0; m < c->head.size; m++) {
        p->circle.areas[m] = (void *)(intptr_t)all[m];
        p->circle.names[m] = c->head.world_ranks[m];
    }
    p->open = true;
    return DT_OK;
}

static dt_status part_of(dti_local_comm *c, spin_part **out)
{
    spin_part *p = c->head.cuda_part;
    dti_spin_rank *rank;

    DT_TRY(rank_of(c, &rank));
    if (p == NULL) {
        DT_TRY(dti_new(sizeof *p, &p));
        p->next = rank->parts;
        rank->parts = p;
        c->head.cuda_part = p;
        count_part(c, p);
        DT_TRY(make_area(c, p));
        DT_TRY(exchange_areas(c, p));
    }
    DT_CHECK(p->open, DT_ERR_COMM, "sums over \"%s\" could not be opened before", c->head.name);
    *out = p;
    return DT_OK;
}

/* --- before a sum -------------------------------------------------------------------------------
 */

static int due_member(dti_local_comm *c, const dti_comm_request *r)
{
    (void)r;
    while (c->worked < c->started) {
        const int member = dti_local_try_work(c);
        if (member != DTI_LOCAL_READY) return member;
    }
    return c->n_recvs > 0 ? dti_local_p2p_pending(c) : DTI_LOCAL_READY;
}

static dt_status do_what_is_due(dti_local_comm *current, const dti_comm_request *r)
{
    for (dti_local_comm *c = current->self->comms; c != NULL && current->self->n_due > 0;
         c = c->next)
        if (c->group != NULL) DT_TRY(dti_local_await(c, r, due_member, "arrived"));
    return DT_OK;
}

static dt_status start_sum(dti_local_comm *c, const dti_comm_request *r)
{
    const dti_comm_call *call = &r->call;
    const dti_cuda_world *w = c->head.cuda;
    const dti_cuda_spin_job sum = { .dtype = (int)call->dtype,
                                    .reduce = (int)call->reduce,
                                    .n = call->counts[0],
                                    .send = call->send,
                                    .recv = call->recv };
    const bool runs = w->stage != DTI_CUDA_RECORDS_GRAPH, meets = runs && w->crowded;
    spin_part *p;

    DT_TRY(dti_local_check_abort(c, r));
    if (runs) DT_TRY(do_what_is_due(c, r));
    DT_TRY(part_of(c, &p));
    if (runs && (meets || r->note != NULL)) DT_TRY(dti_cuda_hosts_meet(&c->head, r));
    p->circle.limit_ms = r->timeout_ms + GRACE_MS;
    DT_TRY(dti_cuda_check_call(&w->place,
                               w->place.module->spin_sum(w->place.cuda, &p->circle, &sum),
                               "adding over ranks"));
    DT_TRY(dti_cuda_watch_start(&c->head, r));
    if (meets) DT_TRY(dti_cuda_hosts_meet(&c->head, r));
    return DT_OK;
}

/* --- the carrier --------------------------------------------------------------------------------
 */

/* All members answer alike. Where ranks share a device, those of the world who are not members do
 * not come to the meetings of hosts, so they might give memory back while kernels wait. */
static bool may_wait(const dti_comm *c)
{
    return c->size <= DTI_CUDA_SPIN_RANKS && (!c->cuda->crowded || c->size == c->cuda->host->size);
}

static bool is_spun(const dti_comm *c, const dti_comm_call *call)
{
    return call->op == DTI_COMM_ALL_REDUCE && may_wait(c) &&
           call->counts[0] <= DTI_CUDA_SPIN_SUM_BYTES / (int64_t)dt_dtype_size(call->dtype);
}

static bool records(const dti_comm *c)
{
    return c->cuda->stage == DTI_CUDA_RECORDS_GRAPH;
}

static uint64_t next_number(dti_comm *c, const dti_comm_request *r)
{
    spin_part *p = c->cuda_part;

    if (records(c)) return p != NULL ? p->seq + 1 : 1; /* it runs later, if all ranks record it */
    if (!is_spun(c, &r->call)) return ++c->seq;
    return p != NULL ? ++p->seq : 1; /* the first call makes the part */
}

/* What is rehearsed needs its part when it is recorded. */
static bool is_rehearsed_move(const dti_comm *c, const dti_comm_call *call)
{
    return c->cuda->stage == DTI_CUDA_REHEARSES && may_wait(c) && dti_spin_is_move(call);
}

static dt_status spin_start(dti_comm *c, dti_comm_request *r)
{
    spin_part *p = c->cuda_part;

    if (records(c) && !is_spun(c, &r->call))
        return dti_spin_record_move(c, &p->circle, &r->call, r->timeout_ms + GRACE_MS);
    if (!is_spun(c, &r->call)) {
        DT_TRY(c->ops->start(c, r)); /* first: it was numbered before what opens the part */
        return is_rehearsed_move(c, &r->call) ? part_of((dti_local_comm *)c, &p) : DT_OK;
    }
    DT_TRY(start_sum((dti_local_comm *)c, r));
    if (!records(c)) ((spin_part *)c->cuda_part)->seq = r->seq;
    return DT_OK;
}

/* A sum is on the stream, in whose order it ends; so is all that is recorded. */
static dt_status spin_wait(dti_comm *c, dti_comm_request *r)
{
    return is_spun(c, &r->call) || records(c) ? DT_OK : c->ops->wait(c, r);
}

/* Kernels have been told to stop. What one has found is an error of communication; if none has, it
 * was this rank's host that told them, after a failure. */
static dt_status tell_fault(dti_cuda_world *w)
{
    const dti_cuda_place *place = &w->place;

    DT_CHECK(place->module->sync(place->cuda) != 0, DT_ERR_COMM,
             "kernels on the device of rank %d were stopped after a failure, so sums over ranks "
             "have no results",
             w->host->world_ranks[w->host->rank]);
    (void)dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__, "on the device of rank %d: %s",
                     w->host->world_ranks[w->host->rank], place->module->why());
    w->host->ops->abort(w->host, w->host->world_ranks[w->host->rank], dt_last_error()->message);
    return DT_ERR_COMM;
}

static dt_status spin_sync(dti_cuda_world *w)
{
    if (w->spin == NULL)
        return dti_cuda_check_call(&w->place, w->place.module->sync(w->place.cuda), "waiting");
    DT_TRY(dti_cuda_watch_sync(w));
    if (__atomic_load_n(w->spin->stop, __ATOMIC_ACQUIRE) == 0) return DT_OK;
    DT_TRY(dti_cuda_watch_check(w));
    return tell_fault(w);
}

static void spin_abort(dti_cuda_world *w)
{
    if (w->spin != NULL && w->spin->stop != NULL) set_stop(w->spin->stop);
}

static bool have_left(const dti_comm *head)
{
    const dti_local_comm *c = (const dti_local_comm *)head;

    for (int m = 0; m < head->size; m++)
        if (atomic_load(&c->world->ranks[head->world_ranks[m]].left)) return true;
    return false;
}

static bool can_record(const dti_comm *c, const dti_comm_call *call)
{
    const spin_part *p = c->cuda_part;

    return p != NULL && p->open && (is_spun(c, call) || dti_spin_can_move(c, call));
}

/* The part stays until the rank's stream is quiet. */
static void spin_close(dti_comm *c)
{
    dti_cuda_watch_forget(c);
}

static bool await_quiet(const dti_cuda_world *w, int64_t ns)
{
    const int64_t end = dti_now_ns() + ns;
    bool done = false;

    while (w->place.module->done(w->place.cuda, &done) == 0 && !done && dti_now_ns() < end)
        (void)sched_yield();
    return done;
}

/* Whoever closes last gives back all areas: until then kernels of others may be inside. If not all
 * members had opened theirs, one may yet come with the addresses of the others, so these areas stay
 * to the end of the process. */
static void give_back(dti_cuda_world *w, dti_local_world *local, const spin_part *p)
{
    const dti_cuda_place *place = &w->place;
    dti_local_spin *s = &p->group->spin;
    void *gone[DTI_CUDA_SPIN_RANKS] = { NULL };

    (void)pthread_mutex_lock(&local->lock);
    s->areas[s->n_closed++] = p->area;
    if (s->n_closed == s->n_opened) {
        if (s->n_opened == p->group->n) memcpy(gone, s->areas, sizeof gone);
        *s = (dti_local_spin){ .n_opened = 0 };
    }
    (void)pthread_mutex_unlock(&local->lock);
    for (int m = 0; m < DTI_CUDA_SPIN_RANKS; m++)
        if (gone[m] != NULL) place->module->release(place->cuda, DTI_CUDA_DEVICE, gone[m]);
}

/* A stream that does not become quiet keeps what its kernels use. */
static void close_world(dti_cuda_world *w)
{
    dti_local_comm *host = (dti_local_comm *)w->host;
    const dti_comm_request words = { .call = { .op = DTI_COMM_BARRIER } };
    const bool orderly = w->host->ops->check(w->host, &words) == DT_OK;
    bool quiet;

    if (w->spin == NULL) return;
    quiet = orderly && await_quiet(w, w->host->timeout_ms * NS_PER_MS);
    if (!quiet) {
        spin_abort(w);
        quiet = await_quiet(w, DRAIN_NS);
    }
    while (w->spin->parts != NULL) {
        spin_part *p = w->spin->parts;
        w->spin->parts = p->next;
        if (quiet && p->group != NULL) give_back(w, host->world, p);
        dti_free(p);
    }
    if (w->spin->stop != NULL) {
        share_stop(host, NULL);
        if (quiet) w->place.module->release(w->place.cuda, DTI_CUDA_PINNED, w->spin->stop);
    }
    dti_free(w->spin);
    w->spin = NULL;
}

const dti_cuda_carrier dti_cuda_spin = {
    .name = "cuda_local_spin",
    .remedy = "",
    .records = true,
    .next_number = next_number,
    .start = spin_start,
    .wait = spin_wait,
    .sync = spin_sync,
    .have_left = have_left,
    .can_record = can_record,
    .abort = spin_abort,
    .close = spin_close,
    .close_world = close_world,
};
