/* SPDX-License-Identifier: Apache-2.0
 *
 * Reductions over an axis or over all, and arithmetic with a number. Sums are taken in f64, in an
 * order that depends on the shape alone, so no split over threads changes a bit. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>

#include "base/dtype.h"

enum { BLOCK = 512, LANES = 8, PIECE = 16 * BLOCK };

/* n elements from element `first` on, in f32. */
static void load(const dti_row_ops *rows, const dt_local *x, int64_t first, int64_t n, float *to)
{
    const char *data = x->data;

    rows[x->dtype].load(to, data + (size_t)first * dt_dtype_size(x->dtype), n);
}

/* --- over an axis ----------------------------------------------------------------------------- */

typedef enum reduction { SUM, MAX, MIN } reduction;

/* x [outer, k, inner] -> y [outer, inner] */
typedef struct reduce_job {
    const dti_row_ops *rows;
    const dt_local *x, *y;
    reduction how;
    int64_t outer, k, inner;
    int64_t n_pieces; /* of a row, where inner is 1 */
    double *partial;  /* [outer, n_pieces]; NULL if a row is one piece */
} reduce_job;

/* acc[i] and x[i] */
static void take(reduction how, double *acc, const float *x, int64_t n)
{
    switch (how) {
    case SUM:
        for (int64_t i = 0; i < n; i++) acc[i] += (double)x[i];
        break;
    case MAX:
        for (int64_t i = 0; i < n; i++)
            if ((double)x[i] > acc[i] || isnan(x[i])) acc[i] = (double)x[i];
        break;
    case MIN:
        for (int64_t i = 0; i < n; i++)
            if ((double)x[i] < acc[i] || isnan(x[i])) acc[i] = (double)x[i];
        break;
    }
}

static double start_of(reduction how)
{
    return how == SUM ? 0.0 : how == MAX ? (double)-INFINITY : (double)INFINITY;
}

static void store(const reduce_job *j, int64_t i, double value)
{
    dti_store_f32(j->y->data, j->y->dtype, i, (float)value);
}

/* Results first .. first + n - 1 of one outer index, n <= BLOCK. */
static void reduce_columns(const reduce_job *j, int64_t o, int64_t first, int64_t n)
{
    double acc[BLOCK];
    float block[BLOCK];

    for (int64_t i = 0; i < n; i++) acc[i] = start_of(j->how);
    for (int64_t r = 0; r < j->k; r++) {
        load(j->rows, j->x, (o * j->k + r) * j->inner + first, n, block);
        take(j->how, acc, block, n);
    }
    for (int64_t i = 0; i < n; i++) store(j, o * j->inner + first + i, acc[i]);
}

/* acc and values, in their order. */
static double fold(reduction how, double acc, const double *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = values[i];
        acc = how == SUM ? acc + v : (how == MAX ? v > acc : v < acc) || isnan(v) ? v : acc;
    }
    return acc;
}

/* Elements side by side: lane l has every LANES-th from l on, then the lanes are folded. What is
 * largest is found in vectors: a cross entropy looks for it in all logits. */
static double reduce_piece(const reduce_job *j, int64_t first, int64_t n)
{
    const size_t bytes = dt_dtype_size(j->x->dtype);
    const char *x = (const char *)j->x->data + (size_t)first * bytes;
    double lanes[LANES];
    float block[BLOCK];

    if (j->how == MAX && n > 0)
        return (double)dti_load_f32(x, j->x->dtype, j->rows[j->x->dtype].argmax(x, n));
    for (int l = 0; l < LANES; l++) lanes[l] = start_of(j->how);
    for (int64_t i = 0; i < n; i += BLOCK) {
        const int64_t m = n - i < BLOCK ? n - i : BLOCK;
        load(j->rows, j->x, first + i, m, block);
        for (int64_t e = 0; e < m; e += LANES)
            take(j->how, lanes, block + e, m - e < LANES ? m - e : LANES);
    }
    return fold(j->how, start_of(j->how), lanes, LANES);
}

/* Pieces of rows whose elements lie side by side; even one row is shared. */
static void reduce_rows(void *arg, int worker, int n_workers)
{
    const reduce_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->outer * j->n_pieces, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t o = i / j->n_pieces, at = i % j->n_pieces * PIECE;
        const int64_t n = j->k - at < PIECE ? j->k - at : PIECE;
        const double value = reduce_piece(j, o * j->k + at, n);
        if (j->partial != NULL)
            j->partial[i] = value;
        else
            store(j, o, value);
    }
}

static dt_status run_rows(dti_cpu *cpu, reduce_job *j)
{
    void *partial = NULL;

    j->n_pieces = j->k > PIECE ? (j->k + PIECE - 1) / PIECE : 1;
    if (j->n_pieces > 1)
        DT_TRY(
            dti_cpu_scratch(cpu, (size_t)(j->outer * j->n_pieces) * sizeof *j->partial, &partial));
    j->partial = partial;
    dti_cpu_run(cpu, dti_bytes(j->x), reduce_rows, j);
    for (int64_t o = 0; o < j->outer && partial != NULL; o++)
        store(j, o, fold(j->how, start_of(j->how), j->partial + o * j->n_pieces, j->n_pieces));
    return DT_OK;
}

static void reduce_all_columns(void *arg, int worker, int n_workers)
{
    const reduce_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->outer * j->inner, 64, worker, n_workers, &begin, &end);
    while (begin < end) {
        const int64_t o = begin / j->inner, first = begin % j->inner;
        int64_t n = j->inner - first < end - begin ? j->inner - first : end - begin;
        if (n > BLOCK) n = BLOCK;
        reduce_columns(j, o, first, n);
        begin += n;
    }
}

static dt_status reduce(const dt_kargs *a, reduction how)
{
    const dt_local *x = &a->in[0];
    const int axis = ((const dti_reduce_attr *)a->attr)->axis;
    reduce_job job = { a->cpu->rows, x, &a->out[0], how, 1, 1, 1, 1, NULL };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "a reduction", x, &ops));
    for (int b = 0; b < x->n_axes; b++)
        *(axis < 0 || b == axis ? &job.k : b < axis ? &job.outer : &job.inner) *= x->shape[b];
    if (job.inner == 1) return run_rows(a->cpu, &job);
    dti_cpu_run(a->cpu, dti_bytes(x), reduce_all_columns, &job);
    return DT_OK;
}

/* Elements of no rows give 0, -inf and inf, which a reduction over ranks does not notice. */
dt_status dti_sum_cpu(const dt_kargs *a)
{
    return reduce(a, SUM);
}

dt_status dti_max_cpu(const dt_kargs *a)
{
    return reduce(a, MAX);
}

dt_status dti_min_cpu(const dt_kargs *a)
{
    return reduce(a, MIN);
}

/* --- with a number ---------------------------------------------------------------------------- */

typedef struct scalar_job {
    const dti_row_ops *rows;
    const dt_local *x, *y;
    double factor, term;
} scalar_job;

/* y = x factor + term in f64, rounded to f32 and then to y's dtype. */
static void scalar_share(void *arg, int worker, int n_workers)
{
    const scalar_job *j = arg;
    const size_t bytes = dt_dtype_size(j->y->dtype);
    float block[BLOCK];
    int64_t begin, end;

    dti_pool_share(dti_local_count(j->x), 64, worker, n_workers, &begin, &end);
    for (; begin < end; begin += BLOCK) {
        const int64_t n = end - begin < BLOCK ? end - begin : BLOCK;
        load(j->rows, j->x, begin, n, block);
        for (int64_t i = 0; i < n; i++) block[i] = (float)((double)block[i] * j->factor + j->term);
        j->rows[j->y->dtype].store((char *)j->y->data + (size_t)begin * bytes, block, n);
    }
}

static dt_status scalar(const dt_kargs *a, double factor, double term)
{
    scalar_job job = { a->cpu->rows, &a->in[0], &a->out[0], factor, term };
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "arithmetic with a number", job.x, &ops));
    dti_cpu_run(a->cpu, 2 * dti_bytes(job.x), scalar_share, &job);
    return DT_OK;
}

dt_status dti_add_scalar_cpu(const dt_kargs *a)
{
    return scalar(a, 1.0, ((const dti_scalar_attr *)a->attr)->value);
}

dt_status dti_mul_scalar_cpu(const dt_kargs *a)
{
    return scalar(a, ((const dti_scalar_attr *)a->attr)->value, -0.0);
}
