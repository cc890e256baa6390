/* SPDX-License-Identifier: Apache-2.0
 *
 * What layers of linear attention compute along a sequence: a causal convolution of each channel,
 * and the gated delta rule, both from what the last pass left to what the next one begins with.
 * B batch, T tokens, C channels, W = taps - 1; H heads of queries and keys, of D columns, each with
 * R heads of values, of E columns. */
#include <math.h>
#include <string.h>

#include "dtensor/kernels/cpu/cpu_internal.h"

/* --- causal convolution ----------------------------------------------------------------------- */

enum { CHANNELS = 64 }; /* that are summed together */

typedef struct conv_job {
    const dti_row_ops *ops;
    const char *x, *window, *w;
    char *y, *next;
    float *taps; /* [W + 1, C]: the weights turned, so that channels lie side by side */
    int64_t batch, tokens, channels, behind, bytes;
} conv_job;

/* Channel c of token t of sequence b: of x, or where t is below 0 of the window before it. */
static const char *at_token(const conv_job *j, int64_t b, int64_t t, int64_t c)
{
    if (t >= 0) return j->x + ((b * j->tokens + t) * j->channels + c) * j->bytes;
    return j->window + ((b * j->behind + j->behind + t) * j->channels + c) * j->bytes;
}

static void conv_channels(const conv_job *j, int64_t c, int64_t n)
{
    float sum[CHANNELS], x[CHANNELS];

    for (int64_t b = 0; b < j->batch; b++) {
        for (int64_t t = 0; t < j->tokens; t++) {
            for (int64_t i = 0; i < n; i++) sum[i] = 0.0f;
            for (int64_t k = 0; k <= j->behind; k++) {
                const float *w = j->taps + k * j->channels + c;
                j->ops->load(x, at_token(j, b, t - j->behind + k, c), n);
                for (int64_t i = 0; i < n; i++) sum[i] += w[i] * x[i];
            }
            j->ops->store(j->y + ((b * j->tokens + t) * j->channels + c) * j->bytes, sum, n);
        }
        for (int64_t k = 0; k < j->behind; k++)
            memcpy(j->next + ((b * j->behind + k) * j->channels + c) * j->bytes,
                   at_token(j, b, j->tokens - j->behind + k, c), (size_t)(n * j->bytes));
    }
}

static void conv_share(void *arg, int worker, int n_workers)
{
    const conv_job *j = arg;
    const int64_t n_taps = j->behind + 1;
    int64_t begin, end;

    dti_pool_share(j->channels, CHANNELS, worker, n_workers, &begin, &end);
    for (int64_t c = begin; c < end; c += CHANNELS) {
        const int64_t n = end - c < CHANNELS ? end - c : CHANNELS;
        for (int64_t i = c; i < c + n; i++)
            for (int64_t k = 0; k < n_taps; k++)
                j->ops->load(j->taps + k * j->channels + i, j->w + (i * n_taps + k) * j->bytes, 1);
        conv_channels(j, c, n);
    }
}

/* x [B, T, C] F, window [B, W, C] F, w [C, W + 1] F -> y [B, T, C] F, next [B, W, C] F: y[t] is the
 * sum over k of w[k] x[t - W + k], where x goes on backwards into the window, in f32 in the order
 * of k, rounded once; next are the last W tokens of window and x. Channels are alone: neither
 * threads nor ranks nor where a sequence is parted change a bit. */
dt_status dti_causal_conv_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[0];
    conv_job job = { .x = x->data,
                     .window = a->in[1].data,
                     .w = a->in[2].data,
                     .y = a->out[0].data,
                     .next = a->out[1].data,
                     .batch = x->shape[0],
                     .tokens = x->shape[1],
                     .channels = x->shape[2],
                     .behind = a->in[1].shape[1],
                     .bytes = (int64_t)dt_dtype_size(x->dtype) };
    void *taps;

    DT_TRY(dti_cpu_rows(a->cpu, "causal_conv", x, &job.ops));
    DT_TRY(
        dti_cpu_scratch(a->cpu, (size_t)(job.channels * (job.behind + 1)) * sizeof(float), &taps));
    job.taps = taps;
    if (job.batch * job.channels > 0)
        dti_cpu_run(a->cpu, (job.behind + 2) * dti_bytes(x), conv_share, &job);
    return DT_OK;
}

/* --- gated delta rule ------------------------------------------------------------------------- */

/* Columns of a head's values that are computed together: each has its own column of the state. */
enum { COLUMNS = 32 };
#define UNIT_EPS 1e-6f

typedef struct delta_job {
    const dti_row_ops *ops;
    const char *q, *k, *v, *beta;
    const float *decay, *before;
    char *y;
    float *after, *unit; /* unit: 2 D for each worker, a token's query and key */
    int64_t batch, tokens, heads, group, width, value, bytes; /* B, T, H, R, D, E */
} delta_job;

/* A head's columns of x in f32, of length 1, times scale. */
static void load_unit(const delta_job *j, const char *x, float scale, float *to)
{
    float sum = 0.0f;

    j->ops->load(to, x, j->width);
    for (int64_t i = 0; i < j->width; i++) sum += to[i] * to[i];
    sum = 1.0f / sqrtf(sum + UNIT_EPS);
    for (int64_t i = 0; i < j->width; i++) to[i] = to[i] * sum * scale;
}

/* One token of a value head: unit query and key [D], and some columns of its value, which become
 * those of its result. */
typedef struct delta_token {
    const float *q, *k;
    float decay, beta, v[COLUMNS];
} delta_token;

/* Rows of the state, [D] of n columns `stride` apart, take in what the token's value has that they
 * do not tell of its key yet; its result is what they tell of its query then. */
static void delta_step(float *restrict state, int64_t stride, int64_t n, int64_t width,
                       delta_token *restrict x)
{
    float told[COLUMNS] = { 0.0f }, sum[COLUMNS] = { 0.0f };

    for (int64_t d = 0; d < width; d++) {
        float *row = state + d * stride;
        for (int64_t e = 0; e < n; e++) {
            row[e] *= x->decay;
            told[e] += x->k[d] * row[e];
        }
    }
    for (int64_t e = 0; e < n; e++) told[e] = (x->v[e] - told[e]) * x->beta;
    for (int64_t d = 0; d < width; d++) {
        float *row = state + d * stride;
        for (int64_t e = 0; e < n; e++) {
            row[e] += x->k[d] * told[e];
            sum[e] += x->q[d] * row[e];
        }
    }
    memcpy(x->v, sum, (size_t)n * sizeof *sum);
}

/* Columns e .. e + n - 1 of value head r of head h of sequence b: all its tokens. */
static void delta_columns(const delta_job *j, int64_t row, int64_t e, int64_t n, float *unit)
{
    const int64_t per_b = j->heads * j->group, b = row / per_b;
    const int64_t h = row % per_b / j->group, r = row % j->group;
    const float scale = 1.0f / sqrtf((float)j->width);
    float *state = j->after + row * j->width * j->value + e, *q = unit, *k = unit + j->width;
    delta_token x = { .q = q, .k = k };

    for (int64_t d = 0; d < j->width; d++)
        memcpy(state + d * j->value, j->before + (row * j->width + d) * j->value + e,
               (size_t)n * sizeof *state);
    for (int64_t t = 0; t < j->tokens; t++) {
        const int64_t head = (b * j->tokens + t) * j->heads + h, own = head * j->group + r;
        const int64_t at = (own * j->value + e) * j->bytes;
        load_unit(j, j->q + head * j->width * j->bytes, scale, q);
        load_unit(j, j->k + head * j->width * j->bytes, 1.0f, k);
        j->ops->load(x.v, j->v + at, n);
        j->ops->load(&x.beta, j->beta + own * j->bytes, 1);
        x.decay = expf(j->decay[own]);
        if (n == COLUMNS) /* the same with a number that loops are made for */
            delta_step(state, j->value, COLUMNS, j->width, &x);
        else
            delta_step(state, j->value, n, j->width, &x);
        j->ops->store(j->y + at, x.v, n);
    }
}

static void delta_share(void *arg, int worker, int n_workers)
{
    const delta_job *j = arg;
    const int64_t blocks = (j->value + COLUMNS - 1) / COLUMNS;
    const int64_t n = j->batch * j->heads * j->group * blocks;
    int64_t begin, end;

    dti_pool_share(n, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t e = i % blocks * COLUMNS, rest = j->value - e;
        delta_columns(j, i / blocks, e, rest < COLUMNS ? rest : COLUMNS,
                      j->unit + 2 * j->width * worker);
    }
}

/* q, k [B, T, H, D] F, v [B, T, H, R, E] F, decay [B, T, H, R] f32, beta [B, T, H, R] F, state
 * [B, H, R, D, E] f32 -> y [B, T, H, R, E] F, state after the last token. Of each value head and
 * token, q and k made of length 1 and q divided by sqrt(D), all in f32:
 *
 *   S = e^decay S;  S = S + k (beta (v - S^T k))^T;  y = S^T q, rounded once
 *
 * Sums are over D in its order. Heads and columns of values are alone: neither threads nor ranks
 * nor where a sequence is parted change a bit. */
dt_status dti_gated_delta_cpu(const dt_kargs *a)
{
    const dt_local *q = &a->in[0], *v = &a->in[2], *state = &a->out[1];
    delta_job job = { .q = q->data,
                      .k = a->in[1].data,
                      .v = v->data,
                      .decay = a->in[3].data,
                      .beta = a->in[4].data,
                      .before = a->in[5].data,
                      .y = a->out[0].data,
                      .after = state->data,
                      .batch = q->shape[0],
                      .tokens = q->shape[1],
                      .heads = q->shape[2],
                      .width = q->shape[3],
                      .group = v->shape[3],
                      .value = v->shape[4],
                      .bytes = (int64_t)dt_dtype_size(q->dtype) };
    void *unit;

    DT_TRY(dti_cpu_rows(a->cpu, "gated_delta", q, &job.ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(2 * job.width * dt_kernel_workers(a)) * sizeof(float),
                           &unit));
    job.unit = unit;
    if (dti_local_count(state) > 0)
        dti_cpu_run(a->cpu, (job.tokens + 1) * dti_bytes(state), delta_share, &job);
    return DT_OK;
}
