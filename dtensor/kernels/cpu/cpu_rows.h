/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops over one row (or one flat run) of elements, one table per instruction set and dtype.
 * Kernels check, split the work over threads and call these. */
#ifndef DTI_ROWS_H
#define DTI_ROWS_H

#include <dtensor/base.h>

#include "dtensor/kernels/formulas.h"

/* y may be x (or g, u, z); other overlaps are not allowed. n may be 0. "rounds" is to the table's
 * dtype. Formulas stand at the definitions in rows.inc.c, those of one
 * element in kernels/formulas.h. */
typedef struct dti_row_ops {
    void (*load)(float *y, const void *x, int64_t n);
    void (*store)(void *y, const float *x, int64_t n);
    void (*add)(void *y, const void *x, const void *z, int64_t n);
    void (*mul)(void *y, const void *x, const void *z, int64_t n);
#define F(name, formula) void (*name)(void *y, const void *x, int64_t n);
    DTI_FORMULAS(F)
#undef F
    void (*sub)(void *y, const void *x, const void *z, int64_t n);
    void (*div)(void *y, const void *x, const void *z, int64_t n);
    void (*silu_mul)(void *y, const void *g, const void *u, int64_t n);
    void (*gelu_tanh_mul)(void *y, const void *g, const void *u, int64_t n);
    void (*soft_cap)(void *y, const void *x, int64_t n, float cap);
    void (*rms_norm)(void *y, const void *x, const void *w, int64_t n, float eps);
    void (*rms_norm_1p)(void *y, const void *x, const void *w, int64_t n, float eps);
    void (*layer_norm)(void *y, const void *x, const void *w, const void *b, int64_t n, float eps);
    /* x [2 half] -> y [2 half], table [2 half]: cos, then sin */
    void (*rope)(void *y, const void *x, const void *table, int64_t half);
    int64_t (*argmax)(const void *x, int64_t n); /* n >= 1 */
    int64_t (*above)(const void *x, int64_t n, float limit);
} dti_row_ops;

/* Indexed by DT_F32, DT_BF16, DT_F16. */
enum { DTI_N_ROW_DTYPES = 3 };
extern const dti_row_ops dti_rows_portable[DTI_N_ROW_DTYPES];
#ifdef DT_HAVE_X86_KERNELS
extern const dti_row_ops dti_rows_avx2[DTI_N_ROW_DTYPES];
extern const dti_row_ops dti_rows_avx512[DTI_N_ROW_DTYPES];
#endif

#endif
