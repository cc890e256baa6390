/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/ops/cache.h"

#include <string.h>

#include "base/memory.h"
#include "base/numbers.h"
#include "mesh/runtime.h"

enum { FIRST_SLOTS = 256, MAX_ENTRIES = 8192 };

static void cache_destroy(void *object)
{
    dti_op_cache *c = object;

    for (size_t i = 0; i < c->n_slots; i++) dti_free(c->slots[i]);
    dti_free(c->slots);
    for (dti_row *r = c->rows, *next; r != NULL; r = next) {
        next = r->next;
        dti_row_free(r);
        dti_free(r);
    }
    dti_free(c);
}

static dt_status cache_create(dt_runtime *rt, void **out)
{
    dt_status st = DT_OK;
    dti_op_cache *c;

    (void)rt;
    DT_TRY(dti_new(sizeof *c, &c));
    DT_TRY_TO(fail, st, dti_alloc_array(FIRST_SLOTS, sizeof *c->slots, (void **)&c->slots));
    c->n_slots = FIRST_SLOTS;
    *out = c;
    return DT_OK;

fail:
    cache_destroy(c);
    return st;
}

static const dti_slot cache_slot = { cache_create, cache_destroy, false };

dt_status dti_op_cache_of(dt_runtime *rt, dti_op_cache **out)
{
    void *slot;

    DT_TRY(dti_runtime_slot(rt, &cache_slot, &slot));
    *out = slot;
    return DT_OK;
}

void dt_op_counts(dt_runtime *rt, uint64_t *calls, uint64_t *misses)
{
    dti_op_cache *c;
    const bool there = rt != NULL && dti_op_cache_of(rt, &c) == DT_OK;

    if (calls != NULL) *calls = there ? c->calls : 0;
    if (misses != NULL) *misses = there ? c->misses : 0;
}

/* Only what a call of n operands can differ in; the rest of the key is zero. */
uint64_t dti_op_key_hash(const dti_op_key *key, int n)
{
    uint64_t h = dti_hash_word((uint64_t)(uintptr_t)key->op, (uint64_t)key->place ^ key->dtypes ^
                                                                 (uint64_t)key->n_out << 32 ^
                                                                 (uint64_t)key->spread << 24);

    for (int i = 0; i < n; i++) h = dti_hash_word(h, (uint64_t)(uintptr_t)key->in[i]);
    for (size_t i = 0; i < dti_op_key_bytes(key->op); i += 8)
        h = dti_hash_word(h, key->attr[i / 8]);
    return h;
}

dti_decision *dti_op_cache_find(dti_op_cache *c, const dti_op_key *key, uint64_t hash)
{
    for (size_t i = hash & (c->n_slots - 1); c->slots[i] != NULL; i = (i + 1) & (c->n_slots - 1))
        if (c->slots[i]->hash == hash && memcmp(&c->slots[i]->key, key, sizeof *key) == 0)
            return c->slots[i];
    return NULL;
}

static void place(dti_decision **slots, size_t n_slots, dti_decision *d)
{
    size_t i = d->hash & (n_slots - 1);

    while (slots[i] != NULL) i = (i + 1) & (n_slots - 1);
    slots[i] = d;
}

/* Attributes that change with each call would grow the cache without end: then it starts anew. */
static void forget_all(dti_op_cache *c)
{
    for (size_t i = 0; i < c->n_slots; i++) {
        dti_free(c->slots[i]);
        c->slots[i] = NULL;
    }
    c->n_entries = 0;
}

dt_status dti_op_cache_room(dti_op_cache *c)
{
    if (c->n_entries == MAX_ENTRIES) forget_all(c);
    if (2 * (c->n_entries + 1) > c->n_slots) {
        dti_decision **bigger;
        DT_TRY(dti_alloc_array(2 * c->n_slots, sizeof *bigger, (void **)&bigger));
        for (size_t i = 0; i < c->n_slots; i++)
            if (c->slots[i] != NULL) place(bigger, 2 * c->n_slots, c->slots[i]);
        dti_free(c->slots);
        c->slots = bigger;
        c->n_slots *= 2;
    }
    return DT_OK;
}

void dti_op_cache_add(dti_op_cache *c, dti_decision *decision)
{
    place(c->slots, c->n_slots, decision);
    c->n_entries++;
}

dt_status dti_op_row(dti_op_cache *c, const dt_op *op, const dti_row **out)
{
    dt_status st = DT_OK;
    dti_row *row;

    for (row = c->rows; row != NULL; row = row->next)
        if (row->op == op) {
            *out = row;
            return DT_OK;
        }
    DT_TRY(dti_new(sizeof *row, &row));
    DT_TRY_TO(fail, st, dti_row_read(op, row));
    row->next = c->rows;
    c->rows = row;
    *out = row;
    return DT_OK;

fail:
    dti_free(row);
    return st;
}
