/* SPDX-License-Identifier: Apache-2.0
 *
 * The local back end for memory of devices: ranks are threads, so their devices' pointers hold for
 * all of them. No kernel waits for another; streams wait for events. */
#include <sched.h>
#include <stdlib.h>

#include "base/numbers.h"
#include "mesh/comm/call.h"
#include "mesh/comm/local_work.h"

enum {
    GRAIN_BYTES = 512,                 /* slices of a sum begin where vector loads like it */
    QUIET_NS = 2 * 1000 * 1000 * 1000L /* after an abort, for what devices have begun */
};

/* --- events -------------------------------------------------------------------------------------
 */

void dti_local_cuda_free_events(dti_local_events *e)
{
    if (e == NULL) return;
    for (int k = 0; k < DTI_LOCAL_RING; k++) {
        if (e->ready[k] != NULL) e->module->event_destroy(e->ready[k]);
        if (e->done[k] != NULL) e->module->event_destroy(e->done[k]);
    }
    free(e);
}

/* Shared by threads, so in no thread's allocation count. */
static dt_status make_events(const dti_local_comm *c, _Atomic(dti_local_events *) *out)
{
    const dti_cuda_place *place = &c->head.cuda->place;
    dti_local_events *e = calloc(1, sizeof *e);
    int failed = 0;

    DT_CHECK(e != NULL, DT_ERR_MEMORY, "events of \"%s\" could not be allocated", c->head.name);
    e->module = place->module;
    for (int k = 0; k < DTI_LOCAL_RING && failed == 0; k++) {
        failed = place->module->event_create(place->cuda, &e->ready[k]);
        if (failed == 0) failed = place->module->event_create(place->cuda, &e->done[k]);
    }
    if (failed != 0) {
        dti_local_cuda_free_events(e);
        return dti_cuda_check_call(place, failed, "events of a communicator");
    }
    atomic_store_explicit(out, e, memory_order_release);
    return DT_OK;
}

static dti_local_events *events_at(_Atomic(dti_local_events *) *at)
{
    return atomic_load_explicit(at, memory_order_acquire);
}

static dt_status record(dti_local_comm *c, dti_cuda_event *e)
{
    const dti_cuda_place *place = &c->head.cuda->place;

    return dti_cuda_check_call(place, place->module->event_record(place->cuda, e),
                               "recording an event");
}

static dt_status await_event(dti_local_comm *c, dti_cuda_event *e)
{
    const dti_cuda_place *place = &c->head.cuda->place;

    return dti_cuda_check_call(place, place->module->event_await(place->cuda, e),
                               "awaiting another rank's event");
}

/* --- the protocol -------------------------------------------------------------------------------
 */

dt_status dti_local_cuda_publish(dti_local_comm *c, const dti_comm_request *r)
{
    dti_local_member *me = &c->group->members[c->head.rank];

    if (events_at(&me->events) == NULL) DT_TRY(make_events(c, &me->events));
    DT_TRY(record(c, events_at(&me->events)->ready[r->seq % DTI_LOCAL_RING]));
    return DT_OK;
}

/* A peer whose call has no stream is found out when calls are compared. */
dt_status dti_local_cuda_begin(dti_local_comm *c, const dti_local_slot *mine)
{
    const uint64_t seq = atomic_load_explicit(&mine->seq, memory_order_relaxed);
    const bool from_root = dti_local_is_from_root(&mine->call);

    for (int m = 0; m < c->head.size; m++) {
        dti_local_events *e;
        if (m == c->head.rank || (from_root && m != mine->call.root)) continue;
        e = events_at(&c->group->members[m].events);
        if (e == NULL || dti_local_side(c, mine, m)->call.stream == NULL) continue;
        DT_TRY(await_event(c, e->ready[seq % DTI_LOCAL_RING]));
    }
    return DT_OK;
}

dt_status dti_local_cuda_end(dti_local_comm *c, const dti_local_slot *mine)
{
    const uint64_t seq = atomic_load_explicit(&mine->seq, memory_order_relaxed);

    return record(c,
                  events_at(&c->group->members[c->head.rank].events)->done[seq % DTI_LOCAL_RING]);
}

/* Members may have gone on by now, and their events with them: then this waits for a little more
 * than it has to, never for less. */
dt_status dti_local_cuda_await(dti_local_comm *c, const dti_comm_request *r)
{
    for (int m = 0; m < c->head.size; m++) {
        dti_local_events *e = events_at(&c->group->members[m].events);
        if (m != c->head.rank) DT_TRY(await_event(c, e->done[r->seq % DTI_LOCAL_RING]));
    }
    return DT_OK;
}

static bool is_quiet(dti_local_events *e)
{
    bool all = true;

    for (int k = 0; e != NULL && k < DTI_LOCAL_RING; k++) {
        bool done = true;
        if (e->module->event_done(e->done[k], &done) == 0) all = all && done;
    }
    return all;
}

static bool is_group_quiet(dti_local_group *g)
{
    for (int m = 0; m < g->n; m++) {
        dti_local_channel *row = atomic_load_explicit(&g->channels[m], memory_order_acquire);
        if (!is_quiet(events_at(&g->members[m].events))) return false;
        for (int to = 0; row != NULL && to < g->n; to++)
            if (!is_quiet(events_at(&row[to].taken_at))) return false;
    }
    return true;
}

void dti_local_cuda_quiet(const dti_local_rank *self)
{
    const int64_t end = dti_now_ns() + QUIET_NS;

    for (dti_local_comm *c = self->comms; c != NULL; c = c->next)
        while (c->head.cuda != NULL && c->group != NULL && !is_group_quiet(c->group) &&
               dti_now_ns() < end)
            (void)sched_yield();
}

/* --- messages -----------------------------------------------------------------------------------
 */

dt_status dti_local_cuda_post(dti_local_comm *c, dti_local_channel *ch, uint64_t seq)
{
    if (events_at(&ch->sent) == NULL) DT_TRY(make_events(c, &ch->sent));
    DT_TRY(record(c, events_at(&ch->sent)->ready[seq % DTI_LOCAL_RING]));
    return DT_OK;
}

dt_status dti_local_cuda_take(dti_local_comm *c, dti_local_channel *ch, uint64_t seq)
{
    const dti_local_end *from = &ch->sends[seq % DTI_LOCAL_RING];
    const dti_local_end *to = &ch->recvs[seq % DTI_LOCAL_RING];
    const size_t bytes = (size_t)from->n * dt_dtype_size(from->dtype);

    if (events_at(&ch->taken_at) == NULL) DT_TRY(make_events(c, &ch->taken_at));
    DT_TRY(await_event(c, events_at(&ch->sent)->ready[seq % DTI_LOCAL_RING]));
    DT_TRY(dti_local_cuda_copy(c, to->recv, from->send, bytes));
    DT_TRY(record(c, events_at(&ch->taken_at)->done[seq % DTI_LOCAL_RING]));
    return DT_OK;
}

dt_status dti_local_cuda_taken(dti_local_comm *c, dti_local_channel *ch, uint64_t seq)
{
    return await_event(c, events_at(&ch->taken_at)->done[seq % DTI_LOCAL_RING]);
}

/* --- the work -----------------------------------------------------------------------------------
 */

dt_status dti_local_cuda_copy(dti_local_comm *c, void *to, const void *from, size_t bytes)
{
    const dti_cuda_place *place = &c->head.cuda->place;

    if (bytes == 0 || to == from) return DT_OK;
    return dti_cuda_check_call(
        place, place->module->copy(place->cuda, to, from, bytes, DTI_CUDA_WITHIN), "copying");
}

dt_status dti_local_cuda_copy_box(dti_local_comm *c, void *to, const dti_box *to_box,
                                  const void *from, const dti_box *from_box, size_t element_bytes)
{
    const dti_cuda_place *place = &c->head.cuda->place;
    const dti_cuda_box to_there = dti_cuda_box_of(to_box), from_there = dti_cuda_box_of(from_box);

    if (dti_box_count(to_box) == 0) return DT_OK;
    return dti_cuda_check_call(
        place,
        place->module->copy_box(place->cuda, to, &to_there, from, &from_there, element_bytes),
        "copying a box");
}

/* Each rank takes its part from the root and hands it to the others, so that the root's link is no
 * narrower than theirs. */
dt_status dti_local_cuda_spread(dti_local_comm *c, const dti_local_slot *mine)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const void *send = dti_local_side(c, mine, mine->call.root)->call.send;
    const void *own = mine->call.recv;
    int64_t begin, end;
    size_t part;

    dti_pool_share(mine->n, GRAIN_BYTES / (int64_t)bytes, c->head.rank, c->head.size, &begin, &end);
    part = (size_t)(end - begin) * bytes;
    DT_TRY(dti_local_cuda_copy(c, dti_element(own, begin, bytes), dti_element(send, begin, bytes),
                               part));
    for (int i = 1; i < c->head.size; i++) {
        const int m = (c->head.rank + i) % c->head.size;
        void *recv = dti_local_side(c, mine, m)->call.recv;
        if (recv != send)
            DT_TRY(dti_local_cuda_copy(c, dti_element(recv, begin, bytes),
                                       dti_element(own, begin, bytes), part));
    }
    return DT_OK;
}

static dti_cuda_sum sum_of(const dti_local_comm *c, const dti_local_slot *mine)
{
    return (dti_cuda_sum){ .dtype = (int)mine->call.dtype,
                           .reduce = (int)mine->call.reduce,
                           .n_terms = c->head.size };
}

static dt_status run_sum(dti_local_comm *c, const dti_cuda_sum *sum)
{
    const dti_cuda_place *place = &c->head.cuda->place;

    return dti_cuda_check_call(place, place->module->sum(place->cuda, sum), "adding");
}

/* This rank's slice of all terms, written to everybody. Nobody else touches it there, so results
 * may lie where terms do. */
dt_status dti_local_cuda_all_reduce(dti_local_comm *c, const dti_local_slot *mine)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    dti_cuda_sum sum = sum_of(c, mine);
    int64_t begin, end;

    dti_pool_share(mine->n, GRAIN_BYTES / (int64_t)bytes, c->head.rank, c->head.size, &begin, &end);
    if (begin == end) return DT_OK;
    sum.n_to = c->head.size;
    for (int m = 0; m < c->head.size; m++) {
        const dti_comm_call *theirs = &dti_local_side(c, mine, m)->call;
        sum.terms[m] = dti_element(theirs->send, begin, bytes);
        sum.to[m] = dti_element(theirs->recv, begin, bytes);
    }
    sum.box = sum.to_box = dti_cuda_row_of(end - begin);
    return run_sum(c, &sum);
}

static bool have_equal_strides(dti_local_comm *c, const dti_local_slot *mine)
{
    const dti_box *own = &mine->call.send_boxes[c->head.rank];

    for (int m = 0; m < c->head.size; m++) {
        const dti_box *theirs = &dti_local_side(c, mine, m)->call.send_boxes[c->head.rank];
        for (int a = 0; a < own->n_axes; a++)
            if (own->extent[a] > 1 && theirs->stride[a] != own->stride[a]) return false;
    }
    return true;
}

/* Terms whose boxes differ from rank to rank are packed first. */
static dt_status pack_terms(dti_local_comm *c, const dti_local_slot *mine, dti_cuda_sum *sum)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const int64_t n = mine->call.counts[c->head.rank];
    dti_cuda_room *room = &c->head.cuda->room;

    DT_TRY(dti_cuda_room_for(&c->head.cuda->place, room, (size_t)n * (size_t)c->head.size * bytes));
    for (int m = 0; m < c->head.size; m++) {
        const dti_comm_call *theirs = &dti_local_side(c, mine, m)->call;
        const dti_box *box = &theirs->send_boxes[c->head.rank];
        const dti_box packed = dti_box_packed(box);
        void *to = dti_element(room->data, m * n, bytes);
        DT_TRY(dti_local_cuda_copy_box(c, to, &packed, theirs->send, box, bytes));
        sum->terms[m] = to;
    }
    sum->box = dti_cuda_row_of(n);
    return DT_OK;
}

static dt_status find_terms(dti_local_comm *c, const dti_local_slot *mine, dti_cuda_sum *sum)
{
    const size_t bytes = dt_dtype_size(mine->call.dtype);
    const bool boxed = mine->call.send_boxes != NULL;
    const int me = c->head.rank;

    sum->box = sum->to_box = dti_cuda_row_of(mine->call.counts[me]);
    if (boxed && !have_equal_strides(c, mine)) return pack_terms(c, mine, sum);
    for (int m = 0; m < c->head.size; m++) {
        const dti_comm_call *theirs = &dti_local_side(c, mine, m)->call;
        const int64_t at = boxed ? theirs->send_boxes[me].offset
                                 : dti_block_at(mine->call.counts, theirs->displs, me);
        sum->terms[m] = dti_element(theirs->send, at, bytes);
    }
    if (boxed) {
        const dti_box packed = dti_box_packed(&mine->call.send_boxes[me]);
        sum->box = dti_cuda_box_of(&mine->call.send_boxes[me]);
        sum->box.offset = 0;
        sum->to_box = dti_cuda_box_of(&packed);
    }
    return DT_OK;
}

dt_status dti_local_cuda_reduce_scatter(dti_local_comm *c, const dti_local_slot *mine)
{
    dti_cuda_sum sum = sum_of(c, mine);

    if (mine->call.counts[c->head.rank] == 0) return DT_OK;
    DT_TRY(find_terms(c, mine, &sum));
    sum.n_to = 1;
    sum.to[0] = mine->call.recv;
    return run_sum(c, &sum);
}
