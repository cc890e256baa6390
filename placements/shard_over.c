/* SPDX-License-Identifier: Apache-2.0 */
#include "placements/shard_over.h"

/* What speaks for an axis, the weightiest first. */
typedef struct merit {
    bool full;    /* each rank can have a row */
    bool uncut;   /* by other dims */
    bool divides; /* and in equal parts */
    bool first;   /* axis 0 of those */
    int64_t rows; /* that other dims leave, at most */
} merit;

static merit merit_of(const dt_layout *base, const int64_t *shape, int dim, int axis)
{
    const int size = base->dim_size[dim], first[DT_MAX_DIMS] = { 0 };
    int dims[DT_MAX_DIMS];
    const int n = dti_layout_cuts(base, axis, dims);
    merit m = { .uncut = n == 0, .rows = shape[axis] };
    int64_t begin, of_first;

    for (int i = 0; i < n; i++) {
        const int parts = base->dim_size[dims[i]] / base->place[dims[i]].replicas;
        m.rows = m.rows / parts + (m.rows % parts != 0);
    }
    dti_layout_axis_extent(base, axis, shape[axis], first, &begin, &of_first);
    m.rows = dti_max(m.rows, of_first); /* units may leave it more than its share */
    m.full = m.rows >= size;
    m.divides = m.uncut && m.full && m.rows % size == 0;
    m.first = m.divides && axis == 0;
    return m;
}

static bool is_better(const merit *a, const merit *b)
{
    if (a->full != b->full) return a->full;
    if (a->uncut != b->uncut) return a->uncut;
    if (a->divides != b->divides) return a->divides;
    if (a->first != b->first) return a->first;
    return a->rows > b->rows;
}

dt_status dti_shard_over(const dt_layout *base, const int64_t *shape, int dim,
                         const dt_layout **out)
{
    const bool cut = (base->shard_dims >> dim & 1u) != 0;
    merit best = { .rows = 1 };
    dt_placement place;
    int dims[DT_MAX_DIMS];
    int at = -1;

    *out = base;
    for (int a = 0; a < base->n_axes && base->dim_size[dim] > 1 && !cut; a++) {
        const merit m = merit_of(base, shape, dim, a);
        if (m.rows < 2 || !is_better(&m, &best)) continue;
        best = m;
        at = a;
    }
    if (at < 0) return DT_OK;
    place = DT_SHARD(at);
    place.order = dti_layout_cuts(base, at, dims) + 1; /* behind the others */
    DT_TRY(dti_layout_with(base, dim, &place, out));
    return DT_OK;
}
