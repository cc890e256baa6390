/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows a rank holds: one cut, and cuts nested in their order. */
#include "placements/layout.h"

/* How many pieces of `each` cover `all`; safe up to the largest extent. */
static int64_t cover(int64_t all, int64_t each)
{
    return all / each + (all % each != 0);
}

/* Part `part` of `parts` by the chunk rule. */
static void chunk_range(int64_t extent, int64_t unit, int parts, int64_t part, int64_t *begin,
                        int64_t *end)
{
    const int64_t n = cover(extent, unit), chunk = cover(n, parts);
    /* Parts past the last unit are empty and stand at the end. No product exceeds n. */
    const int64_t first = chunk == 0 || part > n / chunk ? n : part * chunk;
    const int64_t last = n - first < chunk ? n : first + chunk;

    *begin = first == n ? extent : first * unit;
    *end = last == n ? extent : last * unit;
}

void dti_shard_range(const dt_placement *place, int64_t extent, int size, int coord, int64_t *begin,
                     int64_t *end)
{
    const int64_t unit = place->unit > 1 ? place->unit : 1;
    const int replicas = place->replicas > 1 ? place->replicas : 1;
    const int part = coord / replicas;

    if (place->n_offsets == 0) {
        chunk_range(extent, unit, size / replicas, part, begin, end);
        return;
    }
    *begin = dti_min(place->offsets[part], extent);
    *end = dti_min(place->offsets[part + 1], extent);
}

static bool cuts_axis(const dt_layout *l, int m, int axis)
{
    return (l->shard_dims >> m & 1u) && l->place[m].axis == axis;
}

void dti_layout_axis_range(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                           int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = extent;
    if (layout->shard_dims == 0) return;
    for (int i = 0; i < layout->n_dims; i++) {
        const int m = layout->order[i];
        int64_t from, to;
        if (!cuts_axis(layout, m, axis)) continue;
        dti_shard_range(&layout->place[m], *end - *begin, layout->dim_size[m], coord[m], &from,
                        &to);
        *end = *begin + to;
        *begin += from;
    }
}

/* Appends rows [begin, end) of the piece `in`, counted from its first row, to `out`. */
static void take_rows(const dti_runs *in, int64_t begin, int64_t end, dti_runs *out)
{
    for (int i = 0; i < in->n && begin < end; i++) {
        const int64_t length = in->run[i].end - in->run[i].begin;
        if (begin < length) {
            const int64_t first = in->run[i].begin + begin;
            const int64_t last = in->run[i].begin + dti_min(end, length);
            if (out->n > 0 && out->run[out->n - 1].end == first)
                out->run[out->n - 1].end = last;
            else
                out->run[out->n++] = (dt_rows){ first, last };
            out->total += last - first;
            begin = length;
        }
        begin -= length;
        end -= length;
    }
}

/* Where row `at` of the piece lies; its end if there is no such row. */
static int64_t place_of_row(const dti_runs *in, int64_t at)
{
    for (int i = 0; i < in->n; i++) {
        const int64_t length = in->run[i].end - in->run[i].begin;
        if (at < length) return in->run[i].begin + at;
        at -= length;
    }
    return in->n > 0 ? in->run[in->n - 1].end : in->begin;
}

static void cut_runs(const dt_placement *p, int size, int coord, const dti_runs *in, dti_runs *out)
{
    const int parts = size / p->replicas, part = coord / p->replicas;
    int64_t block = 0, begin = 0, end = 0;

    out->n = 0;
    out->total = 0;
    if (p->n_blocks == 0) {
        dti_shard_range(p, in->total, size, coord, &begin, &end);
        take_rows(in, begin, end, out);
    }
    for (int b = 0; b < p->n_blocks; b++) {
        const int64_t rows = dti_min(p->blocks[b], in->total - block);
        chunk_range(rows, p->units != NULL ? p->units[b] : p->unit, parts, part, &begin, &end);
        begin += block;
        end += block;
        take_rows(in, begin, end, out);
        block += rows;
    }
    out->begin = out->n > 0 ? out->run[0].begin : place_of_row(in, begin);
}

void dti_layout_axis_runs(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                          dti_runs *out)
{
    dti_runs in;

    if (!(layout->packed_axes >> axis & 1u)) {
        dti_layout_axis_range(layout, axis, extent, coord, &out->run[0].begin, &out->run[0].end);
        out->begin = out->run[0].begin;
        out->total = out->run[0].end - out->begin;
        out->n = out->total > 0;
        return;
    }
    *out = (dti_runs){ .n = extent > 0, .total = extent, .run = { { 0, extent } } };
    for (int i = 0; i < layout->n_dims; i++) {
        const int m = layout->order[i];
        if (!cuts_axis(layout, m, axis)) continue;
        in = *out;
        cut_runs(&layout->place[m], layout->dim_size[m], coord[m], &in, out);
    }
}

void dti_layout_axis_extent(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                            int64_t *begin, int64_t *count)
{
    if (layout->packed_axes >> axis & 1u) {
        dti_runs runs;
        dti_layout_axis_runs(layout, axis, extent, coord, &runs);
        *begin = runs.begin;
        *count = runs.total;
    } else {
        int64_t end;
        dti_layout_axis_range(layout, axis, extent, coord, begin, &end);
        *count = end - *begin;
    }
}

int dti_layout_cuts(const dt_layout *layout, int axis, int dims[DT_MAX_DIMS])
{
    int n = 0;

    for (int i = 0; i < layout->n_dims; i++)
        if (cuts_axis(layout, layout->order[i], axis)) dims[n++] = layout->order[i];
    return n;
}

int dti_layout_common_cuts(const dt_layout *a, int a_axis, const dt_layout *b, int b_axis)
{
    int a_dims[DT_MAX_DIMS], b_dims[DT_MAX_DIMS];
    const int a_n = dti_layout_cuts(a, a_axis, a_dims), b_n = dti_layout_cuts(b, b_axis, b_dims);
    int n = 0;

    for (; n < a_n && n < b_n; n++) {
        const int m = a_dims[n];
        if (b_dims[n] != m || a->dim_size[m] != b->dim_size[m] ||
            !dti_placement_same_cut(&a->place[m], &b->place[m]))
            break;
    }
    return n;
}

bool dti_layout_same_cuts(const dt_layout *a, int a_axis, const dt_layout *b, int b_axis)
{
    int dims[DT_MAX_DIMS];
    const int n = dti_layout_common_cuts(a, a_axis, b, b_axis);

    return n == dti_layout_cuts(a, a_axis, dims) && n == dti_layout_cuts(b, b_axis, dims);
}

bool dti_layout_same_pieces(const dt_layout *a, const dt_layout *b)
{
    if (a == b) return true;
    if (a->n_axes != b->n_axes || a->shard_dims != b->shard_dims) return false;
    for (int axis = 0; axis < a->n_axes; axis++)
        if (!dti_layout_same_cuts(a, axis, b, axis)) return false;
    return true;
}
