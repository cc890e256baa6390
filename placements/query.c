/* SPDX-License-Identifier: Apache-2.0
 *
 * What users ask of a layout: pieces, owners, bytes. Arguments are checked here; the arithmetic of
 * range.c trusts them. */
#include <string.h>

#include "base/memory.h"
#include "placements/layout.h"

int dt_layout_n_dims(const dt_layout *layout)
{
    return layout != NULL ? layout->n_dims : -1;
}

int dt_layout_n_axes(const dt_layout *layout)
{
    return layout != NULL ? layout->n_axes : -1;
}

dt_placement dt_layout_placement(const dt_layout *layout, int dim)
{
    if (layout == NULL || dim < 0 || dim >= layout->n_dims) return DT_REPLICATE;
    return layout->place[dim];
}

int dt_layout_placements(const dt_layout *layout, dt_placement *place)
{
    if (layout == NULL || place == NULL) return -1;
    memcpy(place, layout->place, (size_t)layout->n_dims * sizeof *place);
    return layout->n_dims;
}

bool dt_layout_is_replicated(const dt_layout *layout)
{
    return layout != NULL && layout->shard_dims == 0 && layout->partial_dims == 0;
}

/* --- do extents fit offsets and blocks? ------------------------------------------------------- */

/* How many rows a placement's offsets or blocks cover; -1: any. */
static int64_t table_rows(const dt_placement *p)
{
    int64_t rows = 0;

    if (p->n_offsets > 0) return p->offsets[p->n_offsets - 1];
    if (p->n_blocks == 0) return -1;
    for (int b = 0; b < p->n_blocks; b++) rows += p->blocks[b];
    return rows;
}

/* A table below other cuts is given pieces of several sizes; each must fit, or have no rows.
 * Returns the mesh dim whose table does not fit, and what it is given; -1: all fit. */
static int misfit(const dt_layout *l, int axis, int64_t extent, int64_t *rows)
{
    int dims[DT_MAX_DIMS];
    const int n = dti_layout_cuts(l, axis, dims);
    dt_layout outer = *l;

    for (int i = n - 1; i >= 0; i--) { /* `outer` has cuts 0 .. i-1 only */
        const int64_t covered = table_rows(&l->place[dims[i]]);
        int coord[DT_MAX_DIMS] = { 0 };
        outer.shard_dims &= ~(1u << dims[i]);
        for (int k = 0; k >= 0 && covered >= 0;) { /* all coordinates of the outer cuts */
            int64_t begin;
            dti_layout_axis_extent(&outer, axis, extent, coord, &begin, rows);
            if (*rows != covered && (i == 0 || *rows > 0)) return dims[i];
            for (k = i - 1; k >= 0; k--) {
                if (++coord[dims[k]] < l->dim_size[dims[k]]) break;
                coord[dims[k]] = 0;
            }
        }
    }
    return -1;
}

bool dti_layout_fits(const dt_layout *layout, const int64_t *shape)
{
    int64_t rows;

    for (int axis = 0; axis < layout->n_axes && layout->table_axes != 0; axis++)
        if ((layout->table_axes >> axis & 1u) && misfit(layout, axis, shape[axis], &rows) >= 0)
            return false;
    return true;
}

dt_status dti_layout_check_shape(const dt_layout *layout, const int64_t *shape)
{
    for (int axis = 0; axis < layout->n_axes && layout->table_axes != 0; axis++) {
        int64_t rows;
        const int m =
            layout->table_axes >> axis & 1u ? misfit(layout, axis, shape[axis], &rows) : -1;
        if (m < 0) continue;
        DT_FAIL(DT_ERR_SHAPE, "mesh dim %d cuts axis %d %s %lld%s, but %lld rows are cut", m, axis,
                layout->place[m].n_offsets > 0 ? "at offsets that end at" : "in blocks of",
                (long long)table_rows(&layout->place[m]),
                layout->place[m].n_offsets > 0 ? "" : " rows together", (long long)rows);
    }
    return DT_OK;
}

/* --- pieces ----------------------------------------------------------------------------------- */

static dt_status check(const dt_layout *layout, const int64_t *shape, const int *coord)
{
    DT_CHECK(layout != NULL && coord != NULL, DT_ERR_ARG, "layout or coord is NULL");
    DT_CHECK(layout->n_axes == 0 || shape != NULL, DT_ERR_ARG, "shape is NULL");
    for (int m = 0; m < layout->n_dims; m++)
        DT_CHECK(coord[m] >= 0 && coord[m] < layout->dim_size[m], DT_ERR_ARG,
                 "coordinate %d is outside mesh dim %d of %d ranks", coord[m], m,
                 layout->dim_size[m]);
    for (int a = 0; a < layout->n_axes; a++)
        DT_CHECK(shape[a] >= 0, DT_ERR_ARG, "axis %d has extent %lld", a, (long long)shape[a]);
    DT_TRY(dti_layout_check_shape(layout, shape));
    return DT_OK;
}

dt_status dt_layout_range(const dt_layout *layout, const int64_t *shape, const int *coord,
                          int64_t *begin, int64_t *end)
{
    DT_TRY(check(layout, shape, coord));
    DT_CHECK(layout->n_axes == 0 || (begin != NULL && end != NULL), DT_ERR_ARG,
             "begin or end is NULL");
    for (int a = 0; a < layout->n_axes; a++) {
        dti_runs runs;
        dti_layout_axis_runs(layout, a, shape[a], coord, &runs);
        DT_CHECK(runs.n <= 1, DT_ERR_LAYOUT,
                 "axis %d is packed: this piece of it is %d runs of rows; ask dt_layout_runs()", a,
                 runs.n);
        begin[a] = runs.begin;
        end[a] = runs.begin + runs.total;
    }
    return DT_OK;
}

dt_status dt_layout_runs(const dt_layout *layout, const int64_t *shape, int axis, const int *coord,
                         dt_rows *runs, int *n_runs)
{
    dti_runs found;

    DT_TRY(check(layout, shape, coord));
    DT_CHECK(runs != NULL && n_runs != NULL, DT_ERR_ARG, "runs or n_runs is NULL");
    DT_CHECK(axis >= 0 && axis < layout->n_axes, DT_ERR_ARG, "axis %d of a tensor of %d axes", axis,
             layout->n_axes);
    dti_layout_axis_runs(layout, axis, shape[axis], coord, &found);
    for (int i = 0; i < found.n; i++) runs[i] = found.run[i];
    *n_runs = found.n;
    return DT_OK;
}

dt_status dt_layout_local_shape(const dt_layout *layout, const int64_t *shape, const int *coord,
                                int64_t *local)
{
    DT_TRY(check(layout, shape, coord));
    DT_CHECK(layout->n_axes == 0 || local != NULL, DT_ERR_ARG, "local is NULL");
    for (int a = 0; a < layout->n_axes; a++) {
        int64_t begin;
        dti_layout_axis_extent(layout, a, shape[a], coord, &begin, &local[a]);
    }
    return DT_OK;
}

dt_status dt_layout_bytes(const dt_layout *layout, const int64_t *shape, const int *coord,
                          dt_dtype dtype, int64_t *bytes)
{
    int64_t local[DT_MAX_AXES], n = (int64_t)dt_dtype_size(dtype);
    bool empty = false;

    DT_CHECK(bytes != NULL, DT_ERR_ARG, "bytes is NULL");
    DT_CHECK(n > 0, DT_ERR_ARG, "%d is no dtype", (int)dtype);
    DT_TRY(dt_layout_local_shape(layout, shape, coord, local));
    for (int a = 0; a < layout->n_axes; a++) empty = empty || local[a] == 0;
    for (int a = 0; a < layout->n_axes && !empty; a++)
        DT_CHECK(dti_mul_i64(n, local[a], &n), DT_ERR_SHAPE,
                 "the piece exceeds 2^63 bytes at axis %d of %lld rows", a, (long long)local[a]);
    *bytes = empty ? 0 : n;
    return DT_OK;
}

/* --- owners ----------------------------------------------------------------------------------- */

static bool holds_row(const dt_layout *l, int axis, int64_t extent, const int *coord, int64_t row)
{
    dti_runs runs;

    dti_layout_axis_runs(l, axis, extent, coord, &runs);
    for (int i = 0; i < runs.n; i++)
        if (row >= runs.run[i].begin && row < runs.run[i].end) return true;
    return false;
}

/* Finds cut by cut the part that holds the row: the cuts after it do not change who can. */
static void find_row(const dt_layout *layout, int axis, int64_t extent, int64_t row, int *coord)
{
    int dims[DT_MAX_DIMS];
    const int n = dti_layout_cuts(layout, axis, dims);
    dt_layout outer = *layout;

    for (int i = 0; i < n; i++) outer.shard_dims &= ~(1u << dims[i]);
    for (int i = 0; i < n; i++) {
        const int m = dims[i];
        outer.shard_dims |= 1u << m;
        for (coord[m] = 0; coord[m] < layout->dim_size[m] - 1;
             coord[m] += layout->place[m].replicas)
            if (holds_row(&outer, axis, extent, coord, row)) break;
    }
}

dt_status dt_layout_owner(const dt_layout *layout, const int64_t *shape, const int64_t *index,
                          int *coord, int *n_owners)
{
    const int origin[DT_MAX_DIMS] = { 0 };

    DT_CHECK(coord != NULL && n_owners != NULL, DT_ERR_ARG, "coord or n_owners is NULL");
    DT_TRY(check(layout, shape, origin));
    DT_CHECK(layout->n_axes == 0 || index != NULL, DT_ERR_ARG, "index is NULL");
    for (int a = 0; a < layout->n_axes; a++)
        DT_CHECK(index[a] >= 0 && index[a] < shape[a], DT_ERR_ARG,
                 "index %lld of axis %d, which has %lld rows", (long long)index[a], a,
                 (long long)shape[a]);
    *n_owners = 1;
    for (int m = 0; m < layout->n_dims; m++) {
        const bool cuts = layout->shard_dims >> m & 1u;
        coord[m] = 0;
        *n_owners *= cuts ? layout->place[m].replicas : layout->dim_size[m];
    }
    for (int a = 0; a < layout->n_axes; a++) find_row(layout, a, shape[a], index[a], coord);
    return DT_OK;
}
