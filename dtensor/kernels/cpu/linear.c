/* SPDX-License-Identifier: Apache-2.0
 *
 * y[m, o] = sum_i x[m, i] w[o, i] (+ bias[o]); x [M, I], w [O, I] row-major, bias [O], y [M, O] of
 * the model's dtype or f32. Sums in f32. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include "base/dtype.h"

typedef struct linear_job {
    const dt_local *x, *w, *bias, *y;
    int64_t n_rows, n_in, n_out;
} linear_job;

static void linear_share(void *arg, int worker, int n_workers)
{
    const linear_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_out, 1, worker, n_workers, &begin, &end);
    for (int64_t m = 0; m < j->n_rows; m++)
        for (int64_t o = begin; o < end; o++) {
            float sum = 0.0f;
            for (int64_t i = 0; i < j->n_in; i++)
                sum += dti_load_f32(j->x->data, j->x->dtype, m * j->n_in + i) *
                       dti_load_f32(j->w->data, j->w->dtype, o * j->n_in + i);
            if (j->bias != NULL) sum += dti_load_f32(j->bias->data, j->bias->dtype, o);
            dti_store_f32(j->y->data, j->y->dtype, m * j->n_out + o, sum);
        }
}

dt_status dti_linear_cpu(const dt_kargs *a)
{
    linear_job job = { .x = &a->in[0],
                       .w = &a->in[1],
                       .bias = a->n_in > 2 ? &a->in[2] : NULL,
                       .y = &a->out[0],
                       .n_rows = dti_rows(&a->in[0]),
                       .n_in = a->in[1].shape[1],
                       .n_out = a->in[1].shape[0] };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "linear", job.x, &ops));
    DT_TRY(dti_cpu_rows(a->cpu, "linear", job.w, &ops));
    DT_TRY(dti_cpu_rows(a->cpu, "linear", job.y, &ops));
    dti_cpu_run(a->cpu, dti_bytes(job.w), linear_share, &job);
    return DT_OK;
}
