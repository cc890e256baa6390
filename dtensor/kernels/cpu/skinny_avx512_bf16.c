/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of few rows of bf16 by the instruction for dot products of pairs: x stays bf16, sums are
 * f32 (the instruction takes subnormals for zero). The shape is that of skinny.inc.c: one sum of 16
 * lanes per output, so that its value does not depend on M. */
#include "dtensor/kernels/cpu/skinny.h"

#include <immintrin.h>
#include <string.h>

enum { CHUNK = 32, R_MAX = 6, O_MAX = 4, SEVERAL_FROM = 5 };

static inline int64_t packed_stride(int64_t n_in)
{
    return (n_in + CHUNK - 1) / CHUNK * CHUNK + CHUNK;
}

static size_t packed_bytes(int64_t n_rows, int64_t n_in)
{
    return (size_t)(n_rows * packed_stride(n_in)) * sizeof(uint16_t);
}

/* At most `left` elements, zeros beyond. */
static inline __m512bh load(const uint16_t *p, int64_t left)
{
    const __mmask32 mask = left >= CHUNK ? ~(__mmask32)0 : ((__mmask32)1 << left) - 1;

    return (__m512bh)_mm512_maskz_loadu_epi16(mask, p);
}

static inline __attribute__((always_inline)) void
block(const dti_skinny_args *a, int64_t m, int64_t o, const int R, const int O, const bool ahead)
{
    const int64_t n_in = a->n_in, x_stride = packed_stride(n_in);
    const uint16_t *x = (const uint16_t *)a->x + m * x_stride;
    const uint16_t *w = (const uint16_t *)a->w + o * n_in;
    __m512 sum[R_MAX][O_MAX];

    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++) sum[r][j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n_in; i += CHUNK) {
        __m512bh v[O_MAX];
        for (int j = 0; j < O; j++) v[j] = load(w + j * n_in + i, n_in - i);
        if (ahead) _mm_prefetch((const char *)(w + n_in + i), _MM_HINT_T1);
        for (int r = 0; r < R; r++) {
            const __m512bh u = (__m512bh)_mm512_load_si512(x + r * x_stride + i);
            for (int j = 0; j < O; j++) sum[r][j] = _mm512_dpbf16_ps(sum[r][j], v[j], u);
        }
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < O; j++)
            a->y[(m + r) * a->y_stride + o + j] = _mm512_reduce_add_ps(sum[r][j]);
}

/* All rows of x against one row of w. */
static void one(const dti_skinny_args *a, int64_t o)
{
    int64_t m = 0;

    for (; m + 4 <= a->n_rows; m += 4) block(a, m, o, 4, 1, true);
    for (; m + 2 <= a->n_rows; m += 2) block(a, m, o, 2, 1, true);
    if (m < a->n_rows) block(a, m, o, 1, 1, true);
}

/* All rows of x against O_MAX rows of w. */
static void several(const dti_skinny_args *a, int64_t o)
{
    int64_t m = 0;

    for (; m + R_MAX <= a->n_rows; m += R_MAX) block(a, m, o, R_MAX, O_MAX, false);
    for (; m + 2 <= a->n_rows; m += 2) block(a, m, o, 2, O_MAX, false);
    if (m < a->n_rows) block(a, m, o, 1, O_MAX, false);
}

static void dot(const dti_skinny_args *a, int64_t begin, int64_t end)
{
    int64_t o = begin;

    if (a->n_rows >= SEVERAL_FROM)
        for (; o + O_MAX <= end; o += O_MAX) several(a, o);
    for (; o < end; o++) one(a, o);
}

static void pack(void *to_, const void *x, int64_t n_rows, int64_t n_in)
{
    for (int64_t m = 0; m < n_rows; m++) {
        uint16_t *to = (uint16_t *)to_ + m * packed_stride(n_in);
        memcpy(to, (const uint16_t *)x + m * n_in, (size_t)n_in * sizeof *to);
        memset(to + n_in, 0, (size_t)(packed_stride(n_in) - n_in) * sizeof *to);
    }
}

const dti_skinny_ops dti_skinny_bf16_avx512_bf16 = { packed_bytes, pack, dot };
