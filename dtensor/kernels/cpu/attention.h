/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of attention share: y[b, t, h] = sum_j p_j v[b, j], p = softmax_j of
 * scale q[b, t, h] . k[b, j] over the cache rows that the query sees. f32 throughout. */
#ifndef DTI_ATTENTION_H
#define DTI_ATTENTION_H

#include "dtensor/kernels/cpu/cpu_internal.h"

enum {
    DTI_TILE_KEYS = 64,  /* keys that are taken at a time */
    DTI_TILE_ROWS = 128, /* queries times heads of a group that share a tile of keys */
    DTI_PAD = 16,        /* floats: rows of scratch are multiples of the widest vector */
    /* Where columns are rows of a tile: not a power of two, so that a column does not fall into few
     * sets of the cache. */
    DTI_TILE_STRIDE = DTI_TILE_ROWS + DTI_PAD,
    DTI_WEIGHTS_STRIDE = DTI_TILE_KEYS + DTI_PAD /* of rows of scores: a vector may begin at any */
};

static inline int64_t dti_padded(int64_t n)
{
    return (n + DTI_PAD - 1) / DTI_PAD * DTI_PAD;
}

/* One tile of keys against n_rows rows, each of which sees some of them; E is dti_padded(width). A
 * row's operations are the same whatever rows are with it:
 *   score_j     one sum along the width (pairs of bf16 where the machine multiplies those)
 *   weight_j    e^(score_j - largest), exactly 0 where the row does not see the key
 *   total       weights in vectors from the row's first key of the tile on, one vector after the
 *               other, then the tree of vf_sum()
 *   sums        one multiply-add per key, in their order */
typedef struct dti_attention_tile {
    const float *q;    /* [n_rows, E] as ops->queries leaves them */
    const void *k, *v; /* n_keys rows of the cache, `stride` elements apart */
    const char *k_ahead,
        *v_ahead;                /* what is read next: n_ahead rows of ahead_bytes, as far apart */
    const int32_t *first, *last; /* [n_rows] keys that a row sees */
    float *largest, *total;      /* [n_rows] of the scores so far; of the weights so far */
    float *sums;                 /* [n_rows, E] weighted sums of v so far */
    float *keys, *values;        /* scratch [E, DTI_TILE_KEYS]: turned; [DTI_TILE_KEYS, E] */
    int64_t n_rows, n_keys, stride, width, n_ahead, ahead_bytes;
    int32_t key; /* index of the tile's first key */
    float scale;
    /* Or NULL: what else becomes of n rows of scores from `row` on, DTI_WEIGHTS_STRIDE apart,
     * before the softmax, and of weights after it. */
    void (*adjust)(const struct dti_attention_tile *t, float *scores, int64_t row, int64_t n);
    void (*drop)(const struct dti_attention_tile *t, float *weights, int64_t row, int64_t n);
    const void *arg; /* theirs */
} dti_attention_tile;

/* A tile on the way back, where every vector runs across rows: R below is DTI_TILE_ROWS. Columns
 * begin .. end - 1 (multiples of DTI_PAD) see keys of this tile; others are left alone. Weights and
 * slopes are [DTI_TILE_KEYS, DTI_TILE_STRIDE] scratch: of a weight P = e^(scale s - lse), by which
 * dv is summed, and of dS = P (dP - mean), by which dq and dk are. */
typedef struct dti_attention_back {
    const float *q, *dy;           /* [width, DTI_TILE_STRIDE]: transposed */
    const float *q_rows, *dy_rows; /* [R, E], zeros beyond width */
    const float *k, *v;            /* [n_keys, E] */
    float *weights, *slopes;
    const float *kept;       /* [DTI_TILE_KEYS, DTI_TILE_STRIDE] factors of weights, or NULL */
    float *dq, *dk, *dv;     /* [R, E], [n_keys, E] sums so far */
    const float *lse, *mean; /* [R]; an lse of +inf: the row sees nothing */
    const int32_t *first, *last;
    int64_t width, n_keys, begin, end;
    int32_t key;
    float scale;       /* of scores */
    float slope_scale; /* of dS, where `spread` does not scale it */
    bool masked;
    void (*adjust)(const struct dti_attention_back *t); /* scores, in weights; or NULL */
    void (*spread)(const struct dti_attention_back *t); /* slopes: of adjusted scores, become those
                                                         * of q . k; or NULL */
    const void *arg;
} dti_attention_back;

/* c[i, j] (+)= sum_k a[i, k] b[k, j]; a by two strides, b and c row-major; n a multiple of a
 * vector. The sum of an element goes along k, one multiply-add after the other. */
typedef struct dti_product {
    float *c;
    const float *a;
    const void *b; /* of f32, or what the function says */
    int64_t c_stride, a_row, a_column, b_stride;
    int64_t m, n, k;
    bool add;
} dti_product;

/* Loops of one instruction set, by dtype of the cache. */
typedef struct dti_attention_ops {
    /* n rows of `stride` elements -> [n, E] floats, zeros beyond width */
    void (*rows[3])(float *to, const void *from, int64_t stride, int64_t n, int64_t width);
    /* the same as a tile takes queries: floats, or pairs of bf16 in the first half of a row */
    void (*queries[3])(float *to, const void *from, int64_t stride, int64_t n, int64_t width);
    void (*tile[3])(const dti_attention_tile *t);
    void (*back)(const dti_attention_back *t);
    void (*multiply)(const dti_product *p);
} dti_attention_ops;

extern const dti_attention_ops dti_attention_portable;
#ifdef DT_HAVE_X86_KERNELS
extern const dti_attention_ops dti_attention_avx2;
extern const dti_attention_ops dti_attention_avx512;
extern const dti_attention_ops dti_attention_avx512_bf16;
#endif
const dti_attention_ops *dti_attention_ops_of(dti_isa isa);

/* A call, unpacked. B batch, T tokens, H heads, Kv kv heads of this rank, S rows of the cache. */
typedef struct dti_attention {
    dti_cpu *cpu;
    const dti_row_ops *rows;
    const dti_attention_ops *ops;
    dt_dtype dtype;
    int64_t bytes; /* of an element */
    const char *q, *k, *v;
    char *y;
    const int32_t *positions; /* [B, T] */
    int64_t batch, n_tokens, n_heads, n_kv, n_rows, width;
    int64_t group;              /* query heads that read one kv head */
    int64_t q_offset, k_offset; /* global number of the first local head */
    int64_t first_kv, n_used;   /* local kv heads that some local query head reads */
    int64_t window;
    float scale;
    /* Of keys that lie in blocks: tokens are those of one batch row, and n_rows is the most that a
     * sequence can have (attention_paged.c). */
    const int32_t *table;            /* NULL: of each batch row they lie in its rows */
    int64_t block_keys, first_block; /* keys of a block; the rank's first block */
    /* What few calls have. Scores that are capped or biased are scaled here, and then by 1. */
    bool both_ways, adjusts;
    float soft_cap;
    const char *bias, *sinks; /* or NULL; sinks [H] */
    int64_t bias_step[3];     /* elements of bias to the next batch row, head, token; or 0 */
    /* What training has. */
    float *lse;              /* [B, T, H], or NULL */
    const int32_t *segments; /* [B, S], or NULL: never falls along a row */
    bool drops;
    dt_random key; /* of dropout, whose weights are those of the global [all_batch, H, T, S] */
    float dropout, kept; /* probability; factor of what stays */
    int64_t b_offset, all_heads;
} dti_attention;

/* Unpacks a call whose q, k and v are operands first to first + 2 and whose bias, sinks and
 * segments follow positions; a way back (first > 0) has no sinks. Checks what is not empty. */
dt_status dti_attention_open(const dt_kargs *args, const char *op, int first, int positions,
                             dti_attention *a) DT_MUST_USE;

/* Its parts, for calls that have other operands between: without extras, which are from operand i
 * on; whether this rank holds the kv heads that its queries read. */
dt_status dti_attention_unpack(const dt_kargs *args, const char *op, int first, int positions,
                               dti_attention *a) DT_MUST_USE;
void dti_attention_find_extras(dti_attention *a, const dt_kargs *args, int i, bool back);
dt_status dti_attention_check_heads(const char *op, dti_attention *a) DT_MUST_USE;

/* What a row that is trained adds. */
void dti_attention_find_dropout(dti_attention *a, const dti_attention_train_attr *attr);

/* Queries of some heads that share a kv head: row i is query first_query + i / n_heads of head
 * first_head + i % n_heads and sees keys first[i] .. last[i]. */
typedef struct dti_attention_block {
    const dti_attention *a;
    int64_t b, kv, first_head, n_heads, first_query, n_queries, n_rows;
    int32_t *first, *last;    /* [DTI_TILE_ROWS] */
    const int32_t *in_blocks; /* where the keys of the queries' sequence lie, or NULL */
} dti_attention_block;

/* The row of k and v that has a key of the block's batch row or sequence. Rows up to the next
 * multiple of DTI_TILE_KEYS follow it. */
static inline int64_t dti_attention_key(const dti_attention_block *block, int64_t key)
{
    const dti_attention *a = block->a;

    if (block->in_blocks == NULL) return block->b * a->n_rows + key;
    return (block->in_blocks[key / a->block_keys] - a->first_block) * a->block_keys +
           key % a->block_keys;
}

/* Tokens that follow each other in a batch row or a sequence: token first_token + i, at the first
 * one's position + i where keys lie in blocks. How they are cut into items is up to the forward. */
typedef struct dti_attention_stretch {
    int64_t b, first_token, n_tokens;
    const int32_t *in_blocks;  /* of its keys, or NULL */
    int64_t queries, n_blocks; /* of a block of queries; such blocks */
    int64_t n_kv, n_kv_blocks; /* kv heads that one item takes */
    int64_t n_segments;        /* that items take one of; 0: an item takes all */
    int64_t first_item;
    float *parts; /* [n_segments, n_tokens, H, E + 2]: sums, largest, total */
} dti_attention_stretch;

/* Where row i lies in [B, T, H], batch row, head and query of it. */
int64_t dti_attention_row(const dti_attention_block *block, int64_t i, int64_t at[3]);

/* The keys that token t of batch row b sees. */
void dti_attention_range(const dti_attention *a, int64_t b, int64_t t, int64_t *first,
                         int64_t *last);

/* Fills first and last of dti_padded(n_rows) rows; those beyond n_rows see no key. */
void dti_attention_see(const dti_attention_block *block);

/* The columns that see one of n keys from `key` on, in whole vectors; false if none does. *masked:
 * some see only part of them. */
bool dti_attention_columns(const dti_attention_block *block, int64_t key, int64_t n, int64_t *begin,
                           int64_t *end, bool *masked);

/* The weights of row i for keys key .. key + n - 1, `step` floats apart, times 0 where one is
 * dropped, times `kept` where it stays. */
void dti_attention_drop(const dti_attention_block *block, float *weights, int64_t step, int64_t i,
                        int64_t key, int64_t n);

/* Local query heads [*begin, *end) that read local kv head kv. */
static inline void dti_attention_heads(const dti_attention *a, int64_t kv, int64_t *begin,
                                       int64_t *end)
{
    const int64_t first = (a->k_offset + kv) * a->group - a->q_offset;

    *begin = first > 0 ? first : 0;
    *end = first + a->group < a->n_heads ? first + a->group : a->n_heads;
}

/* The first key that the query at `position` sees. */
static inline int64_t dti_attention_first(const dti_attention *a, int64_t position)
{
    return a->window > 0 && position >= a->window ? position - a->window + 1 : 0;
}

/* The last one. */
static inline int64_t dti_attention_last(const dti_attention *a, int64_t position)
{
    if (!a->both_ways) return position;
    return a->window > 0 && position + a->window < a->n_rows ? position + a->window - 1
                                                             : a->n_rows - 1;
}

/* Scores of keys key .. key + n - 1 (n <= DTI_TILE_KEYS) for one query, `step` floats apart:
 * scaled, capped, biased. For calls that adjust. */
void dti_attention_adjust(const dti_attention *a, float *scores, int64_t step, const int64_t row[3],
                          int64_t key, int64_t n);

/* Fills y, and lse if it is not NULL. */
dt_status dti_attention_forward(const dti_attention *a) DT_MUST_USE;

/* The same of some stretches. */
dt_status dti_attention_forward_of(const dti_attention *a, dti_attention_stretch *stretches,
                                   int64_t n) DT_MUST_USE;

#endif
