/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD   128
#define DT_RANDOM dti_random_portable
#include "dtensor/kernels/cpu/random_all.inc.c"
