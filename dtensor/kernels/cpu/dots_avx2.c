/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 256
#define R_MAX   3
#define DT_DOTS dti_dots_avx2
#include "dtensor/kernels/cpu/dots_all.inc.c"
