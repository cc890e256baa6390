/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs of random values on the CPU. */
#ifndef DTI_CPU_RANDOM_H
#define DTI_CPU_RANDOM_H

#include "dtensor/kernels/random_fill.h"

/* Writes elements first .. first + n - 1 of the tensor that f describes to to[0 .. n - 1]. All
 * instruction sets write the same bits. */
typedef void (*dti_random_fn)(const dti_random_fill *f, void *to, int64_t first, int64_t n);

void dti_random_portable(const dti_random_fill *f, void *to, int64_t first, int64_t n);
#ifdef DT_HAVE_X86_KERNELS
void dti_random_avx2(const dti_random_fill *f, void *to, int64_t first, int64_t n);
void dti_random_avx512(const dti_random_fill *f, void *to, int64_t first, int64_t n);
#endif

#endif
