/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of T new tokens over the cache. B batch, H query heads and Kv kv heads of this
 * rank, e head width, S rows of the cache.
 * y[b, t, h] = sum_j p_j v[b, j, kv], p = softmax_j(scale q[b, t, h] . k[b, j, kv]) over rows
 * j <= positions[b, t], the last `window` of them if window > 0. f32 throughout, one rounding.
 *
 * A row's result depends on the row, its position and on T == 1 or not: neither other rows nor the
 * number of threads nor the cut of heads over ranks changes a bit. */
#include "dtensor/kernels/cpu/attention.h"

const dti_attention_ops *dti_attention_ops_of(dti_isa isa)
{
    switch (isa) {
#ifdef DT_HAVE_X86_KERNELS
    case DTI_ISA_AVX2:
        return &dti_attention_avx2;
    case DTI_ISA_AVX512:
    case DTI_ISA_AVX512_BF16:
    case DTI_ISA_AMX:
        return &dti_attention_avx512;
#endif
    default:
        return &dti_attention_portable;
    }
}

dt_status dti_attention_cpu(const dt_kargs *args)
{
    const dt_local *q = &args->in[0], *k = &args->in[1];
    const dti_attention_attr *attr = args->attr;
    dti_attention a = { .cpu = args->cpu,
                        .ops = args->cpu->attention,
                        .dtype = q->dtype,
                        .bytes = (int64_t)dt_dtype_size(q->dtype),
                        .q = q->data,
                        .k = k->data,
                        .v = args->in[2].data,
                        .y = args->out[0].data,
                        .positions = args->in[3].data,
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
                        .scale = attr->scale };

    DT_TRY(dti_cpu_rows(args->cpu, "attention", q, &a.rows));
    if (dti_local_count(q) == 0) return DT_OK;
    DT_TRY(dti_check_positions("attention", &args->in[3], a.n_rows));
    a.first_kv = a.q_offset / a.group - a.k_offset;
    a.n_used = (a.q_offset + a.n_heads - 1) / a.group - a.k_offset - a.first_kv + 1;
    DT_CHECK(a.first_kv >= 0 && a.first_kv + a.n_used <= a.n_kv, DT_ERR_LAYOUT,
             "attention: query heads %lld to %lld read kv heads %lld to %lld, but this rank holds "
             "%lld to %lld; cut q, k and v alike",
             (long long)a.q_offset, (long long)(a.q_offset + a.n_heads - 1),
             (long long)(a.k_offset + a.first_kv),
             (long long)(a.k_offset + a.first_kv + a.n_used - 1), (long long)a.k_offset,
             (long long)(a.k_offset + a.n_kv - 1));
    if (a.n_tokens == 1)
        DT_TRY(dti_attention_decode(&a));
    else
        DT_TRY(dti_attention_prefill(&a));
    return DT_OK;
}
