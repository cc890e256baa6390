/* SPDX-License-Identifier: Apache-2.0
 *
 * Training by hand: two layers learn a function by plain gradient descent, w -= rate dw, on one
 * rank and on two. "up" is cut by outputs and "down" by inputs, so one sum travels forward, none
 * backward, and each rank steps what it holds of a weight. The loss has to fall to a twentieth, and
 * gradients and losses on two ranks are those on one.
 * D inputs, F inner width (two ranks do not divide it), B rows. */
#include <dtensor.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { D = 6, F = 15, B = 32, STEPS = 200 };

static const double rate = 0.2;

#define LINEAR(name_, out, in, style_)                                            \
    {                                                                             \
        .name = (name_), .kind = &dt_linear_kind, .style = (style_),              \
        .axis = { { (out), DT_UNIT_ROW }, { (in), DT_UNIT_ROW } }, .with = "bias" \
    }

static const dt_layer_spec network[] = { LINEAR("up", F, D, "colwise"),
                                         LINEAR("down", 1, F, "rowwise") };
enum { UP, DOWN, N_LAYERS, N_VALUES = F * D + F + F + 1 };

/* Begins as PyTorch's linear layers do. */
static const dt_init_rule rules[] = { { "**", DT_INIT_FAN_IN, 1.0, 0.0 } };

/* mean (network(x) - y)^2 */
static dt_tensor *loss_of(dt_tape *t, dt_layers *m, dt_tensor *x, dt_tensor *y)
{
    dt_tensor *h = dt_tanh(t, dt_layer_forward(t, dt_layers_at(m, UP), x));
    dt_tensor *off = dt_sub(t, dt_layer_forward(t, dt_layers_at(m, DOWN), h), y);

    return dt_mul_scalar(t, dt_sum(t, dt_mul(t, off, off), DT_ALL_AXES), 1.0 / B);
}

/* w -= rate dw of what this rank holds: a gradient lies as its parameter does. */
static dt_status step(dt_tensor *w, dt_tensor *dw)
{
    float values[N_VALUES], slopes[N_VALUES];
    const dt_local *mine = dt_tensor_local(w);
    size_t n = 1;

    for (int a = 0; a < mine->n_axes; a++) n *= (size_t)mine->shape[a];
    DT_TRY(dt_tensor_read(w, values, n * sizeof *values));
    DT_TRY(dt_tensor_read(dw, slopes, n * sizeof *slopes));
    for (size_t i = 0; i < n; i++) values[i] -= (float)rate * slopes[i];
    return dt_tensor_write(w, values, n * sizeof *values);
}

/* What a run tells: the losses; of the first step the gradients, parameter by parameter. */
typedef struct training {
    float loss[STEPS], first[N_VALUES];
    int n_sums; /* all-reduces of a step, forward and backward */
} training;

static dt_status gather(const dt_gradients *g, float *to)
{
    dt_tensor *w;

    for (int i = 0; (w = dt_gradients_at(g, i)) != NULL; i++) {
        dt_tensor *full;
        size_t n = 1;
        dt_status st;
        DT_TRY(dt_full_tensor(dt_gradient(g, w), &full));
        for (int a = 0; a < dt_tensor_n_axes(full); a++) n *= (size_t)dt_tensor_extent(full, a);
        st = dt_tensor_read(full, to, n * sizeof *to);
        dt_tensor_release(&full);
        DT_TRY(st);
        to += n;
    }
    return DT_OK;
}

static dt_status train(dt_layers *m, dt_tensor *x, dt_tensor *y, training *out)
{
    dt_runtime *rt = dt_mesh_runtime(dt_layers_mesh(m));
    dt_gradients *g = NULL;
    dt_tape *t = NULL;
    dt_status st;

    DT_TRY_TO(done, st, dt_tape_create(rt, &t));
    DT_TRY_TO(done, st, dt_gradients_create(rt, &g));
    DT_TRY_TO(done, st, dt_layers_watch(m, g));
    for (int k = 0; k < STEPS; k++) {
        dt_tensor *loss, *w;
        dt_tape_record(t, g);
        loss = loss_of(t, m, x, y);
        dt_backward(t, loss, NULL);
        DT_TRY_TO(done, st, dt_tape_status(t));
        DT_TRY_TO(done, st, dt_tensor_read(loss, &out->loss[k], sizeof *out->loss));
        DT_TRY_TO(done, st, dt_gradients_settle(g, t));
        out->n_sums = (int)dt_tape_comm(t, DT_COMM_ALL_REDUCE).calls;
        if (k == 0) DT_TRY_TO(done, st, gather(g, out->first));
        for (int i = 0; (w = dt_gradients_at(g, i)) != NULL; i++)
            DT_TRY_TO(done, st, step(w, dt_gradient(g, w)));
        dt_gradients_clear(g);
        dt_tape_reset(t);
    }
done:
    dt_tape_release(&t);
    dt_gradients_release(&g);
    return st;
}

/* The function to learn: sin(x_0 + x_1) - x_2. */
static void make_data(float x[B * D], float y[B])
{
    for (int b = 0; b < B; b++) {
        for (int i = 0; i < D; i++)
            x[b * D + i] = (float)((b * 7 + i * 13 + b * b * i) % 17) / 8.5f - 1;
        y[b] = sinf(x[b * D] + x[b * D + 1]) - x[b * D + 2];
    }
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE };
    const int64_t shape[] = { B, D }, target_shape[] = { B, 1 };
    float inputs[B * D], targets[B];
    dt_tensor *x = NULL, *y = NULL;
    dt_layers *layers = NULL;
    dt_mesh *mesh = NULL;
    training told, *out = dt_runtime_rank(rt) == 0 ? arg : &told;
    char spec[16];
    dt_status st;

    make_data(inputs, targets);
    (void)snprintf(spec, sizeof spec, "tp=%d", dt_runtime_size(rt));
    DT_TRY(dt_mesh_create(rt, spec, &mesh));
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", network, N_LAYERS, NULL, &layers));
    DT_TRY_TO(done, st, dt_layers_init(layers, DT_F32, 2026, rules, 1)); /* alike on any mesh */
    DT_TRY_TO(
        done, st,
        dt_distribute(mesh, whole, DT_F32, 2, shape, (dt_source){ inputs, DT_EQUAL_COPIES }, &x));
    DT_TRY_TO(done, st,
              dt_distribute(mesh, whole, DT_F32, 2, target_shape,
                            (dt_source){ targets, DT_EQUAL_COPIES }, &y));
    DT_TRY_TO(done, st, train(layers, x, y, out));
    if (dt_runtime_rank(rt) == 0)
        printf("%s: loss %.6f, after %d steps %.6f\n", spec, (double)out->loss[0], STEPS - 1,
               (double)out->loss[STEPS - 1]);
done:
    dt_tensor_release(&x);
    dt_tensor_release(&y);
    dt_layers_release(&layers);
    dt_mesh_release(&mesh);
    return st;
}

/* Sums of two ranks are rounded in another order: equal to some 1e-6 of the largest. */
static dt_status compare(const float *one, const float *two, int n, const char *what)
{
    float largest = 0;

    for (int i = 0; i < n; i++) largest = fmaxf(largest, fabsf(one[i]));
    for (int i = 0; i < n; i++)
        DT_CHECK(fabsf(two[i] - one[i]) <= 1e-5f * largest, DT_ERR_INTERNAL,
                 "%s %d is %g on two ranks, %g on one", what, i, (double)two[i], (double)one[i]);
    return DT_OK;
}

static dt_status run_both(void)
{
    static training on[2];

    for (int n = 1; n <= 2; n++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = n;
        DT_TRY(dt_run(&options, rank_main, &on[n - 1]));
        DT_CHECK(on[n - 1].loss[STEPS - 1] < 0.05f * on[n - 1].loss[0], DT_ERR_INTERNAL,
                 "on %d ranks the loss falls from %g to %g only", n, (double)on[n - 1].loss[0],
                 (double)on[n - 1].loss[STEPS - 1]);
        DT_CHECK(on[n - 1].n_sums == n - 1, DT_ERR_INTERNAL, "%d sums a step on %d ranks",
                 on[n - 1].n_sums, n);
    }
    DT_TRY(compare(on[0].first, on[1].first, N_VALUES, "gradient"));
    DT_TRY(compare(on[0].loss, on[1].loss, STEPS, "loss"));
    return DT_OK;
}

int main(void)
{
    if (run_both() == DT_OK) return 0;
    (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
