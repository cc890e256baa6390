/* SPDX-License-Identifier: Apache-2.0
 *
 * The only way into a back end: checks, sequence numbers, injected faults, communicators of one. */
#include "mesh/comm/comm.h"

#include <stdio.h>
#include <string.h>

#include "base/sync.h"
#include "mesh/comm/call.h"
#include "mesh/comm/cuda_comm.h"
#include "mesh/comm/flight.h"
#include "mesh/comm/slow_link.h"
#include "mesh/comm/track.h"

const char *dti_comm_op_name(dti_comm_op op)
{
    static const char *const names[DTI_COMM_N_OPS] = {
#define X(name, text) [DTI_COMM_##name] = #text,
        DTI_COMM_OPS(X)
#undef X
    };
    if (op == DTI_COMM_N_OPS) return "recorded pass"; /* of what is on a stream (cuda_watch.c) */
    return (unsigned)op < DTI_COMM_N_OPS ? names[op] : "?";
}

static bool is_message(dti_comm_op op)
{
    return op == DTI_COMM_SEND || op == DTI_COMM_RECV;
}

/* Hands `st` back. Whatever a back end reports ends this rank's part in the run. */
static dt_status record_failure(dti_comm *c, const dti_comm_request *r, dt_status st)
{
    dti_cuda_world_abort(c->cuda);
    if (c->flight == NULL) return st;
    dti_flight_end(c->flight, r, true);
    dti_flight_dump(c->flight);
    return st;
}

/* Only this rank fails, so it tells the others before it returns. */
static dt_status inject(dti_comm *c, dti_comm_request *r)
{
    const dti_comm_op op = r->call.op;
    dti_fault *f = c->fault;
    const int rank = c->world_ranks[c->rank];

    if (rank != f->rank || (f->op >= 0 && f->op != (int)op)) return DT_OK;
    if (++f->seen != f->call) return DT_OK;
    (void)dt_fail_at(DT_ERR_COMM, __func__, __FILE__, __LINE__,
                     "%s on \"%s\": a fault was injected on rank %d (call %lld of it)",
                     dti_comm_op_name(op), c->name, rank, (long long)f->call);
    c->ops->abort(c, rank, dt_last_error()->message);
    if (c->flight != NULL) { /* it never starts, and is what the reader of the record looks for */
        r->seq = is_message(op) ? 0 : c->seq + 1;
        dti_flight_begin(c->flight, c, r);
        (void)record_failure(c, r, DT_ERR_COMM);
        r->seq = 0;
    }
    return DT_ERR_COMM;
}

/* Of memory of a device, which may be carried by others than the back end. */
static const dti_cuda_carrier *carrier_of(const dti_comm *c, const dti_comm_request *r)
{
    const bool on_device = r->call.stream != NULL && r->call.op != DTI_COMM_BARRIER && !c->dry;

    return on_device ? dti_cuda_carrier_of(c->cuda) : NULL;
}

/* Hands `st` back. A device fails one rank alone, so that rank tells the others. */
static dt_status device_failure(dti_comm *c, dt_status st)
{
    if (st == DT_ERR_DEVICE || st == DT_ERR_MEMORY)
        c->ops->abort(c, c->world_ranks[c->rank], dt_last_error()->message);
    return st;
}

static dt_status carry(dti_comm *c, dti_comm_request *r)
{
    const dti_cuda_carrier *carrier = carrier_of(c, r);
    dt_status st;

    if (carrier == NULL) return c->ops->start(c, r);
    st = carrier->start(c, r);
    return st == DT_OK ? DT_OK : device_failure(c, st);
}

static dt_status await(dti_comm *c, dti_comm_request *r)
{
    const dti_cuda_carrier *carrier = carrier_of(c, r);
    dt_status st;

    if (carrier == NULL) {
        if (c->cuda != NULL && c->cuda->carrier->before_wait != NULL)
            DT_TRY(c->cuda->carrier->before_wait(c->cuda, r));
        return c->ops->wait(c, r);
    }
    st = carrier->wait(c, r);
    return st == DT_OK ? DT_OK : device_failure(c, st);
}

/* Messages are numbered per pair of ranks. */
static void number(dti_comm *c, dti_comm_request *r)
{
    const dti_cuda_carrier *carrier = carrier_of(c, r);

    if (is_message(r->call.op)) return;
    r->seq =
        carrier != NULL && carrier->next_number != NULL ? carrier->next_number(c, r) : ++c->seq;
}

static dt_status start(dti_comm *c, dti_comm_request *r)
{
    dti_comm_note note;
    dt_status st;

    number(c, r);
    if (c->agree && !is_message(r->call.op)) {
        dti_note_make(c, r, &note);
        r->note = &note;
    }
    r->call.about = NULL; /* the back end keeps the call for longer than the caller keeps this */
    if (c->flight != NULL) dti_flight_begin(c->flight, c, r);
    st = carry(c, r);
    r->note = NULL;
    if (st == DT_OK) return DT_OK;
    (void)record_failure(c, r, st);
    r->seq = 0;
    return dti_error_frame(st, __func__, __FILE__, __LINE__);
}

dt_status dti_comm_start(dti_comm *c, dti_comm_request *r)
{
    r->seq = 0;
    r->flight = 0;
    r->note = NULL;
    r->state = NULL;
    r->timeout_ms = c->timeout_ms;
    r->begun_ns = c->link != NULL || dti_track_is_on(c->track) ? dti_now_ns() : 0;
    DT_TRY(dti_call_check(c, &r->call));
    if (c->fault != NULL) DT_TRY(inject(c, r));
    if (c->size == 1 && !c->dry) {
        if (r->call.stream == NULL)
            dti_call_alone(&r->call);
        else
            DT_TRY(dti_cuda_alone(c, &r->call));
        c->seq++;
        return DT_OK;
    }
    return start(c, r);
}

static void note(const dti_comm *c, const dti_comm_request *r)
{
    char name[DT_EVENT_NAME_BYTES];

    (void)snprintf(name, sizeof name, "%s %s", dti_comm_op_name(r->call.op), c->name);
    dti_track_add(c->track, name, r->begun_ns, dti_call_received(c, &r->call));
}

dt_status dti_comm_wait(dti_comm *c, dti_comm_request *r)
{
    dt_status st;

    if (r->seq == 0) return DT_OK;
    st = await(c, r);
    if (st != DT_OK) {
        (void)record_failure(c, r, st);
        r->seq = 0;
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    if (c->link != NULL) dti_slow_link_wait(c, r);
    if (r->begun_ns != 0 && dti_track_is_on(c->track)) note(c, r);
    if (c->flight != NULL) dti_flight_end(c->flight, r, false);
    r->seq = 0;
    return DT_OK;
}

dt_status dti_comm_group(dti_comm *c, const int *ranks, int n, const char *name, dti_comm **out)
{
    DT_TRY(c->ops->group(c, ranks, n, name, out));
    (*out)->timeout_ms = c->timeout_ms;
    (*out)->fault = c->fault;
    (*out)->flight = c->flight;
    (*out)->track = c->track;
    (*out)->links = c->links;
    (*out)->link = dti_slow_link_of(c->links, (*out)->name);
    (*out)->agree = c->agree;
    (*out)->beside = c->beside;
    (*out)->cuda = c->cuda;
    return DT_OK;
}

void dti_comm_close(dti_comm *c)
{
    dti_cuda_comm_close(c);
    c->ops->close(c);
}

dt_status dti_comm_run(dti_comm *c, const dti_comm_call *call)
{
    dti_comm_request r = { .call = *call };

    DT_TRY(dti_comm_start(c, &r));
    DT_TRY(dti_comm_wait(c, &r));
    return DT_OK;
}

dt_status dti_barrier(dti_comm *c)
{
    const dti_comm_call call = { .op = DTI_COMM_BARRIER };

    return dti_comm_run(c, &call);
}

static dti_comm_call broadcast_of(void *buffer, const int64_t *n, dt_dtype t, int root)
{
    return (dti_comm_call){ .op = DTI_COMM_BROADCAST,
                            .dtype = t,
                            .root = root,
                            .send = buffer,
                            .recv = buffer,
                            .counts = n };
}

dt_status dti_broadcast(dti_comm *c, void *buffer, int64_t n, dt_dtype t, int root)
{
    const dti_comm_call call = broadcast_of(buffer, &n, t, root);

    return dti_comm_run(c, &call);
}

dt_status dti_broadcast_work(dti_comm *c, void *buffer, int64_t n, dt_dtype t, int root)
{
    dti_comm_call call = broadcast_of(buffer, &n, t, root);

    call.for_work = true;
    return dti_comm_run(c, &call);
}

dt_status dti_all_reduce(dti_comm *c, const void *send, void *recv, int64_t n, dt_dtype t,
                         dt_reduce op)
{
    const dti_comm_call call = { .op = DTI_COMM_ALL_REDUCE,
                                 .dtype = t,
                                 .reduce = op,
                                 .send = send,
                                 .recv = recv,
                                 .counts = &n };

    return dti_comm_run(c, &call);
}

dt_status dti_all_gather(dti_comm *c, const void *send, void *recv, const int64_t *counts,
                         const int64_t *displs, dt_dtype t)
{
    const dti_comm_call call = { .op = DTI_COMM_ALL_GATHER,
                                 .dtype = t,
                                 .send = send,
                                 .recv = recv,
                                 .counts = counts,
                                 .displs = displs };

    return dti_comm_run(c, &call);
}
