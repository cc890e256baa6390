/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of matrices that are both values of a pass: a [..., i, k], b [..., k, j] -> [..., i, j],
 * either of them transposed. (Products with a layer's weight are linear.c.) Blocks of both are
 * unfolded into f32; an element is one chain of multiply-adds along k in f32, one rounding, however
 * the work is shared. */
#include "dtensor/kernels/cpu/attention.h"

#include <string.h>

enum { ROWS = 64, COLUMNS = 256, DEPTH = 256 }; /* of a block: multiples of DTI_PAD */
enum { SCRATCH = DEPTH * COLUMNS + ROWS * DEPTH + ROWS * COLUMNS + DEPTH };

/* One matrix of each batch, of `rows` x `columns` where it does not lie transposed. */
typedef struct matrix {
    const char *data;
    const dti_row_ops *ops;
    int64_t bytes; /* of an element */
    int64_t rows, columns;
    bool transposed;
} matrix;

typedef struct matmul_job {
    const dti_attention_ops *ops;
    const dti_row_ops *rows; /* by dtype */
    matrix a, b;
    char *y;
    dt_dtype dtype; /* of y */
    int64_t batch, m, n, k;
    float *scratch;
} matmul_job;

/* Rows and columns of a batch's matrix, from r and c on. */
typedef struct part {
    int64_t batch, r, c, n_rows, n_columns;
} part;

/* A part as f32 rows of `stride`; `line` has room for a column. */
static void unfold(float *to, int64_t stride, const matrix *x, part p, float *line)
{
    const char *data = x->data + p.batch * x->rows * x->columns * x->bytes;

    for (int64_t i = 0; i < p.n_rows && !x->transposed; i++)
        x->ops->load(to + i * stride, data + ((p.r + i) * x->columns + p.c) * x->bytes,
                     p.n_columns);
    for (int64_t j = 0; j < p.n_columns && x->transposed; j++) {
        x->ops->load(line, data + ((p.c + j) * x->rows + p.r) * x->bytes, p.n_rows);
        for (int64_t i = 0; i < p.n_rows; i++) to[i * stride + j] = line[i];
    }
}

/* One block of y. */
static void multiply_block(const matmul_job *j, int64_t batch, int64_t row, int64_t column,
                           float *scratch)
{
    float *b = scratch, *a = b + DEPTH * COLUMNS, *c = a + ROWS * DEPTH, *line = c + ROWS * COLUMNS;
    const int64_t m = j->m - row < ROWS ? j->m - row : ROWS;
    const int64_t n = j->n - column < COLUMNS ? j->n - column : COLUMNS;
    const int64_t bytes = (int64_t)dt_dtype_size(j->dtype);

    memset(c, 0, (size_t)(m * COLUMNS) * sizeof *c);
    memset(b, 0, (size_t)(DEPTH * COLUMNS) * sizeof *b);
    for (int64_t k = 0; k < j->k; k += DEPTH) {
        const int64_t depth = j->k - k < DEPTH ? j->k - k : DEPTH;
        unfold(a, DEPTH, &j->a, (part){ batch, row, k, m, depth }, line);
        unfold(b, COLUMNS, &j->b, (part){ batch, k, column, depth, n }, line);
        j->ops->multiply(&(dti_product){ .c = c,
                                         .a = a,
                                         .b = b,
                                         .c_stride = COLUMNS,
                                         .a_row = DEPTH,
                                         .a_column = 1,
                                         .b_stride = COLUMNS,
                                         .m = m,
                                         .n = dti_padded(n),
                                         .k = depth,
                                         .add = true });
    }
    for (int64_t i = 0; i < m; i++)
        j->rows[j->dtype].store(j->y + ((batch * j->m + row + i) * j->n + column) * bytes,
                                c + i * COLUMNS, n);
}

static void matmul_share(void *arg, int worker, int n_workers)
{
    const matmul_job *j = arg;
    const int64_t down = (j->m + ROWS - 1) / ROWS, across = (j->n + COLUMNS - 1) / COLUMNS;
    int64_t begin, end;

    dti_pool_share(j->batch * down * across, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        multiply_block(j, i / (down * across), i / across % down * ROWS, i % across * COLUMNS,
                       j->scratch + (int64_t)worker * SCRATCH);
}

dt_status dti_matmul_cpu(const dt_kargs *args)
{
    const dti_matmul_attr *attr = args->attr;
    const dt_local *a = &args->in[0], *b = &args->in[1], *y = &args->out[0];
    const dti_row_ops *ops;
    matmul_job job = { .ops = args->cpu->attention,
                       .rows = args->cpu->rows,
                       .y = y->data,
                       .dtype = y->dtype,
                       .m = y->shape[y->n_axes - 2],
                       .n = y->shape[y->n_axes - 1],
                       .k = a->shape[a->n_axes - (attr->transposed_a ? 2 : 1)],
                       .batch = 1 };
    void *scratch;

    DT_TRY(dti_cpu_rows(args->cpu, "matmul", a, &ops));
    DT_TRY(dti_cpu_rows(args->cpu, "matmul", y, &ops));
    for (int axis = 0; axis < y->n_axes - 2; axis++) job.batch *= y->shape[axis];
    if (dti_local_count(y) == 0) return DT_OK;
    job.a = (matrix){ a->data, &job.rows[a->dtype],    (int64_t)dt_dtype_size(a->dtype), job.m,
                      job.k,   attr->transposed_a != 0 };
    job.b = (matrix){ b->data, &job.rows[b->dtype],    (int64_t)dt_dtype_size(b->dtype), job.k,
                      job.n,   attr->transposed_b != 0 };
    DT_TRY(dti_cpu_scratch(
        args->cpu, (size_t)(dti_pool_size(args->cpu->pool) * SCRATCH) * sizeof(float), &scratch));
    job.scratch = scratch;
    dti_cpu_run(args->cpu, job.batch * job.m * job.n * job.k / 8, matmul_share, &job);
    return DT_OK;
}
