/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes of a step that begin with a seed, as those of a model in stages do, and in halves. */
#include <dtensor/ops.h>

#include "tests/support/dt_test.h"
#include "tests/support/small_net.h"
#include "tests/support/tensors.h"

typedef struct scene {
    dt_layers *net;
    dt_optimizer *opt;
    dt_tape *net_tape, *loss_tape;
} scene;

static dt_status open_scene(dt_mesh *mesh, const dt_optimizer_options *options, scene *s)
{
    dt_runtime *rt = dt_mesh_runtime(mesh);

    DT_TRY(dt_test_net_create(mesh, DT_F32, &s->net));
    DT_TRY(dt_optimizer_create(s->net, options, &s->opt));
    DT_TRY(dt_tape_create(rt, &s->net_tape));
    DT_TRY(dt_tape_create(rt, &s->loss_tape));
    return DT_OK;
}

static dt_status close_scene(scene *s, dt_status st)
{
    dt_tape_release(&s->net_tape);
    dt_tape_release(&s->loss_tape);
    dt_optimizer_release(&s->opt);
    dt_layers_release(&s->net);
    return st;
}

static void count(void *arg, dt_tape *t, dt_tensor *leaf)
{
    (void)t;
    *(int *)arg += leaf != NULL;
}

/* A step of two passes in halves, whose second ones wait for both first ones. */
static dt_status step_in_halves(scene *s, int *told, dt_step_report *report)
{
    dt_tape *const tapes[] = { s->net_tape, s->loss_tape };

    for (int m = 0; m < 2; m++) {
        dt_tape *t = tapes[m];
        dt_tensor *loss;
        dt_tape_record(t, dt_optimizer_gradients(s->opt));
        loss = dt_mul_scalar(t, dt_test_net_loss(t, s->net, 0, 4 * m, 4), 3.0);
        dt_optimizer_backward(s->opt, t, loss, m == 1,
                              &(dt_backward_options){ .half = DT_BACKWARD_INPUTS });
    }
    for (int m = 0; m < 2; m++) {
        const dt_backward_options second = { .ready = count,
                                             .arg = told,
                                             .half = DT_BACKWARD_WEIGHTS };
        dt_optimizer_backward(s->opt, tapes[m], NULL, m == 1, &second);
        DT_TRY(dt_tape_status(tapes[m]));
        dt_tape_reset(tapes[m]);
    }
    DT_TRY(dt_optimizer_step(s->opt, 0.01, report));
    return DT_OK;
}

/* A step of two passes, whose loss is three times the net's; what multiplies is a stage. */
static dt_status step(scene *s, bool stages, int *told, dt_step_report *report)
{
    dt_gradients *g = dt_optimizer_gradients(s->opt);

    for (int m = 0; m < 2; m++) {
        dt_tape *t = s->net_tape, *l = stages ? s->loss_tape : t;
        dt_backward_options how = { .ready = count, .arg = told };
        dt_tensor *y, *in, *loss;
        dt_tape_record(t, g);
        if (stages) dt_tape_record(l, g);
        y = dt_test_net_loss(t, s->net, 0, 4 * m, 4);
        in = stages ? dt_tape_input(l, y) : y;
        loss = dt_mul_scalar(l, in, 3.0);
        dt_optimizer_backward(s->opt, l, loss, m == 1, stages ? NULL : &how);
        if (stages) how.seed = dt_tape_input_gradient(l, in);
        if (stages) dt_optimizer_backward(s->opt, t, y, m == 1, &how);
        DT_TRY(dt_tape_status(t));
        DT_TRY(dt_tape_status(l));
        dt_tape_reset(t);
        dt_tape_reset(l);
    }
    DT_TRY(dt_optimizer_step(s->opt, 0.01, report));
    return DT_OK;
}

static dt_status same(const scene *a, const scene *b)
{
    for (int i = 0; i < dt_layers_count(a->net); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(a->net, i)); p++)
            DT_TRY(dt_test_expect_same(dt_layer_param(dt_layers_at(a->net, i), p),
                                       dt_layer_param(dt_layers_at(b->net, i), p),
                                       dt_layer_name(dt_layers_at(a->net, i))));
    return DT_OK;
}

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    dt_step_report report[3];
    scene s[3] = { { NULL }, { NULL }, { NULL } };
    int told[3] = { 0 };
    dt_status st = DT_OK;

    for (int k = 0; k < 3; k++) {
        DT_TRY_TO(done, st, open_scene(mesh, arg, &s[k]));
        for (int i = 0; i < 3; i++)
            DT_TRY_TO(done, st,
                      k == 2 ? step_in_halves(&s[k], &told[k], &report[k])
                             : step(&s[k], k == 1, &told[k], &report[k]));
        DT_TRY_TO(done, st, same(&s[0], &s[k]));
        DT_EXPECT_TO(done, st, report[0].norm == report[k].norm, "norms %.17g and %.17g",
                     report[0].norm, report[k].norm);
        DT_EXPECT_TO(done, st, told[0] > 0 && told[0] == told[k], "%d and %d were told", told[0],
                     told[k]);
    }
done:
    for (int k = 0; k < 3; k++) st = close_scene(&s[k], st);
    return st;
}

/* With a loss scale: it is in the seed already. */
DT_TEST(passes, of_stages_and_in_halves_step_as_one_does)
{
    for (int how = 0; how < 6; how++) {
        dt_optimizer_options options = DT_OPTIMIZER_OPTIONS_INIT;
        options.zero = how % 3;
        options.bucket_bytes = how / 3 * 256;
        options.loss_scale = 1024.0;
        dt_test_on_ranks("dp=2,tp=1", compare, &options);
        dt_test_on_ranks("dp=2,tp=2", compare, &options);
    }
}
