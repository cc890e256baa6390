/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD   512
#define R_MAX     3
#define O_MAX     4
#define DT_PACKED dti_packed_avx512
#include "dtensor/kernels/cpu/packed_all.inc.c"
