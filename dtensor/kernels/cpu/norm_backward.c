/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of norms: dy, x [..., d] F, w [d] F -> dx [..., d] F, dw [d] f32 and, of a layer norm,
 * db [d] f32. What a row needs of its own (mean, scale) is found again from x, which is in the
 * cache then: kept ones would save one of four passes over it.
 *
 * dw is a sum over rows. They are dealt to PARTS parts, as many as their number alone says; each
 * part adds its rows in order, and then the parts are added in order. So no number of threads and
 * no timing changes a bit, and a chain of additions is 64 times shorter than the rows are many. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <string.h>

enum { PARTS = 64, GRAIN = 64 };

typedef struct norm_job {
    const dti_row_ops *ops, *f32;
    dti_norm_row first; /* of the first row; dw, db: results */
    int64_t n_rows, bytes, n_parts;
    float *terms; /* [n_parts, 2, n]: of dw and of db */
} norm_job;

static void rows_share(void *arg, int worker, int n_workers)
{
    const norm_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n_parts, 1, worker, n_workers, &begin, &end);
    for (int64_t p = begin; p < end; p++) {
        const int64_t until = j->n_rows * (p + 1) / j->n_parts;
        float *terms = j->terms + 2 * p * j->first.n;
        dti_norm_row row = j->first;
        if (row.dw != NULL) row.dw = memset(terms, 0, (size_t)row.n * sizeof *terms);
        if (row.db != NULL) row.db = memset(terms + row.n, 0, (size_t)row.n * sizeof *terms);
        for (int64_t r = j->n_rows * p / j->n_parts; r < until; r++) {
            const int64_t at = r * row.n * j->bytes;
            row.dy = (const char *)j->first.dy + at;
            row.x = (const char *)j->first.x + at;
            row.dx = j->first.dx != NULL ? (char *)j->first.dx + at : NULL;
            j->ops->norm_backward(&row);
        }
    }
}

static void add_parts(const norm_job *j, float *sum, const float *terms, int64_t n)
{
    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t p = 0; p < j->n_parts; p++) j->f32->add(sum, sum, terms + 2 * p * j->first.n, n);
}

static void sums_share(void *arg, int worker, int n_workers)
{
    const norm_job *j = arg;
    const dti_norm_row *r = &j->first;
    int64_t begin, end;

    dti_pool_share(r->n, GRAIN, worker, n_workers, &begin, &end);
    if (r->dw != NULL) add_parts(j, r->dw + begin, j->terms + begin, end - begin);
    if (r->db != NULL) add_parts(j, r->db + begin, j->terms + r->n + begin, end - begin);
}

static dt_status norm(const dt_kargs *a, const char *op, float plus, bool centred)
{
    const dti_norm_backward_attr *attr = a->attr;
    const dt_local *x = &a->in[1];
    void *wanted[3] = { NULL };
    norm_job job = { .f32 = &a->cpu->rows[DT_F32],
                     .n_rows = dti_rows(x),
                     .bytes = (int64_t)dt_dtype_size(x->dtype) };
    void *terms;

    DT_TRY(dti_cpu_rows(a->cpu, op, x, &job.ops));
    for (int r = 0; r < a->n_out; r++)
        if (attr->want >> r & 1u) wanted[r] = a->out[r].data;
    job.first = (dti_norm_row){ .dy = a->in[0].data,
                                .x = x->data,
                                .w = a->in[2].data,
                                .dx = wanted[0],
                                .dw = wanted[1],
                                .db = wanted[2],
                                .n = x->shape[x->n_axes - 1],
                                .eps = attr->eps,
                                .plus = plus,
                                .centred = centred };
    job.n_parts = job.n_rows < PARTS ? job.n_rows : PARTS;
    if (job.first.n == 0) return DT_OK;
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(2 * job.n_parts * job.first.n) * sizeof *job.terms,
                           &terms));
    job.terms = terms;
    dti_cpu_run(a->cpu, 4 * dti_bytes(x), rows_share, &job);
    dti_cpu_run(a->cpu, 2 * job.n_parts * job.first.n * (int64_t)sizeof *job.terms, sums_share,
                &job);
    return DT_OK;
}

dt_status dti_rms_norm_backward_cpu(const dt_kargs *a)
{
    return norm(a, "rms_norm_backward", 0.0f, false);
}

dt_status dti_rms_norm_1p_backward_cpu(const dt_kargs *a)
{
    return norm(a, "rms_norm_1p_backward", 1.0f, false);
}

dt_status dti_layer_norm_backward_cpu(const dt_kargs *a)
{
    return norm(a, "layer_norm_backward", 0.0f, true);
}
