/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of y = x w^T + bias, dy [T, O] given: dx = dy w, dw = dy^T x, db = sum over tokens. The
 * products are those of linear.c on operands that lie transposed, so an element is summed in an
 * order that depends on shapes and the instruction set alone. */
#include <string.h>

#include "dtensor/kernels/cpu/linear.h"

dt_status dti_linear_backward_x_cpu(const dt_kargs *a)
{
    const dt_local *w = &a->in[1];
    const dti_linear l = { .cpu = a->cpu,
                           .x = &a->in[0],
                           .w = w,
                           .y = &a->out[0],
                           .n_rows = dti_rows(&a->in[0]),
                           .n_in = w->shape[0],
                           .n_out = w->shape[1],
                           .w_turned = true };

    DT_TRY(dti_linear_check(&l, "linear_backward_x"));
    DT_TRY(dti_linear_run(&l));
    return DT_OK;
}

dt_status dti_linear_backward_w_cpu(const dt_kargs *a)
{
    const dti_linear l = { .cpu = a->cpu,
                           .x = &a->in[0],
                           .w = &a->in[1],
                           .y = &a->out[0],
                           .n_rows = a->out[0].shape[0],
                           .n_in = dti_rows(&a->in[0]),
                           .n_out = a->out[0].shape[1],
                           .x_turned = true,
                           .w_turned = true };

    DT_TRY(dti_linear_check(&l, "linear_backward_w"));
    DT_TRY(dti_linear_run(&l));
    return DT_OK;
}

/* --- bias ------------------------------------------------------------------------------------- */

enum { COLUMNS = 256, TOKENS = 64 }; /* sums of so many tokens are added to those before */

typedef struct bias_job {
    const dti_cpu *cpu;
    const dt_local *dy;
    float *db;
    int64_t n_tokens, n;
} bias_job;

static void bias_share(void *arg, int worker, int n_workers)
{
    const bias_job *j = arg;
    const dti_row_ops *rows = j->cpu->rows;
    const int64_t bytes = (int64_t)dt_dtype_size(j->dy->dtype);
    _Alignas(64) float sum[COLUMNS], row[COLUMNS];
    int64_t begin, end;

    dti_pool_share(j->n, 16, worker, n_workers, &begin, &end);
    for (int64_t o = begin; o < end; o += COLUMNS) {
        const int64_t n = end - o < COLUMNS ? end - o : COLUMNS;
        memset(j->db + o, 0, (size_t)n * sizeof *j->db);
        for (int64_t t = 0; t < j->n_tokens; t++) {
            const char *at = (const char *)j->dy->data + (t * j->n + o) * bytes;
            rows[j->dy->dtype].load(t % TOKENS == 0 ? sum : row, at, n);
            if (t % TOKENS != 0) rows[DT_F32].add(sum, sum, row, n);
            if (t % TOKENS == TOKENS - 1 || t == j->n_tokens - 1)
                rows[DT_F32].add(j->db + o, j->db + o, sum, n);
        }
    }
}

dt_status dti_add_bias_backward_cpu(const dt_kargs *a)
{
    bias_job j = { a->cpu, &a->in[0], a->out[0].data, dti_rows(&a->in[0]), a->out[0].shape[0] };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "add_bias_backward", j.dy, &ops));
    dti_cpu_run(a->cpu, dti_bytes(j.dy), bias_share, &j);
    return DT_OK;
}
