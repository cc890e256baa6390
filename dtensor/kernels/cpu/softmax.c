/* SPDX-License-Identifier: Apache-2.0
 *
 * Along one axis, x [outer, k, inner]: softmax and its logarithm, their gradients, and sums of all
 * elements up to each. A line along the axis has its own result, whatever the split over threads.
 */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>

#include "base/dtype.h"

enum { BLOCK = 512 };

typedef enum line_form {
    SOFTMAX,
    LOG_SOFTMAX,
    SOFTMAX_BACKWARD,
    LOG_SOFTMAX_BACKWARD,
    CUMSUM,
    CUMSUM_BACKWARD
} line_form;

typedef struct line_job {
    const dti_row_ops *rows;      /* by dtype */
    const dt_local *x, *kept, *y; /* of gradients x is dy, and `kept` the forward result */
    line_form form;
    int64_t outer, k, inner;
} line_job;

/* Elements first .. first + n - 1 of x in f32, and of y from f32. */
static void load_of(const line_job *j, const dt_local *x, int64_t first, int64_t n, float *to)
{
    j->rows[x->dtype].load(to, (const char *)x->data + (size_t)first * dt_dtype_size(x->dtype), n);
}

static void load(const line_job *j, int64_t first, int64_t n, float *to)
{
    load_of(j, j->x, first, n, to);
}

static void store(const line_job *j, int64_t first, int64_t n, const float *from)
{
    j->rows[j->y->dtype].store((char *)j->y->data + (size_t)first * dt_dtype_size(j->y->dtype),
                               from, n);
}

/* The same of a tile: `count` rows of the axis from row r on, n <= BLOCK columns or, where inner is
 * 1, one column whose rows lie side by side. */
typedef struct tile {
    int64_t o, column, n; /* outer index, first column, columns */
    int64_t rows;         /* rows that one load takes */
} tile;

/* e^(x - m) of a block in place, columns repeating every `n`. */
static void soften(const line_job *j, float *block, int64_t rows, int64_t n, const float *m)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < n; i++) block[r * n + i] -= m[i];
    j->rows[DT_F32].exp(block, block, rows * n);
}

static int64_t rows_at(const line_job *j, const tile *t, int64_t r)
{
    return j->k - r < t->rows ? j->k - r : t->rows;
}

static void line_softmax(const line_job *j, const tile *t)
{
    float m[BLOCK], block[BLOCK];
    double sum[BLOCK], log_of[BLOCK];
    const int64_t first = t->o * j->k * j->inner + t->column;

    for (int64_t i = 0; i < t->n; i++) {
        m[i] = -INFINITY;
        sum[i] = 0.0;
    }
    for (int64_t r = 0; r < j->k; r += t->rows) {
        const int64_t rows = rows_at(j, t, r);
        load(j, first + r * j->inner, rows * t->n, block);
        for (int64_t at = 0; at < rows * t->n; at += t->n)
            for (int64_t i = 0; i < t->n; i++)
                if (block[at + i] > m[i] || isnan(block[at + i])) m[i] = block[at + i];
    }
    for (int64_t r = 0; r < j->k; r += t->rows) {
        const int64_t rows = rows_at(j, t, r);
        load(j, first + r * j->inner, rows * t->n, block);
        soften(j, block, rows, t->n, m);
        for (int64_t at = 0; at < rows * t->n; at += t->n)
            for (int64_t i = 0; i < t->n; i++) sum[i] += (double)block[at + i];
    }
    for (int64_t i = 0; i < t->n && j->form == LOG_SOFTMAX; i++) log_of[i] = log(sum[i]);
    for (int64_t r = 0; r < j->k; r += t->rows) {
        const int64_t rows = rows_at(j, t, r);
        load(j, first + r * j->inner, rows * t->n, block);
        if (j->form == SOFTMAX) soften(j, block, rows, t->n, m);
        for (int64_t at = 0; at < rows * t->n; at += t->n)
            for (int64_t i = 0; i < t->n; i++)
                block[at + i] = j->form == SOFTMAX ? block[at + i] / (float)sum[i]
                                                   : block[at + i] - m[i] - (float)log_of[i];
        store(j, first + r * j->inner, rows * t->n, block);
    }
}

/* dx = y (dy - sum of dy y), dx = dy - e^y (sum of dy) */
static void line_backward(const line_job *j, const tile *t)
{
    const bool logarithm = j->form == LOG_SOFTMAX_BACKWARD;
    float dy[BLOCK], y[BLOCK];
    double sum[BLOCK] = { 0.0 };
    const int64_t first = t->o * j->k * j->inner + t->column;

    for (int64_t r = 0; r < j->k; r += t->rows) {
        const int64_t n = rows_at(j, t, r) * t->n;
        load(j, first + r * j->inner, n, dy);
        load_of(j, j->kept, first + r * j->inner, n, y);
        for (int64_t at = 0; at < n; at += t->n)
            for (int64_t i = 0; i < t->n; i++)
                sum[i] += (double)dy[at + i] * (logarithm ? 1.0 : (double)y[at + i]);
    }
    for (int64_t r = 0; r < j->k; r += t->rows) {
        const int64_t n = rows_at(j, t, r) * t->n;
        load(j, first + r * j->inner, n, dy);
        load_of(j, j->kept, first + r * j->inner, n, y);
        if (logarithm) j->rows[DT_F32].exp(y, y, n);
        for (int64_t at = 0; at < n; at += t->n)
            for (int64_t i = 0; i < t->n; i++) {
                const float s = (float)sum[i], d = dy[at + i], v = y[at + i];
                dy[at + i] = logarithm ? d - v * s : v * (d - s);
            }
        store(j, first + r * j->inner, n, dy);
    }
}

/* Sums from the first row on, or from the last. */
static void line_cumsum(const line_job *j, const tile *t)
{
    const bool forward = j->form == CUMSUM;
    double sum[BLOCK] = { 0.0 };
    float block[BLOCK];
    const int64_t first = t->o * j->k * j->inner + t->column, tiles = (j->k - 1) / t->rows;

    for (int64_t at = 0; at <= tiles; at++) {
        const int64_t r = (forward ? at : tiles - at) * t->rows, rows = rows_at(j, t, r);
        load(j, first + r * j->inner, rows * t->n, block);
        for (int64_t k = 0; k < rows; k++)
            for (int64_t i = 0; i < t->n; i++) {
                float *x = block + (forward ? k : rows - 1 - k) * t->n + i;
                *x = (float)(sum[i] += (double)*x);
            }
        store(j, first + r * j->inner, rows * t->n, block);
    }
}

static void line_share(void *arg, int worker, int n_workers)
{
    const line_job *j = arg;
    const int64_t columns = j->inner < BLOCK ? j->inner : BLOCK;
    const int64_t per_outer = (j->inner + columns - 1) / columns;
    int64_t begin, end;

    dti_pool_share(j->outer * per_outer, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        tile t = { .o = i / per_outer, .column = i % per_outer * columns };
        t.n = j->inner - t.column < columns ? j->inner - t.column : columns;
        t.rows = j->inner == 1 ? BLOCK : 1;
        if (j->form == CUMSUM || j->form == CUMSUM_BACKWARD)
            line_cumsum(j, &t);
        else if (j->kept != NULL)
            line_backward(j, &t);
        else
            line_softmax(j, &t);
    }
}

static dt_status line(const dt_kargs *a, const char *op, line_form form)
{
    const int64_t axis = ((const dti_axis_attr *)a->attr)->axis;
    const dt_local *x = &a->in[0];
    line_job job = { .rows = a->cpu->rows,
                     .x = x,
                     .kept = a->n_in > 1 ? &a->in[1] : NULL,
                     .y = &a->out[0],
                     .form = form,
                     .outer = 1,
                     .k = x->shape[axis],
                     .inner = 1 };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, op, x, &ops));
    for (int b = 0; b < x->n_axes; b++)
        if (b != axis) *(b < axis ? &job.outer : &job.inner) *= x->shape[b];
    if (dti_local_count(x) > 0) dti_cpu_run(a->cpu, 4 * dti_bytes(x), line_share, &job);
    return DT_OK;
}

/* e^(x - m) / sum, m the largest; x - m - ln sum: in f32, sums in f64, one rounding */
dt_status dti_softmax_cpu(const dt_kargs *a)
{
    return line(a, "softmax", SOFTMAX);
}

dt_status dti_log_softmax_cpu(const dt_kargs *a)
{
    return line(a, "log_softmax", LOG_SOFTMAX);
}

dt_status dti_softmax_backward_cpu(const dt_kargs *a)
{
    return line(a, "softmax_backward", SOFTMAX_BACKWARD);
}

dt_status dti_log_softmax_backward_cpu(const dt_kargs *a)
{
    return line(a, "log_softmax_backward", LOG_SOFTMAX_BACKWARD);
}

/* Sums in f64, each rounded. */
dt_status dti_cumsum_cpu(const dt_kargs *a)
{
    return line(a, "cumsum", CUMSUM);
}

/* Each element is in the sums from its own on. */
dt_status dti_cumsum_backward_cpu(const dt_kargs *a)
{
    return line(a, "cumsum_backward", CUMSUM_BACKWARD);
}
