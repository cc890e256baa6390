/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of a mixture of experts. Of token t in slot s, with e = ids[t, s], w = weights[t, s],
 * g | u = gate_up_e x, h = silu(g) u and v = down_e^T dy:
 *
 *   dweights[t, s] = v h              dgate_up_e += (dg | du) x^T
 *   dg, du         of silu(g) u by w v    ddown_e += dy (w h)^T
 *   dx[t]         += gate_up_e^T (dg | du)
 *
 * Where gate and up are clamped (experts.c), with biases G and U of them and D of down, h is c(u)
 * s(g) of g = gate_e x + G, u = up_e x + U by turns:
 *
 *   dweights[t, s] = v h + dy D        dgate_up_bias_e += (dg, du)
 *   dg, du         of c(u) s(g) by w v ddown_bias_e    += w dy
 *
 * Tokens are gathered by expert as on the way forward, and what that computed is computed again,
 * with the same roundings. Sums over the tokens of an expert are products of linear.c on operands
 * that lie transposed, so their order depends on shapes alone; dx is summed over slots in f32 in
 * the order of experts. */
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/cpu/experts.h"
#include "dtensor/kernels/cpu/linear.h"

enum { DY, X, IDS, WEIGHTS, GATE_UP, DOWN, GATE_UP_BIAS, DOWN_BIAS }; /* operands */
enum { DX, DWEIGHTS, DGATE_UP, DDOWN, DGATE_UP_BIAS, DDOWN_BIAS };    /* results */
enum { BLOCK = 512 };

typedef struct back_job {
    const dt_kargs *a;
    const dti_row_ops *rows, *f32; /* of the model's dtype */
    dti_slots slots;
    dt_dtype dtype;
    int64_t d, f, bytes;
    char *x, *dy;   /* [n, d] of one expert's tokens */
    char *h;        /* [n, 2 f]: gate | up, then their gradients */
    char *up;       /* [n, f]: h, then w h */
    float *v;       /* [n, f] */
    float *z;       /* [n, d]: what is added to dx */
    float *sums;    /* [n_tokens, d] */
    int64_t n;      /* tokens of the expert at hand, */
    int32_t *order; /* and their slots */
    int64_t expert;
    bool clamps;
    dti_experts_clamped_attr clamp; /* of those that are */
} back_job;

static bool wants(const back_job *j, int result)
{
    return result < j->a->n_out &&
           (((const dti_experts_backward_attr *)j->a->attr)->want >> result & 1) != 0;
}

/* Biases of the expert at hand, of gate and up by turns. */
static const char *gate_up_bias(const back_job *j)
{
    return (const char *)j->a->in[GATE_UP_BIAS].data + 2 * j->expert * j->f * j->bytes;
}

static void gather_share(void *arg, int worker, int n_workers)
{
    const back_job *j = arg;
    const int64_t row = j->d * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const int64_t token = j->order[r] / j->slots.n_slots;
        memcpy(j->x + r * row, (const char *)j->a->in[X].data + token * row, (size_t)row);
        memcpy(j->dy + r * row, (const char *)j->a->in[DY].data + token * row, (size_t)row);
    }
}

static void gate_share(void *arg, int worker, int n_workers)
{
    const back_job *j = arg;
    const int64_t row = j->f * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end && j->clamps; r++)
        dti_clamp_row(&j->clamp, j->dtype, j->h + 2 * r * row, gate_up_bias(j), j->f,
                      j->up + r * row);
    for (int64_t r = begin; r < end && !j->clamps; r++)
        j->rows->silu_mul(j->up + r * row, j->h + 2 * r * row, j->h + (2 * r + 1) * row, j->f);
}

/* A block of a row: gradients of gate and up in their place, w h in that of h. Returns v h. */
static float slope_block(const back_job *j, int64_t r, int64_t i, int64_t n, float w)
{
    char *gate = j->h + (2 * r * j->f + i) * j->bytes, *up = gate + j->f * j->bytes;
    char *at = j->up + (r * j->f + i) * j->bytes;
    float *v = j->v + r * j->f + i, along;
    _Alignas(64) float g[BLOCK], u[BLOCK], h[BLOCK];

    j->rows->load(g, gate, n);
    j->rows->load(h, at, n);
    j->f32->mul(u, v, h, n);
    along = j->f32->total(u, n);
    for (int64_t k = 0; k < n; k++) {
        v[k] *= w;
        h[k] *= w;
    }
    j->rows->store(at, h, n);
    j->rows->load(u, up, n);
    j->f32->silu_mul_backward(&(dti_gated_row){ v, g, u, g, u, n });
    j->rows->store(gate, g, n);
    j->rows->store(up, u, n);
    return along;
}

/* The same of experts that are clamped: gate and up lie by turns. A limit that is met passes. */
static float clamped_block(const back_job *j, int64_t r, int64_t i, int64_t n, float w)
{
    const float limit = j->clamp.limit, alpha = j->clamp.alpha;
    char *both = j->h + 2 * (r * j->f + i) * j->bytes;
    char *at = j->up + (r * j->f + i) * j->bytes;
    const float *v = j->v + r * j->f + i;
    _Alignas(64) float g[2 * BLOCK], b[2 * BLOCK], h[BLOCK], along[BLOCK];

    j->rows->load(g, both, 2 * n);
    j->rows->load(b, gate_up_bias(j) + 2 * i * j->bytes, 2 * n);
    j->rows->load(h, at, n);
    j->f32->mul(along, v, h, n);
    for (int64_t k = 0; k < n; k++) {
        const float gate = g[2 * k] + b[2 * k], up = g[2 * k + 1] + b[2 * k + 1];
        const float x = fminf(gate, limit), s = 1.0f / (1.0f + expf(-alpha * x));
        const float within = fminf(fmaxf(up, -limit), limit) + 1.0f, dh = w * v[k];
        g[2 * k] = gate > limit ? 0.0f : dh * within * (s + alpha * x * s * (1.0f - s));
        g[2 * k + 1] = fabsf(up) > limit ? 0.0f : dh * x * s;
        h[k] *= w;
    }
    j->rows->store(at, h, n);
    j->rows->store(both, g, 2 * n);
    return j->f32->total(along, n);
}

/* What a token's weight gets of down's bias, which of ranks that share an expert the first adds. */
static float along_bias(const back_job *j, int64_t r)
{
    const dt_local *bias = &j->a->in[DOWN_BIAS];
    const char *dy = j->dy + r * j->d * j->bytes;
    _Alignas(64) float x[BLOCK], y[BLOCK];
    float sum = 0.0f;

    if (!j->clamps || j->a->in[DOWN].offset[2] != 0) return 0.0f;
    for (int64_t i = 0; i < j->d; i += BLOCK) {
        const int64_t n = j->d - i < BLOCK ? j->d - i : BLOCK;
        j->rows->load(x, dy + i * j->bytes, n);
        j->rows->load(y, (const char *)bias->data + (j->expert * j->d + i) * j->bytes, n);
        j->f32->mul(x, x, y, n);
        sum += j->f32->total(x, n);
    }
    return sum;
}

static void slope_share(void *arg, int worker, int n_workers)
{
    const back_job *j = arg;
    const dt_local *weights = &j->a->in[WEIGHTS], *dweights = &j->a->out[DWEIGHTS];
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const float w = dti_load_f32(weights->data, weights->dtype, j->order[r]);
        float along = along_bias(j, r);
        for (int64_t i = 0; i < j->f; i += BLOCK)
            along += (j->clamps ? clamped_block
                                : slope_block)(j, r, i, j->f - i < BLOCK ? j->f - i : BLOCK, w);
        dti_store_f32(dweights->data, dweights->dtype, j->order[r], along);
    }
}

/* Tokens of one expert are different ones, so workers write to different rows. */
static void add_share(void *arg, int worker, int n_workers)
{
    const back_job *j = arg;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        float *sums = j->sums + j->order[r] / j->slots.n_slots * j->d;
        j->f32->add(sums, sums, j->z + r * j->d, j->d);
    }
}

/* y [rows, columns] = x w, where w lies [inner, columns]; x [rows, inner], or turned as w is. */
static dt_status multiply(const back_job *j, dt_local x, bool turned, dt_local w, dt_local y)
{
    const dti_linear l = { .cpu = j->a->cpu,
                           .x = &x,
                           .w = &w,
                           .y = &y,
                           .n_rows = y.shape[0],
                           .n_in = w.shape[0],
                           .n_out = y.shape[1],
                           .x_turned = turned,
                           .w_turned = true };

    DT_TRY(dti_linear_run(&l));
    return DT_OK;
}

/* What the way forward computed of one expert's tokens, and what reaches its h. */
static dt_status run_again(back_job *j, int64_t e)
{
    const dt_local gate_up = dti_expert_matrix(&j->a->in[GATE_UP], e);
    const dt_local in[2] = { dti_matrix(j->x, j->dtype, j->n, j->d), gate_up };
    dt_local h = dti_matrix(j->h, j->dtype, j->n, 2 * j->f);

    DT_TRY(dti_linear_cpu(
        &(dt_kargs){ .in = in, .out = &h, .cpu = j->a->cpu, .n_in = 2, .n_out = 1 }));
    dti_cpu_run(j->a->cpu, 3 * j->n * j->f * j->bytes, gate_share, j);
    DT_TRY(multiply(j, dti_matrix(j->dy, j->dtype, j->n, j->d), false,
                    dti_expert_matrix(&j->a->in[DOWN], e), dti_matrix(j->v, DT_F32, j->n, j->f)));
    return DT_OK;
}

/* Sums over the tokens of an expert, in their order: columns are shared. */
static void bias_share(void *arg, int worker, int n_workers)
{
    const back_job *j = arg;
    const dt_local *weights = &j->a->in[WEIGHTS];
    float *gate_up = wants(j, DGATE_UP_BIAS) ? j->a->out[DGATE_UP_BIAS].data : NULL;
    float *down = wants(j, DDOWN_BIAS) ? j->a->out[DDOWN_BIAS].data : NULL;
    int64_t begin, end;

    dti_pool_share(2 * j->f, BLOCK, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end && gate_up != NULL; i++) {
        float sum = 0.0f;
        for (int64_t r = 0; r < j->n; r++) sum += dti_load_f32(j->h, j->dtype, 2 * r * j->f + i);
        gate_up[2 * j->expert * j->f + i] = sum;
    }
    dti_pool_share(j->d, BLOCK, worker, n_workers, &begin, &end);
    for (int64_t i = begin; i < end && down != NULL; i++) {
        float sum = 0.0f;
        for (int64_t r = 0; r < j->n; r++)
            sum += dti_load_f32(weights->data, weights->dtype, j->order[r]) *
                   dti_load_f32(j->dy, j->dtype, r * j->d + i);
        down[j->expert * j->d + i] = sum;
    }
}

/* Of an expert without tokens, sums of nothing. */
static dt_status run_expert(back_job *j, int64_t e)
{
    const dt_local dh = dti_matrix(j->h, j->dtype, j->n, 2 * j->f);

    if (j->n > 0) {
        dti_cpu_run(j->a->cpu, 4 * j->n * j->d * j->bytes, gather_share, j);
        DT_TRY(run_again(j, e));
        dti_cpu_run(j->a->cpu, 8 * j->n * j->f * j->bytes, slope_share, j);
    }
    if (j->n > 0 && wants(j, DX)) {
        DT_TRY(multiply(j, dh, false, dti_expert_matrix(&j->a->in[GATE_UP], e),
                        dti_matrix(j->z, DT_F32, j->n, j->d)));
        dti_cpu_run(j->a->cpu, 3 * j->n * j->d * (int64_t)sizeof(float), add_share, j);
    }
    if (j->clamps) dti_cpu_run(j->a->cpu, j->n * (2 * j->f + j->d) * j->bytes, bias_share, j);
    if (wants(j, DGATE_UP))
        DT_TRY(multiply(j, dh, true, dti_matrix(j->x, j->dtype, j->n, j->d),
                        dti_expert_matrix(&j->a->out[DGATE_UP], e)));
    if (wants(j, DDOWN))
        DT_TRY(multiply(j, dti_matrix(j->dy, j->dtype, j->n, j->d), true,
                        dti_matrix(j->up, j->dtype, j->n, j->f),
                        dti_expert_matrix(&j->a->out[DDOWN], e)));
    return DT_OK;
}

/* Room for the tokens of one expert, and for the sums of all unless they are the result. */
static dt_status make_room(back_job *j, bool sums)
{
    const int64_t f32 = (int64_t)sizeof(float), most = j->slots.most;
    const int64_t x = most * j->d * j->bytes, up = most * j->f * j->bytes;
    const int64_t v = most * j->f * f32, z = most * j->d * f32;
    const int64_t all = sums ? j->slots.n_tokens * j->d * f32 : 0;
    const size_t slots = dti_slots_bytes(&j->slots);
    void *scratch;
    char *at;

    DT_TRY(dti_cpu_outer_scratch(j->a->cpu,
                                 slots + 2 * dti_scratch_size(x) + dti_scratch_size(2 * up) +
                                     dti_scratch_size(up) + dti_scratch_size(v) +
                                     dti_scratch_size(z) + dti_scratch_size(all),
                                 &scratch));
    dti_slots_sort(&j->slots, scratch);
    at = (char *)scratch + slots;
    j->x = dti_scratch_take(&at, x);
    j->dy = dti_scratch_take(&at, x);
    j->h = dti_scratch_take(&at, 2 * up);
    j->up = dti_scratch_take(&at, up);
    j->v = dti_scratch_take(&at, v);
    j->z = dti_scratch_take(&at, z);
    j->sums = sums ? dti_scratch_take(&at, all) : j->a->out[DX].data;
    return DT_OK;
}

static dt_status run(const dt_kargs *a, bool clamps)
{
    const dti_experts_clamped_backward_attr *attr = a->attr; /* begins as the others' */
    const dt_local *x = &a->in[X], *gate_up = &a->in[GATE_UP], *dx = &a->out[DX];
    const char *op = clamps ? "experts_clamped_backward" : "experts_backward";
    back_job j = { .a = a,
                   .f32 = &a->cpu->rows[DT_F32],
                   .dtype = x->dtype,
                   .d = x->shape[x->n_axes - 1],
                   .f = a->in[DOWN].shape[2],
                   .bytes = (int64_t)dt_dtype_size(x->dtype),
                   .clamps = clamps };
    const dti_row_ops *out_rows;

    if (clamps) j.clamp = (dti_experts_clamped_attr){ attr->n_experts, attr->limit, attr->alpha };
    DT_TRY(dti_cpu_rows(a->cpu, op, x, &j.rows));
    DT_TRY(dti_cpu_rows(a->cpu, op, dx, &out_rows));
    DT_CHECK(gate_up->shape[1] == 2 * j.f, DT_ERR_INTERNAL,
             "%s: %lld rows of gate and up here, %lld columns of down", op,
             (long long)gate_up->shape[1], (long long)j.f);
    DT_TRY(dti_slots_open(&j.slots, a->cpu, &a->in[IDS], gate_up, attr->n_experts));
    DT_TRY(make_room(&j, dx->dtype != DT_F32));
    memset(j.sums, 0, (size_t)(j.slots.n_tokens * j.d) * sizeof(float));
    memset(a->out[DWEIGHTS].data, 0, (size_t)dti_bytes(&a->out[DWEIGHTS]));
    for (j.expert = 0; j.expert < j.slots.n_experts; j.expert++) {
        j.order = j.slots.order + j.slots.begin[j.expert];
        j.n = j.slots.begin[j.expert + 1] - j.slots.begin[j.expert];
        DT_TRY(run_expert(&j, j.expert));
    }
    if (dx->dtype != DT_F32) out_rows->store(dx->data, j.sums, j.slots.n_tokens * j.d);
    return DT_OK;
}

/* dy, x [..., d] F, ids [..., k] i32, weights [..., k] F, gate_up [E, 2 f, d], down [E, d, f] F, as
 * dti_experts_cpu() has them -> [..., d] and [..., k], F or f32, and unless the row ends there [E,
 * 2 f, d] and [E, d, f] f32. experts_backward_attr. */
dt_status dti_experts_backward_cpu(const dt_kargs *a)
{
    DT_TRY(run(a, false));
    return DT_OK;
}

/* The same as dti_experts_clamped_cpu() has them, with [E, 2 f] and [E, d] F, whose gradients are
 * the last two results, f32. experts_clamped_backward_attr. */
dt_status dti_experts_clamped_backward_cpu(const dt_kargs *a)
{
    DT_TRY(run(a, true));
    return DT_OK;
}
