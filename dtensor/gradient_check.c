/* SPDX-License-Identifier: Apache-2.0
 *
 * Gradients against differences. Along a random direction every element counts, so a few directions
 * see what is wrong anywhere, at the price of four passes each. */
#include <dtensor/factories.h>
#include <dtensor/gradients.h>
#include <dtensor/ops.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "dtensor/host.h"
#include "dtensor/tensor_internal.h"

enum { DIRECTIONS = 3, WEIGHTS = 1000 };

/* What is checked, and the tape that it runs on. */
typedef struct checked {
    dt_mesh *mesh;
    dt_tape *tape;
    dt_differentiable_fn fn;
    const void *arg;
    int n;
    dt_tensor *const *x;
} checked;

/* Random numbers of stream `stream`, lying as `like` where that is no Partial. */
static dt_status noise(const dt_tensor *like, uint64_t stream, bool whole, dt_tensor **out)
{
    dt_placement place[DT_MAX_DIMS] = { { 0 } };

    for (int m = 0; m < like->layout->n_dims && !whole; m++) place[m] = like->layout->place[m];
    DT_TRY(dt_randn(like->mesh, place, DT_F32, like->n_axes, like->shape, (dt_random){ 17, stream },
                    out));
    return DT_OK;
}

/* The sum over all elements of a b, which are whole or lie alike, in f64: on every rank. */
static dt_status dot(dt_tensor *a, dt_tensor *b, double *out)
{
    dt_tensor *whole_a = NULL, *whole_b = NULL;
    dti_host x, y;
    dt_status st = DT_OK;

    *out = 0.0;
    DT_TRY(dt_full_tensor(a, &whole_a));
    DT_TRY_TO(done, st, dt_full_tensor(b, &whole_b));
    DT_TRY_TO(done, st, dti_host_open(whole_a, DTI_HOST_READS, &x));
    DT_TRY_TO(close, st, dti_host_open(whole_b, DTI_HOST_READS, &y));
    for (int64_t i = 0; i < dti_tensor_count(whole_a); i++)
        *out += (double)((const float *)x.local.data)[i] * (double)((const float *)y.local.data)[i];
    st = dti_host_close(&y, st);
close:
    st = dti_host_close(&x, st);
done:
    dt_tensor_release(&whole_a);
    dt_tensor_release(&whole_b);
    return st;
}

/* fn's result on these operands, weighted: what the gradient is of. */
static dt_status weighted(const checked *c, dt_tensor *const *x, double *out)
{
    dt_tensor *y, *weights = NULL;
    dt_status st;

    dt_tape_reset(c->tape);
    y = dt_cast(c->tape, c->fn(c->tape, c->arg, c->n, x), DT_F32);
    DT_TRY(dt_tape_status(c->tape));
    DT_TRY(noise(y, WEIGHTS, true, &weights));
    st = dot(y, weights, out);
    dt_tensor_release(&weights);
    return st;
}

/* The slope along a direction: two differences, of which the second removes what is left of the
 * third derivative from the first. */
static dt_status slope(const checked *c, int i, dt_tensor *direction, double step, double *out)
{
    dt_tensor *x[DT_RECOMPUTE_MAX_IN], *moved = NULL;
    double value[4];
    static const double at[4] = { 1.0, -1.0, 0.5, -0.5 };

    memcpy(x, c->x, (size_t)c->n * sizeof *x);
    for (int k = 0; k < 4; k++) {
        dt_status st;
        dt_tape_reset(c->tape);
        moved = dt_add(c->tape, c->x[i], dt_mul_scalar(c->tape, direction, at[k] * step));
        DT_TRY(dt_tape_status(c->tape));
        x[i] = dt_tensor_retain(moved);
        st = weighted(c, x, &value[k]);
        dt_tensor_release(&x[i]);
        DT_TRY(st);
    }
    *out = (4.0 * (value[2] - value[3]) / step - (value[0] - value[1]) / (2.0 * step)) / 3.0;
    return DT_OK;
}

static dt_status compare_operand(const checked *c, int i, dt_tensor *gradient, double step,
                                 dt_gradient_check *report)
{
    double expected[DIRECTIONS], got[DIRECTIONS], largest = 0.0;

    for (int d = 0; d < DIRECTIONS; d++) {
        dt_tensor *direction;
        dt_status st;
        DT_TRY(noise(c->x[i], (uint64_t)(10 * i + d), false, &direction));
        got[d] = 0.0;
        st = gradient != NULL ? dot(gradient, direction, &got[d]) : DT_OK;
        if (st == DT_OK) st = slope(c, i, direction, step, &expected[d]);
        dt_tensor_release(&direction);
        DT_TRY(st);
        largest = fmax(largest, fabs(expected[d]));
    }
    for (int d = 0; d < DIRECTIONS; d++) {
        const double by = fabs(got[d] - expected[d]);
        const double apart = isfinite(by) ? by / (largest + 1e-30) : INFINITY;
        if (by <= 1e-6 || apart <= report->worst) continue;
        *report = (dt_gradient_check){ apart, i, expected[d], got[d] };
    }
    return DT_OK;
}

/* Gradients of the f32 operands, of the weighted result. */
static dt_status backward(const checked *c, dt_gradients *g)
{
    dt_tensor *y, *weights;
    bool any = false;
    dt_status st;

    for (int i = 0; i < c->n; i++) {
        if (c->x[i]->local.dtype != DT_F32) continue;
        DT_TRY(dt_gradients_watch(g, c->x[i]));
        any = true;
    }
    DT_CHECK(any, DT_ERR_ARG, "no operand is f32");
    dt_tape_reset(c->tape);
    dt_tape_record(c->tape, g);
    y = c->fn(c->tape, c->arg, c->n, c->x);
    DT_TRY(dt_tape_status(c->tape));
    DT_CHECK(y != NULL, DT_ERR_ARG, "the function returned NULL");
    DT_TRY(noise(y, WEIGHTS, true, &weights));
    dt_backward(c->tape, y, &(dt_backward_options){ .seed = weights });
    dt_tensor_release(&weights);
    st = dt_tape_status(c->tape);
    return st == DT_OK ? dt_gradients_settle(g, NULL) : st;
}

/* Handles of its own: x may be of another collection, and stays so. */
static dt_status take_operands(int n, dt_tensor *const *x, dt_tensor **out)
{
    for (int i = 0; i < n; i++) {
        DT_CHECK(x[i] != NULL, DT_ERR_ARG, "operand %d is NULL", i);
        DT_TRY(dti_tensor_view(x[i], x[i]->layout, x[i]->n_axes, x[i]->shape, &out[i]));
    }
    return DT_OK;
}

dt_status dt_check_gradient(dt_mesh *mesh, dt_differentiable_fn fn, const void *arg, int n,
                            dt_tensor *const *x, double step, dt_gradient_check *report)
{
    dt_tensor *own[DT_RECOMPUTE_MAX_IN] = { NULL };
    checked c = { mesh, NULL, fn, arg, n, own };
    dt_gradients *g = NULL;
    dt_status st = DT_OK;

    DT_CHECK(mesh != NULL && fn != NULL && x != NULL && report != NULL, DT_ERR_ARG,
             "mesh, fn, x or report is NULL");
    DT_CHECK(n >= 1 && n <= DT_RECOMPUTE_MAX_IN, DT_ERR_ARG, "%d operands: 1 to %d are possible", n,
             DT_RECOMPUTE_MAX_IN);
    DT_CHECK(step >= 0.0 && step <= FLT_MAX, DT_ERR_ARG,
             "a step of %g: it is a positive number, or 0 for 0.01", step);
    *report = (dt_gradient_check){ 0.0, -1, 0.0, 0.0 };
    DT_TRY_TO(done, st, take_operands(n, x, own));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &c.tape));
    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, backward(&c, g));
    for (int i = 0; i < n; i++)
        if (own[i]->local.dtype == DT_F32)
            DT_TRY_TO(
                done, st,
                compare_operand(&c, i, dt_gradient(g, own[i]), step > 0.0 ? step : 1e-2, report));
done:
    dt_tape_release(&c.tape);
    dt_gradients_release(&g);
    for (int i = 0; i < n; i++) dt_tensor_release(&own[i]);
    return st;
}

/* --- a row ------------------------------------------------------------------------------------ */

typedef struct row_call {
    const dt_op *op;
    const void *attr;
    int result, n_out;
} row_call;

static dt_tensor *apply_row(dt_tape *t, const void *arg, int n, dt_tensor *const *x)
{
    const row_call *call = arg;
    dt_tensor *out[DT_OP_MAX_OUT] = { NULL };

    dt_apply_n(t, call->op, call->attr, n, x, call->n_out, out);
    return out[call->result];
}

dt_status dt_op_check_gradient(dt_mesh *mesh, const dt_op *op, const void *attr, int n,
                               dt_tensor *const *x, double step, dt_gradient_check *report)
{
    row_call call = { op, attr, 0, 0 };
    const char *results;

    DT_CHECK(op != NULL && op->types != NULL && report != NULL, DT_ERR_ARG,
             "op or report is NULL, or the row has no types");
    results = strchr(op->types, '>');
    call.n_out = results != NULL ? (int)strlen(++results) : 0;
    DT_CHECK(call.n_out >= 1 && call.n_out <= DT_OP_MAX_OUT, DT_ERR_ARG, "%s: %d results", op->name,
             call.n_out);
    *report = (dt_gradient_check){ 0.0, -1, 0.0, 0.0 };
    for (call.result = 0; call.result < call.n_out; call.result++) {
        dt_gradient_check one;
        if (strchr("bik", results[call.result]) != NULL) continue; /* integers */
        DT_TRY(dt_check_gradient(mesh, apply_row, &call, n, x, step, &one));
        if (one.worst >= report->worst) *report = one;
    }
    return DT_OK;
}
