/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 128
#define PEAK    dti_peak_portable
#include "dtensor/kernels/cpu/peak_all.inc.c"
