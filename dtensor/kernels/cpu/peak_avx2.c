/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 256
#define PEAK    dti_peak_avx2
#include "dtensor/kernels/cpu/peak_all.inc.c"
