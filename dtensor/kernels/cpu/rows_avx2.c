/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 256
#define DT_ROWS dti_rows_avx2
#include "dtensor/kernels/cpu/rows_all.inc.c"
