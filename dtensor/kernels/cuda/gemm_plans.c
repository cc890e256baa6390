/* SPDX-License-Identifier: Apache-2.0 */
#include "dtensor/kernels/cuda/gemm_plans.h"

int64_t dti_gemm_bucket(int64_t m)
{
    const int64_t step = m <= 16 ? 1 : m <= 64 ? 16 : m <= 512 ? 64 : 256;

    return (m + step - 1) / step * step;
}

int dti_gemm_alignment(const void *data, int64_t row_bytes)
{
    const uint64_t bits = (uint64_t)(uintptr_t)data | (uint64_t)row_bytes | 16u;

    return (int)(bits & (~bits + 1));
}
