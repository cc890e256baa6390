/* SPDX-License-Identifier: Apache-2.0
 *
 * Exact sums of squares of f32. A square has 48 bits, and all of them lie between 2^-298 and 2^256;
 * so 20 digits of 32 bits, digit d of weight 2^(32 d - 298), hold any sum of 2^80 squares. Digits
 * are int64_t: they may be added and subtracted, in any order and on any rank, before anybody
 * carries. C11 and C++14. */
#ifndef DTI_DIGITS_H
#define DTI_DIGITS_H

#include <stdbool.h>

#include "dtensor/kernels/random.h"

enum {
    DTI_DIGITS = 20,
    DTI_DIGITS_BAD = DTI_DIGITS, /* how many values were infinite or no number: in no sum */
    DTI_DIGITS_N,
    DTI_DIGITS_LOWEST = -298
};

/* sum += value 2^exponent, which is a whole multiple of 2^-298. */
DTI_BOTH void dti_digits_add(int64_t *sum, int64_t value, int exponent)
{
    int at = exponent - DTI_DIGITS_LOWEST;
    const bool minus = value < 0;
    uint64_t size = minus ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t low;

    if (size == 0) return;
    if (at < 0) { /* what is shifted out are zeros */
        size >>= -at;
        at = 0;
    }
    low = (size & 0xffffffffu) << at % 32;
    size = ((size >> 32) << at % 32) + (low >> 32);
    sum += at / 32;
    sum[0] += minus ? -(int64_t)(low & 0xffffffffu) : (int64_t)(low & 0xffffffffu);
    sum[1] += minus ? -(int64_t)(size & 0xffffffffu) : (int64_t)(size & 0xffffffffu);
    if (size >> 32 != 0) sum[2] += minus ? -(int64_t)(size >> 32) : (int64_t)(size >> 32);
}

/* The same for a double. */
DTI_BOTH void dti_digits_add_double(int64_t *sum, double x)
{
    int64_t bits;
    int exponent;

    memcpy(&bits, &x, sizeof bits);
    exponent = (int)(bits >> 52 & 0x7ff); /* no subnormal: below 2^-298 is nothing */
    if (exponent == 0) return;
    bits = (bits & 0xfffffffffffff) | (int64_t)1 << 52;
    while (exponent - 1075 < DTI_DIGITS_LOWEST) { /* zeros at the end */
        bits >>= 1;
        exponent++;
    }
    dti_digits_add(sum, x < 0.0 ? -bits : bits, exponent - 1075);
}

/* Every digit but the last into 0 .. 2^32 - 1: the one form that a sum has. */
DTI_BOTH void dti_digits_carry(int64_t *sum)
{
    for (int d = 0; d < DTI_DIGITS - 1; d++) {
        sum[d + 1] += sum[d] >> 32;
        sum[d] &= 0xffffffff;
    }
}

#endif
