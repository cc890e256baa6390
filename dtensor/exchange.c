/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/exchange.h"

#include "base/dtype.h"
#include "dtensor/move_cache.h"

/* One rank's side of an exchange. `packed` is the memory that messages pass through, or NULL. */
typedef struct side {
    dti_device *device;
    bool (*overlap)(const void *arg, int r, dti_overlap *out);
    const void *arg;
    bool sends;
    dti_box *boxes;   /* [size], as handed to the collective */
    int64_t elements; /* of all of them */
    bool several;     /* some pair shares more than one box */
    dti_storage *packed;
} side;

dt_status dti_overlap_copy(dti_device *device, const dti_overlap *o, const void *from, void *to,
                           size_t element_bytes)
{
    for (int i = 0; i < o->n_boxes; i++) {
        dti_box sent, received;
        dti_overlap_box(o, i, &sent, &received);
        DT_TRY(device->ops->copy_box(device, to, &received, from, &sent, element_bytes));
    }
    return DT_OK;
}

/* The same extents, contiguous from `at`. */
static dti_box contiguous(const dti_box *like, int64_t at)
{
    dti_box box = *like;
    int64_t stride = 1;

    box.offset = at;
    for (int a = box.n_axes - 1; a >= 0; a--) {
        box.stride[a] = stride;
        stride *= box.extent[a];
    }
    return box;
}

static dti_box flat(int64_t at, int64_t n)
{
    return (dti_box){ .n_axes = 1, .offset = at, .extent = { n }, .stride = { 1 } };
}

/* Boxes in place. A pair with several gets an empty one for now. */
static void survey(side *s, int size)
{
    dti_box other;
    dti_overlap o;

    for (int r = 0; r < size; r++) {
        s->boxes[r] = dti_box_empty();
        if (!s->overlap(s->arg, r, &o)) continue;
        s->elements += o.count;
        s->several = s->several || o.n_boxes > 1;
        if (o.n_boxes > 1) continue;
        if (s->sends)
            dti_overlap_box(&o, 0, &s->boxes[r], &other);
        else
            dti_overlap_box(&o, 0, &other, &s->boxes[r]);
    }
}

/* Copies one pair's boxes between the tensor's piece and their places from `at` on. */
static dt_status pass(const side *s, const dti_overlap *o, int64_t at, char *piece, size_t bytes)
{
    dti_device *d = s->device;

    for (int i = 0; i < o->n_boxes; i++) {
        dti_box sent, received;
        dti_overlap_box(o, i, &sent, &received);
        const dti_box *mine = s->sends ? &sent : &received;
        const dti_box there = contiguous(mine, at);
        if (s->sends)
            DT_TRY(d->ops->copy_box(d, s->packed->data, &there, piece, mine, bytes));
        else
            DT_TRY(d->ops->copy_box(d, piece, mine, s->packed->data, &there, bytes));
        at += dti_box_count(mine);
    }
    return DT_OK;
}

/* Where each message lies in `packed`, and with `copy` its bytes. What this rank sends itself is
 * not a message. */
static dt_status place_messages(side *s, const dti_comm *comm, char *piece, size_t bytes, bool copy)
{
    int64_t at = 0;
    dti_overlap o;

    for (int r = 0; r < comm->size; r++) {
        if (r == comm->rank || !s->overlap(s->arg, r, &o)) continue;
        s->boxes[r] = o.n_boxes > 1 ? flat(at, o.count) : contiguous(&s->boxes[r], at);
        if (copy) DT_TRY(pass(s, &o, at, piece, bytes));
        at += o.count;
    }
    return DT_OK;
}

static dt_status take_packed(dti_device *device, side *s, size_t bytes)
{
    if (!s->several) return DT_OK;
    DT_TRY(dti_storage_create(device->memory, (size_t)s->elements * bytes, true, &s->packed));
    return DT_OK;
}

/* A piece of this rank goes from its old place to its new one here, if messages are packed. */
static dt_status copy_own(dti_device *device, const dti_pairs *pairs, int me, const void *send,
                          void *recv, size_t bytes)
{
    dti_overlap o;

    if (pairs->sent(pairs->arg, me, &o)) DT_TRY(dti_overlap_copy(device, &o, send, recv, bytes));
    return DT_OK;
}

dt_status dti_exchange_pairs(dti_device *device, dti_comm *comm, const dti_pairs *pairs,
                             const void *send, void *recv, dt_dtype dtype)
{
    const size_t bytes = dt_dtype_size(dtype), n = (size_t)comm->size;
    side out = { .device = device, .overlap = pairs->sent, .arg = pairs->arg, .sends = true };
    side in = { .device = device, .overlap = pairs->received, .arg = pairs->arg };
    dt_status st = DT_OK;
    void *room;

    DT_TRY(dti_move_room(device, 2 * n * sizeof(dti_box), &room));
    out.boxes = room;
    in.boxes = out.boxes + n;
    survey(&out, comm->size);
    survey(&in, comm->size);
    DT_TRY_TO(done, st, take_packed(device, &out, bytes));
    DT_TRY_TO(done, st, take_packed(device, &in, bytes));
    if (out.several || in.several) {
        if (!device->dry)
            DT_TRY_TO(done, st, copy_own(device, pairs, comm->rank, send, recv, bytes));
        out.boxes[comm->rank] = in.boxes[comm->rank] = dti_box_empty();
    }
    if (out.several)
        DT_TRY_TO(done, st,
                  place_messages(&out, comm, (char *)(uintptr_t)send, bytes, !device->dry));
    if (in.several) DT_TRY_TO(done, st, place_messages(&in, comm, NULL, bytes, false));
    DT_TRY_TO(
        done, st,
        device->ops->communicate(device, comm,
                                 &(dti_comm_call){ .op = DTI_COMM_EXCHANGE,
                                                   .dtype = dtype,
                                                   .send = out.several ? out.packed->data : send,
                                                   .recv = in.several ? in.packed->data : recv,
                                                   .send_boxes = out.boxes,
                                                   .recv_boxes = in.boxes,
                                                   .tag = device->claim.tag,
                                                   .what = device->claim.name,
                                                   .about = pairs->about }));
    if (in.several && !device->dry) {
        int64_t at = 0;
        dti_overlap o;
        for (int r = 0; r < comm->size; r++) {
            if (r == comm->rank || !pairs->received(pairs->arg, r, &o)) continue;
            DT_TRY_TO(done, st, pass(&in, &o, at, recv, bytes));
            at += o.count;
        }
    }
done:
    dti_storage_release(out.packed);
    dti_storage_release(in.packed);
    return st;
}
