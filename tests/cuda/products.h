/* SPDX-License-Identifier: Apache-2.0
 *
 * What tests of products share. */
#ifndef DT_TEST_PRODUCTS_H
#define DT_TEST_PRODUCTS_H

#include "tests/cuda/rows.h"

/* The values of x; the caller frees them with dti_free(). */
static inline double *cp_values(const dt_local *x)
{
    const int64_t n = kt_count(x);
    double *values;

    DT_ASSERT_OK(dti_alloc_array((size_t)n + 1, sizeof(double), (void **)&values));
    for (int64_t i = 0; i < n; i++) values[i] = kt_get(x, i);
    return values;
}

/* sum_i x[i] w[i] in float64, and *size the sum of magnitudes. */
static inline double cp_dot(const double *x, const double *w, int64_t n, double *size)
{
    double sum = 0, all = 0;

    for (int64_t i = 0; i < n; i++) {
        const double term = x[i] * w[i];
        sum += term;
        all += term < 0 ? -term : term;
    }
    *size = all;
    return sum;
}

#endif
