/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD  128
#define DT_STEPS dti_steps_portable
#include "dtensor/kernels/cpu/steps_all.inc.c"
