/* SPDX-License-Identifier: Apache-2.0
 *
 * Interned layouts: equal normal forms (normal.c) share one object, so that later rooms compare
 * layouts by pointer. */
#include "placements/layout.h"

#include <string.h>

#include "base/memory.h"

enum { FIRST_BUCKETS = 64 };

struct dt_layouts {
    size_t n_layouts;
    size_t n_buckets; /* a power of two */
    dt_layout **buckets;
    dti_arena numbers; /* offsets, blocks and units of all layouts */
};

static uint64_t mix_numbers(uint64_t h, int n, const int64_t *numbers)
{
    h = dti_hash_word(h, (uint64_t)n);
    for (int i = 0; i < n; i++) h = dti_hash_word(h, (uint64_t)numbers[i]);
    return h;
}

uint64_t dti_layout_hash(const dt_layout *l)
{
    uint64_t h = dti_hash_word(dti_hash_word(0, (uint64_t)l->n_dims), (uint64_t)l->n_axes);

    for (int m = 0; m < l->n_dims; m++) {
        const dt_placement *p = &l->place[m];
        h = dti_hash_word(h, (uint64_t)l->dim_size[m] << 32 | (uint64_t)l->order[m]);
        h = dti_hash_word(h, (uint64_t)p->kind | (uint64_t)p->terms << 4 |
                                 (uint64_t)p->reduce << 8 | (uint64_t)p->axis << 16 |
                                 (uint64_t)p->replicas << 32);
        h = dti_hash_word(h, (uint64_t)p->unit);
        if (p->n_offsets > 0) h = mix_numbers(h, p->n_offsets, p->offsets);
        if (p->n_blocks > 0) h = mix_numbers(dti_hash_word(h, 1), p->n_blocks, p->blocks);
        if (p->units != NULL) h = mix_numbers(dti_hash_word(h, 2), p->n_blocks, p->units);
    }
    return h;
}

/* Places, masks and default_order follow from the rest. */
bool dti_layout_equal(const dt_layout *a, const dt_layout *b)
{
    const size_t n = (size_t)a->n_dims;

    if (a->hash != b->hash || a->n_dims != b->n_dims || a->n_axes != b->n_axes ||
        memcmp(a->dim_size, b->dim_size, n * sizeof a->dim_size[0]) != 0 ||
        memcmp(a->order, b->order, n * sizeof a->order[0]) != 0)
        return false;
    for (int m = 0; m < a->n_dims; m++)
        if (!dti_placement_equal(&a->place[m], &b->place[m])) return false;
    return true;
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
    dti_arena_free(&table->numbers);
    dti_free(table->buckets);
    dti_free(table);
}

dt_status dt_layouts_create(dt_layouts **out)
{
    DT_CHECK(out != NULL, DT_ERR_ARG, "out is NULL");
    DT_TRY(dti_layouts_create(out));
    return DT_OK;
}

void dt_layouts_release(dt_layouts **layouts)
{
    if (layouts == NULL) return;
    dti_layouts_destroy(*layouts);
    *layouts = NULL;
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

/* Copies offsets, blocks or units into the table's memory. */
static dt_status keep_numbers(dti_layouts *table, int n, const int64_t **numbers)
{
    void *kept;

    if (n == 0) return DT_OK;
    DT_TRY(dti_arena_alloc(&table->numbers, (size_t)n * sizeof(int64_t), &kept));
    memcpy(kept, *numbers, (size_t)n * sizeof(int64_t));
    *numbers = kept;
    return DT_OK;
}

static dt_status add(dti_layouts *table, const dt_layout *key, const dt_layout **out)
{
    dt_status st = DT_OK;
    dt_layout *l;

    if (table->n_layouts >= table->n_buckets) DT_TRY(grow(table));
    DT_TRY(dti_new(sizeof *l, &l));
    *l = *key;
    l->table = table;
    for (int m = 0; m < l->n_dims; m++) {
        dt_placement *p = &l->place[m];
        DT_TRY_TO(fail, st, keep_numbers(table, p->n_offsets, &p->offsets));
        DT_TRY_TO(fail, st, keep_numbers(table, p->n_blocks, &p->blocks));
        DT_TRY_TO(fail, st, keep_numbers(table, p->units != NULL ? p->n_blocks : 0, &p->units));
    }
    l->next = table->buckets[key->hash & (table->n_buckets - 1)];
    table->buckets[key->hash & (table->n_buckets - 1)] = l;
    table->n_layouts++;
    *out = l;
    return DT_OK;

fail:
    dti_free(l);
    return st;
}

dt_status dti_layout_intern_key(dti_layouts *table, dt_layout *key, const dt_layout **out)
{
    *out = NULL;
    key->hash = dti_layout_hash(key);
    for (const dt_layout *l = table->buckets[key->hash & (table->n_buckets - 1)]; l != NULL;
         l = l->next) {
        if (dti_layout_equal(l, key)) {
            *out = l;
            return DT_OK;
        }
    }
    DT_TRY(add(table, key, out));
    return DT_OK;
}

dt_status dti_layout_intern(dti_layouts *table, int n_dims, const int *dim_size, int n_axes,
                            const dt_placement *place, const int *order, const dt_layout **out)
{
    dt_layout key = { .n_dims = n_dims, .n_axes = n_axes };

    *out = NULL;
    for (int m = 0; m < n_dims && m < DT_MAX_DIMS; m++) {
        key.dim_size[m] = dim_size[m];
        key.place[m] = place[m];
    }
    DT_TRY(dti_layout_normalise(&key, order));
    DT_TRY(dti_layout_intern_key(table, &key, out));
    return DT_OK;
}

dt_status dti_layout_with(const dt_layout *base, int dim, const dt_placement *want,
                          const dt_layout **out)
{
    const dt_placement *have = &base->place[dim];
    dt_layout key;

    *out = base;
    if (want->kind == have->kind && want->order == 0 && want->axis == have->axis &&
        want->reduce == have->reduce && want->terms == have->terms &&
        dti_placement_same_cut(want, have))
        return DT_OK; /* which keeps its place among the cuts */
    *out = NULL;
    DT_TRY(dti_layout_replace(base, dim, want, &key));
    DT_TRY(dti_layout_intern_key(base->table, &key, out));
    return DT_OK;
}

dt_placement dt_shard_offsets(int axis, int n_offsets, const int64_t *offsets)
{
    return (dt_placement){ .kind = DT_PLACE_SHARD,
                           .axis = axis,
                           .replicas = 1,
                           .unit = 1,
                           .n_offsets = n_offsets,
                           .offsets = offsets };
}

dt_placement dt_shard_packed(int axis, int n_blocks, const int64_t *blocks)
{
    return (dt_placement){ .kind = DT_PLACE_SHARD,
                           .axis = axis,
                           .replicas = 1,
                           .unit = 1,
                           .n_blocks = n_blocks,
                           .blocks = blocks };
}

dt_placement dt_shard_terms(int axis, int64_t unit, int replicas)
{
    return (dt_placement){
        .kind = DT_PLACE_SHARD, .axis = axis, .replicas = replicas, .unit = unit, .terms = true
    };
}
