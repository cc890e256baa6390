/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many rows: lanes are outputs, which meet two numbers of x at a time. Codes less their
 * zero points become whole numbers of 16 bits for that once, for all tiles of rows, turned, with
 * their scales. One dot product of pairs does what two of bytes do, one for each half of x, and
 * leaves nothing to be done to codes and sums between. What codes become has room in level 2 alone,
 * so few tiles are better off with packed_vnni_rows.
 *
 * A group's sum times t s: multiplications take the pipes of dot products, and t is a power of two,
 * so where exponents allow it t goes to that of s by an addition of whole numbers. */
#include "dtensor/kernels/cpu/packed_vnni.h"
#include "dtensor/kernels/cpu/transpose_avx512.h"

#include <string.h>

/* Rows of a tile; rows and vectors of outputs whose sums of a group, and of groups, fill the
 * registers; pairs of a vector of x. */
enum { TILE_ROWS = 12, R_MAX = TILE_ROWS / 2, V = 2, PAIRS = 16 };

/* Exponents of floats, as their bits have them. */
typedef struct exponents {
    uint32_t least, most;
} exponents;

/* What a tile keeps: pairs of codes, those of all outputs together, then scales and which there
 * are. */
typedef struct kept {
    char *codes;   /* [depth / 2, V * 64] */
    float *scales; /* [groups, V * 16] */
    exponents *of; /* scales */
} kept;

static kept kept_of(const dti_packed_tile *t)
{
    char *codes = t->keep, *scales = codes + t->depth / 2 * V * 64;

    return (kept){ codes, (float *)(void *)scales,
                   (exponents *)(void *)(scales + t->depth / t->form.group * V * 64) };
}

/* --- x ---------------------------------------------------------------------------------------- */

/* Inputs as whole numbers in the order of pairs of codes, 32 to a vector; then the units of groups,
 * 16 to a vector, and which exponents these have. What a tile keeps has room in as many bytes for
 * each output. */
static int64_t row_bytes(const dti_packed_form *f, int64_t depth)
{
    return (depth + 31) / 32 * 64 + (depth / f->group + 15) / 16 * 64 + 64;
}

static exponents with_exponent(exponents e, uint32_t float_bits)
{
    const uint32_t one = float_bits >> 23 & 255;

    return (exponents){ one < e.least ? one : e.least, one > e.most ? one : e.most };
}

/* Pairs that a word of codes becomes: (0, 4), (1, 5), (2, 6), (3, 7) of halves of bytes, (0, 2),
 * (1, 3) of bytes. */
static __m512i in_pairs(__m512i x, int bits)
{
    const __m512i bytes =
        _mm512_set_epi16(31, 29, 30, 28, 27, 25, 26, 24, 23, 21, 22, 20, 19, 17, 18, 16, 15, 13, 14,
                         12, 11, 9, 10, 8, 7, 5, 6, 4, 3, 1, 2, 0);
    const __m512i halves =
        _mm512_set_epi16(31, 27, 30, 26, 29, 25, 28, 24, 23, 19, 22, 18, 21, 17, 20, 16, 15, 11, 14,
                         10, 13, 9, 12, 8, 7, 3, 6, 2, 5, 1, 4, 0);

    return _mm512_permutexvar_epi16(bits == 8 ? bytes : halves, x);
}

static void pack(void *to_, int64_t step, const void *x_, const dti_packed_form *f, int64_t depth)
{
    const uint16_t *x = x_;
    char *to = to_, *units = to + (depth + 31) / 32 * step;
    int16_t fixed[DTI_PACKED_GROUP];
    exponents of_units = { 255, 0 };

    memset(to + depth / 32 * step, 0, 64); /* of a depth that is no whole vectors */
    for (int64_t i = 0, g = 0; i < depth; i += f->group, g++) {
        char *unit = units + g / 16 * step + g % 16 * 4;
        int32_t sum;
        dti_packed_vnni_fix(fixed, x + i, f->group, &sum, (float *)(void *)unit);
        of_units = with_exponent(of_units, *(const uint32_t *)(const void *)unit);
        if (f->group == 16) {
            const __m512i v =
                _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)fixed));
            _mm256_store_si256((__m256i *)(void *)(to + i / 32 * step + i % 32 * 2),
                               _mm512_castsi512_si256(in_pairs(v, f->bits)));
            continue;
        }
        for (int64_t k = 0; k < f->group; k += 32)
            _mm512_store_si512(to + (i + k) / 32 * step,
                               in_pairs(_mm512_loadu_si512(fixed + k), f->bits));
    }
    memcpy(units + (depth / f->group + 15) / 16 * step, &of_units, sizeof of_units);
}

/* --- codes ------------------------------------------------------------------------------------ */

/* Words of 16 outputs, of n columns. */
static inline void load_words(const dti_packed_tile *t, const float *from, int v, int n,
                              __m512i w[16])
{
    const __mmask16 there = (__mmask16)((1u << n) - 1);

    for (int j = 0; j < 16; j++) {
        const int64_t o = v * 16 + j < t->n_outputs ? v * 16 + j : t->n_outputs - 1;
        w[j] = _mm512_maskz_loadu_epi32(there, from + o * t->scales_stride);
    }
    dti_transpose_16(w);
}

static void turn_scales(const dti_packed_tile *t, const kept *k, int v)
{
    const int64_t groups = t->depth / t->form.group;
    const __m512i all = _mm512_set1_epi32(0x7f800000);
    __m512i least = all, most = _mm512_setzero_si512();

    for (int64_t g = 0; g < groups; g += 16) {
        const int n = groups - g < 16 ? (int)(groups - g) : 16;
        __m512i w[16];
        load_words(t, t->scales + g, v, n, w);
        for (int i = 0; i < n; i++) {
            _mm512_store_si512(k->scales + ((g + i) * V + v) * 16, w[i]);
            least = _mm512_min_epu32(least, _mm512_and_si512(w[i], all));
            most = _mm512_max_epu32(most, _mm512_and_si512(w[i], all));
        }
    }
    if (v == 0) *k->of = (exponents){ 255, 0 };
    *k->of = with_exponent(*k->of, _mm512_reduce_min_epu32(least));
    *k->of = with_exponent(*k->of, _mm512_reduce_max_epu32(most));
}

/* Pairs of a word of codes less z, which stands in both halves. */
static inline __attribute__((always_inline)) void store_pairs(char *to, __m512i w, __m512i z,
                                                              const int bits)
{
    const __m512i low = _mm512_set1_epi32(bits == 8 ? 0x00ff00ff : 0x000f000f);

    UNROLL
    for (int i = 0; i < 16 / bits; i++)
        _mm512_store_si512(
            to + (ptrdiff_t)i * V * 64,
            _mm512_sub_epi16(_mm512_and_si512(_mm512_srli_epi32(w, (unsigned)(i * bits)), low), z));
}

/* Zero points of groups of 16 outputs, in both halves of words. */
static void load_zeros(const dti_packed_tile *t, int64_t first, int v, int n, __m512i z[16])
{
    load_words(t, t->shifts + first, v, n, z);
    for (int i = 0; i < n; i++) {
        z[i] = _mm512_and_si512(z[i], _mm512_set1_epi32(0xffff));
        z[i] = _mm512_or_si512(z[i], _mm512_slli_epi32(z[i], 16));
    }
}

/* Up to 64 bytes of codes of 16 outputs, from byte `from` of the depth on. */
static inline __attribute__((always_inline)) void
turn_codes(const dti_packed_tile *t, char *to, int64_t from, int64_t left, int v, const int bits)
{
    const __mmask64 there = left < 64 ? ((uint64_t)1 << left) - 1 : ~(uint64_t)0;
    const int by = __builtin_ctzll((uint64_t)t->form.group) + (bits == 4 ? -1 : 0);
    const __m512i middle = _mm512_set1_epi32(0x10001 << (bits - 1));
    const int64_t first = from >> by;
    const int n = left < 64 ? (int)left : 64;
    __m512i w[16], z[16];

    for (int j = 0; j < 16; j++) {
        const int64_t o = v * 16 + j < t->n_outputs ? v * 16 + j : t->n_outputs - 1;
        const uint8_t *at = t->codes + o * t->codes_stride + from;
        w[j] = _mm512_maskz_loadu_epi8(there, at);
        _mm_prefetch((const char *)(at + t->ahead), _MM_HINT_T1);
    }
    dti_transpose_16(w);
    to += (from / 4 * (16 / bits) * V + v) * 64;
    if (t->form.zeros) {
        load_zeros(t, first, v, (int)(((from + n - 1) >> by) - first) + 1, z);
        for (int i = 0; i < n / 4; i++, to += (ptrdiff_t)(16 / bits) * V * 64)
            store_pairs(to, w[i], z[((from + i * 4) >> by) - first], bits);
        return;
    }
    for (int i = 0; i < n / 4; i++, to += (ptrdiff_t)(16 / bits) * V * 64)
        store_pairs(to, w[i], middle, bits);
}

static void turn(const dti_packed_tile *t, const kept *k)
{
    const int64_t bytes = t->depth * t->form.bits / 8;

    for (int v = 0; v < V; v++) {
        for (int64_t i = 0; i < bytes; i += 64)
            if (t->form.bits == 4)
                turn_codes(t, k->codes, i, bytes - i, v, 4);
            else
                turn_codes(t, k->codes, i, bytes - i, v, 8);
        turn_scales(t, k, v);
    }
}

/* --- products --------------------------------------------------------------------------------- */

/* Pairs of codes at p, n of them in a vector of x; returns those behind them. */
static inline __attribute__((always_inline)) const char *
add_pairs(__m512i sum[R_MAX][V], const char *p, const char *x, int n, const int R)
{
    const char *end = p + (ptrdiff_t)n * V * 64;

    _Pragma("GCC unroll 1") for (; p != end; p += (ptrdiff_t)V * 64, x += 4)
    {
        __m512i u[V];
        __asm__("" : "+r"(x)); /* one register for all rows */
        UNROLL
        for (int v = 0; v < V; v++) u[v] = _mm512_load_si512(p + (ptrdiff_t)v * 64);
        UNROLL
        for (int r = 0; r < R; r++) {
            const __m512i one =
                _mm512_set1_epi32(*(const int32_t *)(const void *)(x + (ptrdiff_t)r * 64));
            UNROLL
            for (int v = 0; v < V; v++) sum[r][v] = dti_dot_pairs(sum[r][v], u[v], one);
        }
    }
    return p;
}

/* Whether no t s of a tile is too large or too small for a float, nor is t times a sum, which is
 * below 2^30: the same bits then, whichever comes first. */
static bool exponents_add(const dti_packed_tile *t, const kept *k)
{
    const int64_t units = (t->depth + 31) / 32 + (t->depth / t->form.group + 15) / 16;
    exponents of_units = { 255, 0 }, one;

    for (int64_t r = 0; r < t->n_rows; r++) {
        memcpy(&one, (const char *)t->x + (units * t->n_rows + r) * 64, sizeof one);
        of_units.least = one.least < of_units.least ? one.least : of_units.least;
        of_units.most = one.most > of_units.most ? one.most : of_units.most;
    }
    return k->of->least > 0 && of_units.most < 254 - 30 && k->of->least + of_units.least > 127 &&
           k->of->most + of_units.most < 127 + 255;
}

/* What the sums of a group come to. */
static inline __attribute__((always_inline)) void add_scaled(__m512 total[R_MAX][V],
                                                             __m512i sum[R_MAX][V],
                                                             const float *scales, const char *units,
                                                             const int R, const bool adds)
{
    const __m512i one = _mm512_castps_si512(_mm512_set1_ps(1.0f));
    __m512i s[V];

    UNROLL
    for (int v = 0; v < V; v++) {
        s[v] = _mm512_load_si512(scales + (ptrdiff_t)v * 16);
        if (adds) s[v] = _mm512_sub_epi32(s[v], one);
    }
    UNROLL
    for (int r = 0; r < R; r++) {
        const __m512i unit =
            _mm512_set1_epi32(*(const int32_t *)(const void *)(units + (ptrdiff_t)r * 64));
        UNROLL
        for (int v = 0; v < V; v++) {
            const __m512 y = _mm512_cvtepi32_ps(sum[r][v]);
            total[r][v] =
                adds ? _mm512_fmadd_ps(y, _mm512_castsi512_ps(_mm512_add_epi32(s[v], unit)),
                                       total[r][v])
                     : _mm512_fmadd_ps(_mm512_mul_ps(y, _mm512_castsi512_ps(unit)),
                                       _mm512_castsi512_ps(s[v]), total[r][v]);
        }
    }
}

/* Rows of a tile from row `first` on: every fourth group, from group g on. Sums stay in registers;
 * storing them for each group would cost a tenth of all time. */
static inline __attribute__((always_inline)) void rows(const dti_packed_tile *t, const kept *k,
                                                       int64_t first, int64_t g, const int R,
                                                       const bool adds)
{
    const int64_t group = t->form.group, groups = t->depth / group, step = t->n_rows * 64;
    const int64_t skipped = 3 * group * V * 32, next = group / 8 * step;
    const int n = group < 32 ? (int)group / 2 : PAIRS, vectors = (int)group / (2 * n);
    const char *p = k->codes + g * group * V * 32;
    const char *x = (const char *)t->x + first * 64 + g * group / 32 * step + g * group % 32 * 2;
    const char *units = (const char *)t->x + first * 64 + (t->depth + 31) / 32 * step + g * 4;
    const float *scales = k->scales + g * V * 16;
    float *lanes = t->lanes + (g * t->n_rows + first) * V * 16;
    __m512 total[R_MAX][V];

    UNROLL
    for (int e = 0; e < R * V; e++)
        total[e / V][e % V] =
            t->begins ? _mm512_setzero_ps() : _mm512_load_ps(lanes + (ptrdiff_t)e * 16);
    for (; g < groups; g += 4, p += skipped, x += next, scales += (ptrdiff_t)4 * V * 16) {
        const char *of = x;
        __m512i sum[R_MAX][V];
        UNROLL
        for (int e = 0; e < R * V; e++) sum[e / V][e % V] = _mm512_setzero_si512();
        _Pragma("GCC unroll 1") for (int i = vectors; i > 0; i--, of += step) p =
            add_pairs(sum, p, of, n, R);
        add_scaled(total, sum, scales, units, R, adds);
        units += g % 16 < 12 ? 16 : step - 48;
    }
    UNROLL
    for (int e = 0; e < R * V; e++) _mm512_store_ps(lanes + (ptrdiff_t)e * 16, total[e / V][e % V]);
}

static void some_rows(const dti_packed_tile *t, const kept *k, int64_t first, int64_t n, int64_t g,
                      bool adds)
{
    switch (2 * n + adds) {
#define ROWS(R)                         \
    case 2 * R:                         \
        rows(t, k, first, g, R, false); \
        break;                          \
    case 2 * R + 1:                     \
        rows(t, k, first, g, R, true);  \
        break;
        ROWS(2)
        ROWS(3)
        ROWS(4)
        ROWS(5)
        ROWS(6)
#undef ROWS
    }
}

/* Codes of every fourth group have room in level 1 for both halves of the rows. */
static void multiply(const dti_packed_tile *t)
{
    const kept k = kept_of(t);
    const int64_t half = t->n_rows / 2; /* 2 or more: several tiles have TILE_ROWS / 2 or more */
    bool adds;

    if (!t->kept) turn(t, &k);
    adds = exponents_add(t, &k);
    for (int64_t g = 0; g < 4; g++) {
        some_rows(t, &k, 0, half, g, adds);
        some_rows(t, &k, half, t->n_rows - half, g, adds);
    }
    for (int64_t e = 0; e < t->n_rows * V && t->ends; e++) {
        const float *from = t->lanes + e * 16;
        const int64_t next = t->n_rows * V * 16;
        const __m512 a = _mm512_load_ps(from) + _mm512_load_ps(from + next);
        const __m512 b = _mm512_load_ps(from + 2 * next) + _mm512_load_ps(from + 3 * next);
        _mm512_storeu_ps(t->y + e / V * t->y_stride + e % V * 16, a + b);
    }
}

const dti_packed_ops dti_packed_vnni_many = { .rows = TILE_ROWS,
                                              .outputs = V * 16,
                                              .vector = 64,
                                              .depth = 1024,
                                              .lanes = 16,
                                              .whole = true,
                                              .keeps = true,
                                              .row_bytes = row_bytes,
                                              .pack = pack,
                                              .multiply = multiply };
