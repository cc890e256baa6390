/* SPDX-License-Identifier: Apache-2.0
 *
 * An operator of one's own with its gradient: snake, y = x + sin^2(a x) / a, with an `a` for each
 * column. Its backward is a row too, called on the same tape. Letters place both gradients: where
 * rows of x are cut over ranks, that of `a` sums over rows, so each rank has terms of it, and
 * dt_gradients_settle() adds them. dt_op_check_gradient() compares with differences, on one rank
 * and on two; a row whose backward forgets a factor has to be far off. */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 7, WIDTH = 5 };

/* x [rows, d], a [d] -> y [rows, d] */
static dt_status snake_kernel(const dt_kargs *args)
{
    const int64_t rows = args->in[0].shape[0], d = args->in[0].shape[1];
    const float *x = args->in[0].data, *a = args->in[1].data;
    float *y = args->out[0].data;

    for (int64_t k = 0; k < rows * d; k++) {
        const float s = sinf(a[k % d] * x[k]);
        y[k] = x[k] + s * s / a[k % d];
    }
    return DT_OK;
}

/* dy, x [rows, d], a [d] -> dx [rows, d], da [d]:
 * dx = dy (1 + sin 2ax), da = sum over rows of dy (x sin 2ax - sin^2(ax) / a) / a */
static dt_status snake_backward_kernel(const dt_kargs *args)
{
    const int64_t rows = args->in[1].shape[0], d = args->in[1].shape[1];
    const float *dy = args->in[0].data, *x = args->in[1].data, *a = args->in[2].data;
    float *dx = args->out[0].data, *da = args->out[1].data;

    for (int64_t i = 0; i < d; i++) {
        double sum = 0;
        for (int64_t k = i; k < rows * d; k += d) {
            const float s = sinf(a[i] * x[k]), s2 = sinf(2 * a[i] * x[k]);
            dx[k] = dy[k] * (1 + s2);
            sum += (double)(dy[k] * (x[k] * s2 - s * s / a[i]) / a[i]);
        }
        da[i] = (float)sum;
    }
    return DT_OK;
}

static const dt_op snake_backward = {
    .name = "snake_backward",
    .axes = "rd, rd, d -> rd, d", /* r vanishes from da: where it is cut, da is terms of a sum */
    .types = "fff>ff",
    .cpu = snake_backward_kernel,
    .cost = "12 rd",
};

static void snake_gradients(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx)
{
    dt_tensor *in[] = { dy[0], dt_node_in(node, 0), dt_node_in(node, 1) };

    dt_apply_n(t, &snake_backward, NULL, 3, in, 2, dx);
}

static const dt_op snake = {
    .name = "snake",
    .axes = "rd, d -> rd",
    .types = "ff>f",
    .cpu = snake_kernel,
    .cost = "5 rd",
    .backward = snake_gradients,
    .keeps = DT_OP_KEEPS_IN(0) | DT_OP_KEEPS_IN(1),
};

/* The same row with a mistake, which the check has to see: the gradient of x lacks its sine. */
static void wrong_gradients(dt_tape *t, const dt_node *node, dt_tensor *const *dy, dt_tensor **dx)
{
    snake_gradients(t, node, dy, dx);
    dx[0] = dy[0];
}

static dt_status check(dt_mesh *mesh, dt_tensor *const *in)
{
    dt_op wrong = snake;
    dt_gradient_check right_is, wrong_is;

    wrong.backward = wrong_gradients;
    DT_TRY(dt_op_check_gradient(mesh, &snake, NULL, 2, in, 0, &right_is));
    DT_CHECK(right_is.worst < 2e-3, DT_ERR_INTERNAL, "operand %d: %g, not %g", right_is.operand,
             right_is.got, right_is.expected);
    DT_TRY(dt_op_check_gradient(mesh, &wrong, NULL, 2, in, 0, &wrong_is));
    DT_CHECK(wrong_is.worst > 0.05 && wrong_is.operand == 0, DT_ERR_INTERNAL,
             "a wrong gradient is not seen: %g", wrong_is.worst);
    return DT_OK;
}

/* The gradients of sum y^2 / 2, that is of dy = y, whole on every rank. */
typedef struct gradients {
    float x[ROWS * WIDTH], a[WIDTH];
} gradients;

static dt_status differentiate(dt_mesh *mesh, dt_tensor *const *in, gradients *out)
{
    float *const to[] = { out->x, out->a };
    const size_t bytes[] = { sizeof out->x, sizeof out->a };
    dt_gradients *g = NULL;
    dt_tensor *y, *loss, *full = NULL;
    dt_tape *t = NULL;
    dt_status st;

    DT_TRY_TO(done, st, dt_gradients_create(dt_mesh_runtime(mesh), &g));
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(mesh), &t));
    for (int i = 0; i < 2; i++) DT_TRY_TO(done, st, dt_gradients_watch(g, in[i]));
    dt_tape_record(t, g);
    y = dt_apply(t, &snake, NULL, 2, in);
    loss = dt_mul_scalar(t, dt_sum(t, dt_mul(t, y, y), DT_ALL_AXES), 0.5);
    dt_backward(t, loss, NULL);
    DT_TRY_TO(done, st, dt_tape_status(t));
    DT_TRY_TO(done, st, dt_gradients_settle(g, t));
    for (int i = 0; i < 2 && st == DT_OK; i++) {
        dt_tensor_release(&full);
        DT_TRY_TO(done, st, dt_full_tensor(dt_gradient(g, in[i]), &full));
        DT_TRY_TO(done, st, dt_tensor_read(full, to[i], bytes[i]));
    }
done:
    dt_tensor_release(&full);
    dt_tape_release(&t);
    dt_gradients_release(&g);
    return st;
}

static dt_status run(dt_mesh *mesh, dt_placement place, gradients *out)
{
    const dt_placement whole = DT_REPLICATE;
    const int64_t shape[] = { ROWS, WIDTH };
    dt_tensor *in[2] = { NULL, NULL };
    dt_status st;

    DT_TRY_TO(done, st, dt_randn(mesh, &place, DT_F32, 2, shape, (dt_random){ 7, 0 }, &in[0]));
    DT_TRY_TO(done, st,
              dt_arange(mesh, &whole, DT_F32, 1, shape + 1, (dt_steps){ 0.5, 0.25 }, &in[1]));
    DT_TRY_TO(done, st, check(mesh, in));
    DT_TRY_TO(done, st, differentiate(mesh, in, out));
done:
    for (int i = 0; i < 2; i++) dt_tensor_release(&in[i]);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    gradients cut, whole;
    dt_mesh *mesh = NULL;
    dt_status st;

    (void)arg;
    DT_TRY(dt_mesh_create(rt, "dp=2", &mesh));
    DT_TRY_TO(done, st, run(mesh, DT_SHARD(0), &cut));
    DT_TRY_TO(done, st, run(mesh, DT_REPLICATE, &whole));
    DT_CHECK_TO(done, st, memcmp(cut.x, whole.x, sizeof cut.x) == 0, DT_ERR_INTERNAL,
                "rows that are cut have another gradient");
    for (int i = 0; i < WIDTH; i++)
        DT_CHECK_TO(done, st, fabsf(cut.a[i] - whole.a[i]) <= 1e-5f * fabsf(whole.a[i]),
                    DT_ERR_INTERNAL, "the gradient of a[%d] is %g over 2 ranks, %g on one", i,
                    (double)cut.a[i], (double)whole.a[i]);
    if (dt_runtime_rank(rt) == 0)
        printf("snake: its gradients are those of differences, also with rows cut over 2 ranks\n");
done:
    dt_mesh_release(&mesh);
    return st;
}

int main(void)
{
    dt_run_options options = DT_RUN_OPTIONS_INIT;

    options.n_ranks = 2;
    if (dt_run(&options, rank_main, NULL) == DT_OK) return 0;
    fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
