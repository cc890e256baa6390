/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token and of many. A row is a query of one head. Keys are cut at multiples of
 * SEGMENT whoever computes them: a segment gives a row an unfinished softmax (largest score, total
 * of the weights, sums) out of tiles of keys in their order, and a row's segments are merged in
 * theirs. So one token behind a long cache can be shared out over threads, and gets the bits that
 * it gets among many. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/sync.h"

enum { R = DTI_TILE_ROWS, SEGMENT = 16 * DTI_TILE_KEYS };

/* What a call may hold of unfinished rows, and how many items there should be per thread. */
enum { PARTS_BYTES = 64 << 20, ITEMS = 4 };

/* An item is (stretch, kv heads, part of the groups' heads, block of queries, segment). */
typedef struct forward_job {
    const dti_attention *a;
    dti_attention_stretch *stretches;
    int64_t n_stretches, n_items;
    int64_t heads, n_parts; /* of a group that one item takes: all, unless a group exceeds R */
    char *scratch;          /* of worker 0 */
    size_t scratch_bytes;
    int n_workers;
} forward_job;

/* An unfinished softmax of a row. */
typedef struct forward_row {
    float *sums, *largest, *total;
} forward_row;

/* What a worker holds: the rows of an item, those of one kv head after those of the other. */
typedef struct forward_scratch {
    _Alignas(DTI_LINE_BYTES) _Atomic int64_t next; /* item of this worker's share */
    int64_t end;
    dti_attention_block blocks[R];      /* by kv head */
    float largest[R], total[R];         /* of a segment */
    float all_largest[R], all_total[R]; /* of all before it */
    int32_t first[R + DTI_PAD], last[R + DTI_PAD];
    /* q, sums, all sums [R, E], keys [E, DTI_TILE_KEYS], values of the same size */
    _Alignas(64) float arrays[];
} forward_scratch;

static forward_scratch *scratch_of(const forward_job *j, int worker)
{
    return (void *)(j->scratch + (size_t)worker * j->scratch_bytes);
}

static forward_row row_of(const dti_attention *a, forward_scratch *s, int64_t i)
{
    const int64_t E = dti_padded(a->width);

    return (forward_row){ s->arrays + (R + i) * E, &s->largest[i], &s->total[i] };
}

static forward_row whole_row_of(const dti_attention *a, forward_scratch *s, int64_t i)
{
    const int64_t E = dti_padded(a->width);

    return (forward_row){ s->arrays + (2 * R + i) * E, &s->all_largest[i], &s->all_total[i] };
}

/* Row `row` of [B, T, H], which is of the stretch, in segment `segment`. */
static forward_row part_of(const dti_attention *a, const dti_attention_stretch *of, int64_t segment,
                           int64_t row)
{
    const int64_t E = dti_padded(a->width), n = of->n_tokens * a->n_heads;
    const int64_t first = (of->b * a->n_tokens + of->first_token) * a->n_heads;
    float *at = of->parts + (segment * n + row - first) * (E + 2);

    return (forward_row){ at, at + E, at + E + 1 };
}

static bool sees(int64_t first, int64_t last, int64_t segment)
{
    return first < (segment + 1) * SEGMENT && last >= segment * SEGMENT;
}

static void begin_row(forward_row row, int64_t E)
{
    memset(row.sums, 0, (size_t)E * sizeof *row.sums);
    *row.largest = -INFINITY;
    *row.total = 0.0f;
}

static void merge(forward_row into, forward_row row, int64_t width)
{
    const float m = fmaxf(*into.largest, *row.largest);
    const float old = *into.largest == m ? 1.0f : expf(*into.largest - m);
    const float add = *row.largest == m ? 1.0f : expf(*row.largest - m);

    for (int64_t d = 0; d < width; d++) into.sums[d] = into.sums[d] * old + row.sums[d] * add;
    *into.total = *into.total * old + *row.total * add;
    *into.largest = m;
}

/* The weighted mean of v, and what a way back needs of the softmax. A sink is one score more. */
static void end_row(const dti_attention *a, forward_row row, int64_t at, int64_t head)
{
    if (a->sinks != NULL) {
        float sink, m, factor;
        a->rows->load(&sink, a->sinks + head * a->bytes, 1);
        m = fmaxf(*row.largest, sink);
        factor = expf(*row.largest - m);
        *row.total = *row.total * factor + expf(sink - m);
        *row.largest = m;
        for (int64_t d = 0; d < a->width; d++) row.sums[d] *= factor;
    }
    for (int64_t d = 0; d < a->width; d++) row.sums[d] /= *row.total;
    a->rows->store(a->y + at * a->width * a->bytes, row.sums, a->width);
    if (a->lse != NULL) a->lse[at] = *row.largest + logf(*row.total);
}

/* --- an item ---------------------------------------------------------------------------------- */

static void adjust_rows(const dti_attention_tile *t, float *scores, int64_t row, int64_t n)
{
    const dti_attention_block *block = t->arg;
    int64_t at[3];

    for (int64_t i = 0; i < n; i++) {
        (void)dti_attention_row(block, t->first - block->first + row + i, at);
        dti_attention_adjust(block->a, scores + i * DTI_WEIGHTS_STRIDE, 1, at, t->key, t->n_keys);
    }
}

static void drop_rows(const dti_attention_tile *t, float *weights, int64_t row, int64_t n)
{
    const dti_attention_block *block = t->arg;

    for (int64_t i = 0; i < n; i++)
        dti_attention_drop(block, weights + i * DTI_WEIGHTS_STRIDE, 1,
                           t->first - block->first + row + i, t->key, t->n_keys);
}

/* The rows of a kv head that see one of n keys from t->key on. */
static void run_tile(const dti_attention_block *block, forward_scratch *s, dti_attention_tile *t)
{
    const dti_attention *a = block->a;
    const int64_t E = dti_padded(a->width), base = block->first - s->first;
    const int64_t at =
        (dti_attention_key(block, t->key) * a->n_kv + block->kv) * a->width * a->bytes;
    int64_t begin = 0, end = block->n_rows;

    while (begin < end &&
           (block->last[begin] < t->key || block->first[begin] >= t->key + t->n_keys))
        begin++;
    while (begin < end &&
           (block->last[end - 1] < t->key || block->first[end - 1] >= t->key + t->n_keys))
        end--;
    if (begin == end) return;
    t->n_rows = end - begin;
    t->first = block->first + begin;
    t->last = block->last + begin;
    t->q = s->arrays + (base + begin) * E;
    t->sums = s->arrays + (R + base + begin) * E;
    t->largest = s->largest + base + begin;
    t->total = s->total + base + begin;
    t->k = a->k + at;
    t->v = a->v + at;
    t->arg = block;
    a->ops->tile[a->dtype](t);
}

/* While kv head i of n_kv is computed, its share of the next tile's rows is fetched, all heads of a
 * row at once: that is how they lie. n_left keys come after this tile. */
static void look_ahead(const dti_attention_block *block, int64_t i, int64_t n_kv, int64_t n_left,
                       dti_attention_tile *t)
{
    const dti_attention *a = block->a;
    const int64_t n = n_left <= 0 ? 0 : n_left < DTI_TILE_KEYS ? n_left : DTI_TILE_KEYS;
    const int64_t begin = n * i / n_kv;
    int64_t at;

    if (n == 0) { /* of no block */
        t->n_ahead = 0;
        return;
    }
    at = (dti_attention_key(block, t->key + DTI_TILE_KEYS) + begin) * a->n_kv + block->kv;
    at *= a->width * a->bytes;
    t->n_ahead = n * (i + 1) / n_kv - begin;
    t->ahead_bytes = n_kv * a->width * a->bytes;
    t->k_ahead = a->k + at;
    t->v_ahead = a->v + at;
}

/* Tiles begin at multiples of their size, whatever the first key is. Keys up to `last` are fetched,
 * into the next segment too, which most likely is this worker's next item. */
static void walk_keys(const forward_job *j, int64_t n_kv, forward_scratch *s, int64_t key,
                      int64_t end, int64_t last)
{
    const dti_attention *a = j->a;
    dti_attention_tile t = { .stride = a->n_kv * a->width,
                             .width = a->width,
                             .scale = a->adjusts ? 1.0f : a->scale,
                             .adjust = a->adjusts ? adjust_rows : NULL,
                             .drop = a->drops ? drop_rows : NULL };

    t.keys = s->arrays + 3 * R * dti_padded(a->width);
    t.values = t.keys + DTI_TILE_KEYS * dti_padded(a->width);
    for (; key < end; key += DTI_TILE_KEYS) {
        t.key = (int32_t)key;
        t.n_keys = end - key < DTI_TILE_KEYS ? end - key : DTI_TILE_KEYS;
        for (int64_t i = 0; i < n_kv; i++) {
            look_ahead(&s->blocks[0], i, n_kv, last + 1 - key - DTI_TILE_KEYS, &t);
            run_tile(&s->blocks[i], s, &t);
        }
    }
}

/* One segment for the rows of the item, of which some see keys first .. last; into its part of the
 * job or to what the segments before it gave. */
static void run_segment(const forward_job *j, const dti_attention_stretch *of, int64_t n_kv,
                        forward_scratch *s, int64_t segment, const int64_t range[2])
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width), n = j->heads * of->queries;
    const int64_t tile = range[0] / DTI_TILE_KEYS * DTI_TILE_KEYS;
    const int64_t begin = segment * SEGMENT, end = begin + SEGMENT;
    int64_t at[3];

    for (int64_t i = 0; i < n_kv * n; i++) begin_row(row_of(a, s, i), E);
    walk_keys(j, n_kv, s, tile > begin ? tile : begin, range[1] + 1 < end ? range[1] + 1 : end,
              range[1]);
    for (int64_t kv = 0; kv < n_kv; kv++)
        for (int64_t i = 0; i < s->blocks[kv].n_rows; i++) {
            const forward_row row = row_of(a, s, kv * n + i);
            if (!sees(s->first[kv * n + i], s->last[kv * n + i], segment)) continue;
            if (of->n_segments == 0) {
                merge(whole_row_of(a, s, kv * n + i), row, a->width);
                continue;
            }
            forward_row part = part_of(a, of, segment, dti_attention_row(&s->blocks[kv], i, at));
            memcpy(part.sums, row.sums, (size_t)E * sizeof *row.sums);
            *part.largest = *row.largest;
            *part.total = *row.total;
        }
}

/* The queries of kv heads kv .. kv + n_kv - 1 of the block, and the keys that some of them see. */
static void begin_rows(const forward_job *j, const dti_attention_stretch *of,
                       const dti_attention_block *like, int64_t part, int64_t n_kv,
                       forward_scratch *s, int64_t range[2])
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width);

    range[0] = INT64_MAX;
    range[1] = -1;
    for (int64_t k = 0; k < n_kv; k++) {
        dti_attention_block *block = &s->blocks[k];
        const int64_t base = k * j->heads * of->queries;
        int64_t end, at[3];
        *block = *like;
        block->kv = like->kv + k;
        block->first = s->first + base;
        block->last = s->last + base;
        dti_attention_heads(a, block->kv, &block->first_head, &end);
        block->first_head += part * j->heads;
        block->n_heads = end - block->first_head < j->heads ? end - block->first_head : j->heads;
        if (block->n_heads < 0) block->n_heads = 0;
        block->n_rows = block->n_queries * block->n_heads;
        dti_attention_see(block);
        for (int64_t i = 0; i < block->n_rows; i++) {
            if (block->first[i] < range[0]) range[0] = block->first[i];
            if (block->last[i] > range[1]) range[1] = block->last[i];
            if (of->n_segments == 0) begin_row(whole_row_of(a, s, base + i), E);
            if (i % block->n_heads != 0) continue;
            a->ops->queries[a->dtype](s->arrays + (base + i) * E,
                                      a->q + dti_attention_row(block, i, at) * a->width * a->bytes,
                                      a->width, block->n_heads, a->width);
        }
    }
}

static const dti_attention_stretch *find_stretch(const forward_job *j, int64_t item)
{
    int64_t begin = 0, end = j->n_stretches;

    while (end - begin > 1) {
        const int64_t middle = begin + (end - begin) / 2;
        if (j->stretches[middle].first_item <= item)
            begin = middle;
        else
            end = middle;
    }
    return &j->stretches[begin];
}

static void forward_run(const forward_job *j, int64_t item, forward_scratch *s)
{
    const dti_attention *a = j->a;
    const dti_attention_stretch *of = find_stretch(j, item);
    const int64_t n_segments = of->n_segments > 0 ? of->n_segments : 1;
    const int64_t number = item - of->first_item;
    const int64_t segment = number % n_segments, block = number / n_segments;
    const int64_t part = block / of->n_blocks, kv = part / j->n_parts * of->n_kv;
    const int64_t n_kv = a->n_used - kv < of->n_kv ? a->n_used - kv : of->n_kv;
    /* the longest blocks first */
    const int64_t first_query = (of->n_blocks - 1 - block % of->n_blocks) * of->queries;
    const int64_t left = of->n_tokens - first_query;
    const dti_attention_block like = { .a = a,
                                       .b = of->b,
                                       .kv = a->first_kv + kv,
                                       .first_query = of->first_token + first_query,
                                       .n_queries = left < of->queries ? left : of->queries,
                                       .in_blocks = of->in_blocks };
    int64_t range[2], at[3];

    begin_rows(j, of, &like, part % j->n_parts, n_kv, s, range);
    if (of->n_segments > 0) {
        if (sees(range[0], range[1], segment)) run_segment(j, of, n_kv, s, segment, range);
        return;
    }
    for (int64_t i = range[0] / SEGMENT; i <= range[1] / SEGMENT; i++)
        run_segment(j, of, n_kv, s, i, range);
    for (int64_t k = 0; k < n_kv; k++)
        for (int64_t i = 0; i < s->blocks[k].n_rows; i++) {
            const int64_t row = dti_attention_row(&s->blocks[k], i, at);
            end_row(a, whole_row_of(a, s, k * j->heads * of->queries + i), row, at[1]);
        }
}

/* A worker takes neighbours one after the other, since an item fetches keys of the next one, then
 * what is left of the others' shares. */
static void forward_share(void *arg, int worker, int n_workers)
{
    const forward_job *j = arg;

    (void)n_workers; /* may be fewer than there are shares */
    for (int i = 0; i < j->n_workers; i++) {
        forward_scratch *of = scratch_of(j, (worker + i) % j->n_workers);
        for (;;) {
            const int64_t item = atomic_fetch_add(&of->next, 1);
            if (item >= of->end) break;
            forward_run(j, item, scratch_of(j, worker));
            dti_cpu_beside(j->a->cpu, worker);
        }
    }
}

/* Rows whose segments were taken one by one. */
static void merge_rows(const forward_job *j, const dti_attention_stretch *of, int64_t begin,
                       int64_t end, forward_row row)
{
    const dti_attention *a = j->a;
    int64_t first, last;

    for (int64_t at = begin; at < end; at++) {
        begin_row(row, dti_padded(a->width));
        dti_attention_range(a, at / a->n_heads / a->n_tokens, at / a->n_heads % a->n_tokens, &first,
                            &last);
        for (int64_t i = first / SEGMENT; i <= last / SEGMENT; i++)
            merge(row, part_of(a, of, i, at), a->width);
        end_row(a, row, at, at % a->n_heads);
    }
}

static void merge_share(void *arg, int worker, int n_workers)
{
    const forward_job *j = arg;
    const dti_attention *a = j->a;
    const forward_row row = whole_row_of(a, scratch_of(j, worker), 0);
    int64_t begin, end;

    dti_pool_share(a->batch * a->n_tokens * a->n_heads, 1, worker, n_workers, &begin, &end);
    for (int64_t i = 0; i < j->n_stretches; i++) {
        const dti_attention_stretch *of = &j->stretches[i];
        const int64_t first = (of->b * a->n_tokens + of->first_token) * a->n_heads;
        const int64_t last = first + of->n_tokens * a->n_heads;
        if (of->n_segments > 0)
            merge_rows(j, of, first > begin ? first : begin, last < end ? last : end, row);
    }
}

/* --- a call ----------------------------------------------------------------------------------- */

/* What the tokens of a stretch see. */
typedef struct forward_view {
    int64_t n_keys, n_segments, longest; /* of all together; the last key of any */
} forward_view;

static forward_view view_of(const dti_attention *a, const dti_attention_stretch *of)
{
    forward_view v = { 0 };

    for (int64_t t = of->first_token; t < of->first_token + of->n_tokens; t++) {
        int64_t first, last;
        dti_attention_range(a, of->b, t, &first, &last);
        v.n_keys += last - first + 1;
        v.n_segments += last / SEGMENT - first / SEGMENT + 1;
        v.longest = last > v.longest ? last : v.longest;
    }
    return v;
}

/* How many segments unfinished rows have room for: as many as the cache has, so that memory does
 * not grow with the context. A table is as long as its longest sequence may become. */
static int64_t parts_of(const dti_attention *a, const forward_view *v)
{
    return a->table != NULL ? v->longest / SEGMENT + 1 : (a->n_rows + SEGMENT - 1) / SEGMENT;
}

/* How rows, heads and segments become items: blocks of queries, and where a stretch is one block
 * its segments, if what they leave unfinished fits into the call's room. */
static void cut(forward_job *j, int64_t *n_keys, int64_t *parts_bytes)
{
    const dti_attention *a = j->a;
    const int64_t of_token = a->n_heads * (dti_padded(a->width) + 2) * (int64_t)sizeof(float);
    int64_t n_items = 0, wanted;

    *n_keys = *parts_bytes = 0;
    j->heads = a->group < R ? a->group : R;
    j->n_parts = (a->group + j->heads - 1) / j->heads;
    for (int64_t i = 0; i < j->n_stretches; i++) {
        dti_attention_stretch *of = &j->stretches[i];
        const forward_view v = view_of(a, of);
        const int64_t bytes = parts_of(a, &v) * of->n_tokens * of_token;
        *n_keys += v.n_keys;
        of->queries = R / j->heads < of->n_tokens ? R / j->heads : of->n_tokens;
        of->n_blocks = (of->n_tokens + of->queries - 1) / of->queries;
        of->n_segments =
            of->n_blocks == 1 && bytes <= PARTS_BYTES - *parts_bytes ? v.longest / SEGMENT + 1 : 0;
        if (of->n_segments == 0) continue;
        *parts_bytes += bytes;
        n_items += v.n_segments / of->n_tokens * a->n_used;
    }
    wanted = n_items / (ITEMS * dti_pool_size(a->cpu->pool));
    for (int64_t i = 0; i < j->n_stretches; i++) {
        dti_attention_stretch *of = &j->stretches[i];
        const int64_t most = R / (j->heads * of->queries);
        of->n_kv = of->n_segments == 0 || wanted < 1 ? 1 : wanted < most ? wanted : most;
        of->n_kv = of->n_kv < a->n_used ? of->n_kv : a->n_used;
        of->n_kv_blocks = (a->n_used + of->n_kv - 1) / of->n_kv;
        of->n_kv = (a->n_used + of->n_kv_blocks - 1) / of->n_kv_blocks; /* blocks of like size */
        of->first_item = j->n_items;
        j->n_items +=
            of->n_kv_blocks * j->n_parts * of->n_blocks * (of->n_segments > 0 ? of->n_segments : 1);
    }
}

/* The room of the parts, stretch by stretch; their bytes. */
static int64_t place_parts(const forward_job *j, float *parts)
{
    const float *begin = parts;
    const dti_attention *a = j->a;

    for (int64_t i = 0; i < j->n_stretches; i++) {
        dti_attention_stretch *of = &j->stretches[i];
        of->parts = parts;
        parts += of->n_segments * of->n_tokens * a->n_heads * (dti_padded(a->width) + 2);
    }
    return (parts - begin) * (int64_t)sizeof *parts;
}

static void share_items(const forward_job *j)
{
    for (int w = 0; w < j->n_workers; w++) {
        forward_scratch *s = scratch_of(j, w);
        int64_t begin;
        dti_pool_share(j->n_items, 1, w, j->n_workers, &begin, &s->end);
        atomic_init(&s->next, begin);
    }
}

dt_status dti_attention_forward_of(const dti_attention *a, dti_attention_stretch *stretches,
                                   int64_t n)
{
    const int64_t E = dti_padded(a->width);
    forward_job job = {
        .a = a, .stretches = stretches, .n_stretches = n, .n_workers = dti_pool_size(a->cpu->pool)
    };
    int64_t n_keys, parts_bytes;
    size_t bytes;
    void *scratch;

    cut(&job, &n_keys, &parts_bytes);
    bytes = sizeof(forward_scratch) + (size_t)((3 * R + 2 * DTI_TILE_KEYS) * E) * sizeof(float);
    job.scratch_bytes = (bytes + 4095) / 4096 * 4096;
    bytes = (size_t)job.n_workers * job.scratch_bytes;
    DT_TRY(dti_cpu_scratch(a->cpu, bytes + (size_t)parts_bytes, &scratch));
    job.scratch = scratch;
    parts_bytes = place_parts(&job, (void *)(job.scratch + bytes));
    share_items(&job);
    /* what is read, and each key again for each token */
    dti_cpu_run_stream(a->cpu, 2 * n_keys * a->n_used * a->width * a->bytes, forward_share, &job);
    if (parts_bytes > 0) dti_cpu_run(a->cpu, parts_bytes, merge_share, &job);
    return DT_OK;
}

dt_status dti_attention_forward(const dti_attention *a)
{
    dti_attention_stretch *stretches;
    void *room;

    DT_TRY(dti_cpu_outer_scratch(a->cpu, (size_t)a->batch * sizeof *stretches, &room));
    stretches = room;
    for (int64_t b = 0; b < a->batch; b++)
        stretches[b] = (dti_attention_stretch){ .b = b, .n_tokens = a->n_tokens };
    DT_TRY(dti_attention_forward_of(a, stretches, a->batch));
    return DT_OK;
}
