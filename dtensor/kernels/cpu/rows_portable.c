/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 128
#define DT_ROWS dti_rows_portable
#include "dtensor/kernels/cpu/rows_all.inc.c"
