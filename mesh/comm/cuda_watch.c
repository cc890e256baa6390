/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams whose kernels wait for other ranks, where no deadline reaches them: who waits for such a
 * stream looks after the ranks, and finds out who is missing when it is stuck. */
#include <sched.h>
#include <stdio.h>

#include "base/sync.h"
#include "mesh/comm/call.h"
#include "mesh/comm/cuda_comm.h"

enum {
    NS_PER_MS = 1000 * 1000,
    LOOK_EVERY = 64,
    GRACE_MS = 10 * 1000, /* most that a rank is waited for when a stream is stuck */
    LEFT_MS = 1000        /* for an operation to end whose members have left */
};

static void abort_carrier(dti_cuda_world *w)
{
    if (w->carrier->abort != NULL) w->carrier->abort(w);
}

/* --- what is on the stream ----------------------------------------------------------------------
 */

dt_status dti_cuda_watch_start(dti_comm *c, const dti_comm_request *r)
{
    dti_cuda_world *w = c->cuda;
    const dti_cuda_module *module = w->place.module;
    dti_cuda_record *rec = &w->records[w->n_records % DTI_CUDA_RECORDS];
    int rc = 0;

    if (w->stage == DTI_CUDA_RECORDS_GRAPH) return DT_OK; /* it has not been started */
    if (rec->done == NULL) rc = module->event_create(w->place.cuda, &rec->done);
    if (rc == 0) rc = module->event_record(w->place.cuda, rec->done);
    DT_TRY(dti_cuda_check_call(&w->place, rc, "recording an event"));
    rec->comm = c;
    rec->op = r->call.op;
    rec->seq = r->seq;
    rec->timeout_ms = r->timeout_ms;
    w->n_records++;
    return DT_OK;
}

void dti_cuda_watch_forget(const dti_comm *c)
{
    for (int i = 0; i < DTI_CUDA_RECORDS; i++)
        if (c->cuda->records[i].comm == c) c->cuda->records[i].comm = NULL;
}

void dti_cuda_watch_close(dti_cuda_world *w)
{
    for (int i = 0; i < DTI_CUDA_RECORDS; i++)
        if (w->records[i].done != NULL) w->place.module->event_destroy(w->records[i].done);
}

/* The oldest operation that has not ended, or NULL. */
static const dti_cuda_record *stuck_record(const dti_cuda_world *w)
{
    const uint64_t kept = w->n_records < DTI_CUDA_RECORDS ? w->n_records : DTI_CUDA_RECORDS;

    for (uint64_t i = w->n_records - kept; i < w->n_records; i++) {
        const dti_cuda_record *rec = &w->records[i % DTI_CUDA_RECORDS];
        bool done = false;
        if (rec->comm == NULL) continue;
        if (w->place.module->event_done(rec->done, &done) == 0 && !done) return rec;
    }
    return NULL;
}

/* --- a stream that is stuck ---------------------------------------------------------------------
 */

/* The members of c meet as hosts: who does not come is named by their back end. */
static dt_status find_missing(dti_comm *c, int64_t timeout_ms)
{
    dti_comm_request meeting = { .call = { .op = DTI_COMM_BARRIER } };

    meeting.timeout_ms = timeout_ms < GRACE_MS ? timeout_ms : GRACE_MS;
    meeting.seq = ++c->seq;
    DT_TRY(c->ops->start(c, &meeting));
    return c->ops->wait(c, &meeting);
}

dt_status dti_cuda_fail_stuck(dti_comm *c, const dti_comm_request *r, int64_t waited_ms)
{
    char why[DT_ERROR_MESSAGE_BYTES];
    dt_status st;

    abort_carrier(c->cuda);
    st = find_missing(c, r->timeout_ms);
    (void)snprintf(why, sizeof why, "%s%s",
                   st != DT_OK
                       ? dt_last_error()->message
                       : "all ranks are there, so the devices or the links between them are "
                         "at fault",
                   st == DT_OK ? c->cuda->carrier->remedy : "");
    (void)dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                     "%s #%llu on \"%s\" has not ended on rank %d's device after %lld ms: %.*s",
                     dti_comm_op_name(r->call.op), (unsigned long long)r->seq, c->name,
                     c->world_ranks[c->rank], (long long)waited_ms, DT_ERROR_MESSAGE_BYTES - 256,
                     why);
    if (st == DT_OK) c->ops->abort(c, c->world_ranks[c->rank], dt_last_error()->message);
    return DT_ERR_COMM;
}

/* Hands `st` back. */
static dt_status failed(dti_cuda_world *w, dt_status st)
{
    abort_carrier(w);
    return st;
}

typedef struct watch {
    int64_t begin_ns;
    int64_t left_ns; /* when members of what is stuck were first seen to have left, or 0 */
} watch;

/* Nobody ends what members who have left have not begun; what they have, ends soon. */
static bool have_left(watch *v, const dti_cuda_world *w, const dti_cuda_record *rec, int64_t now)
{
    const bool left =
        rec != NULL && w->carrier->have_left != NULL && w->carrier->have_left(rec->comm);

    if (!left) v->left_ns = 0;
    if (left && v->left_ns == 0) v->left_ns = now;
    return left && (now - v->left_ns) / NS_PER_MS >= LEFT_MS;
}

static dt_status wait_step(dti_cuda_world *w, watch *v)
{
    dti_comm_request words = { .call = { .op = DTI_COMM_BARRIER }, .seq = w->host->seq };
    const dti_cuda_record *rec = stuck_record(w);
    const int64_t now = dti_now_ns(), waited_ms = (now - v->begin_ns) / NS_PER_MS;
    dt_status st = DT_OK;

    words.timeout_ms = w->host->timeout_ms;
    if (rec != NULL) {
        words.call.op = rec->op;
        words.seq = rec->seq;
        words.timeout_ms = rec->timeout_ms;
    }
    if (w->carrier->look != NULL) st = w->carrier->look(w);
    if (st == DT_OK) /* all may have ended since by the abort that it finds */
        st = rec != NULL ? w->host->ops->check(w->host, &words) : dti_cuda_watch_check(w);
    if (st != DT_OK) return failed(w, st);
    if (waited_ms < words.timeout_ms && !have_left(v, w, rec, now)) return DT_OK;
    return dti_cuda_fail_stuck(rec != NULL ? rec->comm : w->host, &words, waited_ms);
}

dt_status dti_cuda_watch_sync(dti_cuda_world *w)
{
    watch v = { .begin_ns = dti_now_ns() };
    bool done = false;

    for (unsigned polls = 1; !done; polls++) {
        DT_TRY(dti_cuda_check_call(&w->place, w->place.module->done(w->place.cuda, &done),
                                   "waiting for the device"));
        if (done) break;
        (void)sched_yield();
        if (polls % LOOK_EVERY == 0) DT_TRY(wait_step(w, &v));
    }
    return DT_OK;
}

dt_status dti_cuda_watch_check(dti_cuda_world *w)
{
    const dti_cuda_record *last =
        &w->records[(w->n_records + DTI_CUDA_RECORDS - 1) % DTI_CUDA_RECORDS];
    dti_comm_request words = { .call = { .op = DTI_COMM_BARRIER }, .seq = w->host->seq };
    dti_comm *c = w->n_records > 0 && last->comm != NULL ? last->comm : w->host;

    if (c == last->comm) {
        words.call.op = last->op;
        words.seq = last->seq;
    }
    return c->ops->check(c, &words);
}

/* --- before an operation is started -------------------------------------------------------------
 */

dt_status dti_cuda_hosts_meet(dti_comm *c, const dti_comm_request *r)
{
    dti_comm_request meeting = { .call = { .op = DTI_COMM_BARRIER }, .timeout_ms = r->timeout_ms };
    char call[DTI_CALL_TEXT_BYTES];
    dti_comm_note note;

    if (r->note != NULL) {
        note.hash = r->note->hash;
        (void)snprintf(note.text, sizeof note.text, "before %s on its device, %.*s",
                       dti_call_text(r->call.op, dti_call_count(c, &r->call), r->call.dtype, call),
                       DTI_NOTE_BYTES - DTI_CALL_TEXT_BYTES - 32, r->note->text);
        meeting.note = &note;
    }
    meeting.seq = ++c->seq;
    DT_TRY(c->ops->start(c, &meeting));
    return c->ops->wait(c, &meeting);
}

/* --- recorded graphs ----------------------------------------------------------------------------
 */

void dti_cuda_world_set(dti_cuda_world *w, dti_cuda_stage stage)
{
    w->stage = stage;
}

bool dti_cuda_can_record(const dti_comm *c, const dti_comm_call *call)
{
    const dti_cuda_carrier *carrier = c->cuda->carrier;

    return c->size == 1 || carrier->can_record == NULL || carrier->can_record(c, call);
}

static dti_comm_request play_of(const dti_comm *c)
{
    return (dti_comm_request){ .call = { .op = DTI_COMM_N_OPS },
                               .seq = c->cuda->n_played,
                               .timeout_ms = c->timeout_ms };
}

dt_status dti_cuda_before_play(dti_comm *c)
{
    const dti_comm_request r = play_of(c);

    if (c->size > 1 && c->cuda->crowded) DT_TRY(dti_cuda_hosts_meet(c, &r));
    return DT_OK;
}

dt_status dti_cuda_after_play(dti_comm *c)
{
    dti_comm_request r;

    c->cuda->n_played++;
    if (c->size == 1) return DT_OK;
    r = play_of(c);
    DT_TRY(dti_cuda_watch_start(c, &r));
    if (c->cuda->crowded) DT_TRY(dti_cuda_hosts_meet(c, &r));
    return DT_OK;
}
