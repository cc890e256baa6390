/* SPDX-License-Identifier: Apache-2.0
 *
 * A pipeline of a model of one's own: a stage is a function from a tensor to a tensor, with layers
 * on the mesh of its stage. Four blocks learn a function, as four stages of one rank (or of two,
 * over which "tp" cuts their layers), on two pipeline ranks there and back, and on four: with other
 * schedules, and the same losses bit for bit.
 * D width, F inner width, B rows of a microbatch, M microbatches of a step. */
#include <dtensor.h>
#include <stdio.h>
#include <string.h>

enum { D = 8, F = 20, B = 4, M = 8, STAGES = 4, EACH = 2, STEPS = 25 };

typedef struct net {
    dt_pipeline_schedule *schedule;
    dt_layers *layers; /* EACH of every stage */
    dt_optimizer *optimizer;
    dt_tensor *x[M], *y[M]; /* of this rank's stages */
} net;

/* A block, x + down(tanh(up(x))); the last one's loss is the step's mean of (block(x) - y)^2. */
static dt_tensor *run_stage(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    net *n = arg;
    dt_tensor *h, *off;

    if (stage == 0) x = n->x[microbatch];
    h = dt_tanh(t, dt_layer_forward(t, dt_layers_at(n->layers, EACH * stage), x));
    x = dt_add(t, x, dt_layer_forward(t, dt_layers_at(n->layers, EACH * stage + 1), h));
    if (stage < STAGES - 1) return x;
    off = dt_sub(t, x, n->y[microbatch]);
    return dt_mul_scalar(t, dt_sum(t, dt_mul(t, off, off), DT_ALL_AXES), 1.0 / (M * B * D));
}

/* Layers that lie where the schedule has their stage. Outsiders know them and hold nothing. */
static dt_status make_layers(dt_mesh *mesh, net *n)
{
    dt_mesh *at[STAGES] = { NULL };
    dt_layer_spec specs[STAGES * EACH] = { { 0 } };
    char names[STAGES * EACH][16];
    dt_status st = DT_OK;

    for (int s = 0; s < STAGES && st == DT_OK; s++) {
        st = dt_mesh_stage(mesh, "pp", dt_pipeline_schedule_rank_of(n->schedule, s), &at[s]);
        for (int k = 0; k < EACH; k++) {
            const int i = EACH * s + k;
            (void)snprintf(names[i], sizeof names[i], "%d.%s", s, k == 0 ? "up" : "down");
            specs[i] = (dt_layer_spec){ .name = names[i],
                                        .kind = &dt_linear_kind,
                                        .style = k == 0 ? "colwise" : "rowwise",
                                        .axis = { { k == 0 ? F : D, DT_UNIT_ROW },
                                                  { k == 0 ? D : F, DT_UNIT_ROW } },
                                        .stage = s,
                                        .mesh = at[s] };
        }
    }
    if (st == DT_OK) st = dt_layers_create(mesh, "tp", specs, STAGES * EACH, NULL, &n->layers);
    if (st == DT_OK) st = dt_layers_init(n->layers, DT_F32, 2026, NULL, 0); /* alike on any mesh */
    for (int s = 0; s < STAGES; s++) dt_mesh_release(&at[s]);
    return st;
}

/* What is learnt: to turn the rows of x round. */
static dt_status make_data(dt_mesh *here, net *n)
{
    const dt_placement whole[] = { DT_REPLICATE, DT_REPLICATE };
    const int64_t shape[] = { B, D };

    for (int m = 0; m < M; m++) {
        const dt_random key = { 7, (uint64_t)m };
        float x[B * D], y[B * D];
        DT_TRY(dt_randn(here, whole, DT_F32, 2, shape, key, &n->x[m]));
        DT_TRY(dt_tensor_read(n->x[m], x, sizeof x));
        for (int i = 0; i < B * D; i++) y[i] = x[i - i % D + (D - 1 - i % D)];
        DT_TRY(dt_distribute(here, whole, DT_F32, 2, shape, (dt_source){ y, DT_EQUAL_COPIES },
                             &n->y[m]));
    }
    return DT_OK;
}

static dt_status train(dt_mesh *mesh, net *n, double loss[STEPS])
{
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    dt_pipeline_result result;
    dt_pipeline *p = NULL;
    dt_status st;

    DT_TRY(dt_optimizer_create(n->layers, NULL, &n->optimizer));
    how.forward = run_stage;
    how.arg = n;
    DT_TRY_TO(done, st, dt_pipeline_create(mesh, "pp", n->schedule, n->optimizer, &how, &p));
    for (int k = 0; k < STEPS; k++) {
        DT_TRY_TO(done, st, dt_pipeline_run(p, &result)); /* all microbatches, there and back */
        DT_TRY_TO(done, st, dt_optimizer_step(n->optimizer, 0.02, NULL));
        loss[k] = result.loss; /* the same on every rank */
    }
done:
    dt_pipeline_release(&p);
    return st;
}

/* One way to run it, and what it comes to on rank 0. */
typedef struct run {
    const char *mesh, *schedule;
    int pp;
    double loss[STEPS];
} run;

static dt_status rank_main(dt_runtime *rt, void *arg)
{
    run *r = arg;
    dt_mesh *mesh = NULL, *here = NULL;
    double loss[STEPS];
    net n = { NULL };
    dt_status st;

    DT_TRY(dt_mesh_create(rt, r->mesh, &mesh));
    DT_TRY_TO(done, st, dt_mesh_stage(mesh, "pp", dt_mesh_coord(mesh, 0), &here));
    DT_TRY_TO(done, st,
              dt_pipeline_schedule_create(r->schedule, r->pp, STAGES / r->pp, M, &n.schedule));
    DT_TRY_TO(done, st, make_layers(mesh, &n));
    DT_TRY_TO(done, st, make_data(here, &n));
    DT_TRY_TO(done, st, train(mesh, &n, loss));
    if (dt_runtime_rank(rt) == 0) {
        memcpy(r->loss, loss, sizeof loss);
        printf("%-9s %-12s loss %.6f, then %.6f\n", r->mesh, r->schedule, loss[0], loss[STEPS - 1]);
    }
done:
    for (int m = 0; m < M; m++) {
        dt_tensor_release(&n.x[m]);
        dt_tensor_release(&n.y[m]);
    }
    dt_optimizer_release(&n.optimizer);
    dt_layers_release(&n.layers);
    dt_pipeline_schedule_release(&n.schedule);
    dt_mesh_release(&here);
    dt_mesh_release(&mesh);
    return st;
}

static dt_status run_all(void)
{
    static run runs[] = { { "pp=1,tp=2", "naive", 1, { 0 } },
                          { "pp=2,tp=2", "zbv", 2, { 0 } },
                          { "pp=4,tp=2", "1f1b", 4, { 0 } } };

    for (int i = 0; i < 3; i++) {
        dt_run_options options = DT_RUN_OPTIONS_INIT;
        options.n_ranks = 2 * runs[i].pp;
        DT_TRY(dt_run(&options, rank_main, &runs[i]));
        DT_CHECK(memcmp(runs[i].loss, runs[0].loss, sizeof runs[0].loss) == 0, DT_ERR_INTERNAL,
                 "on %s the losses are others than on %s", runs[i].mesh, runs[0].mesh);
    }
    DT_CHECK(runs[0].loss[STEPS - 1] < 0.6 * runs[0].loss[0], DT_ERR_INTERNAL,
             "the loss falls from %g to %g only", runs[0].loss[0], runs[0].loss[STEPS - 1]);
    return DT_OK;
}

int main(void)
{
    if (run_all() == DT_OK) return 0;
    (void)fprintf(stderr, "%s\n", dt_last_error()->message);
    return 1;
}
