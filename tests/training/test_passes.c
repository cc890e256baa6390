/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes of a step that begin with a seed: the stages behind the first of a model in stages. */
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

static dt_status compare(dt_mesh *mesh, const void *arg)
{
    dt_step_report report[2];
    scene s[2] = { { NULL }, { NULL } };
    int told[2] = { 0, 0 };
    dt_status st = DT_OK;

    for (int k = 0; k < 2; k++) {
        DT_TRY_TO(done, st, open_scene(mesh, arg, &s[k]));
        for (int i = 0; i < 3; i++) DT_TRY_TO(done, st, step(&s[k], k == 1, &told[k], &report[k]));
    }
    DT_EXPECT_TO(done, st, report[0].norm == report[1].norm, "norms %.17g and %.17g",
                 report[0].norm, report[1].norm);
    DT_EXPECT_TO(done, st, told[0] > 0 && told[0] == told[1], "%d and %d were told", told[0],
                 told[1]);
    for (int i = 0; i < dt_layers_count(s[0].net); i++)
        for (int p = 0; p < dt_layer_n_params(dt_layers_at(s[0].net, i)); p++)
            DT_TRY_TO(done, st,
                      dt_test_expect_same(dt_layer_param(dt_layers_at(s[0].net, i), p),
                                          dt_layer_param(dt_layers_at(s[1].net, i), p),
                                          dt_layer_name(dt_layers_at(s[0].net, i))));
done:
    st = close_scene(&s[1], st);
    return close_scene(&s[0], st);
}

/* With a loss scale: it is in the seed already. */
DT_TEST(passes, of_stages_step_as_one_does)
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
