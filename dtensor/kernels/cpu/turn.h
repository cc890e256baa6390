/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the transpose of a matrix, for products of operands that lie transposed. */
#ifndef DTI_TURN_H
#define DTI_TURN_H

#include "dtensor/kernels/cpu/cpu_internal.h"

enum { DTI_TURN_ROWS = 64 }; /* that are turned at a time */

/* from [k, stride] -> to [n, k]: rows of `to` are columns of `from`, as they are or made f32. */
typedef struct dti_turn_job {
    const dti_cpu *cpu;
    void *to;
    const void *from;
    dt_dtype from_dtype, dtype; /* dtype: from_dtype, or f32 */
    int64_t stride, k;
} dti_turn_job;

/* Columns column .. column + n - 1 of `from`. */
void dti_turn(const dti_turn_job *j, int64_t column, int64_t n);

#ifdef DT_HAVE_X86_KERNELS
/* 16 columns of 32 rows of 16-bit words, `stride` apart -> 16 rows of 32, `k` apart. */
void dti_turn_square_avx512(uint16_t *to, int64_t k, const uint16_t *from, int64_t stride);
#endif

#endif
