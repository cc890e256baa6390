/* SPDX-License-Identifier: Apache-2.0
 *
 * Which rows a rank holds: the chunk rule for one cut, and cuts nested in their order. */
#include "placements/layout.h"

/* How many pieces of `each` cover `all`; safe up to the largest extent. */
static int64_t cover(int64_t all, int64_t each)
{
    return all / each + (all % each != 0);
}

void dti_shard_range(const dt_placement *place, int64_t extent, int size, int coord, int64_t *begin,
                     int64_t *end)
{
    const int64_t unit = place->unit > 1 ? place->unit : 1;
    const int replicas = place->replicas > 1 ? place->replicas : 1;
    const int64_t n = cover(extent, unit), chunk = cover(n, size / replicas);
    const int64_t part = coord / replicas;
    /* Parts past the last unit are empty and stand at the end. No product exceeds n. */
    const int64_t first = chunk == 0 || part > n / chunk ? n : part * chunk;
    const int64_t last = n - first < chunk ? n : first + chunk;

    *begin = first == n ? extent : first * unit;
    *end = last == n ? extent : last * unit;
}

void dti_layout_axis_range(const dt_layout *layout, int axis, int64_t extent, const int *coord,
                           int64_t *begin, int64_t *end)
{
    *begin = 0;
    *end = extent;
    if (layout->shard_dims == 0) return;
    for (int i = 0; i < layout->n_dims; i++) {
        const int m = layout->order[i];
        const dt_placement *p = &layout->place[m];
        int64_t from, to;
        if (!(layout->shard_dims >> m & 1u) || p->axis != axis) continue;
        dti_shard_range(p, *end - *begin, layout->dim_size[m], coord[m], &from, &to);
        *end = *begin + to;
        *begin += from;
    }
}

dt_status dt_layout_range(const dt_layout *layout, const int64_t *shape, const int *coord,
                          int64_t *begin, int64_t *end)
{
    DT_CHECK(layout != NULL && coord != NULL, DT_ERR_ARG, "layout or coord is NULL");
    DT_CHECK(layout->n_axes == 0 || (shape != NULL && begin != NULL && end != NULL), DT_ERR_ARG,
             "shape, begin or end is NULL");
    for (int m = 0; m < layout->n_dims; m++)
        DT_CHECK(coord[m] >= 0 && coord[m] < layout->dim_size[m], DT_ERR_ARG,
                 "coordinate %d is outside mesh dim %d of %d ranks", coord[m], m,
                 layout->dim_size[m]);
    for (int a = 0; a < layout->n_axes; a++)
        DT_CHECK(shape[a] >= 0, DT_ERR_ARG, "axis %d has extent %lld", a, (long long)shape[a]);
    for (int a = 0; a < layout->n_axes; a++)
        dti_layout_axis_range(layout, a, shape[a], coord, &begin[a], &end[a]);
    return DT_OK;
}

int dti_layout_cuts(const dt_layout *layout, int axis, int dims[DT_MAX_DIMS])
{
    int n = 0;

    for (int i = 0; i < layout->n_dims; i++) {
        const int m = layout->order[i];
        if ((layout->shard_dims >> m & 1u) && layout->place[m].axis == axis) dims[n++] = m;
    }
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
            a->place[m].unit != b->place[m].unit || a->place[m].replicas != b->place[m].replicas)
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
