/* SPDX-License-Identifier: Apache-2.0 */
#include "files/convert.h"

#include <math.h>
#include <string.h>

#define LOOPS dti_convert_portable
#include "files/convert.inc.c"

/* Floats on the way between two 16-bit dtypes: small enough for the first cache. */
enum { BETWEEN = 1024 };

static const dti_convert_loops *loops_of_machine(void)
{
#ifdef DT_HAVE_X86_KERNELS
    if (__builtin_cpu_supports("avx2")) return &dti_convert_avx2;
#endif
    return &dti_convert_portable;
}

static void to_f32(const dti_convert_loops *loops, float *restrict to, const void *restrict from,
                   dt_dtype from_dtype, int64_t n)
{
    if (from_dtype == DT_BF16)
        loops->f32_from_bf16(to, from, n);
    else
        loops->f32_from_f16(to, from, n);
}

static void from_f32(const dti_convert_loops *loops, void *restrict to, dt_dtype to_dtype,
                     const float *restrict from, int64_t n)
{
    if (to_dtype == DT_BF16)
        loops->bf16_from_f32(to, from, n);
    else
        loops->f16_from_f32(to, from, n);
}

void dti_convert_many(void *restrict to, dt_dtype to_dtype, const void *restrict from,
                      dt_dtype from_dtype, int64_t n)
{
    const dti_convert_loops *loops = loops_of_machine();
    float between[BETWEEN];

    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)n * dt_dtype_size(to_dtype));
    } else if (to_dtype == DT_F64 || from_dtype == DT_F64) {
        dti_convert(to, to_dtype, from, from_dtype, n);
    } else if (to_dtype == DT_F32) {
        to_f32(loops, to, from, from_dtype, n);
    } else if (from_dtype == DT_F32) {
        from_f32(loops, to, to_dtype, from, n);
    } else {
        for (int64_t i = 0; i < n; i += BETWEEN) {
            const int64_t m = n - i < BETWEEN ? n - i : BETWEEN;
            to_f32(loops, between, (const uint16_t *)from + i, from_dtype, m);
            from_f32(loops, (uint16_t *)to + i, to_dtype, between, m);
        }
    }
}

int64_t dti_count_overflows(const void *halves, dt_dtype dtype, const void *from,
                            dt_dtype from_dtype, int64_t n)
{
    const unsigned infinity = dtype == DT_F16 ? 0x7c00u : 0x7f80u;
    const uint16_t *h = halves;
    int64_t lost = 0;

    for (int64_t i = 0; i < n; i++)
        if ((h[i] & 0x7fffu) == infinity && !isinf(dti_load_f32(from, from_dtype, i))) lost++;
    return lost;
}

const char *dti_largest_text(dt_dtype dtype)
{
    return dtype == DT_F16 ? "65504" : "3.3895e38";
}
