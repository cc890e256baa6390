/* SPDX-License-Identifier: Apache-2.0
 *
 * Words met before in the same text, and where their ids stand in the result. */
#ifndef DTI_WORD_CACHE_H
#define DTI_WORD_CACHE_H

#include "text/tokenizer/utf8.h"

/* Longer words hardly come twice. */
enum { DTI_CACHED_WORD_BYTES = 64 };

/* All zeros to begin with. */
typedef struct dti_word_cache {
    struct dti_cached_word *slots;
    size_t n_slots; /* a power of two, or 0 */
    size_t n;
    dti_text words; /* of all entries */
} dti_word_cache;

/* Finds a word of at most DTI_CACHED_WORD_BYTES and the ids [*begin, *begin + *n_ids) it has. */
bool dti_word_cache_find(const dti_word_cache *cache, uint64_t hash, const char *s, size_t n,
                         size_t *begin, size_t *n_ids);

/* Notes a word that is not in it. A full cache stays as it is. */
dt_status dti_word_cache_add(dti_word_cache *cache, uint64_t hash, const char *s, size_t n,
                             size_t begin, size_t n_ids) DT_MUST_USE;

void dti_word_cache_free(dti_word_cache *cache);

#endif
