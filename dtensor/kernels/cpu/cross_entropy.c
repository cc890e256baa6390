/* SPDX-License-Identifier: Apache-2.0
 *
 * Cross entropy over a vocabulary of which a rank may hold a part, or nothing: what each part adds
 * to a token's sums, a token's loss from the sums of all, and the gradient of the logits, which
 * needs no other rank. In f32, long sums of blocks in f64; a token's values are its own, whatever
 * the split over threads. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

enum { BLOCK = 1024 };

typedef struct entropy_job {
    const dti_row_ops *ops, *f32;
    const dt_kargs *args;
    const dti_cross_entropy_attr *attr;
    const dt_local *logits;
    const int32_t *targets;
    int64_t n_tokens, n, first, bytes; /* first: number of the first logit of this rank */
} entropy_job;

static dt_status job_of(const dt_kargs *a, const char *op, int logits, entropy_job *out)
{
    const dt_local *x = &a->in[logits];

    DT_TRY(dti_cpu_rows(a->cpu, op, x, &out->ops));
    out->f32 = &a->cpu->rows[DT_F32];
    out->args = a;
    out->attr = a->attr;
    out->logits = x;
    out->targets = a->in[logits + 1].data;
    out->n_tokens = dti_rows(x);
    out->n = x->shape[x->n_axes - 1];
    out->first = x->offset[x->n_axes - 1];
    out->bytes = (int64_t)dt_dtype_size(x->dtype);
    return DT_OK;
}

/* --- sums ------------------------------------------------------------------------------------- */

/* sum[0]: of e^(x - most), [1]: the target's logit if it is here, [2]: of x, if there is room. A
 * part of nothing but -inf, or of nothing, adds 0. */
static void sum_token(const entropy_job *j, int64_t token, float most, float *sum, int64_t n_sums)
{
    const char *x = (const char *)j->logits->data + token * j->n * j->bytes;
    const int64_t at = j->targets[token] - j->first;
    const float shift = most == -INFINITY ? 0.0f : most;
    double exps = 0.0, all = 0.0;

    for (int64_t i = 0; i < j->n; i += BLOCK) {
        const int64_t n = j->n - i < BLOCK ? j->n - i : BLOCK;
        exps += (double)j->ops->exp_sum(x + i * j->bytes, n, shift);
        if (n_sums > 2) all += (double)j->ops->total(x + i * j->bytes, n);
    }
    sum[0] = (float)exps;
    sum[1] = at >= 0 && at < j->n ? dti_load_f32(x, j->logits->dtype, at) : 0.0f;
    if (n_sums > 2) sum[2] = (float)all;
}

static void sums_share(void *arg, int worker, int n_workers)
{
    const entropy_job *j = arg;
    const dt_local *y = &j->args->out[0];
    const int64_t n_sums = y->shape[y->n_axes - 1];
    int64_t begin, end;

    dti_pool_share(j->n_tokens, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        sum_token(j, i, ((const float *)j->args->in[2].data)[i], (float *)y->data + i * n_sums,
                  n_sums);
}

/* logits [..., v] F, targets [...] i32, most [...] f32 -> [..., 2 or 3] f32 */
dt_status dti_cross_entropy_sums_cpu(const dt_kargs *a)
{
    entropy_job job;

    DT_TRY(job_of(a, "cross_entropy_sums", 0, &job));
    if (job.n_tokens > 0) dti_cpu_run(a->cpu, 2 * dti_bytes(job.logits), sums_share, &job);
    return DT_OK;
}

/* --- losses ----------------------------------------------------------------------------------- */

/* Targets are contents of a tensor, so no rule saw them. */
static dt_status check_targets(const dti_cross_entropy_attr *attr, const int32_t *targets,
                               int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        DT_CHECK(
            targets[i] == attr->ignore_index || (targets[i] >= 0 && targets[i] < attr->vocabulary),
            DT_ERR_ARG,
            "cross_entropy: target %d at place %lld; the vocabulary has %lld entries, and "
            "only %lld is ignored",
            targets[i], (long long)i, (long long)attr->vocabulary, (long long)attr->ignore_index);
    return DT_OK;
}

/* logits (not read), targets [...], most [...], sums [..., 2 or 3] -> losses, ln of the sums of all
 * e^x, 1 of tokens that count and 0 of others, all [...] f32 */
dt_status dti_cross_entropy_cpu(const dt_kargs *a)
{
    const dti_cross_entropy_attr *attr = a->attr;
    const dt_local *sums = &a->in[3];
    const int64_t n = dti_local_count(&a->in[1]), n_sums = sums->shape[sums->n_axes - 1];
    const int32_t *targets = a->in[1].data;
    const float smooth = (float)attr->label_smoothing, z = (float)attr->z_loss;
    float *losses = a->out[0].data, *lse = a->out[1].data, *counted = a->out[2].data;

    DT_TRY(check_targets(attr, targets, n));
    for (int64_t i = 0; i < n; i++) lse[i] = ((const float *)sums->data)[i * n_sums];
    a->cpu->rows[DT_F32].log(lse, lse, n);
    for (int64_t i = 0; i < n; i++) {
        const float *s = (const float *)sums->data + i * n_sums;
        float loss;
        lse[i] += ((const float *)a->in[2].data)[i];
        loss = lse[i] - s[1];
        if (n_sums > 2)
            loss = (1.0f - smooth) * loss + smooth * (lse[i] - s[2] / (float)attr->vocabulary);
        counted[i] = targets[i] == attr->ignore_index ? 0.0f : 1.0f;
        losses[i] = counted[i] > 0.0f ? loss + z * lse[i] * lse[i] : 0.0f;
    }
    return DT_OK;
}

/* --- gradient --------------------------------------------------------------------------------- */

/* dx = dloss (softmax (1 + 2 z lse) - (1 - smoothing) [is target] - smoothing / vocabulary) */
static void slope_token(const entropy_job *j, int64_t token, float dloss, float lse)
{
    const int64_t at = j->targets[token] - j->first;
    const size_t from = (size_t)(token * j->n * j->bytes);
    const char *x = (const char *)j->logits->data + from;
    char *dx = (char *)j->args->out[0].data + from;
    const dti_softmax_slope s = { lse, dloss * (1.0f + 2.0f * (float)j->attr->z_loss * lse),
                                  dloss * (float)j->attr->label_smoothing /
                                      (float)j->attr->vocabulary };
    float own = 0.0f;

    if (j->targets[token] == j->attr->ignore_index) {
        memset(dx, 0, (size_t)(j->n * j->bytes));
        return;
    }
    if (at >= 0 && at < j->n) {
        own = dti_load_f32(x, j->logits->dtype, at);
        j->f32->softmax_slope(&own, &own, 1, &s);
        own -= dloss * (1.0f - (float)j->attr->label_smoothing);
    }
    j->ops->softmax_slope(dx, x, j->n, &s);
    if (at >= 0 && at < j->n) dti_store_f32(dx, j->logits->dtype, at, own);
}

static void slope_share(void *arg, int worker, int n_workers)
{
    const entropy_job *j = arg;
    const float *dloss = j->args->in[0].data, *lse = j->args->in[3].data;
    int64_t begin, end;

    dti_pool_share(j->n_tokens, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) slope_token(j, i, dloss[i], lse[i]);
}

/* dlosses [...] f32, logits [..., v] F, targets [...], lse [...] f32 -> [..., v] F */
dt_status dti_cross_entropy_backward_cpu(const dt_kargs *a)
{
    entropy_job job;

    DT_TRY(job_of(a, "cross_entropy_backward", 1, &job));
    if (job.n_tokens > 0) dti_cpu_run(a->cpu, 3 * dti_bytes(job.logits), slope_share, &job);
    return DT_OK;
}

/* targets [...] i32 -> how many are not ignored, [] f32. count_attr */
dt_status dti_count_targets_cpu(const dt_kargs *a)
{
    const int64_t ignore = ((const dti_count_attr *)a->attr)->ignore_index;
    const int64_t n = dti_local_count(&a->in[0]);
    int64_t count = 0;

    for (int64_t i = 0; i < n; i++) count += ((const int32_t *)a->in[0].data)[i] != ignore;
    *(float *)a->out[0].data = (float)count;
    return DT_OK;
}
