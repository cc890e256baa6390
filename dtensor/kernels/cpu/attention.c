/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of T new tokens over the cache. B batch, H query heads and Kv kv heads of this
 * rank, e head width, S rows of the cache.
 * y[b, t, h] = sum_j p_j v[b, j, kv], p = softmax_j(scale q[b, t, h] . k[b, j, kv]) over rows
 * j <= positions[b, t], the last `window` of them if window > 0; attention_attr says what else. f32
 * throughout, one rounding.
 *
 * A row's result depends on the row and its position alone: neither the rows and tokens that are
 * computed with it nor the number of threads nor the cut of heads over ranks changes a bit. */
#include "dtensor/kernels/cpu/attention.h"

#include <math.h>

const dti_attention_ops *dti_attention_ops_of(dti_isa isa)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return &dti_attention_avx2;
    case DTI_ISA_AVX512:
        return &dti_attention_avx512;
    case DTI_ISA_AVX512_BF16:
    case DTI_ISA_AMX:
        return &dti_attention_avx512_bf16;
#endif
    default:
        return &dti_attention_portable;
    }
}

void dti_attention_adjust(const dti_attention *a, float *scores, int64_t step, const int64_t row[3],
                          int64_t key, int64_t n)
{
    float s[DTI_TILE_KEYS], bias[DTI_TILE_KEYS];

    for (int64_t j = 0; j < n; j++) s[j] = scores[j * step] * a->scale;
    if (a->soft_cap > 0.0f) a->cpu->rows[DT_F32].soft_cap(s, s, n, a->soft_cap);
    if (a->bias != NULL) {
        int64_t at = key;
        for (int i = 0; i < 3; i++) at += row[i] * a->bias_step[i];
        a->rows->load(bias, a->bias + at * a->bytes, n);
        for (int64_t j = 0; j < n; j++) s[j] = fmaxf(s[j] + bias[j], DTI_ATTENTION_LOWEST);
    }
    for (int64_t j = 0; j < n; j++) scores[j * step] = s[j];
}

/* Options of few calls. The bias is [B or 1, H or 1, T or 1, S]; operands are from i on. */
void dti_attention_find_extras(dti_attention *a, const dt_kargs *args, int i, bool back)
{
    const dti_attention_attr *attr = args->attr;

    a->both_ways = (attr->flags & DTI_ATTENTION_BOTH_WAYS) != 0;
    a->soft_cap = attr->soft_cap;
    if ((attr->flags & DTI_ATTENTION_BIAS) != 0) {
        const dt_local *bias = &args->in[i++];
        int64_t step = bias->shape[3];
        a->bias = bias->data;
        for (int axis = 2; axis >= 0; step *= bias->shape[axis--])
            a->bias_step[axis] = (attr->flags & DTI_ATTENTION_ONE_BATCH << axis) != 0 ? 0 : step;
    }
    if ((attr->flags & DTI_ATTENTION_SINKS) != 0 && !back) a->sinks = args->in[i++].data;
    if ((attr->flags & DTI_ATTENTION_SEGMENTS) != 0) a->segments = args->in[i].data;
    a->adjusts = a->soft_cap > 0.0f || a->bias != NULL;
}

/* Contents of a tensor, so no rule saw them. */
static dt_status check_segments(const char *op, const dti_attention *a)
{
    for (int64_t b = 0; b < a->batch && a->segments != NULL; b++)
        for (int64_t j = 1; j < a->n_rows; j++)
            DT_CHECK(a->segments[b * a->n_rows + j - 1] <= a->segments[b * a->n_rows + j],
                     DT_ERR_ARG,
                     "%s: segment %d of row %lld is followed by %d: documents lie one "
                     "after the other, their numbers do not fall",
                     op, a->segments[b * a->n_rows + j - 1], (long long)b,
                     a->segments[b * a->n_rows + j]);
    return DT_OK;
}

dt_status dti_attention_check_heads(const char *op, dti_attention *a)
{
    a->first_kv = a->q_offset / a->group - a->k_offset;
    a->n_used = (a->q_offset + a->n_heads - 1) / a->group - a->k_offset - a->first_kv + 1;
    DT_CHECK(a->first_kv >= 0 && a->first_kv + a->n_used <= a->n_kv, DT_ERR_LAYOUT,
             "%s: query heads %lld to %lld read kv heads %lld to %lld, but this rank holds "
             "%lld to %lld; cut q, k and v alike",
             op, (long long)a->q_offset, (long long)(a->q_offset + a->n_heads - 1),
             (long long)(a->k_offset + a->first_kv),
             (long long)(a->k_offset + a->first_kv + a->n_used - 1), (long long)a->k_offset,
             (long long)(a->k_offset + a->n_kv - 1));
    return DT_OK;
}

dt_status dti_attention_unpack(const dt_kargs *args, const char *op, int first, int positions,
                               dti_attention *a)
{
    const dt_local *q = &args->in[first], *k = &args->in[first + 1];
    const dti_attention_attr *attr = args->attr;

    *a = (dti_attention){ .cpu = args->cpu,
                          .ops = args->cpu->attention,
                          .dtype = q->dtype,
                          .bytes = (int64_t)dt_dtype_size(q->dtype),
                          .q = q->data,
                          .k = k->data,
                          .v = args->in[first + 2].data,
                          .positions = args->in[positions].data,
                          .batch = q->shape[0],
                          .n_tokens = q->shape[1],
                          .n_heads = q->shape[2],
                          .width = q->shape[3],
                          .n_rows = k->shape[1],
                          .n_kv = k->shape[2],
                          .group = attr->n_heads / attr->n_kv_heads,
                          .q_offset = q->offset[2],
                          .k_offset = k->offset[2],
                          .window = attr->window,
                          .scale = attr->scale,
                          .b_offset = q->offset[0],
                          .all_heads = attr->n_heads };
    DT_TRY(dti_cpu_rows(args->cpu, op, q, &a->rows));
    return DT_OK;
}

dt_status dti_attention_open(const dt_kargs *args, const char *op, int first, int positions,
                             dti_attention *a)
{
    DT_TRY(dti_attention_unpack(args, op, first, positions, a));
    dti_attention_find_extras(a, args, positions + 1, first > 0);
    if (dti_local_count(&args->in[first]) == 0) return DT_OK;
    DT_TRY(dti_check_positions(op, &args->in[positions], a->n_rows));
    DT_TRY(check_segments(op, a));
    DT_TRY(dti_attention_check_heads(op, a));
    return DT_OK;
}

dt_status dti_attention_cpu(const dt_kargs *args)
{
    dti_attention a;

    DT_TRY(dti_attention_open(args, "attention", 0, 3, &a));
    if (dti_local_count(&args->in[0]) == 0) return DT_OK;
    a.y = args->out[0].data;
    DT_TRY(dti_attention_forward(&a));
    return DT_OK;
}

void dti_attention_find_dropout(dti_attention *a, const dti_attention_train_attr *attr)
{
    a->drops = attr->dropout > 0.0;
    a->key = (dt_random){ attr->seed, attr->stream };
    a->dropout = (float)attr->dropout;
    a->kept = a->dropout < 1.0f ? (float)(1.0 / (1.0 - attr->dropout)) : 0.0f;
}

dt_status dti_attention_lse_cpu(const dt_kargs *args)
{
    dti_attention a;

    DT_TRY(dti_attention_open(args, "attention_lse", 0, 3, &a));
    if (dti_local_count(&args->in[0]) == 0) return DT_OK;
    dti_attention_find_dropout(&a, args->attr);
    a.y = args->out[0].data;
    a.lse = args->out[1].data;
    DT_TRY(dti_attention_forward(&a));
    return DT_OK;
}
