/* SPDX-License-Identifier: Apache-2.0 */
#include "placements/overlap.h"

/* Two ascending lists of runs, walked together. Returns how many entries; `rows` their rows. */
static int share(const dti_runs *a, const dti_runs *b, dti_shared *out, int64_t *rows)
{
    int64_t a_at = 0, b_at = 0; /* rows of the pieces before run i, run k */
    int n = 0;

    *rows = 0;
    for (int i = 0, k = 0; i < a->n && k < b->n;) {
        const dt_rows *x = &a->run[i], *y = &b->run[k];
        const int64_t begin = dti_max(x->begin, y->begin), end = dti_min(x->end, y->end);
        if (begin < end) {
            const int64_t from = a_at + begin - x->begin, to = b_at + begin - y->begin;
            dti_shared *last = n > 0 ? &out[n - 1] : NULL;
            if (last != NULL && last->from + last->length == from && last->to + last->length == to)
                last->length += end - begin;
            else
                out[n++] = (dti_shared){ from, to, end - begin };
            *rows += end - begin;
        }
        if (x->end <= y->end) {
            a_at += x->end - x->begin;
            i++;
        } else {
            b_at += y->end - y->begin;
            k++;
        }
    }
    return n;
}

bool dti_overlap_of(const dt_layout *from, const int *from_coord, const dt_layout *to,
                    const int *to_coord, const int64_t *shape, dti_overlap *out)
{
    dti_runs a, b;

    out->n_axes = from->n_axes;
    out->n_boxes = 1;
    out->count = 1;
    for (int axis = 0; axis < from->n_axes; axis++) {
        int64_t rows;
        dti_layout_axis_runs(from, axis, shape[axis], from_coord, &a);
        dti_layout_axis_runs(to, axis, shape[axis], to_coord, &b);
        out->from_rows[axis] = a.total;
        out->to_rows[axis] = b.total;
        out->n[axis] = share(&a, &b, out->shared[axis], &rows);
        out->n_boxes *= out->n[axis];
        out->count *= rows;
    }
    return out->n_boxes > 0;
}

void dti_overlap_box(const dti_overlap *o, int i, dti_box *sent, dti_box *received)
{
    int64_t from_stride = 1, to_stride = 1;

    sent->n_axes = received->n_axes = o->n_axes;
    sent->offset = received->offset = 0;
    for (int a = o->n_axes - 1; a >= 0; a--) {
        const dti_shared *s = &o->shared[a][i % o->n[a]];
        i /= o->n[a];
        sent->extent[a] = received->extent[a] = s->length;
        sent->stride[a] = from_stride;
        received->stride[a] = to_stride;
        sent->offset += s->from * from_stride;
        received->offset += s->to * to_stride;
        from_stride *= o->from_rows[a];
        to_stride *= o->to_rows[a];
    }
}

int64_t dti_overlap_rows(const dt_layout *from, const int *from_coord, const dt_layout *to,
                         const int *to_coord, int axis, int64_t extent)
{
    dti_shared shared[DTI_MAX_SHARED];
    int64_t begin[2], end[2], rows;
    dti_runs a, b;

    if (!((from->packed_axes | to->packed_axes) >> axis & 1u)) {
        dti_layout_axis_range(from, axis, extent, from_coord, &begin[0], &end[0]);
        dti_layout_axis_range(to, axis, extent, to_coord, &begin[1], &end[1]);
        rows = dti_min(end[0], end[1]) - dti_max(begin[0], begin[1]);
        return rows > 0 ? rows : 0;
    }
    dti_layout_axis_runs(from, axis, extent, from_coord, &a);
    dti_layout_axis_runs(to, axis, extent, to_coord, &b);
    (void)share(&a, &b, shared, &rows);
    return rows;
}

int64_t dti_overlap_count(const dt_layout *from, const int *from_coord, const dt_layout *to,
                          const int *to_coord, const int64_t *shape)
{
    int64_t n = 1;

    for (int axis = 0; axis < from->n_axes && n > 0; axis++)
        n *= dti_overlap_rows(from, from_coord, to, to_coord, axis, shape[axis]);
    return n;
}

int64_t dti_piece_count(const dt_layout *l, const int *coord, const int64_t *shape)
{
    int64_t n = 1;

    for (int axis = 0; axis < l->n_axes; axis++) {
        int64_t begin, rows;
        dti_layout_axis_extent(l, axis, shape[axis], coord, &begin, &rows);
        n *= rows;
    }
    return n;
}

dti_box dti_box_empty(void)
{
    return (dti_box){ .n_axes = 1, .stride = { 1 } };
}
