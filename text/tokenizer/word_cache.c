/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/word_cache.h"

#include <string.h>

#include "base/memory.h"

/* At most half full. 2^16 slots hold the words of a long book and stay near the cache of a core. */
enum { FIRST_SLOTS = 256, MAX_SLOTS = 1 << 16 };

typedef struct dti_cached_word {
    uint64_t hash;
    uint32_t text;  /* offset in `words` */
    uint32_t begin; /* of its ids */
    uint16_t bytes; /* 0: free */
    uint16_t n_ids;
} dti_cached_word;

static dti_cached_word *slot_of(const dti_word_cache *cache, uint64_t hash, const char *s, size_t n)
{
    size_t at = (size_t)hash & (cache->n_slots - 1);

    for (; cache->slots[at].bytes != 0; at = (at + 1) & (cache->n_slots - 1)) {
        const dti_cached_word *w = &cache->slots[at];

        if (w->hash == hash && w->bytes == n && memcmp(cache->words.data + w->text, s, n) == 0)
            break;
    }
    return &cache->slots[at];
}

bool dti_word_cache_find(const dti_word_cache *cache, uint64_t hash, const char *s, size_t n,
                         size_t *begin, size_t *n_ids)
{
    const dti_cached_word *w;

    if (cache->n == 0) return false;
    w = slot_of(cache, hash, s, n);
    *begin = w->begin;
    *n_ids = w->n_ids;
    return w->bytes != 0;
}

static dt_status resize(dti_word_cache *cache, size_t n_slots)
{
    const dti_word_cache old = *cache;
    dti_cached_word *slots;

    DT_TRY(dti_alloc_array(n_slots, sizeof *slots, (void **)&slots));
    cache->slots = slots;
    cache->n_slots = n_slots;
    for (size_t i = 0; i < old.n_slots; i++) {
        const dti_cached_word *w = &old.slots[i];

        if (w->bytes != 0) *slot_of(cache, w->hash, old.words.data + w->text, w->bytes) = *w;
    }
    dti_free(old.slots);
    return DT_OK;
}

dt_status dti_word_cache_add(dti_word_cache *cache, uint64_t hash, const char *s, size_t n,
                             size_t begin, size_t n_ids)
{
    if (begin > UINT32_MAX || n_ids > UINT16_MAX || cache->n >= MAX_SLOTS / 2) return DT_OK;
    if (2 * (cache->n + 1) > cache->n_slots)
        DT_TRY(resize(cache, cache->n_slots ? 2 * cache->n_slots : FIRST_SLOTS));
    *slot_of(cache, hash, s, n) = (dti_cached_word){ .hash = hash,
                                                     .text = (uint32_t)cache->words.bytes,
                                                     .begin = (uint32_t)begin,
                                                     .bytes = (uint16_t)n,
                                                     .n_ids = (uint16_t)n_ids };
    cache->n++;
    return dti_text_append(&cache->words, s, n);
}

void dti_word_cache_free(dti_word_cache *cache)
{
    dti_free(cache->slots);
    dti_text_free(&cache->words);
    *cache = (dti_word_cache){ 0 };
}
