/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD      512
#define DT_ATTENTION dti_attention_avx512
#define P_COLUMNS    4
#include "dtensor/kernels/cpu/attention_all.inc.c"
