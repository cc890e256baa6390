/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash table with chains, and a list through all entries from the one used last to the one not
 * used for longest. Entries are numbers, so the whole is two arrays. */
#include "dtensor/kernels/cuda/gemm_plans.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1 };

typedef struct gemm_entry {
    dti_gemm_key key;
    void *plan;
    int next;         /* in its chain */
    int newer, older; /* in order of use */
} gemm_entry;

struct dti_gemm_table {
    void (*drop)(void *plan);
    gemm_entry *entries; /* [capacity] */
    int *chains;         /* [capacity]: its first entry, or NONE */
    int capacity, n;
    int newest, oldest;
};

int64_t dti_gemm_bucket(int64_t m)
{
    const int64_t step = m <= 16 ? 1 : m <= 64 ? 16 : m <= 512 ? 64 : 256;

    return (m + step - 1) / step * step;
}

int dti_gemm_alignment(const void *data, int64_t row_bytes)
{
    const uint64_t bits = (uint64_t)(uintptr_t)data | (uint64_t)row_bytes | 16u;

    return (int)(bits & (~bits + 1));
}

dti_gemm_table *dti_gemm_table_create(int capacity, void (*drop)(void *plan))
{
    dti_gemm_table *table = calloc(1, sizeof *table);

    if (table == NULL) return NULL;
    *table = (dti_gemm_table){ .drop = drop, .capacity = capacity, .newest = NONE, .oldest = NONE };
    table->entries = calloc((size_t)capacity, sizeof *table->entries);
    table->chains = malloc((size_t)capacity * sizeof *table->chains);
    if (table->entries == NULL || table->chains == NULL) {
        dti_gemm_table_destroy(table);
        return NULL;
    }
    for (int i = 0; i < capacity; i++) table->chains[i] = NONE;
    return table;
}

void dti_gemm_table_destroy(dti_gemm_table *table)
{
    if (table == NULL) return;
    for (int i = 0; i < table->n; i++) table->drop(table->entries[i].plan);
    free(table->entries);
    free(table->chains);
    free(table);
}

int dti_gemm_table_count(const dti_gemm_table *table)
{
    return table->n;
}

/* The chain of a key: FNV-1a over its bytes. */
static int *chain_of(const dti_gemm_table *table, const dti_gemm_key *key)
{
    const unsigned char *bytes = (const unsigned char *)key;
    uint64_t hash = 1469598103934665603u;

    for (size_t i = 0; i < sizeof *key; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    return &table->chains[(hash ^ hash >> 32) % (uint64_t)table->capacity];
}

static void unlink_use(dti_gemm_table *table, int i)
{
    const gemm_entry *e = &table->entries[i];

    *(e->newer == NONE ? &table->newest : &table->entries[e->newer].older) = e->older;
    *(e->older == NONE ? &table->oldest : &table->entries[e->older].newer) = e->newer;
}

static void make_newest(dti_gemm_table *table, int i)
{
    gemm_entry *e = &table->entries[i];

    e->newer = NONE;
    e->older = table->newest;
    *(e->older == NONE ? &table->oldest : &table->entries[e->older].newer) = i;
    table->newest = i;
}

void *dti_gemm_table_find(dti_gemm_table *table, const dti_gemm_key *key)
{
    for (int i = *chain_of(table, key); i != NONE; i = table->entries[i].next)
        if (memcmp(&table->entries[i].key, key, sizeof *key) == 0) {
            if (i != table->newest) {
                unlink_use(table, i);
                make_newest(table, i);
            }
            return table->entries[i].plan;
        }
    return NULL;
}

/* Frees the place of the plan that was not used for longest. */
static int evict(dti_gemm_table *table)
{
    const int old = table->oldest;
    int *at = chain_of(table, &table->entries[old].key);

    while (*at != old) at = &table->entries[*at].next;
    *at = table->entries[old].next;
    unlink_use(table, old);
    table->drop(table->entries[old].plan);
    return old;
}

void dti_gemm_table_put(dti_gemm_table *table, const dti_gemm_key *key, void *plan)
{
    const int i = table->n < table->capacity ? table->n++ : evict(table);
    int *chain = chain_of(table, key);

    table->entries[i].key = *key;
    table->entries[i].plan = plan;
    table->entries[i].next = *chain;
    *chain = i;
    make_newest(table, i);
}
