/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD      512
#define DT_ATTENTION dti_attention_avx512_bf16
#define P_COLUMNS    4
#define DT_DOTS
#include "dtensor/kernels/cpu/attention_all.inc.c"
