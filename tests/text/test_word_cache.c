/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer/word_cache.h"

#include <stdio.h>

#include "tests/support/dt_test.h"

static void expect(const dti_word_cache *cache, uint64_t hash, const char *s, size_t n, size_t at)
{
    size_t begin, n_ids;

    DT_ASSERT(dti_word_cache_find(cache, hash, s, n, &begin, &n_ids));
    DT_ASSERT(begin == at && n_ids == at + 1);
}

DT_TEST(word_cache, words_of_one_hash_are_told_apart)
{
    static const char *const words[] = { "abc", "ab", "abd", "xyz" };
    static const size_t bytes[] = { 3, 2, 3, 3 };
    DT_ENDS(dti_word_cache_free) dti_word_cache cache = { 0 };
    size_t begin, n_ids;

    DT_ASSERT(!dti_word_cache_find(&cache, 7, "abc", 3, &begin, &n_ids));
    for (size_t i = 0; i < DT_COUNT(words); i++) {
        DT_ASSERT(!dti_word_cache_find(&cache, 7, words[i], bytes[i], &begin, &n_ids));
        DT_ASSERT_OK(dti_word_cache_add(&cache, 7, words[i], bytes[i], i, i + 1));
    }
    for (size_t i = 0; i < DT_COUNT(words); i++) expect(&cache, 7, words[i], bytes[i], i);
    DT_ASSERT(!dti_word_cache_find(&cache, 7, "abcd", 4, &begin, &n_ids));
    DT_ASSERT(!dti_word_cache_find(&cache, 8, "abc", 3, &begin, &n_ids));
}

/* 2^15 words; more are not kept, and nothing is lost. */
DT_TEST(word_cache, a_full_cache_stays_as_it_is)
{
    enum { WORDS = (1 << 15) + 9 };
    DT_ENDS(dti_word_cache_free) dti_word_cache cache = { 0 };
    size_t begin, n_ids, kept = 0;
    char word[16];

    for (size_t i = 0; i < WORDS; i++) {
        const int n = snprintf(word, sizeof word, "w%zu", i);
        DT_ASSERT_OK(dti_word_cache_add(&cache, i * 0x9e3779b97f4a7c15u, word, (size_t)n, i, 1));
    }
    for (size_t i = 0; i < WORDS; i++) {
        const int n = snprintf(word, sizeof word, "w%zu", i);
        if (!dti_word_cache_find(&cache, i * 0x9e3779b97f4a7c15u, word, (size_t)n, &begin, &n_ids))
            continue;
        DT_ASSERT(begin == i && n_ids == 1);
        kept++;
    }
    DT_ASSERT_EQ_INT(kept, 1 << 15);
}
