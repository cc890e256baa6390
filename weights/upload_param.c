/* SPDX-License-Identifier: Apache-2.0
 *
 * A parameter's piece on its way to a device: cut into parts that lie contiguously in it and fit
 * into a pinned buffer. The rank's threads read a part into the buffer, converting and picking
 * columns as they do, while the device copies the one before. */
#include <string.h>

#include "base/memory.h"
#include "dtensor/device/upload.h"
#include "dtensor/kernels/kernel.h"
#include "files/checkpoint.h"
#include "weights/param_tensors.h"

/* How a piece is cut: axes before `axis` one row at a time, `axis` some rows, the others whole. */
typedef struct cut {
    int axis;
    int64_t rows;
    int64_t stride[DT_MAX_AXES]; /* elements of the piece */
} cut;

/* The last two axes of a matrix that the file has the other way round are not cut: each part would
 * read the rows of all. */
static cut cut_of(const dt_local *l, bool reversed, size_t most)
{
    const int n_cut = reversed ? l->n_axes - 2 : l->n_axes;
    const int64_t room = (int64_t)(most / dt_dtype_size(l->dtype));
    int64_t stride = 1;
    cut c = { .axis = 0 };

    for (int a = l->n_axes - 1; a >= 0; a--) {
        c.stride[a] = stride;
        stride *= l->shape[a];
    }
    while (c.axis < n_cut && c.stride[c.axis] > room) c.axis++;
    c.rows = c.axis < n_cut ? room / c.stride[c.axis] : l->shape[c.axis];
    return c;
}

static dt_status read_tensors(const dti_param_source *from, const dti_part *part, void *to)
{
    for (size_t i = 0; i < from->n_tensors; i++)
        DT_TRY(dti_read_part(from->ckpt, &from->tensors[i], part, from->stage, to));
    return DT_OK;
}

/* A part that fits into no buffer is read as a whole and goes through several. */
static dt_status send_large(const dti_param_source *from, const dti_part *part, char *to,
                            size_t bytes, dti_upload *upload)
{
    const size_t most = dti_upload_most(upload);
    dt_status st = DT_OK;
    char *all;
    void *room;

    DT_TRY(dti_big_alloc(bytes, (void **)&all));
    DT_TRY_TO(done, st, read_tensors(from, part, all));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < most ? bytes - at : most;
        DT_TRY_TO(done, st, dti_upload_room(upload, from->name, n, &room));
        memcpy(room, all + at, n);
        DT_TRY_TO(done, st, dti_upload_send(upload, to + at));
    }
done:
    dti_big_free(all, bytes);
    return st;
}

static dt_status send_part(const dti_param_source *from, const dti_part *part, const cut *c,
                           dti_upload *upload)
{
    const dt_local *l = dt_tensor_local(part->x);
    int64_t first = 0, count = 1;
    size_t bytes;
    char *to;
    void *room;

    for (int a = 0; a < l->n_axes; a++) {
        first += part->begin[a] * c->stride[a];
        count *= part->end[a] - part->begin[a];
    }
    bytes = (size_t)count * dt_dtype_size(l->dtype);
    to = (char *)l->data + (size_t)first * dt_dtype_size(l->dtype);
    if (bytes > dti_upload_most(upload)) return send_large(from, part, to, bytes, upload);
    DT_TRY(dti_upload_room(upload, from->name, bytes, &room));
    DT_TRY(read_tensors(from, part, room));
    DT_TRY(dti_upload_send(upload, to));
    return DT_OK;
}

dt_status dti_upload_param(const dti_param_source *from, dt_tensor *x, dti_upload *upload)
{
    const dt_local *l = dt_tensor_local(x);
    dti_part part;
    cut c;

    if (dti_local_count(l) == 0) return DT_OK; /* nothing can be cut of it */
    c = cut_of(l, from->reversed, dti_upload_most(upload));
    part = dti_whole_part(x, from->reversed);
    for (int a = 0; a < c.axis; a++) part.end[a] = 1;
    for (int a = 0; a >= 0;) {
        part.end[c.axis] = part.begin[c.axis] + c.rows;
        if (part.end[c.axis] > l->shape[c.axis]) part.end[c.axis] = l->shape[c.axis];
        DT_TRY(send_part(from, &part, &c, upload));
        for (a = c.axis; a >= 0; a--) {
            part.begin[a] = part.end[a]++;
            if (part.begin[a] < l->shape[a]) break;
            part.begin[a] = 0;
            part.end[a] = 1;
        }
    }
    return DT_OK;
}
