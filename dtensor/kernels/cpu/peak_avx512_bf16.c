/* SPDX-License-Identifier: Apache-2.0 */
#define DT_SIMD 512
#define PEAK    dti_peak_avx512_bf16
#define MULTIPLY_ADD(sum, x) \
    (vf) _mm512_dpbf16_ps((__m512)(sum), (__m512bh)(x), (__m512bh)(x)) /* of pairs */
enum { OPERATIONS = 4 };
#include "dtensor/kernels/cpu/peak_all.inc.c"
