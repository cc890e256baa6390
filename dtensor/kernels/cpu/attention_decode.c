/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention of one token per batch row: bound by the reading of the cache, which is read once for
 * all heads of a group. The cache is cut into segments of fixed length, so that long contexts
 * occupy all workers; a segment leaves an unfinished softmax (largest score, total of the weights,
 * sums), and these are merged in order. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { SEGMENT = 8 * DTI_DECODE_KEYS };

/* An item is (batch row, kv head, segment), with room for the heads of a group. */
typedef struct decode_job {
    const dti_attention *a;
    int64_t n_segments;     /* of the whole cache, so that memory does not grow with the context */
    float *largest, *total; /* [item, group] */
    float *sums;            /* [item, group, E] */
    float *scratch;         /* of worker 0: q [group, E], scores [group, DTI_DECODE_KEYS] */
    int64_t scratch_floats;
    _Atomic int64_t next;
} decode_job;

/* The keys of segment `segment` that the query at `position` sees; false if there are none. */
static bool keys_of(const dti_attention *a, int64_t position, int64_t segment, int64_t *lo,
                    int64_t *hi)
{
    const int64_t first = dti_attention_first(a, position);
    const int64_t end = dti_attention_last(a, position) + 1;

    *lo = segment * SEGMENT > first ? segment * SEGMENT : first;
    *hi = (segment + 1) * SEGMENT < end ? (segment + 1) * SEGMENT : end;
    return *lo < *hi;
}

/* The query heads of the item in f32, padded with zeros, and an empty softmax for each. */
static void decode_begin(const decode_job *j, int64_t item, int64_t first_row, int64_t n_heads,
                         float *q)
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width), at = item * a->group;

    memset(q, 0, (size_t)(n_heads * E) * sizeof *q);
    memset(j->sums + at * E, 0, (size_t)(n_heads * E) * sizeof *q);
    for (int64_t g = 0; g < n_heads; g++) {
        a->rows->load(q + g * E, a->q + (first_row + g) * a->width * a->bytes, a->width);
        j->largest[at + g] = -INFINITY;
        j->total[at + g] = 0.0f;
    }
}

/* Chunks begin at multiples of their size, whatever lo is. */
static void decode_item(const decode_job *j, int64_t item, float *q)
{
    const dti_attention *a = j->a;
    const int64_t pair = item / j->n_segments, b = pair / a->n_used;
    const int64_t kv = a->first_kv + pair % a->n_used, E = dti_padded(a->width);
    const int64_t stride = a->n_kv * a->width, at = item * a->group;
    float *s = q + a->group * E, *sums = j->sums + at * E;
    int64_t begin, end, lo, hi;

    if (!keys_of(a, a->positions[b], item % j->n_segments, &lo, &hi)) return;
    dti_attention_heads(a, kv, &begin, &end);
    decode_begin(j, item, b * a->n_heads + begin, end - begin, q);
    while (lo < hi) {
        const int64_t stop = (lo / DTI_DECODE_KEYS + 1) * DTI_DECODE_KEYS;
        const int64_t n = (stop < hi ? stop : hi) - lo;
        const int64_t first = ((b * a->n_rows + lo) * a->n_kv + kv) * a->width * a->bytes;
        a->ops->scores[a->dtype](s, q, end - begin, a->k + first, stride, n, a->width);
        for (int64_t g = 0; g < end - begin && a->adjusts; g++)
            dti_attention_adjust(a, s + g * DTI_DECODE_KEYS, 1, (int64_t[]){ b, begin + g, 0 }, lo,
                                 n);
        for (int64_t g = 0; g < end - begin; g++)
            a->ops->soften(s + g * DTI_DECODE_KEYS, n, a->adjusts ? 1.0f : a->scale,
                           &j->largest[at + g], &j->total[at + g], sums + g * E, a->width);
        a->ops->mix[a->dtype](sums, s, end - begin, a->v + first, stride, n, a->width);
        lo += n;
    }
}

static void decode_share(void *arg, int worker, int n_workers)
{
    decode_job *j = arg;
    const int64_t n_items = j->a->batch * j->a->n_used * j->n_segments;
    float *scratch = j->scratch + worker * j->scratch_floats;

    (void)n_workers;
    for (;;) {
        const int64_t item = atomic_fetch_add(&j->next, 1);
        if (item >= n_items) return;
        decode_item(j, item, scratch);
    }
}

/* Head h of batch row b: the segments it sees, merged into the first of them, divided and stored.
 */
static void merge(const decode_job *j, int64_t b, int64_t kv, int64_t h, int64_t g)
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width), pair = b * a->n_used + kv - a->first_kv;
    const int64_t first = dti_attention_first(a, a->positions[b]) / SEGMENT;
    const int64_t last = dti_attention_last(a, a->positions[b]) / SEGMENT;
    const int64_t into = (pair * j->n_segments + first) * a->group + g;
    float *sums = j->sums + into * E, largest = j->largest[into], total = j->total[into];

    for (int64_t segment = first + 1; segment <= last; segment++) {
        const int64_t at = (pair * j->n_segments + segment) * a->group + g;
        const float m = fmaxf(largest, j->largest[at]);
        const float old = expf(largest - m), add = expf(j->largest[at] - m);
        for (int64_t d = 0; d < a->width; d++) sums[d] = sums[d] * old + j->sums[at * E + d] * add;
        total = total * old + j->total[at] * add;
        largest = m;
    }
    if (a->sinks != NULL) {
        const float factor = dti_attention_sink(a, h, &largest, &total);
        for (int64_t d = 0; d < a->width; d++) sums[d] *= factor;
    }
    for (int64_t d = 0; d < a->width; d++) sums[d] /= total;
    a->rows->store(a->y + (b * a->n_heads + h) * a->width * a->bytes, sums, a->width);
}

dt_status dti_attention_decode(const dti_attention *a)
{
    const int64_t E = dti_padded(a->width), n_segments = (a->n_rows + SEGMENT - 1) / SEGMENT;
    const int64_t n_parts = a->batch * a->n_used * n_segments * a->group;
    decode_job job = { .a = a,
                       .n_segments = n_segments,
                       .scratch_floats = a->group * (E + DTI_DECODE_KEYS) };
    int64_t n_keys = 0;
    void *scratch;

    DT_TRY(dti_cpu_scratch(
        a->cpu,
        (size_t)(n_parts * (E + 2) + dti_pool_size(a->cpu->pool) * job.scratch_floats) *
            sizeof(float),
        &scratch));
    job.sums = scratch;
    job.scratch = job.sums + n_parts * E;
    job.largest = job.scratch + dti_pool_size(a->cpu->pool) * job.scratch_floats;
    job.total = job.largest + n_parts;
    for (int64_t b = 0; b < a->batch; b++)
        n_keys +=
            dti_attention_last(a, a->positions[b]) + 1 - dti_attention_first(a, a->positions[b]);
    dti_cpu_run_stream(a->cpu, 2 * n_keys * a->n_used * a->width * a->bytes, decode_share, &job);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t kv = a->first_kv; kv < a->first_kv + a->n_used; kv++) {
            int64_t begin, end;
            dti_attention_heads(a, kv, &begin, &end);
            for (int64_t h = begin; h < end; h++) merge(&job, b, kv, h, h - begin);
        }
    return DT_OK;
}
