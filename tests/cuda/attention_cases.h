/* SPDX-License-Identifier: Apache-2.0
 *
 * Attention on a device against the CPU's in f32, which is computed from the same values.
 *
 * Let u be half an ulp of the dtype, and want and mean the CPU's results from v and from |v|. A
 * result in f32 is within 1e-5 mean. One of 16 bits is rounded once, by u |want|. With more than 8
 * tokens the weights are rounded too, each by its u-th part at most, and so a sum of weights times
 * v moves by u mean at most. */
#ifndef DT_TEST_ATTENTION_CASES_H
#define DT_TEST_ATTENTION_CASES_H

#include "tests/cuda/rows.h"

enum { Q, K, V, POSITIONS, N_IN, FEW_TOKENS = 8 };

/* Where queries stand. */
typedef enum layout {
    IN_TURN, /* one after the other; sequence b begins at position / (b + 1) */
    PADDED   /* models/run/state.h: b + 1 tokens of padding with the last positions, then text */
} layout;

typedef struct attention_shape {
    int64_t batch, tokens, heads, kv, rows, width; /* of this rank */
    int64_t q_offset, k_offset, n_heads, n_kv;     /* global */
    int64_t window, position;
    layout layout;
    int64_t skew; /* elements that operands lie off an address of 16 bytes */
} attention_shape;

static inline int32_t position_of(const attention_shape *s, int64_t b, int64_t t)
{
    const int64_t pads = b + 1 < s->tokens ? b + 1 : s->tokens - 1;

    if (s->layout == IN_TURN) return (int32_t)(s->position / (b + 1) + t);
    return (int32_t)(s->position + (t >= pads ? t - pads : s->tokens - pads + t));
}

/* The operands, in `dtype`. */
static inline void make_operands(const attention_shape *s, dt_dtype dtype, dt_local *in)
{
    const int64_t q[] = { s->batch, s->tokens, s->heads, s->width };
    const int64_t k[] = { s->batch, s->rows, s->kv, s->width };
    const int64_t positions[] = { s->batch, s->tokens };

    in[Q] = kt_filled(dtype, 4, q, KT_UNIFORM, 21);
    in[K] = kt_filled(dtype, 4, k, KT_UNIFORM, 22);
    in[V] = kt_filled(dtype, 4, k, KT_UNIFORM, 23);
    in[POSITIONS] = kt_local(DT_I32, 2, positions);
    in[Q].offset[2] = s->q_offset;
    in[K].offset[2] = in[V].offset[2] = s->k_offset;
    for (int64_t i = 0; i < s->batch * s->tokens; i++)
        ((int32_t *)in[POSITIONS].data)[i] = position_of(s, i / s->tokens, i % s->tokens);
}

/* The CPU's result, f32, of the operands' values; of |v| if `magnitudes`. */
static inline dt_local on_cpu(const dt_local *in, const dti_attention_attr *attr, bool magnitudes)
{
    dt_local f32[N_IN], y = kt_local(DT_F32, 4, in[Q].shape);
    dt_kargs args = { .in = f32, .out = &y, .attr = attr, .n_in = N_IN, .n_out = 1 };
    dti_cpu *cpu;

    memcpy(f32, in, sizeof f32);
    for (int i = 0; i < POSITIONS; i++) {
        const int64_t n = kt_count(&in[i]);
        f32[i] = kt_local(DT_F32, 4, in[i].shape);
        memcpy(f32[i].offset, in[i].offset, sizeof f32[i].offset);
        dti_convert(f32[i].data, DT_F32, in[i].data, in[i].dtype, n);
        for (int64_t x = 0; x < n && i == V && magnitudes; x++)
            ((float *)f32[V].data)[x] = fabsf(((float *)f32[V].data)[x]);
    }
    DT_ASSERT_OK(dti_cpu_create(dti_isa_detect(), NULL, &cpu));
    args.cpu = cpu;
    DT_ASSERT_OK(dti_attention_cpu(&args));
    dti_cpu_destroy(&cpu);
    for (int i = 0; i < POSITIONS; i++) kt_release(&f32[i]);
    return y;
}

/* What no query of a sequence sees is not read: NaNs there change nothing. */
static inline void poison(const attention_shape *s, dt_local *in)
{
    const int64_t row = s->kv * s->width;

    for (int64_t b = 0; b < s->batch; b++) {
        const int32_t *positions = (const int32_t *)in[POSITIONS].data + b * s->tokens;
        int64_t first = s->rows, last = -1;
        for (int64_t t = 0; t < s->tokens; t++) {
            const int64_t p = positions[t];
            const int64_t f = s->window > 0 ? p - s->window + 1 : 0;
            if (f < first) first = f < 0 ? 0 : f;
            if (p > last) last = p;
        }
        for (int64_t i = 0; i < s->rows * row; i++)
            if (i / row < first || i / row > last) {
                dti_store_f32(in[K].data, in[K].dtype, b * s->rows * row + i, NAN);
                dti_store_f32(in[V].data, in[V].dtype, b * s->rows * row + i, NAN);
            }
    }
}

static inline void compare(const char *name, const dt_local *got, const dt_local *want,
                           const dt_local *mean, bool rounds_weights)
{
    const double unit = got->dtype == DT_F32 ? 0.0 : 1.01 * kt_unit(got->dtype);
    const double smallest = got->dtype == DT_F16 ? 0x1p-24 : 0x1p-126;

    for (int64_t i = 0; i < kt_count(want); i++) {
        const double x = kt_get(got, i), y = kt_get(want, i), size = kt_get(mean, i);
        const double allowed =
            1e-5 * size + unit * fabs(y) + (rounds_weights ? unit * size : 0.0) + smallest;
        if (fabs(x - y) <= allowed) continue;
        dt_test_fail(__FILE__, __LINE__,
                     "%s %s: element %lld of %lld is %.9g, not %.9g (%.3g is allowed)", name,
                     dt_dtype_name(got->dtype), (long long)i, (long long)kt_count(want), x, y,
                     allowed);
    }
}

static inline void run_attention(const cr_device *d, const attention_shape *s, dt_dtype dtype,
                                 bool poisoned)
{
    const dti_attention_attr attr = { s->n_heads, s->n_kv, s->window, 4.0f / sqrtf((float)s->width),
                                      0,          0,       0 };
    const bool pieces = dtype != DT_F32 && s->width % 8 == 0 && s->skew == 0;
    cr_case c = { .row = "attention", .n_in = N_IN, .attr = &attr, .skew = s->skew };
    DT_ENDS(kt_release) dt_local again, got, mean, want;
    char name[128];

    (void)snprintf(name, sizeof name, "attention B%lld T%lld H%lld/%lld S%lld e%lld w%lld at %lld",
                   (long long)s->batch, (long long)s->tokens, (long long)s->heads, (long long)s->kv,
                   (long long)s->rows, (long long)s->width, (long long)s->window,
                   (long long)s->position);
    make_operands(s, dtype, c.in);
    want = on_cpu(c.in, &attr, false);
    mean = on_cpu(c.in, &attr, true);
    if (poisoned) poison(s, c.in);
    got = kt_local(dtype, 4, want.shape);
    again = kt_local(dtype, 4, want.shape);
    c.out = (dt_local){ .dtype = dtype, .n_axes = 4 };
    memcpy(c.out.shape, want.shape, sizeof c.out.shape);
    cr_run_cuda(&c, d, got.data);
    compare(name, &got, &want, &mean, pieces && s->tokens > FEW_TOKENS);
    cr_run_cuda(&c, d, again.data);
    DT_ASSERT(memcmp(got.data, again.data, cr_bytes(&got)) == 0);
    for (int i = 0; i < N_IN; i++) kt_release(&c.in[i]);
}

#endif
