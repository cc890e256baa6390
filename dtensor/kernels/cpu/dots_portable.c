/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 128
#define R_MAX   2
#define DT_DOTS dti_dots_portable
#include "dtensor/kernels/cpu/dots_all.inc.c"
