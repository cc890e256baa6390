/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of operators that treat elements alone, and sums of gradients. Results may lie where
 * operands do. */
#include "dtensor/kernels/cpu/cpu_internal.h"

enum { GRAIN = 64, BLOCK = 1024 };

typedef void (*slope_fn)(void *dx, const void *dy, const void *x, int64_t n);

/* dx of dy and x or y; or dg and du of dy, g and u. */
typedef struct element_job {
    slope_fn slope;                                                                 /* one of */
    void (*cap_slope)(void *dx, const void *dy, const void *y, int64_t n, float c); /* these */
    void (*gated)(const dti_gated_row *r);                                          /* is set */
    const dt_kargs *args;
    int64_t n, bytes;
} element_job;

static void element_share(void *arg, int worker, int n_workers)
{
    const element_job *j = arg;
    const dt_kargs *a = j->args;
    int64_t begin, end, at;

    dti_pool_share(j->n, GRAIN, worker, n_workers, &begin, &end);
    at = begin * j->bytes;
#define IN(i)  ((const char *)a->in[i].data + at)
#define OUT(r) ((char *)a->out[r].data + at)
    if (j->slope != NULL)
        j->slope(OUT(0), IN(0), IN(1), end - begin);
    else if (j->cap_slope != NULL)
        j->cap_slope(OUT(0), IN(0), IN(1), end - begin,
                     (float)((const dti_scalar_attr *)a->attr)->value);
    else
        j->gated(&(dti_gated_row){ IN(0), IN(1), IN(2), OUT(0), OUT(1), end - begin });
#undef IN
#undef OUT
}

static dt_status run(const dt_kargs *a, element_job job)
{
    job.args = a;
    job.n = dti_local_count(&a->in[0]);
    job.bytes = (int64_t)dt_dtype_size(a->in[0].dtype);
    if (job.n > 0)
        dti_cpu_run(a->cpu, (a->n_in + a->n_out) * job.n * job.bytes, element_share, &job);
    return DT_OK;
}

#define ROW(name, which)                                                  \
    dt_status dti_##name##_backward_cpu(const dt_kargs *a)                \
    {                                                                     \
        const dti_row_ops *ops;                                           \
                                                                          \
        DT_TRY(dti_cpu_rows(a->cpu, #name "_backward", &a->in[0], &ops)); \
        return run(a, (element_job){ .which = ops->name##_backward });    \
    }
#define F(name, formula, slope_of) ROW(name, slope)
DTI_CURVES(F)
#undef F
ROW(soft_cap, cap_slope)
ROW(silu_mul, gated)
ROW(gelu_tanh_mul, gated)
#undef ROW

/* --- sums of gradients ------------------------------------------------------------------------ */

typedef struct sum_job {
    const dti_row_ops *rows; /* by dtype */
    const dt_local *x, *y;
} sum_job;

static void sum_share(void *arg, int worker, int n_workers)
{
    const sum_job *j = arg;
    const char *x = j->x->data;
    float *y = j->y->data;
    _Alignas(64) float block[BLOCK];
    int64_t begin, end;

    dti_pool_share(dti_local_count(j->x), GRAIN, worker, n_workers, &begin, &end);
    for (; begin < end; begin += BLOCK) {
        const int64_t n = end - begin < BLOCK ? end - begin : BLOCK;
        j->rows[j->x->dtype].load(block, x + begin * (int64_t)dt_dtype_size(j->x->dtype), n);
        j->rows[DT_F32].add(y + begin, y + begin, block, n);
    }
}

dt_status dti_accumulate_cpu(const dt_kargs *a)
{
    sum_job job = { a->cpu->rows, &a->in[0], &a->out[0] };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "accumulate", job.x, &ops));
    dti_cpu_run(a->cpu, dti_bytes(job.x) + 2 * dti_bytes(job.y), sum_share, &job);
    return DT_OK;
}
