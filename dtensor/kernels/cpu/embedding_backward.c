/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradient of an embedding: dy [..., d] F, ids [...] i32, table [V, d], of which only the shape
 * and the first row's number are looked at -> [V, d] f32. Row r is the sum of dy's rows whose id is
 * r, in their order, RUN of them at a time; ids that no row of this rank has add nothing.
 *
 * Each row of the table has a list of its places, built from the last one to the first, which is
 * what sorting by id and place would give. Columns are dealt to the threads: a frequent id is then
 * the work of all of them, and no number of threads changes an order. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <string.h>

enum { GRAIN = 16, BLOCK = 512, RUN = 32 };

typedef struct scatter_job {
    const dti_row_ops *ops, *f32;
    const char *dy;
    float *sums;
    const int32_t *first, *next; /* of a row, of a place; -1: none */
    int64_t n_rows, d, bytes;
} scatter_job;

/* n columns of a row, from `column` on. */
static void sum_places(const scatter_job *j, int64_t row, int64_t column, int64_t n)
{
    float *sum = j->sums + row * j->d + column;
    float run[BLOCK], one[BLOCK];

    memset(sum, 0, (size_t)n * sizeof *sum);
    for (int32_t at = j->first[row]; at >= 0;) {
        memset(run, 0, (size_t)n * sizeof *run);
        for (int k = 0; k < RUN && at >= 0; k++, at = j->next[at]) {
            j->ops->load(one, j->dy + (at * j->d + column) * j->bytes, n);
            j->f32->add(run, run, one, n);
        }
        j->f32->add(sum, sum, run, n);
    }
}

static void scatter_share(void *arg, int worker, int n_workers)
{
    const scatter_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->d, GRAIN, worker, n_workers, &begin, &end);
    for (int64_t row = 0; row < j->n_rows; row++)
        for (int64_t i = begin; i < end; i += BLOCK)
            sum_places(j, row, i, end - i < BLOCK ? end - i : BLOCK);
}

dt_status dti_embedding_backward_cpu(const dt_kargs *a)
{
    const dt_local *dy = &a->in[0], *ids = &a->in[1], *table = &a->in[2];
    const int64_t n_ids = dti_local_count(ids), n_rows = table->shape[0];
    scatter_job job = { .f32 = &a->cpu->rows[DT_F32],
                        .dy = dy->data,
                        .sums = a->out[0].data,
                        .n_rows = n_rows,
                        .d = table->shape[1],
                        .bytes = (int64_t)dt_dtype_size(dy->dtype) };
    int32_t *first, *next;
    void *lists;

    DT_TRY(dti_cpu_rows(a->cpu, "embedding_backward", dy, &job.ops));
    DT_CHECK(n_ids <= INT32_MAX, DT_ERR_UNSUPPORTED, "embedding_backward: %lld ids on a rank",
             (long long)n_ids);
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(n_rows + n_ids) * sizeof *first, &lists));
    job.first = first = lists;
    job.next = next = first + n_rows;
    for (int64_t r = 0; r < n_rows; r++) first[r] = -1;
    for (int64_t i = n_ids - 1; i >= 0; i--) {
        const int64_t row = ((const int32_t *)ids->data)[i] - table->offset[0];
        if (row < 0 || row >= n_rows) continue;
        next[i] = first[row];
        first[row] = (int32_t)i;
    }
    dti_cpu_run(a->cpu, dti_bytes(dy) + dti_bytes(&a->out[0]), scatter_share, &job);
    return DT_OK;
}
