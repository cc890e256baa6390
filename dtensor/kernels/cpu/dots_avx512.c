/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 512
#define R_MAX   6
#define DT_DOTS dti_dots_avx512
#include "dtensor/kernels/cpu/dots_all.inc.c"
