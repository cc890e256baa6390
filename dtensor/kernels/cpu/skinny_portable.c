/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD   128
#define R_MAX     2
#define DT_SKINNY dti_skinny_portable
#include "dtensor/kernels/cpu/skinny_all.inc.c"
