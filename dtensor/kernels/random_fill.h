/* SPDX-License-Identifier: Apache-2.0
 *
 * Which random values a tensor is filled with: what kernels of every device are told. Their bits
 * are those of random.h. */
#ifndef DTI_RANDOM_FILL_H
#define DTI_RANDOM_FILL_H

#include <dtensor/factories.h>

#include "dtensor/kernels/random.h"

typedef enum dti_random_kind {
    DTI_RANDOM_UNIFORM,
    DTI_RANDOM_NORMAL,
    DTI_RANDOM_INTEGER
} dti_random_kind;

typedef struct dti_random_fill {
    dti_random_kind kind;
    dt_dtype dtype;
    dt_random key;
    double shift, scale; /* shift + scale u, or z; in f32 unless the dtype is f64 */
    int64_t low;         /* integers: low + [0, range); range == 0 is 2^64 */
    uint64_t range;
} dti_random_fill;

/* Stores an integer as element i of a dtype that has it exactly, or as an f64; false, and nothing
 * stored, for narrower floats, which round as their kernels do. */
DTI_BOTH bool dti_store_integer(void *to, dt_dtype dtype, int64_t i, int64_t value)
{
    switch (dtype) {
    case DT_I64:
        ((int64_t *)to)[i] = value;
        return true;
    case DT_I32:
        ((int32_t *)to)[i] = (int32_t)value;
        return true;
    case DT_U8:
        ((uint8_t *)to)[i] = (uint8_t)value;
        return true;
    case DT_F64:
        ((double *)to)[i] = (double)value;
        return true;
    default:
        return false;
    }
}

#endif
