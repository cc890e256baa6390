/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of experts: which ones a token goes to, and what they make of it.
 *
 *   y[t] = sum over slots s of weights[t, s] down_e (silu(gate_e x[t]) up_e x[t]), e = ids[t, s]
 *
 * Tokens are gathered by expert, so that each expert's weights are read once and its products are
 * those of linear.c. Sums over slots are f32, in the order of experts; y is rounded once. */
#include "dtensor/kernels/cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

/* --- routing ---------------------------------------------------------------------------------- */

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

/* logits [..., E] F -> ids [..., k] i32: experts of the k largest, largest first. route_attr. */
dt_status dti_route_ids_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    const int64_t n = x->shape[x->n_axes - 1], k = a->out[0].shape[x->n_axes - 1];
    const int64_t rows = dti_rows(x), bytes = (int64_t)dt_dtype_size(x->dtype);
    int32_t *ids = a->out[0].data;
    const dti_row_ops *ops;
    void *row;

    DT_TRY(dti_cpu_rows(a->cpu, "route_ids", x, &ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)n * sizeof(float), &row));
    for (int64_t r = 0; r < rows; r++) {
        ops->load(row, (const char *)x->data + r * n * bytes, n);
        for (int64_t i = 0; i < k; i++) ids[r * k + i] = next_best(row, n, ids + r * k, i);
    }
    return DT_OK;
}

/* logits [..., E] F, ids [..., k] i32 -> [..., k] F: softmax over all experts in f32, of the chosen
 * ones; divided by their sum if the attribute says so; rounds once. route_attr. */
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
        float largest = -INFINITY, sum = 0.0f, chosen = 0.0f;
        ops->load(row, (const char *)x->data + r * n * bytes, n);
        for (int64_t e = 0; e < n; e++) largest = fmaxf(largest, row[e]);
        for (int64_t e = 0; e < n; e++) sum += row[e] = expf(row[e] - largest);
        for (int64_t i = 0; i < k; i++) {
            const int32_t e = ids[r * k + i];
            DT_CHECK(e >= 0 && e < n, DT_ERR_ARG, "route_weights: expert %d of %lld", e,
                     (long long)n);
            chosen += out[i] = row[e] / sum;
        }
        for (int64_t i = 0; i < k && attr->normalise != 0; i++) out[i] /= chosen;
        ops->store((char *)y->data + r * k * bytes, out, k);
    }
    return DT_OK;
}

/* --- experts ---------------------------------------------------------------------------------- */

typedef struct experts_job {
    const dt_kargs *a;
    const dti_row_ops *rows; /* of the model's dtype */
    int64_t n_tokens, n_slots, n_experts, d, f;
    int64_t bytes;    /* of an element of the model's dtype */
    int64_t *begin;   /* [n_experts + 1]: where an expert's slots begin in `slots` */
    int32_t *slots;   /* token * n_slots + slot, by expert */
    char *x, *h, *up; /* of one expert's tokens: [n, d], [n, 2 f], [n, f] */
    float *z;         /* [n, d] */
    float *sums;      /* [n_tokens, d] */
    int64_t n, first; /* tokens of the expert at hand, and its first slot */
} experts_job;

/* The slots of this rank's experts, in the order of experts and tokens. Others are left out. */
static void sort_slots(experts_job *j)
{
    const dt_local *gate_up = &j->a->in[3];
    const int32_t *ids = j->a->in[1].data, first = (int32_t)gate_up->offset[0];
    const int64_t all = j->n_tokens * j->n_slots;

    memset(j->begin, 0, (size_t)(j->n_experts + 2) * sizeof *j->begin);
    for (int64_t s = 0; s < all; s++) {
        const int64_t e = ids[s] - first;
        if (e >= 0 && e < j->n_experts) j->begin[e + 2]++;
    }
    for (int64_t e = 2; e <= j->n_experts + 1; e++) j->begin[e] += j->begin[e - 1];
    for (int64_t s = 0; s < all; s++) {
        const int64_t e = ids[s] - first;
        if (e >= 0 && e < j->n_experts) j->slots[j->begin[e + 1]++] = (int32_t)s;
    }
}

static void gather_share(void *arg, int worker, int n_workers)
{
    const experts_job *j = arg;
    const int64_t row = j->d * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        memcpy(j->x + r * row,
               (const char *)j->a->in[0].data + j->slots[j->first + r] / j->n_slots * row,
               (size_t)row);
}

static void gate_share(void *arg, int worker, int n_workers)
{
    const experts_job *j = arg;
    const int64_t row = j->f * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        j->rows->silu_mul(j->up + r * row, j->h + 2 * r * row, j->h + (2 * r + 1) * row, j->f);
}

/* Tokens of one expert are different ones, so workers write to different rows. */
static void add_share(void *arg, int worker, int n_workers)
{
    const experts_job *j = arg;
    const dt_local *weights = &j->a->in[2];
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const int64_t slot = j->slots[j->first + r];
        const float w = dti_load_f32(weights->data, weights->dtype, slot);
        float *sums = j->sums + slot / j->n_slots * j->d;
        for (int64_t i = 0; i < j->d; i++) sums[i] += w * j->z[r * j->d + i];
    }
}

static dt_status multiply(const experts_job *j, const dt_local *w, int64_t e, void *x, void *y,
                          dt_dtype y_dtype)
{
    const int64_t n_out = w->shape[1], n_in = w->shape[2];
    dt_local in[2] = { { .data = x, .dtype = w->dtype, .n_axes = 2, .shape = { j->n, n_in } },
                       { .data = (char *)w->data + e * n_out * n_in * j->bytes,
                         .dtype = w->dtype,
                         .n_axes = 2,
                         .shape = { n_out, n_in } } };
    dt_local out = { .data = y, .dtype = y_dtype, .n_axes = 2, .shape = { j->n, n_out } };

    DT_TRY(dti_linear_cpu(
        &(dt_kargs){ .in = in, .out = &out, .cpu = j->a->cpu, .n_in = 2, .n_out = 1 }));
    return DT_OK;
}

static dt_status run_expert(experts_job *j, int64_t e)
{
    const dti_cpu *cpu = j->a->cpu;

    j->first = j->begin[e];
    j->n = j->begin[e + 1] - j->first;
    if (j->n == 0) return DT_OK;
    dti_cpu_run(cpu, 2 * j->n * j->d * j->bytes, gather_share, j);
    DT_TRY(multiply(j, &j->a->in[3], e, j->x, j->h, j->a->in[3].dtype));
    dti_cpu_run(cpu, 3 * j->n * j->f * j->bytes, gate_share, j);
    DT_TRY(multiply(j, &j->a->in[4], e, j->up, j->z, DT_F32));
    dti_cpu_run(cpu, 3 * j->n * j->d * (int64_t)sizeof(float), add_share, j);
    return DT_OK;
}

static size_t round_up(int64_t bytes)
{
    return ((size_t)bytes + 63) / 64 * 64;
}

/* Takes `bytes` from *at. */
static void *take(char **at, size_t bytes)
{
    void *taken = *at;

    *at += bytes;
    return taken;
}

/* Ids are contents of a tensor, so no rule saw them. A token that named an expert twice would be
 * two rows of one product, and workers would add to one sum. */
static dt_status check_ids(const dt_local *ids, int64_t n_slots, int64_t n_experts)
{
    const int32_t *id = ids->data;
    const int64_t n = dti_local_count(ids);

    for (int64_t s = 0; s < n; s++) {
        DT_CHECK(id[s] >= 0 && id[s] < n_experts, DT_ERR_ARG,
                 "experts: expert %d for token %lld; there are 0 to %lld", id[s],
                 (long long)(s / n_slots), (long long)n_experts - 1);
        for (int64_t i = s / n_slots * n_slots; i < s; i++)
            DT_CHECK(id[i] != id[s], DT_ERR_ARG,
                     "experts: expert %d twice for token %lld; add the two weights", id[s],
                     (long long)(s / n_slots));
    }
    return DT_OK;
}

/* The tokens of the expert that has the most of them. */
static dt_status most_tokens(const experts_job *j, int64_t *most)
{
    const int32_t *ids = j->a->in[1].data, first = (int32_t)j->a->in[3].offset[0];
    const size_t bytes = (size_t)(j->n_experts + 1) * sizeof(int64_t);
    int64_t *counts;
    void *scratch;

    *most = 0;
    DT_TRY(dti_cpu_scratch(j->a->cpu, bytes, &scratch));
    counts = scratch;
    memset(counts, 0, bytes);
    for (int64_t s = 0; s < j->n_tokens * j->n_slots; s++) {
        const int64_t e = ids[s] - first;
        if (e >= 0 && e < j->n_experts && ++counts[e] > *most) *most = counts[e];
    }
    return DT_OK;
}

/* Room for `most` tokens at a time, and for the sums of all unless they are the result. */
static dt_status make_room(experts_job *j, int64_t most, bool sums)
{
    const int64_t f32 = (int64_t)sizeof(float);
    const size_t begin = round_up((j->n_experts + 2) * (int64_t)sizeof *j->begin);
    const size_t slots = round_up(j->n_tokens * j->n_slots * (int64_t)sizeof *j->slots);
    const size_t x = round_up(most * j->d * j->bytes), h = round_up(2 * most * j->f * j->bytes);
    const size_t up = round_up(most * j->f * j->bytes), z = round_up(most * j->d * f32);
    const size_t all = sums ? round_up(j->n_tokens * j->d * f32) : 0;
    void *scratch;
    char *at;

    DT_TRY(dti_cpu_outer_scratch(j->a->cpu, begin + slots + x + h + up + z + all, &scratch));
    at = scratch;
    j->begin = take(&at, begin);
    j->slots = take(&at, slots);
    j->x = take(&at, x);
    j->h = take(&at, h);
    j->up = take(&at, up);
    j->z = take(&at, z);
    j->sums = sums ? take(&at, all) : j->a->out[0].data;
    return DT_OK;
}

/* x [..., d] F, ids [..., k] i32 (global; those of other ranks' experts add nothing), weights
 * [..., k] F, gate_up [E, 2 f, d] F with gate before up, down [E, d, f] F -> [..., d], F or f32. A
 * token names an expert once. experts_attr. */
dt_status dti_experts_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0], *ids = &a->in[1], *gate_up = &a->in[3], *y = &a->out[0];
    experts_job j = { .a = a,
                      .n_tokens = dti_rows(x),
                      .n_slots = ids->shape[ids->n_axes - 1],
                      .n_experts = gate_up->shape[0],
                      .d = x->shape[x->n_axes - 1],
                      .f = a->in[4].shape[2],
                      .bytes = (int64_t)dt_dtype_size(x->dtype) };
    const dti_row_ops *out_rows;
    int64_t most;

    DT_TRY(dti_cpu_rows(a->cpu, "experts", x, &j.rows));
    DT_TRY(dti_cpu_rows(a->cpu, "experts", y, &out_rows));
    DT_CHECK(gate_up->shape[1] == 2 * j.f, DT_ERR_INTERNAL,
             "experts: %lld rows of gate and up here, %lld columns of down",
             (long long)gate_up->shape[1], (long long)j.f);
    DT_CHECK(j.n_tokens * j.n_slots <= INT32_MAX, DT_ERR_UNSUPPORTED,
             "experts: %lld tokens in %lld slots each: pass fewer tokens at a time",
             (long long)j.n_tokens, (long long)j.n_slots);
    DT_TRY(check_ids(ids, j.n_slots, ((const dti_experts_attr *)a->attr)->n_experts));
    DT_TRY(most_tokens(&j, &most));
    DT_TRY(make_room(&j, most, y->dtype != DT_F32));
    memset(j.sums, 0, (size_t)(j.n_tokens * j.d) * sizeof(float));
    sort_slots(&j);
    for (int64_t e = 0; e < j.n_experts; e++) DT_TRY(run_expert(&j, e));
    if (y->dtype != DT_F32) out_rows->store(y->data, j.sums, j.n_tokens * j.d);
    return DT_OK;
}
