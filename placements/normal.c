/* SPDX-License-Identifier: Apache-2.0
 *
 * The normal form of a layout: what the caller wrote is checked, and equal meanings become equal
 * fields. */
#include <string.h>

#include "placements/layout.h"

/* --- one placement ---------------------------------------------------------------------------- */

static dt_status check_offsets(int dim, int parts, const dt_placement *p)
{
    DT_CHECK(p->offsets != NULL, DT_ERR_ARG,
             "mesh dim %d is Shard(%d) with %d offsets that are NULL", dim, p->axis, p->n_offsets);
    DT_CHECK(p->n_offsets - 1 == parts, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with %d offsets: its %d parts need %lld, the last being the "
             "axis' extent",
             dim, p->axis, p->n_offsets, parts, (long long)parts + 1);
    DT_CHECK(p->unit <= 1, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with offsets and a unit of %lld: offsets say all", dim,
             p->axis, (long long)p->unit);
    DT_CHECK(p->offsets[0] == 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with offsets that begin at %lld, not at 0", dim, p->axis,
             (long long)p->offsets[0]);
    for (int i = 1; i < p->n_offsets; i++)
        DT_CHECK(p->offsets[i] >= p->offsets[i - 1], DT_ERR_LAYOUT,
                 "mesh dim %d is Shard(%d) with offset[%d] = %lld after %lld: offsets must not "
                 "descend",
                 dim, p->axis, i, (long long)p->offsets[i], (long long)p->offsets[i - 1]);
    return DT_OK;
}

static dt_status check_blocks(int dim, const dt_placement *p)
{
    int64_t rows = 0;

    DT_CHECK(p->blocks != NULL, DT_ERR_ARG, "mesh dim %d is Shard(%d) with %d blocks that are NULL",
             dim, p->axis, p->n_blocks);
    DT_CHECK(p->n_blocks <= DT_MAX_RUNS, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with %d blocks: %d are possible", dim, p->axis, p->n_blocks,
             DT_MAX_RUNS);
    for (int i = 0; i < p->n_blocks; i++) {
        DT_CHECK(p->blocks[i] >= 0 && p->blocks[i] <= INT64_MAX - rows, DT_ERR_LAYOUT,
                 "mesh dim %d is Shard(%d) with block[%d] of %lld rows", dim, p->axis, i,
                 (long long)p->blocks[i]);
        rows += p->blocks[i];
        DT_CHECK(p->units == NULL || p->units[i] >= 1, DT_ERR_LAYOUT,
                 "mesh dim %d is Shard(%d) with unit %lld of block %d: 1 or more is needed", dim,
                 p->axis, (long long)p->units[i], i);
    }
    DT_CHECK(p->units == NULL || p->unit <= 1, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with a unit of %lld and units of its blocks: give one", dim,
             p->axis, (long long)p->unit);
    return DT_OK;
}

static dt_status check_shard(int dim, int ranks, int n_axes, const dt_placement *p)
{
    DT_CHECK(n_axes > 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d), but a tensor without axes cannot be cut", dim, p->axis);
    DT_CHECK(p->axis >= -n_axes && p->axis < n_axes, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d), but the axis must lie in [%d, %d) for a tensor of %d axes",
             dim, p->axis, -n_axes, n_axes, n_axes);
    DT_CHECK(p->unit >= 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with unit %lld: 1 or more is needed", dim, p->axis,
             (long long)p->unit);
    DT_CHECK(p->replicas >= 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with %d replicas: 1 or more are needed", dim, p->axis,
             p->replicas);
    DT_CHECK(p->replicas == 0 || ranks % p->replicas == 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with %d replicas, which do not divide its %d ranks", dim,
             p->axis, p->replicas, ranks);
    DT_CHECK(p->order >= 0 && p->order <= DT_MAX_DIMS, DT_ERR_ARG,
             "mesh dim %d is Shard(%d) at place %d of its axis' cuts", dim, p->axis, p->order - 1);
    DT_CHECK(p->n_offsets >= 0 && p->n_blocks >= 0 && (p->n_offsets == 0 || p->n_blocks == 0),
             DT_ERR_LAYOUT, "mesh dim %d is Shard(%d) with %d offsets and %d blocks: give one", dim,
             p->axis, p->n_offsets, p->n_blocks);
    DT_CHECK(p->units == NULL || p->n_blocks > 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with units of blocks but without blocks", dim, p->axis);
    if (p->n_offsets > 0)
        DT_TRY(check_offsets(dim, ranks / (p->replicas > 0 ? p->replicas : 1), p));
    if (p->n_blocks > 0) DT_TRY(check_blocks(dim, p));
    return DT_OK;
}

/* The unit of all blocks; 0: they have different ones. */
static int64_t common_unit(const dt_placement *p)
{
    if (p->units == NULL) return p->unit == 0 ? 1 : p->unit;
    for (int i = 1; i < p->n_blocks; i++)
        if (p->units[i] != p->units[0]) return 0;
    return p->units[0];
}

static dt_status normal_shard(int dim, int ranks, int n_axes, dt_placement *p)
{
    DT_TRY(check_shard(dim, ranks, n_axes, p));
    const bool packed = p->n_blocks > 0, at = p->n_offsets > 0;
    const int64_t unit = common_unit(p);
    *p = (dt_placement){ .kind = DT_PLACE_SHARD,
                         .axis = p->axis < 0 ? p->axis + n_axes : p->axis,
                         .replicas = p->replicas == 0 ? 1 : p->replicas,
                         .unit = unit == 0 ? 1 : unit,
                         .order = p->order,
                         .n_offsets = at ? p->n_offsets : 0,
                         .n_blocks = packed ? p->n_blocks : 0,
                         .offsets = at ? p->offsets : NULL,
                         .blocks = packed ? p->blocks : NULL,
                         .units = unit == 0 ? p->units : NULL,
                         .terms = p->terms && p->replicas > 1 };
    if (p->terms && p->replicas == ranks) *p = DT_PARTIAL(DT_SUM);
    return DT_OK;
}

/* One placement in normal form; sets the bit of dim m in the masks it belongs to. */
static dt_status normal_place(dt_layout *l, int m, dt_placement *p)
{
    switch (p->kind) {
    case DT_PLACE_REPLICATE:
        *p = DT_REPLICATE;
        return DT_OK;
    case DT_PLACE_SHARD:
        DT_TRY(normal_shard(m, l->dim_size[m], l->n_axes, p));
        if (p->kind == DT_PLACE_PARTIAL || p->terms) l->partial_dims |= 1u << m;
        if (p->kind == DT_PLACE_PARTIAL || l->dim_size[m] == p->replicas) return DT_OK;
        l->shard_dims |= 1u << m;
        if (p->n_blocks > 0) l->packed_axes |= 1u << p->axis;
        if (p->n_blocks > 0 || p->n_offsets > 0) l->table_axes |= 1u << p->axis;
        return DT_OK;
    case DT_PLACE_PARTIAL:
        DT_CHECK((unsigned)p->reduce < DT_N_REDUCES, DT_ERR_ARG,
                 "mesh dim %d is Partial of unknown reduction %d", m, (int)p->reduce);
        *p = DT_PARTIAL(p->reduce);
        if (l->dim_size[m] > 1) l->partial_dims |= 1u << m;
        return DT_OK;
    }
    DT_FAIL(DT_ERR_ARG, "mesh dim %d has a placement of unknown kind %d", m, (int)p->kind);
}

bool dti_placement_same_cut(const dt_placement *a, const dt_placement *b)
{
    const size_t each = sizeof *a->offsets;

    if (a->unit != b->unit || a->replicas != b->replicas || a->n_offsets != b->n_offsets ||
        a->n_blocks != b->n_blocks || (a->units == NULL) != (b->units == NULL))
        return false;
    return (a->offsets == b->offsets ||
            memcmp(a->offsets, b->offsets, (size_t)a->n_offsets * each) == 0) &&
           (a->blocks == b->blocks ||
            memcmp(a->blocks, b->blocks, (size_t)a->n_blocks * each) == 0) &&
           (a->units == b->units || memcmp(a->units, b->units, (size_t)a->n_blocks * each) == 0);
}

bool dti_placement_equal(const dt_placement *a, const dt_placement *b)
{
    return a->kind == b->kind && a->axis == b->axis && a->reduce == b->reduce &&
           a->order == b->order && a->terms == b->terms && dti_placement_same_cut(a, b);
}

dt_placement dti_placement_reduced(const dt_placement *place)
{
    dt_placement p = place->kind == DT_PLACE_PARTIAL ? DT_REPLICATE : *place;

    p.terms = false;
    return p;
}

/* --- all placements together ------------------------------------------------------------------ */

static bool is_sum(dt_reduce reduce)
{
    return reduce == DT_SUM || reduce == DT_AVG;
}

/* Reductions over several dims commute only if they are equal, or sum and avg. */
static dt_status check_mixture(const dt_layout *l)
{
    int first = -1;

    for (int m = 0; m < l->n_dims; m++) {
        if (!(l->partial_dims >> m & 1u)) continue;
        if (first < 0) {
            first = m;
            continue;
        }
        const dt_reduce a = l->place[first].reduce, b = l->place[m].reduce;
        DT_CHECK(
            a == b || (is_sum(a) && is_sum(b)), DT_ERR_LAYOUT,
            "mesh dim %d is Partial(%s) and mesh dim %d is Partial(%s): only sum and avg can be "
            "mixed in one tensor",
            first, dti_reduce_name(a), m, dti_reduce_name(b));
    }
    return DT_OK;
}

/* Runs of a piece are at most as many as blocks, so what is on the stack has room for them. */
static dt_status check_runs(const dt_layout *l)
{
    for (int axis = 0; axis < l->n_axes; axis++) {
        int blocks = 0;
        if (!(l->packed_axes >> axis & 1u)) continue;
        for (int m = 0; m < l->n_dims; m++)
            if ((l->shard_dims >> m & 1u) && l->place[m].axis == axis)
                blocks += l->place[m].n_blocks;
        DT_CHECK(blocks <= DT_MAX_RUNS, DT_ERR_LAYOUT,
                 "axis %d is cut into %d blocks by all mesh dims together: %d are possible", axis,
                 blocks, DT_MAX_RUNS);
    }
    return DT_OK;
}

/* The cuts of each axis in the order they apply. */
typedef struct cuts {
    int n[DT_MAX_AXES];
    int dims[DT_MAX_AXES][DT_MAX_DIMS];
} cuts;

/* By the caller's permutation of mesh dims. */
static dt_status cuts_by_order(const dt_layout *l, const int *order, cuts *out)
{
    uint32_t seen = 0;

    for (int i = 0; i < l->n_dims; i++) {
        const int m = order[i];
        DT_CHECK(m >= 0 && m < l->n_dims, DT_ERR_ARG,
                 "order[%d] is %d, but the mesh has the dims 0 to %d", i, m, l->n_dims - 1);
        DT_CHECK(!(seen >> m & 1u), DT_ERR_ARG, "order names mesh dim %d twice", m);
        seen |= 1u << m;
        if (!(l->shard_dims >> m & 1u)) continue;
        const int axis = l->place[m].axis;
        out->dims[axis][out->n[axis]++] = m;
    }
    return DT_OK;
}

/* By the places that the placements name, all cuts of an axis or none. */
static dt_status cuts_by_place(const dt_layout *l, cuts *out)
{
    for (int m = 0; m < l->n_dims; m++) {
        if (!(l->shard_dims >> m & 1u)) continue;
        const dt_placement *p = &l->place[m];
        int *dims = out->dims[p->axis], at = out->n[p->axis]++;
        for (int i = 0; i < at; i++) {
            const dt_placement *q = &l->place[dims[i]];
            DT_CHECK((p->order == 0) == (q->order == 0), DT_ERR_LAYOUT,
                     "mesh dims %d and %d cut axis %d, but only one of them names its place in the "
                     "order of cuts: name all of them or none",
                     dims[i], m, p->axis);
            DT_CHECK(p->order == 0 || p->order != q->order, DT_ERR_LAYOUT,
                     "mesh dims %d and %d both stand at place %d among the cuts of axis %d",
                     dims[i], m, p->order - 1, p->axis);
        }
        for (; at > 0 && p->order < l->place[dims[at - 1]].order; at--) dims[at] = dims[at - 1];
        dims[at] = m;
    }
    return DT_OK;
}

/* Only the order among dims that cut the same axis means anything. In the canonical permutation a
 * dim that cuts nothing stands at its own index, and the dims that cut one axis share their indices
 * among them, so the default order is the identity and equal meanings are equal arrays. */
static void canonical_order(dt_layout *l, const cuts *c)
{
    int next[DT_MAX_AXES] = { 0 };

    l->default_order = true;
    for (int m = 0; m < l->n_dims; m++) {
        l->order[m] = m;
        l->place[m].order = 0;
        if (!(l->shard_dims >> m & 1u)) continue;
        const int axis = l->place[m].axis;
        l->order[m] = c->dims[axis][next[axis]++];
        l->default_order = l->default_order && l->order[m] == m;
    }
    if (l->default_order) return;
    for (int axis = 0; axis < l->n_axes; axis++) {
        bool ascending = true;
        for (int i = 1; i < c->n[axis]; i++)
            ascending = ascending && c->dims[axis][i] > c->dims[axis][i - 1];
        for (int i = 0; i < c->n[axis] && !ascending; i++) l->place[c->dims[axis][i]].order = i + 1;
    }
}

/* The places that placements name are places among as many cuts as the axis has. */
static dt_status check_places(const dt_layout *l)
{
    for (int m = 0; m < l->n_dims; m++) {
        const dt_placement *p = &l->place[m];
        int n = 0;
        if (p->kind != DT_PLACE_SHARD || p->order <= 0) continue;
        for (int k = 0; k < l->n_dims; k++) {
            const dt_placement *q = &l->place[k];
            n +=
                q->kind == DT_PLACE_SHARD && (q->axis - p->axis) % (l->n_axes ? l->n_axes : 1) == 0;
        }
        DT_CHECK(
            p->order <= n, DT_ERR_LAYOUT,
            "mesh dim %d is Shard(%d) at place %d among the cuts of its axis, but there %s %d, "
            "and places begin at 0",
            m, p->axis, p->order - 1, n == 1 ? "is only" : "are only", n);
    }
    return DT_OK;
}

dt_status dti_layout_normalise(dt_layout *l, const int *order)
{
    cuts c = { { 0 }, { { 0 } } };

    l->shard_dims = l->partial_dims = l->table_axes = l->packed_axes = 0;
    DT_CHECK(l->n_dims >= 1 && l->n_dims <= DT_MAX_DIMS, DT_ERR_ARG,
             "%d mesh dims: 1 to %d are possible", l->n_dims, DT_MAX_DIMS);
    DT_CHECK(l->n_axes >= 0 && l->n_axes <= DT_MAX_AXES, DT_ERR_ARG,
             "%d axes: 0 to %d are possible", l->n_axes, DT_MAX_AXES);
    if (order == NULL) DT_TRY(check_places(l));
    for (int m = 0; m < l->n_dims; m++) {
        DT_CHECK(l->dim_size[m] >= 1, DT_ERR_ARG, "mesh dim %d has %d ranks", m, l->dim_size[m]);
        DT_TRY(normal_place(l, m, &l->place[m]));
    }
    DT_TRY(check_mixture(l));
    if (l->packed_axes != 0) DT_TRY(check_runs(l));
    if (order != NULL)
        DT_TRY(cuts_by_order(l, order, &c));
    else
        DT_TRY(cuts_by_place(l, &c));
    canonical_order(l, &c);
    return DT_OK;
}

dt_status dti_layout_replace(const dt_layout *base, int dim, const dt_placement *want,
                             dt_layout *out)
{
    int order[DT_MAX_DIMS], n = 0, at = -1, place = 0;
    const int axis = want->axis < 0 ? want->axis + base->n_axes : want->axis;

    *out = *base;
    out->place[dim] = *want;
    for (int i = 0; i < base->n_dims; i++)
        if (base->order[i] != dim) order[n++] = base->order[i];
    for (int i = 0; i < n && at < 0 && want->kind == DT_PLACE_SHARD; i++) {
        const int m = order[i];
        if (!(base->shard_dims >> m & 1u) || base->place[m].axis != axis) continue;
        if (want->order > 0 ? place == want->order - 1 : m > dim) at = i;
        place++;
    }
    if (at < 0) at = n;
    for (int i = n; i > at; i--) order[i] = order[i - 1];
    order[at] = dim;
    return dti_layout_normalise(out, order);
}
