/* SPDX-License-Identifier: Apache-2.0 */
#include "training/data/permute.h"

#include "base/error.h"
#include "dtensor/kernels/random.h"

enum { ROUNDS = 6 };

/* A word of Philox: every counter is used for one thing. */
static uint32_t round_word(uint32_t half, uint32_t round, const dti_permute_key *key)
{
    uint32_t c[4] = { half, round | (uint32_t)(key->epoch >> 32) << 3, (uint32_t)key->epoch,
                      key->use ^ 0x64617461u /* "data": no stream of random tensors */ };

    dti_philox(c, (uint32_t)key->seed, (uint32_t)(key->seed >> 32));
    return c[0];
}

int64_t dti_permute(int64_t i, int64_t n, const dti_permute_key *key)
{
    uint64_t x = (uint64_t)i;
    uint64_t mask;
    int bits = 1; /* of a half */

    DT_ASSERT(i >= 0 && i < n && n <= INT64_C(1) << 62);
    while (((uint64_t)n - 1) >> (2 * bits) != 0 && bits < 31) bits++;
    mask = (UINT64_C(1) << bits) - 1;
    do {
        uint64_t left = x >> bits, right = x & mask;
        for (uint32_t r = 0; r < ROUNDS; r++) {
            const uint64_t next = left ^ (round_word((uint32_t)right, r, key) & mask);
            left = right;
            right = next;
        }
        x = left << bits | right;
    } while (x >= (uint64_t)n);
    return (int64_t)x;
}
