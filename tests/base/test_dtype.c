/* SPDX-License-Identifier: Apache-2.0
 *
 * Conversions against arithmetic that is independent of theirs: a 16-bit float is decoded from its
 * fields with ldexp, and rounding is found by search among all 16-bit values. */
#include "tests/support/dt_test.h"

#include "base/dtype.h"

#include <math.h>
#include <string.h>

/* A binary format of 16 bits: sign, exponent, fraction. */
typedef struct format {
    int exponent_bits, fraction_bits;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
} format;

static float widen_bf16(uint16_t h)
{
    return dti_bf16_to_f32(h);
}

static uint16_t narrow_bf16(float f)
{
    return dti_f32_to_bf16(f);
}

static const format f16 = { 5, 10, dti_f16_to_f32, dti_f32_to_f16 };
static const format bf16 = { 8, 7, widen_bf16, narrow_bf16 };

static int top_exponent(const format *f)
{
    return (1 << f->exponent_bits) - 1;
}

/* The value of a pattern, by the definition of the format. NaN patterns are not asked for. */
static double value_of(const format *f, uint32_t pattern)
{
    const int bias = (1 << (f->exponent_bits - 1)) - 1;
    const int exponent = (int)(pattern >> f->fraction_bits) & top_exponent(f);
    const int fraction = (int)pattern & ((1 << f->fraction_bits) - 1);
    const double sign = pattern & 0x8000u ? -1.0 : 1.0;

    if (exponent == top_exponent(f)) return sign * INFINITY;
    if (exponent == 0) return sign * ldexp(fraction, 1 - bias - f->fraction_bits);
    return sign * ldexp(fraction + (1 << f->fraction_bits), exponent - bias - f->fraction_bits);
}

static bool is_nan(const format *f, uint32_t pattern)
{
    const uint32_t infinity = (uint32_t)top_exponent(f) << f->fraction_bits;

    return (pattern & 0x7fffu) > infinity;
}

static int wrong_widenings(const format *f)
{
    int wrong = 0;

    for (uint32_t p = 0; p < 0x10000; p++) {
        const float x = f->widen((uint16_t)p);
        if (is_nan(f, p))
            wrong += !isnan(x);
        else
            wrong += (double)x != value_of(f, p) || !signbit(x) != !(p & 0x8000u);
    }
    return wrong;
}

DT_TEST(dtype, every_f16_and_bf16_pattern_widens_to_its_value)
{
    DT_ASSERT_EQ_INT(wrong_widenings(&f16), 0);
    DT_ASSERT_EQ_INT(wrong_widenings(&bf16), 0);
}

DT_TEST(dtype, every_f16_and_bf16_pattern_comes_back_unchanged)
{
    const format *const both[] = { &f16, &bf16 };

    for (size_t k = 0; k < DT_COUNT(both); k++) {
        int wrong = 0;
        for (uint32_t p = 0; p < 0x10000; p++) {
            const uint16_t back = both[k]->narrow(both[k]->widen((uint16_t)p));
            wrong += is_nan(both[k], p) ? !is_nan(both[k], back) : back != p;
        }
        DT_ASSERT_EQ_INT(wrong, 0);
    }
}

/* Between two neighbours lo and hi of the format: the middle goes to the even pattern, floats next
 * to the middle to the nearer one. Beyond the largest number hi is infinity, whose place on the
 * number line is where the next number would be. */
static int wrong_roundings(const format *f)
{
    const uint32_t infinity = (uint32_t)top_exponent(f) << f->fraction_bits;
    int wrong = 0;

    for (uint32_t lo = 0; lo < infinity; lo++) {
        const double a = value_of(f, lo);
        const double b = lo + 1 < infinity ? value_of(f, lo + 1) : 2 * a - value_of(f, lo - 1);
        const float middle = (float)((a + b) / 2); /* exact: one bit more than the format has */
        const uint32_t even = lo & 1u ? lo + 1 : lo;

        wrong += f->narrow(middle) != even;
        wrong += f->narrow(nextafterf(middle, 0.0f)) != lo;
        wrong += f->narrow(nextafterf(middle, INFINITY)) != lo + 1;
        wrong += f->narrow(-middle) != (even | 0x8000u);
        wrong += f->narrow(-nextafterf(middle, INFINITY)) != ((lo + 1) | 0x8000u);
    }
    return wrong;
}

DT_TEST(dtype, floats_round_to_nearest_with_ties_to_even)
{
    DT_ASSERT_EQ_INT(wrong_roundings(&f16), 0);
    DT_ASSERT_EQ_INT(wrong_roundings(&bf16), 0);
}

DT_TEST(dtype, extremes_become_infinity_zero_and_nan)
{
    DT_ASSERT_EQ_INT(dti_f32_to_f16(3.4e38f), 0x7c00);
    DT_ASSERT_EQ_INT(dti_f32_to_f16(-INFINITY), 0xfc00);
    DT_ASSERT_EQ_INT(dti_f32_to_f16(-1e-30f), 0x8000);
    DT_ASSERT_EQ_INT(dti_f32_to_bf16(INFINITY), 0x7f80);
    for (uint32_t payload = 1; payload < 0x800000u; payload = payload * 3 + 1) {
        const float nan = dti_float_of_bits(0xff800000u | payload);
        DT_ASSERT((dti_f32_to_f16(nan) & 0xfc00u) == 0xfc00u);
        DT_ASSERT(isnan(dti_f16_to_f32(dti_f32_to_f16(nan))));
        DT_ASSERT(isnan(dti_bf16_to_f32(dti_f32_to_bf16(nan))));
    }
}

DT_TEST(dtype, convert_agrees_with_load_and_store_for_every_pair)
{
    static const dt_dtype floats[] = { DT_F32, DT_BF16, DT_F16, DT_F64 };
    enum { N = 37 };

    for (size_t i = 0; i < DT_COUNT(floats); i++) {
        for (size_t j = 0; j < DT_COUNT(floats); j++) {
            double from[N], got[N], want[N];
            for (int k = 0; k < N; k++) dti_store_f32(from, floats[i], k, (float)(k - 18) * 0.37f);
            dti_convert(got, floats[j], from, floats[i], N);
            for (int k = 0; k < N; k++)
                dti_store_f32(want, floats[j], k, dti_load_f32(from, floats[i], k));
            DT_ASSERT(memcmp(got, want, N * dt_dtype_size(floats[j])) == 0);
        }
    }
}

/* A double goes to 16 bits in one rounding: what lies exactly between two goes to the even one, and
 * the least bit beside it decides, though an f32 does not hold it. */
DT_TEST(dtype, doubles_are_rounded_once)
{
    static const struct {
        double from;
        uint16_t bf16, f16;
    } rows[] = {
        { 1 + 0x1p-8, 0x3f80, 0x3c04 },           { 1 + 3 * 0x1p-8, 0x3f82, 0x3c0c },
        { 1 + 0x1p-8 + 0x1p-40, 0x3f81, 0x3c04 }, { 1 + 0x1p-8 - 0x1p-40, 0x3f80, 0x3c04 },
        { 1 + 0x1p-11, 0x3f80, 0x3c00 },          { 1 + 0x1p-11 + 0x1p-40, 0x3f80, 0x3c01 },
        { 1 + 3 * 0x1p-11, 0x3f80, 0x3c02 },      { 1 + 3 * 0x1p-11 - 0x1p-40, 0x3f80, 0x3c01 },
    };

    for (size_t i = 0; i < DT_COUNT(rows); i++)
        for (int negative = 0; negative < 2; negative++) {
            const double from = negative ? -rows[i].from : rows[i].from;
            const uint16_t sign = negative ? 0x8000u : 0;
            uint16_t to;
            dti_convert(&to, DT_BF16, &from, DT_F64, 1);
            DT_ASSERT_EQ_INT(to, rows[i].bf16 | sign);
            dti_convert(&to, DT_F16, &from, DT_F64, 1);
            DT_ASSERT_EQ_INT(to, rows[i].f16 | sign);
        }
}

DT_TEST(dtype, sizes_and_names_cover_every_dtype)
{
    for (int t = 0; t < DT_N_DTYPES; t++) {
        DT_ASSERT(dt_dtype_size((dt_dtype)t) > 0);
        DT_ASSERT(strcmp(dt_dtype_name((dt_dtype)t), "?") != 0);
    }
    DT_ASSERT_EQ_INT(dt_dtype_size((dt_dtype)99), 0);
    DT_ASSERT_EQ_STR(dt_dtype_name(DT_N_DTYPES), "?");
    DT_ASSERT(dt_dtype_is_float(DT_BF16) && !dt_dtype_is_float(DT_I64));
    DT_ASSERT(!dt_dtype_is_float((dt_dtype)-1));
}
