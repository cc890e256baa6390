/* SPDX-License-Identifier: Apache-2.0
 *
 * The smallest helpers, each in one place. */
#ifndef DTI_NUMBERS_H
#define DTI_NUMBERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline int64_t dti_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static inline int64_t dti_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* a / b, and a, up to the next whole number and the next multiple of b; a >= 0, b > 0. */
static inline int64_t dti_divide_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static inline int64_t dti_round_up(int64_t a, int64_t b)
{
    return dti_divide_up(a, b) * b;
}

/* Is bit i of a set of mesh dims or axes set? */
static inline bool dti_has(uint32_t set, int i)
{
    return set >> i & 1u;
}

/* Adds a word to a hash; the same on all ranks. */
static inline uint64_t dti_hash_word(uint64_t h, uint64_t word)
{
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 29;
}

/* Adds bytes, eight at a time: the same on all ranks and machines of one byte order. */
static inline uint64_t dti_hash_bytes(uint64_t h, const void *data, size_t n)
{
    const char *p = (const char *)data;

    h = dti_hash_word(h, n);
    for (; n > 0; n -= n < 8 ? n : 8, p += 8) {
        uint64_t word = 0;
        memcpy(&word, p, n < 8 ? n : 8);
        h = dti_hash_word(h, word);
    }
    return h;
}

/* Adds a text and where it ends; NULL is "". */
static inline uint64_t dti_hash_text(uint64_t h, const char *text)
{
    return dti_hash_bytes(h, text != NULL ? text : "", text != NULL ? strlen(text) + 1 : 1);
}

#endif
