/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of up to four rows: lanes are inputs, 64 bytes of codes at a time as they lie in memory.
 * Lanes of four outputs are added up crosswise into a vector of which a quarter is a group, and a
 * lane in it an output. */
#include "dtensor/kernels/cpu/packed_vnni.h"

#include <string.h>

enum { R_MAX = 4, O_MAX = 4, MAX_SPAN = 512 };

/* Where a span is: its codes and groups of each output from `at` and `group` on. */
typedef struct place {
    const uint8_t *codes[O_MAX];
    const float *scales[O_MAX];
    int64_t shifts, at, group; /* shifts so many floats behind scales */
    const char *x, *next;      /* codes to be called */
} place;

/* The end of a row of codes, made a whole span. */
typedef struct edge {
    uint8_t codes[O_MAX][MAX_SPAN];
    float scales[O_MAX][8], shifts[O_MAX][8];
} edge;

static __attribute__((noinline)) void take_edge(edge *e, place *p, int64_t bytes, int64_t groups,
                                                bool zeros)
{
    const size_t n = (size_t)groups * sizeof(float);

    memset(e, 0, sizeof *e);
    for (int j = 0; j < O_MAX; j++) {
        const float *scales = p->scales[j] + p->group;
        memcpy(e->codes[j], p->codes[j] + p->at, (size_t)bytes);
        memcpy(e->scales[j], scales, n);
        if (zeros) memcpy(e->shifts[j], scales + p->shifts, n);
        p->codes[j] = e->codes[j];
        p->scales[j] = e->scales[j];
    }
    p->shifts = e->shifts[0] - e->scales[0];
    p->at = p->group = 0;
}

/* Of four vectors, in each quarter the sum of the first one's lanes, of the second one's ... */
static inline __attribute__((always_inline)) __m512i add_quarters(const __m512i v[O_MAX])
{
    const __m512i a =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const __m512i b =
        _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));

    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

/* The same for halves of quarters; out[0] has those of the first two quarters. */
static inline __attribute__((always_inline)) void add_eighths(const __m512i v[O_MAX],
                                                              __m512i out[2])
{
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    const __m512i first =
        _mm512_add_epi32(_mm512_unpacklo_epi64(a, c), _mm512_unpackhi_epi64(a, c));
    const __m512i second =
        _mm512_add_epi32(_mm512_unpacklo_epi64(b, d), _mm512_unpackhi_epi64(b, d));
    const __m512i turn = _mm512_set_epi64(11, 10, 3, 2, 9, 8, 1, 0);

    out[0] = _mm512_permutex2var_epi64(first, turn, second);
    out[1] = _mm512_permutex2var_epi64(first, _mm512_add_epi64(turn, _mm512_set1_epi64(4)), second);
}

/* Quarters 0 + 1 and 2 + 3 of a, then of b. */
static inline __attribute__((always_inline)) __m512i add_pairs(__m512i a, __m512i b)
{
    return _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x88), _mm512_shuffle_i32x4(a, b, 0xdd));
}

/* Four words of each output, turned: in a quarter those of a group. */
static inline __attribute__((always_inline)) __m512 by_group(const float *const p[O_MAX],
                                                             int64_t at)
{
    const __m512i turn = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p[0] + at));

    v = _mm512_insertf32x4(v, _mm_loadu_ps(p[1] + at), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p[2] + at), 2);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(p[3] + at), 3);
    return _mm512_permutexvar_ps(turn, v);
}

/* Some chunks that have the same groups, from chunk c on: for each row and output, lanes of sums of
 * q X. */
static inline __attribute__((always_inline)) void add_chunks(__m512i sum[R_MAX][O_MAX],
                                                             const place *p, const dti_code_span *s,
                                                             const int c, const int R)
{
    const int n = s->bytes > 64 ? s->bytes / 64 : 1, per = s->per;
    const __m512i low = _mm512_set1_epi8(15);
    __m512i w[O_MAX][2];

    UNROLL
    for (int j = 0; j < O_MAX; j++) {
        UNROLL
        for (int i = 0; i < n; i++) {
            const uint8_t *at = p->codes[j] + p->at + (ptrdiff_t)(c + i) * 64;
            w[j][i] = _mm512_loadu_si512(at);
            _mm_prefetch(p->next + ((ptrdiff_t)(c + i) * O_MAX + j) * 64, _MM_HINT_T1);
        }
        if (per == 1) continue;
        w[j][1] = _mm512_and_si512(_mm512_srli_epi16(w[j][0], 4), low);
        w[j][0] = _mm512_and_si512(w[j][0], low);
    }
    UNROLL
    for (int e = 0; e < R * O_MAX; e++) sum[e / O_MAX][e % O_MAX] = _mm512_setzero_si512();
    UNROLL
    for (int part = 0; part < 2; part++) {
        if (part == 1) {
            UNROLL
            for (int e = 0; e < R * O_MAX; e++)
                sum[e / O_MAX][e % O_MAX] = _mm512_slli_epi32(sum[e / O_MAX][e % O_MAX], 8);
        }
        UNROLL
        for (int i = 0; i < n * per; i++) UNROLL
        for (int r = 0; r < R; r++) {
            const int v = ((c + i / per) * 2 + part) * per + i % per;
            const __m512i x = _mm512_load_si512(p->x + (ptrdiff_t)(v * R + r) * 64);
            UNROLL
            for (int j = 0; j < O_MAX; j++) sum[r][j] = dti_dot_bytes(sum[r][j], w[j][i], x);
        }
    }
}

static inline __attribute__((always_inline)) void
add_span(__m512 total[R_MAX], const place *p, const dti_code_span *s, const int R, const bool zeros)
{
    const int some = s->bytes > 64 ? s->bytes / 64 : 1, n = s->chunks / some;
    const char *of = p->x + (ptrdiff_t)2 * s->chunks * s->per * R * 64;
    __m512i part[R_MAX][4];

    UNROLL
    for (int c = 0; c < n; c++) {
        __m512i sum[R_MAX][O_MAX];
        add_chunks(sum, p, s, c * some, R);
        UNROLL
        for (int r = 0; r < R; r++)
            if (s->bytes < 16)
                add_eighths(sum[r], part[r]);
            else
                part[r][c] = add_quarters(sum[r]);
        if (c % 2 == 0) continue;
        UNROLL
        for (int r = 0; r < R; r++) part[r][c - 1] = add_pairs(part[r][c - 1], part[r][c]);
    }
    UNROLL
    for (int f = 0; f < s->fours; f++) {
        const __m512 scales = by_group(p->scales, p->group + 4 * f);
        const __m512i z =
            zeros ? _mm512_castps_si512(by_group(p->scales, p->shifts + p->group + 4 * f))
                  : _mm512_set1_epi32(DTI_PACKED_ZERO << (s->bits - 1));
        UNROLL
        for (int r = 0; r < R; r++) {
            __m512i g = part[r][f];
            __m512 y;
            if (n == 4) g = add_pairs(g, part[r][2]);
            g = _mm512_dpwssd_epi32(g, z, _mm512_load_si512(of + (ptrdiff_t)(2 * f * R + r) * 64));
            y = _mm512_cvtepi32_ps(g);
            y = _mm512_mul_ps(y, _mm512_load_ps(of + (ptrdiff_t)((2 * f + 1) * R + r) * 64));
            total[r] = _mm512_fmadd_ps(y, scales, total[r]);
        }
    }
}

static inline __attribute__((always_inline)) void
tile(const dti_packed_tile *t, const int R, const bool zeros, const int bits, const int bytes)
{
    const dti_code_span s = dti_code_span_of(bits, bytes);
    place p = { .shifts = t->shifts - t->scales,
                .x = t->x,
                .next = (const char *)t->codes + t->ahead };
    __m512 total[R_MAX];
    edge end;

    UNROLL
    for (int r = 0; r < R; r++) total[r] = _mm512_setzero_ps();
    UNROLL
    for (int j = 0; j < O_MAX; j++) {
        const int64_t o = j < t->n_outputs ? j : t->n_outputs - 1;
        p.codes[j] = t->codes + o * t->codes_stride;
        p.scales[j] = t->scales + o * t->scales_stride;
    }
    for (int64_t left = t->depth; left >= s.inputs; left -= s.inputs) {
        add_span(total, &p, &s, R, zeros);
        p.x += dti_code_span_vectors(&s) * R * 64;
        p.at += (ptrdiff_t)s.chunks * 64;
        p.next += (ptrdiff_t)s.chunks * 64 * O_MAX;
        p.group += (ptrdiff_t)4 * s.fours;
    }
    if (t->depth % s.inputs != 0) {
        place last = p;
        take_edge(&end, &last, t->depth % s.inputs * bits / 8, t->depth % s.inputs / t->form.group,
                  zeros);
        add_span(total, &last, &s, R, zeros);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        __m512 v = _mm512_add_ps(total[r], _mm512_shuffle_f32x4(total[r], total[r], 0xb1));
        v = _mm512_add_ps(v, _mm512_shuffle_f32x4(v, v, 0x4e));
        _mm_storeu_ps(t->y + r * t->y_stride, _mm512_castps512_ps128(v));
    }
}

static inline __attribute__((always_inline)) void rows(const dti_packed_tile *t, const bool zeros,
                                                       const int bits, const int bytes)
{
    switch (t->n_rows) {
    case 1:
        tile(t, 1, zeros, bits, bytes);
        break;
    case 2:
        tile(t, 2, zeros, bits, bytes);
        break;
    case 3:
        tile(t, 3, zeros, bits, bytes);
        break;
    default:
        tile(t, R_MAX, zeros, bits, bytes);
    }
}

static void multiply(const dti_packed_tile *t)
{
    switch (t->form.bits * 16 + (int)t->form.group / 16) {
#define FORM(bits, group)                               \
    case bits * 16 + group / 16:                        \
        if (t->form.zeros)                              \
            rows(t, true, bits, (group) * (bits) / 8);  \
        else                                            \
            rows(t, false, bits, (group) * (bits) / 8); \
        break;
        FORM(4, 16)
        FORM(4, 32)
        FORM(4, 64)
        FORM(4, 128)
        FORM(8, 16)
        FORM(8, 32)
        FORM(8, 64)
        FORM(8, 128)
#undef FORM
    }
}

const dti_packed_ops dti_packed_vnni = { .rows = R_MAX,
                                         .outputs = O_MAX,
                                         .vector = 64,
                                         .lanes = 16,
                                         .whole = true,
                                         .row_bytes = dti_packed_vnni_row_bytes,
                                         .pack = dti_packed_vnni_pack,
                                         .multiply = multiply };
