/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms over the last axis: x [..., d], w [d], b [d] -> y [..., d]; y may be x. A row's result
 * depends on that row alone, so splitting rows over ranks or threads changes no bit. */
#include "dtensor/kernels/cpu/cpu_internal.h"
#include "dtensor/kernels/fused.h"

typedef struct norm_job {
    const dti_row_ops *ops;
    void (*rms)(void *y, const void *x, const void *w, int64_t n, float eps);
    const char *x;
    char *y;
    const void *w, *b; /* b NULL: an RMS norm */
    int64_t n_rows, n, bytes;
    float eps;
} norm_job;

static void norm_share(void *arg, int worker, int n_workers)
{
    const norm_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_rows, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const char *x = j->x + r * j->n * j->bytes;
        char *y = j->y + r * j->n * j->bytes;
        if (j->b != NULL)
            j->ops->layer_norm(y, x, j->w, j->b, j->n, j->eps);
        else
            j->rms(y, x, j->w, j->n, j->eps);
    }
}

static dt_status norm(const dt_kargs *a, const char *op, dti_norm_form form)
{
    const dt_local *x = &a->in[0];
    const dti_norm_attr *attr = a->attr;
    norm_job job = { .x = x->data,
                     .y = a->out[0].data,
                     .w = a->in[1].data,
                     .b = form == DTI_LAYER ? a->in[2].data : NULL,
                     .n_rows = dti_rows(x),
                     .n = x->shape[x->n_axes - 1],
                     .bytes = (int64_t)dt_dtype_size(x->dtype),
                     .eps = attr->eps };

    DT_TRY(dti_cpu_rows(a->cpu, op, x, &job.ops));
    job.rms = form == DTI_RMS        ? job.ops->rms_norm
              : form == DTI_RMS_ONCE ? job.ops->rms_norm_once
                                     : job.ops->rms_norm_1p;
    if (dti_local_count(x) > 0) dti_cpu_run(a->cpu, 2 * dti_bytes(x), norm_share, &job);
    return DT_OK;
}

dt_status dti_rms_norm_cpu(const dt_kargs *a)
{
    return norm(a, "rms_norm", DTI_RMS);
}

dt_status dti_rms_norm_once_cpu(const dt_kargs *a)
{
    return norm(a, "rms_norm_once", DTI_RMS_ONCE);
}

dt_status dti_rms_norm_1p_cpu(const dt_kargs *a)
{
    return norm(a, "rms_norm_1p", DTI_RMS_1P);
}

dt_status dti_layer_norm_cpu(const dt_kargs *a)
{
    return norm(a, "layer_norm", DTI_LAYER);
}
