/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory of devices through memory of hosts: what a call takes is copied down, side by side, the
 * back end of the hosts does the operation, and what it brings is copied up to its places. It needs
 * nothing but that back end, and costs two copies over the bus. */
#include <sched.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/sync.h"
#include "mesh/comm/call.h"
#include "mesh/comm/cuda_comm.h"

enum { NS_PER_MS = 1000 * 1000, LOOK_EVERY = 64 };

/* An operation under way. Kept for later ones with the memory that it has. */
typedef struct dti_staged_op {
    struct dti_staged_op *next;
    bool busy;
    dti_comm_call call; /* as the caller made it */
    dti_comm_call host; /* the same of hosts, which peers may look into */
    dti_cuda_room send, recv;
    dti_cuda_event *down; /* what is sent has come */
    int n_members;
    int64_t *n_sent, *n_brought; /* [n_members] elements */
    dti_box *send_boxes, *recv_boxes;
} staged_op;

static void free_op(dti_cuda_world *w, staged_op *op)
{
    dti_cuda_room_free(&w->place, &op->send);
    dti_cuda_room_free(&w->place, &op->recv);
    if (op->down != NULL) w->place.module->event_destroy(op->down);
    dti_free(op->n_sent);
    dti_free(op->n_brought);
    dti_free(op->send_boxes);
    dti_free(op->recv_boxes);
    dti_free(op);
}

static dt_status make_op(dti_cuda_world *w, staged_op **out)
{
    const size_t n = (size_t)w->host->size;
    dt_status st = DT_OK;
    staged_op *op = NULL;

    DT_TRY(dti_new(sizeof *op, &op));
    op->send.kind = op->recv.kind = DTI_CUDA_PINNED;
    DT_TRY_TO(fail, st, dti_alloc_array(n, sizeof *op->n_sent, (void **)&op->n_sent));
    DT_TRY_TO(fail, st, dti_alloc_array(n, sizeof *op->n_brought, (void **)&op->n_brought));
    DT_TRY_TO(fail, st, dti_alloc_array(n, sizeof *op->send_boxes, (void **)&op->send_boxes));
    DT_TRY_TO(fail, st, dti_alloc_array(n, sizeof *op->recv_boxes, (void **)&op->recv_boxes));
    DT_TRY_TO(fail, st,
              dti_cuda_check_call(&w->place,
                                  w->place.module->event_create(w->place.cuda, &op->down),
                                  "making an event"));
    *out = op;
    return DT_OK;

fail:
    free_op(w, op);
    return st;
}

static dt_status take_op(dti_cuda_world *w, staged_op **out)
{
    staged_op *op = w->staged;

    while (op != NULL && op->busy) op = op->next;
    if (op == NULL) {
        DT_TRY(make_op(w, &op));
        op->next = w->staged;
        w->staged = op;
    }
    op->busy = true;
    *out = op;
    return DT_OK;
}

/* --- parts --------------------------------------------------------------------------------------
 */

/* Members whose parts differ; otherwise all get, or bring, the part of the first. */
static int n_parts(const dti_comm *c, dti_comm_op op, bool sends)
{
    switch (op) {
    case DTI_COMM_ALL_TO_ALL:
    case DTI_COMM_EXCHANGE:
        return c->size;
    case DTI_COMM_REDUCE_SCATTER:
        return sends ? c->size : 1;
    case DTI_COMM_ALL_GATHER:
        return sends ? 1 : c->size;
    default:
        return 1;
    }
}

/* Results of sums are one block. */
static dti_box part(const dti_comm *c, const dti_comm_call *call, bool sends, int i)
{
    const bool made = call->op == DTI_COMM_ALL_REDUCE || call->op == DTI_COMM_REDUCE_SCATTER;
    const bool to_root = call->op == DTI_COMM_SEND || call->op == DTI_COMM_RECV ||
                         (call->op == DTI_COMM_BROADCAST && !sends);

    if (made && !sends) {
        const int64_t n = call->counts[call->op == DTI_COMM_ALL_REDUCE ? 0 : c->rank];
        return (dti_box){ .n_axes = 1, .extent = { n }, .stride = { 1 } };
    }
    return dti_cuda_part(c, call, sends, to_root ? call->root : i);
}

/* The memory that parts need, side by side, and how many elements each has. */
static dt_status make_room(const dti_comm *c, const dti_comm_call *call, bool sends, staged_op *op)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    int64_t *counts = sends ? op->n_sent : op->n_brought;
    int64_t n = 0;

    for (int i = 0; i < n_parts(c, call->op, sends); i++) {
        const dti_box box = part(c, call, sends, i);
        counts[i] = dti_box_count(&box);
        n += counts[i];
    }
    DT_TRY(dti_cuda_room_for(&c->cuda->place, sends ? &op->send : &op->recv, (size_t)n * bytes));
    return DT_OK;
}

/* One part between its box on the device and its place in pinned memory. */
static dt_status move(const dti_comm *c, const dti_comm_call *call, bool down, const dti_box *box,
                      void *pinned)
{
    const size_t bytes = dt_dtype_size(call->dtype), all = (size_t)dti_box_count(box) * bytes;
    const dti_cuda_way way = down ? DTI_CUDA_DOWN : DTI_CUDA_UP;
    const dti_cuda_place *place = &c->cuda->place;
    const void *base = down ? call->send : call->recv;
    void *there = NULL;

    if (all == 0) return DT_OK;
    if (dti_box_is_block(box)) {
        there = dti_element(base, box->offset, bytes);
    } else {
        DT_TRY(dti_cuda_room_for(place, &c->cuda->room, all));
        there = c->cuda->room.data;
        if (down) DT_TRY(dti_cuda_pack(place, there, base, box, bytes));
    }
    DT_TRY(dti_cuda_check_call(
        place,
        place->module->copy(place->cuda, down ? pinned : there, down ? there : pinned, all, way),
        "copying between host and device"));
    if (!down && !dti_box_is_block(box))
        DT_TRY(dti_cuda_unpack(place, call->recv, box, there, bytes));
    return DT_OK;
}

static dt_status move_all(const dti_comm *c, const dti_comm_call *call, bool down, staged_op *op)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    const int64_t *counts = down ? op->n_sent : op->n_brought;
    void *pinned = down ? op->send.data : op->recv.data;

    for (int i = 0; i < n_parts(c, call->op, down); i++) {
        const dti_box box = part(c, call, down, i);
        DT_TRY(move(c, call, down, &box, pinned));
        pinned = dti_element(pinned, counts[i], bytes);
    }
    return DT_OK;
}

/* --- the operation on hosts ---------------------------------------------------------------------
 */

/* Polls: another rank may fail meanwhile, and the device may be stuck. */
static dt_status wait_until_down(dti_comm *c, const dti_comm_request *r, staged_op *op)
{
    const dti_cuda_place *place = &c->cuda->place;
    const int64_t begin = dti_now_ns();
    bool done = false;

    DT_TRY(dti_cuda_check_call(place, place->module->event_record(place->cuda, op->down),
                               "recording an event"));
    for (unsigned polls = 1;; polls++) {
        DT_TRY(dti_cuda_check_call(place, place->module->event_done(op->down, &done),
                                   "waiting for the device"));
        if (done) return DT_OK;
        (void)sched_yield();
        if (polls % LOOK_EVERY != 0) continue;
        DT_TRY(c->ops->check(c, r));
        DT_CHECK((dti_now_ns() - begin) / NS_PER_MS < r->timeout_ms, DT_ERR_DEVICE,
                 "%s on \"%s\": the device of rank %d has not finished what was started before "
                 "within %lld ms",
                 dti_comm_op_name(r->call.op), c->name, c->world_ranks[c->rank],
                 (long long)r->timeout_ms);
    }
}

/* Extents stay, so that the back end can compare them; elements lie side by side. */
static void pack_boxes(const dti_comm *c, const dti_box *boxes, dti_box *packed)
{
    int64_t at = 0;

    for (int m = 0; m < c->size; m++) {
        packed[m] = dti_box_packed(&boxes[m]);
        packed[m].offset = at;
        at += dti_box_count(&boxes[m]);
    }
}

static dti_comm_call host_call(const dti_comm *c, staged_op *op)
{
    dti_comm_call call = op->call;

    call.stream = NULL;
    call.send = op->send.data;
    call.recv = op->recv.data;
    call.displs = call.send_displs = NULL;
    if (call.op == DTI_COMM_EXCHANGE) {
        pack_boxes(c, op->call.send_boxes, op->send_boxes);
        pack_boxes(c, op->call.recv_boxes, op->recv_boxes);
        call.send_boxes = op->send_boxes;
        call.recv_boxes = op->recv_boxes;
    } else {
        call.send_boxes = NULL;
    }
    return call;
}

static dt_status start_op(dti_comm *c, dti_comm_request *r, staged_op *op)
{
    op->call = r->call;
    DT_TRY(make_room(c, &op->call, true, op));
    DT_TRY(make_room(c, &op->call, false, op));
    DT_TRY(move_all(c, &op->call, true, op));
    DT_TRY(wait_until_down(c, r, op));
    r->call = op->host = host_call(c, op);
    DT_TRY(c->ops->start(c, r));
    return DT_OK;
}

static dt_status staged_start(dti_comm *c, dti_comm_request *r)
{
    const dti_comm_call call = r->call;
    staged_op *op;
    dt_status st;

    DT_TRY(take_op(c->cuda, &op));
    st = start_op(c, r, op);
    r->call = call;
    r->state = op;
    if (st != DT_OK) op->busy = false;
    DT_TRY(st);
    return DT_OK;
}

static dt_status staged_wait(dti_comm *c, dti_comm_request *r)
{
    staged_op *op = r->state;
    dt_status st;

    r->call = op->host;
    st = c->ops->wait(c, r);
    r->call = op->call;
    if (st == DT_OK) st = move_all(c, &op->call, false, op);
    op->busy = false; /* whoever takes it next waits for the stream first */
    DT_TRY(st);
    return DT_OK;
}

static void close_world(dti_cuda_world *w)
{
    while (w->staged != NULL) {
        staged_op *op = w->staged;
        w->staged = op->next;
        free_op(w, op);
    }
}

const dti_cuda_carrier dti_cuda_staged = {
    .name = "staged",
    .start = staged_start,
    .wait = staged_wait,
    .close_world = close_world,
};
