/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear attention on a device beside the CPU's kernels: results, what they leave for later tokens,
 * gradients. */
#include "tests/cuda/rows.h"

typedef struct conv_case {
    int64_t batch, tokens, channels, taps;
} conv_case;

static const conv_case convs[] = {
    { 1, 1, 1, 2 },  { 2, 1, 7, 4 },  { 2, 9, 33, 4 }, { 1, 2, 130, 5 }, { 3, 20, 64, 3 },
    { 2, 5, 40, 1 }, { 2, 0, 65, 4 }, { 0, 3, 5, 4 },  { 2, 3, 0, 4 },
};

typedef struct delta_case {
    int64_t batch, tokens, heads, group, width, value;
} delta_case;

static const delta_case deltas[] = {
    { 1, 1, 1, 1, 1, 1 },   { 2, 5, 3, 2, 6, 5 }, { 1, 7, 2, 1, 33, 32 }, { 2, 2, 2, 3, 16, 70 },
    { 1, 5, 1, 2, 64, 33 }, { 2, 0, 2, 2, 4, 3 }, { 1, 3, 0, 2, 4, 3 },   { 0, 3, 2, 2, 4, 3 },
};

static dt_local result(dt_dtype t, int n_axes, const int64_t *shape)
{
    dt_local x = { .dtype = t, .n_axes = n_axes };

    memcpy(x.shape, shape, (size_t)n_axes * sizeof *shape);
    return x;
}

/* Results other than `which` get memory. */
static void run(cr_case *c, const cr_device *d, const dt_local *results)
{
    for (int r = 0; r < c->n_out; r++)
        if (r == c->which)
            c->out = results[r];
        else
            c->others[r] = kt_local(results[r].dtype, results[r].n_axes, results[r].shape);
    cr_run(c, d);
}

static void run_conv(const cr_device *d, dt_dtype t, const conv_case *x, int which)
{
    const int64_t tokens[] = { x->batch, x->tokens, x->channels },
                  taps[] = { x->channels, x->taps };
    const int64_t window[] = { x->batch, x->taps - 1, x->channels };
    const dt_local results[] = { result(t, 3, tokens), result(t, 3, window) };
    cr_case c = { .row = "causal_conv",
                  .cpu = dti_causal_conv_cpu,
                  .n_in = 3,
                  .n_out = 2,
                  .which = which,
                  .skew = x->batch % 2,
                  .ulps = 1.0,
                  .slack = (double)x->taps * 0x1p-22 }; /* a CPU that fuses */

    c.in[0] = kt_filled(t, 3, tokens, KT_UNIFORM, 1);
    c.in[1] = kt_filled(t, 3, window, KT_UNIFORM, 2);
    c.in[2] = kt_filled(t, 2, taps, KT_UNIFORM, 3);
    run(&c, d, results);
}

DT_TEST(cuda_delta, causal_convolutions_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(convs); i++)
            for (int which = 0; which < 2; which++) run_conv(&d, kt_floats[t], &convs[i], which);
}

/* q, k, v, decay, beta, state. */
static void fill_delta(dt_local *in, dt_dtype t, const delta_case *x)
{
    const int64_t keys[] = { x->batch, x->tokens, x->heads, x->width };
    const int64_t values[] = { x->batch, x->tokens, x->heads, x->group, x->value };
    const int64_t state[] = { x->batch, x->heads, x->group, x->width, x->value };

    in[0] = kt_filled(t, 4, keys, KT_UNIFORM, 1);
    in[1] = kt_filled(t, 4, keys, KT_UNIFORM, 2);
    in[2] = kt_filled(t, 5, values, KT_UNIFORM, 3);
    in[3] = kt_filled(DT_F32, 4, values, KT_UNIFORM, 4);
    in[4] = kt_filled(t, 4, values, KT_UNIFORM, 5);
    in[5] = kt_filled(DT_F32, 5, state, KT_UNIFORM, 6);
    for (int i = 3; i < 5; i++) /* decays are below 0, betas above */
        for (int64_t n = kt_count(&in[i]), k = 0; k < n; k++)
            dti_store_f32(in[i].data, in[i].dtype, k,
                          (float)((i == 3 ? -1 : 1) * fabs(kt_get(&in[i], k))));
}

static void run_delta(const cr_device *d, dt_dtype t, const delta_case *x, int which)
{
    const int64_t values[] = { x->batch, x->tokens, x->heads, x->group, x->value };
    const int64_t state[] = { x->batch, x->heads, x->group, x->width, x->value };
    const dt_local results[] = { result(t, 5, values), result(DT_F32, 5, state) };
    cr_case c = { .row = "gated_delta",
                  .cpu = dti_gated_delta_cpu,
                  .n_in = 6,
                  .n_out = 2,
                  .which = which,
                  .skew = x->batch % 2,
                  .ulps = 1.0,
                  .slack = (double)(x->width + x->tokens) * 0x1p-21 };

    fill_delta(c.in, t, x);
    run(&c, d, results);
}

/* The last one's states do not fit shared memory. */
DT_TEST(cuda_delta, gated_delta_rules_are_those_of_the_cpu)
{
    static const delta_case large = { 1, 3, 1, 2, 400, 9 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i <= DT_COUNT(deltas); i++)
            for (int which = 0; which < 2; which++)
                run_delta(&d, kt_floats[t], i < DT_COUNT(deltas) ? &deltas[i] : &large, which);
}

DT_TEST(cuda_delta, heads_that_are_too_wide_are_refused)
{
    dt_local in[6], out[2] = { { .dtype = DT_F32 }, { .dtype = DT_F32 } };
    const dt_kargs args = { .in = in, .out = out, .n_in = 6, .n_out = 2 };
    CR_DEVICE d = cr_open();

    memset(in, 0, sizeof in);
    for (int i = 0; i < 6; i++) in[i].dtype = DT_F32;
    memcpy(in[0].shape, (const int64_t[]){ 1, 1, 1, 7000 }, 4 * sizeof(int64_t));
    memcpy(in[2].shape, (const int64_t[]){ 1, 1, 1, 1, 8 }, 5 * sizeof(int64_t));
    DT_ASSERT_CUDA_FAILS(d.m, dt_test_cuda_row(d.m, "gated_delta")(d.c, &args),
                         "heads of 7000 and 8 columns");
}

/* --- gradients -------------------------------------------------------------------------------- */

static void run_conv_back(const cr_device *d, dt_dtype t, const conv_case *x, int which)
{
    const int64_t tokens[] = { x->batch, x->tokens, x->channels },
                  taps[] = { x->channels, x->taps };
    const int64_t window[] = { x->batch, x->taps - 1, x->channels };
    const dt_local results[] = { result(t, 3, tokens), result(t, 3, window),
                                 result(DT_F32, 2, taps) };
    const int64_t terms = which == 2 ? x->batch * x->tokens : x->taps + 1;
    cr_case c = { .row = "causal_conv_backward",
                  .cpu = dti_causal_conv_backward_cpu,
                  .n_in = 5,
                  .n_out = 3,
                  .which = which,
                  .skew = x->batch % 2,
                  .ulps = 1.0,
                  .slack = (double)terms * 0x1p-22 };

    c.in[0] = kt_filled(t, 3, tokens, KT_UNIFORM, 7);
    c.in[1] = kt_filled(t, 3, window, KT_UNIFORM, 8);
    c.in[2] = kt_filled(t, 3, tokens, KT_UNIFORM, 1);
    c.in[3] = kt_filled(t, 3, window, KT_UNIFORM, 2);
    c.in[4] = kt_filled(t, 2, taps, KT_UNIFORM, 3);
    run(&c, d, results);
}

DT_TEST(cuda_delta, gradients_of_convolutions_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(convs); i++)
            for (int which = 0; which < 3; which++)
                run_conv_back(&d, kt_floats[t], &convs[i], which);
}

/* Terms are below 4: what is remembered and what reaches it, by sums over columns or rows. */
static void run_delta_back(const cr_device *d, dt_dtype t, const delta_case *x, int which)
{
    const int64_t values[] = { x->batch, x->tokens, x->heads, x->group, x->value };
    const int64_t state[] = { x->batch, x->heads, x->group, x->width, x->value };
    const int64_t keys[] = { x->batch, x->tokens, x->heads, 2 * x->width };
    const int64_t gates[] = { x->batch, x->tokens, x->heads, 2 * x->group };
    const dt_local results[] = { result(t, 4, keys), result(t, 5, values), result(DT_F32, 4, gates),
                                 result(DT_F32, 5, state) };
    cr_case c = { .row = "gated_delta_backward",
                  .cpu = dti_gated_delta_backward_cpu,
                  .n_in = 8,
                  .n_out = 4,
                  .which = which,
                  .skew = x->batch % 2,
                  .ulps = 1.0,
                  .slack = (double)(x->width + x->value) * (double)(1 + x->tokens) * 0x1p-21 };

    c.in[0] = kt_filled(t, 5, values, KT_UNIFORM, 7);
    c.in[1] = kt_filled(DT_F32, 5, state, KT_UNIFORM, 8);
    fill_delta(c.in + 2, t, x);
    run(&c, d, results);
}

DT_TEST(cuda_delta, gradients_of_delta_rules_are_those_of_the_cpu)
{
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(deltas); i++)
            for (int which = 0; which < 4; which++)
                run_delta_back(&d, kt_floats[t], &deltas[i], which);
}
