/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of experts: which ones a token goes to, and with which weights.
 *
 *   s = the softmax over all experts, or the sigmoid of each, of a token's logits, in f32
 *
 * The experts are the k largest of the logits; of s + bias, where there is a bias or groups: of the
 * groups whose two largest add up to the most. A weight is s of its expert, divided by the sum over
 * the chosen ones if they are normalised, times the scale. */
#include <math.h>

#include "base/dtype.h"
#include "dtensor/kernels/cpu/cpu_internal.h"

/* What a sum of chosen sigmoids, which may all be 0, has more in it. */
#define NOT_ZERO 1e-20f

/* The largest of `n` that is not among the first `taken` of `ids`; the first one of equals. */
static int32_t next_best(const float *x, int64_t n, const int32_t *ids, int64_t taken)
{
    int32_t best = -1;

    for (int32_t e = 0; e < n; e++) {
        bool is_new = true;
        for (int64_t i = 0; i < taken; i++) is_new = is_new && ids[i] != e;
        if (is_new && (best < 0 || x[e] > x[best] || (isnan(x[e]) && !isnan(x[best])))) best = e;
    }
    return best;
}

/* Logits become e^x over the largest, whose sum comes back, or sigmoids, which are divided by 1. */
static float to_scores(const dti_route_attr *attr, float *x, int64_t n)
{
    float largest = -INFINITY, sum = 0.0f;

    for (int64_t e = 0; e < n; e++) largest = fmaxf(largest, x[e]);
    if (attr->scores == DT_ROUTE_SIGMOID) {
        for (int64_t e = 0; e < n; e++) x[e] = 1.0f / (1.0f + expf(-x[e]));
        return 1.0f;
    }
    for (int64_t e = 0; e < n; e++) sum += x[e] = expf(x[e] - largest);
    return sum;
}

/* Leaves of each group but the best ones -inf. Room for n_groups sums and as many numbers. */
static void keep_groups(const dti_route_attr *attr, float *x, int64_t n, float *sums, int32_t *best)
{
    const int64_t size = n / attr->n_groups;

    for (int64_t g = 0; g < attr->n_groups; g++) {
        float first = -INFINITY, second = -INFINITY;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            second = fmaxf(second, fminf(first, x[e]));
            first = fmaxf(first, x[e]);
        }
        sums[g] = first + second;
    }
    for (int64_t i = 0; i < attr->n_groups; i++) {
        best[i] = next_best(sums, attr->n_groups, best, i);
        for (int64_t e = 0; i >= attr->n_chosen_groups && e < size; e++)
            x[best[i] * size + e] = -INFINITY;
    }
}

/* logits [..., E] F, bias [E] f32 in a row that has it -> ids [..., k] i32, largest first.
 * route_attr. */
dt_status dti_route_ids_cpu(const dt_kargs *a)
{
    const dti_route_attr *attr = a->attr;
    const dt_local *x = &a->in[0];
    const int64_t n = x->shape[x->n_axes - 1], k = a->out[0].shape[x->n_axes - 1];
    const int64_t rows = dti_rows(x), bytes = (int64_t)dt_dtype_size(x->dtype);
    const int64_t groups = attr->n_groups > 1 ? attr->n_groups : 0;
    const float *bias = a->n_in > 1 ? a->in[1].data : NULL;
    int32_t *ids = a->out[0].data;
    const dti_row_ops *ops;
    float *row;
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, "route_ids", x, &ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(n + 2 * groups) * sizeof *row, &scratch));
    row = scratch;
    for (int64_t r = 0; r < rows; r++) {
        ops->load(row, (const char *)x->data + r * n * bytes, n);
        if (bias != NULL || groups > 0) {
            const float sum = to_scores(attr, row, n);
            for (int64_t e = 0; e < n; e++) row[e] = row[e] / sum + (bias != NULL ? bias[e] : 0.0f);
        }
        if (groups > 0) keep_groups(attr, row, n, row + n, (int32_t *)(row + n + groups));
        for (int64_t i = 0; i < k; i++) ids[r * k + i] = next_best(row, n, ids + r * k, i);
    }
    return DT_OK;
}

static float scale_of(const dti_route_attr *attr)
{
    return attr->scale != 0.0f ? attr->scale : 1.0f;
}

/* logits [..., E] F, ids [..., k] i32 -> [..., k] F; rounds once. route_attr. */
dt_status dti_route_weights_cpu(const dt_kargs *a)
{
    const dti_route_attr *attr = a->attr;
    const dt_local *x = &a->in[0], *y = &a->out[0];
    const int64_t n = x->shape[x->n_axes - 1], k = y->shape[x->n_axes - 1];
    const int64_t rows = dti_rows(x), bytes = (int64_t)dt_dtype_size(x->dtype);
    const int32_t *ids = a->in[1].data;
    const dti_row_ops *ops;
    float *row, *out;
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, "route_weights", x, &ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(n + k) * sizeof(float), &scratch));
    row = scratch;
    out = row + n;
    for (int64_t r = 0; r < rows; r++) {
        float sum, chosen = attr->scores == DT_ROUTE_SIGMOID ? NOT_ZERO : 0.0f;
        ops->load(row, (const char *)x->data + r * n * bytes, n);
        sum = to_scores(attr, row, n);
        for (int64_t i = 0; i < k; i++) {
            const int32_t e = ids[r * k + i];
            DT_CHECK(e >= 0 && e < n, DT_ERR_ARG, "route_weights: expert %d of %lld", e,
                     (long long)n);
            chosen += out[i] = row[e] / sum;
        }
        for (int64_t i = 0; i < k; i++)
            out[i] = (attr->normalise != 0 ? out[i] / chosen : out[i]) * scale_of(attr);
        ops->store((char *)y->data + r * k * bytes, out, k);
    }
    return DT_OK;
}

/* What a token chose, and what came back of it. */
typedef struct choices {
    const int32_t *ids;
    const float *d;
    int64_t k;
} choices;

/* The gradient of a row's logits; p are its scores, not divided by `sum`, d what comes back. Of a
 * softmax p_e (sum of d at e - sum of d p), normalised the same of the chosen experts alone; of
 * sigmoids each has its own slope. */
static void slope(const dti_route_attr *attr, const float *p, int64_t n, float sum,
                  const choices *c, float *out)
{
    const bool normalise = attr->normalise != 0, sigmoid = attr->scores == DT_ROUTE_SIGMOID;
    const float *d = c->d;
    const int32_t *ids = c->ids;
    const int64_t k = c->k;
    float chosen = sigmoid ? NOT_ZERO : 0.0f, along = 0.0f;

    for (int64_t i = 0; i < k; i++) chosen += p[ids[i]];
    if (normalise) sum = chosen;
    for (int64_t i = 0; i < k; i++) along += d[i] * (p[ids[i]] / sum);
    for (int64_t e = 0; e < n; e++) out[e] = normalise || sigmoid ? 0.0f : -p[e] / sum * along;
    for (int64_t i = 0; i < k; i++) {
        const float own = normalise ? d[i] - along : d[i];
        out[ids[i]] += p[ids[i]] / sum * own * (sigmoid ? 1.0f - p[ids[i]] : 1.0f);
    }
    for (int64_t e = 0; e < n; e++) out[e] *= scale_of(attr);
}

/* logits [..., E] F, ids [..., k] i32, dy [..., k] F before them -> [..., E] F; rounds once.
 * route_attr. */
dt_status dti_route_weights_backward_cpu(const dt_kargs *a)
{
    const dti_route_attr *attr = a->attr;
    const dt_local *dy = &a->in[0], *x = &a->in[1], *dx = &a->out[0];
    const int64_t n = x->shape[x->n_axes - 1], k = dy->shape[x->n_axes - 1];
    const int64_t rows = dti_rows(x), bytes = (int64_t)dt_dtype_size(x->dtype);
    const int32_t *ids = a->in[2].data;
    const dti_row_ops *ops;
    float *p, *d, *out;
    void *scratch;

    DT_TRY(dti_cpu_rows(a->cpu, "route_weights_backward", x, &ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(2 * n + k) * sizeof(float), &scratch));
    p = scratch;
    out = p + n;
    d = out + n;
    for (int64_t r = 0; r < rows; r++, ids += k) {
        ops->load(p, (const char *)x->data + r * n * bytes, n);
        ops->load(d, (const char *)dy->data + r * k * bytes, k);
        for (int64_t i = 0; i < k; i++)
            DT_CHECK(ids[i] >= 0 && ids[i] < n, DT_ERR_ARG,
                     "route_weights_backward: expert %d of %lld", ids[i], (long long)n);
        slope(attr, p, n, to_scores(attr, p, n), &(choices){ ids, d, k }, out);
        ops->store((char *)dx->data + r * n * bytes, out, n);
    }
    return DT_OK;
}
