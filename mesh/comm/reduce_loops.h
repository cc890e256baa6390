/* SPDX-License-Identifier: Apache-2.0
 *
 * The innermost loops of reductions, one table per instruction set. For f32, f64, i32 and i64. */
#ifndef DTI_REDUCE_LOOPS_H
#define DTI_REDUCE_LOOPS_H

#include "base/error.h"

typedef struct dti_reduce_loops {
    void (*into)(void *acc, const void *x, int64_t n, dt_dtype t, dt_reduce op);
    void (*pair)(void *sum, const void *x, const void *y, int64_t n, dt_dtype t, dt_reduce op);
    void (*divide)(void *acc, int64_t n, dt_dtype t, int divisor);
} dti_reduce_loops;

extern const dti_reduce_loops dti_reduce_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const dti_reduce_loops dti_reduce_avx2;
#endif

#endif
