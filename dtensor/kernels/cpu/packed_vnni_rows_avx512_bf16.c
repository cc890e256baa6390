/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of some rows: lanes are outputs, which meet one number of x. Codes are turned for that
 * once, for all tiles of rows, with their scales. */
#include "dtensor/kernels/cpu/packed_vnni.h"
#include "dtensor/kernels/cpu/transpose_avx512.h"

#include <string.h>

/* Rows and vectors of outputs, whose sums fill the registers. */
enum { R_MAX = 12, V = 2 };

/* What a tile keeps: words of codes, those of all outputs together, then scales and zeros. */
typedef struct kept {
    uint8_t *codes;        /* [words, V * 64] */
    float *scales, *zeros; /* [groups, V * 16] */
} kept;

static kept kept_of(const dti_packed_tile *t)
{
    const int64_t groups = t->depth / t->form.group;
    uint8_t *codes = t->keep;
    float *scales = (float *)(void *)(codes + t->depth * t->form.bits / 8 * V * 16);

    return (kept){ codes, scales, scales + groups * V * 16 };
}

/* Up to 64 bytes of codes of 16 outputs. */
static void turn_codes(const dti_packed_tile *t, uint8_t *to, int64_t from, int64_t left, int v)
{
    const __mmask64 there = left < 64 ? ((uint64_t)1 << left) - 1 : ~(uint64_t)0;
    __m512i w[16];

    for (int j = 0; j < 16; j++) {
        const int64_t o = v * 16 + j < t->n_outputs ? v * 16 + j : t->n_outputs - 1;
        const uint8_t *at = t->codes + o * t->codes_stride + from;
        w[j] = _mm512_maskz_loadu_epi8(there, at);
    }
    dti_transpose_16(w);
    for (int64_t i = 0; i < 16 && i * 4 < left; i++)
        _mm512_store_si512(to + from * V * 16 + (i * V + v) * 64, w[i]);
}

/* Words of groups of 16 outputs. */
static void turn_words(const dti_packed_tile *t, const float *from, float *to, int v)
{
    const int64_t groups = t->depth / t->form.group;

    for (int64_t g = 0; g < groups; g += 16) {
        const int n = groups - g < 16 ? (int)(groups - g) : 16;
        const __mmask16 there = (__mmask16)((1u << n) - 1);
        __m512i w[16];
        for (int j = 0; j < 16; j++) {
            const int64_t o = v * 16 + j < t->n_outputs ? v * 16 + j : t->n_outputs - 1;
            w[j] = _mm512_maskz_loadu_epi32(there, from + o * t->scales_stride + g);
        }
        dti_transpose_16(w);
        for (int i = 0; i < n; i++) _mm512_store_si512(to + ((g + i) * V + v) * 16, w[i]);
    }
}

static void turn(const dti_packed_tile *t, const kept *k)
{
    const int64_t bytes = t->depth * t->form.bits / 8;

    for (int v = 0; v < V; v++) {
        for (int64_t i = 0; i < bytes; i += 64) turn_codes(t, k->codes, i, bytes - i, v);
        turn_words(t, t->scales, k->scales, v);
        if (t->form.zeros) turn_words(t, t->shifts, k->zeros, v);
    }
}

/* Codes of the next outputs, to be called while numbers are multiplied and memory has nothing else
 * to do: with each word a line of one of them. 64 bytes of codes are 16 words twice, so there are
 * as many lines as words. Only the first tile of rows calls them, others what is there. */
typedef struct calls {
    const char *at;
    int64_t stride;
} calls;

static calls calls_of(const dti_packed_tile *t)
{
    const char *next = (const char *)t->codes + t->ahead;

    return t->kept ? (calls){ t->keep, 0 } : (calls){ next, t->codes_stride };
}

/* Some words of codes at p, and as many of x, of even and of odd inputs where codes are halves. */
static inline __attribute__((always_inline)) void add_words(__m512i sum[R_MAX][V], const uint8_t *p,
                                                            const char *x, calls c, int words,
                                                            const int R, const int per)
{
    const __m512i low = _mm512_set1_epi8(15);

    _Pragma("GCC unroll 1") for (int i = 0; i < words; i++, p += (ptrdiff_t)V * 64, x += 4)
    {
        __m512i u[2][V];
        _mm_prefetch(c.at, _MM_HINT_T1);
        c.at += c.stride;
        __asm__("" : "+r"(x)); /* one register for all rows */
        UNROLL
        for (int v = 0; v < V; v++) {
            u[0][v] = _mm512_load_si512(p + (ptrdiff_t)v * 64);
            if (per == 1) continue;
            u[1][v] = _mm512_and_si512(_mm512_srli_epi16(u[0][v], 4), low);
            u[0][v] = _mm512_and_si512(u[0][v], low);
        }
        UNROLL
        for (int e = 0; e < R * per; e++) {
            const __m512i one =
                _mm512_set1_epi32(*(const int32_t *)(const void *)(x + (ptrdiff_t)e * 64));
            UNROLL
            for (int v = 0; v < V; v++)
                sum[e % R][v] = dti_dot_bytes(sum[e % R][v], u[e / R][v], one);
        }
    }
}

/* A group of codes at p, whose chunks or part of a chunk of x stand from x on. */
static inline __attribute__((always_inline)) void add_group(__m512i sum[R_MAX][V], const uint8_t *p,
                                                            const char *x, calls c, int bytes,
                                                            const int R, const int per)
{
    const int words = (bytes < 64 ? bytes : 64) / 4;

    UNROLL
    for (int e = 0; e < R * V; e++) sum[e / V][e % V] = _mm512_setzero_si512();
    UNROLL
    for (int part = 0; part < 2; part++) {
        if (part == 1) {
            UNROLL
            for (int e = 0; e < R * V; e++)
                sum[e / V][e % V] = _mm512_slli_epi32(sum[e / V][e % V], 8);
        }
        _Pragma("GCC unroll 1") for (int i = 0; i < bytes; i += 64) add_words(
            sum, p + (ptrdiff_t)i * V * 16, x + (ptrdiff_t)(i / 64 * 2 + part) * per * R * 64,
            (calls){ c.at + i + part * words * c.stride, c.stride }, words, R, per);
    }
}

/* What the sums of group g come to, with x from x on. */
static inline __attribute__((always_inline)) void add_scaled(const dti_packed_tile *t,
                                                             const kept *k, __m512i sum[R_MAX][V],
                                                             int64_t g, const char *x, const int R)
{
    const __m512i middle = _mm512_set1_epi32(DTI_PACKED_ZERO << (t->form.bits - 1));
    float *to = t->lanes + g % 4 * R * V * 16;

    UNROLL
    for (int r = 0; r < R; r++, x += 64) {
        const __m512i less = _mm512_set1_epi32(*(const int32_t *)(const void *)x);
        const __m512 unit = _mm512_set1_ps(*(const float *)(const void *)(x + (ptrdiff_t)R * 64));
        UNROLL
        for (int v = 0; v < V; v++, to += 16) {
            const int64_t o = (g * V + v) * 16;
            const __m512i z = t->form.zeros ? _mm512_load_si512(k->zeros + o) : middle;
            const __m512 y = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(sum[r][v], z, less)) * unit;
            _mm512_store_ps(to,
                            _mm512_fmadd_ps(y, _mm512_load_ps(k->scales + o), _mm512_load_ps(to)));
        }
    }
}

static inline __attribute__((always_inline)) void
tile(const dti_packed_tile *t, const dti_code_span *s, const kept *k, const int R, const int per)
{
    const int64_t groups = t->depth / t->form.group, step = R * 64;
    const int in_span = 4 * s->fours, in_chunk = s->bytes < 64 ? 64 / s->bytes : 1;
    const int chunks = s->bytes > 64 ? s->bytes / 64 : 1; /* of a group */
    const calls ahead = calls_of(t);

    if (t->begins) memset(t->lanes, 0, (size_t)(4 * R * V) * 64);
    for (int64_t g = 0; g < groups; g++) {
        const char *x = (const char *)t->x + g / in_span * dti_code_span_vectors(s) * step;
        const int at = (int)(g % in_span);
        const int64_t from = g * s->bytes, called = from % 64 / 2; /* outputs of 64 bytes' 32 */
        __m512i sum[R_MAX][V];
        add_group(sum, k->codes + from * V * 16,
                  x + at / in_chunk * chunks * 2 * per * step +
                      (ptrdiff_t)(at % in_chunk) * s->bytes,
                  (calls){ ahead.at + from / 64 * 64 + called * ahead.stride, ahead.stride },
                  s->bytes, R, per);
        add_scaled(t, k, sum, g,
                   x + 2 * (s->chunks * per + at / 4) * step + (ptrdiff_t)(at % 4) * 16, R);
    }
    for (int e = 0; e < R * V && t->ends; e++) {
        const float *from = t->lanes + (ptrdiff_t)e * 16;
        const int64_t next = R * V * 16;
        const __m512 a = _mm512_load_ps(from) + _mm512_load_ps(from + next);
        const __m512 b = _mm512_load_ps(from + 2 * next) + _mm512_load_ps(from + 3 * next);
        _mm512_storeu_ps(t->y + e / V * t->y_stride + (ptrdiff_t)(e % V) * 16, a + b);
    }
}

static inline __attribute__((always_inline)) void rows(const dti_packed_tile *t, const kept *k,
                                                       const int R)
{
    const dti_code_span s = dti_code_span_of(t->form.bits, (int)t->form.group * t->form.bits / 8);

    if (s.per == 1)
        tile(t, &s, k, R, 1);
    else
        tile(t, &s, k, R, 2);
}

static void multiply(const dti_packed_tile *t)
{
    const kept k = kept_of(t);

    if (!t->kept) turn(t, &k);
    switch (t->n_rows) { /* of several tiles at least R_MAX / 2 */
#define ROWS(R)         \
    case R:             \
        rows(t, &k, R); \
        break;
        ROWS(5)
        ROWS(6)
        ROWS(7)
        ROWS(8)
        ROWS(9)
        ROWS(10)
        ROWS(11)
        ROWS(12)
#undef ROWS
    }
}

const dti_packed_ops dti_packed_vnni_rows = { .rows = R_MAX,
                                              .outputs = V * 16,
                                              .vector = 64,
                                              .depth = 1024,
                                              .lanes = 16,
                                              .whole = true,
                                              .keeps = true,
                                              .row_bytes = dti_packed_vnni_row_bytes,
                                              .pack = dti_packed_vnni_pack,
                                              .multiply = multiply };
