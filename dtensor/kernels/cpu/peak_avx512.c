/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 512
#define PEAK    dti_peak_avx512
#include "dtensor/kernels/cpu/peak_all.inc.c"
