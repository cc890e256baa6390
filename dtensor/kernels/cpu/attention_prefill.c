/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of many tokens: tiles of keys against blocks of rows, a row being a query of one head,
 * so that the heads of a group share the tiles of their kv head. The softmax is updated tile by
 * tile. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { R = DTI_TILE_ROWS, STRIDE = DTI_TILE_STRIDE };

/* An item is (batch row, kv head, part of the group's heads, block of queries). */
typedef struct prefill_job {
    const dti_attention *a;
    int64_t heads;   /* of a group that one item takes: all, unless a group exceeds R */
    int64_t n_parts; /* of a group */
    int64_t queries; /* per block */
    int64_t n_blocks;
    char *scratch; /* of worker 0 */
    size_t scratch_bytes;
    _Atomic int64_t next;
} prefill_job;

/* What a worker holds; float arrays as named in dti_attention_tile. */
typedef struct prefill_scratch {
    float q[DTI_TILE_ROWS]; /* one row of q before it is transposed, in pieces of R */
    float largest[DTI_TILE_ROWS], total[DTI_TILE_ROWS], factor[DTI_TILE_ROWS];
    int32_t first[DTI_TILE_ROWS], last[DTI_TILE_ROWS];
    float scores[DTI_TILE_KEYS * DTI_TILE_STRIDE];
    float arrays[]; /* qt [E, STRIDE], sums [R, E], k [DTI_TILE_KEYS, E], v [DTI_TILE_KEYS, E] */
} prefill_scratch;

typedef struct prefill_item {
    dti_attention_block block;
    prefill_scratch *s;
    float *qt, *sums, *k, *v;
} prefill_item;

/* Where row i of the item lies in q and y, in elements. */
static int64_t row_at(const prefill_item *it, int64_t i)
{
    int64_t at[3];

    return dti_attention_row(&it->block, i, at) * it->block.a->width;
}

/* Transposes the queries and starts an empty softmax. */
static void begin_rows(const prefill_item *it)
{
    const dti_attention *a = it->block.a;
    const int64_t E = dti_padded(a->width);
    prefill_scratch *s = it->s;

    memset(it->qt, 0, (size_t)(E * STRIDE) * sizeof(float));
    memset(it->sums, 0, (size_t)(R * E) * sizeof(float));
    dti_attention_see(&it->block);
    for (int64_t i = 0; i < R; i++) {
        s->largest[i] = -INFINITY;
        s->total[i] = 0.0f;
        for (int64_t d = 0; i < it->block.n_rows && d < a->width; d += R) {
            const int64_t n = a->width - d < R ? a->width - d : R;
            a->rows->load(s->q, a->q + (row_at(it, i) + d) * a->bytes, n);
            for (int64_t c = 0; c < n; c++) it->qt[(d + c) * STRIDE + i] = s->q[c];
        }
    }
}

static void load_keys(const prefill_item *it, int64_t key, int64_t n)
{
    const dti_attention *a = it->block.a;
    const int64_t stride = a->n_kv * a->width;
    const int64_t at =
        ((it->block.b * a->n_rows + key) * a->n_kv + it->block.kv) * a->width * a->bytes;

    a->ops->rows[a->dtype](it->k, a->k + at, stride, n, a->width);
    a->ops->rows[a->dtype](it->v, a->v + at, stride, n, a->width);
}

/* Of a tile: columns are rows of the item. */
static void adjust_tile(const dti_attention_tile *t)
{
    const dti_attention_block *block = t->arg;
    int64_t row[3];

    for (int64_t i = t->begin; i < t->end && i < block->n_rows; i++) {
        (void)dti_attention_row(block, i, row);
        dti_attention_adjust(block->a, t->scores + i, STRIDE, row, t->key, t->n_keys);
    }
}

static void drop_tile(const dti_attention_tile *t)
{
    dti_attention_drop(t->arg, t->scores, t->key, t->n_keys, t->begin, t->end);
}

/* Tiles begin at multiples of their size, whatever the first key is. */
static void walk_keys(const prefill_item *it)
{
    const dti_attention *a = it->block.a;
    prefill_scratch *s = it->s;
    dti_attention_tile t = { .q = it->qt,
                             .k = it->k,
                             .v = it->v,
                             .scores = s->scores,
                             .sums = it->sums,
                             .largest = s->largest,
                             .total = s->total,
                             .factor = s->factor,
                             .first = s->first,
                             .last = s->last,
                             .width = a->width,
                             .scale = a->adjusts ? 1.0f : a->scale,
                             .adjust = a->adjusts ? adjust_tile : NULL,
                             .drop = a->drops ? drop_tile : NULL,
                             .arg = &it->block };
    int32_t first = INT32_MAX, last = -1;

    for (int64_t i = 0; i < it->block.n_rows; i++) {
        if (s->first[i] < first) first = s->first[i];
        if (s->last[i] > last) last = s->last[i];
    }
    for (int64_t key = (int64_t)(first / DTI_TILE_KEYS) * DTI_TILE_KEYS; key <= last;
         key += DTI_TILE_KEYS) {
        t.key = (int32_t)key;
        t.n_keys = last + 1 - key < DTI_TILE_KEYS ? last + 1 - key : DTI_TILE_KEYS;
        if (!dti_attention_columns(&it->block, key, t.n_keys, &t.begin, &t.end, &t.masked))
            continue;
        load_keys(it, key, t.n_keys);
        a->ops->tile(&t);
    }
}

/* Weighted means of v, and what a way back needs of the softmax. */
static void end_rows(const prefill_item *it)
{
    const dti_attention *a = it->block.a;
    const int64_t E = dti_padded(a->width);
    prefill_scratch *s = it->s;
    int64_t at[3];

    for (int64_t i = 0; i < it->block.n_rows; i++) {
        float *sums = it->sums + i * E;
        const int64_t row = dti_attention_row(&it->block, i, at);
        if (a->sinks != NULL) {
            const float factor = dti_attention_sink(a, at[1], &s->largest[i], &s->total[i]);
            for (int64_t d = 0; d < a->width; d++) sums[d] *= factor;
        }
        for (int64_t d = 0; d < a->width; d++) sums[d] /= s->total[i];
        a->rows->store(a->y + row * a->width * a->bytes, sums, a->width);
        if (a->lse != NULL) a->lse[row] = s->largest[i] + logf(s->total[i]);
    }
}

static void prefill_run(const prefill_job *j, int64_t number, void *scratch)
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width);
    const int64_t number_of_block =
        j->n_blocks - 1 - number % j->n_blocks; /* the longest ones first */
    const int64_t part = number / j->n_blocks % j->n_parts;
    const int64_t pair = number / j->n_blocks / j->n_parts;
    prefill_scratch *s = scratch;
    prefill_item it = { .block = { .a = a,
                                   .b = pair / a->n_used,
                                   .kv = a->first_kv + pair % a->n_used,
                                   .first = s->first,
                                   .last = s->last },
                        .s = s };
    dti_attention_block *block = &it.block;
    int64_t end;

    dti_attention_heads(a, block->kv, &block->first_head, &end);
    block->first_head += part * j->heads;
    block->n_heads = end - block->first_head < j->heads ? end - block->first_head : j->heads;
    if (block->n_heads <= 0) return;
    block->first_query = number_of_block * j->queries;
    block->n_queries = a->n_tokens - block->first_query < j->queries
                           ? a->n_tokens - block->first_query
                           : j->queries;
    block->n_rows = block->n_queries * block->n_heads;
    it.qt = s->arrays;
    it.sums = it.qt + E * STRIDE;
    it.k = it.sums + R * E;
    it.v = it.k + DTI_TILE_KEYS * E;
    begin_rows(&it);
    walk_keys(&it);
    end_rows(&it);
}

static void prefill_share(void *arg, int worker, int n_workers)
{
    prefill_job *j = arg;
    const int64_t n_items = j->a->batch * j->a->n_used * j->n_parts * j->n_blocks;

    (void)n_workers;
    for (;;) {
        const int64_t item = atomic_fetch_add(&j->next, 1);
        if (item >= n_items) return;
        prefill_run(j, item, j->scratch + (size_t)worker * j->scratch_bytes);
    }
}

dt_status dti_attention_prefill(const dti_attention *a)
{
    const int64_t E = dti_padded(a->width);
    const int64_t floats = (STRIDE + R + 2 * DTI_TILE_KEYS) * E;
    prefill_job job = { .a = a, .heads = a->group < R ? a->group : R };
    void *scratch;

    job.n_parts = (a->group + job.heads - 1) / job.heads;
    job.queries = R / job.heads;
    job.n_blocks = (a->n_tokens + job.queries - 1) / job.queries;
    job.scratch_bytes =
        (sizeof(prefill_scratch) + (size_t)floats * sizeof(float) + 4095) / 4096 * 4096;
    DT_TRY(
        dti_cpu_scratch(a->cpu, (size_t)dti_pool_size(a->cpu->pool) * job.scratch_bytes, &scratch));
    job.scratch = scratch;
    /* each element of q takes part in products with many keys */
    dti_cpu_run(a->cpu, a->batch * a->n_tokens * a->n_heads * a->width * a->bytes * DTI_TILE_KEYS,
                prefill_share, &job);
    return DT_OK;
}
