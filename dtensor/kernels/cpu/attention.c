/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of T new tokens over the cache. B batch, H query heads and Kv kv heads of this
 * rank, e head width, S rows of the cache.
 * y[b, t, h] = sum_j p_j v[b, j, kv], p = softmax_j(scale q[b, t, h] . k[b, j, kv]) over rows
 * j <= positions[b, t], the last `window` of them if window > 0. f32 throughout, one rounding. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>

#include "base/dtype.h"

typedef struct attention_job {
    const dt_local *q, *k, *v, *y;
    const int32_t *positions;
    const dti_attention_attr *attr;
    float *scratch;
    int64_t scratch_floats; /* of one worker */
} attention_job;

/* Query row `row` of [B T H] against kv head kv of batch b; p has room for S + e floats. */
static void attend(const attention_job *j, int64_t row, int64_t b, int64_t kv, float *p)
{
    const int64_t e = j->q->shape[3], n_kv = j->k->shape[2],
                  last = j->positions[row / j->q->shape[2]];
    const int64_t lo =
        j->attr->window > 0 && last >= j->attr->window ? last - j->attr->window + 1 : 0;
    float *sum = p + j->k->shape[1];
    float largest = -INFINITY, total = 0.0f;

    for (int64_t c = lo; c <= last; c++) {
        const int64_t at = ((b * j->k->shape[1] + c) * n_kv + kv) * e;
        float dot = 0.0f;
        for (int64_t d = 0; d < e; d++)
            dot += dti_load_f32(j->q->data, j->q->dtype, row * e + d) *
                   dti_load_f32(j->k->data, j->k->dtype, at + d);
        p[c] = dot * j->attr->scale;
        largest = fmaxf(largest, p[c]);
    }
    for (int64_t d = 0; d < e; d++) sum[d] = 0.0f;
    for (int64_t c = lo; c <= last; c++) {
        const int64_t at = ((b * j->k->shape[1] + c) * n_kv + kv) * e;
        const float weight = expf(p[c] - largest);
        total += weight;
        for (int64_t d = 0; d < e; d++)
            sum[d] += weight * dti_load_f32(j->v->data, j->v->dtype, at + d);
    }
    for (int64_t d = 0; d < e; d++)
        dti_store_f32(j->y->data, j->y->dtype, row * e + d, sum[d] / total);
}

static void attention_share(void *arg, int worker, int n_workers)
{
    const attention_job *j = arg;
    const int64_t n_heads = j->q->shape[2], group = j->attr->n_heads / j->attr->n_kv_heads;
    int64_t begin, end;

    dti_pool_share(j->q->shape[0] * j->q->shape[1] * n_heads, 1, worker, n_workers, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const int64_t head = j->q->offset[2] + row % n_heads;
        attend(j, row, row / n_heads / j->q->shape[1], head / group - j->k->offset[2],
               j->scratch + worker * j->scratch_floats);
    }
}

dt_status dti_attention_cpu(const dt_kargs *a)
{
    attention_job job = { .q = &a->in[0],
                          .k = &a->in[1],
                          .v = &a->in[2],
                          .y = &a->out[0],
                          .positions = a->in[3].data,
                          .attr = a->attr,
                          .scratch_floats = a->in[1].shape[1] + a->in[0].shape[3] };
    const dti_row_ops *ops;
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, "attention", job.q, &ops));
    if (dti_local_count(job.q) == 0) return DT_OK;
    DT_TRY(dti_cpu_scratch(
        a->cpu, (size_t)job.scratch_floats * sizeof(float) * (size_t)dti_pool_size(a->cpu->pool),
        &scratch));
    job.scratch = scratch;
    dti_cpu_run(a->cpu, dti_bytes(job.k) + dti_bytes(job.v), attention_share, &job);
    return DT_OK;
}
