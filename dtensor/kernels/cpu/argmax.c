/* SPDX-License-Identifier: Apache-2.0
 *
 * The first largest element of rows that lie on several ranks: a key per row whose order as an
 * integer is (value, lower global index first), so that the maximum of keys over ranks decides. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include "base/dtype.h"
#include "dtensor/argmax.h"

typedef struct argmax_job {
    const dti_row_ops *ops;
    const dt_local *x;
    int64_t *keys;
    int64_t n_rows, n;
} argmax_job;

static void argmax_share(void *arg, int worker, int n_workers)
{
    const argmax_job *j = arg;
    const int64_t first = j->x->offset[j->x->n_axes - 1];
    int64_t begin, end;

    dti_pool_share(j->n_rows, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const char *row = (const char *)j->x->data + r * j->n * (int64_t)dt_dtype_size(j->x->dtype);
        int64_t at;
        if (j->n == 0) {
            j->keys[r] = INT64_MIN;
            continue;
        }
        at = j->ops->argmax(row, j->n);
        j->keys[r] = dti_argmax_key(dti_load_f32(row, j->x->dtype, at), first + at);
    }
}

/* x [..., V] -> key [...] i64 */
dt_status dti_argmax_key_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    argmax_job job = {
        .x = x, .keys = a->out[0].data, .n_rows = dti_rows(x), .n = x->shape[x->n_axes - 1]
    };

    DT_TRY(dti_cpu_rows(a->cpu, "argmax_key", x, &job.ops));
    dti_cpu_run(a->cpu, dti_bytes(x), argmax_share, &job);
    return DT_OK;
}

/* key [...] i64 -> index [...] i32; -1 for the key of an empty row */
dt_status dti_argmax_id_cpu(const dt_kargs *a)
{
    const int64_t *keys = a->in[0].data;
    int32_t *ids = a->out[0].data;
    const int64_t n = dti_local_count(&a->in[0]);

    for (int64_t i = 0; i < n; i++)
        ids[i] = keys[i] == INT64_MIN ? -1 : (int32_t)dti_argmax_index(keys[i]);
    return DT_OK;
}
