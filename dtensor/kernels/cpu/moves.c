/* SPDX-License-Identifier: Apache-2.0
 *
 * Operators that move elements and do not change them: permute, concat, pad, index_select. Exact in
 * every dtype. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <string.h>

/* Extents before and behind an axis. */
static void around(const dt_local *x, int64_t axis, int64_t *outer, int64_t *inner)
{
    *outer = *inner = 1;
    for (int a = 0; a < x->n_axes; a++)
        if (a != axis) *(a < axis ? outer : inner) *= x->shape[a];
}

/* --- permute ---------------------------------------------------------------------------------- */

typedef struct permute_job {
    const char *x;
    char *y;
    int n_axes;                  /* of the result, neighbours that stay neighbours being one */
    int64_t extent[DT_MAX_AXES]; /* of the result */
    int64_t step[DT_MAX_AXES];   /* elements in x to the next one */
    int64_t n_rows, bytes;       /* rows of the result's last axis; of an element */
} permute_job;

static void copy_row(char *y, const char *x, int64_t n, int64_t step, int64_t bytes)
{
    if (step == 1) memcpy(y, x, (size_t)(n * bytes));
    for (int64_t i = 0; i < n && step != 1; i++)
        memcpy(y + i * bytes, x + i * step * bytes, (size_t)bytes);
}

static void permute_share(void *arg, int worker, int n_workers)
{
    const permute_job *j = arg;
    const int last = j->n_axes - 1;
    const int64_t n = j->extent[last];
    int64_t begin, end;

    dti_pool_share(j->n_rows, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        int64_t at = 0, rest = r;
        for (int a = last - 1; a >= 0; rest /= j->extent[a--])
            at += rest % j->extent[a] * j->step[a];
        copy_row(j->y + r * n * j->bytes, j->x + at * j->bytes, n, j->step[last], j->bytes);
    }
}

/* x [...] -> y, axis a of which is axis attr->axis[a] of x */
dt_status dti_permute_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const dti_permute_attr *attr = a->attr;
    int64_t step[DT_MAX_AXES], n = 1;
    permute_job job = { .x = x->data, .y = y->data, .bytes = (int64_t)dt_dtype_size(x->dtype) };

    for (int b = x->n_axes - 1; b >= 0; n *= x->shape[b--]) step[b] = n;
    if (n == 0) return DT_OK;
    for (int b = 0; b < y->n_axes; b++) {
        const int k = job.n_axes - 1, from = attr->axis[b];
        if (y->shape[b] == 1) continue;
        if (k >= 0 && job.step[k] == step[from] * y->shape[b]) {
            job.extent[k] *= y->shape[b];
            job.step[k] = step[from];
        } else {
            job.extent[k + 1] = y->shape[b];
            job.step[k + 1] = step[from];
            job.n_axes++;
        }
    }
    if (job.n_axes == 0) job = (permute_job){ x->data, y->data, 1, { 1 }, { 1 }, 1, job.bytes };
    job.n_rows = n / job.extent[job.n_axes - 1];
    dti_cpu_run(a->cpu, 2 * n * job.bytes, permute_share, &job);
    return DT_OK;
}

/* --- along one axis --------------------------------------------------------------------------- */

/* x_i [..., k_i, ...] -> y [..., sum of k_i, ...] */
dt_status dti_concat_cpu(const dt_kargs *a)
{
    const int64_t axis = ((const dti_concat_attr *)a->attr)->axis;
    const dt_local *y = &a->out[0];
    int64_t outer, inner, bytes, at = 0;

    around(y, axis, &outer, &inner);
    bytes = inner * (int64_t)dt_dtype_size(y->dtype);
    for (int i = 0; i < a->n_in; i++) {
        const int64_t rows = a->in[i].shape[axis];
        for (int64_t o = 0; o < outer && rows * bytes > 0; o++)
            memcpy((char *)y->data + (o * y->shape[axis] + at) * bytes,
                   (const char *)a->in[i].data + o * rows * bytes, (size_t)(rows * bytes));
        at += rows;
    }
    return DT_OK;
}

/* x [..., k, ...] -> y [..., before + k + after, ...], the attribute's element in what is new. Both
 * know which of the whole axis' rows they have. */
dt_status dti_pad_cpu(const dt_kargs *a)
{
    const dti_pad_attr *attr = a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int axis = attr->axis;
    const int64_t n = y->shape[axis], from = y->offset[axis] - attr->before - x->offset[axis];
    const size_t size = dt_dtype_size(y->dtype);
    int64_t outer, inner, bytes;

    around(y, axis, &outer, &inner);
    bytes = inner * (int64_t)size;
    for (int64_t o = 0; o < outer && bytes > 0; o++)
        for (int64_t r = 0; r < n; r++) {
            const int64_t row = from + r;
            char *to = (char *)y->data + (o * n + r) * bytes;
            if (row >= 0 && row < x->shape[axis])
                memcpy(to, (const char *)x->data + (o * x->shape[axis] + row) * bytes,
                       (size_t)bytes);
            else
                for (int64_t i = 0; i < inner; i++)
                    memcpy(to + i * (int64_t)size, &attr->bits, size);
        }
    return DT_OK;
}

typedef struct select_job {
    const int32_t *ids;
    const char *x;
    char *y;
    int64_t n_ids, outer, first, n_rows, bytes;
} select_job;

static void select_share(void *arg, int worker, int n_workers)
{
    const select_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->outer * j->n_ids, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t row = j->ids[i % j->n_ids] - j->first;
        char *y = j->y + i * j->bytes;
        if (row >= 0 && row < j->n_rows)
            memcpy(y, j->x + (i / j->n_ids * j->n_rows + row) * j->bytes, (size_t)j->bytes);
        else
            memset(y, 0, (size_t)j->bytes);
    }
}

/* x [..., k, ...], ids [n] i32 -> y [..., n, ...]: row ids[i] of the whole axis, zeros if this rank
 * does not hold it. */
dt_status dti_index_select_cpu(const dt_kargs *a)
{
    const int64_t axis = ((const dti_axis_attr *)a->attr)->axis;
    const dt_local *x = &a->in[0], *ids = &a->in[1];
    select_job job = { .ids = ids->data,
                       .x = x->data,
                       .y = a->out[0].data,
                       .n_ids = ids->shape[0],
                       .first = x->offset[axis],
                       .n_rows = x->shape[axis] };
    int64_t inner;

    around(x, axis, &job.outer, &inner);
    job.bytes = inner * (int64_t)dt_dtype_size(x->dtype);
    if (job.bytes > 0) dti_cpu_run(a->cpu, 2 * dti_bytes(&a->out[0]), select_share, &job);
    return DT_OK;
}
