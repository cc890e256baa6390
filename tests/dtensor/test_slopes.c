/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients through the public functions, against central differences of the forward functions;
 * the checks themselves are tried on gradients that are wrong. Placements: test_rows.c. */
#include <dtensor/ops.h>
#include <dtensor/ops_backward.h>
#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "dtensor/kernels/kernel.h"
#include "tests/support/dt_test.h"
#include "tests/support/tensors.h"

enum { MAX_N = 512, MAX_IN = 3 };

/* A forward call and the gradients of its operands; one that a function does not give is NULL. */
typedef struct slope_case {
    const char *name;
    int n_in;
    int64_t shape[MAX_IN][4]; /* 0 ends */
    dt_tensor *(*forward)(dt_tape *t, dt_tensor *const *x);
    void (*backward)(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y, dt_tensor **dx);
    bool positive; /* operands lie between 1 and 2 */
} slope_case;

/* --- the functions ---------------------------------------------------------------------------- */

static dt_tensor *rms(dt_tape *t, dt_tensor *const *x)
{
    return dt_rms_norm(t, x[0], x[1], 1e-5f);
}

static void rms_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y, dt_tensor **dx)
{
    (void)y;
    dt_rms_norm_backward(t, dy, x[0], x[1], 1e-5f, &dx[0], &dx[1]);
}

static dt_tensor *rms_once(dt_tape *t, dt_tensor *const *x)
{
    return dt_rms_norm_once(t, x[0], x[1], 1e-5f);
}

static dt_tensor *rms_1p(dt_tape *t, dt_tensor *const *x)
{
    return dt_rms_norm_1p(t, x[0], x[1], 1e-5f);
}

static void rms_1p_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y,
                        dt_tensor **dx)
{
    (void)y;
    dt_rms_norm_1p_backward(t, dy, x[0], x[1], 1e-5f, &dx[0], &dx[1]);
}

static dt_tensor *layer(dt_tape *t, dt_tensor *const *x)
{
    return dt_layer_norm(t, x[0], x[1], x[2], 1e-5f);
}

static void layer_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y, dt_tensor **dx)
{
    (void)y;
    dt_layer_norm_backward(t, dy, x[0], x[1], 1e-5f,
                           &(dt_layer_norm_grads){ &dx[0], &dx[1], &dx[2] });
}

/* Half of layer norm's gradients: what is not asked for is not given. */
static void layer_back_w(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y,
                         dt_tensor **dx)
{
    (void)y;
    dt_layer_norm_backward(t, dy, x[0], x[1], 1e-5f, &(dt_layer_norm_grads){ .dw = &dx[1] });
}

static dt_tensor *silu_gate(dt_tape *t, dt_tensor *const *x)
{
    return dt_silu_mul(t, x[0], x[1]);
}

static void silu_gate_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y,
                           dt_tensor **dx)
{
    (void)y;
    dt_silu_mul_backward(t, dy, x[0], x[1], &dx[0], &dx[1]);
}

static dt_tensor *gelu_gate(dt_tape *t, dt_tensor *const *x)
{
    return dt_gelu_tanh_mul(t, x[0], x[1]);
}

static void gelu_gate_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y,
                           dt_tensor **dx)
{
    (void)y;
    dt_gelu_tanh_mul_backward(t, dy, x[0], x[1], &dx[0], &dx[1]);
}

static dt_tensor *cap(dt_tape *t, dt_tensor *const *x)
{
    return dt_soft_cap(t, x[0], 0.75);
}

static void cap_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y, dt_tensor **dx)
{
    (void)x;
    dx[0] = dt_soft_cap_backward(t, dy, y, 0.75);
}

static dt_tensor *soft(dt_tape *t, dt_tensor *const *x)
{
    return dt_softmax(t, x[0], 1);
}

static void soft_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y, dt_tensor **dx)
{
    (void)x;
    dx[0] = dt_softmax_backward(t, dy, y, 1);
}

static dt_tensor *log_soft(dt_tape *t, dt_tensor *const *x)
{
    return dt_log_softmax(t, x[0], -1);
}

static void log_soft_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y,
                          dt_tensor **dx)
{
    (void)x;
    dx[0] = dt_log_softmax_backward(t, dy, y, -1);
}

#define CURVE(name)                                                                       \
    static dt_tensor *name(dt_tape *t, dt_tensor *const *x)                               \
    {                                                                                     \
        return dt_apply(t, dt_op_find(#name), NULL, 1, x);                                \
    }                                                                                     \
    static void name##_back(dt_tape *t, dt_tensor *dy, dt_tensor *const *x, dt_tensor *y, \
                            dt_tensor **dx)                                               \
    {                                                                                     \
        (void)y;                                                                          \
        dx[0] = dt_curve_backward(t, dt_op_find(#name), dy, x[0]);                        \
    }
CURVE(silu)
CURVE(gelu)
CURVE(gelu_tanh)
CURVE(rsqrt)
#undef CURVE

static const slope_case cases[] = {
    { "rms_norm", 2, { { 2, 3, 7 }, { 7 } }, rms, rms_back, false },
    { "rms_norm_once", 2, { { 2, 3, 7 }, { 7 } }, rms_once, rms_back, false },
    { "rms_norm_1p", 2, { { 2, 3, 7 }, { 7 } }, rms_1p, rms_1p_back, false },
    { "layer_norm", 3, { { 2, 3, 7 }, { 7 }, { 7 } }, layer, layer_back, false },
    { "layer_norm's w", 3, { { 2, 3, 7 }, { 7 }, { 7 } }, layer, layer_back_w, false },
    { "silu", 1, { { 3, 7 } }, silu, silu_back, false },
    { "gelu", 1, { { 3, 7 } }, gelu, gelu_back, false },
    { "gelu_tanh", 1, { { 3, 7 } }, gelu_tanh, gelu_tanh_back, false },
    { "rsqrt", 1, { { 3, 7 } }, rsqrt, rsqrt_back, true },
    { "silu_mul", 2, { { 3, 7 }, { 3, 7 } }, silu_gate, silu_gate_back, false },
    { "gelu_tanh_mul", 2, { { 3, 7 }, { 3, 7 } }, gelu_gate, gelu_gate_back, false },
    { "soft_cap", 1, { { 3, 7 } }, cap, cap_back, false },
    { "softmax", 1, { { 2, 5, 3 } }, soft, soft_back, false },
    { "log_softmax", 1, { { 2, 3, 5 } }, log_soft, log_soft_back, false },
};

/* --- central differences ---------------------------------------------------------------------- */

static int n_axes_of(const int64_t *shape)
{
    int n = 0;

    while (n < 4 && shape[n] > 0) n++;
    return n;
}

static int64_t count_of(const int64_t *shape)
{
    int64_t n = 1;

    for (int a = 0; a < n_axes_of(shape); a++) n *= shape[a];
    return n;
}

typedef struct operands {
    float x[MAX_IN][MAX_N];
    float dy[MAX_N]; /* with which results are multiplied */
} operands;

static dt_status on_tape(dt_tape *t, dt_mesh *mesh, const int64_t *shape, const float *values,
                         dt_tensor **out)
{
    const dt_placement whole[DT_MAX_DIMS] = { DT_REPLICATE };
    dt_tensor *x = NULL;

    DT_TRY(dt_distribute(mesh, whole, DT_F32, n_axes_of(shape), shape,
                         (dt_source){ values, DT_EQUAL_COPIES }, &x));
    *out = dt_tape_own(t, x);
    return DT_OK;
}

/* The sum of dy times the result; *y: the result */
static dt_status value_of(dt_tape *t, dt_mesh *mesh, const slope_case *c, const operands *o,
                          dt_tensor **x, dt_tensor **y, double *out)
{
    const dt_local *local;

    for (int i = 0; i < c->n_in; i++) DT_TRY(on_tape(t, mesh, c->shape[i], o->x[i], &x[i]));
    *y = c->forward(t, x);
    DT_TRY(dt_tape_status(t));
    local = dt_tensor_local(*y);
    *out = 0.0;
    for (int64_t k = 0; k < dti_local_count(local); k++)
        *out += (double)o->dy[k] * (double)((const float *)local->data)[k];
    return DT_OK;
}

/* How far a gradient is from the differences, in units of the largest of them. */
static dt_status distance(dt_tape *t, dt_mesh *mesh, const slope_case *c, operands *o, int i,
                          const float *got, double *out)
{
    const float h = 1.0f / 128;
    double most = 0.0, worst = 0.0;
    dt_tensor *x[MAX_IN], *y;

    for (int64_t k = 0; k < count_of(c->shape[i]); k++) {
        const float before = o->x[i][k];
        double above, below, want;
        dt_tape_reset(t);
        o->x[i][k] = before + h;
        DT_TRY(value_of(t, mesh, c, o, x, &y, &above));
        o->x[i][k] = before - h;
        DT_TRY(value_of(t, mesh, c, o, x, &y, &below));
        o->x[i][k] = before;
        want = (above - below) / (2.0 * (double)h);
        most = fmax(most, fabs(want));
        worst = fmax(worst, fabs(want - (double)got[k]));
    }
    *out = worst / most;
    return DT_OK;
}

static dt_status check_case(dt_mesh *mesh, const void *arg)
{
    const double close = 2e-3;
    const slope_case *c = arg;
    float got[MAX_IN][MAX_N];
    bool given[MAX_IN];
    dt_tensor *x[MAX_IN], *dx[MAX_IN] = { NULL }, *dy, *y;
    operands o;
    double value, far;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    for (int i = 0; i < c->n_in; i++) {
        dt_test_random(o.x[i], MAX_N, (uint32_t)(i + 1));
        for (int k = 0; k < MAX_N && c->positive; k++) o.x[i][k] = 1.5f + 0.5f * o.x[i][k];
    }
    dt_test_random(o.dy, MAX_N, 9);
    DT_TRY(value_of(t, mesh, c, &o, x, &y, &value));
    DT_TRY(on_tape(t, mesh, c->shape[0], o.dy, &dy));
    c->backward(t, dy, x, y, dx);
    DT_TRY(dt_tape_status(t));
    for (int i = 0; i < c->n_in; i++) {
        given[i] = dx[i] != NULL;
        if (!given[i]) continue;
        DT_EXPECT(dt_tensor_dtype(dx[i]) == DT_F32 &&
                      dti_local_count(dt_tensor_local(dx[i])) == count_of(c->shape[i]),
                  "%s: gradient %d has another shape", c->name, i);
        memcpy(got[i], dt_tensor_local(dx[i])->data, (size_t)count_of(c->shape[i]) * sizeof(float));
    }
    for (int i = 0; i < c->n_in; i++) {
        if (!given[i]) continue;
        DT_TRY(distance(t, mesh, c, &o, i, got[i], &far));
        DT_EXPECT(far < close, "%s: gradient %d is off by %g of the largest", c->name, i, far);
        for (int64_t k = 0; k < count_of(c->shape[i]); k++) got[i][k] *= 2.0f; /* must be seen */
        DT_TRY(distance(t, mesh, c, &o, i, got[i], &far));
        DT_EXPECT(far > 100.0 * close, "%s: twice gradient %d passes", c->name, i);
    }
    return DT_OK;
}

DT_TEST(slopes, gradients_are_central_differences_and_twice_them_are_not)
{
    for (size_t c = 0; c < DT_COUNT(cases); c++) dt_test_on_ranks("tp=1", check_case, &cases[c]);
}

/* --- over ranks ------------------------------------------------------------------------------- */

/* dw of a norm whose tokens are cut is terms of a sum: the sum is the whole one, a term is not. */
static dt_status dropped_reduction(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 5, 7, 0, 0 }, columns[] = { 7, 0, 0, 0 };
    const dt_placement cut[] = { DT_SHARD(0) };
    float values[3][MAX_N];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *full = NULL;
    dt_tensor *x, *dy, *w, *want = NULL, *got = NULL, *cut_x, *cut_dy;
    double far = 0.0, term = 0.0;

    (void)arg;
    for (uint32_t i = 0; i < 3; i++) dt_test_random(values[i], MAX_N, i + 1);
    DT_TRY(on_tape(t, mesh, shape, values[0], &x));
    DT_TRY(on_tape(t, mesh, shape, values[1], &dy));
    DT_TRY(on_tape(t, mesh, columns, values[2], &w));
    dt_rms_norm_backward(t, dy, x, w, 1e-5f, NULL, &want);
    cut_x = dt_move(t, x, cut);
    cut_dy = dt_move(t, dy, cut);
    dt_rms_norm_backward(t, cut_dy, cut_x, w, 1e-5f, NULL, &got);
    DT_TRY(dt_tape_status(t));
    DT_EXPECT(dt_layout_placement(dt_tensor_layout(got), 0).kind == DT_PLACE_PARTIAL,
              "dw is no term of a sum");
    DT_TRY(dt_full_tensor(got, &full));
    for (int k = 0; k < 7; k++) {
        const float a = ((const float *)dt_tensor_local(want)->data)[k];
        far = fmax(far, (double)fabsf(((const float *)dt_tensor_local(full)->data)[k] - a));
        term = fmax(term, (double)fabsf(((const float *)dt_tensor_local(got)->data)[k] - a));
    }
    DT_EXPECT(far < 1e-5, "the sum is off by %g", far);
    DT_EXPECT(term > 1e-2, "a term that was not summed is off by %g only", term);
    return DT_OK;
}

DT_TEST(slopes, terms_of_a_weights_gradient_have_to_be_summed)
{
    dt_test_on_ranks("tp=2", dropped_reduction, NULL);
    dt_test_on_ranks("tp=4", dropped_reduction, NULL);
}

/* Over a cut axis one sum for each line travels, and the gradient is that of whole lines. */
static dt_status cut_lines(dt_mesh *mesh, const void *arg)
{
    const bool logarithm = *(const bool *)arg;
    const int64_t shape[] = { 3, 6, 0, 0 };
    const dt_placement cut[] = { DT_SHARD(1) };
    float values[2][MAX_N];
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *full = NULL;
    dt_tensor *x, *dy, *y, *want, *got;
    dt_comm_counter before, after;

    for (uint32_t i = 0; i < 2; i++) dt_test_random(values[i], MAX_N, i + 1);
    DT_TRY(on_tape(t, mesh, shape, values[0], &x));
    DT_TRY(on_tape(t, mesh, shape, values[1], &dy));
    y = logarithm ? dt_log_softmax(t, x, 1) : dt_softmax(t, x, 1);
    want = logarithm ? dt_log_softmax_backward(t, dy, y, 1) : dt_softmax_backward(t, dy, y, 1);
    y = dt_move(t, y, cut);
    dy = dt_move(t, dy, cut);
    before = dt_tape_comm(t, DT_COMM_ALL_REDUCE);
    got = logarithm ? dt_log_softmax_backward(t, dy, y, 1) : dt_softmax_backward(t, dy, y, 1);
    DT_TRY(dt_tape_status(t));
    after = dt_tape_comm(t, DT_COMM_ALL_REDUCE);
    DT_EXPECT(after.calls - before.calls == (dt_mesh_n_ranks(mesh) > 1), "%lld reductions",
              (long long)(after.calls - before.calls));
    DT_TRY(dt_full_tensor(got, &full));
    for (int k = 0; k < 18; k++) {
        const float a = ((const float *)dt_tensor_local(want)->data)[k];
        const float b = ((const float *)dt_tensor_local(full)->data)[k];
        DT_EXPECT(fabsf(a - b) <= 1e-6f, "element %d is %g, not %g", k, (double)b, (double)a);
    }
    return DT_OK;
}

DT_TEST(slopes, softmax_over_a_cut_axis_reduces_one_sum)
{
    static const char *const meshes[] = { "tp=1", "tp=2", "tp=3", "tp=4" };
    static const bool forms[] = { false, true };

    for (size_t m = 0; m < DT_COUNT(meshes); m++)
        for (size_t f = 0; f < DT_COUNT(forms); f++)
            dt_test_on_ranks(meshes[m], cut_lines, &forms[f]);
}

static dt_status misuse(dt_mesh *mesh, const void *arg)
{
    const int64_t shape[] = { 3, 6, 0, 0 };
    float values[MAX_N] = { 0.0f };
    dt_tensor *x;
    DT_HELD(tape) *t = dt_test_tape(mesh);

    (void)arg;
    DT_TRY(on_tape(t, mesh, shape, values, &x));
    (void)dt_curve_backward(t, dt_op_find("add"), x, x);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "add is no function of one element");
    dt_tape_reset(t);
    DT_TRY(on_tape(t, mesh, shape, values, &x));
    (void)dt_soft_cap_backward(t, x, x, 0.0);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "a cap of 0");
    dt_tape_reset(t);
    DT_TRY(on_tape(t, mesh, shape, values, &x));
    (void)dt_softmax_backward(t, x, x, 2);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "axis 2 of 2");
    dt_tape_reset(t);
    DT_TRY(on_tape(t, mesh, shape, values, &x));
    dt_layer_norm_backward(t, x, x, x, 1e-5f, NULL);
    DT_EXPECT(dt_tape_status(t) == DT_ERR_ARG, "no results");
    return DT_OK;
}

DT_TEST(slopes, bad_calls_latch_errors)
{
    dt_test_on_ranks("tp=1", misuse, NULL);
}
