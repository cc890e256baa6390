/* SPDX-License-Identifier: Apache-2.0
 *
 * What a key of dt_argmax_key() says, on whichever device it was made: its upper half is the float
 * as an integer of the same order, with every NaN above all numbers. */
#ifndef DTI_ARGMAX_H
#define DTI_ARGMAX_H

#include <stdbool.h>
#include <stdint.h>

/* The largest element was no number. */
static inline bool dti_argmax_is_nan(int64_t key)
{
    return key >> 32 == INT32_MAX;
}

#endif
