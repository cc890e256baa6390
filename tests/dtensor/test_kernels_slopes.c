/* SPDX-License-Identifier: Apache-2.0
 *
 * Kernels of gradients: norms, functions of one element, softmax; against float64. */
#include "tests/dtensor/test_kernels.h"

/* --- norms ------------------------------------------------------------------------------------ */

typedef enum norm_kind { RMS, RMS_1P, LAYER } norm_kind;

/* One row's share of dx, dw and db; `most` has what their roundings are measured by. */
static void expect_norm_row(const kt_case *c, int64_t r, int64_t n, norm_kind kind, double *all[3])
{
    const dt_local *dy = &c->in[0], *x = &c->in[1], *w = &c->in[2];
    const double eps = (double)((const dti_norm_backward_attr *)c->attr)->eps;
    double mean = 0.0, square = 0.0, by_h = 0.0, by_one = 0.0, scale;

    for (int64_t i = 0; kind == LAYER && i < n; i++) mean += kt_get(x, r * n + i) / (double)n;
    for (int64_t i = 0; i < n; i++) square += pow(kt_get(x, r * n + i) - mean, 2.0) / (double)n;
    scale = 1.0 / sqrt(square + eps);
    for (int64_t i = 0; i < n; i++) {
        const double d = kt_get(dy, r * n + i), h = (kt_get(x, r * n + i) - mean) * scale;
        const double dh = d * (kt_get(w, i) + (kind == RMS_1P ? 1.0 : 0.0));
        by_h += dh * h / (double)n;
        by_one += kind == LAYER ? dh / (double)n : 0.0;
        all[1][i] += d * h;
        all[2][i] += d;
    }
    for (int64_t i = 0; i < n; i++) {
        const double h = (kt_get(x, r * n + i) - mean) * scale;
        const double dh = kt_get(dy, r * n + i) * (kt_get(w, i) + (kind == RMS_1P ? 1.0 : 0.0));
        all[0][r * n + i] = scale * (dh - h * by_h - by_one);
    }
}

static void run_norm(norm_kind kind, dt_dtype t, int64_t rows, int64_t n, int which)
{
    static const char *const names[] = { "rms_norm_backward", "rms_norm_1p_backward",
                                         "layer_norm_backward" };
    static const dt_kernel kernels[] = { dti_rms_norm_backward_cpu, dti_rms_norm_1p_backward_cpu,
                                         dti_layer_norm_backward_cpu };
    const int64_t shape[] = { rows, n };
    const dti_norm_backward_attr attr = { 1e-5f, which == 0 ? 1 : 7 };
    const int n_out = kind == LAYER ? 3 : 2;
    kt_case c = { .name = names[kind],
                  .kernel = kernels[kind],
                  .n_in = 3,
                  .attr = &attr,
                  .n_out = n_out,
                  .which = which };
    double *all[3];

    for (int i = 0; i < 2; i++) c.in[i] = kt_filled(t, 2, shape, KT_UNIFORM, (uint32_t)(31 + i));
    c.in[2] = kt_filled(t, 1, shape + 1, KT_UNIFORM, 33);
    for (int r = 0; r < n_out; r++) {
        c.others[r] = kt_local(r == 0 ? t : DT_F32, r == 0 ? 2 : 1, r == 0 ? shape : shape + 1);
        DT_ASSERT_OK(dti_alloc_array((size_t)(rows * n + n) + 1, sizeof(double), (void **)&all[r]));
    }
    if (n_out == 2) DT_ASSERT_OK(dti_alloc_array((size_t)n + 1, sizeof(double), (void **)&all[2]));
    c.out = c.others[which];
    c.out.data = NULL;
    kt_expect(&c);
    for (int64_t r = 0; r < rows && n > 0; r++) expect_norm_row(&c, r, n, kind, all);
    for (int64_t i = 0; i < kt_count(&c.out); i++) {
        c.want[i] = all[which][i];
        /* sums in f32: over n of a row, in lanes; over rows in parts of a 64th and then 64 parts */
        c.slack[i] = 0x1p-24 *
                     (which == 0 ? 8.0 * ((double)n / 8 + 16)
                                 : 4.0 * (double)rows *
                                       ((double)rows / 64 + 16 > 66 ? 66 : (double)rows / 64 + 16));
    }
    for (int r = 0; r < 3; r++) dti_free(all[r]);
    kt_release(&c.others[which]);
    kt_run(&c);
}

DT_TEST(kernels_slopes, norms_match_float64)
{
    for (norm_kind kind = RMS; kind <= LAYER; kind++)
        for (int which = 0; which < (kind == LAYER ? 3 : 2); which++)
            for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
                for (size_t s = 0; s < DT_COUNT(kt_sizes); s++)
                    for (int64_t rows = 0; rows < 4; rows += 3)
                        run_norm(kind, kt_floats[t], rows, kt_sizes[s], which);
                run_norm(kind, kt_floats[t], 211, 130, which); /* wakes the pool */
            }
}

/* --- functions of one element ----------------------------------------------------------------- */

/* The formulas again, in double: slopes are their central differences, whatever the table says. */
#define EXP(x)  exp(x)
#define LOG(x)  log(x)
#define SQRT(x) sqrt(x)
#define TANH(x) tanh(x)
#define ERF(x)  erf(x)
#define SILU(x) ((x) / (1.0 + exp(-(x))))
#define GELU_TANH(x) \
    (0.5 * (x) * (1.0 + tanh(0.79788456080286536 * ((x) + 0.044715 * (x) * (x) * (x)))))
#define SELECT(c, a, b) ((c) ? (double)(a) : (double)(b))
#define SET(c)          ((double)(c))
#define RN(x)           (x)
#define F(name, formula, slope)             \
    static double value_of_##name(double x) \
    {                                       \
        return (double)(formula);           \
    }
DTI_CURVES(F)
#undef F

typedef struct curve {
    const char *name;
    dt_kernel kernel;
    double (*value)(double x);
    bool positive;
} curve;

static const curve curves[] = {
#define F(row, formula, slope) { #row, dti_##row##_backward_cpu, value_of_##row, false },
    DTI_CURVES(F)
#undef F
};

static double slope_of(const curve *c, double x)
{
    const double h = 1e-5;

    return (c->value(x + h) - c->value(x - h)) / (2.0 * h);
}

static bool needs_positive(const curve *c)
{
    return strcmp(c->name, "log") == 0 || strstr(c->name, "sqrt") == c->name ||
           strcmp(c->name, "rsqrt") == 0;
}

/* Values from -12 to 12, or positive ones, none of them at a kink of any function. */
static void spread_values(const curve *c, dt_local *x)
{
    static const double kinks[] = { -3.0, 0.0, 3.0, 6.0, 10.0 };

    for (int64_t i = 0; i < kt_count(x); i++) {
        double v = (c->value == value_of_exp ? 6.0 : 12.0) * kt_get(x, i); /* f16 ends at 65504 */
        if (needs_positive(c) && strcmp(c->name, "sqrtsoftplus") != 0) v = fabs(v) + 0.125;
        for (size_t k = 0; k < DT_COUNT(kinks); k++)
            if (fabs(v - kinks[k]) < 0.0625) v = kinks[k] + 0.125;
        dti_store_f32(x->data, x->dtype, i, (float)v);
    }
}

static void run_curve(const curve *row, dt_dtype t, int64_t n)
{
    kt_case c = { .name = row->name, .kernel = row->kernel, .n_in = 2 };

    c.in[0] = kt_filled(t, 1, &n, KT_UNIFORM, 71);
    c.in[1] = kt_filled(t, 1, &n, KT_UNIFORM, 72);
    spread_values(row, &c.in[1]);
    c.out = (dt_local){ .dtype = t, .n_axes = 1, .shape = { n } };
    kt_expect(&c);
    for (int64_t i = 0; i < n; i++) {
        const double slope = slope_of(row, kt_get(&c.in[1], i));
        c.want[i] = kt_get(&c.in[0], i) * slope;
        c.slack[i] = 4e-6 * fabs(kt_get(&c.in[0], i)) * (1.0 + fabs(slope));
    }
    kt_run(&c);
}

DT_TEST(kernels_slopes, slopes_are_differences_of_their_formulas)
{
    for (size_t r = 0; r < DT_COUNT(curves); r++)
        for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
            run_curve(&curves[r], kt_floats[t], 0);
            run_curve(&curves[r], kt_floats[t], 257);
            run_curve(&curves[r], kt_floats[t], 20011); /* wakes the pool */
        }
}

static void run_gated(const char *name, dt_kernel kernel, const curve *f, dt_dtype t, int which)
{
    const int64_t n = 777;
    kt_case c = { .name = name, .kernel = kernel, .n_in = 3, .n_out = 2, .which = which };

    for (int i = 0; i < 3; i++) c.in[i] = kt_filled(t, 1, &n, KT_UNIFORM, (uint32_t)(81 + i));
    spread_values(f, &c.in[1]);
    c.out = (dt_local){ .dtype = t, .n_axes = 1, .shape = { n } };
    c.others[1 - which] = kt_local(t, 1, &n);
    kt_expect(&c);
    for (int64_t i = 0; i < n; i++) {
        const double dy = kt_get(&c.in[0], i), g = kt_get(&c.in[1], i), u = kt_get(&c.in[2], i);
        c.want[i] = which == 0 ? dy * u * slope_of(f, g) : dy * f->value(g);
        c.slack[i] = 4e-6 * fabs(dy) * (1.0 + fabs(g));
    }
    kt_run(&c);
}

static const curve *curve_of(const char *name)
{
    size_t i = 0;

    while (strcmp(curves[i].name, name) != 0) i++;
    return &curves[i];
}

DT_TEST(kernels_slopes, gates_match_float64)
{
    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (int which = 0; which < 2; which++) {
            run_gated("silu_mul_backward", dti_silu_mul_backward_cpu, curve_of("silu"),
                      kt_floats[t], which);
            run_gated("gelu_tanh_mul_backward", dti_gelu_tanh_mul_backward_cpu,
                      curve_of("gelu_tanh"), kt_floats[t], which);
        }
}

DT_TEST(kernels_slopes, soft_cap_slopes_from_what_it_gave)
{
    const dti_scalar_attr attr = { 1.5 };
    const int64_t n = 259;

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++) {
        kt_case c = { .name = "soft_cap_backward",
                      .kernel = dti_soft_cap_backward_cpu,
                      .n_in = 2,
                      .attr = &attr };
        for (int i = 0; i < 2; i++)
            c.in[i] = kt_filled(kt_floats[t], 1, &n, KT_UNIFORM, (uint32_t)(91 + i));
        c.out = (dt_local){ .dtype = kt_floats[t], .n_axes = 1, .shape = { n } };
        kt_expect(&c);
        for (int64_t i = 0; i < n; i++) {
            c.want[i] = kt_get(&c.in[0], i) * (1.0 - pow(kt_get(&c.in[1], i) / 1.5, 2.0));
            c.slack[i] = 0x1p-22;
        }
        kt_run(&c);
    }
}

/* --- softmax ---------------------------------------------------------------------------------- */

static void run_softmax(dt_dtype t, bool logarithm, const int64_t shape[3], int axis)
{
    const dti_axis_attr attr = { axis };
    const int64_t k = shape[axis], inner = axis == 0   ? shape[1] * shape[2]
                                           : axis == 1 ? shape[2]
                                                       : 1;
    kt_case c = { .name = logarithm ? "log_softmax_backward" : "softmax_backward",
                  .kernel = logarithm ? dti_log_softmax_backward_cpu : dti_softmax_backward_cpu,
                  .n_in = 2,
                  .attr = &attr };

    for (int i = 0; i < 2; i++) c.in[i] = kt_filled(t, 3, shape, KT_UNIFORM, (uint32_t)(95 + i));
    c.out = (dt_local){ .dtype = t, .n_axes = 3, .shape = { shape[0], shape[1], shape[2] } };
    kt_expect(&c);
    for (int64_t i = 0; i < kt_count(&c.out); i++) {
        const int64_t first = i / (k * inner) * k * inner + i % inner;
        const double dy = kt_get(&c.in[0], i), y = kt_get(&c.in[1], i);
        double sum = 0.0;
        for (int64_t j = first; j < first + k * inner; j += inner)
            sum += kt_get(&c.in[0], j) * (logarithm ? 1.0 : kt_get(&c.in[1], j));
        c.want[i] = logarithm ? dy - exp(y) * sum : y * (dy - sum);
        c.slack[i] = 0x1p-22 * (1.0 + fabs(dy) + 3.0 * fabs(sum));
    }
    kt_run(&c);
}

DT_TEST(kernels_slopes, softmax_matches_float64)
{
    static const int64_t shapes[][3] = { { 2, 3, 5 }, { 1, 700, 3 }, { 3, 2, 1030 }, { 0, 2, 2 } };

    for (size_t t = 0; t < DT_COUNT(kt_floats); t++)
        for (size_t s = 0; s < DT_COUNT(shapes); s++)
            for (int axis = 0; axis < 3; axis++)
                for (int logarithm = 0; logarithm < 2; logarithm++)
                    run_softmax(kt_floats[t], logarithm == 1, shapes[s], axis);
}
