/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD  512
#define DT_STEPS dti_steps_avx512
#include "dtensor/kernels/cpu/steps_all.inc.c"
