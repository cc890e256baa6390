/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotary positions: a table of cosines and sines per token, and the rotation of heads by it.
 * B batch, T tokens, H heads, e head width, r <= e rotated columns. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

/* positions [B, T] i32, inv_freq [r/2] f32 -> table [B, T, r]: the angle is the f32 product, its
 * cosine and sine are taken in f32, times factor, rounded. Small: no threads. */
dt_status dti_rope_table_cpu(const dt_kargs *a)
{
    const dti_rope_table_attr *attr = a->attr;
    const int32_t *positions = a->in[0].data;
    const float *inv_freq = a->in[1].data;
    const int64_t n_tokens = dti_local_count(&a->in[0]), half = dti_local_count(&a->in[1]);
    const dt_local *y = &a->out[0];

    for (int64_t t = 0; t < n_tokens; t++)
        for (int64_t i = 0; i < half; i++) {
            const float angle = (float)positions[t] * inv_freq[i];
            const int64_t at = 2 * half * t + i;
            dti_store_f32(y->data, y->dtype, at, cosf(angle) * attr->factor);
            dti_store_f32(y->data, y->dtype, at + half, sinf(angle) * attr->factor);
        }
    return DT_OK;
}

typedef struct rope_job {
    const dti_row_ops *ops;
    const char *x, *table;
    char *y;
    int64_t n_tokens, n_heads, width, rotated, bytes;
} rope_job;

static void rope_share(void *arg, int worker, int n_workers)
{
    const rope_job *j = arg;
    const int64_t head_bytes = j->width * j->bytes, rotated_bytes = j->rotated * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n_tokens * j->n_heads, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const char *x = j->x + i * head_bytes;
        char *y = j->y + i * head_bytes;
        j->ops->rope(y, x, j->table + i / j->n_heads * rotated_bytes, j->rotated / 2);
        if (head_bytes > rotated_bytes && x != y)
            memcpy(y + rotated_bytes, x + rotated_bytes, (size_t)(head_bytes - rotated_bytes));
    }
}

static dt_status rotate(const dt_kargs *a, const char *op, const void *table)
{
    const dt_local *x = &a->in[0];
    rope_job job = { .x = x->data,
                     .table = table,
                     .y = a->out[0].data,
                     .n_tokens = x->shape[0] * x->shape[1],
                     .n_heads = x->shape[2],
                     .width = x->shape[3],
                     .rotated = a->in[1].shape[2],
                     .bytes = (int64_t)dt_dtype_size(x->dtype) };

    DT_TRY(dti_cpu_rows(a->cpu, op, x, &job.ops));
    if (dti_local_count(x) > 0) dti_cpu_run(a->cpu, 2 * dti_bytes(x), rope_share, &job);
    return DT_OK;
}

/* x [B, T, H, e], table [B, T, r] -> y [B, T, H, e]; y may be x. Heads are alone: splitting them
 * over ranks changes no bit. */
dt_status dti_rope_cpu(const dt_kargs *a)
{
    DT_TRY(rotate(a, "rope", a->in[1].data));
    return DT_OK;
}

/* dy, table -> dx: the rotation by the negative angle, whose sines have the other sign. */
dt_status dti_rope_backward_cpu(const dt_kargs *a)
{
    const dt_local *table = &a->in[1];
    const int64_t n = dti_rows(table), half = table->shape[2] / 2;
    const int64_t bytes = (int64_t)dt_dtype_size(table->dtype);
    void *scratch;

    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)dti_bytes(table), &scratch));
    memcpy(scratch, table->data, (size_t)dti_bytes(table));
    for (int64_t t = 0; t < n; t++) {
        unsigned char *sines = (unsigned char *)scratch + (t * 2 + 1) * half * bytes;
        for (int64_t i = 1; i <= half; i++) sines[i * bytes - 1] ^= 0x80;
    }
    DT_TRY(rotate(a, "rope_backward", scratch));
    return DT_OK;
}
