/* SPDX-License-Identifier: Apache-2.0
 *
 * A pipeline does what its table says, action by action, and holds what is predicted, by the
 * records' count and by the allocator's; on links that buffer nothing. Tables of one's own, on any
 * ranks, have the bits of those by name; what is none does not get as far. */
#include <dtensor/pipeline_training.h>
#include <dtensor/weights.h>
#include <stdio.h>
#include <string.h>

#include "dtensor/device/device.h"
#include "tests/support/stage_net.h"

enum { VALUES = DT_NET_WIDTH * DT_NET_INNER, MICROBATCHES = 9, TEXT_BYTES = 4096 };

/* --- what is done and held -------------------------------------------------------------------- */

/* A rank that looks at itself. */
typedef struct watch {
    dt_stage_net net;
    dti_device *device;
    const dt_action *row;
    int n_actions, at; /* how many have begun */
    bool in_action;
    dt_tape *tape[DT_NET_MOST / 2][DT_NET_MOST];
    int64_t live[DT_NET_MOST / 2], postponed[DT_NET_MOST / 2]; /* bytes of a microbatch; -1: ? */
    int64_t kept, used_before;                                 /* of all, now */
    char wrong[256];                                           /* the first that is not as wanted */
} watch;

static dt_tensor *forward(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    watch *w = arg;

    w->tape[stage][microbatch] = t;
    return dt_stage_net_forward(&w->net, t, stage, microbatch, x);
}

static void complain(watch *w, const dt_action *a, const char *what, int64_t is, int64_t wanted)
{
    char text[DT_ACTION_BYTES];

    if (w->wrong[0] == '\0')
        (void)snprintf(w->wrong, sizeof w->wrong, "%s, action %d: %s is %lld, not %lld",
                       dt_action_text(a, text), w->at, what, (long long)is, (long long)wanted);
}

/* Each microbatch of a stage keeps the same. */
static void expect_kept(watch *w, const dt_action *a, int64_t *known)
{
    const int64_t kept = dt_tape_kept_bytes(w->tape[a->stage][a->microbatch]);

    if (*known < 0) *known = kept;
    if (*known != kept) complain(w, a, "what its record keeps", kept, *known);
}

/* Beside what records keep there are parameters' gradients, and activations that a stage has made
 * or been given, or that travel: all of these are less than one record keeps. */
static void expect_used(watch *w, const dt_action *a)
{
    const int64_t used = (int64_t)dti_memory_used(w->device->memory) - w->used_before;
    const int64_t gradients = dt_layers_local_bytes(w->net.layers);
    const int64_t act = DT_NET_ROWS * DT_NET_WIDTH * (int64_t)sizeof(float);
    const int64_t most = w->kept + gradients + 4 * act * MICROBATCHES;

    if (used < w->kept || used > most)
        complain(w, a, "what the allocator has given", used, w->kept);
}

static void told(void *arg, const dt_action *a, bool ends)
{
    watch *w = arg;
    const dt_action *want = &w->row[w->at - ends];

    if (w->at - ends >= w->n_actions || w->in_action != ends || a->stage != want->stage ||
        a->kind != want->kind || a->microbatch != want->microbatch)
        complain(w, a, "the order", w->at, -1);
    w->in_action = !ends;
    w->at += !ends;
    if (!ends) return;
    switch (a->kind) {
    case DT_ACTION_F:
        expect_kept(w, a, &w->live[a->stage]);
        w->kept += w->live[a->stage];
        break;
    case DT_ACTION_B:
        w->kept -= w->live[a->stage];
        break;
    case DT_ACTION_I:
        expect_kept(w, a, &w->postponed[a->stage]);
        w->kept += w->postponed[a->stage] - w->live[a->stage];
        break;
    case DT_ACTION_W:
        w->kept -= w->postponed[a->stage];
        break;
    }
    expect_used(w, a);
}

static dt_status compare(const watch *w, const dt_pipeline_result *r, int rank)
{
    dt_pipeline_costs costs = DT_PIPELINE_COSTS_INIT;
    DT_HELD(pipeline_timing) *t = NULL;
    const dt_pipeline_rank *want;

    costs.live_bytes = w->live;
    costs.postponed_bytes = w->postponed;
    DT_TRY(dt_pipeline_simulate(w->net.schedule, &costs, &t));
    want = dt_pipeline_timing_rank(t, rank);
    DT_EXPECT(w->wrong[0] == '\0', "%s", w->wrong);
    DT_EXPECT_EQ_INT(w->at, w->n_actions);
    DT_EXPECT_EQ_INT(w->kept, 0);
    DT_EXPECT_EQ_INT(r->live, want->live);
    DT_EXPECT_EQ_INT(r->postponed, want->postponed);
    DT_EXPECT_EQ_INT(r->kept_bytes, want->bytes);
    return DT_OK;
}

static dt_status look(watch *w, int steps)
{
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    const int rank = dt_mesh_coord(w->net.mesh, 0);
    dt_pipeline_result result;

    how.forward = forward;
    how.told = told;
    how.arg = w;
    DT_TRY(dt_stage_net_pipeline(&w->net, &how));
    DT_TRY(dti_device_of(dt_mesh_runtime(w->net.mesh), &w->device));
    w->row = dt_pipeline_schedule_row(w->net.schedule, rank, &w->n_actions);
    for (int step = 0; step < steps; step++) {
        w->at = 0;
        w->used_before = (int64_t)dti_memory_used(w->device->memory);
        for (int s = 0; s < DT_NET_MOST / 2; s++) w->live[s] = w->postponed[s] = -1;
        DT_TRY(dt_pipeline_run(w->net.pipeline, &result));
        for (int s = 0; s < DT_NET_MOST / 2; s++) {
            w->live[s] = w->live[s] < 0 ? 0 : w->live[s];
            w->postponed[s] = w->postponed[s] < 0 ? 0 : w->postponed[s];
        }
        DT_TRY(compare(w, &result, rank));
        DT_TRY(dt_optimizer_step(w->net.optimizer, 1e-3, NULL));
    }
    return DT_OK;
}

static dt_status watch_itself(dt_mesh *mesh, const void *arg)
{
    DT_HELD(pipeline_schedule) *schedule = NULL;
    dt_status st;
    watch *w;

    DT_TRY(dt_pipeline_schedule_create(arg, dt_mesh_dim_size(mesh, 0), 0, MICROBATCHES, &schedule));
    w = calloc(1, sizeof *w);
    DT_EXPECT(w != NULL, "no memory");
    st = dt_stage_net_open(mesh, schedule, NULL, &w->net);
    if (st == DT_OK) st = look(w, 2);
    dt_stage_net_close(&w->net);
    free(w);
    return st;
}

DT_TEST(pipeline_run, what_is_done_and_held_is_what_the_table_says)
{
    static const char *const meshes[] = { "pp=2", "pp=3", "pp=4", "pp=2,tp=2" };
    const dt_pipeline_kind *kind;

    for (size_t i = 0; i < DT_COUNT(meshes); i++)
        for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++) {
            dt_run_options o = DT_TEST_RUN_OPTIONS;
            o.links = "unbuffered";
            if (!dt_test_fits_launch(meshes[i])) continue;
            DT_ASSERT_OK(dt_test_run(&o, meshes[i], watch_itself, kind->name));
        }
}

/* --- tables of one's own ---------------------------------------------------------------------- */

/* A way to train, and the parameters that come of it. */
typedef struct training {
    const char *name; /* a schedule's; or */
    const char *table;
    int stages; /* of all ranks */
    int microbatches;
    double loss;
    float values[DT_NET_MOST * VALUES];
} training;

static dt_tensor *plain(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    return dt_stage_net_forward(arg, t, stage, microbatch, x);
}

static dt_status train_steps(dt_stage_net *net, training *out, bool first)
{
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    float values[DT_NET_MOST * VALUES];
    dt_pipeline_result result;

    how.forward = plain;
    how.arg = net;
    DT_TRY(dt_stage_net_pipeline(net, &how));
    for (int step = 0; step < 3; step++) {
        DT_TRY(dt_pipeline_run(net->pipeline, &result));
        DT_TRY(dt_optimizer_step(net->optimizer, 1e-2, NULL));
    }
    DT_TRY(dt_stage_net_read(net, values));
    if (!first) return DT_OK;
    out->loss = result.loss;
    memcpy(out->values, values, sizeof values);
    return DT_OK;
}

static dt_status train(dt_mesh *mesh, const void *arg)
{
    training *t = (training *)(uintptr_t)arg;
    const int pp = dt_mesh_dim_size(mesh, 0);
    DT_HELD(pipeline_schedule) *s = NULL;
    dt_stage_net net;
    dt_status st;

    if (t->table != NULL)
        DT_TRY(dt_pipeline_schedule_parse("own.csv", t->table, strlen(t->table), &s));
    else
        DT_TRY(dt_pipeline_schedule_create(t->name, pp, t->stages / pp, t->microbatches, &s));
    DT_TRY(dt_stage_net_open(mesh, s, NULL, &net));
    st = train_steps(&net, t, dt_runtime_rank(dt_mesh_runtime(mesh)) == 0);
    dt_stage_net_close(&net);
    return st;
}

static void expect_same(const training *a, const training *b)
{
    const size_t n = 2 * (size_t)a->stages * VALUES;

    if (a->loss != b->loss || memcmp(a->values, b->values, n * sizeof *a->values) != 0)
        dt_test_fail(__FILE__, __LINE__, "%s: not the bits of %s",
                     b->table != NULL ? b->table : b->name, a->name);
}

DT_TEST(pipeline_run, tables_of_ones_own_have_the_same_bits)
{
    /* the last stage on rank 0, W's at any time; two stages of a rank; halves and wholes */
    static const char *const tables[] = {
        "1F0,1B0,1F1,1I1,1F2,1I2,1W1,1W2\n0F0,0F1,0F2,0I0,0I1,0W0,0W1,0B2\n",
        "0F0,1F0,0F1,1F1,0F2,1F2,1B0,1B1,0I0,0W0,1I2,0B1,0B2,1W2\n",
        ",0F0,,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,,(1F2;1B0)OVERLAP_F_B,1B1,1B2,\n",
    };
    training *want = calloc(1, sizeof *want), *is = calloc(1, sizeof *is);

    DT_ASSERT(want != NULL && is != NULL);
    *want = (training){ .name = "naive", .stages = 2, .microbatches = 3 };
    dt_test_on_ranks("pp=1", train, want);
    for (size_t i = 0; i < DT_COUNT(tables); i++) {
        *is = (training){ .table = tables[i], .stages = 2, .microbatches = 3 };
        dt_test_on_ranks(i == 1 ? "pp=1" : "pp=2", train, is);
        expect_same(want, is);
    }
    free(want);
    free(is);
}

/* Every schedule, printed and read, has the bits that it has by name. */
DT_TEST(pipeline_run, what_was_printed_runs)
{
    training *want = calloc(1, sizeof *want), *is = calloc(1, sizeof *is);
    const dt_pipeline_kind *kind;

    DT_ASSERT(want != NULL && is != NULL);
    *want = (training){ .name = "naive", .stages = 4, .microbatches = 4 };
    dt_test_on_ranks("pp=2", train, want);
    for (int k = 0; (kind = dt_pipeline_kind_at(k)) != NULL; k++) {
        DT_HELD(pipeline_schedule) *s = NULL;
        char text[TEXT_BYTES];
        if (kind->stages_per_rank != 2) continue;
        DT_ASSERT_OK(dt_pipeline_schedule_create(kind->name, 2, 2, 4, &s));
        DT_ASSERT(dt_pipeline_schedule_print(s, text, sizeof text) < (int)sizeof text);
        *is = (training){ .table = text, .stages = 4, .microbatches = 4 };
        dt_test_on_ranks("pp=2", train, is);
        expect_same(want, is);
    }
    free(want);
    free(is);
}

static dt_status refuse(dt_mesh *mesh, const void *arg)
{
    static const char late[] = "0F0,0B0,0F1,0B1\n1B0,1F0,1F1,1B1\n";
    DT_HELD(pipeline_schedule) *wrong = NULL, *three = NULL;
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    dt_pipeline *p = NULL;
    DT_HELD(pipeline_schedule) *s = NULL;
    DT_HELD(mesh) *half = NULL;
    dt_stage_net net;
    dt_status st;

    (void)arg;
    DT_TRY(dt_mesh_stage(mesh, "pp", 0, &half));
    DT_EXPECT_STATUS(dt_pipeline_schedule_parse("late.csv", late, strlen(late), &wrong),
                     DT_ERR_FORMAT, "late.csv: rank 1, column 0 (\"1B0\")");
    DT_EXPECT(wrong == NULL, "a table that cannot run is there");
    DT_TRY(dt_pipeline_schedule_create("1f1b", 2, 0, 2, &s));
    DT_TRY(dt_pipeline_schedule_create("1f1b", 3, 0, 2, &three));
    DT_TRY(dt_stage_net_open(mesh, s, NULL, &net));
    how.forward = plain;
    how.arg = &net;
    st = dt_test_expect_status(__func__, __FILE__, __LINE__,
                               dt_pipeline_create(mesh, "pp", wrong, net.optimizer, &how, &p),
                               DT_ERR_ARG, "schedule");
    if (st == DT_OK)
        st = dt_test_expect_status(__func__, __FILE__, __LINE__,
                                   dt_pipeline_create(mesh, "pp", three, net.optimizer, &how, &p),
                                   DT_ERR_ARG, "\"1f1b\" is for 3 ranks, mesh dim \"pp\" has 2");
    if (st == DT_OK)
        st = dt_test_expect_status(__func__, __FILE__, __LINE__,
                                   dt_pipeline_create(mesh, "ep", s, net.optimizer, &how, &p),
                                   DT_ERR_ARG, "no dim \"ep\"");
    if (st == DT_OK)
        st = dt_test_expect_status(__func__, __FILE__, __LINE__,
                                   dt_pipeline_create(half, "pp", s, net.optimizer, &how, &p),
                                   DT_ERR_ARG,
                                   "the mesh has 1 rank, that of the optimizer's layers has 2");
    dt_stage_net_close(&net);
    return st;
}

DT_TEST(pipeline_run, what_cannot_run_does_not_get_as_far)
{
    dt_test_on_ranks("pp=2", refuse, NULL);
}

/* --- a last stage without parameters, of a batch that is cut --------------------------------- */

typedef struct summing {
    dt_layers *layers;
    dt_tensor *x; /* on the ranks of the first stage */
} summing;

/* y = 1 x, then the sum of y, of which each rank of dp has its rows' terms. */
static dt_tensor *sum_up(void *arg, dt_tape *t, int stage, int microbatch, dt_tensor *x)
{
    const summing *s = arg;

    (void)microbatch;
    return stage == 0 ? dt_layer_forward(t, dt_layers_at(s->layers, 0), s->x)
                      : dt_sum(t, x, DT_ALL_AXES);
}

static dt_status run_sum(dt_mesh *mesh, dt_optimizer *optimizer, dt_pipeline *p)
{
    dt_pipeline_result r;
    dt_step_report report;

    (void)mesh;
    DT_EXPECT_STATUS(dt_optimizer_step(optimizer, 1.0, &report), DT_ERR_ARG,
                     "no backward pass has reached any parameter");
    DT_TRY(dt_pipeline_run(p, &r));
    DT_TRY(dt_optimizer_step(optimizer, 1.0, &report));
    DT_EXPECT(r.loss == 15, "the loss is %g", r.loss);
    DT_EXPECT(report.norm == 15, "the norm is %g", report.norm);
    return DT_OK;
}

static dt_status sum_rows(dt_mesh *mesh, const void *arg)
{
    const dt_placement whole[] = { DT_REPLICATE, DT_REPLICATE };
    const dt_placement cut[] = { DT_REPLICATE, DT_SHARD(0) };
    static const int64_t one[] = { 1, 1 }, rows[] = { 4, 1 };
    static const float weight[] = { 1 }, x[] = { 1, 2, 4, 8 };
    dt_optimizer_options o = DT_OPTIMIZER_OPTIONS_INIT;
    dt_pipeline_options how = DT_PIPELINE_OPTIONS_INIT;
    DT_HELD(pipeline_schedule) *schedule = NULL;
    DT_HELD(mesh) *first = NULL;
    DT_HELD(layers) *layers = NULL;
    DT_HELD(tensor) *w = NULL, *input = NULL;
    DT_HELD(optimizer) *optimizer = NULL;
    DT_HELD(pipeline) *p = NULL;
    dt_layer_spec spec = { .name = "a", .kind = &dt_linear_kind, .axis = { { 1, 0 }, { 1, 0 } } };
    summing s = { NULL, NULL };

    (void)arg;
    DT_TRY(dt_mesh_stage(mesh, "pp", 0, &first));
    spec.mesh = first;
    DT_TRY(dt_layers_create(mesh, "tp?", &spec, 1, NULL, &layers));
    DT_TRY(dt_distribute(first, whole, DT_F32, 2, one, (dt_source){ weight, DT_EQUAL_COPIES }, &w));
    DT_TRY(dt_layer_set_param(dt_layers_at(layers, 0), 0, w));
    DT_TRY(dt_distribute(first, cut, DT_F32, 2, rows, (dt_source){ x, DT_EQUAL_COPIES }, &input));
    s = (summing){ layers, input };
    o.rule = DT_SGD;
    o.clip = o.weight_decay = 0;
    DT_TRY(dt_optimizer_create(layers, &o, &optimizer));
    DT_TRY(dt_pipeline_schedule_create("1f1b", 2, 0, 1, &schedule));
    how.forward = sum_up;
    how.arg = &s;
    DT_TRY(dt_pipeline_create(mesh, "pp", schedule, optimizer, &how, &p));
    return run_sum(mesh, optimizer, p);
}

/* Its rank has nothing to step, and the loss is the sum of all ranks' terms. */
DT_TEST(pipeline_run, a_last_stage_may_have_no_parameters_and_terms_of_a_sum)
{
    dt_test_on_ranks("pp=2,dp=2", sum_rows, NULL);
}
