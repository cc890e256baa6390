/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD      128
#define DT_ATTENTION dti_attention_portable
#define P_COLUMNS    2
#include "dtensor/kernels/cpu/attention_all.inc.c"
