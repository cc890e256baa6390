/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD   256
#define R_MAX     2
#define O_MAX     2
#define DT_PACKED dti_packed_avx2
#include "dtensor/kernels/cpu/packed_all.inc.c"
