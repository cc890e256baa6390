/* SPDX-License-Identifier: Apache-2.0
 *
 * The loops of attention for one instruction set. Before including, define DT_SIMD, DT_ATTENTION
 * (the name of the table), and what fits into the registers: HEADS by COLUMNS sums for one token,
 * P_ROWS by P_COLUMNS sums for a product of tiles. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>

#include "dtensor/kernels/cpu/simd.inc.c"

typedef struct mix_args {
    int64_t stride, n, width;
    int64_t left; /* columns from d on */
    bool ahead;   /* fetch rows before they are used */
} mix_args;

/* Rows of one kv head lie apart, so the processor's prefetchers lose them: rows are fetched this
 * many ahead. */
enum { AHEAD = 16 };

/* Heads of a group are taken four, two or one at a time; their bits do not depend on it. */
enum { HEADS = 4 };

static inline int64_t heads_of(int64_t left)
{
    return left >= HEADS ? HEADS : left >= 2 ? 2 : 1;
}

static inline void ahead_of(const void *p, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch((const char *)p + at, 0, 3);
}

#define T           float
#define LD(p, left) load_f32((p), (left))
#define FN(name)    name##_of_f32
#include "dtensor/kernels/cpu/attention.inc.c"

#define T           uint16_t
#define LD(p, left) vf_of_bf16(load_half((p), (left)))
#define FN(name)    name##_of_bf16
#include "dtensor/kernels/cpu/attention.inc.c"

#define T           uint16_t
#define LD(p, left) vf_of_f16(load_half((p), (left)))
#define FN(name)    name##_of_f16
#include "dtensor/kernels/cpu/attention.inc.c"

static void soften(float *s, int64_t n, float scale, float *largest, float *total, float *o,
                   int64_t width)
{
    vf most = vf_set(*largest), sum = vf_set(0.0f);
    float m, factor;

    for (int64_t j = 0; j < n; j += VW) {
        vf v = load_f32(s + j, n - j) * scale;
        for (int64_t lane = n - j; lane < VW; lane++) v[lane] = -INFINITY;
        store_f32(s + j, v, n - j);
        most = vf_max(v, most);
    }
    m = vf_largest(most);
    factor = vf_exp(vf_set(*largest - m))[0]; /* 0 the first time */
    for (int64_t j = 0; j < n; j += VW) {
        vf v = vf_exp(load_f32(s + j, n - j) - m);
        for (int64_t lane = n - j; lane < VW; lane++) v[lane] = 0.0f;
        store_f32(s + j, v, n - j);
        sum += v;
    }
    *total = *total * factor + vf_sum(sum);
    *largest = m;
    if (factor == 1.0f) return;
    for (int64_t d = 0; d < width; d += VW) vf_store(o + d, vf_load(o + d) * factor);
}

/* --- many tokens ------------------------------------------------------------------------------ */

static inline __attribute__((always_inline)) void product_block(const dti_product *p, int64_t i,
                                                                int64_t j, const int M, const int N)
{
    const float *a = p->a + i * p->a_row, *b = p->b + j;
    float *c = p->c + i * p->c_stride + j;
    vf sum[P_ROWS][P_COLUMNS];

    for (int r = 0; r < M; r++)
        for (int v = 0; v < N; v++)
            sum[r][v] = p->add ? vf_load(c + r * p->c_stride + v * VW) : vf_set(0.0f);
    for (int64_t k = 0; k < p->k; k++) {
        vf row[P_COLUMNS];
        for (int v = 0; v < N; v++) row[v] = vf_load(b + k * p->b_stride + v * VW);
        for (int r = 0; r < M; r++) {
            const vf factor = vf_set(a[r * p->a_row + k * p->a_column]);
            for (int v = 0; v < N; v++) sum[r][v] = vf_fma(factor, row[v], sum[r][v]);
        }
    }
    for (int r = 0; r < M; r++)
        for (int v = 0; v < N; v++) vf_store(c + r * p->c_stride + v * VW, sum[r][v]);
}

static void multiply(const dti_product *p)
{
    for (int64_t j = 0; j < p->n;) {
        const bool wide = j + P_COLUMNS * VW <= p->n;
        int64_t i = 0;
        if (wide) {
            for (; i + P_ROWS <= p->m; i += P_ROWS) product_block(p, i, j, P_ROWS, P_COLUMNS);
            for (; i < p->m; i++) product_block(p, i, j, 1, P_COLUMNS);
        } else {
            for (; i + P_ROWS <= p->m; i += P_ROWS) product_block(p, i, j, P_ROWS, 1);
            for (; i < p->m; i++) product_block(p, i, j, 1, 1);
        }
        j += wide ? P_COLUMNS * VW : VW;
    }
}

/* Scores of VW rows become weights, the running maximum and total of these rows move on. A row that
 * sees no key of this tile keeps its bits: its factor is 1, its weights are 0. */
static void soften_columns(const dti_attention_tile *t, int64_t column)
{
    const vf old = vf_load(t->largest + column);
    vf most = old, sum = vf_set(0.0f), base, factor;
    vi first, last;

    memcpy(&first, t->first + column, sizeof first);
    memcpy(&last, t->last + column, sizeof last);
    for (int64_t j = 0; j < t->n_keys; j++) {
        float *s = t->scores + j * DTI_TILE_STRIDE + column;
        vf v = vf_load(s) * t->scale;
        if (t->masked) {
            const vi key = (t->key + (int32_t)j) - (vi){ 0 };
            v = vf_select((key >= first) & (key <= last), v, vf_set(-INFINITY));
            vf_store(s, v);
        }
        most = vf_max(v, most);
    }
    base = vf_select(most == -INFINITY, vf_set(0.0f), most); /* no key seen yet */
    for (int64_t j = 0; j < t->n_keys; j++) {
        float *s = t->scores + j * DTI_TILE_STRIDE + column;
        const vf v = vf_exp((t->masked ? vf_load(s) : vf_load(s) * t->scale) - base);
        vf_store(s, v);
        sum += v;
    }
    factor = vf_exp(old - base);
    vf_store(t->factor + column, factor);
    vf_store(t->total + column, vf_load(t->total + column) * factor + sum);
    vf_store(t->largest + column, most);
}

static void tile(const dti_attention_tile *t)
{
    const int64_t padded = dti_padded(t->width);
    const dti_product scores = { .c = t->scores + t->begin,
                                 .c_stride = DTI_TILE_STRIDE,
                                 .a = t->k,
                                 .a_row = padded,
                                 .a_column = 1,
                                 .b = t->q + t->begin,
                                 .b_stride = DTI_TILE_STRIDE,
                                 .m = t->n_keys,
                                 .n = t->end - t->begin,
                                 .k = t->width };
    const dti_product sums = { .c = t->sums + t->begin * padded,
                               .c_stride = padded,
                               .a = t->scores + t->begin,
                               .a_row = 1,
                               .a_column = DTI_TILE_STRIDE,
                               .b = t->v,
                               .b_stride = padded,
                               .m = t->end - t->begin,
                               .n = padded,
                               .k = t->n_keys,
                               .add = true };

    multiply(&scores);
    if (t->adjust != NULL) t->adjust(t);
    for (int64_t column = t->begin; column < t->end; column += VW) soften_columns(t, column);
    if (t->drop != NULL) t->drop(t);
    for (int64_t row = t->begin; row < t->end; row++) {
        float *o = t->sums + row * padded;
        if (t->factor[row] == 1.0f) continue;
        for (int64_t d = 0; d < padded; d += VW) vf_store(o + d, vf_load(o + d) * t->factor[row]);
    }
    multiply(&sums);
}

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

    multiply(&p); /* scores */
    p.c = t->slopes + t->begin;
    p.a = t->v;
    p.b = t->dy + t->begin;
    multiply(&p); /* by which a weight changes the loss */
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
    multiply(&p);
    p.c = t->dk;
    p.a = t->slopes + t->begin;
    p.b = t->q_rows + at;
    multiply(&p);
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
    multiply(&p);
}

const dti_attention_ops DT_ATTENTION = {
    .scores = { scores_of_f32, scores_of_bf16, scores_of_f16 },
    .mix = { mix_of_f32, mix_of_bf16, mix_of_f16 },
    .rows = { rows_of_f32, rows_of_bf16, rows_of_f16 },
    .soften = soften,
    .tile = tile,
    .back = back,
    .multiply = multiply,
};
