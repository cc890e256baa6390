/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD  128
#define DT_DELTA dti_delta_portable
#include "dtensor/kernels/cpu/delta_step.inc.c"
