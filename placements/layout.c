/* SPDX-License-Identifier: Apache-2.0
 *
 * Interned layouts: what the caller wrote is checked and brought into one normal form, and equal
 * normal forms share one object, so that later rooms compare layouts by pointer. */
#include "placements/layout.h"

#include <string.h>

#include "base/memory.h"

enum { FIRST_BUCKETS = 64 };

struct dti_layouts {
    size_t n_layouts;
    size_t n_buckets; /* a power of two */
    dt_layout **buckets;
};

/* --- normal form ------------------------------------------------------------------------------ */

static dt_status normal_shard(int dim, int ranks, int n_axes, dt_placement *place)
{
    const int axis = place->axis;
    const int replicas = place->replicas == 0 ? 1 : place->replicas;
    const int64_t unit = place->unit == 0 ? 1 : place->unit;

    DT_CHECK(n_axes > 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d), but a tensor without axes cannot be cut", dim, axis);
    DT_CHECK(axis >= -n_axes && axis < n_axes, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d), but the axis must lie in [%d, %d) for a tensor of %d axes",
             dim, axis, -n_axes, n_axes, n_axes);
    DT_CHECK(unit >= 1, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with unit %lld: 1 or more is needed", dim, axis,
             (long long)unit);
    DT_CHECK(replicas >= 1, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with %d replicas: 1 or more are needed", dim, axis,
             replicas);
    DT_CHECK(ranks % replicas == 0, DT_ERR_LAYOUT,
             "mesh dim %d is Shard(%d) with %d replicas, which do not divide its %d ranks", dim,
             axis, replicas, ranks);
    *place = (dt_placement){ .kind = DT_PLACE_SHARD,
                             .axis = axis < 0 ? axis + n_axes : axis,
                             .replicas = replicas,
                             .unit = unit };
    return DT_OK;
}

/* One placement in normal form; sets the bit of dim m in the mask it belongs to. */
static dt_status normal_place(dt_layout *l, int m, dt_placement *p)
{
    switch (p->kind) {
    case DT_PLACE_REPLICATE:
        *p = DT_REPLICATE;
        return DT_OK;
    case DT_PLACE_SHARD:
        DT_TRY(normal_shard(m, l->dim_size[m], l->n_axes, p));
        if (l->dim_size[m] > p->replicas) l->shard_dims |= 1u << m;
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

/* Only the order among dims that cut the same axis means anything. In the canonical permutation a
 * dim that cuts nothing stands at its own index, and the dims that cut one axis share their indices
 * among them, so the default order is the identity and equal meanings are equal arrays. */
static dt_status canonical_order(dt_layout *l, const int *order)
{
    int n[DT_MAX_AXES] = { 0 }, dims[DT_MAX_AXES][DT_MAX_DIMS];
    int next[DT_MAX_AXES] = { 0 };
    uint32_t seen = 0;

    for (int i = 0; i < l->n_dims; i++) {
        const int m = order != NULL ? order[i] : i;
        DT_CHECK(m >= 0 && m < l->n_dims, DT_ERR_ARG,
                 "order[%d] is %d, but the mesh has the dims 0 to %d", i, m, l->n_dims - 1);
        DT_CHECK(!(seen >> m & 1u), DT_ERR_ARG, "order names mesh dim %d twice", m);
        seen |= 1u << m;
        if (l->shard_dims >> m & 1u) {
            const int a = l->place[m].axis;
            dims[a][n[a]++] = m;
        }
    }
    l->default_order = true;
    for (int m = 0; m < l->n_dims; m++) {
        l->order[m] = m;
        if (l->shard_dims >> m & 1u) {
            const int a = l->place[m].axis;
            l->order[m] = dims[a][next[a]++];
        }
        l->default_order = l->default_order && l->order[m] == m;
    }
    return DT_OK;
}

static uint64_t mix(uint64_t h, uint64_t value)
{
    h = (h ^ value) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

static uint64_t hash_of(const dt_layout *l)
{
    uint64_t h = mix(mix(0, (uint64_t)l->n_dims), (uint64_t)l->n_axes);

    for (int m = 0; m < l->n_dims; m++) {
        const dt_placement *p = &l->place[m];
        h = mix(h, (uint64_t)l->dim_size[m] << 32 | (uint64_t)l->order[m]);
        h = mix(h, (uint64_t)p->kind | (uint64_t)p->reduce << 8 | (uint64_t)p->axis << 16);
        h = mix(h, (uint64_t)p->replicas);
        h = mix(h, (uint64_t)p->unit);
    }
    return h;
}

/* Unused fields are zero and the masks follow from the rest. */
static bool equal(const dt_layout *a, const dt_layout *b)
{
    const size_t n = (size_t)a->n_dims;

    return a->hash == b->hash && a->n_dims == b->n_dims && a->n_axes == b->n_axes &&
           memcmp(a->dim_size, b->dim_size, n * sizeof a->dim_size[0]) == 0 &&
           memcmp(a->order, b->order, n * sizeof a->order[0]) == 0 &&
           memcmp(a->place, b->place, n * sizeof a->place[0]) == 0;
}

/* --- the table -------------------------------------------------------------------------------- */

dt_status dti_layouts_create(dti_layouts **out)
{
    dti_layouts *table;
    dt_status st;

    *out = NULL;
    DT_TRY(dti_new(sizeof *table, &table));
    st = dti_alloc_array(FIRST_BUCKETS, sizeof(dt_layout *), (void **)&table->buckets);
    if (st != DT_OK) {
        dti_free(table);
        return dti_error_frame(st, __func__, __FILE__, __LINE__);
    }
    table->n_buckets = FIRST_BUCKETS;
    *out = table;
    return DT_OK;
}

void dti_layouts_destroy(dti_layouts *table)
{
    if (table == NULL) return;
    for (size_t b = 0; b < table->n_buckets; b++) {
        while (table->buckets[b] != NULL) {
            dt_layout *next = table->buckets[b]->next;
            dti_free(table->buckets[b]);
            table->buckets[b] = next;
        }
    }
    dti_free(table->buckets);
    dti_free(table);
}

/* Doubles the buckets; layouts stay where they are, so pointers to them stay good. */
static dt_status grow(dti_layouts *table)
{
    const size_t n = 2 * table->n_buckets;
    dt_layout **buckets;

    DT_TRY(dti_alloc_array(n, sizeof(dt_layout *), (void **)&buckets));
    for (size_t b = 0; b < table->n_buckets; b++) {
        while (table->buckets[b] != NULL) {
            dt_layout *l = table->buckets[b];
            table->buckets[b] = l->next;
            l->next = buckets[l->hash & (n - 1)];
            buckets[l->hash & (n - 1)] = l;
        }
    }
    dti_free(table->buckets);
    table->buckets = buckets;
    table->n_buckets = n;
    return DT_OK;
}

dt_status dti_layout_intern(dti_layouts *table, int n_dims, const int *dim_size, int n_axes,
                            const dt_placement *place, const int *order, const dt_layout **out)
{
    dt_layout key = { .n_dims = n_dims, .n_axes = n_axes };
    dt_layout *l;

    *out = NULL;
    DT_CHECK(n_dims >= 1 && n_dims <= DT_MAX_DIMS, DT_ERR_ARG, "%d mesh dims: 1 to %d are possible",
             n_dims, DT_MAX_DIMS);
    DT_CHECK(n_axes >= 0 && n_axes <= DT_MAX_AXES, DT_ERR_ARG, "%d axes: 0 to %d are possible",
             n_axes, DT_MAX_AXES);
    for (int m = 0; m < n_dims; m++) {
        DT_CHECK(dim_size[m] >= 1, DT_ERR_ARG, "mesh dim %d has %d ranks", m, dim_size[m]);
        key.dim_size[m] = dim_size[m];
        key.place[m] = place[m];
        DT_TRY(normal_place(&key, m, &key.place[m]));
    }
    DT_TRY(check_mixture(&key));
    DT_TRY(canonical_order(&key, order));
    key.hash = hash_of(&key);

    for (l = table->buckets[key.hash & (table->n_buckets - 1)]; l != NULL; l = l->next) {
        if (equal(l, &key)) {
            *out = l;
            return DT_OK;
        }
    }
    if (table->n_layouts >= table->n_buckets) DT_TRY(grow(table));
    DT_TRY(dti_new(sizeof *l, &l));
    *l = key;
    l->next = table->buckets[key.hash & (table->n_buckets - 1)];
    table->buckets[key.hash & (table->n_buckets - 1)] = l;
    table->n_layouts++;
    *out = l;
    return DT_OK;
}

/* --- queries ---------------------------------------------------------------------------------- */

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

bool dt_layout_is_replicated(const dt_layout *layout)
{
    return layout != NULL && layout->shard_dims == 0 && layout->partial_dims == 0;
}
