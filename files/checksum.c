/* SPDX-License-Identifier: Apache-2.0 */
#include "files/checksum.h"

#include <string.h>

enum { BLOCK = 32 };

static const uint64_t P1 = 0x9e3779b185ebca87u, P2 = 0xc2b2ae3d27d4eb4fu, P3 = 0x165667b19e3779f9u,
                      P4 = 0x85ebca77c2b2ae63u, P5 = 0x27d4eb2f165667c5u;

static uint64_t rotate(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static uint64_t round_of(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * P2, 31) * P1;
}

static uint64_t word_at(const unsigned char *p)
{
    uint64_t word;

    memcpy(&word, p, sizeof word);
    return word;
}

void dti_checksum_begin(dti_checksum *sum)
{
    *sum = (dti_checksum){ .lane = { P1 + P2, P2, 0, 0 - P1 } };
}

/* The four lanes do not wait for each other: that is what makes it fast. */
static void add_blocks(uint64_t lane[4], const unsigned char *p, size_t n)
{
    uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];

    for (; n >= BLOCK; n -= BLOCK, p += BLOCK) {
        a = round_of(a, word_at(p));
        b = round_of(b, word_at(p + 8));
        c = round_of(c, word_at(p + 16));
        d = round_of(d, word_at(p + 24));
    }
    lane[0] = a;
    lane[1] = b;
    lane[2] = c;
    lane[3] = d;
}

void dti_checksum_add(dti_checksum *sum, const void *data, size_t n)
{
    const size_t waiting = (size_t)(sum->bytes % BLOCK);
    const unsigned char *p = data;
    size_t first = 0;

    if (n == 0) return;
    sum->bytes += n;
    if (waiting > 0) {
        first = n < BLOCK - waiting ? n : BLOCK - waiting;
        memcpy(sum->rest + waiting, p, first);
        if (waiting + first < BLOCK) return;
        add_blocks(sum->lane, sum->rest, BLOCK);
    }
    add_blocks(sum->lane, p + first, n - first);
    memcpy(sum->rest, p + n - (n - first) % BLOCK, (n - first) % BLOCK);
}

uint64_t dti_checksum_end(const dti_checksum *sum)
{
    static const int turns[4] = { 1, 7, 12, 18 };
    const unsigned char *p = sum->rest;
    size_t n = (size_t)(sum->bytes % BLOCK);
    uint64_t h = P5;

    if (sum->bytes >= BLOCK) {
        h = 0;
        for (int i = 0; i < 4; i++) h += rotate(sum->lane[i], turns[i]);
        for (int i = 0; i < 4; i++) h = (h ^ round_of(0, sum->lane[i])) * P1 + P4;
    }
    h += sum->bytes;
    for (; n >= 8; n -= 8, p += 8) h = rotate(h ^ round_of(0, word_at(p)), 27) * P1 + P4;
    if (n >= 4) {
        uint32_t half;
        memcpy(&half, p, sizeof half);
        h = rotate(h ^ half * P1, 23) * P2 + P3;
        n -= 4;
        p += 4;
    }
    for (; n > 0; n--, p++) h = rotate(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

uint64_t dti_checksum_of(const void *data, size_t n)
{
    dti_checksum sum;

    dti_checksum_begin(&sum);
    dti_checksum_add(&sum, data, n);
    return dti_checksum_end(&sum);
}
