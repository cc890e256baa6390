/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops over one row (or one flat run) of elements, one table per instruction set and dtype.
 * Kernels check, split the work over threads and call these. */
#ifndef DTI_ROWS_H
#define DTI_ROWS_H

#include <dtensor/base.h>

#include <stdbool.h>

#include "dtensor/kernels/formulas.h"

/* A row of gradients of gate and up. */
typedef struct dti_gated_row {
    const void *dy, *g, *u;
    void *dg, *du;
    int64_t n;
} dti_gated_row;

/* A row of gradients of a norm. dx, dw, db: or NULL; to dw and db is added. */
typedef struct dti_norm_row {
    const void *dy, *x, *w;
    void *dx;
    float *dw, *db;
    int64_t n;
    float eps, plus; /* w + plus multiplies: 0 or 1 */
    bool centred;    /* a layer norm */
} dti_norm_row;

/* What a cross entropy's gradient multiplies a softmax by, and takes off each element. */
typedef struct dti_softmax_slope {
    float lse; /* ln of the sum of all e^x */
    float of_softmax, of_each;
} dti_softmax_slope;

/* y may be x (or g, u, z); other overlaps are not allowed. n may be 0. "rounds" is to the table's
 * dtype. Formulas stand at the definitions in rows.inc.c, those of one
 * element in kernels/formulas.h. */
typedef struct dti_row_ops {
    void (*load)(float *y, const void *x, int64_t n);
    void (*store)(void *y, const float *x, int64_t n);
    void (*add)(void *y, const void *x, const void *z, int64_t n);
    void (*mul)(void *y, const void *x, const void *z, int64_t n);
#define F(name, formula, slope) void (*name)(void *y, const void *x, int64_t n);
    DTI_FORMULAS(F)
#undef F
    void (*sub)(void *y, const void *x, const void *z, int64_t n);
    void (*div)(void *y, const void *x, const void *z, int64_t n);
    void (*silu_mul)(void *y, const void *g, const void *u, int64_t n);
    void (*gelu_tanh_mul)(void *y, const void *g, const void *u, int64_t n);
    void (*soft_cap)(void *y, const void *x, int64_t n, float cap);
    void (*rms_norm)(void *y, const void *x, const void *w, int64_t n, float eps);
    void (*rms_norm_once)(void *y, const void *x, const void *w, int64_t n, float eps);
    void (*rms_norm_1p)(void *y, const void *x, const void *w, int64_t n, float eps);
    void (*layer_norm)(void *y, const void *x, const void *w, const void *b, int64_t n, float eps);
    /* x [2 half] -> y [2 half], table [2 half]: cos, then sin */
    void (*rope)(void *y, const void *x, const void *table, int64_t half);
    int64_t (*argmax)(const void *x, int64_t n); /* n >= 1 */
    int64_t (*above)(const void *x, int64_t n, float limit);
#define F(name, formula, slope) \
    void (*name##_backward)(void *dx, const void *dy, const void *x, int64_t n);
    DTI_CURVES(F)
#undef F
    void (*silu_mul_backward)(const dti_gated_row *r);
    void (*gelu_tanh_mul_backward)(const dti_gated_row *r);
    void (*soft_cap_backward)(void *dx, const void *dy, const void *y, int64_t n, float cap);
    void (*norm_backward)(const dti_norm_row *r);
    float (*exp_sum)(const void *x, int64_t n, float most);
    float (*total)(const void *x, int64_t n);
    void (*softmax_slope)(void *dx, const void *x, int64_t n, const dti_softmax_slope *s);
} dti_row_ops;

/* Indexed by DT_F32, DT_BF16, DT_F16. */
enum { DTI_N_ROW_DTYPES = 3 };
extern const dti_row_ops dti_rows_portable[DTI_N_ROW_DTYPES];
#ifdef DT_HAVE_X86_KERNELS
extern const dti_row_ops dti_rows_avx2[DTI_N_ROW_DTYPES];
extern const dti_row_ops dti_rows_avx512[DTI_N_ROW_DTYPES];
#endif

#endif
