/* SPDX-License-Identifier: Apache-2.0
 *
 * Dropout: which elements go follows from the key and the global index alone, so it is the same on
 * every mesh, with every number of threads and in recomputation. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include "base/dtype.h"

enum { BLOCK = 512 };

typedef struct dropout_job {
    const dti_cpu *cpu;
    const dti_dropout_attr *attr;
    const dt_local *x, *y;
    int64_t n; /* elements of a row */
} dropout_job;

/* The global index of the first element of a row of the last axis. */
static int64_t first_of(const dropout_job *j, int64_t row)
{
    const int last = j->x->n_axes - 1;
    int64_t at = last >= 0 ? j->x->offset[last] : 0;
    int64_t step = last >= 0 ? j->attr->shape[last] : 1;

    for (int a = last - 1; a >= 0; row /= j->x->shape[a], step *= j->attr->shape[a--])
        at += (j->x->offset[a] + row % j->x->shape[a]) * step;
    return at;
}

static void dropout_share(void *arg, int worker, int n_workers)
{
    const dropout_job *j = arg;
    const dti_random_fill uniform = { .kind = DTI_RANDOM_UNIFORM,
                                      .dtype = DT_F32,
                                      .key = { j->attr->seed, j->attr->stream },
                                      .scale = 1.0 };
    const dti_row_ops *ops = &j->cpu->rows[j->x->dtype];
    const int64_t bytes = (int64_t)dt_dtype_size(j->x->dtype);
    const float p = (float)j->attr->p, scale = p < 1.0f ? (float)(1.0 / (1.0 - j->attr->p)) : 0.0f;
    float block[BLOCK], u[BLOCK];
    int64_t begin, end;

    dti_pool_share(dti_rows(j->x), 1, worker, n_workers, &begin, &end);
    for (int64_t row = begin; row < end; row++) {
        const int64_t first = first_of(j, row);
        for (int64_t i = 0; i < j->n; i += BLOCK) {
            const int64_t n = j->n - i < BLOCK ? j->n - i : BLOCK;
            const int64_t at = (row * j->n + i) * bytes;
            ops->load(block, (const char *)j->x->data + at, n);
            j->cpu->random(&uniform, u, first + i, n);
            for (int64_t k = 0; k < n; k++) block[k] = u[k] < p ? 0.0f : block[k] * scale;
            ops->store((char *)j->y->data + at, block, n);
        }
    }
}

/* x F -> 0 where uniform number i of the key is below p, else x / (1 - p), rounded once.
 * dropout_attr. */
dt_status dti_dropout_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    dropout_job job = { a->cpu, a->attr, x, &a->out[0],
                        x->n_axes > 0 ? x->shape[x->n_axes - 1] : 1 };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "dropout", x, &ops));
    if (dti_local_count(x) > 0) dti_cpu_run(a->cpu, 4 * dti_bytes(x), dropout_share, &job);
    return DT_OK;
}
