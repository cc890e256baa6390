/* SPDX-License-Identifier: Apache-2.0
 *
 * The inner step of the gated delta rule, one function per instruction set; all give the same
 * bits. */
#ifndef DTI_DELTA_STEP_H
#define DTI_DELTA_STEP_H

#include <stdint.h>

/* Columns of a head's values that are computed together: each has its own column of the state. */
enum { DTI_DELTA_COLUMNS = 32 };

/* One token of a value head: unit query and key [width], and some columns of its value, which
 * become those of its result. */
typedef struct dti_delta_token {
    const float *q, *k;
    float decay, beta, v[DTI_DELTA_COLUMNS];
} dti_delta_token;

/* Rows of the state, [width] of n columns `stride` apart, take in what the token's value has that
 * they do not tell of its key yet; its result is what they tell of its query then. Products and
 * sums round each by itself, sums are in the order of rows. */
typedef void (*dti_delta_fn)(float *state, int64_t stride, int64_t n, int64_t width,
                             dti_delta_token *x);

void dti_delta_portable(float *state, int64_t stride, int64_t n, int64_t width, dti_delta_token *x);
#ifdef DT_HAVE_X86_KERNELS
void dti_delta_avx2(float *state, int64_t stride, int64_t n, int64_t width, dti_delta_token *x);
void dti_delta_avx512(float *state, int64_t stride, int64_t n, int64_t width, dti_delta_token *x);
#endif

#endif
