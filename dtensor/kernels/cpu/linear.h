/* SPDX-License-Identifier: Apache-2.0
 *
 * What the forms of linear share: y[m, o] = sum_i x[m, i] w[o, i] + bias[o]. */
#ifndef DTI_LINEAR_H
#define DTI_LINEAR_H

#include "dtensor/kernels/cpu/cpu_internal.h"

typedef struct dti_linear {
    dti_cpu *cpu;
    const dt_local *x, *w, *bias, *y; /* bias may be NULL */
    int64_t n_rows, n_in, n_out;      /* all > 0 in the forms below */
    bool x_turned, w_turned;          /* x lies as [I, M], w as [I, O] */
} dti_linear;

enum { DTI_LIBRARY_ROWS = 32 }; /* at least */

/* By the form that fits; extents may be 0. Dtypes were checked by dti_linear_check(). */
dt_status dti_linear_run(const dti_linear *l) DT_MUST_USE;
dt_status dti_linear_check(const dti_linear *l, const char *op) DT_MUST_USE;

/* Stores sums [n_rows, n] (rows `stride` apart) as y[row .. , o .. o + n - 1]: adds the bias in
 * f32, rounds once. */
void dti_linear_store(const dti_linear *l, const float *sums, int64_t stride, int64_t row,
                      int64_t n_rows, int64_t o, int64_t n);

dt_status dti_linear_dots(const dti_linear *l) DT_MUST_USE; /* operands that do not lie turned */
dt_status dti_linear_panels(const dti_linear *l, const dti_panel_ops *ops) DT_MUST_USE;
dt_status dti_linear_library(const dti_linear *l) DT_MUST_USE; /* w lies turned */

#endif
