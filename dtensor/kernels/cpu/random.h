/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of random values on the CPU. */
#ifndef DTI_CPU_RANDOM_H
#define DTI_CPU_RANDOM_H

#include <dtensor/factories.h>

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

/* Writes elements first .. first + n - 1 of the tensor that f describes to to[0 .. n - 1]. All
 * instruction sets write the same bits. */
typedef void (*dti_random_fn)(const dti_random_fill *f, void *to, int64_t first, int64_t n);

void dti_random_portable(const dti_random_fill *f, void *to, int64_t first, int64_t n);
#ifdef DT_HAVE_X86_KERNELS
void dti_random_avx2(const dti_random_fill *f, void *to, int64_t first, int64_t n);
void dti_random_avx512(const dti_random_fill *f, void *to, int64_t first, int64_t n);
#endif

#endif
