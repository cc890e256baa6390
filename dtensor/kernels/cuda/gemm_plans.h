/* SPDX-License-Identifier: Apache-2.0
 *
 * What plans of large products (plan_table.h) depend on. */
#ifndef DTI_GEMM_PLANS_H
#define DTI_GEMM_PLANS_H

#include <stdint.h>

/* What a plan depends on. Zero it before filling it in: keys are compared byte by byte. */
typedef struct dti_gemm_key {
    int64_t m, n, k;
    int32_t dtype, out_dtype; /* dt_dtype */
    int32_t bias;             /* 1: the plan adds it */
    /* Bytes that pointer and rows are multiples of: dti_gemm_alignment(). */
    int32_t x_align, w_align, y_align, bias_align;
    int32_t exact;              /* 1: m is the number of rows; 0: dti_gemm_bucket() of it */
    int32_t x_turned, w_turned; /* 1: x lies as [k, m], w as [k, n] */
} dti_gemm_key;

/* The number of rows that a plan is made for: m up to 16, then multiples of 16 up to 64, of 64 up
 * to 512, of 256 beyond. So prompts of any length need few plans. */
int64_t dti_gemm_bucket(int64_t m);

/* 16, 8, 4, 2 or 1: what a pointer and a distance between rows are multiples of. */
int dti_gemm_alignment(const void *data, int64_t row_bytes);

#endif
