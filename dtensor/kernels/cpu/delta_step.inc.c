/* SPDX-License-Identifier: Apache-2.0
 *
 * dti_delta_fn with the vectors of one instruction set; nothing is fused, so bits are the same.
 * Defined by the includer: DT_SIMD, and DT_DELTA, the name of the function. */
#include "dtensor/kernels/cpu/delta_step.h"
#include "dtensor/kernels/cpu/simd.inc.c"

enum { VECTORS = DTI_DELTA_COLUMNS / VW };

/* As many columns as there are together: sums stay in registers. */
static void step_whole(float *restrict state, int64_t stride, int64_t width,
                       dti_delta_token *restrict x)
{
    vf told[VECTORS] = { { 0 } }, sum[VECTORS] = { { 0 } };

    for (int64_t d = 0; d < width; d++) {
        float *row = state + d * stride;
        for (int i = 0; i < VECTORS; i++) {
            const vf faded = vf_load(row + i * VW) * x->decay;
            vf_store(row + i * VW, faded);
            told[i] += x->k[d] * faded;
        }
    }
    for (int i = 0; i < VECTORS; i++) told[i] = (vf_load(x->v + i * VW) - told[i]) * x->beta;
    for (int64_t d = 0; d < width; d++) {
        float *row = state + d * stride;
        for (int i = 0; i < VECTORS; i++) {
            const vf now = vf_load(row + i * VW) + x->k[d] * told[i];
            vf_store(row + i * VW, now);
            sum[i] += x->q[d] * now;
        }
    }
    for (int i = 0; i < VECTORS; i++) vf_store(x->v + i * VW, sum[i]);
}

static void step_some(float *restrict state, int64_t stride, int64_t n, int64_t width,
                      dti_delta_token *restrict x)
{
    float told[DTI_DELTA_COLUMNS] = { 0.0f }, sum[DTI_DELTA_COLUMNS] = { 0.0f };

    for (int64_t d = 0; d < width; d++) {
        float *row = state + d * stride;
        for (int64_t e = 0; e < n; e++) {
            row[e] *= x->decay;
            told[e] += x->k[d] * row[e];
        }
    }
    for (int64_t e = 0; e < n; e++) told[e] = (x->v[e] - told[e]) * x->beta;
    for (int64_t d = 0; d < width; d++) {
        float *row = state + d * stride;
        for (int64_t e = 0; e < n; e++) {
            row[e] += x->k[d] * told[e];
            sum[e] += x->q[d] * row[e];
        }
    }
    memcpy(x->v, sum, (size_t)n * sizeof *sum);
}

void DT_DELTA(float *state, int64_t stride, int64_t n, int64_t width, dti_delta_token *x)
{
    if (n == DTI_DELTA_COLUMNS)
        step_whole(state, stride, width, x);
    else
        step_some(state, stride, n, width, x);
}
