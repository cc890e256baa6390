/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of attention for one instruction set. Before including, define DT_SIMD, DT_ATTENTION
 * (the name of the table), P_COLUMNS, as many vectors as six rows of sums leave room for, and
 * DT_DOTS where the machine multiplies pairs of bf16. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>

#include "dtensor/kernels/cpu/simd.inc.c"
#if DT_SIMD == 512
#include "dtensor/kernels/cpu/transpose_avx512.h"
#endif

enum { P_ROWS = 6, WIDE = P_COLUMNS * VW, LINE = 64 }; /* floats; bytes */

/* The rows of the next block, of `left`: blocks are of like size. No bit depends on it. */
static inline int64_t rows_of(int64_t left)
{
    const int64_t n_blocks = (left + P_ROWS - 1) / P_ROWS;

    return (left + n_blocks - 1) / n_blocks;
}

/* square[i] lane j becomes square[j] lane i. */
static inline void turn_square(vf square[VW])
{
#if DT_SIMD == 512
    dti_transpose_16((__m512i *)(void *)square);
#elif DT_SIMD == 256
    __m256 *r = (__m256 *)(void *)square, t[8];

    for (int i = 0; i < 8; i += 4) {
        const __m256 a = _mm256_unpacklo_ps(r[i], r[i + 1]);
        const __m256 b = _mm256_unpackhi_ps(r[i], r[i + 1]);
        const __m256 c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]);
        const __m256 d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
        t[i] = _mm256_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x20);
        r[i + 4] = _mm256_permute2f128_ps(t[i], t[i + 4], 0x31);
    }
#else
    const vf a = __builtin_shufflevector(square[0], square[1], 0, 4, 1, 5);
    const vf b = __builtin_shufflevector(square[0], square[1], 2, 6, 3, 7);
    const vf c = __builtin_shufflevector(square[2], square[3], 0, 4, 1, 5);
    const vf d = __builtin_shufflevector(square[2], square[3], 2, 6, 3, 7);

    square[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    square[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    square[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    square[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
#endif
}

/* Fetches what comes next into the second level while the products go on: rows of one kv head lie
 * apart, so the processor itself does not see them coming. Lines are asked for at an even pace: a
 * processor that has too many on their way drops the others. Those of k come before those of v:
 * caches begin at whole pages, so that a line of k and its line of v are often in one bank of the
 * memory, and in turn they took nearly twice as long. */
typedef struct fetcher {
    const char *next, *v;    /* a row; where those of v begin */
    int64_t rows_left;       /* of k */
    int64_t row_bytes, step; /* of a row; to the next one */
    int64_t column, left;    /* bytes of the row that were fetched; lines that were not */
    uint64_t pace, due;      /* lines in a unit of work, lines that are due: times 2^PACE */
} fetcher;

enum { SQUARE = VW / 2, PACE = 16 }; /* units in a square of keys; a row of columns of v is one */

static inline fetcher fetcher_of(const dti_attention_tile *t, int64_t step, int64_t units)
{
    const int64_t left = 2 * t->n_ahead * ((t->ahead_bytes + LINE - 1) / LINE);

    return (fetcher){ .next = t->k_ahead,
                      .v = t->v_ahead,
                      .rows_left = t->n_ahead,
                      .row_bytes = t->ahead_bytes,
                      .step = step,
                      .left = left,
                      .pace = ((uint64_t)left << PACE) / (uint64_t)units + 1 };
}

static inline void fetch(fetcher *f, uint64_t units)
{
    for (f->due += units * f->pace; f->due >> PACE > 0 && f->left > 0; f->left--) {
        f->due -= 1 << PACE;
        __builtin_prefetch(f->next + f->column, 0, 2);
        f->column += LINE;
        if (f->column < f->row_bytes) continue;
        f->column = 0;
        f->next = --f->rows_left == 0 ? f->v : f->next + f->step;
    }
}

/* --- products --------------------------------------------------------------------------------- */

#define MULADD   vf_fma
#define FN(name) name##_of_f32
#include "dtensor/kernels/cpu/attention_product.inc.c"

#ifdef DT_DOTS
#define MULADD   dot
#define FN(name) name##_of_pairs

static inline vf dot(vf a, vf b, vf c)
{
    return (vf)_mm512_dpbf16_ps((__m512)c, (__m512bh)a, (__m512bh)b);
}
#include "dtensor/kernels/cpu/attention_product.inc.c"

static inline vf load_pairs(const uint16_t *p, int64_t left)
{
    vf v = { 0 };

    if (left >= 2 * VW) return vf_load((const float *)(const void *)p);
    memcpy(&v, p, (size_t)left * sizeof *p);
    return v;
}
#endif

static inline vi lanes(void)
{
    vi v = { 0 };

    for (int i = 0; i < VW; i++) v[i] = i;
    return v;
}

/* --- forward ---------------------------------------------------------------------------------- */

/* Keys begin .. end - 1 of the tile, of which some of n rows see one; begin is a multiple of VW. */
static bool span_of(const dti_attention_tile *t, int64_t row, int64_t n, int64_t *begin,
                    int64_t *end)
{
    int32_t first = INT32_MAX, last = -1;

    for (int64_t i = row; i < row + n; i++) {
        first = t->first[i] < first ? t->first[i] : first;
        last = t->last[i] > last ? t->last[i] : last;
    }
    *begin = first > t->key ? (first - t->key) / VW * VW : 0;
    *end = last + 1 - t->key < t->n_keys ? last + 1 - t->key : t->n_keys;
    if (*begin < *end && (t->adjust != NULL || t->drop != NULL)) { /* those take all keys */
        *begin = 0;
        *end = t->n_keys;
    }
    return *begin < *end;
}

/* Scores of a row are scaled and hidden where the row does not see the key; returns the largest of
 * them and of what the row has so far. */
static inline float scale_row(const dti_attention_tile *t, float *s, int64_t row, int64_t begin,
                              int64_t end)
{
    const int64_t last = t->last[row] - t->key < end - 1 ? t->last[row] - t->key : end - 1;
    vf most = vf_set(t->largest[row]);

    for (int64_t j = begin; j < end; j += VW) {
        vf v = vf_load(s + j) * t->scale;
        if (j + VW > last + 1)
            v = vf_select(lanes() + (int32_t)j <= (int32_t)last, v, vf_set(-INFINITY));
        vf_store(s + j, v);
        most = vf_max(v, most);
    }
    return vf_largest(most);
}

/* Scores of n rows become weights, and what the rows have so far follows the change of the largest
 * score. A row that sees no key of the tile keeps its bits. The first key that it sees there is in
 * the first lane: so a document has the same bits wherever in the tile it begins. */
static void soften(const dti_attention_tile *t, float *scores, int64_t row, int64_t n,
                   int64_t begin, int64_t end)
{
    const int64_t padded = dti_padded(t->width);
    int64_t start[P_ROWS];
    float largest[P_ROWS];

    for (int64_t i = 0; i < n; i++) {
        float *s = scores + i * DTI_WEIGHTS_STRIDE;
        start[i] = t->first[row + i] - t->key;
        start[i] = start[i] < begin ? begin : start[i] < end ? start[i] : end;
        for (int64_t j = begin; j < start[i]; j++) s[j] = 0.0f;
        largest[i] = scale_row(t, s, row + i, start[i], end);
    }
    for (int64_t i = 0; i < n; i++) {
        float *s = scores + i * DTI_WEIGHTS_STRIDE, total = t->total[row + i];
        const float base = largest[i] == -INFINITY ? 0.0f : largest[i]; /* no key seen yet */
        vf sum = vf_set(0.0f);
        for (int64_t j = start[i]; j < end; j += VW) {
            const vf v = vf_exp(vf_load(s + j) - base);
            vf_store(s + j, v);
            sum += v;
        }
        if (largest[i] != t->largest[row + i]) {
            const vf factor = vf_exp(vf_set(t->largest[row + i] - base)); /* 0 the first time */
            float *o = t->sums + (row + i) * padded;
            total *= factor[0];
            for (int64_t d = 0; d < padded; d += VW) vf_store(o + d, vf_load(o + d) * factor);
        }
        t->largest[row + i] = largest[i];
        t->total[row + i] = total + vf_sum(sum);
    }
}

/* Scores of n rows become the weights of sums. */
static void weigh(const dti_attention_tile *t, float *scores, int64_t row, int64_t n, int64_t begin,
                  int64_t end)
{
    if (t->adjust != NULL) t->adjust(t, scores, row, n);
    soften(t, scores, row, n, begin, end);
    if (t->drop != NULL) t->drop(t, scores, row, n);
}

#define T             float
#define LD(p, left)   load_f32((p), (left))
#define FN(name)      name##_of_f32
#define PER           1
#define LD_Q(p, left) LD(p, left)
#define SCORES        product_of_f32
#define MULADD        vf_fma
#include "dtensor/kernels/cpu/attention.inc.c"

#define T           uint16_t
#define LD(p, left) vf_of_bf16(load_half((p), (left)))
#define FN(name)    name##_of_bf16
#ifdef DT_DOTS
#define PER           2
#define LD_Q(p, left) load_pairs((p), (left))
#define SCORES        product_of_pairs
#define MULADD        dot
#else
#define PER           1
#define LD_Q(p, left) LD(p, left)
#define SCORES        product_of_f32
#define MULADD        vf_fma
#endif
#include "dtensor/kernels/cpu/attention.inc.c"

#define T             uint16_t
#define LD(p, left)   vf_of_f16(load_half((p), (left)))
#define FN(name)      name##_of_f16
#define PER           1
#define LD_Q(p, left) LD(p, left)
#define SCORES        product_of_f32
#define MULADD        vf_fma
#include "dtensor/kernels/cpu/attention.inc.c"

/* --- backward --------------------------------------------------------------------------------- */

/* Scores of VW rows become weights, slopes of weights those of scores. */
static void slope_columns(const dti_attention_back *t, int64_t column)
{
    const vf lse = vf_load(t->lse + column), mean = vf_load(t->mean + column);
    vi first, last;

    memcpy(&first, t->first + column, sizeof first);
    memcpy(&last, t->last + column, sizeof last);
    for (int64_t j = 0; j < t->n_keys; j++) {
        const int64_t at = j * DTI_TILE_STRIDE + column;
        vf weight = vf_exp(vf_load(t->weights + at) * t->scale - lse), kept = weight;
        vf slope = vf_load(t->slopes + at);
        if (t->masked) {
            const vi key = (t->key + (int32_t)j) - (vi){ 0 };
            weight = vf_select((key >= first) & (key <= last), weight, vf_set(0.0f));
            kept = weight;
        }
        if (t->kept != NULL) {
            kept = weight * vf_load(t->kept + at);
            slope = slope * vf_load(t->kept + at);
        }
        vf_store(t->weights + at, kept);
        vf_store(t->slopes + at, weight * (slope - mean) * t->slope_scale);
    }
}

static void back(const dti_attention_back *t)
{
    const int64_t padded = dti_padded(t->width), n = t->end - t->begin;
    const int64_t at = t->begin * padded; /* of the rows */
    dti_product p = { .c = t->weights + t->begin,
                      .c_stride = DTI_TILE_STRIDE,
                      .a = t->k,
                      .a_row = padded,
                      .a_column = 1,
                      .b = t->q + t->begin,
                      .b_stride = DTI_TILE_STRIDE,
                      .m = t->n_keys,
                      .n = n,
                      .k = t->width };

    product_of_f32(&p); /* scores */
    p.c = t->slopes + t->begin;
    p.a = t->v;
    p.b = t->dy + t->begin;
    product_of_f32(&p); /* by which a weight changes the loss */
    if (t->adjust != NULL) t->adjust(t);
    for (int64_t column = t->begin; column < t->end; column += VW) slope_columns(t, column);
    if (t->spread != NULL) t->spread(t);
    p = (dti_product){ .c = t->dv,
                       .c_stride = padded,
                       .a = t->weights + t->begin,
                       .a_row = DTI_TILE_STRIDE,
                       .a_column = 1,
                       .b = t->dy_rows + at,
                       .b_stride = padded,
                       .m = t->n_keys,
                       .n = padded,
                       .k = n,
                       .add = true };
    product_of_f32(&p);
    p.c = t->dk;
    p.a = t->slopes + t->begin;
    p.b = t->q_rows + at;
    product_of_f32(&p);
    p = (dti_product){ .c = t->dq + at,
                       .c_stride = padded,
                       .a = t->slopes + t->begin,
                       .a_row = 1,
                       .a_column = DTI_TILE_STRIDE,
                       .b = t->k,
                       .b_stride = padded,
                       .m = n,
                       .n = padded,
                       .k = t->n_keys,
                       .add = true };
    product_of_f32(&p);
}

static void multiply(const dti_product *p)
{
    product_of_f32(p);
}

const dti_attention_ops DT_ATTENTION = {
    .rows = { rows_of_f32, rows_of_bf16, rows_of_f16 },
    .queries = { queries_of_f32, queries_of_bf16, queries_of_f16 },
    .tile = { tile_of_f32, tile_of_bf16, tile_of_f16 },
    .back = back,
    .multiply = multiply,
};
