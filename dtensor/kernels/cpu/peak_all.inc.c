/* SPDX-License-Identifier: Apache-2.0
 *
 * The peak of one instruction set. Before including, define DT_SIMD, PEAK (the function's name),
 * and where it is not that of f32 what a multiply-add is: MULTIPLY_ADD(sum, x), OPERATIONS of a
 * lane. */
#include "dtensor/kernels/cpu/peak.h"

#include "dtensor/kernels/cpu/simd.inc.c"

#ifndef MULTIPLY_ADD
#define MULTIPLY_ADD(sum, x) vf_fma(sum, x, x)
enum { OPERATIONS = 2 };
#endif

/* Sums that do not wait for each other: enough to hide the latency of two multiply-adds per cycle,
 * and no more than registers hold. Two small loops, because compilers unroll those. */
enum { GROUPS = DT_SIMD == 512 ? 3 : 2, SUMS = DT_SIMD == 512 ? 8 : 6 };

double PEAK(int64_t rounds)
{
    volatile float seed = 0x1.126112p-30f, sink; /* as two numbers of bf16 they are small, too */
    const vf x = vf_set(seed);
    vf sum[GROUPS][SUMS], total = vf_set(0.0f);

    for (int g = 0; g < GROUPS; g++)
        for (int a = 0; a < SUMS; a++) sum[g][a] = vf_set(seed * (float)(g + a));
    for (int64_t i = 0; i < rounds; i++)
        for (int g = 0; g < GROUPS; g++)
            for (int a = 0; a < SUMS; a++) sum[g][a] = MULTIPLY_ADD(sum[g][a], x);
    for (int g = 0; g < GROUPS; g++)
        for (int a = 0; a < SUMS; a++) total += sum[g][a];
    sink = vf_sum(total);
    (void)sink;
    return (double)rounds * GROUPS * SUMS * VW * OPERATIONS;
}
