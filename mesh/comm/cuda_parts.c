/* SPDX-License-Identifier: Apache-2.0
 *
 * What the ways of moving memory of devices share: parts of a call, boxes, memory of their own. */
#include <string.h>

#include "base/dtype.h"
#include "mesh/comm/call.h"
#include "mesh/comm/cuda_comm.h"

_Static_assert((int)DTI_BOX_MAX_AXES == (int)DTI_CUDA_MAX_AXES, "boxes have the same axes");

enum { LEAST_ROOM_BYTES = 4 << 10 };

dt_status dti_cuda_check_call(const dti_cuda_place *place, int failed, const char *what)
{
    DT_CHECK(failed == 0, DT_ERR_DEVICE, "%s: %s", what, place->module->why());
    return DT_OK;
}

dt_status dti_cuda_room_for(const dti_cuda_place *place, dti_cuda_room *room, size_t bytes)
{
    const size_t twice = 2 * room->bytes;
    size_t more = bytes > twice ? bytes : twice;
    void *data = NULL;

    if (room->data != NULL && bytes <= room->bytes) return DT_OK;
    if (more < LEAST_ROOM_BYTES) more = LEAST_ROOM_BYTES;
    DT_CHECK(place->module->alloc(place->cuda, more, room->kind, &data) == 0, DT_ERR_MEMORY,
             "%zu bytes of %s memory for communication: %s", more,
             room->kind == DTI_CUDA_PINNED ? "pinned" : "device", place->module->why());
    if (room->data != NULL) room->old[room->n_old++] = room->data;
    room->data = data;
    room->bytes = more;
    return DT_OK;
}

void dti_cuda_room_free(const dti_cuda_place *place, dti_cuda_room *room)
{
    const dti_cuda_memory kind = room->kind;

    for (int i = 0; i < room->n_old; i++) place->module->release(place->cuda, kind, room->old[i]);
    if (room->data != NULL) place->module->release(place->cuda, kind, room->data);
    *room = (dti_cuda_room){ .kind = kind };
}

/* --- boxes --------------------------------------------------------------------------------------
 */

dti_cuda_box dti_cuda_box_of(const dti_box *box)
{
    dti_cuda_box b = { .n_axes = box->n_axes, .offset = box->offset };

    memcpy(b.extent, box->extent, sizeof b.extent);
    memcpy(b.stride, box->stride, sizeof b.stride);
    return b;
}

dti_cuda_box dti_cuda_row_of(int64_t n)
{
    return (dti_cuda_box){ .n_axes = 1, .extent = { n }, .stride = { 1 } };
}

dt_status dti_cuda_copy_box(const dti_cuda_place *place, void *to, const dti_box *to_box,
                            const void *from, const dti_box *from_box, size_t element_bytes)
{
    const size_t bytes = (size_t)dti_box_count(to_box) * element_bytes;
    const dti_cuda_box there = dti_cuda_box_of(to_box), here = dti_cuda_box_of(from_box);
    int failed;

    if (bytes == 0) return DT_OK;
    if (dti_box_is_block(to_box) && dti_box_is_block(from_box)) {
        void *first = dti_element(to, to_box->offset, element_bytes);
        const void *source = dti_element(from, from_box->offset, element_bytes);
        if (first == source) return DT_OK;
        failed = place->module->copy(place->cuda, first, source, bytes, DTI_CUDA_WITHIN);
    } else {
        failed = place->module->copy_box(place->cuda, to, &there, from, &here, element_bytes);
    }
    return dti_cuda_check_call(place, failed, "copying on the device");
}

dt_status dti_cuda_pack(const dti_cuda_place *place, void *to, const void *from, const dti_box *box,
                        size_t element_bytes)
{
    const dti_box packed = dti_box_packed(box);

    return dti_cuda_copy_box(place, to, &packed, from, box, element_bytes);
}

dt_status dti_cuda_unpack(const dti_cuda_place *place, void *to, const dti_box *box,
                          const void *from, size_t element_bytes)
{
    const dti_box packed = dti_box_packed(box);

    return dti_cuda_copy_box(place, to, box, from, &packed, element_bytes);
}

/* --- parts of a call ----------------------------------------------------------------------------
 */

static dti_box row(int64_t at, int64_t n)
{
    return (dti_box){ .n_axes = 1, .offset = at, .extent = { n }, .stride = { 1 } };
}

static dti_box sent_part(const dti_comm *c, const dti_comm_call *call, int member)
{
    switch (call->op) {
    case DTI_COMM_BROADCAST:
        return row(0, c->rank == call->root ? call->counts[0] : 0);
    case DTI_COMM_ALL_GATHER:
        return row(0, call->counts[c->rank]);
    case DTI_COMM_ALL_REDUCE:
        return row(0, call->counts[0]);
    case DTI_COMM_REDUCE_SCATTER:
        if (call->send_boxes != NULL) return call->send_boxes[member];
        return row(dti_block_at(call->counts, call->displs, member), call->counts[member]);
    case DTI_COMM_ALL_TO_ALL:
        return row(dti_block_at(call->send_counts, call->send_displs, member),
                   call->send_counts[member]);
    case DTI_COMM_EXCHANGE:
        return call->send_boxes[member];
    case DTI_COMM_SEND:
        return row(0, member == call->root ? call->counts[0] : 0);
    default:
        return row(0, 0);
    }
}

static dti_box brought_part(const dti_comm_call *call, int member)
{
    switch (call->op) {
    case DTI_COMM_BROADCAST:
    case DTI_COMM_RECV:
        return row(0, member == call->root ? call->counts[0] : 0);
    case DTI_COMM_ALL_GATHER:
    case DTI_COMM_ALL_TO_ALL:
        return row(dti_block_at(call->counts, call->displs, member), call->counts[member]);
    case DTI_COMM_EXCHANGE:
        return call->recv_boxes[member];
    default:
        return row(0, 0);
    }
}

dti_box dti_cuda_part(const dti_comm *c, const dti_comm_call *call, bool sends, int member)
{
    return sends ? sent_part(c, call, member) : brought_part(call, member);
}

dt_status dti_cuda_alone(const dti_comm *c, const dti_comm_call *call)
{
    const size_t bytes = dt_dtype_size(call->dtype);
    const dti_box from = sent_part(c, call, 0);
    dti_box to = brought_part(call, 0);

    if (call->op == DTI_COMM_ALL_REDUCE || call->op == DTI_COMM_REDUCE_SCATTER)
        to = dti_box_packed(&from);
    return dti_cuda_copy_box(dti_cuda_place_of(c), call->recv, &to, call->send, &from, bytes);
}
