/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows added by number, the gradients of what takes rows. Of an embedding: dy [..., d] F, ids [...]
 * i32, table [V, d], of which only the shape and the first row's number are looked at -> [V, d]
 * f32. Of index_select: dy [..., n, ...], ids [n] -> [..., V, ...]. Row r is the sum of dy's rows
 * whose id is r, in their order, RUN of them at a time, in f32; ids that no row of this rank has
 * add nothing, nor does an embedding's padding.
 *
 * Each row has a list of its places, built from the last one to the first, which is what sorting by
 * id and place would give. Columns are dealt to the threads, or where there are several matrices
 * those: a frequent id is then the work of all of them, and no number of threads changes an order.
 */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <string.h>

enum { GRAIN = 16, BLOCK = 512, RUN = 32 };

typedef struct scatter_job {
    const dti_row_ops *ops, *f32, *out; /* of dy, of sums, of the result */
    const char *dy;
    char *sums;
    const int32_t *first, *next;       /* of a row, of a place; -1: none */
    int64_t n_outer, n_ids, n_rows, d; /* dy [n_outer, n_ids, d], sums [n_outer, n_rows, d] */
    int64_t bytes, out_bytes;
} scatter_job;

/* n columns of a row of matrix o, from `column` on. */
static void sum_places(const scatter_job *j, int64_t o, int64_t row, int64_t column, int64_t n)
{
    float sum[BLOCK], run[BLOCK], one[BLOCK];

    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int32_t at = j->first[row]; at >= 0;) {
        memset(run, 0, (size_t)n * sizeof *run);
        for (int k = 0; k < RUN && at >= 0; k++, at = j->next[at]) {
            j->ops->load(one, j->dy + ((o * j->n_ids + at) * j->d + column) * j->bytes, n);
            j->f32->add(run, run, one, n);
        }
        j->f32->add(sum, sum, run, n);
    }
    j->out->store(j->sums + ((o * j->n_rows + row) * j->d + column) * j->out_bytes, sum, n);
}

static void scatter_share(void *arg, int worker, int n_workers)
{
    const scatter_job *j = arg;
    int64_t o = 0, o_end = j->n_outer, begin = 0, end = j->d;

    if (j->n_outer == 1)
        dti_pool_share(j->d, GRAIN, worker, n_workers, &begin, &end);
    else
        dti_pool_share(j->n_outer, 1, worker, n_workers, &o, &o_end);
    for (; o < o_end; o++)
        for (int64_t row = 0; row < j->n_rows; row++)
            for (int64_t i = begin; i < end; i += BLOCK)
                sum_places(j, o, row, i, end - i < BLOCK ? end - i : BLOCK);
}

/* Rows of this rank begin with number first_row; places with the id `padding` are passed over. */
static dt_status scatter(const dt_kargs *a, const char *op, int64_t first_row, int64_t padding,
                         scatter_job *job)
{
    const dt_local *dy = &a->in[0], *y = &a->out[0];
    const int32_t *ids = a->in[1].data;
    int32_t *first, *next;
    void *lists;

    job->f32 = &a->cpu->rows[DT_F32];
    job->dy = dy->data;
    job->sums = y->data;
    job->n_ids = dti_local_count(&a->in[1]);
    job->bytes = (int64_t)dt_dtype_size(dy->dtype);
    job->out_bytes = (int64_t)dt_dtype_size(y->dtype);
    DT_TRY(dti_cpu_rows(a->cpu, op, dy, &job->ops));
    DT_TRY(dti_cpu_rows(a->cpu, op, y, &job->out));
    DT_CHECK(job->n_ids <= INT32_MAX, DT_ERR_UNSUPPORTED, "%s: %lld ids on a rank", op,
             (long long)job->n_ids);
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(job->n_rows + job->n_ids) * sizeof *first, &lists));
    job->first = first = lists;
    job->next = next = first + job->n_rows;
    for (int64_t r = 0; r < job->n_rows; r++) first[r] = -1;
    for (int64_t i = job->n_ids - 1; i >= 0; i--) {
        const int64_t row = ids[i] - first_row;
        if (row < 0 || row >= job->n_rows || ids[i] == padding) continue;
        next[i] = first[row];
        first[row] = (int32_t)i;
    }
    dti_cpu_run(a->cpu, dti_bytes(dy) + dti_bytes(y), scatter_share, job);
    return DT_OK;
}

dt_status dti_embedding_backward_cpu(const dt_kargs *a)
{
    const dt_local *table = &a->in[2];
    scatter_job job = { .n_outer = 1, .n_rows = table->shape[0], .d = table->shape[1] };

    DT_TRY(scatter(a, "embedding_backward", table->offset[0],
                   ((const dti_embedding_attr *)a->attr)->padding, &job));
    return DT_OK;
}

dt_status dti_index_select_backward_cpu(const dt_kargs *a)
{
    const int64_t axis = ((const dti_select_backward_attr *)a->attr)->axis;
    const dt_local *y = &a->out[0];
    scatter_job job = { .n_outer = 1, .n_rows = y->shape[axis], .d = 1 };

    for (int b = 0; b < y->n_axes; b++)
        if (b != axis) *(b < axis ? &job.n_outer : &job.d) *= y->shape[b];
    DT_TRY(scatter(a, "index_select_backward", 0, -1, &job));
    return DT_OK;
}
