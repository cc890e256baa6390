/* SPDX-License-Identifier: Apache-2.0
 *
 * Orders that are drawn without being stored: a permutation of 0 .. n - 1 as a function of its key.
 *
 * A balanced Feistel network over the next power of four, whose round function is a word of Philox,
 * is a bijection whatever the words are; numbers beyond n are sent through it again until one is
 * below (cycle walking, at most four times on average). No memory, no order of calls, any n. */
#ifndef DTI_PERMUTE_H
#define DTI_PERMUTE_H

#include <stdint.h>

/* Two of different seed, epoch or use are independent. */
typedef struct dti_permute_key {
    uint64_t seed;
    uint64_t epoch;
    uint32_t use; /* which of a run's permutations */
} dti_permute_key;

/* Where i goes, 0 <= i < n <= 2^62. */
int64_t dti_permute(int64_t i, int64_t n, const dti_permute_key *key);

#endif
