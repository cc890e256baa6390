/* SPDX-License-Identifier: Apache-2.0
 *
 * The carrier nccl: opening, starting, messages, the end. */
#include "mesh/comm/nccl.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/sync.h"
#include "mesh/comm/call.h"

enum {
    NS_PER_MS = 1000 * 1000,
    LOOK_EVERY = 64,
    FINISH_NS = 2 * 1000 * 1000 * 1000 /* for all ranks to close */
};

static const dti_nccl_calls *api_of(const dti_cuda_world *w)
{
    return w->place.module->nccl;
}

/* --- failures -----------------------------------------------------------------------------------
 */

/* Frees this rank's stream of all that waits for others. */
static void abort_all(dti_cuda_world *w)
{
    if (w->nccl == NULL || w->nccl->aborted) return;
    w->nccl->aborted = true;
    for (dti_nccl_part *p = w->nccl->parts; p != NULL; p = p->next)
        if (p->nccl != NULL) api_of(w)->abort(p->nccl);
}

/* Hands `st` back. */
static dt_status failed(dti_cuda_world *w, dt_status st)
{
    abort_all(w);
    return st;
}

/* --- calls --------------------------------------------------------------------------------------
 */

dt_status dti_nccl_settle(const dti_nccl_job *j, int failed_call, const char *what)
{
    const dti_comm_request *r = j->request;
    const int64_t begin = dti_now_ns();
    dt_status st = dti_cuda_check_call(j->place, failed_call, what);

    for (unsigned polls = 1; st == DT_OK; polls++) {
        const int ready = j->api->ready(j->part->nccl);
        if (ready > 0) return DT_OK;
        if (ready < 0) st = dti_cuda_check_call(j->place, -1, what);
        if (st != DT_OK) break;
        (void)sched_yield();
        if (polls % LOOK_EVERY != 0) continue;
        st = j->c->ops->check(j->c, r);
        if (st == DT_OK && (dti_now_ns() - begin) / NS_PER_MS >= r->timeout_ms)
            return dti_cuda_fail_stuck(j->c, r, r->timeout_ms);
    }
    return failed(j->c->cuda, st);
}

/* Rank 0 makes the id; the hosts hand it round. */
static dt_status open_part(const dti_nccl_job *j)
{
    unsigned char id[DTI_CUDA_ID_BYTES] = { 0 };

    if (j->c->rank == 0) DT_TRY(dti_cuda_check_call(j->place, j->api->id(id), "an id of NCCL"));
    DT_TRY(dti_broadcast(j->c, id, (int64_t)sizeof id, DT_U8, 0));
    return dti_nccl_settle(j,
                           j->api->open(j->place->cuda, id, j->c->rank, j->c->size, &j->part->nccl),
                           "opening a communicator of NCCL");
}

static dt_status part_of(dti_comm *c, dti_nccl_part **out)
{
    dti_nccl_part *p = c->cuda_part;

    if (c->cuda->nccl == NULL) DT_TRY(dti_new(sizeof *c->cuda->nccl, &c->cuda->nccl));
    if (p == NULL) {
        DT_TRY(dti_new(sizeof *p, &p));
        p->comm = c;
        p->next = c->cuda->nccl->parts;
        c->cuda->nccl->parts = p;
        c->cuda_part = p;
    }
    *out = p;
    return DT_OK;
}

static dti_nccl_job job_of(dti_comm *c, const dti_comm_request *r)
{
    return (dti_nccl_job){
        .c = c, .part = c->cuda_part, .request = r, .place = &c->cuda->place, .api = api_of(c->cuda)
    };
}

/* --- messages -----------------------------------------------------------------------------------
 */

static int post_messages(const dti_nccl_job *j)
{
    dti_nccl_part *p = j->part;
    int rc = j->api->group_begin(p->nccl), ended;

    if (rc != 0) return rc;
    for (int i = 0; i < p->n_kept && rc == 0; i++) {
        const dti_comm_call *call = &p->kept[i];
        if (p->kept_n[i] == 0) continue;
        rc = call->op == DTI_COMM_SEND
                 ? j->api->send(p->nccl, call->send, p->kept_n[i], (int)call->dtype, call->root)
                 : j->api->recv(p->nccl, call->recv, p->kept_n[i], (int)call->dtype, call->root);
    }
    ended = j->api->group_end(p->nccl);
    return rc != 0 ? rc : ended;
}

static dt_status start_kept(dti_nccl_part *p, const dti_comm_request *r)
{
    dti_nccl_job j;

    if (p->n_kept == 0) return DT_OK;
    j = job_of(p->comm, r);
    DT_TRY(dti_nccl_settle(&j, post_messages(&j), "messages"));
    p->n_kept = 0;
    return dti_cuda_watch_start(p->comm, r);
}

/* The part that has kept messages for longest, or NULL. */
static dti_nccl_part *oldest_kept(const dti_nccl_rank *n)
{
    dti_nccl_part *oldest = NULL;

    for (dti_nccl_part *p = n->parts; p != NULL; p = p->next)
        if (p->comm != NULL && p->n_kept > 0 && (oldest == NULL || p->kept_at < oldest->kept_at))
            oldest = p;
    return oldest;
}

/* On all communicators of this rank, in the order in which they were begun, which is that of its
 * peers; what comes next takes its place behind them. */
static dt_status start_all_kept(dti_cuda_world *w, const dti_comm_request *r)
{
    dti_nccl_part *p;

    while ((p = oldest_kept(w->nccl)) != NULL) DT_TRY(start_kept(p, r));
    return DT_OK;
}

/* Also of other waits: while this rank waits for another one, that one may wait for a message that
 * is kept here. */
static dt_status before_wait(dti_cuda_world *w, const dti_comm_request *r)
{
    dt_status st;

    if (w->nccl == NULL || w->nccl->aborted) return DT_OK;
    st = start_all_kept(w, r);
    return st == DT_OK ? DT_OK : failed(w, st);
}

static dt_status keep_message(dti_nccl_part *p, dti_comm_request *r)
{
    dti_nccl_rank *n = p->comm->cuda->nccl;

    if (p->n_kept == DTI_NCCL_MESSAGES) DT_TRY(start_all_kept(p->comm->cuda, r));
    r->seq = ++p->n_messages;
    n->n_kept++;
    if (p->n_kept == 0) p->kept_at = n->n_kept;
    p->kept[p->n_kept] = r->call;
    p->kept_n[p->n_kept++] = r->call.counts[0];
    return DT_OK;
}

/* --- the carrier --------------------------------------------------------------------------------
 */

static uint64_t next_number(dti_comm *c, const dti_comm_request *r)
{
    dti_nccl_part *p = c->cuda_part;

    (void)r;
    return p != NULL ? ++p->seq : 1; /* the first call makes the part */
}

static dt_status start_collective(dti_comm *c, const dti_comm_request *r)
{
    const dti_nccl_job j = job_of(c, r);

    DT_TRY(start_all_kept(c->cuda, r));
    if (r->note != NULL && c->cuda->stage != DTI_CUDA_RECORDS_GRAPH)
        DT_TRY(dti_cuda_hosts_meet(c, r));
    DT_TRY(dti_nccl_collective(&j, &r->call));
    return dti_cuda_watch_start(c, r);
}

static dt_status nccl_start(dti_comm *c, dti_comm_request *r)
{
    const bool message = r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV;
    dti_nccl_part *part;
    dt_status st;

    DT_TRY(part_of(c, &part));
    DT_TRY(c->ops->check(c, r));
    DT_CHECK(!c->cuda->nccl->aborted, DT_ERR_COMM, "%s on \"%s\": NCCL was aborted before",
             dti_comm_op_name(r->call.op), c->name);
    if (part->nccl == NULL) {
        const dti_nccl_job j = job_of(c, r);
        DT_TRY(open_part(&j));
        if (!message) part->seq = r->seq;
    }
    if (message) return keep_message(part, r);
    st = start_collective(c, r);
    return st == DT_OK ? DT_OK : failed(c->cuda, st);
}

/* Everything is on the stream, in whose order it ends. */
static dt_status nccl_wait(dti_comm *c, dti_comm_request *r)
{
    const bool message = r->call.op == DTI_COMM_SEND || r->call.op == DTI_COMM_RECV;

    return message ? before_wait(c->cuda, r) : DT_OK;
}

/* Errors that came up on the stream. */
static dt_status look(dti_cuda_world *w)
{
    for (dti_nccl_part *p = w->nccl != NULL ? w->nccl->parts : NULL; p != NULL; p = p->next)
        if (p->comm != NULL && p->nccl != NULL && api_of(w)->ready(p->nccl) < 0)
            return dti_cuda_check_call(&w->place, -1, "NCCL");
    return DT_OK;
}

static dt_status nccl_sync(dti_cuda_world *w)
{
    const dti_comm_request words = { .call = { .op = DTI_COMM_RECV },
                                     .timeout_ms = w->host->timeout_ms };

    if (w->nccl == NULL)
        return dti_cuda_check_call(&w->place, w->place.module->sync(w->place.cuda), "waiting");
    DT_TRY(start_all_kept(w, &words));
    return dti_cuda_watch_sync(w);
}

/* Begins the end; ranks close their communicators in orders of their own, so nobody waits here. */
static void nccl_close(dti_comm *c)
{
    dti_nccl_part *p = c->cuda_part;
    const dti_comm_request words = { .call = { .op = DTI_COMM_BARRIER } };
    dti_cuda_world *w = c->cuda;

    if (c->ops->check(c, &words) != DT_OK) abort_all(w);
    if (p->nccl != NULL && !w->nccl->aborted && api_of(w)->finish(p->nccl) != 0) abort_all(w);
    dti_cuda_watch_forget(c);
    p->comm = NULL;
}

static void close_world(dti_cuda_world *w)
{
    const dti_comm_request words = { .call = { .op = DTI_COMM_BARRIER } };
    const int64_t end = dti_now_ns() + FINISH_NS;

    if (w->nccl == NULL) return;
    while (w->nccl->parts != NULL) {
        dti_nccl_part *p = w->nccl->parts;
        w->nccl->parts = p->next;
        while (p->nccl != NULL && !w->nccl->aborted && api_of(w)->ready(p->nccl) == 0 &&
               dti_now_ns() < end && w->host->ops->check(w->host, &words) == DT_OK)
            (void)sched_yield();
        if (p->nccl != NULL) api_of(w)->close(p->nccl);
        dti_free(p);
    }
    dti_free(w->nccl);
    w->nccl = NULL;
}

const dti_cuda_carrier dti_cuda_nccl = {
    .name = "nccl",
    .remedy = "; NCCL_DEBUG=INFO lets NCCL say more",
    .records = true,
    .next_number = next_number,
    .start = nccl_start,
    .wait = nccl_wait,
    .sync = nccl_sync,
    .look = look,
    .abort = abort_all,
    .before_wait = before_wait,
    .close = nccl_close,
    .close_world = close_world,
};
