/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients of experts and of routing on a device beside the CPU's kernels. */
#include "tests/cuda/rows.h"
#include "tests/dtensor/experts_back.h"

/* Both kernels are within the case's bounds of float64. */
static void run_back(const cr_device *d, dt_dtype t, const back_case *x, int which, int n_out,
                     dt_dtype out)
{
    const dti_experts_backward_attr attr = { x->all, n_out == 2 ? 3 : 15 };
    kt_case of = make_back(t, x, which, n_out, out, &attr);
    cr_case c = { .row = "experts_backward",
                  .cpu = dti_experts_backward_cpu,
                  .n_in = of.n_in,
                  .out = of.out,
                  .n_out = n_out,
                  .which = which,
                  .attr = &attr,
                  .ulps = 2.0,
                  .slacks = of.slack };

    memcpy(c.in, of.in, sizeof c.in);
    memcpy(c.others, of.others, sizeof c.others);
    for (int64_t i = 0; i < kt_count(&of.out); i++) of.slack[i] *= 2;
    cr_run(&c, d);
    dti_free(of.want);
    dti_free(of.slack);
}

DT_TEST(cuda_experts_backward, gradients_are_those_of_the_cpu)
{
    static const back_case more[] = {
        { 70, 2, 3, 24, 17, 0, 3 },   /* tiles of 64 rows */
        { 40, 4, 40, 16, 8, 10, 64 }, /* of 8 */
        { 5, 0, 3, 12, 9, 0, 3 },
        { 20, 1, 1, 130, 70, 0, 1 }, /* several tiles of outputs */
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(back_cases) + DT_COUNT(more); i++) {
            const back_case *x = i < DT_COUNT(more) ? &more[i] : &back_cases[i - DT_COUNT(more)];
            for (int r = 0; r < N_RESULTS; r++)
                run_back(&d, kt_floats[t], x, r, N_RESULTS, r < DGATE_UP ? DT_F32 : kt_floats[t]);
            for (int r = 0; r < DGATE_UP; r++) run_back(&d, kt_floats[t], x, r, 2, kt_floats[t]);
        }
}

/* --- clamped ---------------------------------------------------------------------------------- */

enum { GATE_UP_BIAS = N_RESULTS + 2, DOWN_BIAS, N_CLAMPED_RESULTS = N_RESULTS + 2 };

/* Multiples of 1/4: their products have exact sums, so that gate and up meet a limit on both sides
 * or on none. */
static void fill_coarse(dt_local *x, dt_dtype t, int n_axes, const int64_t *shape, uint32_t seed)
{
    *x = kt_filled(t, n_axes, shape, KT_UNIFORM, seed);
    for (int64_t i = 0, n = kt_count(x); i < n; i++)
        dti_store_f32(x->data, t, i, (float)round(4 * kt_get(x, i)) / 4);
}

static void fill_clamped(cr_case *c, dt_dtype t, const back_case *x, bool second)
{
    const int64_t rows[] = { x->tokens, x->d }, k_shape[] = { x->tokens, x->k };
    const int64_t gate_up[] = { x->experts, 2 * x->f, x->d }, down[] = { x->experts, x->d, x->f };

    fill_coarse(&c->in[DY], t, 2, rows, 7);
    fill_coarse(&c->in[X], t, 2, rows, 1);
    c->in[IDS] = kt_local(DT_I32, 2, k_shape);
    fill_coarse(&c->in[WEIGHTS], t, 2, k_shape, 2);
    fill_coarse(&c->in[GATE_UP], t, 3, gate_up, 3);
    fill_coarse(&c->in[DOWN], t, 3, down, 4);
    fill_coarse(&c->in[GATE_UP_BIAS], t, 2, gate_up, 5);
    fill_coarse(&c->in[DOWN_BIAS], t, 2, down, 6);
    c->in[GATE_UP].offset[0] = c->in[DOWN].offset[0] = x->first;
    c->in[DOWN].offset[2] = second ? 5 : 0;
    for (int64_t i = 0; i < x->tokens * x->k; i++)
        ((int32_t *)c->in[IDS].data)[i] = (int32_t)((i / x->k * (i / x->k) + i % x->k) % x->all);
}

/* Result `which` of n_out, of which the first two are `out`. */
static void run_clamped(const cr_device *d, dt_dtype t, const back_case *x, int which, int n_out,
                        dt_dtype out)
{
    const dti_experts_clamped_backward_attr attr = { x->all, n_out == 2 ? 3 : 63, 0.75f, 1.702f };
    const int64_t shapes[][3] = {
        { x->tokens, x->d },        { x->tokens, x->k },      { x->experts, 2 * x->f, x->d },
        { x->experts, x->d, x->f }, { x->experts, 2 * x->f }, { x->experts, x->d }
    };
    const double terms = (double)(which == DX         ? 2 * x->f * x->k
                                  : which == DWEIGHTS ? x->f + x->d
                                                      : x->tokens);
    cr_case c = { .row = "experts_clamped_backward",
                  .cpu = dti_experts_clamped_backward_cpu,
                  .n_in = 8,
                  .n_out = n_out,
                  .which = which,
                  .attr = &attr,
                  .ulps = 2.0 };

    fill_clamped(&c, t, x, x->f % 2 == 1);
    for (int r = 0; r < n_out; r++) {
        c.others[r] =
            kt_local(r < DGATE_UP ? out : DT_F32, r == DGATE_UP || r == DDOWN ? 3 : 2, shapes[r]);
        if (r == which) c.out = c.others[r];
    }
    kt_release(&c.others[which]);
    c.out.data = NULL;
    /* One rounding the other way of a term, each of which is below 2, what reaches it d / 4. */
    c.slack = (1 + terms) * (1 + (double)x->d / 4) * (2 * kt_unit(t) + 0x1p-18);
    cr_run(&c, d);
}

DT_TEST(cuda_experts_backward, of_clamped_ones_are_those_of_the_cpu)
{
    static const back_case cases[] = {
        { 7, 2, 5, 12, 9, 0, 5 },  { 20, 2, 3, 20, 16, 0, 3 }, { 9, 3, 2, 12, 9, 3, 7 },
        { 9, 2, 0, 12, 9, 7, 7 },  { 0, 2, 3, 12, 9, 0, 3 },   { 5, 2, 3, 12, 0, 0, 3 },
        { 3, 1, 3, 300, 4, 0, 3 },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            for (int r = 0; r < N_CLAMPED_RESULTS; r++)
                run_clamped(&d, kt_floats[t], &cases[i], r, N_CLAMPED_RESULTS,
                            r < DGATE_UP ? DT_F32 : kt_floats[t]);
            for (int r = 0; r < DGATE_UP; r++)
                run_clamped(&d, kt_floats[t], &cases[i], r, 2, kt_floats[t]);
        }
}

/* What is not wanted is left alone, and what is wanted does not depend on the rest. */
DT_TEST(cuda_experts_backward, what_is_not_wanted_stays)
{
    const back_case x = back_cases[0];
    CR_DEVICE d = cr_open();

    for (int r = 0; r < N_RESULTS; r++)
        for (int64_t want = 0; want < 16; want++) {
            const dti_experts_backward_attr all = { x.all, 15 }, some = { x.all, want | 2 };
            kt_case of = make_back(DT_F32, &x, r, N_RESULTS, DT_F32, &all);
            cr_case c = { .row = "experts_backward",
                          .n_in = of.n_in,
                          .out = of.out,
                          .n_out = N_RESULTS,
                          .which = r,
                          .attr = &all };
            const size_t bytes = cr_bytes(&of.out);
            unsigned char *whole, *part;

            DT_ASSERT_OK(dti_alloc(bytes, (void **)&whole));
            DT_ASSERT_OK(dti_alloc(bytes, (void **)&part));
            memcpy(c.in, of.in, sizeof c.in);
            memcpy(c.others, of.others, sizeof c.others);
            cr_run_cuda(&c, &d, whole);
            c.attr = &some;
            cr_run_cuda(&c, &d, part);
            if ((some.want >> r & 1) != 0) {
                DT_ASSERT(memcmp(whole, part, bytes) == 0);
            } else {
                for (size_t i = 0; i < bytes; i++) DT_ASSERT_EQ_INT(part[i], 0xa5);
            }
            dti_free(whole);
            dti_free(part);
            for (int i = 0; i < of.n_in; i++) kt_release(&of.in[i]);
            for (int k = 0; k < N_RESULTS; k++)
                if (k != r) kt_release(&of.others[k]);
            dti_free(of.want);
            dti_free(of.slack);
        }
}

DT_TEST(cuda_experts_backward, wrong_ids_are_told_when_the_host_waits)
{
    static const struct {
        int32_t ids[4];
        const char *message;
    } rows[] = { { { 0, 1, 2, 3 }, "expert 3" }, { { 0, 1, 2, 2 }, "expert 2 twice" } };
    const back_case x = { 2, 2, 3, 4, 1, 0, 3 };
    const dti_experts_backward_attr attr = { x.all, 3 };
    kt_case c = make_back(DT_F32, &x, DX, 2, DT_F32, &attr);
    dt_local in[KT_MAX_IN], out[2] = { c.out, c.others[DWEIGHTS] };
    const dt_kargs args = { .in = in, .out = out, .attr = &attr, .n_in = c.n_in, .n_out = 2 };
    CR_DEVICE d = cr_open();

    for (int r = 0; r < 2; r++) out[r].data = cr_up(&d, r == 0 ? &c.out : &c.others[DWEIGHTS], 0);
    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        memcpy(c.in[IDS].data, rows[i].ids, sizeof rows[i].ids);
        for (int j = 0; j < c.n_in; j++) {
            in[j] = c.in[j];
            in[j].data = cr_up(&d, &c.in[j], 0);
        }
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "experts_backward")(d.c, &args));
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), rows[i].message);
        DT_ASSERT_CUDA(d.m, d.m->sync(d.c));
        for (int j = 0; j < c.n_in; j++) cr_release(&d, &c.in[j], in[j].data, 0);
    }
    in[GATE_UP].shape[1] = 3;
    DT_ASSERT_CUDA_FAILS(d.m, dt_test_cuda_row(d.m, "experts_backward")(d.c, &args),
                         "3 rows of gate and up here, 1 columns of down");
    for (int r = 0; r < 2; r++)
        cr_release(&d, r == 0 ? &c.out : &c.others[DWEIGHTS], out[r].data, 0);
    for (int j = 0; j < c.n_in; j++) kt_release(&c.in[j]);
    kt_release(&c.others[DWEIGHTS]);
    dti_free(c.want);
    dti_free(c.slack);
}

/* --- routing ---------------------------------------------------------------------------------- */

DT_TEST(cuda_experts_backward, of_routing_are_within_units_of_the_cpu)
{
    static const int64_t shapes[][3] = {
        { 1, 4, 2 }, { 7, 64, 8 },  { 3, 128, 8 }, { 2, 257, 5 }, { 9, 8, 8 },
        { 0, 8, 2 }, { 2, 33, 33 }, { 4, 5, 0 },   { 6, 5, 3 }
    }; /* the last ones twice */
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int way = 0; way < 4; way++) {
                const int64_t *n = shapes[s], chosen[] = { n[0], n[2] };
                const dti_route_attr attr = { .k = n[2],
                                              .normalise = way & 1,
                                              .scale = way > 1 ? 2.5f : 0.0f,
                                              .scores =
                                                  way > 1 ? DT_ROUTE_SIGMOID : DT_ROUTE_SOFTMAX };
                cr_case c = { .row = "route_weights_backward",
                              .cpu = dti_route_weights_backward_cpu,
                              .n_in = 3,
                              .attr = &attr,
                              .ulps = 1.0,
                              .slack = 0x1p-20, /* differences of what is below 1 */
                              .out = {
                                  .dtype = kt_floats[t], .n_axes = 2, .shape = { n[0], n[1] } } };
                c.in[0] = kt_filled(kt_floats[t], 2, chosen, KT_UNIFORM, 6);
                c.in[1] = kt_filled(kt_floats[t], 2, n, KT_UNIFORM, 5);
                c.in[2] = kt_local(DT_I32, 2, chosen);
                for (int64_t i = 0; i < kt_count(&c.in[2]); i++)
                    ((int32_t *)c.in[2].data)[i] = (int32_t)((7 * i + 1) % n[1]);
                cr_run(&c, &d);
            }
}
