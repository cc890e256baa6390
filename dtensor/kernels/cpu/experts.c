/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of experts: what those make of a token that it goes to.
 *
 *   y[t] = sum over slots s of weights[t, s] down_e (silu(gate_e x[t]) up_e x[t]), e = ids[t, s]
 *
 * or, where gate and up are clamped, of gate_e x[t] + its bias, at most `limit`, and of up_e x[t] +
 * its bias, within -limit and limit,
 *
 *   down_e (gate sigmoid(alpha gate) (up + 1)) + its bias
 *
 * Tokens are gathered by expert, so that each expert's weights are read once and its products are
 * those of linear.c, or of packed.c. Sums over slots are f32, in the order of experts; y is rounded
 * once. */
#include "dtensor/kernels/cpu/experts.h"

#include <string.h>

#include "base/dtype.h"

/* --- slots ------------------------------------------------------------------------------------ */

/* A token that named an expert twice would be two rows of one product, and workers would add to one
 * sum. */
static dt_status check_ids(const dti_slots *s, int64_t n_experts)
{
    const int64_t n = s->n_tokens * s->n_slots;

    for (int64_t k = 0; k < n; k++) {
        const int32_t id = s->ids[k];
        DT_CHECK(id >= 0 && id < n_experts, DT_ERR_ARG,
                 "experts: expert %d for token %lld; there are 0 to %lld", id,
                 (long long)(k / s->n_slots), (long long)n_experts - 1);
        for (int64_t i = k / s->n_slots * s->n_slots; i < k; i++)
            DT_CHECK(s->ids[i] != id, DT_ERR_ARG,
                     "experts: expert %d twice for token %lld; add the two weights", id,
                     (long long)(k / s->n_slots));
    }
    return DT_OK;
}

dt_status dti_slots_open(dti_slots *s, dti_cpu *cpu, const dt_local *ids, const dt_local *gate_up,
                         int64_t n_experts)
{
    const size_t bytes = (size_t)(gate_up->shape[0] + 1) * sizeof(int64_t);
    int64_t *counts;
    void *scratch;

    *s = (dti_slots){ .ids = ids->data,
                      .n_tokens = dti_rows(ids),
                      .n_slots = ids->shape[ids->n_axes - 1],
                      .first = gate_up->offset[0],
                      .n_experts = gate_up->shape[0] };
    DT_CHECK(s->n_tokens * s->n_slots <= INT32_MAX, DT_ERR_UNSUPPORTED,
             "experts: %lld tokens in %lld slots each: pass fewer tokens at a time",
             (long long)s->n_tokens, (long long)s->n_slots);
    DT_TRY(check_ids(s, n_experts));
    DT_TRY(dti_cpu_scratch(cpu, bytes, &scratch));
    counts = scratch;
    memset(counts, 0, bytes);
    for (int64_t k = 0; k < s->n_tokens * s->n_slots; k++) {
        const int64_t e = s->ids[k] - s->first;
        if (e >= 0 && e < s->n_experts && ++counts[e] > s->most) s->most = counts[e];
    }
    return DT_OK;
}

size_t dti_slots_bytes(const dti_slots *s)
{
    return dti_scratch_size((s->n_experts + 2) * (int64_t)sizeof *s->begin) +
           dti_scratch_size(s->n_tokens * s->n_slots * (int64_t)sizeof *s->order);
}

void dti_slots_sort(dti_slots *s, void *memory)
{
    const int64_t all = s->n_tokens * s->n_slots;
    char *at = memory;

    s->begin = dti_scratch_take(&at, (s->n_experts + 2) * (int64_t)sizeof *s->begin);
    s->order = (int32_t *)(void *)at;
    memset(s->begin, 0, (size_t)(s->n_experts + 2) * sizeof *s->begin);
    for (int64_t k = 0; k < all; k++) {
        const int64_t e = s->ids[k] - s->first;
        if (e >= 0 && e < s->n_experts) s->begin[e + 2]++;
    }
    for (int64_t e = 2; e <= s->n_experts + 1; e++) s->begin[e] += s->begin[e - 1];
    for (int64_t k = 0; k < all; k++) {
        const int64_t e = s->ids[k] - s->first;
        if (e >= 0 && e < s->n_experts) s->order[s->begin[e + 1]++] = (int32_t)k;
    }
}

/* --- experts ---------------------------------------------------------------------------------- */

/* A product's weights: operands [e, ...], one, or codes and what belongs to them; and how those are
 * packed. */
typedef struct expert_weight {
    const dt_local *part;
    int n_parts;
    dti_packed_attr packing;
    dt_kernel kernel;
} expert_weight;

typedef struct experts_job {
    const dt_kargs *a;
    expert_weight gate_up, down;
    const dti_experts_clamped_attr *clamp;    /* NULL: silu */
    const dt_local *gate_up_bias, *down_bias; /* with it; the latter NULL: another rank adds it */
    int64_t expert;                           /* at hand */
    const dti_row_ops *rows;                  /* of the model's dtype */
    dti_slots slots;
    int64_t d, f;
    int64_t bytes;    /* of an element of the model's dtype */
    char *x, *h, *up; /* of one expert's tokens: [n, d], [n, 2 f], [n, f] */
    float *z;         /* [n, d] */
    float *sums;      /* [n_tokens, d] */
    int64_t n;        /* tokens of the expert at hand, */
    int32_t *order;   /* and their slots */
} experts_job;

static void gather_share(void *arg, int worker, int n_workers)
{
    const experts_job *j = arg;
    const int64_t row = j->d * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        memcpy(j->x + r * row,
               (const char *)j->a->in[0].data + j->order[r] / j->slots.n_slots * row, (size_t)row);
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

void dti_clamp_row(const dti_experts_clamped_attr *clamp, dt_dtype dtype, const void *gate_up,
                   const void *bias, int64_t n, void *y)
{
    const float limit = clamp->limit, alpha = clamp->alpha;

    for (int64_t i = 0; i < n; i++) {
        const float gate = dti_load_f32(gate_up, dtype, 2 * i) + dti_load_f32(bias, dtype, 2 * i);
        const float up =
            dti_load_f32(gate_up, dtype, 2 * i + 1) + dti_load_f32(bias, dtype, 2 * i + 1);
        const float within = fminf(fmaxf(up, -limit), limit) + 1.0f;
        const float x = fminf(gate, limit), y_i = within * (x / (1.0f + expf(-alpha * x)));
        dti_store_f32(y, dtype, i, isnan(gate) || isnan(up) ? gate + up : y_i);
    }
}

static void clamp_share(void *arg, int worker, int n_workers)
{
    const experts_job *j = arg;
    const int64_t row = j->f * j->bytes;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++)
        dti_clamp_row(j->clamp, j->a->in[0].dtype, j->h + 2 * r * row,
                      (const char *)j->gate_up_bias->data + 2 * j->expert * row, j->f,
                      j->up + r * row);
}

/* Tokens of one expert are different ones, so workers write to different rows. */
static void add_share(void *arg, int worker, int n_workers)
{
    const experts_job *j = arg;
    const dt_local *weights = &j->a->in[2], *bias = j->down_bias;
    int64_t begin, end;

    dti_pool_share(j->n, 1, worker, n_workers, &begin, &end);
    for (int64_t r = begin; r < end; r++) {
        const int64_t slot = j->order[r];
        const float w = dti_load_f32(weights->data, weights->dtype, slot);
        float *sums = j->sums + slot / j->slots.n_slots * j->d;
        for (int64_t i = 0; i < j->d && bias == NULL; i++) sums[i] += w * j->z[r * j->d + i];
        for (int64_t i = 0; i < j->d && bias != NULL; i++)
            sums[i] += w * (j->z[r * j->d + i] +
                            dti_load_f32(bias->data, bias->dtype, j->expert * j->d + i));
    }
}

/* y [n, n_out] = x w^T of one expert's tokens, x [n, n_in]. */
static dt_status multiply(const experts_job *j, const expert_weight *w, int64_t e,
                          const dt_local *x, const dt_local *y)
{
    dt_local in[4] = { *x }, out = *y;
    dti_packed_attr attr = w->packing;

    attr.dtype = y->dtype;
    for (int i = 0; i < w->n_parts; i++) in[1 + i] = dti_expert_matrix(&w->part[i], e);
    DT_TRY(w->kernel(&(dt_kargs){ .in = in,
                                  .out = &out,
                                  .attr = &attr,
                                  .cpu = j->a->cpu,
                                  .n_in = 1 + w->n_parts,
                                  .n_out = 1 }));
    return DT_OK;
}

static dt_status run_expert(experts_job *j, int64_t e)
{
    const dt_dtype dtype = j->a->in[0].dtype;
    const dti_cpu *cpu = j->a->cpu;
    dt_local x, h, up, z;

    j->expert = e;
    j->order = j->slots.order + j->slots.begin[e];
    j->n = j->slots.begin[e + 1] - j->slots.begin[e];
    if (j->n == 0) return DT_OK;
    x = dti_matrix(j->x, dtype, j->n, j->d);
    h = dti_matrix(j->h, dtype, j->n, 2 * j->f);
    up = dti_matrix(j->up, dtype, j->n, j->f);
    z = dti_matrix(j->z, DT_F32, j->n, j->d);
    dti_cpu_run(cpu, 2 * j->n * j->d * j->bytes, gather_share, j);
    DT_TRY(multiply(j, &j->gate_up, e, &x, &h));
    dti_cpu_run(cpu, 3 * j->n * j->f * j->bytes, j->clamp != NULL ? clamp_share : gate_share, j);
    DT_TRY(multiply(j, &j->down, e, &up, &z));
    dti_cpu_run(cpu, 3 * j->n * j->d * (int64_t)sizeof(float), add_share, j);
    return DT_OK;
}

/* Room for the tokens of one expert, and for the sums of all unless they are the result. */
static dt_status make_room(experts_job *j, bool sums)
{
    const int64_t f32 = (int64_t)sizeof(float), most = j->slots.most;
    const int64_t x = most * j->d * j->bytes, up = most * j->f * j->bytes;
    const int64_t z = most * j->d * f32, all = sums ? j->slots.n_tokens * j->d * f32 : 0;
    const size_t slots = dti_slots_bytes(&j->slots);
    void *scratch;
    char *at;

    DT_TRY(dti_cpu_outer_scratch(j->a->cpu,
                                 slots + dti_scratch_size(x) + dti_scratch_size(2 * up) +
                                     dti_scratch_size(up) + dti_scratch_size(z) +
                                     dti_scratch_size(all),
                                 &scratch));
    dti_slots_sort(&j->slots, scratch);
    at = (char *)scratch + slots;
    j->x = dti_scratch_take(&at, x);
    j->h = dti_scratch_take(&at, 2 * up);
    j->up = dti_scratch_take(&at, up);
    j->z = dti_scratch_take(&at, z);
    j->sums = sums ? dti_scratch_take(&at, all) : j->a->out[0].data;
    return DT_OK;
}

static dt_status run(experts_job *j, const char *op, int64_t n_experts)
{
    const dt_kargs *a = j->a;
    const dt_local *x = &a->in[0], *gate_up = j->gate_up.part, *y = &a->out[0];
    const dti_row_ops *out_rows;

    j->d = x->shape[x->n_axes - 1];
    j->bytes = (int64_t)dt_dtype_size(x->dtype);
    DT_TRY(dti_cpu_rows(a->cpu, op, x, &j->rows));
    DT_TRY(dti_cpu_rows(a->cpu, op, y, &out_rows));
    DT_CHECK(gate_up->shape[1] == 2 * j->f, DT_ERR_INTERNAL,
             "%s: %lld rows of gate and up here, %lld columns of down", op,
             (long long)gate_up->shape[1], (long long)j->f);
    DT_TRY(dti_slots_open(&j->slots, a->cpu, &a->in[1], gate_up, n_experts));
    DT_TRY(make_room(j, y->dtype != DT_F32));
    memset(j->sums, 0, (size_t)(j->slots.n_tokens * j->d) * sizeof(float));
    for (int64_t e = 0; e < j->slots.n_experts; e++) DT_TRY(run_expert(j, e));
    if (y->dtype != DT_F32) out_rows->store(y->data, j->sums, j->slots.n_tokens * j->d);
    return DT_OK;
}

/* x [..., d] F, ids [..., k] i32 (global; those of other ranks' experts add nothing), weights
 * [..., k] F, gate_up [E, 2 f, d] F with gate before up, down [E, d, f] F -> [..., d], F or f32. A
 * token names an expert once. experts_attr. */
dt_status dti_experts_cpu(const dt_kargs *a)
{
    experts_job j = { .a = a,
                      .gate_up = { &a->in[3], 1, { 0 }, dti_linear_cpu },
                      .down = { &a->in[4], 1, { 0 }, dti_linear_cpu },
                      .f = a->in[4].shape[2] };

    DT_TRY(run(&j, "experts", ((const dti_experts_attr *)a->attr)->n_experts));
    return DT_OK;
}

/* The same with gate and up by turns in gate_up [E, 2 f, d], clamped, and with biases gate_up_bias
 * [E, 2 f] F and down_bias [E, d] F, which of ranks that share an expert the one with its first
 * columns of down adds. experts_clamped_attr. */
dt_status dti_experts_clamped_cpu(const dt_kargs *a)
{
    const dti_experts_clamped_attr *attr = a->attr;
    const bool adds = a->in[4].offset[2] == 0;
    experts_job j = { .a = a,
                      .gate_up = { &a->in[3], 1, { 0 }, dti_linear_cpu },
                      .down = { &a->in[4], 1, { 0 }, dti_linear_cpu },
                      .clamp = attr,
                      .gate_up_bias = &a->in[5],
                      .down_bias = adds ? &a->in[6] : NULL,
                      .f = a->in[4].shape[2] };

    DT_TRY(run(&j, "experts_clamped", attr->n_experts));
    return DT_OK;
}

/* The same of codes, scales and maybe zero points, first those of gate_up. experts_packed_attr. */
static dt_status run_packed(const dt_kargs *a, const char *op, dt_kernel kernel)
{
    const dti_experts_packed_attr *attr = a->attr;
    const int each = (a->n_in - 3) / 2;
    const dt_local *down = &a->in[3 + each];
    experts_job j = { .a = a, .f = down->shape[2] * (8 / attr->bits[1]) };

    j.gate_up = (expert_weight){
        &a->in[3], each, { .bits = attr->bits[0], .group = attr->group[0] }, kernel
    };
    j.down =
        (expert_weight){ down, each, { .bits = attr->bits[1], .group = attr->group[1] }, kernel };
    DT_TRY(run(&j, op, attr->n_experts));
    return DT_OK;
}

dt_status dti_experts_packed_cpu(const dt_kargs *a)
{
    DT_TRY(run_packed(a, "experts_packed", dti_linear_packed_cpu));
    return DT_OK;
}

dt_status dti_experts_e4m3_cpu(const dt_kargs *a)
{
    DT_TRY(run_packed(a, "experts_e4m3", dti_linear_e4m3_cpu));
    return DT_OK;
}
