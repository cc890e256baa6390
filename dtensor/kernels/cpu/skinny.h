/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows: y[m, o] = sum_i x[m, i] w[o, i] for M < 32. They are bound by the reading
 * of w, so w is read once, as a linear stream per thread, whatever M is. */
#ifndef DTI_SKINNY_H
#define DTI_SKINNY_H

#include <dtensor/base.h>

enum { DTI_SKINNY_ROWS = 32 }; /* fewer than this many */

typedef struct dti_skinny_args {
    const void *x; /* as dti_skinny_ops.pack made it */
    const void *w; /* [O, I] row-major */
    float *y;      /* [M, y_stride] */
    int64_t n_rows, n_in;
    int64_t y_stride;
} dti_skinny_args;

/* One weight dtype on one instruction set. An element of y depends on its rows of x and w alone,
 * not on begin and end; whether it depends on M stands at the kernels. */
typedef struct dti_skinny_ops {
    size_t (*packed_bytes)(int64_t n_rows, int64_t n_in);
    /* x [M, I] of the weight's dtype -> the kernel's own form, 64-byte aligned */
    void (*pack)(void *to, const void *x, int64_t n_rows, int64_t n_in);
    void (*dot)(const dti_skinny_args *a, int64_t begin, int64_t end); /* y[:, begin .. end - 1] */
} dti_skinny_ops;

enum { DTI_N_SKINNY_DTYPES = 3 }; /* DT_F32, DT_BF16, DT_F16 */
extern const dti_skinny_ops dti_skinny_portable[DTI_N_SKINNY_DTYPES];
#ifdef DT_HAVE_X86_KERNELS
extern const dti_skinny_ops dti_skinny_avx2[DTI_N_SKINNY_DTYPES];
extern const dti_skinny_ops dti_skinny_avx512[DTI_N_SKINNY_DTYPES];
extern const dti_skinny_ops dti_skinny_bf16_avx512_bf16; /* weights of bf16 only */
extern const dti_skinny_ops dti_skinny_bf16_amx;
#endif

#endif
