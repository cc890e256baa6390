/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of attention, tile by tile: what weights the softmax gave follows again from scores and
 * the log-sum-exp of a row, so the whole of them is never held.
 *
 *   P = e^(S - lse), dv = P^T dy, dP = dy v^T, dS = P (dP - mean), mean = dy . y,
 *   dq = scale dS k, dk = scale dS^T q
 *
 * A kv head of a batch row is one item: its heads and queries are taken in their order, each
 * against the keys in theirs, so the sums of dk and dv have one order whatever the number of
 * threads. f32 throughout, one rounding. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "base/dtype.h"

enum { R = DTI_TILE_ROWS, STRIDE = DTI_TILE_STRIDE, TILE = DTI_TILE_KEYS * DTI_TILE_STRIDE };

typedef struct back_job {
    const dti_attention *a;
    const char *dy;
    const float *stats; /* [B, T, H, 2]: lse, mean */
    dt_local *dq, *dk, *dv;
    float *dbias;             /* as the bias lies, or NULL */
    bool one_batch, one_head; /* the bias has one: what adds to it is one item */
    int64_t heads, queries;   /* of a block */
    char *scratch;            /* of worker 0 */
    size_t scratch_bytes;
    _Atomic int64_t next;
} back_job;

typedef struct back_scratch {
    float lse[R], mean[R];
    int32_t first[R], last[R];
    float weights[TILE], slopes[TILE], kept[TILE], caps[TILE];
    /* qt, dyt [E, STRIDE], q, dy, dq [R, E], k, v [DTI_TILE_KEYS, E], dk, dv [S, E] */
    float arrays[];
} back_scratch;

typedef struct back_item {
    dti_attention_block block;
    const back_job *job;
    back_scratch *s;
    float *qt, *dyt, *q, *dy, *dq, *k, *v, *dk, *dv;
} back_item;

/* --- a block of rows -------------------------------------------------------------------------- */

/* Rows of q or dy, as they lie and transposed. */
static void load_rows(const back_item *it, const char *from, float *rows, float *turned)
{
    const dti_attention *a = it->block.a;
    const int64_t E = dti_padded(a->width), n_heads = it->block.n_heads;
    int64_t at[3];

    memset(rows, 0, (size_t)(R * E) * sizeof *rows);
    for (int64_t i = 0; i < it->block.n_rows; i += n_heads)
        a->ops->rows[a->dtype](rows + i * E,
                               from + dti_attention_row(&it->block, i, at) * a->width * a->bytes,
                               a->width, n_heads, a->width);
    for (int64_t i = 0; i < R; i++)
        for (int64_t d = 0; d < a->width; d++) turned[d * STRIDE + i] = rows[i * E + d];
}

static void begin_rows(const back_item *it)
{
    const dti_attention *a = it->block.a;
    int64_t at[3];

    load_rows(it, a->q, it->q, it->qt);
    load_rows(it, it->job->dy, it->dy, it->dyt);
    memset(it->dq, 0, (size_t)(R * dti_padded(a->width)) * sizeof *it->dq);
    dti_attention_see(&it->block);
    for (int64_t i = 0; i < R; i++) {
        const bool used = i < it->block.n_rows;
        const float *stats =
            used ? it->job->stats + 2 * dti_attention_row(&it->block, i, at) : NULL;
        const bool sees = used && stats[0] > DTI_ATTENTION_LOWEST / 2;
        it->s->lse[i] = sees ? stats[0] : INFINITY;
        it->s->mean[i] = sees ? stats[1] : 0.0f;
    }
}

static void end_rows(const back_item *it)
{
    const dti_attention *a = it->block.a;
    const dt_local *dq = it->job->dq;
    int64_t at[3];

    for (int64_t i = 0; i < it->block.n_rows; i++)
        a->cpu->rows[dq->dtype].store((char *)dq->data + dti_attention_row(&it->block, i, at) *
                                                             a->width *
                                                             (int64_t)dt_dtype_size(dq->dtype),
                                      it->dq + i * dti_padded(a->width), a->width);
}

/* --- scores that are capped or biased --------------------------------------------------------- */

static void adjust_tile(const dti_attention_back *t)
{
    const back_item *it = t->arg;
    const dti_attention *a = it->block.a;
    float s[DTI_TILE_KEYS];
    int64_t row[3];

    for (int64_t i = t->begin; i < t->end && i < it->block.n_rows; i++) {
        (void)dti_attention_row(&it->block, i, row);
        for (int64_t j = 0; j < t->n_keys && a->soft_cap > 0.0f; j++)
            s[j] = t->weights[j * STRIDE + i] * a->scale;
        if (a->soft_cap > 0.0f) a->cpu->rows[DT_F32].soft_cap(s, s, t->n_keys, a->soft_cap);
        for (int64_t j = 0; j < t->n_keys && a->soft_cap > 0.0f; j++) {
            const float part = s[j] / a->soft_cap;
            it->s->caps[j * STRIDE + i] = 1.0f - part * part;
        }
        dti_attention_adjust(a, t->weights + i, STRIDE, row, t->key, t->n_keys);
    }
}

static void spread_tile(const dti_attention_back *t)
{
    const back_item *it = t->arg;
    const dti_attention *a = it->block.a;
    int64_t row[3];

    for (int64_t i = t->begin; i < t->end && i < it->block.n_rows; i++) {
        float *dbias = it->job->dbias;
        (void)dti_attention_row(&it->block, i, row);
        for (int k = 0; k < 3 && dbias != NULL; k++) dbias += row[k] * a->bias_step[k];
        for (int64_t j = 0; j < t->n_keys; j++) {
            float *slope = t->slopes + j * STRIDE + i;
            if (dbias != NULL) dbias[t->key + j] += *slope;
            *slope *= a->scale * (a->soft_cap > 0.0f ? it->s->caps[j * STRIDE + i] : 1.0f);
        }
    }
}

/* --- keys ------------------------------------------------------------------------------------- */

static void load_keys(const back_item *it, int64_t key, int64_t n)
{
    const dti_attention *a = it->block.a;
    const int64_t stride = a->n_kv * a->width;
    const int64_t at =
        ((it->block.b * a->n_rows + key) * a->n_kv + it->block.kv) * a->width * a->bytes;

    a->ops->rows[a->dtype](it->k, a->k + at, stride, n, a->width);
    a->ops->rows[a->dtype](it->v, a->v + at, stride, n, a->width);
}

static void find_kept(const back_item *it, const dti_attention_back *t)
{
    for (int64_t j = 0; j < t->n_keys; j++)
        for (int64_t i = t->begin; i < t->end; i++) it->s->kept[j * STRIDE + i] = 1.0f;
    for (int64_t i = t->begin; i < t->end && i < it->block.n_rows; i++)
        dti_attention_drop(&it->block, it->s->kept + i, STRIDE, i, t->key, t->n_keys);
}

static void walk_keys(const back_item *it)
{
    const dti_attention *a = it->block.a;
    const int64_t E = dti_padded(a->width);
    back_scratch *s = it->s;
    dti_attention_back t = { .q = it->qt,
                             .dy = it->dyt,
                             .q_rows = it->q,
                             .dy_rows = it->dy,
                             .k = it->k,
                             .v = it->v,
                             .weights = s->weights,
                             .slopes = s->slopes,
                             .kept = a->drops ? s->kept : NULL,
                             .dq = it->dq,
                             .lse = s->lse,
                             .mean = s->mean,
                             .first = s->first,
                             .last = s->last,
                             .width = a->width,
                             .scale = a->adjusts ? 1.0f : a->scale,
                             .slope_scale = a->adjusts ? 1.0f : a->scale,
                             .adjust = a->adjusts ? adjust_tile : NULL,
                             .spread = a->adjusts ? spread_tile : NULL,
                             .arg = it };
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
        if (a->drops) find_kept(it, &t);
        t.dk = it->dk + key * E;
        t.dv = it->dv + key * E;
        a->ops->back(&t);
    }
}

/* --- a kv head of a batch row ----------------------------------------------------------------- */

static void store_keys(const back_item *it, const dt_local *y, const float *sums)
{
    const dti_attention *a = it->block.a;

    for (int64_t j = 0; j < a->n_rows; j++)
        a->cpu->rows[y->dtype].store((char *)y->data +
                                         ((it->block.b * a->n_rows + j) * a->n_kv + it->block.kv) *
                                             a->width * (int64_t)dt_dtype_size(y->dtype),
                                     sums + j * dti_padded(a->width), a->width);
}

static void back_run(const back_job *j, int64_t b, int64_t kv, back_scratch *s)
{
    const dti_attention *a = j->a;
    const int64_t E = dti_padded(a->width);
    back_item it = { .block = { .a = a, .b = b, .kv = kv, .first = s->first, .last = s->last },
                     .job = j,
                     .s = s };
    int64_t begin, end;

    it.qt = s->arrays;
    it.dyt = it.qt + E * STRIDE;
    it.q = it.dyt + E * STRIDE;
    it.dy = it.q + R * E;
    it.dq = it.dy + R * E;
    it.k = it.dq + R * E;
    it.v = it.k + DTI_TILE_KEYS * E;
    it.dk = it.v + DTI_TILE_KEYS * E;
    it.dv = it.dk + a->n_rows * E;
    memset(it.dk, 0, (size_t)(2 * a->n_rows * E) * sizeof *it.dk);
    dti_attention_heads(a, kv, &begin, &end);
    for (int64_t h = begin; h < end; h += j->heads)
        for (int64_t t = 0; t < a->n_tokens; t += j->queries) {
            it.block.first_head = h;
            it.block.n_heads = end - h < j->heads ? end - h : j->heads;
            it.block.first_query = t;
            it.block.n_queries = a->n_tokens - t < j->queries ? a->n_tokens - t : j->queries;
            it.block.n_rows = it.block.n_queries * it.block.n_heads;
            begin_rows(&it);
            walk_keys(&it);
            end_rows(&it);
        }
    store_keys(&it, j->dk, it.dk);
    store_keys(&it, j->dv, it.dv);
}

/* What adds to one element of dbias belongs to one item. */
static void back_share(void *arg, int worker, int n_workers)
{
    back_job *j = arg;
    const int64_t n_b = j->one_batch ? 1 : j->a->batch, n_kv = j->one_head ? 1 : j->a->n_kv;
    back_scratch *s = (void *)(j->scratch + (size_t)worker * j->scratch_bytes);

    (void)n_workers;
    for (;;) {
        const int64_t i = atomic_fetch_add(&j->next, 1);
        if (i >= n_b * n_kv) return;
        for (int64_t b = i / n_kv; b < (j->one_batch ? j->a->batch : i / n_kv + 1); b++)
            for (int64_t kv = i % n_kv; kv < (j->one_head ? j->a->n_kv : i % n_kv + 1); kv++)
                back_run(j, b, kv, s);
        dti_cpu_beside(j->a->cpu, worker);
    }
}

dt_status dti_attention_backward_cpu(const dt_kargs *args)
{
    const dti_attention_attr *attr = args->attr;
    dti_attention a;
    back_job j = { .a = &a,
                   .dy = args->in[0].data,
                   .stats = args->in[4].data,
                   .dq = &args->out[0],
                   .dk = &args->out[1],
                   .dv = &args->out[2],
                   .dbias = args->n_out > 3 ? args->out[3].data : NULL,
                   .one_batch = args->n_out > 3 && (attr->flags & DTI_ATTENTION_ONE_BATCH) != 0,
                   .one_head = args->n_out > 3 && (attr->flags & DTI_ATTENTION_ONE_HEAD) != 0 };
    void *scratch;

    DT_TRY(dti_attention_open(args, "attention_backward", 1, 5, &a));
    dti_attention_find_dropout(&a, args->attr);
    for (int r = 1; r < args->n_out; r++)
        if (r > 2 || dti_local_count(j.dq) == 0)
            memset(args->out[r].data, 0, (size_t)dti_bytes(&args->out[r]));
    if (dti_local_count(j.dq) == 0) return DT_OK;
    const int64_t E = dti_padded(a.width);
    j.heads = a.group < R ? a.group : R;
    j.queries = R / j.heads;
    j.scratch_bytes =
        sizeof(back_scratch) +
        (size_t)((2 * STRIDE + 3 * R + 2 * DTI_TILE_KEYS + 2 * a.n_rows) * E) * sizeof(float);
    j.scratch_bytes = (j.scratch_bytes + 4095) / 4096 * 4096;
    DT_TRY(dti_cpu_scratch(a.cpu, (size_t)dti_pool_size(a.cpu->pool) * j.scratch_bytes, &scratch));
    j.scratch = scratch;
    dti_cpu_run(a.cpu, a.batch * a.n_tokens * a.n_heads * a.width * a.bytes * DTI_TILE_KEYS,
                back_share, &j);
    return DT_OK;
}

/* --- statistics of rows ----------------------------------------------------------------------- */

typedef struct stats_job {
    const dt_kargs *a;
    const dti_row_ops *rows;
} stats_job;

enum { LANES = 16, BLOCK = 256 };

static void stats_share(void *arg, int worker, int n_workers)
{
    const stats_job *j = arg;
    const dt_local *dy = &j->a->in[0], *y = &j->a->in[1];
    const float *lse = j->a->in[2].data;
    const int64_t width = dy->shape[3], bytes = (int64_t)dt_dtype_size(dy->dtype);
    float *stats = j->a->out[0].data, one[BLOCK], two[BLOCK];
    int64_t begin, end;

    dti_pool_share(dti_rows(dy), 16, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float sum[LANES] = { 0 };
        for (int64_t d = 0; d < width; d += BLOCK) {
            const int64_t n = width - d < BLOCK ? width - d : BLOCK, at = (r * width + d) * bytes;
            j->rows->load(one, (const char *)dy->data + at, n);
            j->rows->load(two, (const char *)y->data + at, n);
            for (int64_t i = n; i < dti_padded(n); i++) one[i] = two[i] = 0.0f;
            for (int64_t i = 0; i < n; i += LANES)
                for (int64_t l = 0; l < LANES; l++) sum[l] += one[i + l] * two[i + l];
        }
        for (int64_t half = LANES / 2; half > 0; half /= 2)
            for (int64_t l = 0; l < half; l++) sum[l] += sum[l + half];
        stats[2 * r] = lse[r];
        stats[2 * r + 1] = sum[0];
    }
}

dt_status dti_attention_stats_cpu(const dt_kargs *a)
{
    stats_job j = { .a = a };

    DT_TRY(dti_cpu_rows(a->cpu, "attention_stats", &a->in[0], &j.rows));
    dti_cpu_run(a->cpu, 2 * dti_bytes(&a->in[0]), stats_share, &j);
    return DT_OK;
}

/* A sink takes its weight from all and gives nothing: its slope is that of a key with dP = 0. */
dt_status dti_attention_backward_sinks_cpu(const dt_kargs *a)
{
    const dt_local *sinks = &a->in[1];
    const float *stats = a->in[0].data;
    const int64_t n_heads = sinks->shape[0], n = dti_rows(&a->in[0]);
    float *out = a->out[0].data;

    for (int64_t h = 0; h < n_heads; h++) {
        const float sink = dti_load_f32(sinks->data, sinks->dtype, h);
        double sum = 0.0;
        for (int64_t r = h; r < n; r += n_heads)
            sum -= (double)(expf(sink - stats[2 * r]) * stats[2 * r + 1]);
        out[h] = (float)sum;
    }
    return DT_OK;
}
