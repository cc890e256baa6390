/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of linear attention, judged in float64: results and what they leave for later tokens. */
#include "tests/dtensor/test_kernels.h"

static void absolute(dt_local *x, double sign)
{
    for (int64_t i = 0, n = kt_count(x); i < n; i++)
        dti_store_f32(x->data, x->dtype, i, (float)(sign * fabs(kt_get(x, i))));
}

/* --- causal convolution ----------------------------------------------------------------------- */

typedef struct conv_case {
    int64_t batch, tokens, channels, taps;
} conv_case;

/* Channel i of token t: below 0 of the window, which is taps - 1 long. */
static double before(const kt_case *c, const conv_case *x, int64_t b, int64_t t, int64_t i)
{
    const int64_t w = x->taps - 1;

    if (t >= 0) return kt_get(&c->in[0], (b * x->tokens + t) * x->channels + i);
    return kt_get(&c->in[1], (b * w + w + t) * x->channels + i);
}

static void run_conv(dt_dtype t, const conv_case *x, int which)
{
    const int64_t tokens[] = { x->batch, x->tokens, x->channels },
                  taps[] = { x->channels, x->taps };
    const int64_t window[] = { x->batch, x->taps - 1, x->channels };
    kt_case c = { .name = which == 0 ? "causal_conv" : "causal_conv's window",
                  .kernel = dti_causal_conv_cpu,
                  .n_in = 3,
                  .n_out = 2,
                  .which = which };

    c.in[0] = kt_filled(t, 3, tokens, KT_UNIFORM, 1);
    c.in[1] = kt_filled(t, 3, window, KT_UNIFORM, 2);
    c.in[2] = kt_filled(t, 2, taps, KT_UNIFORM, 3);
    c.others[1 - which] = kt_local(t, 3, which == 0 ? window : tokens);
    c.out = (dt_local){ .dtype = t, .n_axes = 3 };
    memcpy(c.out.shape, which == 0 ? tokens : window, sizeof tokens);
    kt_expect(&c);
    for (int64_t b = 0; b < x->batch; b++)
        for (int64_t j = 0; j < c.out.shape[1]; j++)
            for (int64_t i = 0; i < x->channels; i++) {
                const int64_t at = (b * c.out.shape[1] + j) * x->channels + i;
                if (which == 1) {
                    c.want[at] = before(&c, x, b, x->tokens - x->taps + 1 + j, i);
                    continue;
                }
                for (int64_t k = 0; k < x->taps; k++)
                    c.want[at] += kt_get(&c.in[2], i * x->taps + k) *
                                  before(&c, x, b, j - x->taps + 1 + k, i);
                c.slack[at] = (double)x->taps * 0x1p-22;
            }
    kt_run(&c);
}

DT_TEST(kernels_delta, causal_convolutions_match_float64)
{
    static const conv_case cases[] = {
        { 1, 1, 1, 2 },   { 2, 1, 7, 4 },  { 2, 9, 33, 4 }, { 1, 2, 130, 5 }, { 3, 20, 64, 3 },
        { 2, 5, 200, 1 }, { 2, 0, 65, 4 }, { 0, 3, 5, 4 },  { 2, 3, 0, 4 },
    };

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++)
            for (int which = 0; which < 2; which++) run_conv(kt_floats[t], &cases[i], which);
}

/* --- gated delta rule ------------------------------------------------------------------------- */

typedef struct delta_case {
    int64_t batch, tokens, heads, group, width, value;
} delta_case;

enum { Q, K, V, DECAY, BETA, STATE, N_IN, MOST = 64 };

static void unit(const dt_local *x, int64_t at, int64_t n, double scale, double *to)
{
    double sum = 1e-6;

    for (int64_t i = 0; i < n; i++) sum += kt_get(x, at + i) * kt_get(x, at + i);
    for (int64_t i = 0; i < n; i++) to[i] = kt_get(x, at + i) / sqrt(sum) * scale;
}

/* Column e of a value head: its state [width] over all tokens; y gets what each token reads. */
static void run_column(const kt_case *c, const delta_case *x, int64_t row, int64_t e, double *state,
                       double *y)
{
    const int64_t per_b = x->heads * x->group, b = row / per_b, h = row % per_b / x->group;
    double q[MOST], k[MOST];

    for (int64_t d = 0; d < x->width; d++)
        state[d] = kt_get(&c->in[STATE], (row * x->width + d) * x->value + e);
    for (int64_t t = 0; t < x->tokens; t++) {
        const int64_t head = (b * x->tokens + t) * x->heads + h;
        const int64_t own = head * x->group + row % x->group;
        double told = 0;
        unit(&c->in[Q], head * x->width, x->width, 1 / sqrt((double)x->width), q);
        unit(&c->in[K], head * x->width, x->width, 1, k);
        for (int64_t d = 0; d < x->width; d++) {
            state[d] *= exp(kt_get(&c->in[DECAY], own));
            told += k[d] * state[d];
        }
        told = (kt_get(&c->in[V], own * x->value + e) - told) * kt_get(&c->in[BETA], own);
        y[own * x->value + e] = 0;
        for (int64_t d = 0; d < x->width; d++) {
            state[d] += k[d] * told;
            y[own * x->value + e] += q[d] * state[d];
        }
    }
}

static void expect_delta(kt_case *c, const delta_case *x)
{
    const int64_t n = x->batch * x->tokens * x->heads * x->group * x->value;
    double state[MOST], *y;

    DT_ASSERT_OK(dti_alloc_array((size_t)n + 1, sizeof *y, (void **)&y));
    for (int64_t row = 0; row < x->batch * x->heads * x->group; row++)
        for (int64_t e = 0; e < x->value; e++) {
            run_column(c, x, row, e, state, y);
            for (int64_t d = 0; d < x->width && c->which == 1; d++)
                c->want[(row * x->width + d) * x->value + e] = state[d];
        }
    if (c->which == 0) memcpy(c->want, y, (size_t)n * sizeof *y);
    for (int64_t i = 0, all = kt_count(&c->out); i < all; i++)
        c->slack[i] = (double)(x->width + x->tokens) * 0x1p-21;
    dti_free(y);
}

static void run_delta(dt_dtype t, const delta_case *x, int which)
{
    const int64_t keys[] = { x->batch, x->tokens, x->heads, x->width };
    const int64_t values[] = { x->batch, x->tokens, x->heads, x->group, x->value };
    const int64_t state[] = { x->batch, x->heads, x->group, x->width, x->value };
    kt_case c = { .name = which == 0 ? "gated_delta" : "gated_delta's state",
                  .kernel = dti_gated_delta_cpu,
                  .n_in = N_IN,
                  .n_out = 2,
                  .which = which };

    c.in[Q] = kt_filled(t, 4, keys, KT_UNIFORM, 1);
    c.in[K] = kt_filled(t, 4, keys, KT_UNIFORM, 2);
    c.in[V] = kt_filled(t, 5, values, KT_UNIFORM, 3);
    c.in[DECAY] = kt_filled(DT_F32, 4, values, KT_UNIFORM, 4);
    c.in[BETA] = kt_filled(t, 4, values, KT_UNIFORM, 5);
    c.in[STATE] = kt_filled(DT_F32, 5, state, KT_UNIFORM, 6);
    absolute(&c.in[DECAY], -1);
    absolute(&c.in[BETA], 1);
    c.others[1 - which] = kt_local(which == 0 ? DT_F32 : t, 5, which == 0 ? state : values);
    c.out = (dt_local){ .dtype = which == 0 ? t : DT_F32, .n_axes = 5 };
    memcpy(c.out.shape, which == 0 ? values : state, sizeof values);
    kt_expect(&c);
    expect_delta(&c, x);
    kt_run(&c);
}

DT_TEST(kernels_delta, gated_delta_rules_match_float64)
{
    static const delta_case cases[] = {
        { 1, 1, 1, 1, 1, 1 },   { 2, 5, 3, 2, 6, 5 },    { 1, 17, 2, 1, 33, 32 },
        { 2, 1, 2, 4, 16, 70 }, { 1, 40, 1, 2, 64, 33 }, { 2, 0, 2, 2, 4, 3 },
        { 1, 3, 0, 2, 4, 3 },   { 0, 3, 2, 2, 4, 3 },
    };

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++)
            for (int which = 0; which < 2; which++) run_delta(kt_floats[t], &cases[i], which);
}

/* Products and sums are rounded one by one, in one order, on every machine. */
DT_TEST(kernels_delta, instruction_sets_give_the_same_bits)
{
    static const delta_case x = { 2, 37, 2, 2, 33, 70 };
    const int64_t keys[] = { x.batch, x.tokens, x.heads, x.width };
    const int64_t values[] = { x.batch, x.tokens, x.heads, x.group, x.value };
    const int64_t state[] = { x.batch, x.heads, x.group, x.width, x.value };
    dt_local in[N_IN] = {
        kt_filled(DT_BF16, 4, keys, KT_UNIFORM, 1),   kt_filled(DT_BF16, 4, keys, KT_UNIFORM, 2),
        kt_filled(DT_BF16, 5, values, KT_UNIFORM, 3), kt_filled(DT_F32, 4, values, KT_UNIFORM, 4),
        kt_filled(DT_BF16, 4, values, KT_UNIFORM, 5), kt_filled(DT_F32, 5, state, KT_UNIFORM, 6)
    };
    dt_local out[2][2];

    absolute(&in[DECAY], -1);
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++) {
        DT_ENDS(dti_cpu_destroy) dti_cpu *cpu = NULL;
        dt_local *const y = out[isa > 0];
        dt_kargs args = { .in = in, .out = y, .n_in = N_IN, .n_out = 2 };
        DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
        args.cpu = cpu;
        y[0] = kt_local(DT_BF16, 5, values);
        y[1] = kt_local(DT_F32, 5, state);
        DT_ASSERT_OK(dti_gated_delta_cpu(&args));
        for (int r = 0; r < 2; r++)
            DT_ASSERT(memcmp(y[r].data, out[0][r].data,
                             (size_t)kt_count(&y[r]) * dt_dtype_size(y[r].dtype)) == 0);
        for (int r = 0; r < 2 && isa > 0; r++) kt_release(&y[r]);
    }
    for (int r = 0; r < 2; r++) kt_release(&out[0][r]);
    for (int i = 0; i < N_IN; i++) kt_release(&in[i]);
}
