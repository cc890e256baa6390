/* SPDX-License-Identifier: Apache-2.0
 *
 * What layers of linear attention compute along a sequence: a causal convolution of each channel,
 * and the gated delta rule, both from what the last pass left to what the next one begins with; and
 * both over rows of one token each, of several sequences whose windows and states lie in slots.
 * B batch, T tokens, C channels, W = taps - 1; H heads of queries and keys, of D columns, each with
 * R heads of values, of E columns. */
#include <math.h>
#include <string.h>

#include "dtensor/kernels/cpu/cpu_internal.h"

/* --- rows of slots ---------------------------------------------------------------------------- */

/* Row i is a token of the sequence of slots[i], -1: of none; at position 0 that one begins. */
typedef struct slot_rows {
    const int32_t *positions, *slots; /* [n], as global numbers */
    int64_t n, first, n_slots;        /* first: of the slots of this rank */
} slot_rows;

/* Numbers that are contents of tensors: no rule saw them. */
static dt_status slot_rows_of(const char *op, const dt_local *positions, const dt_local *pool,
                              slot_rows *out)
{
    const dt_local *slots = positions + 1;
    const slot_rows s = { positions->data, slots->data, positions->shape[0], pool->offset[0],
                          pool->shape[0] };

    for (int64_t i = 0; i < s.n; i++)
        DT_CHECK(s.slots[i] == -1 || (s.slots[i] >= s.first && s.slots[i] - s.first < s.n_slots),
                 DT_ERR_ARG, "%s: row %lld is of slot %d, but the pool has %lld to %lld", op,
                 (long long)i, s.slots[i], (long long)s.first,
                 (long long)(s.first + s.n_slots - 1));
    *out = s;
    return DT_OK;
}

/* Rows from i on that go on from each other, or are of no sequence. */
static int64_t run_of(const slot_rows *s, int64_t i)
{
    int64_t n = 1;

    while (i + n < s->n && s->slots[i + n] == s->slots[i] &&
           (s->slots[i] < 0 || s->positions[i + n] != 0))
        n++;
    return n;
}

/* --- causal convolution ----------------------------------------------------------------------- */

enum { CHANNELS = 64 }; /* that are summed together */

typedef struct conv_job {
    const dti_row_ops *ops;
    const slot_rows *rows; /* NULL: sequences of `tokens` each */
    const char *x, *window, *w;
    char *y, *next;
    float *taps; /* [W + 1, C]: the weights turned, so that channels lie side by side */
    int64_t batch, tokens, channels, behind, bytes;
} conv_job;

/* Tokens of one sequence that follow each other. */
typedef struct conv_run {
    const char *x, *window; /* [tokens, C], [W, C] before them */
    char *y, *next;         /* next may be the window */
    int64_t tokens;
} conv_run;

/* Channel c of token t: of x, or where t is below 0 of the window before it. */
static const char *at_token(const conv_job *j, const conv_run *s, int64_t t, int64_t c)
{
    const char *from = t >= 0 ? s->x + t * j->channels * j->bytes
                              : s->window + (j->behind + t) * j->channels * j->bytes;

    return from + c * j->bytes;
}

static void conv_channels(const conv_job *j, const conv_run *s, int64_t c, int64_t n)
{
    float sum[CHANNELS], x[CHANNELS];

    for (int64_t t = 0; t < s->tokens; t++) {
        for (int64_t i = 0; i < n; i++) sum[i] = 0.0f;
        for (int64_t k = 0; k <= j->behind; k++) {
            const float *w = j->taps + k * j->channels + c;
            j->ops->load(x, at_token(j, s, t - j->behind + k, c), n);
            for (int64_t i = 0; i < n; i++) sum[i] += w[i] * x[i];
        }
        j->ops->store(s->y + (t * j->channels + c) * j->bytes, sum, n);
    }
    for (int64_t k = 0; k < j->behind; k++) /* forwards: never behind itself */
        memcpy(s->next + (k * j->channels + c) * j->bytes,
               at_token(j, s, s->tokens - j->behind + k, c), (size_t)(n * j->bytes));
}

static void conv_sequences(const conv_job *j, int64_t c, int64_t n)
{
    const int64_t row = j->channels * j->bytes;

    for (int64_t b = 0; b < j->batch; b++) {
        const conv_run s = { j->x + b * j->tokens * row, j->window + b * j->behind * row,
                             j->y + b * j->tokens * row, j->next + b * j->behind * row, j->tokens };
        conv_channels(j, &s, c, n);
    }
}

static void conv_slots(const conv_job *j, int64_t c, int64_t n)
{
    const int64_t row = j->channels * j->bytes;

    for (int64_t i = 0, more; i < j->rows->n; i += more) {
        const int64_t slot = j->rows->slots[i] - j->rows->first;
        char *window = j->next + slot * j->behind * row;
        more = run_of(j->rows, i);
        if (j->rows->slots[i] < 0) {
            for (int64_t t = i; t < i + more; t++)
                memset(j->y + t * row + c * j->bytes, 0, (size_t)(n * j->bytes));
            continue;
        }
        for (int64_t k = 0; k < j->behind && j->rows->positions[i] == 0; k++)
            memset(window + k * row + c * j->bytes, 0, (size_t)(n * j->bytes));
        conv_channels(j, &(conv_run){ j->x + i * row, window, j->y + i * row, window, more }, c, n);
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
        if (j->rows != NULL)
            conv_slots(j, c, n);
        else
            conv_sequences(j, c, n);
    }
}

static dt_status run_conv(const dt_kargs *a, const char *op, conv_job *job)
{
    const dt_local *x = &a->in[0];
    void *taps;

    job->x = x->data;
    job->y = a->out[0].data;
    job->next = a->out[1].data;
    job->batch = x->shape[0];
    job->tokens = x->shape[1];
    job->channels = x->shape[2];
    job->behind = a->out[1].shape[1];
    job->bytes = (int64_t)dt_dtype_size(x->dtype);
    DT_TRY(dti_cpu_rows(a->cpu, op, x, &job->ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(job->channels * (job->behind + 1)) * sizeof(float),
                           &taps));
    job->taps = taps;
    if (job->batch * job->channels > 0)
        dti_cpu_run(a->cpu, (job->behind + 2) * dti_bytes(x), conv_share, job);
    return DT_OK;
}

/* x [B, T, C] F, window [B, W, C] F, w [C, W + 1] F -> y [B, T, C] F, next [B, W, C] F: y[t] is the
 * sum over k of w[k] x[t - W + k], where x goes on backwards into the window, in f32 in the order
 * of k, rounded once; next are the last W tokens of window and x. Channels are alone: neither
 * threads nor ranks nor where a sequence is parted change a bit. */
dt_status dti_causal_conv_cpu(const dt_kargs *a)
{
    conv_job job = { .window = a->in[1].data, .w = a->in[2].data };

    return run_conv(a, "causal_conv", &job);
}

/* x [N, 1, C] F, positions, slots [N, 1] i32, w [C, W + 1] F, pool [S, W, C] F -> y [N, 1, C] F,
 * the pool: the same of each row behind the rows of its slot before it, from zeros where one has
 * position 0, with the same bits. A row of slot -1 gives zeros. */
dt_status dti_causal_conv_slots_cpu(const dt_kargs *a)
{
    slot_rows rows;
    conv_job job = { .w = a->in[3].data, .rows = &rows };

    DT_TRY(slot_rows_of("causal_conv_slots", &a->in[1], &a->out[1], &rows));
    return run_conv(a, "causal_conv_slots", &job);
}

/* --- gated delta rule ------------------------------------------------------------------------- */

enum { COLUMNS = DTI_DELTA_COLUMNS, TOKENS = 16 };
#define UNIT_EPS 1e-6f

typedef struct delta_job {
    const dti_row_ops *ops;
    dti_delta_fn step;
    const slot_rows *rows; /* NULL: sequences of `tokens` each */
    const char *q, *k, *v, *beta;
    const float *decay, *before;
    char *y;
    float *after, *room; /* room: of each worker, see delta_columns */
    int64_t batch, tokens, heads, group, width, value, bytes; /* B, T, H, R, D, E */
} delta_job;

/* Some columns of value head r of head h, and the worker's room. */
typedef struct delta_columns {
    int64_t h, r, e, n;
    float *room; /* queries and keys [TOKENS, 2, D], then a part of a state [D, COLUMNS] */
} delta_columns;

static int64_t room_of(const delta_job *j)
{
    return (2 * TOKENS + COLUMNS) * j->width;
}

/* A head's query and key of token t in f32, of length 1, the query divided by sqrt(D). */
static void load_units(const delta_job *j, int64_t h, int64_t t, float *q)
{
    const int64_t at = (t * j->heads + h) * j->width * j->bytes;
    const float scale = 1.0f / sqrtf((float)j->width);
    float *const k = q + j->width;
    float of_q = 0.0f, of_k = 0.0f;

    j->ops->load(q, j->q + at, j->width);
    j->ops->load(k, j->k + at, j->width);
    for (int64_t i = 0; i < j->width; i++) {
        of_q += q[i] * q[i];
        of_k += k[i] * k[i];
    }
    of_q = 1.0f / sqrtf(of_q + UNIT_EPS);
    of_k = 1.0f / sqrtf(of_k + UNIT_EPS);
    for (int64_t i = 0; i < j->width; i++) {
        q[i] = q[i] * of_q * scale;
        k[i] *= of_k;
    }
}

/* COLUMNS or the last columns from `e` on of n tokens. Of several their part of the state lies
 * together meanwhile: rows that are far apart drive each other out of the cache. */
static void delta_block(const delta_job *j, const delta_columns *c, int64_t e, int64_t first,
                        int64_t n, dti_delta_token *x, float *state)
{
    const int64_t columns = c->n - e < COLUMNS ? c->n - e : COLUMNS;
    const size_t bytes = (size_t)columns * sizeof *state;
    float *const together = c->room + 2 * TOKENS * j->width;
    float *const part = n > 1 ? together : state + e;
    const int64_t stride = n > 1 ? COLUMNS : j->value;

    for (int64_t d = 0; d < j->width && n > 1; d++)
        memcpy(together + d * COLUMNS, state + d * j->value + e, bytes);
    for (int64_t t = 0; t < n; t++) {
        const int64_t own = ((first + t) * j->heads + c->h) * j->group + c->r;
        const int64_t at = (own * j->value + c->e + e) * j->bytes;
        j->ops->load(x[t].v, j->v + at, columns);
        j->step(part, stride, columns, j->width, &x[t]);
        j->ops->store(j->y + at, x[t].v, columns);
    }
    for (int64_t d = 0; d < j->width && n > 1; d++)
        memcpy(state + d * j->value + e, together + d * COLUMNS, bytes);
}

/* n <= TOKENS tokens from `first` on: their queries and keys are made once for all columns. */
static void delta_tile(const delta_job *j, const delta_columns *c, int64_t first, int64_t n,
                       float *state)
{
    dti_delta_token x[TOKENS];

    for (int64_t t = 0; t < n; t++) {
        const int64_t own = ((first + t) * j->heads + c->h) * j->group + c->r;
        float *const unit = c->room + t * 2 * j->width;
        load_units(j, c->h, first + t, unit);
        x[t].q = unit;
        x[t].k = unit + j->width;
        j->ops->load(&x[t].beta, j->beta + own * j->bytes, 1);
        x[t].decay = expf(j->decay[own]);
    }
    for (int64_t e = 0; e < c->n; e += COLUMNS) delta_block(j, c, e, first, n, x, state);
}

/* Tokens first .. first + n - 1 of all, one after the other from `state` on, [D] of them. */
static void delta_tokens(const delta_job *j, const delta_columns *c, int64_t first, int64_t n,
                         float *state)
{
    for (int64_t t = 0; t < n; t += TOKENS)
        delta_tile(j, c, first + t, n - t < TOKENS ? n - t : TOKENS, state);
}

/* Of the state of a sequence, the columns. */
static int64_t columns_of(const delta_job *j, const delta_columns *c, int64_t sequence)
{
    const int64_t row = (sequence * j->heads + c->h) * j->group + c->r;

    return row * j->width * j->value + c->e;
}

static void delta_sequence(const delta_job *j, const delta_columns *c, int64_t b)
{
    const int64_t at = columns_of(j, c, b);

    for (int64_t d = 0; d < j->width; d++)
        memcpy(j->after + at + d * j->value, j->before + at + d * j->value,
               (size_t)c->n * sizeof *j->after);
    delta_tokens(j, c, b * j->tokens, j->tokens, j->after + at);
}

static void delta_slots(const delta_job *j, const delta_columns *c)
{
    for (int64_t i = 0, more; i < j->rows->n; i += more) {
        const int64_t slot = j->rows->slots[i] - j->rows->first;
        more = run_of(j->rows, i);
        for (int64_t t = i; t < i + more && j->rows->slots[i] < 0; t++)
            memset(j->y + (((t * j->heads + c->h) * j->group + c->r) * j->value + c->e) * j->bytes,
                   0, (size_t)(c->n * j->bytes));
        if (j->rows->slots[i] < 0) continue;
        for (int64_t d = 0; d < j->width && j->rows->positions[i] == 0; d++)
            memset(j->after + columns_of(j, c, slot) + d * j->value, 0,
                   (size_t)c->n * sizeof *j->after);
        delta_tokens(j, c, i, more, j->after + columns_of(j, c, slot));
    }
}

static int64_t delta_parts(const delta_job *j)
{
    return j->heads * j->group * ((j->value + COLUMNS - 1) / COLUMNS);
}

/* A worker has blocks of columns; those of one value head it takes together. */
static void delta_share(void *arg, int worker, int n_workers)
{
    const delta_job *j = arg;
    const int64_t parts = delta_parts(j), blocks = (j->value + COLUMNS - 1) / COLUMNS;
    int64_t begin, end, last;

    dti_pool_share(j->rows != NULL ? parts : j->batch * parts, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i = last) {
        const int64_t row = i % parts / blocks, e = i % blocks * COLUMNS;
        delta_columns c = { .h = row / j->group, .r = row % j->group, .e = e };
        last = i - i % blocks + blocks < end ? i - i % blocks + blocks : end;
        c.n = (last - i) * COLUMNS < j->value - e ? (last - i) * COLUMNS : j->value - e;
        c.room = j->room + room_of(j) * worker;
        if (j->rows != NULL)
            delta_slots(j, &c);
        else
            delta_sequence(j, &c, i / parts);
    }
}

/* Of one sequence. */
static int64_t state_bytes(const delta_job *j)
{
    return j->heads * j->group * j->width * j->value * (int64_t)sizeof(float);
}

static dt_status run_delta(const dt_kargs *a, const char *op, delta_job *job)
{
    const dt_local *q = &a->in[0], *v = &a->in[2];
    void *room;

    job->q = q->data;
    job->k = a->in[1].data;
    job->v = v->data;
    job->decay = a->in[3].data;
    job->beta = a->in[4].data;
    job->y = a->out[0].data;
    job->after = a->out[1].data;
    job->batch = q->shape[0];
    job->tokens = q->shape[1];
    job->heads = q->shape[2];
    job->width = q->shape[3];
    job->group = v->shape[3];
    job->value = v->shape[4];
    job->bytes = (int64_t)dt_dtype_size(q->dtype);
    job->step = a->cpu->delta;
    DT_TRY(dti_cpu_rows(a->cpu, op, q, &job->ops));
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(room_of(job) * dt_kernel_workers(a)) * sizeof(float),
                           &room));
    job->room = room;
    if (job->batch * delta_parts(job) > 0)
        dti_cpu_run(a->cpu, job->batch * (job->tokens + 1) * state_bytes(job), delta_share, job);
    return DT_OK;
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
    delta_job job = { .before = a->in[5].data };

    return run_delta(a, "gated_delta", &job);
}

/* q, k [N, 1, H, D] F, v [N, 1, H, R, E] F, decay [N, 1, H, R] f32, beta [N, 1, H, R] F, positions,
 * slots [N, 1] i32, pool [S, H, R, D, E] f32 -> y [N, 1, H, R, E] F, the pool: the same of each row
 * behind the rows of its slot before it, as dti_causal_conv_slots_cpu() says. */
dt_status dti_gated_delta_slots_cpu(const dt_kargs *a)
{
    slot_rows rows;
    delta_job job = { .rows = &rows };

    DT_TRY(slot_rows_of("gated_delta_slots", &a->in[5], &a->out[1], &rows));
    return run_delta(a, "gated_delta_slots", &job);
}
