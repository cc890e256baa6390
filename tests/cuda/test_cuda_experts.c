/* SPDX-License-Identifier: Apache-2.0
 *
 * Experts on a device beside the CPU's kernel: sorting, both kinds of products, and what ids that
 * are wrong make of the next wait. */
#include "tests/cuda/products.h"

typedef struct experts_case {
    int64_t tokens, k, experts, d, f;
    int64_t first, all; /* this rank's experts begin at first, of all */
} experts_case;

enum { X, IDS, WEIGHTS, GATE_UP, DOWN, GATE_UP_BIAS, DOWN_BIAS };

/* Different ones of a token; which ones depends on the token. */
static void fill_ids(int32_t *ids, const experts_case *x)
{
    for (int64_t i = 0; i < x->tokens * x->k; i++)
        ids[i] = (int32_t)((i / x->k * (i / x->k) + i % x->k) % x->all);
}

static cr_case make_case(dt_dtype t, dt_dtype out, const experts_case *x,
                         const dti_experts_attr *attr)
{
    const int64_t x_shape[] = { x->tokens, x->d }, k_shape[] = { x->tokens, x->k };
    const int64_t gate_up[] = { x->experts, 2 * x->f, x->d }, down[] = { x->experts, x->d, x->f };
    cr_case c = { .row = "experts",
                  .cpu = dti_experts_cpu,
                  .n_in = 5,
                  .attr = attr,
                  .out = { .dtype = out, .n_axes = 2, .shape = { x->tokens, x->d } } };

    c.in[X] = kt_filled(t, 2, x_shape, KT_UNIFORM, 1);
    c.in[IDS] = kt_local(DT_I32, 2, k_shape);
    c.in[WEIGHTS] = kt_filled(t, 2, k_shape, KT_UNIFORM, 2);
    c.in[GATE_UP] = kt_filled(t, 3, gate_up, KT_UNIFORM, 3);
    c.in[DOWN] = kt_filled(t, 3, down, KT_UNIFORM, 4);
    c.in[GATE_UP].offset[0] = c.in[DOWN].offset[0] = x->first;
    fill_ids(c.in[IDS].data, x);
    return c;
}

/* What expert e makes of a token: adds weight |inner_i down_i| over i to each output of size. */
static void add_sizes(double *const in[5], const experts_case *x, int64_t t, int64_t e,
                      double weight, double *size)
{
    const double *gate_up = in[GATE_UP] + e * 2 * x->f * x->d, *row = in[X] + t * x->d;
    double ignored, part, inner[64];

    for (int64_t i = 0; i < x->f; i++) {
        const double gate = cp_dot(row, gate_up + i * x->d, x->d, &ignored);
        inner[i] =
            gate / (1 + exp(-gate)) * cp_dot(row, gate_up + (x->f + i) * x->d, x->d, &ignored);
    }
    for (int64_t n = 0; n < x->d; n++) {
        (void)cp_dot(inner, in[DOWN] + (e * x->d + n) * x->f, x->f, &part);
        size[n] += fabs(weight) * part;
    }
}

/* The largest sum of magnitudes behind an output. */
static double largest_size(const cr_case *c, const experts_case *x)
{
    const int32_t *ids = c->in[IDS].data;
    double *in[5] = { NULL }, largest = 0, size[64];

    for (int i = 0; i < 5; i++)
        if (i != IDS) in[i] = cp_values(&c->in[i]);
    for (int64_t t = 0; t < x->tokens; t++) {
        memset(size, 0, sizeof size);
        for (int64_t s = t * x->k; s < (t + 1) * x->k; s++)
            if (ids[s] >= x->first && ids[s] < x->first + x->experts)
                add_sizes(in, x, t, ids[s] - x->first, in[WEIGHTS][s], size);
        for (int64_t n = 0; n < x->d; n++) largest = size[n] > largest ? size[n] : largest;
    }
    for (int i = 0; i < 5; i++) dti_free(in[i]);
    return largest;
}

static void run_experts(const cr_device *d, dt_dtype t, dt_dtype out, const experts_case *x)
{
    const dti_experts_attr attr = { x->all };
    cr_case c = make_case(t, out, x, &attr);

    /* Sums of another order round gate, up or their product the other way: three times a whole
     * unit of their dtype at most, and once that of the result. */
    c.slack = (8 * kt_unit(t) + 2 * kt_unit(out) + 0x1p-17) * largest_size(&c, x);
    cr_run(&c, d);
}

DT_TEST(cuda_experts, experts_are_those_of_the_cpu)
{
    static const experts_case cases[] = {
        { 7, 2, 5, 12, 9, 0, 5 },
        { 1, 3, 6, 33, 7, 0, 6 },
        { 40, 2, 3, 20, 16, 0, 3 }, /* more than 8 rows of each */
        { 9, 3, 2, 12, 9, 3, 7 },   /* experts 3 and 4 of 7 */
        { 9, 2, 0, 12, 9, 7, 7 },   /* none of them */
        { 0, 2, 3, 12, 9, 0, 3 },
        { 5, 2, 3, 12, 0, 0, 3 },
        { 5, 0, 3, 12, 9, 0, 3 },
        { 150, 2, 3, 24, 17, 0, 3 }, /* more slots than threads, tiles of 64 rows */
        { 70, 1, 1, 16, 8, 0, 1 },
        { 70, 4, 40, 16, 8, 10, 64 },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++) {
            run_experts(&d, kt_floats[t], DT_F32, &cases[i]);
            run_experts(&d, kt_floats[t], kt_floats[t], &cases[i]);
        }
}

/* A router that sends all tokens to one expert: the tiles of the others are not there. */
DT_TEST(cuda_experts, all_tokens_may_go_to_one_expert)
{
    const experts_case x = { 30, 1, 16, 24, 8, 0, 16 };
    const dti_experts_attr attr = { x.all };
    CR_DEVICE d = cr_open();

    for (int32_t e = 0; e < 16; e += 15) {
        cr_case c = make_case(DT_F32, DT_F32, &x, &attr);
        for (int64_t i = 0; i < x.tokens; i++) ((int32_t *)c.in[IDS].data)[i] = e;
        c.slack = 0x1p-17 * largest_size(&c, &x);
        cr_run(&c, &d);
    }
}

/* Multiples of 1/4: their products have exact sums, so that gate and up meet a limit on both sides
 * or on none. */
static void make_coarse(dt_local *x)
{
    for (int64_t i = 0, n = kt_count(x); i < n; i++)
        dti_store_f32(x->data, x->dtype, i, (float)round(4 * kt_get(x, i)) / 4);
}

/* second: of the ranks that share an expert not the first. nan: in a bias of gate and of up. */
static void run_clamped(const cr_device *d, dt_dtype t, const experts_case *x, bool second,
                        bool nan)
{
    const dti_experts_clamped_attr attr = { x->all, 0.75f, 1.702f };
    cr_case c = make_case(t, x->f % 2 == 0 ? DT_F32 : t, x, (const dti_experts_attr *)&attr);
    const int64_t biases[][2] = { { x->experts, 2 * x->f }, { x->experts, x->d } };
    double largest = 1;

    c.row = "experts_clamped";
    c.cpu = dti_experts_clamped_cpu;
    c.n_in = 7;
    for (int i = 0; i < 2; i++)
        c.in[GATE_UP_BIAS + i] = kt_filled(t, 2, biases[i], KT_UNIFORM, 5 + (uint32_t)i);
    for (int i = 0; i < c.n_in; i++)
        if (i != IDS) make_coarse(&c.in[i]);
    for (int64_t i = 0; i < 2 && nan; i++) /* a gate of the first expert, an up of the second */
        dti_store_f32(c.in[GATE_UP_BIAS].data, t, i * (2 * x->f + 1), NAN);
    c.in[DOWN].offset[2] = second ? 5 : 0;
    for (int64_t i = 0; i < x->f; i++) largest += 2;
    c.slack = (double)x->k * (2 * kt_unit(t) + 0x1p-18) * largest;
    c.ulps = 1.0;
    cr_run(&c, d);
}

DT_TEST(cuda_experts, clamped_ones_are_those_of_the_cpu)
{
    static const experts_case cases[] = {
        { 7, 2, 5, 12, 9, 0, 5 }, { 1, 3, 6, 33, 7, 0, 6 }, { 40, 2, 3, 20, 16, 0, 3 },
        { 9, 3, 2, 12, 9, 3, 7 }, { 9, 2, 0, 12, 9, 7, 7 }, { 0, 2, 3, 12, 9, 0, 3 },
        { 5, 2, 3, 12, 0, 0, 3 }, { 5, 0, 3, 12, 9, 0, 3 }, { 150, 2, 3, 24, 17, 0, 3 },
    };
    CR_DEVICE d = cr_open();

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t i = 0; i < DT_COUNT(cases); i++)
            run_clamped(&d, kt_floats[t], &cases[i], i % 3 == 1, false);
    run_clamped(&d, DT_F32, &cases[0], false, true);
}

DT_TEST(cuda_experts, wrong_ids_are_told_when_the_host_waits)
{
    static const struct {
        int32_t ids[4];
        const char *message;
    } rows[] = { { { 0, 1, 2, 3 }, "expert 3" },
                 { { -1, 1, 2, 0 }, "expert -1" },
                 { { 0, 1, 2, 2 }, "expert 2 twice" } };
    const experts_case x = { 2, 2, 3, 4, 1, 0, 3 };
    const dti_experts_attr attr = { x.all };
    cr_case c = make_case(DT_F32, DT_F32, &x, &attr);
    dt_local in[5], out = c.out;
    const dt_kargs args = { .in = in, .out = &out, .attr = &attr, .n_in = 5, .n_out = 1 };
    CR_DEVICE d = cr_open();

    for (size_t i = 0; i < DT_COUNT(rows); i++) {
        memcpy(c.in[IDS].data, rows[i].ids, sizeof rows[i].ids);
        for (int j = 0; j < 5; j++) {
            in[j] = c.in[j];
            in[j].data = cr_up(&d, &c.in[j], 0);
        }
        out.data = cr_up(&d, &c.out, 0);
        DT_ASSERT_CUDA(d.m, dt_test_cuda_row(d.m, "experts")(d.c, &args));
        DT_ASSERT_CUDA_FAILS(d.m, d.m->sync(d.c), rows[i].message);
        DT_ASSERT_CUDA(d.m, d.m->sync(d.c)); /* it is told once */
        for (int j = 0; j < 5; j++) cr_release(&d, &c.in[j], in[j].data, 0);
        cr_release(&d, &c.out, out.data, 0);
    }
    for (int j = 0; j < 5; j++) kt_release(&c.in[j]);
}

DT_TEST(cuda_experts, operands_that_do_not_fit_are_refused)
{
    const experts_case x = { 2, 2, 3, 4, 1, 0, 3 };
    const dti_experts_attr attr = { x.all };
    cr_case c = make_case(DT_F32, DT_F32, &x, &attr);
    const dt_kargs args = { .in = c.in, .out = &c.out, .attr = &attr, .n_in = 5, .n_out = 1 };
    dti_cuda_kernel experts;
    CR_DEVICE d = cr_open();

    experts = dt_test_cuda_row(d.m, "experts");
    c.in[GATE_UP].shape[1] = 3;
    DT_ASSERT_CUDA_FAILS(d.m, experts(d.c, &args), "3 rows of gate and up here, 1 columns of down");
    c.in[GATE_UP].shape[1] = 2;
    c.in[DOWN].dtype = DT_BF16;
    DT_ASSERT_CUDA_FAILS(d.m, experts(d.c, &args), "x is f32 but operand 4 is bf16");
    c.in[DOWN].dtype = DT_F32;
    for (int i = 0; i < 5; i++) kt_release(&c.in[i]);
}
