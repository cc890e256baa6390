/* SPDX-License-Identifier: Apache-2.0
 *
 * The local back end: ranks are threads of this process, messages are pointers. */
#include "mesh/comm/local.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "mesh/comm/call.h"
#include "mesh/comm/local_internal.h"

_Static_assert(sizeof(dti_local_slot) == DTI_LINE_BYTES, "a slot is a pair of cache lines");

/* Shared by threads, so in no thread's allocation count; lines of their own. */
static void *alloc_lines(size_t n, size_t bytes)
{
    const size_t all = (n * bytes + DTI_LINE_BYTES - 1) / DTI_LINE_BYTES * DTI_LINE_BYTES;
    void *p = aligned_alloc(DTI_LINE_BYTES, all);

    if (p != NULL) memset(p, 0, all);
    return p;
}

static void free_group(dti_local_group *g)
{
    for (int m = 0; g->channels != NULL && m < g->n; m++) {
        dti_local_channel *row = atomic_load(&g->channels[m]);
        for (int to = 0; row != NULL && to < g->n; to++) {
            dti_local_cuda_free_events(atomic_load(&row[to].sent));
            dti_local_cuda_free_events(atomic_load(&row[to].taken_at));
        }
        free(row);
    }
    for (int m = 0; g->members != NULL && m < g->n; m++) {
        dti_local_cuda_free_events(atomic_load(&g->members[m].events));
        free(g->members[m].notes);
    }
    free((void *)g->channels);
    free(g->members);
    free(g->joined);
    free(g->world_ranks);
    free(g);
}

/* With the world's lock held. NULL without memory. */
static dti_local_group *make_group(dti_local_world *w, const int *world_ranks, int n,
                                   const char *name)
{
    dti_local_group *g = calloc(1, sizeof *g);
    const size_t count = (size_t)n;

    if (g == NULL) return NULL;
    g->n = n;
    (void)snprintf(g->name, sizeof g->name, "%s", name);
    g->world_ranks = calloc(count, sizeof *g->world_ranks);
    g->joined = calloc(count, sizeof *g->joined);
    g->members = alloc_lines(count, sizeof *g->members);
    g->channels = calloc(count, sizeof *g->channels);
    if (!g->world_ranks || !g->joined || !g->members || !g->channels) {
        free_group(g);
        return NULL;
    }
    memcpy(g->world_ranks, world_ranks, count * sizeof *world_ranks);
    g->next = w->groups;
    w->groups = g;
    return g;
}

/* The k-th request of a rank for the same members belongs to the k-th request of the others: the
 * oldest group of these members that this one has not joined. With the world's lock held. */
static dti_local_group *find_group(dti_local_world *w, const int *world_ranks, int n, int member)
{
    dti_local_group *found = NULL;

    for (dti_local_group *g = w->groups; g != NULL; g = g->next)
        if (g->n == n && !g->joined[member] &&
            memcmp(g->world_ranks, world_ranks, (size_t)n * sizeof *world_ranks) == 0)
            found = g; /* the list is newest first */
    return found;
}

static dt_status join_group(dti_local_comm *c, const char *name)
{
    dti_local_world *w = c->world;
    const dti_comm *head = &c->head;
    dti_local_group *g;

    (void)pthread_mutex_lock(&w->lock);
    g = find_group(w, head->world_ranks, head->size, head->rank);
    if (g == NULL) g = make_group(w, head->world_ranks, head->size, name);
    if (g != NULL) g->joined[head->rank] = true;
    (void)pthread_mutex_unlock(&w->lock);
    DT_CHECK(g != NULL, DT_ERR_MEMORY, "a communicator of %d ranks could not be allocated",
             head->size);
    c->group = g;
    return DT_OK;
}

/* What a communicator is made of. */
typedef struct comm_plan {
    int rank; /* whose it is; this and the others are numbers in the world */
    const int *world_ranks;
    int n;
    const char *name;
} comm_plan;

static dt_status make_comm(dti_local_world *w, const comm_plan *plan, dti_comm **out);

static dt_status local_group(dti_comm *head, const int *ranks, int n, const char *name,
                             dti_comm **out)
{
    dti_local_comm *c = (dti_local_comm *)head;
    dt_status st = DT_OK;
    int *world_ranks = NULL;
    comm_plan plan;

    *out = NULL;
    DT_TRY(dti_alloc_array((size_t)n, sizeof *world_ranks, (void **)&world_ranks));
    for (int i = 0; i < n; i++) world_ranks[i] = head->world_ranks[ranks[i]];
    plan = (comm_plan){ head->world_ranks[head->rank], world_ranks, n, name };
    DT_TRY_TO(done, st, make_comm(c->world, &plan, out));
done:
    dti_free(world_ranks);
    return st;
}

static void local_close(dti_comm *head)
{
    dti_local_comm *c = (dti_local_comm *)head;
    dti_local_comm **link = &c->self->comms;

    while (*link != c) link = &(*link)->next;
    *link = c->next;
    dti_free((void *)head->world_ranks);
    dti_free(c);
}

int dti_local_try_work(dti_local_comm *c)
{
    const uint64_t seq = c->worked + 1;
    const dti_local_slot *mine = dti_local_slot_of(c, c->head.rank, seq);
    const bool from_root = dti_local_takes_from_root(c, &mine->call);
    dt_status st;

    for (int m = from_root ? mine->call.root : c->arrived; m < c->head.size; m++) {
        dti_local_slot *theirs = dti_local_slot_of(c, m, seq);
        if (atomic_load_explicit(&theirs->seq, memory_order_acquire) != seq) {
            c->arrived = from_root ? 0 : m;
            return m;
        }
        if (from_root) break;
    }
    if (!dti_local_enter(c)) return 0;
    st = dti_local_work(c, mine);
    dti_local_exit(c);
    if (st != DT_OK) {
        c->failed = true;
        dti_local_abort(&c->head, c->head.world_ranks[c->head.rank], dt_last_error()->message);
        return DTI_LOCAL_FAILED;
    }
    c->arrived = 0;
    c->worked = seq;
    c->self->n_due--;
    atomic_store_explicit(&c->group->members[c->head.rank].done, seq, memory_order_release);
    dti_local_wake_members(c);
    return DTI_LOCAL_READY;
}

static int own_share_done(dti_local_comm *c, const dti_comm_request *r)
{
    while (c->worked < r->seq) {
        const int member = dti_local_try_work(c);
        if (member != DTI_LOCAL_READY) return member;
    }
    return DTI_LOCAL_READY;
}

static int all_shares_done(dti_local_comm *c, const dti_comm_request *r)
{
    for (int m = 0; m < c->head.size; m++)
        if (atomic_load_explicit(&c->group->members[m].done, memory_order_acquire) < r->seq)
            return m;
    if (c->all_done < r->seq) c->all_done = r->seq;
    return DTI_LOCAL_READY;
}

/* A slot is free again when every member, this one too, has done its share of its last use. */
static int slot_is_free(dti_local_comm *c, const dti_comm_request *r)
{
    uint64_t least = UINT64_MAX;
    int slowest = 0;

    for (int m = 0; m < c->head.size; m++) {
        const uint64_t done =
            atomic_load_explicit(&c->group->members[m].done, memory_order_acquire);
        if (done >= least) continue;
        least = done;
        slowest = m;
    }
    c->all_done = least;
    return r->seq <= least + DTI_LOCAL_RING ? DTI_LOCAL_READY : slowest;
}

static uint32_t kind_of(const dti_comm_call *call)
{
    const bool reduces = call->op == DTI_COMM_ALL_REDUCE || call->op == DTI_COMM_REDUCE_SCATTER;

    if (call->op == DTI_COMM_BARRIER) return (uint32_t)call->op;
    return (uint32_t)call->op | (uint32_t)call->dtype << 8 |
           (reduces ? (uint32_t)call->reduce << 16 : 0) | (call->stream != NULL ? 1u << 24 : 0) |
           (uint32_t)call->tag << 25;
}

/* Beside the slot. The first note of a communicator makes room for them all. */
static dt_status keep_note(dti_local_comm *c, const dti_comm_request *r)
{
    dti_local_member *me = &c->group->members[c->head.rank];

    if (r->note == NULL) return DT_OK;
    if (me->notes == NULL) me->notes = calloc(DTI_LOCAL_RING, sizeof *me->notes);
    DT_CHECK(me->notes != NULL, DT_ERR_MEMORY, "notes of \"%s\" could not be allocated",
             c->head.name);
    me->notes[r->seq % DTI_LOCAL_RING] = *r->note;
    return DT_OK;
}

/* For those who wait in vain; only they look at it. */
static void tell_progress(dti_local_comm *c, const dti_comm_request *r)
{
    atomic_store_explicit(&c->self->reached, (uint64_t)r->call.op | r->seq << 8,
                          memory_order_relaxed);
    atomic_store_explicit(&c->self->reached_group, c->group, memory_order_release);
}

static dt_status local_start(dti_comm *head, dti_comm_request *r)
{
    dti_local_comm *c = (dti_local_comm *)head;
    dti_local_slot *slot;

    if (r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV)
        return dti_local_p2p_start(c, r);
    DT_TRY(dti_local_check_abort(c, r));
    if (r->seq > c->all_done + DTI_LOCAL_RING)
        DT_TRY(dti_local_await(c, r, slot_is_free, "finished"));
    DT_TRY(keep_note(c, r));
    if (r->call.stream != NULL) DT_TRY(dti_local_cuda_publish(c, r));
    tell_progress(c, r);
    slot = dti_local_slot_of(c, head->rank, r->seq);
    slot->call = r->call;
    slot->kind = kind_of(&r->call);
    slot->n = dti_call_count(head, &r->call);
    atomic_store_explicit(&slot->seq, r->seq, memory_order_release);
    c->started = r->seq;
    c->self->n_due++;
    c->self->n_under_way++;
    if (r->call.for_work) dti_local_see_sleepers(c);
    dti_local_wake_members(c);
    return DT_OK;
}

static dt_status wait_collective(dti_local_comm *c, const dti_comm_request *r)
{
    const dti_comm_call *call = &r->call;

    DT_TRY(dti_local_await(c, r, own_share_done, "arrived"));
    if (call->op == DTI_COMM_BARRIER) return DT_OK;
    if (dti_local_takes_from_root(c, call)) return DT_OK;
    DT_TRY(dti_local_await(c, r, all_shares_done, "finished"));
    if (call->stream != NULL) DT_TRY(dti_local_cuda_await(c, r));
    return DT_OK;
}

static dt_status local_wait(dti_comm *head, dti_comm_request *r)
{
    dti_local_comm *c = (dti_local_comm *)head;

    c->self->n_under_way--;
    if (r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV) return dti_local_p2p_wait(c, r);
    return wait_collective(c, r);
}

static dt_status local_check(dti_comm *head, const dti_comm_request *r)
{
    dti_local_comm *c = (dti_local_comm *)head;

    if (c->self->n_due > 0) dti_local_progress(c);
    dti_beside_step(head);
    return dti_local_check_abort(c, r);
}

static bool local_is_over(dti_comm *head, const dti_comm_request *r)
{
    dti_local_comm *c = (dti_local_comm *)head;

    if (r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV)
        return dti_local_p2p_is_over(c, r);
    if (own_share_done(c, r) >= 0) return false;
    return r->call.op == DTI_COMM_BARRIER || dti_local_takes_from_root(c, &r->call) ||
           all_shares_done(c, r) < 0;
}

static const dti_comm_ops local_ops = {
    .name = "local",
    .group = local_group,
    .start = local_start,
    .wait = local_wait,
    .check = local_check,
    .is_over = local_is_over,
    .abort = dti_local_abort,
    .close = local_close,
};

bool dti_local_is(const dti_comm *c)
{
    return c->ops == &local_ops;
}

static dt_status make_comm(dti_local_world *w, const comm_plan *plan, dti_comm **out)
{
    dt_status st = DT_OK;
    dti_local_comm *c = NULL;
    int *ranks = NULL;

    DT_TRY(dti_new(sizeof *c, &c));
    DT_TRY_TO(fail, st, dti_alloc_array((size_t)plan->n, sizeof *ranks, (void **)&ranks));
    memcpy(ranks, plan->world_ranks, (size_t)plan->n * sizeof *ranks);
    c->head.ops = &local_ops;
    c->head.size = plan->n;
    c->head.timeout_ms = w->timeout_ms;
    c->head.world_ranks = ranks;
    (void)snprintf(c->head.name, sizeof c->head.name, "%s", plan->name);
    while (ranks[c->head.rank] != plan->rank) c->head.rank++;
    c->world = w;
    c->self = &w->ranks[plan->rank];
    if (plan->n > 1) DT_TRY_TO(fail, st, join_group(c, plan->name));
    c->next = c->self->comms;
    c->self->comms = c;
    *out = &c->head;
    return DT_OK;

fail:
    dti_free(ranks);
    dti_free(c);
    return st;
}

dt_status dti_local_open(dti_local_world *w, int rank, dti_pool *pool, dti_fault *fault,
                         dti_comm **out)
{
    dt_status st = DT_OK;
    int *ranks = NULL;
    comm_plan plan;

    *out = NULL;
    w->ranks[rank].pool = pool;
    DT_TRY(dti_alloc_array((size_t)w->n_ranks, sizeof *ranks, (void **)&ranks));
    for (int r = 0; r < w->n_ranks; r++) ranks[r] = r;
    plan = (comm_plan){ rank, ranks, w->n_ranks, "world" };
    DT_TRY_TO(done, st, make_comm(w, &plan, out));
    (*out)->fault = fault;
done:
    dti_free(ranks);
    return st;
}

dt_status dti_local_leave(dti_comm *world)
{
    dti_local_comm *c = (dti_local_comm *)world;
    const int n = c->self->n_under_way;

    if (atomic_load(&c->world->aborted)) return DT_OK;
    DT_CHECK(n == 0, DT_ERR_ARG,
             "rank %d returned with %d operation%s under way; wait for what was started",
             world->world_ranks[world->rank], n, n == 1 ? "" : "s");
    dti_local_left(c->world, world->world_ranks[world->rank]);
    return DT_OK;
}

void dti_local_left(dti_local_world *w, int rank)
{
    atomic_store(&w->ranks[rank].left, 1);
    for (int r = 0; r < w->n_ranks; r++)
        if (r != rank) dti_local_wake_rank(&w->ranks[r]);
}

void dti_local_world_twin(dti_local_world *a, dti_local_world *b)
{
    a->twin = b;
    b->twin = a;
}

bool dti_local_failure(dti_local_world *w, dt_error *out)
{
    if (!atomic_load(&w->aborted)) return false;
    *out = w->record;
    return true;
}

dt_status dti_local_world_create(int n_ranks, int64_t timeout_ms, bool spin, dti_local_world **out)
{
    dti_local_world *w = alloc_lines(1, sizeof *w);

    *out = NULL;
    DT_CHECK(w != NULL, DT_ERR_MEMORY, "the world of %d ranks could not be allocated", n_ranks);
    w->ranks = alloc_lines((size_t)n_ranks, sizeof *w->ranks);
    if (w->ranks == NULL) {
        free(w);
        DT_FAIL(DT_ERR_MEMORY, "the world of %d ranks could not be allocated", n_ranks);
    }
    (void)pthread_mutex_init(&w->lock, NULL);
    w->n_ranks = n_ranks;
    w->spin = spin;
    w->timeout_ms = timeout_ms;
    *out = w;
    return DT_OK;
}

void dti_local_world_destroy(dti_local_world **world)
{
    dti_local_world *w = *world;

    if (w == NULL) return;
    *world = NULL;
    while (w->groups != NULL) {
        dti_local_group *g = w->groups;
        w->groups = g->next;
        free_group(g);
    }
    (void)pthread_mutex_destroy(&w->lock);
    free(w->ranks);
    free(w);
}
