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
    const dti_attention *a;
    prefill_scratch *s;
    float *qt, *sums, *k, *v;
    int64_t b, kv, first_head, n_heads, first_query, n_queries;
    int64_t n_rows; /* n_queries * n_heads: row i is query i / n_heads of head i % n_heads */
} prefill_item;

/* Where row i of the item lies in q and y, in elements. */
static int64_t row_at(const prefill_item *it, int64_t i)
{
    const dti_attention *a = it->a;
    const int64_t t = it->first_query + i / it->n_heads, h = it->first_head + i % it->n_heads;

    return ((it->b * a->n_tokens + t) * a->n_heads + h) * a->width;
}

/* Transposes the queries and starts an empty softmax; rows beyond the last see no key. */
static void begin_rows(const prefill_item *it)
{
    const dti_attention *a = it->a;
    const int64_t E = dti_padded(a->width);
    prefill_scratch *s = it->s;

    memset(it->qt, 0, (size_t)(E * STRIDE) * sizeof(float));
    memset(it->sums, 0, (size_t)(R * E) * sizeof(float));
    for (int64_t i = 0; i < R; i++) {
        const bool used = i < it->n_rows;
        const int64_t t = it->first_query + i / it->n_heads;
        s->largest[i] = -INFINITY;
        s->total[i] = 0.0f;
        const int32_t position = used ? a->positions[it->b * a->n_tokens + t] : -1;
        s->last[i] = used ? (int32_t)dti_attention_last(a, position) : -1;
        s->first[i] = (int32_t)dti_attention_first(a, position);
        for (int64_t d = 0; used && d < a->width; d += R) {
            const int64_t n = a->width - d < R ? a->width - d : R;
            a->rows->load(s->q, a->q + (row_at(it, i) + d) * a->bytes, n);
            for (int64_t c = 0; c < n; c++) it->qt[(d + c) * STRIDE + i] = s->q[c];
        }
    }
}

/* The columns that see a key of [key, key + n), in whole vectors; false if none does. */
static bool columns_of(const prefill_item *it, int64_t key, dti_attention_tile *t)
{
    const prefill_scratch *s = it->s;
    int64_t begin = R, end = 0;

    t->masked = false;
    for (int64_t i = 0; i < it->n_rows; i++) {
        if (s->last[i] < key || s->first[i] >= key + t->n_keys) continue;
        if (begin == R) begin = i;
        end = i + 1;
    }
    t->begin = begin / DTI_PAD * DTI_PAD;
    t->end = dti_padded(end);
    for (int64_t i = t->begin; i < t->end; i++)
        t->masked |= s->first[i] > key || s->last[i] < key + t->n_keys - 1;
    return begin < end;
}

static void load_keys(const prefill_item *it, int64_t key, int64_t n)
{
    const dti_attention *a = it->a;
    const int64_t stride = a->n_kv * a->width;
    const int64_t at = ((it->b * a->n_rows + key) * a->n_kv + it->kv) * a->width * a->bytes;

    a->ops->rows[a->dtype](it->k, a->k + at, stride, n, a->width);
    a->ops->rows[a->dtype](it->v, a->v + at, stride, n, a->width);
}

/* Of a tile: columns are rows of the item. */
static void adjust_tile(const dti_attention_tile *t)
{
    const prefill_item *it = t->arg;

    for (int64_t i = t->begin; i < t->end && i < it->n_rows; i++)
        dti_attention_adjust(it->a, t->scores + i, STRIDE,
                             (const int64_t[]){ it->b, it->first_head + i % it->n_heads,
                                                it->first_query + i / it->n_heads },
                             t->key, t->n_keys);
}

/* Tiles begin at multiples of their size, whatever the first key is. */
static void walk_keys(const prefill_item *it)
{
    const dti_attention *a = it->a;
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
                             .arg = it };
    int32_t first = INT32_MAX, last = -1;

    for (int64_t i = 0; i < it->n_rows; i++) {
        if (s->first[i] < first) first = s->first[i];
        if (s->last[i] > last) last = s->last[i];
    }
    for (int64_t key = (int64_t)(first / DTI_TILE_KEYS) * DTI_TILE_KEYS; key <= last;
         key += DTI_TILE_KEYS) {
        t.key = (int32_t)key;
        t.n_keys = last + 1 - key < DTI_TILE_KEYS ? last + 1 - key : DTI_TILE_KEYS;
        if (!columns_of(it, key, &t)) continue;
        load_keys(it, key, t.n_keys);
        a->ops->tile(&t);
    }
}

static void prefill_run(const prefill_job *j, int64_t number, void *scratch)
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width);
    const int64_t block = j->n_blocks - 1 - number % j->n_blocks; /* the longest ones first */
    const int64_t part = number / j->n_blocks % j->n_parts;
    const int64_t pair = number / j->n_blocks / j->n_parts;
    prefill_scratch *s = scratch;
    prefill_item it = {
        .a = a, .s = s, .b = pair / a->n_used, .kv = a->first_kv + pair % a->n_used
    };
    int64_t end;

    dti_attention_heads(a, it.kv, &it.first_head, &end);
    it.first_head += part * j->heads;
    it.n_heads = end - it.first_head < j->heads ? end - it.first_head : j->heads;
    if (it.n_heads <= 0) return;
    it.first_query = block * j->queries;
    it.n_queries =
        a->n_tokens - it.first_query < j->queries ? a->n_tokens - it.first_query : j->queries;
    it.n_rows = it.n_queries * it.n_heads;
    it.qt = s->arrays;
    it.sums = it.qt + E * STRIDE;
    it.k = it.sums + R * E;
    it.v = it.k + DTI_TILE_KEYS * E;
    begin_rows(&it);
    walk_keys(&it);
    for (int64_t i = 0; i < it.n_rows; i++) {
        float *sums = it.sums + i * E;
        if (a->sinks != NULL) {
            const float factor =
                dti_attention_sink(a, it.first_head + i % it.n_heads, &s->largest[i], &s->total[i]);
            for (int64_t d = 0; d < a->width; d++) sums[d] *= factor;
        }
        for (int64_t d = 0; d < a->width; d++) sums[d] /= s->total[i];
        a->rows->store(a->y + row_at(&it, i) * a->bytes, sums, a->width);
    }
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
