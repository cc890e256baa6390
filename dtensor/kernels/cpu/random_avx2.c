/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD   256
#define DT_RANDOM dti_random_avx2
#include "dtensor/kernels/cpu/random_all.inc.c"
