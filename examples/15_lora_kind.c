/* SPDX-License-Identifier: Apache-2.0
 *
 * A kind of layer of one's own: a linear layer with a low-rank adapter, W x + alpha / r B (A x).
 * The kind is one struct; being like "linear" it goes under the styles of linear layers, by outputs
 * and by inputs, bias included. W and bias are frozen: an optimizer trains A and B alone, on any
 * mesh.
 * Files of a plain network begin an adapted one, and a merged save makes files of a plain one.
 *
 * Two such layers learn another network's results on several meshes: the losses are those on one
 * rank, the base keeps its bits, and the merged files compute what the adapted layers do.
 * D inputs and outputs, F inner width (nothing divides it), R rank, B rows. */
#include <dtensor.h>
#include <dtensor/optimizers.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { D = 6, F = 15, R = 3, B = 16, STEPS = 80 };
enum { WEIGHT, BIAS, LORA_A, LORA_B }; /* rows of the kind's table */

typedef struct adapter {
    int rank;
    double alpha;
} adapter;

static double scale_of(const dt_layer *layer)
{
    const adapter *own = dt_layer_own(layer);

    return own->alpha / own->rank;
}

/* Where inputs are cut both products are terms of a sum, in f32, and so is what they add up to. */
static dt_tensor *lora_forward(dt_tape *t, const dt_layer *layer, dt_tensor *x)
{
    dt_tensor *low = dt_linear(t, x, dt_layer_use(t, layer, LORA_A), NULL);
    dt_tensor *b = dt_cast(t, dt_layer_use(t, layer, LORA_B), dt_tensor_dtype(low));
    dt_tensor *delta = dt_mul_scalar(t, dt_linear(t, low, b, NULL), scale_of(layer));
    dt_tensor *y = dt_linear(t, x, dt_layer_use(t, layer, WEIGHT), NULL);

    return dt_layer_add(t, layer, dt_add(t, y, delta));
}

/* What a plain layer has in the place of the weight: W + alpha / r B A, rounded once. */
static dt_tensor *lora_merged(dt_tape *t, const dt_layer *layer, int param)
{
    dt_tensor *w = dt_layer_use(t, layer, param), *a, *b;

    if (param != WEIGHT) return w;
    a = dt_cast(t, dt_layer_use(t, layer, LORA_A), DT_F32);
    b = dt_cast(t, dt_layer_use(t, layer, LORA_B), DT_F32);
    return dt_add(t, dt_cast(t, w, DT_F32),
                  dt_mul_scalar(t, dt_matmul(t, b, false, a, false), scale_of(layer)));
}

static const dt_layer_kind lora = {
    .name = "lora",
    .like = &dt_linear_kind,
    .params = { { "weight", "oi", .frozen = true },
                { "bias", "o", .optional = true, .added = true, .frozen = true },
                { "lora_A", "ri", .adapter = true },
                { "lora_B", "or", .adapter = true, .begins = DT_BEGINS_ZEROS } },
    .cost = "2 oi + 2 ri + 2 or",
    .forward = lora_forward,
    .merged = lora_merged,
};

static const adapter own = { .rank = R, .alpha = 6.0 };

#define LAYER(name_, kind_, out, in, style_)                                              \
    {                                                                                     \
        .name = (name_), .kind = (kind_), .with = "bias", .own = &own, .style = (style_), \
        .axis = {                                                                         \
            { (out), DT_UNIT_ROW },                                                       \
            { (in), DT_UNIT_ROW },                                                        \
            { R, DT_UNIT_ROW }                                                            \
        }                                                                                 \
    }
enum { UP, DOWN, N_LAYERS };
static const dt_layer_spec plain[] = { LAYER("up", &dt_linear_kind, F, D, "colwise"),
                                       LAYER("down", &dt_linear_kind, D, F, "rowwise") };
static const dt_layer_spec adapted[] = { LAYER("up", &lora, F, D, "colwise"),
                                         LAYER("down", &lora, D, F, "rowwise") };

static const dt_init_rule begins[] = { { "**", DT_INIT_FAN_IN, 1.0, 0.0 } };

/* Rows of inputs or of what is to be learnt, cut over "dp". */
static dt_tensor *rows(dt_tape *t, dt_mesh *mesh, bool targets)
{
    const dt_placement place[] = { DT_SHARD(0), DT_REPLICATE };
    const int64_t shape[] = { B, D };
    float values[B * D];
    dt_tensor *x = NULL;

    for (int b = 0; b < B; b++)
        for (int i = 0; i < D; i++) {
            const double in = sin(b * 1.7 + i * 0.9), other = sin(b * 1.7 + (i + 1) % D * 0.9);
            values[b * D + i] = (float)(targets ? 0.8 * other - 0.3 * in : in);
        }
    if (dt_distribute(mesh, place, DT_F32, 2, shape, (dt_source){ values, DT_EQUAL_COPIES }, &x) !=
        DT_OK)
        return dt_tape_fail(t, DT_ERR_ARG, "%s", dt_last_error()->message);
    return dt_tape_own(t, x);
}

/* mean (network(x) - y)^2 */
static dt_tensor *loss_of(dt_tape *t, dt_layers *m)
{
    dt_mesh *mesh = dt_layers_mesh(m);
    dt_tensor *h = dt_tanh(t, dt_layer_forward(t, dt_layers_at(m, UP), rows(t, mesh, false)));
    dt_tensor *off = dt_sub(t, dt_layer_forward(t, dt_layers_at(m, DOWN), h), rows(t, mesh, true));

    return dt_mul_scalar(t, dt_sum(t, dt_mul(t, off, off), DT_ALL_AXES), 1.0 / (B * D));
}

/* Its value, of which each rank has a term. */
static dt_status read_loss(dt_tape *t, dt_tensor *loss, double *value)
{
    const dt_placement whole[] = { DT_REPLICATE, DT_REPLICATE };
    float v = 0.0f;

    loss = dt_move(t, dt_detach(t, loss), whole);
    DT_TRY(dt_tape_status(t));
    DT_TRY(dt_tensor_read(loss, &v, sizeof v));
    *value = (double)v;
    return DT_OK;
}

static dt_status evaluate(dt_layers *m, double *value)
{
    dt_tape *t = NULL;
    dt_status st;

    DT_TRY(dt_tape_create(dt_mesh_runtime(dt_layers_mesh(m)), &t));
    st = read_loss(t, loss_of(t, m), value);
    dt_tape_release(&t);
    return st;
}

static dt_status train(dt_layers *m, double loss[STEPS])
{
    dt_optimizer_options how = DT_OPTIMIZER_OPTIONS_INIT;
    dt_optimizer *opt = NULL;
    dt_tape *t = NULL;
    dt_status st;

    how.zero = 2;
    how.weight_decay = 0.0;
    DT_TRY_TO(done, st, dt_tape_create(dt_mesh_runtime(dt_layers_mesh(m)), &t));
    DT_TRY_TO(done, st, dt_optimizer_create(m, &how, &opt)); /* of A and B alone */
    for (int k = 0; k < STEPS; k++) {
        dt_tensor *mean;
        dt_tape_record(t, dt_optimizer_gradients(opt));
        mean = loss_of(t, m);
        dt_optimizer_backward(opt, t, mean, true, NULL);
        DT_TRY_TO(done, st, read_loss(t, mean, &loss[k]));
        dt_tape_reset(t);
        DT_TRY_TO(done, st, dt_optimizer_step(opt, 0.02, NULL));
    }
done:
    dt_tape_release(&t);
    dt_optimizer_release(&opt);
    return st;
}

/* --- a run ------------------------------------------------------------------------------------ */

/* A mesh; whether parameters are cut over "dp" too; what came of it on one rank. */
typedef struct run {
    const char *mesh, *base, *merged; /* folders */
    bool fully_shard;
    const double *expected; /* losses; NULL: this is the run on one rank, which makes `base` */
    double *loss;
} run;

/* The parameters of `b` that `a` has too have the same bits. */
static dt_status compare_base(dt_layers *a, dt_layers *b)
{
    for (int i = 0; i < N_LAYERS; i++)
        for (int p = WEIGHT; p <= BIAS; p++) {
            dt_tensor *x = NULL, *y = NULL;
            dt_status st = dt_full_tensor(dt_layer_param(dt_layers_at(a, i), p), &x);
            const size_t n = sizeof(float) *
                             (size_t)(p == BIAS ? 1
                                      : i == UP ? D
                                                : F) *
                             (size_t)(i == UP ? F : D);
            if (st == DT_OK) st = dt_full_tensor(dt_layer_param(dt_layers_at(b, i), p), &y);
            if (st == DT_OK && memcmp(dt_tensor_local(x)->data, dt_tensor_local(y)->data, n) != 0)
                st = dt_fail(DT_ERR_INTERNAL, "parameter %d of layer %d was trained", p, i);
            dt_tensor_release(&x);
            dt_tensor_release(&y);
            DT_TRY(st);
        }
    return DT_OK;
}

static dt_status adapt(dt_mesh *mesh, const run *r, double loss[STEPS])
{
    const dt_plan sharded = { .dim = "dp", .others = "fully_shard" };
    const dt_plan *plan = r->fully_shard ? &sharded : NULL;
    dt_save_options save = DT_SAVE_OPTIONS_INIT;
    dt_layers *base = NULL, *m = NULL, *merged = NULL;
    double before, with_adapters, after;
    dt_status st;

    save.merged = true;
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", plain, N_LAYERS, plan, &base));
    DT_TRY_TO(done, st, dt_layers_init(base, DT_F32, 7, begins, 1));
    if (r->expected == NULL) DT_TRY_TO(done, st, dt_layers_write(base, r->base, NULL));
    DT_TRY_TO(done, st, evaluate(base, &before));
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", adapted, N_LAYERS, plan, &m));
    DT_TRY_TO(done, st, dt_layers_read(m, r->base, NULL));
    DT_TRY_TO(done, st, train(m, loss));
    DT_TRY_TO(done, st, compare_base(m, base));
    DT_TRY_TO(done, st, evaluate(m, &with_adapters));
    DT_TRY_TO(done, st, dt_layers_write(m, r->merged, &save));
    DT_TRY_TO(done, st, dt_layers_create(mesh, "tp", plain, N_LAYERS, plan, &merged));
    DT_TRY_TO(done, st, dt_layers_read(merged, r->merged, NULL));
    DT_TRY_TO(done, st, evaluate(merged, &after));
    if (!(fabs(loss[0] - before) <= 1e-6) || !(with_adapters < 0.1 * before) ||
        !(fabs(after - with_adapters) <= 1e-5 * before))
        st = dt_fail(DT_ERR_INTERNAL, "%s: loss %g, trained from %g to %g, merged %g", r->mesh,
                     before, loss[0], with_adapters, after);
    if (st == DT_OK && dt_runtime_rank(dt_mesh_runtime(mesh)) == 0)
        printf("%-9s%s  loss %.6f, with adapters %.6f, merged %.6f\n", r->mesh,
               r->fully_shard ? " fully sharded" : "", before, with_adapters, after);
done:
    dt_layers_release(&base);
    dt_layers_release(&m);
    dt_layers_release(&merged);
    return st;
}

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    const run *r = arg;
    double loss[STEPS];
    dt_mesh *mesh = NULL;
    dt_status st = dt_mesh_create(rt, r->mesh, &mesh);

    if (st == DT_OK) st = adapt(mesh, r, loss);
    for (int k = 0; st == DT_OK && r->expected != NULL && k < STEPS; k++)
        if (!(fabs(loss[k] - r->expected[k]) <= 1e-4 * r->expected[0]))
            st = dt_fail(DT_ERR_INTERNAL, "%s: loss %g of step %d, on one rank %g", r->mesh,
                         loss[k], k, r->expected[k]);
    if (st == DT_OK && r->expected == NULL) memcpy(r->loss, loss, sizeof loss);
    dt_mesh_release(&mesh);
    return st;
}

static void remove_folder(const char *folder)
{
    char path[128];

    (void)snprintf(path, sizeof path, "%s/model.safetensors", folder);
    (void)remove(path);
    (void)remove(folder);
}

int main(void)
{
    static double loss[STEPS];
    char work[] = "/tmp/lora_XXXXXX", base[64], merged[64];
    static const struct {
        const char *mesh;
        int n_ranks;
        bool fully_shard;
    } meshes[] = { { "dp=1,tp=1", 1, false }, { "dp=1,tp=2", 2, false }, { "dp=1,tp=3", 3, false },
                   { "dp=2,tp=1", 2, false }, { "dp=2,tp=2", 4, false }, { "dp=2,tp=1", 2, true },
                   { "dp=2,tp=2", 4, true } };
    dt_status st = DT_OK;

    if (mkdtemp(work) == NULL) return 1;
    (void)snprintf(base, sizeof base, "%s/base", work);
    (void)snprintf(merged, sizeof merged, "%s/merged", work);
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes && st == DT_OK; i++) {
        run r = { meshes[i].mesh, base, merged, meshes[i].fully_shard, i > 0 ? loss : NULL, loss };
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = meshes[i].n_ranks;
        st = dt_run(&options, rank_main, &r);
        remove_folder(merged);
    }
    if (st != DT_OK) (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    remove_folder(base);
    (void)remove(work);
    return st == DT_OK ? 0 : 1;
}
