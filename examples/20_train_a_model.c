/* SPDX-License-Identifier: Apache-2.0
 *
 * Training a model that has no folder: a table of layers, AdamW with its state cut over "dp", a
 * learning rate that falls. Which token follows which is learnt, once on one rank that takes the
 * batch in two parts and once on two ranks that take a part each: the same bits, since gradients of
 * parts are added up alike, and since the norm that clips them is exact.
 * V tokens, D wide, F inner width, a batch of ROWS rows of T tokens. */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

enum { V = 24, D = 16, F = 40, ROWS = 8, T = 6, STEPS = 60 };

#define LAYER(name_, kind_, out, in)                              \
    {                                                             \
        .name = (name_), .kind = (kind_), .eps = 1e-5f, .axis = { \
            { (out), DT_UNIT_ROW },                               \
            { (in), DT_UNIT_ROW }                                 \
        }                                                         \
    }

static const dt_layer_spec network[] = {
    LAYER("embed", &dt_embedding_kind, V, D), LAYER("norm", &dt_rms_norm_kind, D, 0),
    LAYER("up", &dt_linear_kind, F, D),       LAYER("down", &dt_linear_kind, D, F),
    LAYER("head", &dt_linear_kind, V, D),
};
enum { EMBED, NORM, UP, DOWN, HEAD, N_LAYERS };

/* Rows [first, first + n) of a step's tokens, cut over "dp"; those that follow if `next`. */
static dt_tensor *tokens(dt_tape *t, dt_mesh *mesh, int step, int first, int n, bool next)
{
    const dt_placement rows[] = { DT_SHARD(0) };
    const int64_t shape[] = { n, T };
    int32_t ids[ROWS * T];
    dt_tensor *x = NULL;

    for (int r = 0; r < n; r++)
        for (int i = 0, id = (step * ROWS + first + r) % V; i < T; i++, id = (5 * id + 7) % V)
            ids[r * T + i] = next ? (5 * id + 7) % V : id;
    if (dt_distribute(mesh, rows, DT_I32, 2, shape, (dt_source){ ids, DT_EQUAL_COPIES }, &x) !=
        DT_OK)
        return dt_tape_fail(t, DT_ERR_ARG, "%s", dt_last_error()->message);
    return dt_tape_own(t, x);
}

/* Part `part` of the mean over a step's tokens: divided by all of them, so that parts add up. */
static dt_tensor *loss_of(dt_tape *t, dt_layers *m, int step, int part, int n_parts)
{
    const int n = ROWS / n_parts;
    dt_cross_entropy_options how = DT_CROSS_ENTROPY_OPTIONS_INIT;
    dt_mesh *mesh = dt_layers_mesh(m);
    dt_tensor *x =
        dt_layer_forward(t, dt_layers_at(m, EMBED), tokens(t, mesh, step, part * n, n, false));
    dt_tensor *h = dt_layer_forward(t, dt_layers_at(m, NORM), x);

    h = dt_silu(t, dt_layer_forward(t, dt_layers_at(m, UP), h));
    x = dt_add(t, x, dt_layer_forward(t, dt_layers_at(m, DOWN), h));
    how.n_valid = ROWS * T;
    return dt_cross_entropy(t, dt_layer_forward(t, dt_layers_at(m, HEAD), x),
                            tokens(t, mesh, step, part * n, n, true), &how);
}

/* What a run tells: the loss of each step, the norm of its gradients. */
typedef struct training {
    int n_parts;
    float loss[STEPS];
    double norm[STEPS];
} training;

/* A loss, of which each rank has a term. */
static dt_status add_loss(dt_tape *t, dt_tensor *loss, float *sum)
{
    const dt_placement whole[] = { DT_REPLICATE };
    float value = 0;

    loss = dt_move(t, dt_detach(t, loss), whole);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read(loss, &value, sizeof value));
    *sum += value;
    return DT_OK;
}

static dt_status train(dt_layers *m, training *out)
{
    const dt_schedule rate = {
        .kind = DT_SCHEDULE_COSINE, .lr = 0.02, .min_lr = 0.1, .warmup = 5, .steps = STEPS
    };
    dt_optimizer_options how = DT_OPTIMIZER_OPTIONS_INIT;
    dt_optimizer *opt = NULL;
    dt_tape *t = NULL;
    dt_status st;

    how.zero = 2; /* state and gradients cut over "dp" */
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(dt_layers_mesh(m)), &t));
    DT_TRY_TO(done, st, dt_optimizer_create(m, &how, &opt));
    for (int k = 0; k < STEPS; k++) {
        dt_step_report report;
        for (int part = 0; part < out->n_parts; part++) {
            dt_tensor *loss;
            dt_tape_record(t, dt_optimizer_gradients(opt));
            loss = loss_of(t, m, k, part, out->n_parts);
            dt_optimizer_backward(opt, t, loss, part + 1 == out->n_parts, NULL);
            DT_TRY_TO(done, st, add_loss(t, loss, &out->loss[k]));
            dt_tape_reset(t);
        }
        DT_TRY_TO(done, st, dt_optimizer_step(opt, dt_schedule_at(&rate, k), &report));
        out->norm[k] = report.norm;
    }
done:
    dt_tape_release(&t);
    dt_optimizer_release(&opt);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    training told = *(training *)arg, *out = dt_runtime_rank(rt) == 0 ? arg : &told;
    dt_layers *layers = NULL;
    dt_mesh *mesh = NULL;
    char spec[16];
    dt_status st;

    (void)snprintf(spec, sizeof spec, "dp=%d", dt_runtime_size(rt));
    DT_TRY(dt_mesh_create(rt, spec, &mesh));
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp?", network, N_LAYERS, NULL, &layers));
    DT_TRY_TO(done, st, dt_layers_init(layers, DT_F32, 2026, NULL, 0));
    DT_TRY_TO(done, st, train(layers, out));
    if (dt_runtime_rank(rt) == 0)
        printf("%s, %d parts: loss %.6f, after %d steps %.6f\n", spec, out->n_parts,
               (double)out->loss[0], STEPS - 1, (double)out->loss[STEPS - 1]);
done:
    dt_layers_release(&layers);
    dt_mesh_release(&mesh);
    return st;
}

static dt_status run_both(void)
{
    static training on[2] = { { .n_parts = 2 }, { .n_parts = 1 } };

    for (int n = 1; n <= 2; n++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = n;
        DT_TRY(dt_run(&options, rank_main, &on[n - 1]));
        DT_CHECK(on[n - 1].loss[STEPS - 1] < 0.1f * on[n - 1].loss[0], DT_ERR_INTERNAL,
                 "on %d ranks the loss falls from %g to %g only", n, (double)on[n - 1].loss[0],
                 (double)on[n - 1].loss[STEPS - 1]);
    }
    DT_CHECK(memcmp(on[0].loss, on[1].loss, sizeof on[0].loss) == 0 &&
                 memcmp(on[0].norm, on[1].norm, sizeof on[0].norm) == 0,
             DT_ERR_INTERNAL, "two ranks are not as good as two parts on one");
    return DT_OK;
}

int main(void)
{
    if (run_both() == DT_OK) return 0;
    (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
