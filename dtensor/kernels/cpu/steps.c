/* SPDX-License-Identifier: Apache-2.0
 *
 * Steps of optimizers, and exact sums of squares: shares of elements for each worker. No sum is
 * split but those of whole numbers, so the number of workers changes nothing. */
#include "dtensor/kernels/cpu/cpu_internal.h"

enum { GRAIN = 1024 };

typedef struct step_job {
    const dti_cpu *cpu;
    const dti_step_rounding *rounding;
    const dti_adamw_attr *adamw; /* or */
    const dti_sgd_attr *sgd;
    dti_step_run whole;
} step_job;

static float *from(float *p, int64_t i)
{
    return p != NULL ? p + i : NULL;
}

static void step_run(const step_job *j, int64_t begin, int64_t n, const dt_random *key,
                     int64_t global)
{
    const dti_step_run *w = &j->whole;
    const dti_step_run run = { .g = w->g + begin,
                               .p = (char *)w->p + begin * (int64_t)dt_dtype_size(w->dtype),
                               .master = from(w->master, begin),
                               .first = from(w->first, begin),
                               .second = from(w->second, begin),
                               .key = key,
                               .global = global,
                               .n = n,
                               .dtype = w->dtype };

    if (j->adamw != NULL)
        j->cpu->steps->adamw(j->adamw, &run);
    else
        j->cpu->steps->sgd(j->sgd, &run);
}

static void step_share(void *arg, int worker, int n_workers)
{
    const step_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->whole.n, GRAIN, worker, n_workers, &begin, &end);
    if (!j->rounding->stochastic) {
        step_run(j, begin, end - begin, NULL, 0);
        return;
    }
    while (begin < end) {
        int64_t left;
        const int64_t global = dti_step_global(&j->rounding->where, begin, &left);
        const int64_t n = left < end - begin ? left : end - begin;
        step_run(j, begin, n, &j->rounding->key, global);
        begin += n;
    }
}

/* Bytes that one element moves: what is read, and what is written. */
static int64_t bytes_of(const dt_kargs *a)
{
    int64_t bytes = 0;

    for (int i = 0; i < a->n_in; i++) bytes += dti_bytes(&a->in[i]);
    for (int i = 0; i < a->n_out; i++) bytes += dti_bytes(&a->out[i]);
    return bytes;
}

static dt_status run_step(const dt_kargs *a, step_job *j, bool master)
{
    const dt_local *p = &a->in[1];
    const dti_row_ops *ops;

    DT_TRY(dti_cpu_rows(a->cpu, "a step of an optimizer", p, &ops)); /* a dtype that it takes */
    j->cpu = a->cpu;
    j->whole.g = a->in[0].data;
    j->whole.p = p->data;
    j->whole.dtype = p->dtype;
    j->whole.n = dti_local_count(p);
    j->whole.master = master ? a->in[a->n_in - 1].data : NULL;
    dti_cpu_run(a->cpu, bytes_of(a), step_share, j);
    return DT_OK;
}

/* g f32, p F, m f32, v f32 (, master f32) -> p, m, v (, master) */
dt_status dti_adamw_cpu(const dt_kargs *a)
{
    step_job j = { .adamw = a->attr, .rounding = &((const dti_adamw_attr *)a->attr)->rounding };

    j.whole.first = a->in[2].data;
    j.whole.second = a->in[3].data;
    DT_TRY(run_step(a, &j, a->n_in > 4));
    return DT_OK;
}

/* g f32, p F (, momentum f32) (, master f32) -> p (, momentum) (, master) */
dt_status dti_sgd_cpu(const dt_kargs *a)
{
    step_job j = { .sgd = a->attr, .rounding = &((const dti_sgd_attr *)a->attr)->rounding };

    if (j.sgd->has_momentum) j.whole.first = a->in[2].data;
    DT_TRY(run_step(a, &j, j.sgd->has_master));
    return DT_OK;
}

/* --- sums of squares -------------------------------------------------------------------------- */

typedef struct square_job {
    const dti_cpu *cpu;
    const float *x;
    int64_t n;
    dti_found_squares *sums; /* of each worker */
} square_job;

static void square_share(void *arg, int worker, int n_workers)
{
    const square_job *j = arg;
    dti_found_squares *sum = &j->sums[worker];
    int64_t begin, end;

    *sum = (dti_found_squares){ .first_bad = INT64_MAX };
    dti_pool_share(j->n, GRAIN, worker, n_workers, &begin, &end);
    j->cpu->steps->squares(j->x, begin, end - begin, sum);
}

/* x f32, digits i64 [DTI_DIGITS_N] (, bad i64 [2]) -> digits, to which it is added (, bad: how many
 * are not finite, and the first of them or -1) */
dt_status dti_square_digits_cpu(const dt_kargs *a)
{
    const int n_workers = dti_pool_size(a->cpu->pool);
    square_job j = { .cpu = a->cpu, .x = a->in[0].data, .n = dti_local_count(&a->in[0]) };
    int64_t *digits = a->out[0].data, bad = 0, first = INT64_MAX;
    void *sums;

    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)n_workers * sizeof *j.sums, &sums));
    j.sums = sums;
    for (int w = 0; w < n_workers; w++) j.sums[w] = (dti_found_squares){ .first_bad = INT64_MAX };
    dti_cpu_run(a->cpu, dti_bytes(&a->in[0]), square_share, &j);
    for (int w = 0; w < n_workers; w++) {
        for (int d = 0; d < DTI_DIGITS; d++) digits[d] += j.sums[w].digits[d];
        bad += j.sums[w].bad;
        if (j.sums[w].first_bad < first) first = j.sums[w].first_bad;
    }
    dti_digits_carry(digits);
    digits[DTI_DIGITS_BAD] += bad;
    if (a->n_out > 1) {
        ((int64_t *)a->out[1].data)[0] = bad;
        ((int64_t *)a->out[1].data)[1] = bad > 0 ? first : -1;
    }
    return DT_OK;
}
