/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of a mixture of experts against float64: experts with many tokens, one and none, those
 * of this rank alone, both forms of the row; gradients of routing. */
#include "tests/dtensor/experts_back.h"

static void run_back(dt_dtype t, const back_case *x, int which, int n_out, dt_dtype out)
{
    const dti_experts_backward_attr attr = { x->all, n_out == 2 ? 3 : 15 };
    kt_case c = make_back(t, x, which, n_out, out, &attr);

    kt_run(&c);
}

DT_TEST(kernels_experts_backward, gradients_match_float64)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(back_cases); i++) {
            for (int r = 0; r < N_RESULTS; r++)
                run_back(kt_floats[t], &back_cases[i], r, N_RESULTS, DT_F32);
            for (int r = 0; r < DGATE_UP; r++)
                run_back(kt_floats[t], &back_cases[i], r, 2, kt_floats[t]);
        }
}

/* --- routing ---------------------------------------------------------------------------------- */

static double score_of(double x, bool sigmoid)
{
    return sigmoid ? 1 / (1 + exp(-x)) : exp(x);
}

static void run_weights(dt_dtype t, bool normalise, bool sigmoid)
{
    enum { ROWS = 6, E = 9, K = 3 };
    const int64_t shape[] = { ROWS, E }, k_shape[] = { ROWS, K };
    const dti_route_attr attr = { .normalise = normalise,
                                  .scores = sigmoid ? DT_ROUTE_SIGMOID : DT_ROUTE_SOFTMAX,
                                  .scale = sigmoid ? 2.5f : 0.0f };
    kt_case c = { .name = "route_weights_backward",
                  .kernel = dti_route_weights_backward_cpu,
                  .n_in = 3,
                  .attr = &attr };
    int32_t *ids;

    c.in[0] = kt_filled(t, 2, k_shape, KT_UNIFORM, 6);
    c.in[1] = kt_filled(t, 2, shape, KT_UNIFORM, 5);
    c.in[2] = kt_local(DT_I32, 2, k_shape);
    c.out = (dt_local){ .dtype = t, .n_axes = 2, .shape = { ROWS, E } };
    kt_expect(&c);
    ids = c.in[2].data;
    for (int i = 0; i < ROWS * K; i++) ids[i] = i * 5 % E;
    for (int r = 0; r < ROWS; r++) {
        double sum = 0, along = 0;
        for (int e = 0; e < E; e++) {
            bool chosen = false;
            for (int i = r * K; i < (r + 1) * K; i++) chosen = chosen || ids[i] == e;
            if (chosen || !normalise) sum += score_of(kt_get(&c.in[1], r * E + e), sigmoid);
        }
        if (sigmoid && !normalise) sum = 1;
        for (int i = r * K; i < (r + 1) * K && (normalise || !sigmoid); i++)
            along +=
                kt_get(&c.in[0], i) * score_of(kt_get(&c.in[1], r * E + ids[i]), sigmoid) / sum;
        for (int e = 0; e < E; e++) {
            const double s = score_of(kt_get(&c.in[1], r * E + e), sigmoid);
            const double p = (sigmoid ? 2.5 * s * (1 - s) : s) / sum;
            double d = 0;
            bool chosen = false;
            for (int i = r * K; i < (r + 1) * K; i++)
                if (ids[i] == e) {
                    d = kt_get(&c.in[0], i);
                    chosen = true;
                }
            c.want[r * E + e] = chosen || (!normalise && !sigmoid) ? p * (d - along) : 0.0;
            c.slack[r * E + e] = 0x1p-20;
        }
    }
    kt_run(&c);
}

DT_TEST(kernels_experts_backward, of_routing_match_float64)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (int way = 0; way < 4; way++) run_weights(kt_floats[t], way & 1, way >> 1);
}
