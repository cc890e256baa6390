/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies between strided boxes. */
#include <string.h>

#include "base/pool.h"
#include "mesh/comm/call.h"
#include "mesh/comm/copy.h"

bool dti_box_same_extents(const dti_box *a, const dti_box *b)
{
    if (a->n_axes != b->n_axes) return false;
    for (int i = 0; i < a->n_axes; i++)
        if (a->extent[i] != b->extent[i]) return false;
    return true;
}

/* A pair of boxes with their axes merged as far as both allow, outermost first. */
typedef struct box_pair {
    int n_axes;
    int64_t extent[DTI_BOX_MAX_AXES];
    int64_t to_stride[DTI_BOX_MAX_AXES];
    int64_t from_stride[DTI_BOX_MAX_AXES];
} box_pair;

/* False if the box is empty. Axes of extent 1 go; an axis whose step is the whole of the next one,
 * on both sides, becomes one with it. */
static bool merge_axes(const dti_box *to, const dti_box *from, box_pair *p)
{
    int n = 0;

    for (int a = 0; a < to->n_axes; a++) {
        const int64_t extent = to->extent[a];
        if (extent == 0) return false;
        if (extent == 1) continue;
        if (n > 0 && p->to_stride[n - 1] == extent * to->stride[a] &&
            p->from_stride[n - 1] == extent * from->stride[a]) {
            p->extent[n - 1] *= extent;
        } else {
            p->extent[n++] = extent;
        }
        p->to_stride[n - 1] = to->stride[a];
        p->from_stride[n - 1] = from->stride[a];
    }
    if (n == 0) {
        p->extent[0] = p->to_stride[0] = p->from_stride[0] = 1;
        n = 1;
    }
    p->n_axes = n;
    return true;
}

bool dti_box_merge(const dti_box *box, dti_box *out)
{
    box_pair p;

    if (!merge_axes(box, box, &p)) return false;
    out->n_axes = p.n_axes;
    out->offset = box->offset;
    for (int a = 0; a < p.n_axes; a++) {
        out->extent[a] = p.extent[a];
        out->stride[a] = p.to_stride[a];
    }
    return true;
}

/* Rows of fewer bytes are not worth the unaligned ends of streaming. */
enum { STREAMED_ROW_BYTES = 1024, SHARED_BYTES = 1 << 20 };

/* One innermost row; strides in elements. */
static void copy_row(char *to, const char *from, int64_t n, int64_t to_stride, int64_t from_stride,
                     size_t bytes)
{
    if (to_stride == 1 && from_stride == 1) {
        memcpy(to, from, (size_t)n * bytes);
        return;
    }
    to_stride *= (int64_t)bytes;
    from_stride *= (int64_t)bytes;
    switch (bytes) { /* a constant size makes each copy one move */
    case 2:
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 2);
        break;
    case 4:
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 4);
        break;
    case 8:
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, 8);
        break;
    default:
        for (int64_t i = 0; i < n; i++) memcpy(to + i * to_stride, from + i * from_stride, bytes);
        break;
    }
}

static void copy_box(void *to, const dti_box *to_box, const void *from, const dti_box *from_box,
                     size_t element_bytes, bool stream)
{
    const int64_t bytes = (int64_t)element_bytes;
    int64_t at[DTI_BOX_MAX_AXES] = { 0 };
    box_pair p;
    char *t;
    const char *f;
    size_t row;
    int inner;

    if (!merge_axes(to_box, from_box, &p)) return;
    t = (char *)to + to_box->offset * bytes;
    f = (const char *)from + from_box->offset * bytes;
    inner = p.n_axes - 1;
    row = p.to_stride[inner] == 1 && p.from_stride[inner] == 1
              ? (size_t)p.extent[inner] * element_bytes
              : 0; /* not in one piece */
    for (;;) {
        int a = inner - 1;
        if (row > 0)
            dti_copy(t, f, row, stream && row >= STREAMED_ROW_BYTES);
        else
            copy_row(t, f, p.extent[inner], p.to_stride[inner], p.from_stride[inner],
                     element_bytes);
        for (; a >= 0; a--) { /* the next row, as an odometer */
            t += p.to_stride[a] * bytes;
            f += p.from_stride[a] * bytes;
            if (++at[a] < p.extent[a]) break;
            at[a] = 0;
            t -= p.extent[a] * p.to_stride[a] * bytes;
            f -= p.extent[a] * p.from_stride[a] * bytes;
        }
        if (a < 0) break;
    }
    dti_copy_finish(stream);
}

void dti_box_copy(void *to, const dti_box *to_box, const void *from, const dti_box *from_box,
                  size_t element_bytes)
{
    copy_box(to, to_box, from, from_box, element_bytes, false);
}

/* A copy that the threads of a rank share along one axis. */
typedef struct box_job {
    void *to;
    const void *from;
    const dti_box *to_box, *from_box;
    size_t bytes;
    int axis;
    bool stream;
} box_job;

static void copy_part(void *arg, int worker, int n_workers)
{
    const box_job *j = arg;
    dti_box to = *j->to_box, from = *j->from_box;
    int64_t begin, end;

    dti_pool_share(to.extent[j->axis], 1, worker, n_workers, &begin, &end);
    to.offset += begin * to.stride[j->axis];
    from.offset += begin * from.stride[j->axis];
    to.extent[j->axis] = from.extent[j->axis] = end - begin;
    copy_box(j->to, &to, j->from, &from, j->bytes, j->stream);
}

void dti_box_copy_shared(dti_pool *pool, void *to, const dti_box *to_box, const void *from,
                         const dti_box *from_box, size_t element_bytes)
{
    box_job j = { to, from, to_box, from_box, element_bytes, 0, false };
    int64_t bytes = (int64_t)element_bytes;

    for (int a = 0; a < to_box->n_axes; a++) {
        bytes *= to_box->extent[a];
        if (to_box->extent[a] > to_box->extent[j.axis] && to_box->extent[j.axis] == 1) j.axis = a;
    }
    j.stream = bytes >= DTI_STREAM_BYTES;
    if (to_box->n_axes == 0 || bytes < SHARED_BYTES)
        copy_box(to, to_box, from, from_box, element_bytes, false);
    else
        dti_pool_run(pool, copy_part, &j);
}

/* Elements [first, first + n) of a box in row-major order, from or to `flat`, where they lie side
 * by side. */
static void copy_range(char *flat, char *base, const dti_box *box, int64_t first, int64_t n,
                       size_t bytes, bool packs)
{
    const int inner = box->n_axes - 1;
    int64_t at[DTI_BOX_MAX_AXES] = { 0 };
    int64_t place = box->offset;

    if (box->n_axes == 0) {
        if (n > 0)
            memcpy(packs ? flat : base + place * (int64_t)bytes,
                   packs ? base + place * (int64_t)bytes : flat, bytes);
        return;
    }
    for (int a = inner; a >= 0; a--) { /* where `first` is */
        at[a] = first % box->extent[a];
        first /= box->extent[a];
        place += at[a] * box->stride[a];
    }
    while (n > 0) {
        const int64_t left = box->extent[inner] - at[inner];
        const int64_t row = left < n ? left : n;
        char *p = base + place * (int64_t)bytes;
        int a = inner;
        if (packs)
            copy_row(flat, p, row, 1, box->stride[inner], bytes);
        else
            copy_row(p, flat, row, box->stride[inner], 1, bytes);
        flat += row * (int64_t)bytes;
        n -= row;
        at[inner] += row;
        place += row * box->stride[inner];
        for (; a > 0 && at[a] == box->extent[a]; a--) { /* the next row, as an odometer */
            at[a] = 0;
            place += box->stride[a - 1] - box->extent[a] * box->stride[a];
            at[a - 1]++;
        }
    }
}

void dti_box_pack(void *to, const void *from, const dti_box *box, int64_t first, int64_t n,
                  size_t element_bytes)
{
    copy_range(to, (char *)from, box, first, n, element_bytes, true);
}

void dti_box_unpack(void *to, const dti_box *box, const void *from, int64_t first, int64_t n,
                    size_t element_bytes)
{
    copy_range((char *)from, to, box, first, n, element_bytes, false);
}

dti_box dti_box_packed(const dti_box *box)
{
    dti_box packed = { .n_axes = box->n_axes };
    int64_t stride = 1;

    for (int a = box->n_axes - 1; a >= 0; a--) {
        packed.extent[a] = box->extent[a];
        packed.stride[a] = stride;
        stride *= box->extent[a];
    }
    return packed;
}

int64_t dti_box_count(const dti_box *box)
{
    int64_t n = 1;

    for (int a = 0; a < box->n_axes; a++) n *= box->extent[a];
    return n;
}

bool dti_box_is_block(const dti_box *box)
{
    int64_t stride = 1;

    for (int a = box->n_axes - 1; a >= 0; a--) {
        if (box->extent[a] != 1 && box->stride[a] != stride) return false;
        stride *= box->extent[a];
    }
    return true;
}
