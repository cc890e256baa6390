/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of bf16 by the instruction for dot products of pairs (dots.h): x stays bf16, a lane is a
 * sum over pairs in f32 (the instruction takes subnormals for zero). */
#define DT_SIMD 512
#define R_MAX   6
#include "dtensor/kernels/cpu/dots.h"

#include "dtensor/kernels/cpu/simd.inc.c"

enum { O_MAX = 4, COLUMNS = 2 * VW };

#define T              uint16_t
#define P              uint16_t
#define V              __m512bh
#define LANES          COLUMNS
#define PARTS          1
#define UNPACKED(p, h) ((__m512bh)_mm512_loadu_si512(p))
#define FMA(v, u, sum) (vf) _mm512_dpbf16_ps((__m512)(sum), v, u)
#define FN(name)       name
#include "dtensor/kernels/cpu/dots.inc.c"

const dti_dots_ops dti_dots_bf16_avx512_bf16 = {
    .rows = R_MAX,
    .outputs = O_MAX,
    .columns = COLUMNS,
    .x_bytes = sizeof(uint16_t),
    .lane_bytes = sizeof(vf),
    .pack = pack,
    .multiply = multiply,
};
