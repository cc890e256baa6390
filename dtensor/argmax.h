/* SPDX-License-Identifier: Apache-2.0
 *
 * What a key of dt_argmax_key() and dt_top_k_keys() says, on whichever device it was made: its
 * upper half is the float as an integer of the same order, with every NaN above all numbers. */
#ifndef DTI_ARGMAX_H
#define DTI_ARGMAX_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/dtype.h"

/* The key of element `index`: among equal values, both zeros are, the lower index is larger. */
static inline int64_t dti_argmax_key(float value, int64_t index)
{
    const int32_t bits = (int32_t)dti_bits_of_float(value + 0.0f);
    const int32_t order = isnan(value) ? INT32_MAX : bits ^ ((bits >> 31) & INT32_MAX);

    return (int64_t)order * ((int64_t)1 << 32) + (int64_t)(UINT32_MAX - (uint32_t)index);
}

/* What the key of a row that is not empty was made of. */
static inline float dti_argmax_value(int64_t key)
{
    const int32_t order = (int32_t)(key >> 32);

    return dti_float_of_bits((uint32_t)(order ^ ((order >> 31) & INT32_MAX)));
}

static inline int64_t dti_argmax_index(int64_t key)
{
    return (int64_t)(UINT32_MAX - (uint32_t)key);
}

/* Stands where there is no element: below all keys. */
#define DTI_NO_KEY INT64_MIN

/* It was no number or infinite. */
static inline bool dti_argmax_overflows(int64_t key)
{
    return key >> 32 >= 0x7f800000;
}

#endif
