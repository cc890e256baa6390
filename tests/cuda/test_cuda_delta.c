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

/* --- rows whose states lie in slots ----------------------------------------------------------- */

enum { ROWS = 13, SLOTS = 5 };

/* Slots 3 and 0 go on from what they have, unless results are asked for, for which every one
 * begins; slot 1 begins twice; -1 is padding. Slots of this rank begin at 10. */
static void fill_rows(dt_local *positions, int which)
{
    static const int32_t slots[ROWS] = { 13, 11, 11, -1, 13, 13, 11, 14, -1, 11, 10, 14, 13 };
    static const int32_t at[ROWS] = { 4, 0, 1, 0, 5, 6, 2, 0, 0, 0, 9, 1, 7 };
    const int64_t shape[] = { ROWS, 1 };

    for (int x = 0; x < 2; x++) positions[x] = kt_local(DT_I32, 2, shape);
    for (int i = 0; i < ROWS; i++) {
        ((int32_t *)positions[0].data)[i] = which == 0 && (i == 0 || i == 10) ? 0 : at[i];
        ((int32_t *)positions[1].data)[i] = slots[i];
    }
}

/* Results, or (which 1) the pool that they leave: operand `pool`. */
static void run_rows(const cr_device *d, cr_case *c, int pool, dt_local y)
{
    c->in[pool].offset[0] = 10;
    c->n_in = pool + 1;
    c->n_out = 2;
    if (c->which == 1) {
        c->in_place = pool + 1;
        c->out = c->in[pool];
        c->out.data = NULL;
        c->others[0] = kt_local(y.dtype, y.n_axes, y.shape);
    } else {
        c->out = y;
        c->others[1] =
            kt_filled(c->in[pool].dtype, c->in[pool].n_axes, c->in[pool].shape, KT_UNIFORM, 9);
        c->others[1].offset[0] = 10;
    }
    cr_run(c, d);
}

static void run_conv_slots(const cr_device *d, dt_dtype t, const conv_case *x, int which)
{
    const int64_t rows[] = { ROWS, 1, x->channels }, taps[] = { x->channels, x->taps };
    const int64_t windows[] = { SLOTS, x->taps - 1, x->channels };
    cr_case c = { .row = "causal_conv_slots",
                  .cpu = dti_causal_conv_slots_cpu,
                  .which = which,
                  .ulps = 1.0,
                  .slack = (double)x->taps * 0x1p-22 };

    c.in[0] = kt_filled(t, 3, rows, KT_UNIFORM, 1);
    fill_rows(&c.in[1], which);
    c.in[3] = kt_filled(t, 2, taps, KT_UNIFORM, 3);
    c.in[4] = kt_filled(t, 3, windows, KT_UNIFORM, 2);
    run_rows(d, &c, 4, result(t, 3, rows));
}

static void run_delta_slots(const cr_device *d, dt_dtype t, const delta_case *x, int which)
{
    const delta_case of = { ROWS, 1, x->heads, x->group, x->width, x->value };
    const int64_t values[] = { ROWS, 1, x->heads, x->group, x->value };
    const int64_t states[] = { SLOTS, x->heads, x->group, x->width, x->value };
    cr_case c = { .row = "gated_delta_slots",
                  .cpu = dti_gated_delta_slots_cpu,
                  .which = which,
                  .ulps = 1.0,
                  .slack = (double)(x->width + ROWS) * 0x1p-21 };

    fill_delta(c.in, t, &of);
    kt_release(&c.in[5]);
    fill_rows(&c.in[5], which);
    c.in[7] = kt_filled(DT_F32, 5, states, KT_UNIFORM, 6);
    run_rows(d, &c, 7, result(t, 5, values));
}

DT_TEST(cuda_delta, rows_of_slots_are_those_of_the_cpu)
{
    static const delta_case large = { 1, 1, 1, 2, 400, 9 };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (int which = 0; which < 2; which++) {
            for (size_t i = 0; i < DT_COUNT(convs); i++)
                run_conv_slots(&d, kt_floats[t], &convs[i], which);
            for (size_t i = 0; i <= DT_COUNT(deltas); i++)
                run_delta_slots(&d, kt_floats[t], i < DT_COUNT(deltas) ? &deltas[i] : &large,
                                which);
        }
}

DT_TEST(cuda_delta, slots_that_are_not_there_are_reported)
{
    const int64_t rows[] = { ROWS, 1, 4 }, windows[] = { SLOTS, 1, 4 }, taps[] = { 4, 2 };
    CR_DEVICE d = cr_open();

    for (int32_t slot = 9; slot <= 15; slot += 6) {
        dt_local in[5] = { kt_filled(DT_F32, 3, rows, KT_UNIFORM, 1) }, at[5], out[2];
        const dt_kargs args = { .in = at, .out = out, .n_in = 5, .n_out = 2 };
        fill_rows(&in[1], 0);
        in[3] = kt_filled(DT_F32, 2, taps, KT_UNIFORM, 3);
        in[4] = kt_filled(DT_F32, 3, windows, KT_UNIFORM, 2);
        in[4].offset[0] = 10;
        ((int32_t *)in[2].data)[2] = slot;
        for (int i = 0; i < 5; i++) {
            at[i] = in[i];
            at[i].data = cr_up(&d, &in[i], 0);
        }
        out[0] = in[0];
        out[0].data = cr_up(&d, &in[0], 0);
        out[1] = at[4];
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "causal_conv_slots")(d.c, &args));
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), slot == 9 ? "sequence -1" : "sequence 5");
        cr_release(&d, &in[0], out[0].data, 0);
        for (int i = 0; i < 5; i++) {
            cr_release(&d, &in[i], at[i].data, 0);
            kt_release(&in[i]);
        }
    }
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
