/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table with chains, and a list through all entries from the one used last to the one not
 * used for longest. Entries are numbers, so the whole is three arrays. */
#include "dtensor/kernels/cuda/plan_table.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

typedef struct plan_entry {
    void *plan;
    int next;         /* in its chain */
    int newer, older; /* in order of use */
} plan_entry;

struct dti_plan_table {
    void (*drop)(void *arg, void *plan);
    void *arg;
    plan_entry *entries; /* [capacity] */
    unsigned char *keys; /* [capacity, key_bytes] */
    int *chains;         /* [capacity]: its first entry, or NONE */
    size_t key_bytes;
    int capacity, n;
    int newest, oldest;
};

static unsigned char *key_of(const dti_plan_table *table, int i)
{
    return table->keys + (size_t)i * table->key_bytes;
}

dti_plan_table *dti_plan_table_create(int capacity, size_t key_bytes,
                                      void (*drop)(void *arg, void *plan), void *arg)
{
    dti_plan_table *table = calloc(1, sizeof *table);

    if (table == NULL) return NULL;
    *table = (dti_plan_table){ .drop = drop,
                               .arg = arg,
                               .key_bytes = key_bytes,
                               .capacity = capacity,
                               .newest = NONE,
                               .oldest = NONE };
    table->entries = calloc((size_t)capacity, sizeof *table->entries);
    table->keys = malloc((size_t)capacity * key_bytes);
    table->chains = malloc((size_t)capacity * sizeof *table->chains);
    if (table->entries == NULL || table->keys == NULL || table->chains == NULL) {
        dti_plan_table_destroy(table);
        return NULL;
    }
    for (int i = 0; i < capacity; i++) table->chains[i] = NONE;
    return table;
}

void dti_plan_table_destroy(dti_plan_table *table)
{
    if (table == NULL) return;
    for (int i = 0; i < table->n; i++) table->drop(table->arg, table->entries[i].plan);
    free(table->entries);
    free(table->keys);
    free(table->chains);
    free(table);
}

int dti_plan_table_count(const dti_plan_table *table)
{
    return table->n;
}

/* The chain of a key: FNV-1a over its bytes. */
static int *chain_of(const dti_plan_table *table, const unsigned char *key)
{
    uint64_t hash = 1469598103934665603u;

    for (size_t i = 0; i < table->key_bytes; i++) hash = (hash ^ key[i]) * 1099511628211u;
    return &table->chains[(hash ^ hash >> 32) % (uint64_t)table->capacity];
}

static void unlink_use(dti_plan_table *table, int i)
{
    const plan_entry *e = &table->entries[i];

    *(e->newer == NONE ? &table->newest : &table->entries[e->newer].older) = e->older;
    *(e->older == NONE ? &table->oldest : &table->entries[e->older].newer) = e->newer;
}

static void make_newest(dti_plan_table *table, int i)
{
    plan_entry *e = &table->entries[i];

    e->newer = NONE;
    e->older = table->newest;
    *(e->older == NONE ? &table->oldest : &table->entries[e->older].newer) = i;
    table->newest = i;
}

void *dti_plan_table_find(dti_plan_table *table, const void *key)
{
    for (int i = *chain_of(table, key); i != NONE; i = table->entries[i].next)
        if (memcmp(key_of(table, i), key, table->key_bytes) == 0) {
            if (i != table->newest) {
                unlink_use(table, i);
                make_newest(table, i);
            }
            return table->entries[i].plan;
        }
    return NULL;
}

/* Frees the place of the plan that was not used for longest. */
static int evict(dti_plan_table *table)
{
    const int old = table->oldest;
    int *at = chain_of(table, key_of(table, old));

    while (*at != old) at = &table->entries[*at].next;
    *at = table->entries[old].next;
    unlink_use(table, old);
    table->drop(table->arg, table->entries[old].plan);
    return old;
}

void dti_plan_table_put(dti_plan_table *table, const void *key, void *plan)
{
    const int i = table->n < table->capacity ? table->n++ : evict(table);
    int *chain = chain_of(table, key);

    memcpy(key_of(table, i), key, table->key_bytes);
    table->entries[i].plan = plan;
    table->entries[i].next = *chain;
    *chain = i;
    make_newest(table, i);
}
