/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that only move rows: embedding, kv_write, slice, blocks. Exact in every dtype. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <string.h>

typedef struct embedding_job {
    const int32_t *ids;
    const char *table;
    char *y;
    int64_t n_ids, first, n_rows, row_bytes;
} embedding_job;

static void embedding_share(void *arg, int worker, int n_workers)
{
    const embedding_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_ids, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = j->ids[i] - j->first;
        char *y = j->y + i * j->row_bytes;
        if (row >= 0 && row < j->n_rows)
            memcpy(y, j->table + row * j->row_bytes, (size_t)j->row_bytes);
        else
            memset(y, 0, (size_t)j->row_bytes);
    }
}

/* ids [...] i32, table [V, d] -> y [..., d]: row ids[i] of the global table, zeros if this rank
 * does not hold it. The table may be empty on this rank. */
dt_status dti_embedding_cpu(const dt_kargs *a)
{
    const dt_local *ids = &a->in[0], *table = &a->in[1];
    embedding_job job = { .ids = ids->data,
                          .table = table->data,
                          .y = a->out[0].data,
                          .n_ids = dti_local_count(ids),
                          .first = table->offset[0],
                          .n_rows = table->shape[0],
                          .row_bytes = table->shape[1] * (int64_t)dt_dtype_size(table->dtype) };

    if (job.row_bytes > 0)
        dti_cpu_run(a->cpu, 2 * job.n_ids * job.row_bytes, embedding_share, &job);
    return DT_OK;
}

dt_status dti_check_positions(const char *op, const dt_local *positions, int64_t n_rows)
{
    const int32_t *p = positions->data;
    const int64_t n = dti_local_count(positions);

    for (int64_t i = 0; i < n; i++)
        DT_CHECK(p[i] >= 0 && p[i] < n_rows, DT_ERR_ARG,
                 "%s: position %d at place %lld; the cache has rows 0 to %lld", op, p[i],
                 (long long)i, (long long)n_rows - 1);
    return DT_OK;
}

/* k [B, T, K, e], positions [B, T] i32, cache [B, S, K, e]: cache[b, positions[b, t]] = k[b, t]. */
dt_status dti_kv_write_cpu(const dt_kargs *a)
{
    const dt_local *k = &a->in[0], *cache = &a->out[0];
    const int32_t *positions = a->in[1].data;
    const int64_t row_bytes = k->shape[2] * k->shape[3] * (int64_t)dt_dtype_size(k->dtype);
    const int64_t n_tokens = k->shape[1], n_rows = cache->shape[1];

    DT_TRY(dti_check_positions("kv_write", &a->in[1], n_rows));
    if (row_bytes == 0) return DT_OK;
    for (int64_t b = 0; b < k->shape[0]; b++)
        for (int64_t t = 0; t < n_tokens; t++) {
            const int64_t from = b * n_tokens + t;
            const int64_t to = b * n_rows + positions[from];
            memcpy((char *)cache->data + to * row_bytes, (const char *)k->data + from * row_bytes,
                   (size_t)row_bytes);
        }
    return DT_OK;
}

/* x [..., T, ...] -> y [..., count, ...]: rows begin .. begin + count - 1 of an axis, zeros for
 * those that this rank does not hold. Where the axis is cut `begin` is not negative. */
dt_status dti_slice_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    const dti_slice_attr *attr = a->attr;
    const int64_t n_rows = x->shape[attr->axis];
    const int64_t begin = (attr->begin < 0 ? attr->begin + n_rows : attr->begin) -
                          x->offset[attr->axis]; /* of the first wanted row, in ours */
    const int64_t before = begin < 0 ? (-begin < attr->count ? -begin : attr->count) : 0;
    int64_t after = begin + attr->count > n_rows ? begin + attr->count - n_rows : 0;
    int64_t row_bytes = (int64_t)dt_dtype_size(x->dtype), outer = 1, held;

    if (after > attr->count - before) after = attr->count - before;
    held = attr->count - before - after;
    for (int axis = 0; axis < x->n_axes; axis++)
        if (axis != attr->axis) *(axis < attr->axis ? &outer : &row_bytes) *= x->shape[axis];
    if (row_bytes == 0 || attr->count == 0) return DT_OK;
    for (int64_t o = 0; o < outer; o++) {
        char *y = (char *)a->out[0].data + o * attr->count * row_bytes;
        memset(y, 0, (size_t)(before * row_bytes));
        if (held > 0)
            memcpy(y + before * row_bytes,
                   (const char *)x->data + (o * n_rows + begin + before) * row_bytes,
                   (size_t)(held * row_bytes));
        memset(y + (before + held) * row_bytes, 0, (size_t)(after * row_bytes));
    }
    return DT_OK;
}

/* x [..., T, ...] -> y: this rank's part of some blocks of a packed axis, which begins at row
 * local_begin of its piece. */
dt_status dti_blocks_cpu(const dt_kargs *a)
{
    const dti_blocks_attr *attr = a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int64_t n_rows = x->shape[attr->axis], count = y->shape[attr->axis];
    int64_t row_bytes = (int64_t)dt_dtype_size(x->dtype), outer = 1;

    for (int axis = 0; axis < x->n_axes; axis++)
        if (axis != attr->axis) *(axis < attr->axis ? &outer : &row_bytes) *= x->shape[axis];
    if (row_bytes == 0 || count == 0) return DT_OK;
    for (int64_t o = 0; o < outer; o++)
        memcpy((char *)y->data + o * count * row_bytes,
               (const char *)x->data + (o * n_rows + attr->local_begin) * row_bytes,
               (size_t)(count * row_bytes));
    return DT_OK;
}
