/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing every element of a tensor's piece as a function of its global index. */
#ifndef DTI_FILL_H
#define DTI_FILL_H

#include "dtensor/tensor_internal.h"

/* Writes the elements with row-major global index first .. first + n - 1 to `to`. Any thread. */
typedef void (*dti_fill_fn)(const void *arg, void *to, int64_t first, int64_t n);

/* Calls fn for all runs of x's piece, on the rank's workers. */
dt_status dti_fill_runs(dt_tensor *x, dti_fill_fn fn, const void *arg) DT_MUST_USE;

/* DT_ERR_ARG if the integer dtype cannot hold `value` exactly; floats hold any. */
dt_status dti_fill_check(dt_dtype dtype, double value, const char *what) DT_MUST_USE;

#endif
