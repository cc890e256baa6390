/* SPDX-License-Identifier: Apache-2.0
 *
 * What a step computes: rules against sums in f64, groups, clipping, parameters that nothing
 * reaches, loss scales. */
#include <dtensor/factories.h>
#include <dtensor/ops.h>
#include <dtensor/ops_general.h>
#include <dtensor/optimizers.h>
#include <dtensor/weights.h>
#include <math.h>
#include <string.h>

#include "tests/support/dt_test.h"

enum { O = 3, I = 4, N = O * I, STEPS = 6 };

/* Two products with a bias each; "b" is reached by every second step's loss only. */
#define ROW(name_)                                                          \
    {                                                                       \
        .name = (name_), .kind = &dt_linear_kind, .with = "bias", .axis = { \
            { O, DT_UNIT_ROW },                                             \
            { I, DT_UNIT_ROW }                                              \
        }                                                                   \
    }
static const dt_layer_spec layers_of[] = { ROW("a"), ROW("b") };

static const dt_init_rule rules[] = { { "**", DT_INIT_NORMAL, 0.0, 0.5 } };

/* A gradient that depends on the step, one number per element: the constant that the parameter is
 * multiplied by. */
static double slope(int layer, int param, int step, int i)
{
    return (double)(float)(sin(1.0 + layer + 3.0 * param + 0.7 * step + 0.31 * i) * (1.0 + param));
}

static dt_tensor *linear_loss(dt_tape *t, dt_layers *m, int n_layers, int step, dt_dtype dtype)
{
    const dt_placement whole[DT_MAX_DIMS] = { { 0 } };
    dt_tensor *loss = NULL;

    for (int l = 0; l < n_layers; l++)
        for (int p = 0; p < 2; p++) {
            dt_tensor *w = dt_layer_param(dt_layers_at(m, l), p), *c, *y;
            float values[N];
            const int n = p == 0 ? N : O;
            for (int i = 0; i < n; i++) values[i] = (float)slope(l, p, step, i);
            if (dt_distribute(dt_layers_mesh(m), whole, DT_F32, p == 0 ? 2 : 1, (int64_t[]){ O, I },
                              (dt_source){ values, DT_EQUAL_COPIES }, &c) != DT_OK)
                return NULL;
            c = dt_move_cast(t, dt_tape_own(t, c), whole, dtype);
            y = dt_sum(t, dt_mul(t, w, c), DT_ALL_AXES);
            loss = loss == NULL ? y : dt_add(t, loss, y);
        }
    return loss;
}

typedef struct fixture {
    dt_layers *m;
    dt_optimizer *opt;
    dt_tape *t;
} fixture;

static dt_status open_fixture(dt_mesh *mesh, const dt_optimizer_options *o, dt_dtype dtype,
                              fixture *f)
{
    *f = (fixture){ NULL, NULL, NULL };
    DT_TRY(dt_layers_create(mesh, "tp?", layers_of, 2, NULL, &f->m));
    DT_TRY(dt_layers_init(f->m, dtype, 8, rules, 1));
    DT_TRY(dt_tape_create(dt_mesh_runtime(mesh), &f->t));
    DT_TRY(dt_optimizer_create(f->m, o, &f->opt));
    return DT_OK;
}

static void close_fixture(fixture *f)
{
    dt_tape_release(&f->t);
    dt_optimizer_release(&f->opt);
    dt_layers_release(&f->m);
}

static dt_status step(fixture *f, int n_layers, int number, dt_dtype dtype, double lr,
                      dt_step_report *report)
{
    dt_tape_record(f->t, dt_optimizer_gradients(f->opt));
    dt_optimizer_backward(f->opt, f->t, linear_loss(f->t, f->m, n_layers, number, dtype), true,
                          NULL);
    DT_TRY(dt_tape_status(f->t));
    dt_tape_reset(f->t);
    DT_TRY(dt_optimizer_step(f->opt, lr, report));
    return DT_OK;
}

static dt_status values_of(const fixture *f, int layer, int param, double *out)
{
    const dt_tensor *w = dt_layer_param(dt_layers_at(f->m, layer), param);
    float values[N];
    const int n = param == 0 ? N : O;

    DT_TRY(dt_tensor_read(w, values, (size_t)n * sizeof *values));
    for (int i = 0; i < n; i++) out[i] = (double)values[i];
    return DT_OK;
}

/* --- rules, in f64 ---------------------------------------------------------------------------- */

/* An element and its state. */
typedef struct element {
    double p, m, v;
} element;

static void adamw_f64(const dt_optimizer_options *o, double lr, double decay, int k, double g,
                      element *e)
{
    double *p = &e->p, *m = &e->m, *v = &e->v;

    *p *= 1.0 - lr * decay;
    *m += (1.0 - o->beta1) * (g - *m);
    *v = *v * o->beta2 + (1.0 - o->beta2) * g * g;
    *p -= lr / (1.0 - pow(o->beta1, k)) * *m / (sqrt(*v) / sqrt(1.0 - pow(o->beta2, k)) + o->eps);
}

static void sgd_f64(const dt_optimizer_options *o, double lr, double decay, int k, double g,
                    element *e)
{
    double *p = &e->p, *b = &e->m;

    g += decay * *p;
    if (o->momentum > 0.0) {
        *b = k == 1 ? g : o->momentum * *b + (1.0 - o->dampening) * g;
        g = o->nesterov ? g + o->momentum * *b : *b;
    }
    *p -= lr * g;
}

/* "a.weight" has twice the rate; "b.bias" decays, by its group. */
static const dt_parameter_group groups[] = { { "*.weight", 3.0, 0.5, false },
                                             { "a.weight", 2.0, -1.0, false },
                                             { "b.bias", 0.0, 0.25, false } };

static dt_status agrees(dt_mesh *mesh, const void *arg)
{
    const dt_optimizer_options *o = arg;
    const double factor[2][2] = { { 2.0, 1.0 }, { 3.0, 1.0 } };
    const double decay[2][2] = { { o->weight_decay, 0.0 }, { 0.5, 0.25 } };
    element want[2][2][N] = { { { { 0, 0, 0 } } } };
    double got[N] = { 0 };
    DT_ENDS(close_fixture) fixture f = { 0 };

    DT_TRY(open_fixture(mesh, o, DT_F32, &f));
    for (int l = 0; l < 2; l++)
        for (int p = 0; p < 2; p++) {
            DT_TRY(values_of(&f, l, p, got));
            for (int i = 0; i < N; i++) want[l][p][i].p = got[i];
        }
    for (int k = 1; k <= STEPS; k++) {
        const double lr = 0.05 / k;
        dt_step_report report;
        double squares = 0.0, clip;
        for (int l = 0; l < 2; l++)
            for (int p = 0; p < 2; p++)
                for (int i = 0; i < (p == 0 ? N : O); i++) squares += pow(slope(l, p, k, i), 2.0);
        clip = o->clip > 0.0 ? fmin(1.0, o->clip / (sqrt(squares) + 1e-6)) : 1.0;
        DT_TRY(step(&f, 2, k, DT_F32, lr, &report));
        DT_EXPECT(fabs(report.norm / sqrt(squares) - 1.0) < 1e-12 && report.step == k &&
                      fabs(report.clip_factor - clip) < 1e-12 && !report.skipped,
                  "norm %g, clip %g at step %d", report.norm, report.clip_factor, k);
        for (int l = 0; l < 2; l++)
            for (int p = 0; p < 2; p++)
                for (int i = 0; i < (p == 0 ? N : O); i++) {
                    const double g = slope(l, p, k, i) * clip, rate = lr * factor[l][p];
                    if (o->rule == DT_ADAMW)
                        adamw_f64(o, rate, decay[l][p], k, g, &want[l][p][i]);
                    else
                        sgd_f64(o, rate, decay[l][p], k, g, &want[l][p][i]);
                }
        for (int l = 0; l < 2; l++)
            for (int p = 0; p < 2; p++) {
                DT_TRY(values_of(&f, l, p, got));
                for (int i = 0; i < (p == 0 ? N : O); i++)
                    DT_EXPECT(fabs(got[i] - want[l][p][i].p) < 2e-6,
                              "layer %d, parameter %d, element %d at step %d: %g, not %g", l, p, i,
                              k, got[i], want[l][p][i].p);
            }
    }
    return DT_OK;
}

DT_TEST(rules, are_those_of_the_header)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;

    o.groups = groups;
    o.n_groups = (int)DT_COUNT(groups);
    dt_test_on_ranks("dp=1", agrees, &o);
    o.beta1 = 0.3; /* the other half of the interpolation */
    o.clip = 0.0;
    o.zero = 1;
    dt_test_on_ranks("dp=2", agrees, &o);
    o.rule = DT_SGD;
    o.clip = 2.0;
    dt_test_on_ranks("dp=2", agrees, &o);
    o.momentum = 0.9;
    o.dampening = 0.3;
    dt_test_on_ranks("dp=1", agrees, &o);
    o.dampening = 0.0;
    o.nesterov = true;
    dt_test_on_ranks("dp=2", agrees, &o);
}

/* --- what is left alone ----------------------------------------------------------------------- */

static dt_status stays(dt_mesh *mesh, const void *arg)
{
    static const dt_parameter_group frozen[] = { { "a.*", 1.0, -1.0, false },
                                                 { "a.bias", 1.0, -1.0, true } };
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    double before[2][2][N], after[N];
    dt_optimizer_state state;
    DT_ENDS(close_fixture) fixture f = { 0 };

    o.zero = *(const int *)arg;
    o.groups = frozen;
    o.n_groups = 2;
    DT_TRY(open_fixture(mesh, &o, DT_F32, &f));
    for (int l = 0; l < 2; l++)
        for (int p = 0; p < 2; p++) DT_TRY(values_of(&f, l, p, before[l][p]));
    DT_TRY(step(&f, 1, 1, DT_F32, 0.1, NULL)); /* of "a" alone */
    for (int l = 0; l < 2; l++)
        for (int p = 0; p < 2; p++) {
            const size_t bytes = (p == 0 ? N : O) * sizeof(double);
            const bool steps = l == 0 && p == 0;
            DT_TRY(values_of(&f, l, p, after));
            DT_EXPECT((memcmp(before[l][p], after, bytes) != 0) == steps, "layer %d, parameter %d",
                      l, p);
        }
    DT_EXPECT(dt_gradients_at(dt_optimizer_gradients(f.opt), 2) != NULL &&
                  dt_gradients_at(dt_optimizer_gradients(f.opt), 3) == NULL,
              "what is frozen is watched");
    for (int64_t i = 0; dt_optimizer_state_at(f.opt, i, &state); i++) {
        static const char *const names[] = { "exp_avg.a.weight", "exp_avg_sq.a.weight",
                                             "exp_avg.b.weight", "exp_avg_sq.b.weight",
                                             "exp_avg.b.bias",   "exp_avg_sq.b.bias" };
        DT_EXPECT(i < 6 && strcmp(state.name, names[i]) == 0, "%s", state.name);
    }
    return DT_OK;
}

DT_TEST(rules, what_is_frozen_or_not_reached_stays)
{
    for (int zero = 0; zero <= 2; zero++) dt_test_on_ranks("dp=2", stays, &zero);
}

/* --- f16 -------------------------------------------------------------------------------------- */

/* Slopes up to 2 overflow f16 where the loss is scaled by 65536: steps are skipped until it fits.
 */
static dt_status scales(dt_mesh *mesh, const void *arg)
{
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    uint16_t before[N], after[N];
    dt_step_report report;
    DT_ENDS(close_fixture) fixture f = { 0 };

    o.zero = *(const int *)arg;
    DT_TRY(open_fixture(mesh, &o, DT_F16, &f));
    DT_EXPECT(dt_optimizer_loss_scale(f.opt) == 65536.0, "%g", dt_optimizer_loss_scale(f.opt));
    const dt_tensor *w = dt_layer_param(dt_layers_at(f.m, 0), 0);
    DT_TRY(dt_tensor_read(w, before, sizeof before));
    DT_TRY(step(&f, 2, 1, DT_F16, 0.1, &report));
    DT_TRY(dt_tensor_read(w, after, sizeof after));
    DT_EXPECT(report.skipped && report.step == 1 && dt_optimizer_steps(f.opt) == 0 &&
                  dt_optimizer_loss_scale(f.opt) == 32768.0 &&
                  memcmp(before, after, sizeof before) == 0,
              "not skipped: scale %g", dt_optimizer_loss_scale(f.opt));
    DT_TRY(dt_optimizer_restore(f.opt, 10, 1024.0, 1999));
    DT_TRY(step(&f, 2, 1, DT_F16, 0.1, &report));
    DT_EXPECT(!report.skipped && report.step == 11 && dt_optimizer_loss_scale(f.opt) == 2048.0 &&
                  dt_optimizer_good_steps(f.opt) == 0 && report.norm > 1.0 && report.norm < 20.0,
              "skipped or not grown: norm %g, scale %g", report.norm,
              dt_optimizer_loss_scale(f.opt));
    DT_TRY(dt_tensor_read(w, after, sizeof after));
    DT_EXPECT(memcmp(before, after, sizeof before) != 0, "nothing was written");
    return DT_OK;
}

DT_TEST(rules, a_loss_scale_falls_and_grows)
{
    for (int zero = 0; zero <= 2; zero++) dt_test_on_ranks("dp=2", scales, &zero);
}

/* --- rounding at random ----------------------------------------------------------------------- */

/* A step far below what bf16 tells apart moves some of many equal elements, in the mean by what it
 * is, and the same ones on every mesh. */
typedef struct drawn {
    int n_moved;
    uint64_t hash;
} drawn;

static dt_status draws(dt_mesh *mesh, const void *arg)
{
    static const dt_layer_spec spec = { .name = "w",
                                        .kind = &dt_linear_kind,
                                        .style = "colwise",
                                        .axis = { { 60, DT_UNIT_ROW }, { 70, DT_UNIT_ROW } } };
    static const dt_init_rule one = { "**", DT_INIT_CONSTANT, 1.0, 0.0 };
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    drawn *const *to = arg, mine = { 0, 0 };
    uint16_t values[60 * 70];
    DT_HELD(layers) *m = NULL;
    DT_HELD(optimizer) *opt = NULL;
    DT_HELD(tape) *t = dt_test_tape(mesh);
    DT_HELD(tensor) *full = NULL;

    o.rule = DT_SGD;
    o.weight_decay = o.clip = 0.0;
    o.masters = false;
    o.stochastic = true;
    o.seed = 77;
    o.zero = dt_mesh_find_dim(mesh, "dp") >= 0 ? 2 : 0;
    DT_TRY(dt_layers_create(mesh, "tp?", &spec, 1, NULL, &m));
    DT_TRY(dt_layers_init(m, DT_BF16, 1, &one, 1));
    DT_TRY(dt_optimizer_create(m, &o, &opt));
    dt_tape_record(t, dt_optimizer_gradients(opt));
    full = dt_sum(t, dt_layer_param(dt_layers_at(m, 0), 0), DT_ALL_AXES);
    dt_optimizer_backward(opt, t, full, true, NULL);
    DT_TRY(dt_tape_status(t));
    full = NULL;
    /* 1 - 2^-8 is the next number below 1: a quarter of the way there */
    DT_TRY(dt_optimizer_step(opt, 0x1p-10, NULL));
    DT_TRY(dt_full_tensor(dt_layer_param(dt_layers_at(m, 0), 0), &full));
    DT_TRY(dt_tensor_read(full, values, sizeof values));
    for (int i = 0; i < 60 * 70; i++) {
        mine.n_moved += values[i] != 0x3f80;
        mine.hash = mine.hash * 31 + values[i];
        DT_EXPECT(values[i] == 0x3f80 || values[i] == 0x3f7f, "%x", values[i]);
    }
    if (dt_runtime_rank(dt_mesh_runtime(mesh)) == 0) **to = mine;
    return DT_OK;
}

DT_TEST(rules, rounding_at_random_is_fair_and_the_same_everywhere)
{
    static const char *const meshes[] = { "dp=1", "tp=2", "tp=3", "dp=2", "dp=4", "dp=2,tp=2" };
    drawn first = { 0, 0 }, other, *to = &first;

    dt_test_on_ranks(meshes[0], draws, &to);
    DT_ASSERT(abs(first.n_moved - 60 * 70 / 4) < 120); /* four deviations */
    for (size_t i = 1; i < DT_COUNT(meshes); i++) {
        to = &other;
        dt_test_on_ranks(meshes[i], draws, &to);
        DT_ASSERT(other.n_moved == first.n_moved && other.hash == first.hash);
    }
}
