/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD   512
#define R_MAX     6
#define DT_SKINNY dti_skinny_avx512
#include "dtensor/kernels/cpu/skinny_all.inc.c"
