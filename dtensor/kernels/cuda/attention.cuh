/* SPDX-License-Identifier: Apache-2.0
 *
 * What the kernels of attention share: a call, and which rows and keys a block takes.
 *
 * A row is one query of one head. The heads of a group and all queries of a sequence lie under each
 * other, row i being query i / n of the group's head i % n, so that they share the keys and values
 * of their kv head. Keys may be cut into parts, each of which leaves an unfinished softmax (largest
 * score, total of the weights, sums) that attention_merge.cu merges in their order. */
#ifndef DTI_ATTENTION_CUH
#define DTI_ATTENTION_CUH

#include <dtensor/factories.h>

#include "dtensor/kernels/cuda/device.cuh"

enum {
    DTI_ATTENTION_WIDTH = 256,     /* columns of a head, at most, */
    DTI_ATTENTION_WIDEST = 576,    /* and in the plain kernel */
    DTI_ATTENTION_FEW_ROWS = 8,    /* of a block, by kernel: few, */
    DTI_ATTENTION_PLAIN_ROWS = 16, /* plain */
    DTI_ATTENTION_WARPS = 4,       /* of every block */
    DTI_ATTENTION_THREADS = DTI_ATTENTION_WARPS * DTI_WARP,
    DTI_ATTENTION_STEP = 16,      /* keys of a warp at a time, where rows are few */
    DTI_ATTENTION_TILE = 32,      /* keys of a block at a time, where they are many */
    DTI_ATTENTION_MAX_PARTS = 256 /* of the keys */
};

/* Keys of a row; none if last < first. */
typedef struct dti_key_range {
    int first, last;
} dti_key_range;

/* B batch, T tokens, H query heads and Kv kv heads of this rank, S rows of the cache, e columns. */
typedef struct dti_attention_call {
    const void *q;            /* [B, T, H, e] */
    const void *k, *v;        /* [B, S, Kv, e] */
    void *y;                  /* [B, T, H, e] */
    const int32_t *positions; /* [B, T] */
    int64_t batch, n_tokens, n_heads, n_kv, n_keys;
    int width, group;         /* group: query heads that read one kv head */
    int64_t first_kv, n_used; /* local kv heads that some local query head reads */
    int64_t first_head;       /* local number of the first head of first_kv's group; may be < 0 */
    int64_t window;           /* keys that a query sees; 0: all up to its own */
    float scale;              /* of scores, times log2 e: a weight is 2^(score - largest) */
    int64_t n_blocks;         /* of rows, per kv head */
    int n_rows, step;         /* rows of a block; parts of its keys begin at multiples of step */
    int n_parts;              /* of the keys that the rows of a block see */
    float *sums;              /* [block, part, row, e] if there are several parts */
    float2 *state;            /* [block, part, row]: largest score, total of the weights */
    const int32_t *done;      /* [B]: queries from this one on are in y already; NULL: none */
    dti_cuda_fault_word *fault;
    /* What few calls have; the plain kernel alone looks at them, where any of them is set. */
    bool has_extras, both_ways;
    float plain_scale, soft_cap; /* scale without log2 e */
    const void *bias, *sinks;    /* bias [B or 1, H or 1, T or 1, S]; sinks [H] */
    int64_t bias_step[3];        /* elements to its next batch row, head, token; or 0 */
    /* Keys in blocks of a pool, an extra too: a batch row is one token, of a sequence whose blocks
     * the table has. */
    const int32_t *sequence, *table; /* [B], [sequences, max_blocks]; NULL: they lie together */
    int64_t n_sequences, max_blocks, block_keys, n_pool_blocks;
    int64_t first_sequence, first_block; /* of this rank */
    /* What training has, an extra too. */
    const dti_key_range *seen; /* [B, T]: what queries see; NULL: as positions say */
    float *lse;                /* [B, T, H], or NULL */
    dt_random key;             /* of dropout, by place in the global [.., all_heads, T, S] */
    float dropout, kept;       /* probability; factor of what stays */
    int64_t b_offset, q_offset, all_heads;
} dti_attention_call;

/* Unpacks a call whose q, k and v are operands first to first + 2 and whose bias, sinks (forward
 * alone) and segments follow positions: 1; 0: it is empty; -1. *segments: or NULL. */
extern "C" int dti_attention_unpack(dti_cuda *c, const dt_kargs *args, int first, int positions,
                                    dti_attention_call *a, const int32_t **segments);

/* What a row that is trained adds to it; what its queries see lies in c's scratch memory. */
extern "C" int dti_attention_train(dti_cuda *c, const dt_kargs *args, const int32_t *segments,
                                   dti_attention_call *a);

/* Started by attention.cu: 0 or -1. The first two take 16 bits and rows of whole, aligned pieces of
 * 16 bytes; the last one takes everything. */
extern "C" int dti_attention_few(dti_cuda *c, const dti_attention_call *a, int dtype);
extern "C" int dti_attention_many(dti_cuda *c, const dti_attention_call *a, int dtype);
extern "C" int dti_attention_plain(dti_cuda *c, const dti_attention_call *a, int dtype);

/* What these left of several parts becomes y. */
extern "C" int dti_attention_merge(dti_cuda *c, const dti_attention_call *a, int dtype);

/* Of a block of dti_attention_many(). */
static inline int dti_attention_many_rows(int width)
{
    return width <= 128 ? 128 : 64;
}

/* Rows of one sequence and one kv head. */
typedef struct dti_attention_rows {
    int64_t b, kv, first_head;
    int n_heads; /* of this rank that read kv */
    int n;       /* rows */
} dti_attention_rows;

/* pair = b * n_used + the kv head counted from first_kv. */
static __device__ inline dti_attention_rows dti_attention_rows_of(const dti_attention_call &a,
                                                                  int64_t pair)
{
    const int64_t u = pair % a.n_used, first = a.first_head + u * a.group, end = first + a.group;
    dti_attention_rows r;

    r.b = pair / a.n_used;
    r.kv = a.first_kv + u;
    r.first_head = first > 0 ? first : 0;
    r.n_heads = (int)((end < a.n_heads ? end : a.n_heads) - r.first_head);
    r.n = (int)a.n_tokens * r.n_heads;
    return r;
}

/* Where a row lies in q and y, in elements. */
static __device__ inline int64_t dti_attention_at(const dti_attention_call &a,
                                                  const dti_attention_rows &r, int row)
{
    const int64_t t = row / r.n_heads, h = r.first_head + row % r.n_heads;

    return ((r.b * a.n_tokens + t) * a.n_heads + h) * a.width;
}

/* The blocks of the sequence of batch row b; NULL if it is of none. */
static __device__ inline const int32_t *dti_attention_blocks(const dti_attention_call &a, int64_t b)
{
    const int64_t at = a.sequence[b] - a.first_sequence;

    if (a.sequence[b] < 0) return NULL;
    if (at >= 0 && at < a.n_sequences) return a.table + at * a.max_blocks;
    dti_report(a.fault, DTI_CUDA_BAD_SEQUENCE, at, a.n_sequences);
    return NULL;
}

/* Where a key of such blocks lies in k and v, in elements; below 0 if it lies nowhere. */
static __device__ inline int64_t
dti_attention_paged_at(const dti_attention_call &a, const int32_t *blocks, int64_t kv, int64_t key)
{
    const int64_t block = blocks[key / a.block_keys] - a.first_block;

    if (block >= 0 && block < a.n_pool_blocks)
        return ((block * a.block_keys + key % a.block_keys) * a.n_kv + kv) * a.width;
    dti_report(a.fault, DTI_CUDA_BAD_BLOCK, block, a.n_pool_blocks);
    return -1;
}

/* Where key 0 lies in k and v; the next one is n_kv * width elements further. */
static __device__ inline int64_t dti_attention_key_at(const dti_attention_call &a,
                                                      const dti_attention_rows &r)
{
    return (r.b * a.n_keys * a.n_kv + r.kv) * a.width;
}

/* Whether a row, and with it all behind it, is in y already. */
static __device__ inline bool dti_attention_is_done(const dti_attention_call &a,
                                                    const dti_attention_rows &r, int row)
{
    return a.done != NULL && row / r.n_heads >= a.done[r.b];
}

/* A row sees keys first .. last: none if it is not there, or if its position is not one of the
 * cache, which sync() will tell. */
static __device__ inline void dti_attention_keys(const dti_attention_call &a,
                                                 const dti_attention_rows &r, int row, int *first,
                                                 int *last)
{
    int position;

    *first = INT32_MAX;
    *last = -1;
    if (row >= r.n) return;
    if (a.table != NULL && dti_attention_blocks(a, r.b) == NULL) return;
    position = a.positions[r.b * a.n_tokens + row / r.n_heads];
    if (position < 0 || position >= a.n_keys) {
        dti_report(a.fault, DTI_CUDA_BAD_POSITION, position, a.n_keys);
        return;
    }
    *last = position;
    *first = a.window > 0 && position >= a.window ? (int)(position - a.window + 1) : 0;
}

/* Part `part` of the keys lo .. hi is those of the steps *begin .. *end - 1. What a block's rows
 * see is known on the device only, so it is cut evenly there, and parts may be empty. */
static __device__ inline void dti_attention_part(const dti_attention_call &a, int part, int lo,
                                                 int hi, int *begin, int *end)
{
    const int first = lo / a.step, n = hi < lo ? 0 : hi / a.step + 1 - first;
    const int even = (n + a.n_parts - 1) / a.n_parts;
    const int each = even < DTI_ATTENTION_WARPS ? DTI_ATTENTION_WARPS : even;
    const int64_t from = (int64_t)part * each, to = from + each;

    *begin = first + (int)(from < n ? from : n);
    *end = first + (int)(to < n ? to : n);
}

/* The last key that a query sees which sees keys on both sides. */
static __device__ inline int dti_attention_last_both_ways(const dti_attention_call &a, int position)
{
    return a.window > 0 && position + a.window < a.n_keys ? (int)(position + a.window - 1)
                                                          : (int)(a.n_keys - 1);
}

/* s + x y, on the device in one step; where fmaf() is a slow call, in two. */
static __device__ inline float dti_add_product(float s, float x, float y)
{
#ifdef __CUDACC__
    return fmaf(x, y, s);
#else
    return s + x * y;
#endif
}

#endif
