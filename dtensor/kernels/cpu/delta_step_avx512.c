/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD  512
#define DT_DELTA dti_delta_avx512
#include "dtensor/kernels/cpu/delta_step.inc.c"
