/* SPDX-License-Identifier: Apache-2.0
 *
 * Numbers that f16 and bf16 cannot hold: they are counted, infinite ones that were so before are
 * not. */
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "files/convert.h"
#include "tests/support/dt_test.h"

enum { N = 8 };

DT_TEST(convert, counts_what_f16_and_bf16_cannot_hold)
{
    const float from[N] = { 1, 65504, 65519, 65520, -FLT_MAX, INFINITY, -INFINITY, NAN };
    uint16_t halves[N], bf16[N];

    dti_convert_many(halves, DT_F16, from, DT_F32, N);
    DT_ASSERT_EQ_INT(dti_count_overflows(halves, DT_F16, from, DT_F32, N), 2);
    DT_ASSERT_EQ_INT(dti_count_overflows(halves, DT_F16, from, DT_F32, 3), 0);
    dti_convert_many(bf16, DT_BF16, from, DT_F32, N);
    DT_ASSERT_EQ_INT(dti_count_overflows(bf16, DT_BF16, from, DT_F32, N), 1);
    DT_ASSERT_EQ_INT(dti_count_overflows(bf16, DT_BF16, from, DT_F32, 4), 0);
    dti_convert_many(halves, DT_F16, bf16, DT_BF16, N);
    /* 65504, 65519 and 65520 are 65536 in bf16; -FLT_MAX is infinite there */
    DT_ASSERT_EQ_INT(dti_count_overflows(halves, DT_F16, bf16, DT_BF16, N), 3);
}
