/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of the general operators, judged in float64. */
#include "tests/dtensor/test_kernels.h"

/* --- functions of one element ----------------------------------------------------------------- */

typedef double (*function)(double x);

static double neg(double x)
{
    return -x;
}

static double rsqrt(double x)
{
    return 1.0 / sqrt(x);
}

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double relu(double x)
{
    return x > 0.0 ? x : 0.0;
}

static double relu2(double x)
{
    return relu(x) * relu(x);
}

static double relu6(double x)
{
    return fmin(relu(x), 6.0);
}

static double leaky_relu(double x)
{
    return x > 0.0 ? x : x * 0.01f;
}

static double hardswish(double x)
{
    return x * fmin(fmax(x + 3.0, 0.0), 6.0) / 6.0;
}

static double softplus(double x)
{
    return x > 20.0 ? x : log1p(exp(x));
}

static double sqrtsoftplus(double x)
{
    return sqrt(softplus(x));
}

static double quick_gelu(double x)
{
    return x * sigmoid(1.702 * x);
}

static double mish(double x)
{
    return x * tanh(log1p(exp(x)));
}

static double laplace(double x)
{
    return 0.5 * (1.0 + erf((x - 0.707107) / (0.282095 * sqrt(2.0))));
}

static double gelu(double x)
{
    return 0.5 * x * (1.0 + erf(x * sqrt(0.5)));
}

static double gelu_10(double x)
{
    return fmax(fmin(gelu(x), 10.0), -10.0);
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1.0 + tanh(sqrt(2.0 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

/* `relative` and `absolute` (times |x| + 1): what the formula loses, in units of f32; `steps`: how
 * many of its steps round to the dtype, and of what size they are beside the result is judged by
 * the activations of Transformers themselves (test_activations.c). */
typedef struct function_row {
    const char *name;
    dt_kernel kernel;
    function f;
    double relative, absolute;
    int steps;
    bool positive; /* defined above zero only */
} function_row;

static const function_row functions[] = {
    { "neg", dti_neg_cpu, neg, 0, 0, 0, false },
    { "exp", dti_exp_cpu, exp, 2, 0, 0, false },
    { "log", dti_log_cpu, log, 2, 0, 0, true },
    { "sqrt", dti_sqrt_cpu, sqrt, 0, 0, 0, true },
    { "rsqrt", dti_rsqrt_cpu, rsqrt, 2, 0, 0, true },
    { "tanh", dti_tanh_cpu, tanh, 4, 0, 0, false },
    { "sigmoid", dti_sigmoid_cpu, sigmoid, 4, 0, 0, false },
    { "relu", dti_relu_cpu, relu, 0, 0, 0, false },
    { "relu2", dti_relu2_cpu, relu2, 1, 0, 0, false },
    { "relu6", dti_relu6_cpu, relu6, 0, 0, 0, false },
    { "leaky_relu", dti_leaky_relu_cpu, leaky_relu, 1, 0, 0, false },
    { "hardswish", dti_hardswish_cpu, hardswish, 4, 0, 0, false },
    { "softplus", dti_softplus_cpu, softplus, 4, 0, 0, false },
    { "sqrtsoftplus", dti_sqrtsoftplus_cpu, sqrtsoftplus, 6, 0, 1, false },
    { "quick_gelu", dti_quick_gelu_cpu, quick_gelu, 6, 1, 3, false },
    { "mish", dti_mish_cpu, mish, 12, 1, 0, false },
    { "laplace", dti_laplace_cpu, laplace, 8, 2, 4, false },
    { "gelu", dti_gelu_cpu, gelu, 4, 2, 0, false },
    { "gelu_10", dti_gelu_10_cpu, gelu_10, 4, 2, 0, false },
    { "gelu_python", dti_gelu_python_cpu, gelu, 4, 2, 4, false },
    { "gelu_tanh", dti_gelu_tanh_cpu, gelu_tanh, 8, 4, 0, false },
    { "gelu_new", dti_gelu_new_cpu, gelu_tanh, 8, 4, 8, false },
    { "gelu_fast", dti_gelu_fast_cpu, gelu_tanh, 8, 4, 8, false },
};

static void run_function(const function_row *row, dt_dtype t, int64_t n, kt_fill fill)
{
    const int64_t shape[] = { n };
    kt_case c = { .name = row->name, .kernel = row->kernel, .n_in = 1 };

    c.in[0] = kt_filled(t, 1, shape, fill, 7);
    c.out = (dt_local){ .dtype = t, .n_axes = 1, .shape = { n } };
    kt_expect(&c);
    for (int64_t i = 0; i < n; i++) {
        double x = kt_get(&c.in[0], i);
        if (row->positive || fill == KT_MIXED) { /* arguments of functions that grow stay small */
            x = row->positive ? fabs(x) + 1e-3 : fmod(x, 80.0);
            dti_store_f32(c.in[0].data, t, i, (float)x);
            x = kt_get(&c.in[0], i);
        }
        c.want[i] = row->f(x);
        c.slack[i] = 0x1p-24 * (row->relative * fabs(c.want[i]) + row->absolute * (fabs(x) + 1.0)) +
                     kt_unit(t) * row->steps * (fabs(x) + 1.0) * 2.0;
        if (t == DT_F16 && fabs(c.want[i]) >= 65520.0)
            c.want[i] = copysign((double)INFINITY, c.want[i]);
    }
    kt_run(&c);
}

DT_TEST(kernels_general, functions_match_float64)
{
    for (size_t f = 0; f < DT_COUNT(functions); f++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            for (size_t s = 0; s < DT_COUNT(kt_sizes); s++)
                run_function(&functions[f], kt_floats[t], kt_sizes[s], KT_UNIFORM);
            run_function(&functions[f], kt_floats[t], 1000, KT_MIXED);
        }
}

/* --- limits ----------------------------------------------------------------------------------- */

typedef struct limit {
    dt_kernel kernel;
    float x, y;
} limit;

static const limit limits[] = {
    { dti_exp_cpu, -INFINITY, 0.0f },
    { dti_exp_cpu, INFINITY, INFINITY },
    { dti_exp_cpu, NAN, NAN },
    { dti_log_cpu, 0.0f, -INFINITY },
    { dti_log_cpu, -1.0f, NAN },
    { dti_log_cpu, INFINITY, INFINITY },
    { dti_log_cpu, NAN, NAN },
    { dti_log_cpu, 1.0f, 0.0f },
    { dti_log_cpu, -INFINITY, NAN },
    { dti_sqrt_cpu, -1.0f, NAN },
    { dti_sqrt_cpu, INFINITY, INFINITY },
    { dti_rsqrt_cpu, 0.0f, INFINITY },
    { dti_rsqrt_cpu, INFINITY, 0.0f },
    { dti_tanh_cpu, INFINITY, 1.0f },
    { dti_tanh_cpu, -INFINITY, -1.0f },
    { dti_sigmoid_cpu, -INFINITY, 0.0f },
    { dti_sigmoid_cpu, INFINITY, 1.0f },
    { dti_relu_cpu, -INFINITY, 0.0f },
    { dti_relu_cpu, NAN, NAN },
    { dti_relu6_cpu, INFINITY, 6.0f },
    { dti_relu6_cpu, NAN, NAN },
    { dti_leaky_relu_cpu, -INFINITY, -INFINITY },
    { dti_gelu_cpu, INFINITY, INFINITY },
    { dti_gelu_cpu, -40.0f, 0.0f },
    { dti_gelu_cpu, NAN, NAN },
    { dti_gelu_10_cpu, INFINITY, 10.0f },
    { dti_mish_cpu, 3e38f, 3e38f },
    { dti_laplace_cpu, -INFINITY, 0.0f },
    { dti_laplace_cpu, INFINITY, 1.0f },
    { dti_neg_cpu, -0.0f, 0.0f },
};

DT_TEST(kernels_general, functions_keep_their_limits)
{
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (size_t i = 0; i < DT_COUNT(limits); i++) {
            const limit *l = &limits[i];
            float x = l->x, y = -7.0f;
            dt_local in = { .data = &x, .dtype = DT_F32, .n_axes = 1, .shape = { 1 } }, out = in;
            dti_cpu *cpu;
            out.data = &y;
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            DT_ASSERT_OK(l->kernel(&(dt_kargs){ &in, &out, NULL, cpu, 1, 1, NULL }));
            if (!(y == l->y || (isnan(y) && isnan(l->y)) || (l->y == 0.0f && fabsf(y) < 1e-37f)))
                dt_test_fail(__FILE__, __LINE__, "limit %zu of %g is %g, not %g", i, (double)x,
                             (double)y, (double)l->y);
            dti_cpu_destroy(&cpu);
        }
}

/* ln of the smallest numbers, which are not normal. */
DT_TEST(kernels_general, logarithms_of_tiny_numbers)
{
    for (int isa = 0; isa <= (int)dti_isa_detect(); isa++)
        for (float x = 1e-44f; x < 1e-30f; x *= 7.3f) {
            float in_value = x, y = 0.0f;
            dt_local in = { .data = &in_value, .dtype = DT_F32, .n_axes = 1, .shape = { 1 } };
            dt_local out = in;
            dti_cpu *cpu;
            out.data = &y;
            DT_ASSERT_OK(dti_cpu_create((dti_isa)isa, NULL, &cpu));
            DT_ASSERT_OK(dti_log_cpu(&(dt_kargs){ &in, &out, NULL, cpu, 1, 1, NULL }));
            DT_ASSERT(fabs((double)y - log((double)x)) < 2e-5);
            dti_cpu_destroy(&cpu);
        }
}

/* --- broadcasting ----------------------------------------------------------------------------- */

enum { MAX_ROWS = 3 };

typedef struct spread_case {
    int n_axes;
    int64_t shape[MAX_ROWS][5]; /* of operands */
    int64_t out[5];
} spread_case;

static const spread_case spreads[] = {
    { 1, { { 7 }, { 1 }, { 7 } }, { 7 } },
    { 2, { { 3, 5 }, { 1, 5 }, { 3, 1 } }, { 3, 5 } },
    { 2, { { 1, 1 }, { 1, 5 }, { 1, 1 } }, { 1, 5 } },
    { 3, { { 4, 1, 3 }, { 1, 5, 1 }, { 4, 5, 3 } }, { 4, 5, 3 } },
    { 3, { { 2, 3, 1500 }, { 2, 3, 1 }, { 1, 1, 1500 } }, { 2, 3, 1500 } },
    { 4, { { 1, 3, 1, 5 }, { 2, 1, 4, 1 }, { 2, 3, 4, 5 } }, { 2, 3, 4, 5 } },
    { 2, { { 0, 5 }, { 1, 5 }, { 0, 1 } }, { 0, 5 } },
    { 5, { { 2, 1, 2, 1, 3 }, { 2, 2, 2, 2, 3 }, { 1, 1, 1, 1, 1 } }, { 2, 2, 2, 2, 3 } },
};

/* Element of operand x for element i of y. */
static int64_t element_of(const dt_local *x, const dt_local *y, int64_t i)
{
    int64_t at = 0, step = 1;

    for (int a = y->n_axes - 1; a >= 0; a--) {
        at += (x->shape[a] == 1 ? 0 : i % y->shape[a]) * step;
        i /= y->shape[a];
        step *= x->shape[a];
    }
    return at;
}

static dt_local masked(int n_axes, const int64_t *shape)
{
    dt_local x = kt_local(DT_U8, n_axes, shape);
    const int64_t n = kt_count(&x);

    for (int64_t i = 0; i < n; i++) ((uint8_t *)x.data)[i] = (uint8_t)(i % 3 == 1 ? 2 * i + 1 : 0);
    return x;
}

static void run_spread(const spread_case *s, char op, dt_dtype t)
{
    const dt_kernel kernel = op == '+'   ? dti_add_cpu
                             : op == '-' ? dti_sub_cpu
                             : op == '*' ? dti_mul_cpu
                             : op == '/' ? dti_div_cpu
                                         : dti_where_cpu;
    const int n_in = op == '?' ? 3 : 2;
    kt_case c = { .name = "a spread row", .kernel = kernel, .n_in = n_in };

    for (int i = 0; i < n_in; i++) {
        const int64_t *shape = s->shape[op == '?' ? (i + 2) % 3 : i]; /* mask last */
        c.in[i] = op == '?' && i == 0 ? masked(s->n_axes, shape)
                                      : kt_filled(t, s->n_axes, shape, KT_UNIFORM, (uint32_t)i + 3);
    }
    c.out = (dt_local){ .dtype = t, .n_axes = s->n_axes };
    memcpy(c.out.shape, s->out, sizeof s->out);
    kt_expect(&c);
    for (int64_t i = 0, n = kt_count(&c.out); i < n; i++) {
        const int64_t first = element_of(&c.in[0], &c.out, i);
        const double y = kt_get(&c.in[1], element_of(&c.in[1], &c.out, i));
        const double x = op == '?' ? 0.0 : kt_get(&c.in[0], first);
        if (op == '?')
            c.want[i] = ((uint8_t *)c.in[0].data)[first] != 0
                            ? y
                            : kt_get(&c.in[2], element_of(&c.in[2], &c.out, i));
        else
            c.want[i] = op == '+' ? x + y : op == '-' ? x - y : op == '*' ? x * y : x / y;
        if (t == DT_F16 && fabs(c.want[i]) >= 65520.0)
            c.want[i] = copysign((double)INFINITY, c.want[i]);
    }
    kt_run(&c);
}

DT_TEST(kernels_general, operands_of_other_extents_are_spread)
{
    static const char ops[] = { '+', '-', '*', '/', '?' };

    for (size_t s = 0; s < DT_COUNT(spreads); s++)
        for (size_t o = 0; o < DT_COUNT(ops); o++)
            for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
                run_spread(&spreads[s], ops[o], kt_floats[t]);
}

static void check_mask(const kt_case *c, const void *got)
{
    const dti_compare_attr *attr = c->attr;

    for (int64_t i = 0, n = kt_count(&c->out); i < n; i++) {
        const double x = kt_get(&c->in[0], element_of(&c->in[0], &c->out, i));
        const double y = kt_get(&c->in[1], element_of(&c->in[1], &c->out, i));
        const bool want = attr->relation == DT_LESS         ? x < y
                          : attr->relation == DT_LESS_EQUAL ? x <= y
                                                            : x == y;
        if (((const uint8_t *)got)[i] != (want ? 1 : 0))
            dt_test_fail(__FILE__, __LINE__, "relation %d of %g and %g", (int)attr->relation, x, y);
    }
}

DT_TEST(kernels_general, comparisons_give_masks)
{
    for (int relation = DT_LESS; relation <= DT_EQUAL; relation++)
        for (size_t s = 0; s < DT_COUNT(spreads); s++)
            for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
                const dti_compare_attr attr = { (dt_relation)relation, 0 };
                kt_case c = { .name = "compare",
                              .kernel = dti_compare_cpu,
                              .n_in = 2,
                              .attr = &attr,
                              .check = check_mask };
                for (int i = 0; i < 2; i++) {
                    c.in[i] = kt_filled(kt_floats[t], spreads[s].n_axes, spreads[s].shape[i],
                                        KT_UNIFORM, (uint32_t)i + 5);
                    for (int64_t k = 0, n = kt_count(&c.in[i]); k < n; k++) /* few values, a NaN */
                        dti_store_f32(c.in[i].data, kt_floats[t], k,
                                      k == 2 ? NAN : (float)(int)(3.0 * kt_get(&c.in[i], k)));
                }
                c.out = (dt_local){ .dtype = DT_U8, .n_axes = spreads[s].n_axes };
                memcpy(c.out.shape, spreads[s].out, sizeof spreads[s].out);
                kt_run(&c);
            }
}
