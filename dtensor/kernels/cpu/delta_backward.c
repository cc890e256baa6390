/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of linear attention (delta.c, whose letters these are): of what is computed and of what
 * was left by earlier tokens. */
#include <math.h>
#include <string.h>

#include "dtensor/kernels/cpu/cpu_internal.h"

/* --- causal convolution ----------------------------------------------------------------------- */

enum { CHANNELS = 64 };

/* Window and x, one behind the other: u[s], s < W + T. y[t] = sum over k of w[k] u[t + k]. */
typedef struct conv_job {
    const dti_row_ops *ops;
    const char *dy, *dnext, *x, *window, *w;
    char *dx, *dwindow;
    float *dw; /* [C, W + 1] */
    int64_t batch, tokens, channels, behind, bytes;
} conv_job;

static int64_t row_of(const conv_job *j, int64_t b, int64_t s, int64_t c, bool in_window)
{
    const int64_t row = in_window ? b * j->behind + s : b * j->tokens + s - j->behind;

    return (row * j->channels + c) * j->bytes;
}

static void load_u(const conv_job *j, int64_t b, int64_t s, int64_t c, int64_t n, float *to)
{
    const bool in_window = s < j->behind;

    j->ops->load(to, (in_window ? j->window : j->x) + row_of(j, b, s, c, in_window), n);
}

static void load_dy(const conv_job *j, int64_t b, int64_t t, int64_t c, int64_t n, float *to)
{
    j->ops->load(to, j->dy + ((b * j->tokens + t) * j->channels + c) * j->bytes, n);
}

/* du[s] = what is left of it, and w[k] dy[s - k] summed over k. */
static void conv_values(const conv_job *j, int64_t b, int64_t s, int64_t c, int64_t n)
{
    const int64_t left = s - j->tokens;
    const bool in_window = s < j->behind;
    float sum[CHANNELS] = { 0.0f }, dy[CHANNELS], w;

    if (left >= 0)
        j->ops->load(sum, j->dnext + ((b * j->behind + left) * j->channels + c) * j->bytes, n);
    for (int64_t k = 0; k <= j->behind; k++) {
        if (s < k || s - k >= j->tokens) continue;
        load_dy(j, b, s - k, c, n, dy);
        for (int64_t i = 0; i < n; i++) {
            j->ops->load(&w, j->w + ((c + i) * (j->behind + 1) + k) * j->bytes, 1);
            sum[i] += w * dy[i];
        }
    }
    j->ops->store((in_window ? j->dwindow : j->dx) + row_of(j, b, s, c, in_window), sum, n);
}

static void conv_weights(const conv_job *j, int64_t c, int64_t n)
{
    float dy[CHANNELS], u[CHANNELS];

    memset(j->dw + c * (j->behind + 1), 0, (size_t)(n * (j->behind + 1)) * sizeof *j->dw);
    for (int64_t b = 0; b < j->batch; b++)
        for (int64_t t = 0; t < j->tokens; t++) {
            load_dy(j, b, t, c, n, dy);
            for (int64_t k = 0; k <= j->behind; k++) {
                load_u(j, b, t + k, c, n, u);
                for (int64_t i = 0; i < n; i++)
                    j->dw[(c + i) * (j->behind + 1) + k] += dy[i] * u[i];
            }
        }
}

static void conv_share(void *arg, int worker, int n_workers)
{
    const conv_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->channels, CHANNELS, worker, n_workers, &begin, &end);
    for (int64_t c = begin; c < end; c += CHANNELS) {
        const int64_t n = end - c < CHANNELS ? end - c : CHANNELS;
        for (int64_t b = 0; b < j->batch; b++)
            for (int64_t s = 0; s < j->behind + j->tokens; s++) conv_values(j, b, s, c, n);
        conv_weights(j, c, n);
    }
}

/* dy [B, T, C] F, dnext [B, W, C] F, x [B, T, C] F, window [B, W, C] F, w [C, W + 1] F -> dx
 * [B, T, C] F, dwindow [B, W, C] F, both rounded once, dw [C, W + 1] f32, a sum over tokens in
 * their order. */
dt_status dti_causal_conv_backward_cpu(const dt_kargs *a)
{
    const dt_local *x = &a->in[2];
    conv_job job = { .dy = a->in[0].data,
                     .dnext = a->in[1].data,
                     .x = x->data,
                     .window = a->in[3].data,
                     .w = a->in[4].data,
                     .dx = a->out[0].data,
                     .dwindow = a->out[1].data,
                     .dw = a->out[2].data,
                     .batch = x->shape[0],
                     .tokens = x->shape[1],
                     .channels = x->shape[2],
                     .behind = a->in[3].shape[1],
                     .bytes = (int64_t)dt_dtype_size(x->dtype) };

    DT_TRY(dti_cpu_rows(a->cpu, "causal_conv_backward", x, &job.ops));
    if (job.channels > 0)
        dti_cpu_run(a->cpu, 4 * (job.behind + 1) * dti_bytes(x), conv_share, &job);
    return DT_OK;
}

/* --- gated delta rule ------------------------------------------------------------------------- */

#define UNIT_EPS 1e-6f

typedef struct delta_job {
    const dti_row_ops *ops;
    const char *dy, *q, *k, *v, *beta;
    const float *dafter, *decay, *state;
    char *dqk, *dv;
    float *dgates, *dstate;
    float *room;                         /* of each worker */
    int64_t room_floats, every, n_marks; /* states are kept before every so many tokens */
    int64_t batch, tokens, heads, group, width, value, bytes;
} delta_job;

/* What one head of queries and keys needs: states before tokens 0, every, 2 every, ...; those
 * before each token from one of them on; gradients of the state, of queries and keys of all tokens;
 * a token's own. */
typedef struct delta_room {
    float *marks, *states, *after, *ds, *dqk, *q, *k, *v, *dy, *told, *du;
} delta_room;

static int64_t lay_out(const delta_job *j, float *at, delta_room *r)
{
    const int64_t one = j->width * j->value;
    const int64_t sizes[] = {
        j->n_marks * one, j->every * one, one,      one,      2 * j->tokens * j->width,
        j->width,         j->width,       j->value, j->value, j->value,
        j->value
    };
    float **const parts[] = { &r->marks, &r->states, &r->after, &r->ds,   &r->dqk, &r->q,
                              &r->k,     &r->v,      &r->dy,    &r->told, &r->du };
    int64_t end = 0;

    for (size_t i = 0; i < DT_COUNT(parts); i++) {
        *parts[i] = at != NULL ? at + end : NULL;
        end += sizes[i];
    }
    return end;
}

/* Columns of x of length 1, times scale; what they were multiplied by. */
static float load_unit(const delta_job *j, const char *x, float scale, float *to)
{
    float sum = 0.0f;

    j->ops->load(to, x, j->width);
    for (int64_t i = 0; i < j->width; i++) sum += to[i] * to[i];
    sum = 1.0f / sqrtf(sum + UNIT_EPS) * scale;
    for (int64_t i = 0; i < j->width; i++) to[i] *= sum;
    return sum;
}

/* Where token t of value head r of key head h of sequence b stands. */
typedef struct place {
    int64_t head, own; /* [B, T, H], [B, T, H, R] */
} place;

static place place_of(const delta_job *j, int64_t b, int64_t t, int64_t h, int64_t r)
{
    const int64_t head = (b * j->tokens + t) * j->heads + h;

    return (place){ head, head * j->group + r };
}

static float load_token(const delta_job *j, const place *p, delta_room *r)
{
    float beta;

    (void)load_unit(j, j->q + p->head * j->width * j->bytes, 1.0f / sqrtf((float)j->width), r->q);
    (void)load_unit(j, j->k + p->head * j->width * j->bytes, 1.0f, r->k);
    j->ops->load(r->v, j->v + p->own * j->value * j->bytes, j->value);
    j->ops->load(&beta, j->beta + p->own * j->bytes, 1);
    return beta;
}

/* The state `before` a token [D, E] becomes that `after` it; told: v less what it told of k. */
static void step(const delta_job *j, const float *before, float decay, float beta, delta_room *r,
                 float *after)
{
    const int64_t n = j->value;

    memcpy(r->told, r->v, (size_t)n * sizeof *r->told);
    for (int64_t d = 0; d < j->width; d++)
        for (int64_t e = 0; e < n; e++) {
            after[d * n + e] = decay * before[d * n + e];
            r->told[e] -= r->k[d] * after[d * n + e];
        }
    for (int64_t d = 0; d < j->width; d++)
        for (int64_t e = 0; e < n; e++) after[d * n + e] += r->k[d] * beta * r->told[e];
}

/* Back over one token: r->ds, of the state after it, becomes that of the state before it; `dunit`
 * is of its query and its key of length 1, to which is added. Returns beta's gradient, *ddecay is
 * that of the logarithm. r->du becomes v's. */
static float step_back(const delta_job *j, const float *before, float decay, float beta,
                       delta_room *r, float *dunit, float *ddecay)
{
    const int64_t n = j->value, width = j->width;
    float dbeta = 0.0f, sum = 0.0f;

    memset(r->du, 0, (size_t)n * sizeof *r->du);
    for (int64_t d = 0; d < width; d++) {
        float *ds = r->ds + d * n, dq = 0.0f, dk = 0.0f;
        for (int64_t e = 0; e < n; e++) {
            dq += r->after[d * n + e] * r->dy[e];
            ds[e] += r->q[d] * r->dy[e];
            dk += ds[e] * beta * r->told[e];
            r->du[e] += ds[e] * r->k[d];
        }
        dunit[d] += dq;
        dunit[width + d] += dk;
    }
    for (int64_t e = 0; e < n; e++) {
        dbeta += r->du[e] * r->told[e];
        r->du[e] *= beta;
    }
    for (int64_t d = 0; d < width; d++) {
        float *ds = r->ds + d * n, dk = 0.0f;
        for (int64_t e = 0; e < n; e++) {
            const float faded = decay * before[d * n + e];
            dk -= faded * r->du[e];
            ds[e] -= r->k[d] * r->du[e];
            sum += ds[e] * faded;
            ds[e] *= decay;
        }
        dunit[width + d] += dk;
    }
    *ddecay = sum;
    return dbeta;
}

/* Value head `own` of key head h: forward to the marks, then back from mark to mark. */
static void value_head(const delta_job *j, int64_t b, int64_t h, int64_t own, delta_room *r)
{
    const int64_t one = j->width * j->value;
    const size_t bytes = (size_t)one * sizeof(float);
    const int64_t row = (b * j->heads + h) * j->group + own;
    float *now = r->states;

    memcpy(now, j->state + row * one, bytes);
    for (int64_t t = 0; t < j->tokens; t++) {
        const place p = place_of(j, b, t, h, own);
        const float beta = load_token(j, &p, r);
        if (t % j->every == 0) memcpy(r->marks + t / j->every * one, now, bytes);
        step(j, now, expf(j->decay[p.own]), beta, r, now);
    }
    memcpy(r->ds, j->dafter + row * one, bytes);
    for (int64_t m = j->n_marks - 1; m >= 0; m--) {
        const int64_t first = m * j->every, last = first + j->every;
        const int64_t n = last < j->tokens ? j->every : j->tokens - first;
        memcpy(r->states, r->marks + m * one, bytes);
        for (int64_t i = 0; i + 1 < n; i++) {
            const place p = place_of(j, b, first + i, h, own);
            const float beta = load_token(j, &p, r);
            step(j, r->states + i * one, expf(j->decay[p.own]), beta, r, r->states + (i + 1) * one);
        }
        for (int64_t i = n - 1; i >= 0; i--) {
            const place p = place_of(j, b, first + i, h, own);
            const float beta = load_token(j, &p, r), decay = expf(j->decay[p.own]);
            float *gates = j->dgates + (p.head * 2) * j->group + own;
            j->ops->load(r->dy, j->dy + p.own * j->value * j->bytes, j->value);
            step(j, r->states + i * one, decay, beta, r, r->after);
            gates[j->group] = step_back(j, r->states + i * one, decay, beta, r,
                                        r->dqk + 2 * (first + i) * j->width, gates);
            j->ops->store(j->dv + p.own * j->value * j->bytes, r->du, j->value);
        }
    }
    memcpy(j->dstate + row * one, r->ds, bytes);
}

/* dx of y = scale x / |x|, from that of y, in place. */
static void from_unit(const delta_job *j, const char *x, float scale, float *unit, float *dy)
{
    const float factor = load_unit(j, x, 1.0f, unit) * scale;
    float along = 0.0f;

    for (int64_t i = 0; i < j->width; i++) along += unit[i] * dy[i];
    for (int64_t i = 0; i < j->width; i++) dy[i] = factor * (dy[i] - unit[i] * along);
}

static void delta_share(void *arg, int worker, int n_workers)
{
    const delta_job *j = arg;
    int64_t begin, end;
    delta_room r;

    (void)lay_out(j, j->room + worker * j->room_floats, &r);
    dti_pool_share(j->batch * j->heads, 1, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end; i++) {
        const int64_t b = i / j->heads, h = i % j->heads;
        memset(r.dqk, 0, (size_t)(2 * j->tokens * j->width) * sizeof *r.dqk);
        for (int64_t own = 0; own < j->group; own++) value_head(j, b, h, own, &r);
        for (int64_t t = 0; t < j->tokens; t++) {
            const int64_t at = place_of(j, b, t, h, 0).head * j->width * j->bytes;
            float *dq = r.dqk + 2 * t * j->width;
            from_unit(j, j->q + at, 1.0f / sqrtf((float)j->width), r.q, dq);
            from_unit(j, j->k + at, 1.0f, r.k, dq + j->width);
            j->ops->store(j->dqk + 2 * at, dq, 2 * j->width);
        }
    }
}

/* dy [B, T, H, R, E] F, dafter [B, H, R, D, E] f32, then q, k, v, decay, beta, state as the forward
 * row has them -> dqk [B, T, H, 2 D] F, dv [B, T, H, R, E] F, dgates [B, T, H, 2 R] f32: of decays,
 * then of beta; dstate [B, H, R, D, E] f32. All in f32, rounded once. States are computed again
 * from marks, as many as tokens between two of them. Heads are alone. */
dt_status dti_gated_delta_backward_cpu(const dt_kargs *a)
{
    const dt_local *q = &a->in[2], *v = &a->in[4];
    delta_job job = { .dy = a->in[0].data,
                      .dafter = a->in[1].data,
                      .q = q->data,
                      .k = a->in[3].data,
                      .v = v->data,
                      .decay = a->in[5].data,
                      .beta = a->in[6].data,
                      .state = a->in[7].data,
                      .dqk = a->out[0].data,
                      .dv = a->out[1].data,
                      .dgates = a->out[2].data,
                      .dstate = a->out[3].data,
                      .every = 1,
                      .batch = q->shape[0],
                      .tokens = q->shape[1],
                      .heads = q->shape[2],
                      .width = q->shape[3],
                      .group = v->shape[3],
                      .value = v->shape[4],
                      .bytes = (int64_t)dt_dtype_size(q->dtype) };
    delta_room r;
    void *room;

    DT_TRY(dti_cpu_rows(a->cpu, "gated_delta_backward", q, &job.ops));
    while (job.every * job.every < job.tokens) job.every++;
    job.n_marks = (job.tokens + job.every - 1) / job.every;
    job.room_floats = lay_out(&job, NULL, &r);
    DT_TRY(dti_cpu_scratch(a->cpu, (size_t)(job.room_floats * dt_kernel_workers(a)) * sizeof(float),
                           &room));
    job.room = room;
    if (job.batch * job.heads > 0)
        dti_cpu_run(a->cpu, 4 * (job.tokens + 1) * dti_bytes(&a->in[7]), delta_share, &job);
    return DT_OK;
}
