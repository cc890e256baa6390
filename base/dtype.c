/* SPDX-License-Identifier: Apache-2.0 */
#include "base/dtype.h"

static const struct {
    const char *name;
    size_t bytes;
    bool is_float;
} dtypes[DT_N_DTYPES] = {
    [DT_F32] = { "f32", 4, true }, [DT_BF16] = { "bf16", 2, true }, [DT_F16] = { "f16", 2, true },
    [DT_F64] = { "f64", 8, true }, [DT_I32] = { "i32", 4, false },  [DT_I64] = { "i64", 8, false },
    [DT_U8] = { "u8", 1, false },
};

static bool known(dt_dtype t)
{
    return (unsigned)t < DT_N_DTYPES;
}

size_t dt_dtype_size(dt_dtype t)
{
    return known(t) ? dtypes[t].bytes : 0;
}

const char *dt_dtype_name(dt_dtype t)
{
    return known(t) ? dtypes[t].name : "?";
}

bool dt_dtype_is_float(dt_dtype t)
{
    return known(t) && dtypes[t].is_float;
}

float dti_f16_to_f32(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t exponent = (h >> 10) & 0x1fu;
    const uint32_t mantissa = h & 0x3ffu;

    if (exponent == 0) { /* zero and subnormals: mantissa * 2^-24 is exact in f32 */
        const float value = (float)mantissa * 0x1p-24f;
        return dti_float_of_bits(dti_bits_of_float(value) | sign);
    }
    if (exponent == 31) return dti_float_of_bits(sign | 0x7f800000u | mantissa << 13);
    return dti_float_of_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t dti_f32_to_f16(float f)
{
    const uint32_t u = dti_bits_of_float(f);
    const uint16_t sign = (uint16_t)((u >> 16) & 0x8000u);
    const uint32_t a = u & 0x7fffffffu;

    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);  /* NaN */
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* rounds to infinity */
    if (a < 0x38800000u) { /* subnormal: adding 0.5 rounds to a multiple of 2^-24 */
        const float rounded = dti_float_of_bits(a) + 0.5f;
        return (uint16_t)(sign | (dti_bits_of_float(rounded) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a + 0xfffu + ((a >> 13) & 1u) - 0x38000000u) >> 13));
}

float dti_load_f32(const void *data, dt_dtype dtype, int64_t i)
{
    switch (dtype) {
    case DT_F32:
        return ((const float *)data)[i];
    case DT_BF16:
        return dti_bf16_to_f32(((const uint16_t *)data)[i]);
    case DT_F16:
        return dti_f16_to_f32(((const uint16_t *)data)[i]);
    case DT_F64:
        return (float)((const double *)data)[i];
    default:
        return 0.0f;
    }
}

void dti_store_f32(void *data, dt_dtype dtype, int64_t i, float value)
{
    switch (dtype) {
    case DT_F32:
        ((float *)data)[i] = value;
        break;
    case DT_BF16:
        ((uint16_t *)data)[i] = dti_f32_to_bf16(value);
        break;
    case DT_F16:
        ((uint16_t *)data)[i] = dti_f32_to_f16(value);
        break;
    case DT_F64:
        ((double *)data)[i] = (double)value;
        break;
    default:
        break;
    }
}

/* The nearest f32 on the side of zero, odd if it is not exact: rounded again, to 22 bits or fewer,
 * it becomes what `d` does. */
static float odd_f32(double d)
{
    const float f = (float)d;
    uint32_t bits;

    if (!((double)f < d || (double)f > d)) return f; /* exact, or NaN */
    bits = dti_bits_of_float(f);
    if (f < 0 ? (double)f < d : (double)f > d) bits--;
    return dti_float_of_bits(bits | 1u);
}

void dti_convert(void *to, dt_dtype to_dtype, const void *from, dt_dtype from_dtype, int64_t n)
{
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)n * dt_dtype_size(to_dtype));
        return;
    }
    if (to_dtype == DT_F32 && from_dtype == DT_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] = dti_bf16_to_f32(((const uint16_t *)from)[i]);
        return;
    }
    if (to_dtype == DT_BF16 && from_dtype == DT_F32) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *)to)[i] = dti_f32_to_bf16(((const float *)from)[i]);
        return;
    }
    if (from_dtype == DT_F64 && to_dtype != DT_F32) { /* a half float, rounded once */
        for (int64_t i = 0; i < n; i++)
            dti_store_f32(to, to_dtype, i, odd_f32(((const double *)from)[i]));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        dti_store_f32(to, to_dtype, i, dti_load_f32(from, from_dtype, i));
}
